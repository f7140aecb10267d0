/* fused/wgmma.cuh -- up, quantization of h and down in one launch, on Hopper, of the rows r of each expert:
 * h[r] = act(gate(x[r]), up(x[r])), and y[r] = h[r] . w_down.  For fused_wgmma of the table.
 *
 * Two grouped GEMMs by wgmma in one persistent launch: one block an SM.  Experts have tens of rows, and the bytes of
 * the weights are still the limit.  Each block streams its tiles of w_up, then without a pause its tiles of w_down.
 * The plan takes the kernel where up and down have tiles enough for all SMs (rules.toml: up_down), up to the mean of
 * rows an expert in tile_rows.  Blocks wait for tiles of h of other blocks: all blocks must be resident at once.
 * A tile is M rows of a by N rows of w, with all of k.  Rows of w are wgmma's M, 128 a warpgroup, and rows of a its N.
 * Warps have roles:
 *
 *     scheduler, producer (warp 0): takes tiles; weights, by TMA, and their scales
 *     producer warps (1, 2): rows of a, scales, by cp.async     warp 3: tells other blocks of tiles of h
 *              | full_w, full [s]                           ^ empty [s]
 *              v                                            |
 *     stages [s] of 128 bytes of k: rows of a, scales | rows of w
 *              |
 *              v
 *     consumer warpgroups (warps 4 .. 7, 8 .. 11): wgmma, then
 *         up: scales, bias, activation, codes -> page -> h      down: scales, bias -> y
 *
 * - Walk: first all tiles of up, then all of down, expert by expert, row block by row block.  The first tile of a block
 *   has the number of the block.  Later tiles are taken by demand (flags[0], flags[32]): blocks that read as many bytes
 *   do not end at the same time.
 * - h: a tile of up has 128 columns of h if gated, else 256: all that a block scale needs.  flags[64 + row block]
 *   counts the tiles of a row block.  A tile of down waits for that count, seldom long: all but the last tiles of up
 *   are old by then.
 * - h leaves by way of a page of shared memory: each of the eight consumer warps has some columns of all rows.
 * - Warp 3 has no other work, for the fence ahead of a count waits behind all loads on their way to the SM.
 * - Before the schedule is known, a block asks for the first weights of the tile that it would have if each expert had
 *   one row block.  Where the plan takes this kernel, that guess is most often right.  With up.ids the block counts ids
 *   itself, so that these weights are on their way while x is quantized and slots are sorted.
 * - BY_TWO: two stages that lie side by side in memory are asked for together (docs/notes: two-stages-together).
 * - FP8: the tensor cores sum 64 of k in up, 128 in down or where there are more than 64 rows (docs/notes:
 *   thirteen-bit-sums).  That sum is added in f32, BLOCKED times the scales of its rows of a and of w.
 */
#ifndef MOEK_FUSED_WGMMA_CUH
#define MOEK_FUSED_WGMMA_CUH
#include "../../include/moek/kernel/sm90_schedule.h"
#include "../../include/moek/kernel/act.h"

/* Format: of moek_formats.h. */
template <int M, int N, int STAGES, class Format> struct moek_up_down_ {
    enum {
        FP8 = Format::W_BITS == 8, DTYPE = Format::DTYPE,
        ELEMENT = Format::W_BITS / 8, PER = 128 / ELEMENT,                     /* bytes; PER: elements in a stage */
        BLOCKED = Format::W_SCALE_COLUMNS > 0,         /* scales are for 128 x 128 of w, and 128 columns of a */
        BY_TENSOR = FP8 && !BLOCKED,
        TALL = FP8 && M > 64,                          /* registers are scarce */
        BY_TWO = STAGES > 4 || !FP8,                   /* (fp8 with four lost by it) */
        A = M * 128, STAGE = (M + N) * 128,            /* bytes of rows of a, and of w, too */
        SCALES = BLOCKED ? M + 4 : 0,
        PAGE_ROWS = M <= 112 ? M : M / 3,              /* of h on its way out */
        PITCH = 272,                                   /* bytes of 128 columns of such a row: no bank twice */
        CLAIMS = 16, TOLD = 4, ORDERS = 8, AHEAD = STAGES > 4 ? 4 : STAGES - 1,
        ROWS = M / 8, ROUNDS = (M + 63) / 64,          /* of a, for a producer lane; of their scales */
        WEIGHERS = BLOCKED ? 4 : 1,                    /* threads that produce weights */
        THREADS = 384
    };
    /* Of up and of down: columns of a tile, tiles of a row block, stages of a tile. */
    struct size { int columns, tiles, steps; moek_fastdiv over_tiles; };
    struct params {
        moek_up_down_args a;
        moek_gemm_ up, down;
        size sizes[2];
        moek_fastdiv div;
        CUtensorMap w_up, w_down;
    };

#ifdef MOEK_SM90_CODE_
    /* What all roles of a block know: its shared memory, and what it guesses its first tile to be. */
    struct block {
        unsigned char *ring, *page;                    /* stages; h of a tile on its way out */
        uint64_t *full, *full_w, *empty;               /* barriers [STAGES]: of rows of a, of rows of w, of both */
        uint64_t *guessed;                             /* barriers [AHEAD]: full_w of what was asked for in advance */
        uint64_t *stored, *told;                       /* barriers [TOLD]: a tile of h is written; other blocks know */
        uint64_t *claimed;                             /* barriers [CLAIMS]: of `claim` */
        int *claim;                                    /* [CLAIMS]: tiles taken by demand */
        uint16_t *expert;                              /* [MOEK_UP_DOWN_BLOCKS] of row blocks */
        int *row;                                      /* [experts + 2]: each one's first; row blocks */
        int *order;                                    /* [ORDERS][M]: where rows of a tile of y go */
        float *scales;                                 /* [STAGES]: of rows of a; of 64s of rows of w */
        int gated;
        int32_t *flags;
        int experts;
        int guess, ahead;                              /* an expert; stages asked for in advance */
    };
    /* How far a role is: its place in the ring, the phase of the barriers there, tiles so far.  Producers of weights
     * also know their stages so far, and whether the next one was asked for already, together with the one before. */
    struct place { int slot, phase; unsigned n; int issued, two; };
    /* Where a tile lies: expert, number b of its row block, rows [row0, end), columns from j0 on. */
    struct tile { int e, b, row0, end, j0; };

    MOEK_DEVICE void find_tile(const params *p, const block *b, int number, int down, tile *at)
    {
        int before = 0;
        const size *const z = &p->sizes[down];
        at->b = (int)moek_fastdiv_(number, z->over_tiles);
        at->j0 = (number - at->b * z->tiles) * z->columns;
        at->e = b->expert[at->b];
        while (before < at->b && b->expert[at->b - before - 1] == at->e) before++;
        at->row0 = b->row[at->e] + before * M;
        at->end = b->row[at->e + 1];
    }
    /* Of up or down.  (Row blocks are read, not kept: consumers have no register left.) */
    MOEK_DEVICE int tiles_of(const params *p, const block *b, int down)
    {
        return b->row[b->experts + 1] * p->sizes[down].tiles;
    }

    /* ---- the beginning ------------------------------------------------------------------------------------------- */

    /* By one thread: barriers, and loads of the first weights of the tile that the block would have if each expert had
     * one row block. */
    MOEK_DEVICE void start(const params *p, const block *b)
    {
        int i;
        moek_tma_prefetch_map_(&p->w_up);
        moek_tma_prefetch_map_(&p->w_down);
        for (i = 0; i < STAGES; i++) {
            moek_mbar_init_(b->full_w + i, BLOCKED ? 1 + 4 : 1);
            moek_mbar_init_(b->full + i, 64);
            moek_mbar_init_(b->empty + i, 8);          /* warps */
        }
        for (i = 0; i < CLAIMS; i++) moek_mbar_init_(b->claimed + i, 1);
        for (i = 0; i < TOLD; i++) {
            moek_mbar_init_(b->stored + i, 8);
            moek_mbar_init_(b->told + i, 1);
        }
        for (i = 0; i < AHEAD; i++) moek_mbar_init_(b->guessed + i, 1);
        moek_mbar_init_fence_();
        for (i = 0; i < b->ahead; i++) {
            const int j0 = ((int)blockIdx.x - b->guess * p->sizes[0].tiles) * p->sizes[0].columns;
            moek_tma_stage_(b->ring + i * STAGE + A, &p->w_up, b->guessed + i, N * 128, moek_evict_first_(), &p->up,
                            PER, i, j0, b->guess);
        }
    }
    /* By all threads: the first rows of experts, and the experts of row blocks.  Ends with a barrier. */
    MOEK_DEVICE void schedule(const params *p, const block *b, int t)
    {
        unsigned char *const scratch = b->ring + AHEAD * STAGE;
        moek_schedule_ s;
        int i;
        if (p->up.ids) {                               /* older: the schedule is made while the kernel before runs */
            moek_tally_ids_((int *)(scratch + 16384), p->up.ids, p->up.slots, b->experts);
            s = moek_schedule_of_(scratch, (const int *)(scratch + 16384), b->experts, M);
        } else {
            moek_grid_wait_();                         /* the schedule is what the kernel before wrote */
            s = moek_schedule_of_(scratch, p->up.rows.counts, b->experts, M);       /* ends with a barrier, as above */
        }
        if (t == 0) b->row[b->experts + 1] = s.block[b->experts];
        for (i = t; i <= b->experts; i += THREADS) {
            int at;
            b->row[i] = s.row[i];
            if (i < b->experts) for (at = s.block[i]; at < s.block[i + 1]; at++) b->expert[at] = (uint16_t)i;
        }
        moek_proxy_fence_();                           /* TMA will write over the schedule */
        __syncthreads();
    }

    /* ---- producers ----------------------------------------------------------------------------------------------- */

    /* Scheduler, which takes tiles by demand, and producer of weights, BLOCKED with their scales: WEIGHERS threads. */
    template <int UP> MOEK_DEVICE void produce(const params *p, const block *b, place *of, uint64_t policy)
    {
        const int t = threadIdx.x;
        tile at;
        int slot = of->slot, phase = of->phase, issued = of->issued, two = of->two, number, step, i;
        unsigned n = of->n;
        const moek_gemm_ *const a = UP ? &p->up : &p->down;
        const size *const z = &p->sizes[!UP];
        const float *w_scale;
        for (;;) {
            if (t == 0) {
                if constexpr (UP) {
                    if (n == 0) {
                        number = blockIdx.x;
                    } else {
                        if (n == 1) moek_grid_wait_(); /* for zeros in flags */
                        number = (int)gridDim.x + atomicAdd(b->flags, 1);
                    }
                } else {
                    if (n == 1) moek_grid_wait_();     /* (no tile of up) */
                    number = atomicAdd(b->flags + 32, 1);
                }
                b->claim[n % CLAIMS] = number;
                moek_mbar_arrive_(b->claimed + n % CLAIMS);
            }
            n++;
            if constexpr (BLOCKED) number = __shfl_sync(0xf, number, 0);
            if (number >= tiles_of(p, b, !UP)) break;
            find_tile(p, b, number, !UP, &at);
            if constexpr (BLOCKED) {                   /* of each 64 rows of w of the tile */
                const int j = at.j0 + 64 * (UP && b->gated ? t / 2 : t);
                w_scale = moek_scales_of_(&a->gate_up, UP ? t % 2 : 0, at.e, min(j, a->n - 1), z->steps);
            }
            for (step = 0; step < z->steps; step++) {
                if (two) {
                    two = 0;
                } else {
                    const int next = slot + 1 == STAGES ? 0 : slot + 1;
                    int before;                        /* more are not on their way */
                    two = BY_TWO && moek_two_(a, step, z->steps) && (!UP || issued >= b->ahead);
                    before = issued + two - (issued < STAGES ? 2 + two : 4);
                    moek_mbar_wait_(b->empty + slot, phase);
                    if (two) moek_mbar_wait_(b->empty + next, next ? phase : phase ^ 1);
                    if (before >= 0) moek_mbar_wait_(b->full_w + before % STAGES, before / STAGES % 2);
                    if (UP && t == 0 && issued < b->ahead) {       /* asked for already, if the guess was right */
                        moek_mbar_wait_(b->guessed + issued, 0);
                        if (at.e == b->guess) moek_mbar_arrive_(b->full_w + slot);
                    }
                    if (t == 0 && (!UP || issued >= b->ahead || at.e != b->guess)) {
                        moek_tma_stage_(b->ring + slot * STAGE + A, UP ? &p->w_up : &p->w_down, b->full_w + slot,
                                        N * 128, policy, a, PER, step, at.j0, at.e);
                        if (two)
                            moek_tma_stage_(b->ring + next * STAGE + A, UP ? &p->w_up : &p->w_down, b->full_w + next,
                                            N * 128, policy, a, PER, step + 1, at.j0, at.e);
                    }
                }
                if constexpr (BLOCKED) {
                    moek_cp_async4_(b->scales + slot * SCALES + M + t, w_scale + step);
                    moek_mbar_arrive_copied_(b->full_w + slot);
                }
                issued++;
                moek_next_(slot, phase, STAGES);
            }
        }
        if constexpr (UP)
            for (i = 0; t == 0 && issued == 0 && i < b->ahead; i++) moek_mbar_wait_(b->guessed + i, 0);   /* no tile */
        of->slot = slot; of->phase = phase; of->n = n; of->issued = issued; of->two = two;
    }
    /* Producer of rows of a, BLOCKED with their scales: two warps. */
    template <int UP> MOEK_DEVICE void gather(const params *p, const block *b, place *of)
    {
        const int t = threadIdx.x, u = t - 32;
        const moek_gemm_ *const a = UP ? &p->up : &p->down;
        const int row_bytes = a->k * ELEMENT, steps = p->sizes[!UP].steps;
        const unsigned char *const x = (const unsigned char *)a->a + u % 8 * 16;
        tile at;
        int slot = of->slot, phase = of->phase, number, step, i;
        unsigned n = of->n;
        const int32_t *const ready = b->flags + MOEK_UP_DOWN_FLAGS;
        int from_b = 0, known = 0;                     /* down: row blocks from_b .. known - 1 are ready */
        for (;;) {
            int rows;
            uint32_t from[UP ? ROWS : 1];              /* where rows begin, in 16 bytes; of down, the first */
            uint32_t scale_at[UP ? ROUNDS : 1];        /* where their scales begin */
            moek_mbar_wait_(b->claimed + n % CLAIMS, n / CLAIMS % 2);
            number = b->claim[n++ % CLAIMS];
            __syncwarp();                              /* wgmma wants the warp together */
            if (number >= tiles_of(p, b, !UP)) break;
            find_tile(p, b, number, !UP, &at);
            rows = min(at.end - at.row0, M);
            if constexpr (UP) {
                #pragma unroll
                for (i = 0; i < ROWS; i++) {
                    const int r = at.row0 + min(u / 8 + 8 * i, rows - 1);
                    from[i] = a->rows.order ? a->rows.order[r] : r;
                }
                if constexpr (BLOCKED) {
                    #pragma unroll
                    for (i = 0; i < ROUNDS; i++) {
                        const int r = at.row0 + min(u + 64 * i, rows - 1);
                        scale_at[i] = a->rows.order ? moek_fastdiv_(a->rows.order[r], p->div) : (uint32_t)r;
                        scale_at[i] *= (uint32_t)steps;
                    }
                }
                #pragma unroll
                for (i = 0; i < ROWS; i++) {
                    if (a->rows.order) from[i] = moek_fastdiv_(from[i], p->div);
                    from[i] *= (uint32_t)a->a_row_bytes / 16;
                }
            } else {
                from[0] = (uint32_t)(at.row0 + u / 8) * (uint32_t)(row_bytes / 16);
                if constexpr (BLOCKED) scale_at[0] = (uint32_t)(at.row0 + u) * (uint32_t)steps;
                while (at.b < from_b || at.b >= known) {           /* look at 32 row blocks at once */
                    const int other = at.b + u % 32;
                    const int is = other < b->row[b->experts + 1] &&
                                   moek_flag_read_(ready + other) >= p->sizes[0].tiles;
                    from_b = at.b;
                    known = at.b + __ffs(~__ballot_sync(0xffffffff, is)) - 1;
                    if (known < at.b) known = at.b + 32;           /* all of them */
                }
                __syncwarp();                          /* what one lane saw, all may read */
            }
            for (step = 0; step < steps; step++) {
                unsigned char *const to = b->ring + slot * STAGE + u / 8 * 128 + (u % 8 ^ u / 8) * 16;
                const int bytes = step * 128 + u % 8 * 16 < row_bytes ? 16 : 0;
                const unsigned char *const at_k = x + (bytes ? step * 128 : 0);
                moek_mbar_wait_(b->empty + slot, phase);
                if (!UP && step == 0 && a->rows.out_order)
                    for (i = u; i < rows; i += 64)
                        moek_cp_async4_(b->order + (n - 1) % ORDERS * M + i, a->rows.out_order + at.row0 + i);
                #pragma unroll
                for (i = 0; i < ROWS; i++)
                    if (u / 8 + 8 * i < rows)
                        moek_cp_async16_(to + i * 1024,
                                         moek_at_(at_k, UP ? from[UP ? i : 0]
                                                           : from[0] + (uint32_t)i * (uint32_t)(row_bytes / 2), 16),
                                         bytes);
                if constexpr (BLOCKED) {
                    #pragma unroll
                    for (i = 0; i < ROUNDS; i++)
                        if (u + 64 * i < rows)
                            moek_cp_async4_(b->scales + slot * SCALES + u + 64 * i,
                                            MOEK_F32_(a->a_scale) +
                                                (UP ? scale_at[UP ? i : 0]
                                                    : scale_at[0] + (uint32_t)(64 * i * steps)) + step);
                }
                moek_mbar_arrive_copied_(b->full + slot);
                moek_next_(slot, phase, STAGES);
            }
        }
        of->slot = slot; of->phase = phase; of->n = n;
    }
    /* Tells other blocks of each tile of h that it is written: a warp. */
    MOEK_DEVICE void tell(const params *p, const block *b)
    {
        const int t = threadIdx.x;
        tile at;
        unsigned n = 0;
        int number;
        for (;;) {
            moek_mbar_wait_(b->claimed + n % CLAIMS, n / CLAIMS % 2);
            number = b->claim[n++ % CLAIMS];
            __syncwarp();                              /* wgmma wants the warp together */
            if (number >= tiles_of(p, b, 0)) break;
            find_tile(p, b, number, 0, &at);
            if (t == 96) {
                const unsigned k = n - 1;
                moek_mbar_wait_(b->stored + k % TOLD, k / TOLD % 2);
                moek_mbar_arrive_(b->told + k % TOLD);
                moek_flag_add_(b->flags + MOEK_UP_DOWN_FLAGS + at.b);
            }
        }
    }

    /* ---- consumers: h and y -------------------------------------------------------------------------------------- */

    /* Rows of h in `page`, 128 columns each -> down.a, FP8 quantized; from number `first` of the tile on, or, not
     * gated, half as many of two groups of columns.  8 lanes a row. */
    MOEK_DEVICE void store_rows(const params *p, const unsigned char *page, const tile *at, int first, int gated,
                                int dtype)
    {
        const int n = moek_opaque_int_(p->up.n), u = moek_opaque_int_(threadIdx.x) - 128, c = u % 8 * 16;
        int slot;
        float inverse = 0;
        if constexpr (BY_TENSOR) inverse = __fdiv_rn(1.0f, *MOEK_F32_(p->down.a_scale));
        #pragma unroll 1
        for (slot = u / 8; slot < PAGE_ROWS; slot += 32) {     /* of a warp: all or none */
            const int side = gated ? 0 : slot / (PAGE_ROWS / 2);
            const int row = at->row0 + first + slot - side * (PAGE_ROWS / 2);
            const int j = at->j0 + 128 * side + c, is = row < at->end && j < n;
            const size_t to = (size_t)row * n + j;
            moek_words_ x[2];
            int h;
            #pragma unroll
            for (h = 0; h < 2; h++)
                x[h] = is && j + 8 * h < n ? moek_load_words_(page + slot * PITCH + 2 * c + 16 * h)
                                           : moek_zero_words_();
            if constexpr (FP8) {
                uint2 q[2];
                if constexpr (BLOCKED) {
                    const float s = moek_group_codes_(q, x, 2, 8, p->a.ue8m0, dtype);
                    if (is && c == 0) ((float *)p->down.a_scale)[(size_t)row * ((n + 127) / 128) + j / 128] = s;
                } else {
                    #pragma unroll
                    for (h = 0; h < 2; h++) q[h] = moek_static_codes_(x[h], inverse, dtype);
                }
                if (is) *(uint4 *)((uint8_t *)p->down.a + to) = make_uint4(q[0].x, q[0].y, q[1].x, q[1].y);
            } else {
                #pragma unroll
                for (h = 0; h < 2; h++)
                    if (is && j + 8 * h < n) moek_store_words_((uint16_t *)p->down.a + to + 8 * h, x[h]);
            }
        }
        (void)dtype;
    }
    /* h of a tile -> down.a, FP8 quantized, by way of `page`: of a row's 128 columns each warp has some.
     * page: shared, [PAGE_ROWS][PITCH] bytes. */
    MOEK_DEVICE void finish_up(const params *p, float (*sum)[M / 2], const tile *at, unsigned char *page, int dtype)
    {
        enum { HALF = PAGE_ROWS / 2 };
        enum { PARTS = M <= 80 ? 1 : M % 48 == 0 ? 3 : 2, OF = M / PARTS };                        /* registers */
        const moek_gemm_ *const a = &p->up;
        const int t = moek_opaque_int_(threadIdx.x), mine = t / 128 - 1;     /* nothing of it is kept through a loop */
        const int lane = t % 32, warp = t % 128 / 32, g = lane / 4, n = moek_opaque_int_(a->n);
        const int gated = a->w_rows > n, swapped = a->gate_up.swapped;
        const int j0 = at->j0 + (gated ? 64 * mine + 8 * warp : 128 * mine + 16 * warp), next = gated ? 32 : 64;
        int part, b, i;
        if (gated && !swapped && !a->w.bias && a->epilogue.act == MOEK_SILU && !(a->epilogue.limit > 0)) {
            if constexpr (BY_TENSOR) {
                const float s = *MOEK_F32_(a->a_scale);
                const float scale[2] = { s * a->gate_up.scales[0][at->e], s * a->gate_up.scales[1][at->e] };
                #pragma unroll
                for (i = 0; i < M; i++) sum[i / (M / 2)][i % (M / 2)] *= scale[i / 2 % 2];
            }
            #pragma unroll
            for (part = 0; part < PARTS; part++)
                moek_fast_pairs_(sum[0] + part * (OF / 2), sum[1] + part * (OF / 2), OF / 4);
        } else {
            #pragma unroll
            for (b = 0; b < 2; b++) {
                const int j = j0 + next * b;
                int w_row[2];
                #pragma unroll
                for (i = 0; i < 2; i++) {              /* a column behind the last is not stored: any bias will do */
                    const int column = min(gated ? j + g : j + g + 8 * i, n - 1);
                    w_row[i] = column * a->gate_up.step;
                }
                moek_scale_sums_(a, sum[b], M, BY_TENSOR, at->e, w_row, dtype);
                moek_act_sums_<M>(a, sum[b], swapped);
            }
        }
        #pragma unroll
        for (part = 0; part < M / HALF; part++) {      /* half a page of rows; not gated, of two groups */
            unsigned char *const to = page + ((gated ? part % 2 : mine) * HALF + lane % 8) * PITCH;
            if (!gated || part % 2 == 0) moek_named_wait_(3, 256);             /* all have read what was there before */
            #pragma unroll
            for (i = 0; i < HALF / 8; i++) {
                const float *const low = sum[0] + (part * (HALF / 8) + i) * 4, *const high = sum[1] + (low - sum[0]);
                unsigned char *const put = to + 8 * i * PITCH;
                const int half = lane / 8 % 2;
                if (gated) {
                    moek_stmatrix2_trans_(put + 2 * (64 * mine + 8 * warp + 32 * half),
                                          moek_to_t2_(low[0], low[1], dtype), moek_to_t2_(high[0], high[1], dtype));
                } else {
                    moek_stmatrix2_trans_(put + 2 * (16 * warp + 8 * half), moek_to_t2_(low[0], low[1], dtype),
                                          moek_to_t2_(low[2], low[3], dtype));
                    moek_stmatrix2_trans_(put + 2 * (64 + 16 * warp + 8 * half), moek_to_t2_(high[0], high[1], dtype),
                                          moek_to_t2_(high[2], high[3], dtype));
                }
            }
            if (gated && part % 2 == 0) continue;
            moek_named_wait_(3, 256);
            if constexpr (!FP8) store_rows(p, page, at, (gated ? part - 1 : part) * HALF, gated, dtype);
            else if (dtype == MOEK_DTYPE_FP16)
                store_rows(p, page, at, (gated ? part - 1 : part) * HALF, gated, MOEK_DTYPE_FP16);
            else store_rows(p, page, at, (gated ? part - 1 : part) * HALF, gated, MOEK_DTYPE_BF16);
        }
    }
    /* y of a tile -> down.out.  to: where each of its rows goes, shared; NULL: as they lie. */
    MOEK_DEVICE void finish_down(const params *p, float (*sum)[M / 2], const tile *at, const int *to, int mine,
                                 int dtype)
    {
        const moek_gemm_ *const a = &p->down;
        const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32, g = lane / 4, c = lane % 4 * 2, n = a->n;
        int b, i;
        #pragma unroll
        for (b = 0; b < 2; b++) {
            const int j = at->j0 + 128 * mine + 64 * b + 16 * warp;
            const int w_row[2] = { min(j + g, n - 1), min(j + g + 8, n - 1) };
            moek_scale_sums_(a, sum[b], M, BY_TENSOR, at->e, w_row, dtype);
            #pragma unroll
            for (i = 0; i < M / 8; i++) {              /* now a lane has a row of a, and two columns */
                const int r = at->row0 + 8 * i + g, row = to ? to[8 * i + g] : r;
                if (r - g >= at->end) break;
                const uint32_t low = moek_transpose_(moek_to_t2_(sum[b][4 * i], sum[b][4 * i + 1], dtype));
                const uint32_t high = moek_transpose_(moek_to_t2_(sum[b][4 * i + 2], sum[b][4 * i + 3], dtype));
                const int odd = lane % 2, column = j + 8 * odd + (c & 4);      /* four columns: of `high` if odd */
                const uint32_t other = __shfl_xor_sync(0xffffffff, odd ? low : high, 1);
                if (r < at->end && column < n)
                    moek_store_kept_((uint16_t *)a->out + (size_t)(uint32_t)row * n + column,
                                     odd ? make_uint2(other, high) : make_uint2(low, other));
            }
        }
    }

    /* ---- consumers: products ------------------------------------------------------------------------------------- */

    /* FP8: begins product number G of a stage: 128 / (SETS of them) of k, of 64 rows of w, half G / SETS of the 128. */
    template <int SETS, int G> MOEK_DEVICE void begin(float *part, uint64_t ws, uint64_t xs)
    {
        enum { CHAIN = 4 / SETS, AT = 2 * CHAIN * (G % SETS) };
        int j;
        moek_wgmma_fence_();
        #pragma unroll
        for (j = 0; j < CHAIN; j++)
            moek_wgmma_of_shared_<M, Format::ELEMENT>(part, ws + (512 * (G / SETS) + AT) + 2 * j, xs + AT + 2 * j, j);
        moek_wgmma_commit_();
    }
    /* BLOCKED: by, scales of rows of a times scales of w, of half `half` of the 128 rows.  of: scales of the stage. */
    template <int UP>
    MOEK_DEVICE void factors(float (*by)[M / 4], const float *of, float first, float second, int gated, int half)
    {
        const int t = threadIdx.x;
        const float low = UP && gated ? first : half ? second : first, high = UP && gated ? second : low;
        int i;
        #pragma unroll
        for (i = 0; i < M / 4; i++) {
            const float a = of[i / 2 * 8 + t % 4 * 2 + i % 2];
            by[0][i] = a * low;
            moek_keep_(by[0][i]);
            if constexpr (UP) {
                by[1][i] = a * high;
                moek_keep_(by[1][i]);
            }
        }
    }
    /* FP8: takes product number G, while the tensor cores make the next. */
    template <int UP, int SETS, int G>
    MOEK_DEVICE void take(float (*sum)[M / 2], float (*part)[M / 2], float (*by)[M / 4], const float *of, float first,
                          float second, uint64_t ws, uint64_t xs, int gated)
    {
        int i;
        if constexpr (G < 2 * SETS) {
            if constexpr (BLOCKED && G % SETS == 0 && G > 0) factors<UP>(by, of, first, second, gated, G / SETS);
            if constexpr (G == 0) begin<SETS, 0>(part[0], ws, xs);
            if constexpr (G + 1 < 2 * SETS) begin<SETS, G + 1>(part[(G + 1) % 2], ws, xs);
            if constexpr (BLOCKED && G == 0) factors<UP>(by, of, first, second, gated, 0);
            moek_wgmma_wait_(G + 1 < 2 * SETS ? 1 : 0);
            #pragma unroll
            for (i = 0; i < M / 2; i++)
                if constexpr (BLOCKED) sum[G / SETS][i] += part[G % 2][i] * by[UP ? i % 4 / 2 : 0][i / 4 * 2 + i % 2];
                else sum[G / SETS][i] += part[G % 2][i];
        }
    }
    /* A stage, in place `slot` of the ring: 128 rows of w.  FP8: one sum is added while the tensor cores make the next.
     * Up sums 64 of k by them, beyond 64 rows 128, down 128: registers. */
    template <int UP>
    MOEK_DEVICE void multiply(float (*sum)[M / 2], float (*part)[M / 2], float (*by)[M / 4], const block *b, int slot,
                              int phase, int mine, int gated)
    {
        const unsigned char *const stage = b->ring + slot * STAGE;
        const uint64_t ws = moek_uniform_(moek_wgmma_operand_(stage + A + mine * 16384));
        const uint64_t xs = moek_uniform_(moek_wgmma_operand_(stage));
        int j;
        moek_mbar_wait_(b->full_w + slot, phase);
        moek_mbar_wait_(b->full + slot, phase);
        if constexpr (FP8) {
            enum { SETS = !UP || M > 64 ? 1 : 2 };
            const float *const of = b->scales + slot * SCALES;
            const float first = BLOCKED ? of[M + 2 * mine] : 0, second = BLOCKED ? of[M + 2 * mine + 1] : 0;
            take<UP, SETS, 0>(sum, part, by, of, first, second, ws, xs, gated);
            take<UP, SETS, 1>(sum, part, by, of, first, second, ws, xs, gated);
            take<UP, SETS, 2>(sum, part, by, of, first, second, ws, xs, gated);
            take<UP, SETS, 3>(sum, part, by, of, first, second, ws, xs, gated);
        } else {
            moek_wgmma_fence_();
            #pragma unroll
            for (j = 0; j < 4; j++) moek_wgmma_of_shared_<M, Format::ELEMENT>(sum[0], ws + 2 * j, xs + 2 * j, 1);
            #pragma unroll
            for (j = 0; j < 4; j++) moek_wgmma_of_shared_<M, Format::ELEMENT>(sum[1], ws + 512 + 2 * j, xs + 2 * j, 1);
            moek_wgmma_commit_();
            moek_wgmma_wait_(0);
        }
    }
    /* Consumer: a warpgroup multiplies 128 rows of w of a tile. */
    template <int UP>
    MOEK_DEVICE void consume(const params *p, const block *b, place *of, int mine, int dtype)
    {
        tile at;
        int slot = of->slot, phase = of->phase, number, step, i;
        unsigned n = of->n;
        const int gated = UP && BLOCKED ? b->gated : 0;
        for (;;) {
            float sum[2][M / 2];
            moek_mbar_wait_(b->claimed + n % CLAIMS, n / CLAIMS % 2);
            number = b->claim[n++ % CLAIMS];
            __syncwarp();                              /* wgmma wants the warp together */
            if (number >= tiles_of(p, b, !UP)) break;
            if constexpr (!TALL) find_tile(p, b, number, !UP, &at);
            #pragma unroll
            for (i = 0; i < M; i++) {
                sum[i / (M / 2)][i % (M / 2)] = 0;
                if constexpr (!FP8) moek_keep_(sum[i / (M / 2)][i % (M / 2)]); /* (else zeros move behind the fence) */
            }
            for (step = 0; step < p->sizes[!UP].steps; step++) {
                float part[FP8 ? 2 : 1][M / 2], by[UP ? 2 : 1][M / 4];
                multiply<UP>(sum, part, by, b, slot, phase, mine, gated);
                moek_mbar_arrive_warp_(b->empty + slot);
                moek_next_(slot, phase, STAGES);
            }
            if constexpr (TALL) find_tile(p, b, moek_opaque_int_(number), !UP, &at);     /* now there are registers */
            if constexpr (UP) {
                finish_up(p, sum, &at, b->page, dtype);
                /* Of an earlier tile. */
                if (n > TOLD) moek_mbar_wait_(b->told + (n - 1) % TOLD, ((n - 1) / TOLD + 1) % 2);
                moek_mbar_arrive_warp_(b->stored + (n - 1) % TOLD);
            } else {
                finish_down(p, sum, &at, p->down.rows.out_order ? b->order + (n - 1) % ORDERS * M : NULL, mine, dtype);
            }
        }
        of->slot = slot; of->phase = phase; of->n = n;
    }

    /* A block. */
    MOEK_DEVICE void run(const params *p)
    {
        MOEK_SHARED_1024_(ring);
        const int t = threadIdx.x;
        place of = { 0, 0, 0, 0, 0 };
        block b;
        b.ring = ring;
        b.page = ring + STAGES * STAGE;
        b.full = (uint64_t *)(b.page + PAGE_ROWS * PITCH);
        b.empty = b.full + STAGES; b.full_w = b.empty + STAGES;
        b.guessed = b.full_w + STAGES;
        b.stored = b.guessed + AHEAD; b.told = b.stored + TOLD;
        b.claimed = b.told + TOLD;
        b.claim = (int *)(b.claimed + CLAIMS);
        b.expert = (uint16_t *)(b.claim + CLAIMS);
        b.row = (int *)(b.expert + MOEK_UP_DOWN_BLOCKS);
        b.order = b.row + MOEK_SM90_EXPERTS + 4;
        b.experts = p->up.experts;
        b.flags = p->a.flags;
        b.scales = (float *)(b.order + ORDERS * M);
        b.gated = p->up.w_rows > p->up.n;
        b.guess = (int)moek_fastdiv_(blockIdx.x, p->sizes[0].over_tiles);
        b.ahead = b.guess < b.experts ? min((int)AHEAD, p->sizes[0].steps) : 0;
        if (t == 0) start(p, &b);
        schedule(p, &b, t);
        moek_grid_go_();

        if (t < 128) {
            of.phase = 1;
            moek_registers_less_(72);
            if (t < WEIGHERS) {
                const uint64_t policy = moek_evict_first_();
                produce<1>(p, &b, &of, policy);
                produce<0>(p, &b, &of, policy);
            } else if (t >= 32 && t < 96) {
                moek_grid_wait_();                     /* now a is there, and the order of rows */
                gather<1>(p, &b, &of);
                gather<0>(p, &b, &of);
            } else if (t >= 96) {
                tell(p, &b);
            }
            moek_cp_async_commit_();
            moek_cp_async_wait_(0);
        } else {
            const int mine = t / 128 - 1, dtype = FP8 ? p->up.dtype : DTYPE;
            moek_registers_more_(216);
            consume<1>(p, &b, &of, mine, dtype);
            consume<0>(p, &b, &of, mine, dtype);
        }
    }
#else
    MOEK_DEVICE void run(const params *p) { (void)p; }
#endif
};

/* Launches one of these kernels, of `shared` bytes of shared memory.  args NULL: makes it ready. */
template <int M, int N, int STAGES, class Format>
static MOEK_UNUSED moek_status moek_launch_up_down_(
    const void *args, moek_stream stream, int shared,
    void (*kernel)(typename moek_up_down_<M, N, STAGES, Format>::params))
{
    typedef moek_up_down_<M, N, STAGES, Format> K;
    const moek_up_down_args *const a = (const moek_up_down_args *)args;
    typename K::params p;
    moek_status status;
    int i;
    if (!a) return MOEK_READY_SM90_(kernel, K::THREADS, shared);
    if (a->up->max_blocks < 1 || a->up->experts < 1) return MOEK_OK;
    if (a->up->experts > MOEK_SM90_EXPERTS || a->up->max_blocks > MOEK_UP_DOWN_BLOCKS || a->up->rows_per_expert ||
        !a->flags || a->up->n_offset || a->down->k_offset) return MOEK_E_ARGUMENT;
    if ((long long)a->up->max_blocks * M * a->down->k * K::ELEMENT >= MOEK_GATHERED) return MOEK_E_ARGUMENT;
    p.a = *a;
    moek_take_gemm_(&p.up, a->up); moek_take_gemm_(&p.down, a->down);
    for (i = 0; i < 2; i++) {
        const moek_gemm_args *const g = i ? a->down : a->up;
        typename K::size *const z = &p.sizes[i];
        moek_find_gemm_<Format>(i ? &p.down : &p.up, 1);
        z->columns = g->w_rows > g->n ? 128 : 256;
        z->tiles = (g->n + z->columns - 1) / z->columns;
        z->steps = (g->k * K::ELEMENT + 127) / 128;
        z->over_tiles = moek_fastdiv_of_(z->tiles);
    }
    p.div = moek_fastdiv_of_(a->up->rows.div);
    status = moek_weight_map_(&p.w_up, &p.up, K::ELEMENT, 256, 1, 0);
    if (status == MOEK_OK) status = moek_weight_map_(&p.w_down, &p.down, K::ELEMENT, 256, 1, 0);
    if (status != MOEK_OK) return status;
    return MOEK_CHAIN_(kernel, moek_multiprocessors_(), K::THREADS, shared, stream, a->up->early, p);
}
#endif
