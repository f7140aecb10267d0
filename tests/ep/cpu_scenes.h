/* cpu_scenes.h -- a part of test_ep.c, which includes it once: scenes, two in flight, many runs, capacity, a rank that
 * stops, processes. */
static scene *scene_new(int kind, int combine, int ranks, int quant)
{
    scene *s = (scene *)calloc(1, sizeof *s);
    int e, r;
    s->group.kind = kind; s->group.combine = combine; s->group.ranks = ranks;
    s->group.timeout_ms = 30000;
    s->config.hidden = format_round_up(moek_format_of(quant), HIDDEN);
    s->config.inter = format_round_up(moek_format_of(quant), INTER);
    s->config.experts = EXPERTS; s->config.topk = TOPK;
    s->config.quant = quant; s->config.act = MOEK_SILU; s->config.max_tokens = MOST;
    s->copies = 1;
    s->physical = EXPERTS;
    for (e = 0; e < EXPERTS; e++) s->logical[e] = e;
    for (r = 0; r < RANKS; r++) s->tokens[r] = MOST;
    snprintf(s->what, sizeof s->what, "%s, combine %d, %d ranks, %s", moek_ep_kind_name(kind), combine, ranks,
             moek_quant_name(quant));
    return s;
}
static void say(scene *s, const char *what)
{
    const size_t n = strlen(s->what);
    snprintf(s->what + n, sizeof s->what - n, ", %s", what);
}

enum { EVEN, SOME_EMPTY, ONLY_FIRST, NOBODY_HAS_ANY, UNEVEN, TOKENS_OF };
static void give_tokens(scene *s, int how)
{
    static const char *const names[] = { "even", "some ranks empty", "only rank 0 has tokens", "no tokens", "uneven" };
    int r;
    for (r = 0; r < RANKS; r++)
        s->tokens[r] = how == EVEN ? MOST : how == SOME_EMPTY ? (r % 3 == 1 ? MOST : 0)
                     : how == ONLY_FIRST ? (r ? 0 : MOST) : how == NOBODY_HAS_ANY ? 0 : (r * 5 + 1) % (MOST + 1);
    say(s, names[how]);
}

enum { UNIFORM, ONE_RANK, ONE_HOT, SOME_MISSING, NOBODY, HOT_EXPERT, ROUTINGS };
static void give_ids(scene *s, int how)
{
    static const char *const names[] = { "uniform", "all to one rank", "one-hot", "some -1", "nobody", "a hot expert" };
    const int k = s->config.topk + s->config.shared_slots;
    int i;
    for (i = 0; i < s->total * k; i++) {
        int32_t *id = &s->whole.args.topk_ids[i];
        if (how == ONE_RANK) *id = i % k < 2 ? EXPERTS - 1 - i % k : -1;
        if (how == ONE_HOT) *id = i % k == k - 1 ? i / k % EXPERTS : -1;
        if (how == SOME_MISSING && i % 4 == 1) *id = -1;
        if (how == NOBODY) *id = -1;
        if (how == HOT_EXPERT && i % k == 0) {
            const int32_t was = *id;
            int j;
            for (j = 1; j < k; j++) if (id[j] == 5) id[j] = was;
            *id = 5;
        }
    }
    say(s, names[how]);
}

/* A table of owners that no rule has: rank 1 (if there is one) has none. */
static void own_table(scene *s)
{
    int e;
    for (e = 0; e < s->physical; e++) {
        s->owner[e] = (e * 5 + 2) % s->group.ranks;
        if (s->owner[e] == 1) s->owner[e] = 0;
    }
    s->group.owner = s->owner;
}
/* 2 * EXPERTS + 1 physical experts: expert e has 1 to 3 replicas, wherever they come to lie. */
static void give_replicas(scene *s)
{
    int p;
    s->copies = 2;
    s->physical = 2 * EXPERTS + 1;
    s->config.physical_experts = s->physical;
    s->config.max_replicas = 3;
    for (p = 0; p < s->physical; p++) {
        const int e = p * 3 % EXPERTS, n = s->replica_count[e];
        s->logical[p] = e;
        s->replicas[3 * e + n] = p;
        s->replica_count[e]++;
    }
    say(s, "replicas");
}
/* Scales of a rank's own rows: no padding, nor another rank's tokens, may be among them. */
static int by_rank(const scene *s)
{
    const moek_format *const f = moek_format_of(s->config.quant), *const d = moek_format_of(s->config.down_quant);
    return (format_by_tensor(f) || (d && format_by_tensor(d))) && !(s->options & LAYER_STATIC);
}

/* The config of one rank has no replicas: they are copies. */
static int whole_of(scene *s)
{
    moek_config c;
    int ok;
    s->config.batch_invariant = s->group.combine == MOEK_EP_EXACT && !by_rank(s);      /* bits are compared */
    c = s->config;
    s->config.physical_experts = s->config.max_replicas = 0;
    ok = one_rank(s);
    s->config = c;
    return ok;
}

/* Every format, and with powers of two as scales, and with static ones, if it may have such. */
typedef struct flavour { const moek_format *f; int ue8m0, options; } flavour;
static int flavours(flavour *to)                       /* or NULL; returns how many there are */
{
    int i, n = 0;
    for (i = 0; i < FORMATS; i++) {
        const moek_format *const f = format_at(i);
        const int zero = f->zero ? LAYER_ZERO : 0;
        const flavour some[] = { { f, 0, zero }, { f, 1, zero }, { f, 0, LAYER_STATIC } };
        if (to) to[n] = some[0];
        n++;
        if (f->ue8m0 && to) to[n] = some[1];
        n += f->ue8m0;
        if (f->static_x && to) to[n] = some[2];
        n += f->static_x;
    }
    return n;
}
static scene *turn_of(int kind, int combine, int format, int turn)
{
    static flavour all[3 * FORMATS];
    static const int sizes[] = { 4, 2, 8, 1, 3, 5, 7, 6 };
    const int placement = rng_below(3), tokens = rng_below(TOKENS_OF);
    const flavour *const is = &all[format];
    scene *s;
    if (!all[0].f) flavours(all);
    s = scene_new(kind, combine, sizes[(format + combine + 3 * turn) % 8], is->f->number);
    s->config.ue8m0 = is->ue8m0;
    s->config.block = format_block(is->f, turn + combine);
    s->options = is->options;
    if (!format_dtype(is->f)) s->config.dtype = format_dtype_in(is->f, rng_below(2));
    if (rng_below(4) == 0 && !by_rank(s)) give_replicas(s);
    if (placement == 1) s->group.placement = MOEK_EP_ROUND_ROBIN;
    if (placement == 2) own_table(s);
    if (rng_below(3) == 0) s->options |= LAYER_BIAS;
    if (rng_below(4) == 0) s->options |= LAYER_LOGITS, s->config.routing = MOEK_ROUTE_SOFTMAX_RENORM;
    if (rng_below(4) == 0) { s->config.topk = 1; s->config.router_weight_on_input = 1; say(s, "weight on the input"); }
    give_tokens(s, tokens == NOBODY_HAS_ANY && turn ? UNEVEN : tokens);
    if ((turn + format + combine) % 2) { s->gap = 8 * (size_t)(1 + rng_below(4)); say(s, "rows apart"); }
    return s;
}
static void turn_once(int kind, int combine, int format, int turn)
{
    scene *s = turn_of(kind, combine, format, turn);
    whole_of(s);
    if (!(s->options & LAYER_LOGITS)) give_ids(s, rng_below(4) ? rng_below(ROUTINGS) : UNIFORM);
    if (rng_below(4) == 0 && s->total) {
        unsigned char *padding = (unsigned char *)layer_array_new(&s->whole, (size_t)s->total, LAYER_IN);
        int t;
        for (t = 0; t < s->total; t++) padding[t] = t % 4 == 1;
        if (!by_rank(s)) s->whole.args.is_padding = padding;
    }
    if (rng_below(3) == 0)
        s->whole.args.shared_y = layer_new_t(&s->whole, (size_t)s->total * (size_t)s->config.hidden + 1, 1);
    checked(s, run_rank);
    forget(s);
}
/* Every kind, way to combine and format; ranks take turns, placements, patterns and options are thrown. */
static void test_all(void)
{
    int kind, combine, format, turn;
    for (turn = 0; turn < (fewer ? 1 : 3); turn++)
        for (kind = 1; kind < MOEK_EP_KIND_COUNT_; kind++)
            for (combine = MOEK_EP_REDUCED; combine <= MOEK_EP_EXACT; combine++)
                for (format = 0; format < flavours(NULL); format++) {
                    if (quick && (format / 3 + kind) % 3) continue;
                    if (!fewer || (format + combine) % 3 == 0) turn_once(kind, combine, format, turn);
                }
}

/* Gate and up in one format, which is what x travels in, and down in another: all formats take both places. */
static void test_two_formats(void)
{
    int i, turn = 0;
    for (i = 0; i < (fewer ? FORMATS : 8 * FORMATS); i++, turn++) {
        const moek_format *const f = format_at(i % FORMATS), *d;
        const int kind = 1 + turn % (MOEK_EP_KIND_COUNT_ - 1);
        scene *s;
        do d = format_at(rng_below(FORMATS));
        while (d == f || (f->blocks && d->blocks) || (format_dtype(f) && format_dtype(d)));
        if (!format_has(f, MOEK_OP_UP, 0) || !format_has(d, MOEK_OP_DOWN, 0)) continue;
        s = scene_new(kind, rng_below(2) ? MOEK_EP_REDUCED : MOEK_EP_EXACT, 2 + turn % 4, f->number);
        s->config.down_quant = d->number;
        s->config.inter = format_round_up(d, INTER);
        s->config.block = format_block(f->blocks ? f : d, turn);
        s->config.dtype = format_dtype(f) ? format_dtype(f) : format_dtype_in(d, turn);
        s->config.ue8m0 = (f->ue8m0 || d->ue8m0) && rng_below(2);
        s->options = (rng_below(2) ? LAYER_STATIC : 0) | (rng_below(2) ? LAYER_ZERO : 0);
        say(s, d->name);
        give_tokens(s, rng_below(2) ? UNEVEN : EVEN);
        whole_of(s);
        give_ids(s, rng_below(ROUTINGS));
        checked(s, run_rank);
        forget(s);
    }
}

/* All numbers of ranks, all patterns: the same bits as on one rank. */
static void test_ranks(void)
{
    int ranks, kind, how;
    for (ranks = 1; ranks <= RANKS; ranks++) {
        for (kind = 1; kind < MOEK_EP_KIND_COUNT_; kind++) {
            for (how = 0; how < ROUTINGS; how++) {
                scene *s;
                if ((fewer && (ranks + kind + how) % 7) || (ranks + kind + how) % 2) continue;
                s = scene_new(kind, MOEK_EP_EXACT, ranks, how % 2 ? FORMAT_BLOCKED : FORMAT_PLAIN);
                s->group.placement = how / 2 % 2;
                give_tokens(s, (how + ranks) % 2 ? UNEVEN : EVEN);
                whole_of(s);
                give_ids(s, how);
                checked(s, run_rank);
                forget(s);
            }
        }
    }
}

/* Chunks: ranks with few tokens still take part in all of them.  And rows beyond max_rows_per_expert. */
static void test_chunks(void)
{
    int kind;
    for (kind = 1; kind < MOEK_EP_KIND_COUNT_; kind++) {
        scene *s = scene_new(kind, MOEK_EP_EXACT, 4, FORMAT_PLAIN);
        s->config.chunk_tokens = 2;
        s->group.max_tokens = 2;
        s->gap = 8;
        give_tokens(s, UNEVEN);
        say(s, "chunks of 2, rows apart");
        whole_of(s);
        checked(s, run_rank);
        forget(s);
    }
    for (kind = MOEK_EP_REDUCED; kind <= MOEK_EP_EXACT; kind++) {
        scene *s = scene_new(MOEK_EP_LOW_LATENCY, kind, 4, FORMAT_BLOCKED);
        s->config.max_rows_per_expert = 3;
        say(s, "more rows than max_rows_per_expert");
        s->config.format = MOEK_BATCHED;
        whole_of(s);
        give_ids(s, HOT_EXPERT);
        checked(s, run_rank);
        forget(s);
    }
}

/* Slots that every token has: constant experts, on ranks as others are. */
static void test_shared_slots(void)
{
    int kind;
    for (kind = 1; kind < MOEK_EP_KIND_COUNT_; kind++) {
        scene *s = scene_new(kind, MOEK_EP_EXACT, 3, FORMAT_PLAIN);
        s->config.experts = EXPERTS - 2;
        s->config.shared_slots = 2;
        s->config.shared_weight = 0.25f;
        s->options = LAYER_LOGITS;
        say(s, "shared slots");
        whole_of(s);
        checked(s, run_rank);
        forget(s);
    }
}

/* Fewer experts than ranks, and a group that was opened for more tokens than the layer has. */
static void test_odd_sizes(void)
{
    int kind, turn;
    for (kind = 1; kind < MOEK_EP_KIND_COUNT_; kind++) {
        for (turn = 0; turn < 3; turn++) {
            scene *s = scene_new(kind, MOEK_EP_EXACT, 7, turn ? FORMAT_ROW : FORMAT_PLAIN);
            s->config.experts = 3; s->config.topk = 2;
            s->group.placement = turn % 2;
            if (turn == 2) s->group.max_tokens = MOST + 5;
            s->config.hidden = turn == 1 ? 104 : HIDDEN; s->config.inter = turn == 1 ? 37 : INTER;
            give_tokens(s, UNEVEN);
            say(s, "odd sizes");
            whole_of(s);
            checked(s, run_rank);
            forget(s);
        }
    }
}

/* y in the place of x. */
static moek_status in_place(rank *r)
{
    moek_args a = r->args[0];
    memcpy(a.y, a.x, 2 * (size_t)r->config.hidden * (size_t)r->tokens);
    a.x = a.y;
    return moek_run(&r->plan, &a, NULL);
}
/* A token that is all NaN, or has an Inf, changes no other's bits on any rank.  (Beside zeros, for scales
 * of a tensor.) */
static void test_nonfinite(void)
{
    int kind, q, j, t;
    for (kind = 1; kind < MOEK_EP_KIND_COUNT_; kind++) {
        for (q = quick ? kind % 2 : 0; q < 4; q += quick ? 2 : 1) {
            scene *s = scene_new(kind, q % 2 ? MOEK_EP_REDUCED : MOEK_EP_EXACT, 4, format_of_kind(q));
            uint16_t *x, *y, *again;
            int others = 0, seen = 0;
            say(s, "NaN and Inf");
            whole_of(s);
            x = (uint16_t *)(size_t)s->whole.args.x + 7 * HIDDEN;
            memset(x, 0, 2 * HIDDEN);
            if (run_one_rank(s) && planned(s) && ran(s, in_place)) {
                compare(s);
                y = all_y(s);
                for (j = 0; j < HIDDEN; j++) x[j] = q % 2 || j == 9 ? (uint16_t)(q % 2 ? 0x7fc0 : 0x7f80) : 0;
                if (ran(s, in_place)) {
                    again = all_y(s);
                    for (t = 0; t < s->total; t++)
                        for (j = 0; j < HIDDEN; j++) {
                            if (t != 7) others += y[t * HIDDEN + j] != again[t * HIDDEN + j];
                            else seen += (again[t * HIDDEN + j] & 0x7f80) == 0x7f80;
                        }
                    CHECK(!others && seen, "%s: %d entries of other tokens, %d of its own", s->what, others, seen);
                    free(again);
                }
                free(y);
            }
            forget(s);
        }
    }
}

/* A slot that does not count is never multiplied: whatever its weight is, y has the same bits.  Such a slot has no
 * expert or, low_latency, one that had no room for it. */
static void test_slots_without(void)
{
    int kind, combine, how, i, n;
    for (kind = 1; kind < MOEK_EP_KIND_COUNT_; kind++)
        for (combine = MOEK_EP_REDUCED; combine <= MOEK_EP_EXACT; combine++)
            for (how = 0; how < 6; how++) {
                const int dropped = how == 2 || how == 3, on_input = how > 3;
                const float bad = how % 2 ? INFINITY : NAN;
                scene *s;
                float *weights;
                uint16_t *y, *again;
                if ((dropped && kind != MOEK_EP_LOW_LATENCY) || (quick && (how + kind + combine) % 3)) continue;
                s = scene_new(kind, combine, 4, how % 3 ? format_of_t(MOEK_DTYPE_FP16) : FORMAT_BLOCKED);
                say(s, dropped ? "no room" : on_input ? "weights on the input" : "no expert");
                if (on_input) { s->config.topk = 1; s->config.router_weight_on_input = 1; }
                if (dropped) { s->config.max_rows_per_expert = 3; s->config.format = MOEK_BATCHED; }
                whole_of(s);
                give_ids(s, dropped ? HOT_EXPERT : SOME_MISSING);
                n = s->total * s->config.topk;
                weights = s->whole.args.topk_weights;
                if (run_one_rank(s) && planned(s) && ran(s, run_rank)) {
                    compare(s);
                    y = all_y(s);
                    for (i = 0; i < n; i++)            /* (of HOT_EXPERT's tokens the first three have room) */
                        if (dropped ? i % TOPK == 0 && i >= 3 * TOPK : s->whole.args.topk_ids[i] < 0) weights[i] = bad;
                    if (ran(s, run_rank)) {
                        again = all_y(s);
                        CHECK(!memcmp(y, again, 2 * (size_t)s->total * HIDDEN), "%s: the weight of a slot without an "
                              "expert, %g, is seen", s->what, (double)bad);
                        free(again);
                    }
                    free(y);
                }
                forget(s);
            }
}

/* What moek_ep.h says of the ways to combine, entry by entry: REDUCED is off from exact sums by what rounds the partial
 * sums (which REDUCED_F32 leaves in the window) and y; REDUCED_F32 by the order of f32 sums, and y. */
static uint16_t *combined(int kind, int combine, int dtype, double *partials)
{
    scene *s = scene_new(kind, combine, TOPK, format_of_t(dtype));
    uint16_t *y = NULL;
    int r, t, p, j;
    rng_seed(7);
    say(s, "bounds");
    whole_of(s);
    if (run_one_rank(s) && planned(s) && ran(s, run_rank)) {
        y = all_y(s);
        for (r = 0; r < TOPK && combine == MOEK_EP_REDUCED_F32; r++) {              /* slot p: of rank p */
            const moek_ep *ep = &s->rank[r].ep;
            const float *sums = (const float *)(s->rank[r].window + ep->layout.partial);
            for (t = 0; t < MOST; t++)
                for (p = 0; p < TOPK; p++) {
                    const int32_t *ids = s->whole.args.topk_ids + (r * MOST + t) * TOPK;
                    int e, k, here = 0;
                    for (e = 0; e < s->rank[p].ep.local_experts; e++)
                        for (k = 0; k < TOPK; k++) here |= ids[k] == moek_ep_expert(&s->rank[p].ep, p, e);
                    for (j = 0; j < HIDDEN && here; j++)
                        partials[(r * MOST + t) * HIDDEN + j] += fabs(sums[(t * TOPK + p) * HIDDEN + j]);
                }
        }
    }
    forget(s);
    return y;
}
static void test_bounds(void)
{
    static const int dtypes[] = { MOEK_DTYPE_BF16, MOEK_DTYPE_FP16 };
    int kind, d, i;
    for (kind = 1; kind < MOEK_EP_KIND_COUNT_; kind++) {
        for (d = quick ? kind % 2 : 0; d < (quick ? kind % 2 + 1 : 2); d++) {
            const int n = TOPK * MOST * HIDDEN;
            const double half = ldexp(1, d ? -11 : -8);                            /* half a last place, at the most */
            double *partials = (double *)ref_alloc(8 * (size_t)n);
            uint16_t *f32 = combined(kind, MOEK_EP_REDUCED_F32, dtypes[d], partials);
            uint16_t *reduced = combined(kind, MOEK_EP_REDUCED, dtypes[d], partials);
            uint16_t *exact = combined(kind, MOEK_EP_EXACT, dtypes[d], partials);
            int far = 0, far32 = 0, differ = 0;
            for (i = 0; i < n && f32 && reduced && exact; i++) {
                const double want = ref_get_t(exact, (size_t)i, dtypes[d]), sum = partials[i];
                const double y = fabs(want) + half * sum, tiny = ldexp(1, d ? -24 : -130);
                far += fabs(ref_get_t(reduced, (size_t)i, dtypes[d]) - want) > half * sum + 2 * half * y + 4 * tiny;
                far32 += fabs(ref_get_t(f32, (size_t)i, dtypes[d]) - want) > 1e-6 * sum + 2 * half * y + 4 * tiny;
                differ += reduced[i] != exact[i];
            }
            CHECK(!far && !far32 && differ, "%s, %s: %d entries reduced, %d in f32 are beyond their bounds; %d differ",
                  moek_ep_kind_name(kind), d ? "fp16" : "bf16", far, far32, differ);
            free(partials); free(f32); free(reduced); free(exact);
        }
    }
}

/* ---- two in flight ----------------------------------------------------------------------------------------------- */

/* Both handles are in use: a third operation is an argument error, and touches neither. */
static int third_refused(rank *r, const moek_step *under_way)
{
    moek_args a = under_way->args;
    moek_step third;
    char why[512];
    a.why = why; a.why_size = sizeof why;
    return moek_begin(&r->plan, &a, &third) == MOEK_E_ARGUMENT && strstr(why, "has not ended") &&
           (a.handle = 2, moek_begin(&r->plan, &a, &third) == MOEK_E_ARGUMENT);
}
/* Halves of the tokens on two handles, their stages interleaved; odd ranks begin with the other handle where that is
 * allowed, and start the next operation on a handle while the other one is still under way. */
static moek_status two_in_flight(rank *r)
{
    static moek_status (*const stages[])(moek_step *, moek_stream) = {
        moek_route, moek_prepare_send, moek_prepare_receive, moek_experts_apply,
        moek_finalize_send, moek_finalize_receive
    };
    const int swap = r->number % 2 && r->ep.config.kind != MOEK_EP_ALLTOALL;
    const int half = r->tokens / 2, slots = r->plan.slots;
    moek_args a[2];
    moek_step step[2];
    moek_status status = MOEK_OK;
    int i, k, round;
    for (k = 0; k < 2; k++) {
        const size_t first = k ? (size_t)half : 0;
        a[k] = r->args[k];
        a[k].tokens = k ? r->tokens - half : half;
        a[k].x = (const char *)a[k].x + 2 * first * HIDDEN;
        a[k].y = (char *)a[k].y + 2 * first * HIDDEN;
        a[k].topk_ids += first * (size_t)slots;
        a[k].topk_weights += first * (size_t)slots;
    }
    for (round = 0; round < 5; round++) {              /* an odd number of operations */
        for (k = 0; k < 2 && status == MOEK_OK; k++) status = moek_begin(&r->plan, &a[k], &step[k]);
        for (i = 0; i < 6; i++) {
            for (k = 0; k < 2 && status == MOEK_OK; k++) status = stages[i](&step[k ^ swap], NULL);
            r->answer += status == MOEK_OK && i >= 1 && i < 5 && !third_refused(r, &step[round % 2]);
        }
        if (round % 2 && status == MOEK_OK) status = moek_run(&r->plan, &a[0], NULL);        /* and one alone */
    }
    return status;
}
static void test_two_in_flight(void)
{
    int kind, turn, r;
    for (kind = 1; kind < MOEK_EP_KIND_COUNT_; kind++) {
        for (turn = 0; turn < (fewer ? 1 : 4); turn++) {
            scene *s = scene_new(kind, MOEK_EP_EXACT, 2 + 2 * turn, turn % 2 ? FORMAT_ROW : FORMAT_PLAIN);
            s->group.handles = 2;
            give_tokens(s, turn % 2 ? UNEVEN : EVEN);
            say(s, "two in flight");
            whole_of(s);
            if (run_one_rank(s) && planned(s) && ran(s, two_in_flight)) {
                compare(s);
                for (r = 0; r < s->group.ranks; r++)
                    CHECK(!s->rank[r].answer, "%s: rank %d: a third operation was not refused", s->what, r);
            }
            forget(s);
        }
    }
}

/* All ranks by one thread, half after half, as they would take turns on one GPU: a send waits for nobody.  But in
 * alltoall, which must know the counts first. */
static void test_one_thread(void)
{
    static moek_status (*const halves[])(moek_step *, moek_stream) = {
        moek_route, moek_prepare_send, moek_prepare_receive, moek_experts_apply,
        moek_finalize_send, moek_finalize_receive
    };
    int kind, i, r, round;
    for (kind = 1; kind < MOEK_EP_KIND_COUNT_; kind++) {
        scene *s = scene_new(kind, MOEK_EP_EXACT, 5, FORMAT_BLOCKED);
        moek_step step[RANKS];
        moek_status status = MOEK_OK;
        s->group.timeout_ms = SOON;
        give_tokens(s, UNEVEN);
        say(s, "by one thread");
        whole_of(s);
        if (run_one_rank(s) && planned(s)) {
            for (round = 0; round < 3; round++) {
                for (r = 0; r < 5 && status == MOEK_OK; r++)
                    status = moek_begin(&s->rank[r].plan, &s->rank[r].args[0], &step[r]);
                for (i = 0; i < 6; i++)
                    for (r = 0; r < 5 && status == MOEK_OK; r++) status = halves[i](&step[(r * 2 + i) % 5], NULL);
            }
            if (kind == MOEK_EP_ALLTOALL) CHECK(status == MOEK_E_TIMEOUT, "%s: %s", s->what, moek_status_name(status));
            else if (CHECK(status == MOEK_OK, "%s: %s", s->what, moek_status_name(status))) compare(s);
        }
        forget(s);
    }
}

/* ---- many runs --------------------------------------------------------------------------------------------------- */

enum { SOAK_RUNS = 240 };
static struct { int first[SOAK_RUNS], tokens[SOAK_RUNS]; } soak_plan[RANKS];
static const uint16_t *soak_y;

/* Other tokens in each run, often none, now on this handle and now on that; each must get the bits it always gets. */
static moek_status soak_rank(rank *r)
{
    const size_t row = 2 * HIDDEN;
    moek_status status = MOEK_OK;
    int run, i;
    for (run = 0; run < (fewer ? SOAK_RUNS / 8 : SOAK_RUNS) && status == MOEK_OK; run++) {
        const size_t first = (size_t)soak_plan[r->number].first[run];
        moek_args a = r->args[run / 3 % 2];
        a.tokens = soak_plan[r->number].tokens[run];
        a.x = (const char *)a.x + row * first;
        a.topk_ids += first * TOPK;
        a.topk_weights += first * TOPK;
        for (i = 0; i < (run + r->number * 5) % 7; i++) sched_yield();
        status = moek_run(&r->plan, &a, NULL);
        r->answer += status == MOEK_OK && memcmp(r->y, soak_y + first * HIDDEN, row * (size_t)a.tokens);
    }
    return status;
}
static void test_soak(void)
{
    int kind, r, i;
    for (kind = 1; kind < MOEK_EP_KIND_COUNT_; kind++) {
        scene *s = scene_new(kind, MOEK_EP_EXACT, 3 + kind, FORMAT_BLOCKED);
        s->group.handles = 2;
        s->config.hidden = HIDDEN; s->config.inter = 16;
        say(s, "many runs");
        whole_of(s);
        for (r = 0; r < s->group.ranks; r++)
            for (i = 0; i < SOAK_RUNS; i++) {
                const int n = rng_below(3) ? rng_below(MOST + 1) : 0;
                soak_plan[r].tokens[i] = n;
                soak_plan[r].first[i] = rng_below(s->total - n + 1);
            }
        if (run_one_rank(s) && planned(s)) {
            for (r = 0; r < s->group.ranks; r++) {     /* all of them begin at the first token of all */
                rank *k = &s->rank[r];
                for (i = 0; i < 2; i++) {
                    k->args[i].x = s->whole.args.x;
                    k->args[i].topk_ids = s->whole.args.topk_ids;
                    k->args[i].topk_weights = s->whole.args.topk_weights;
                }
            }
            soak_y = s->one;
            if (ran(s, soak_rank))
                for (r = 0; r < s->group.ranks; r++)
                    CHECK(!s->rank[r].answer, "%s: rank %d: %d runs with other bits", s->what, r, s->rank[r].answer);
        }
        forget(s);
    }
}

/* ---- capacity ---------------------------------------------------------------------------------------------------- */

/* Too much for a rank: an error on all, the same sentence, nothing written; and then less. */
static void test_capacity(void)
{
    scene *s = scene_new(MOEK_EP_ALLTOALL, MOEK_EP_EXACT, 4, FORMAT_PLAIN);
    int32_t *ids;
    int r, i, n, runs;
    s->group.max_rows = 17;                            /* 24 at the most, and 18 in the first routing */
    give_tokens(s, EVEN);
    say(s, "capacity");
    whole_of(s);
    n = s->total * TOPK;
    ids = s->whole.args.topk_ids;
    for (i = 0; i < n; i++) ids[i] = i / TOPK < 18 ? i % TOPK : -1;                /* experts 0, 1, 2: all of rank 0 */
    if (run_one_rank(s) && planned(s)) {
        for (runs = 0; runs < 3; runs++) {
            each_rank(s, run_rank);
            for (r = 0; r < 4; r++) {
                const rank *k = &s->rank[r];
                size_t j, written = 0;
                for (j = 0; j < 2 * HIDDEN * (size_t)k->tokens; j++) written += k->y[j] != LAYER_POISON;
                CHECK(k->status == MOEK_E_CAPACITY && strstr(k->why, "rank 0 would receive 18 rows") && !written,
                      "%s: rank %d: %s: %s", s->what, r, moek_status_name(k->status), k->why);
                CHECK(moek_ep_poll(&k->ep, NULL) == MOEK_OK, "%s: ended the group", s->what);
            }
        }
        ids[17 * TOPK] = ids[17 * TOPK + 1] = ids[17 * TOPK + 2] = -1;            /* 17 */
        free(s->one);
        if ((s->one = layer_y(&s->whole, moek_run)) != NULL && ran(s, run_rank)) compare(s);
    }
    forget(s);
}

/* ---- when a rank stops ------------------------------------------------------------------------------------------- */

static void poll_all(scene *s, unsigned dead, int peer, int phase, moek_status first)
{
    int r, timeouts = 0, alive = 0;
    for (r = 0; r < s->group.ranks; r++) {
        const rank *k = &s->rank[r];
        moek_ep_error e;
        char text[2000];
        const moek_status polled = moek_ep_poll(&k->ep, &e);
        if (dead >> r & 1) continue;
        alive++;
        CHECK(k->status == first || k->status == MOEK_E_ABORTED, "%s: rank %d: %s: %s", s->what, r,
              moek_status_name(k->status), k->why);
        timeouts += k->status == first;
        CHECK(polled == k->status && e.cause == first && e.phase == phase &&
              (peer < 0 || e.peer == peer), "%s: rank %d: status %d, cause %d, peer %d, phase %d", s->what, r,
              (int)e.status, (int)e.cause, e.peer, e.phase);
        CHECK(strstr(k->why, "ended the group") != NULL, "%s: rank %d says: %s", s->what, r, k->why);
        moek_ep_describe(&k->ep, text, sizeof text);
        CHECK(strstr(text, "ended     ") != NULL, "%s: describe says: %s", s->what, text);
    }
    CHECK(timeouts >= 1 && timeouts <= alive, "%s: %d of %d have the first error", s->what, timeouts, alive);
}

static moek_status stop_after_send(rank *r)
{
    moek_step step;
    moek_status status = moek_begin(&r->plan, &r->args[0], &step);
    if (status == MOEK_OK) status = moek_route(&step, NULL);
    if (status == MOEK_OK) status = moek_prepare_send(&step, NULL);
    if (status != MOEK_OK || r->number == 1) return status;                        /* rank 1 is gone */
    if ((status = moek_prepare_receive(&step, NULL)) == MOEK_OK) status = moek_experts_apply(&step, NULL);
    return status == MOEK_OK ? moek_finalize(&step, NULL) : status;
}
static moek_status abort_run(rank *r)
{
    if (r->number != 2) return run_rank(r);
    moek_ep_abort(&r->ep);
    return run_rank(r);
}
/* A rank that is not there, one that stops in the middle, one that gives up. */
static void test_dead_rank(void)
{
    int kind;
    for (kind = 1; kind < MOEK_EP_KIND_COUNT_; kind++) {
        const int combine = kind == MOEK_EP_ALLTOALL ? MOEK_EP_COUNTS : MOEK_EP_DISPATCH;
        int how;
        for (how = fewer ? kind - 1 : 0; how < (fewer ? kind : 3); how++) {
            scene *s = scene_new(kind, MOEK_EP_REDUCED, 4, FORMAT_PLAIN);
            uint64_t start;
            int r;
            s->group.timeout_ms = how == 2 ? 60000 : SOON;
            say(s, how == 0 ? "a rank is dead" : how == 1 ? "a rank stops" : "a rank gives up");
            whole_of(s);
            if (run_one_rank(s) && planned(s)) {
                start = (uint64_t)time(NULL);
                if (how == 0) { each_rank_but(s, 2, run_rank); poll_all(s, 2, 1, combine, MOEK_E_TIMEOUT); }
                if (how == 1) {
                    each_rank(s, stop_after_send);
                    CHECK(s->rank[1].status == MOEK_OK, "%s: %s", s->what, s->rank[1].why);
                    poll_all(s, 2, 1, MOEK_EP_COMBINE, MOEK_E_TIMEOUT);
                }
                if (how == 2) { each_rank(s, abort_run); poll_all(s, 0, 2, MOEK_EP_OPENING, MOEK_E_ABORTED); }
                CHECK((uint64_t)time(NULL) - start < 20, "%s: took %d s", s->what, (int)((uint64_t)time(NULL) - start));
                for (r = 0; r < 4; r++) {              /* y is not written, and the next run fails, too */
                    rank *k = &s->rank[r];
                    size_t j, written = 0;
                    if (r == 1) continue;
                    for (j = 0; j < 2 * HIDDEN * (size_t)k->tokens; j++) written += k->y[j] != LAYER_POISON;
                    CHECK(!written && run_rank(k) == k->status, "%s: rank %d wrote y, or goes on", s->what, r);
                }
                for (r = 0; r < 4; r++) {              /* opened again, in the same place: plans are still good */
                    memset(s->rank[r].window, 0, s->rank[r].window_size);
                    s->rank[r].group.timeout_ms = 60000;
                }
                each_rank(s, open_rank);
                if (ran(s, run_rank)) compare(s);
            }
            forget(s);
        }
    }
}

/* ---- processes --------------------------------------------------------------------------------------------------- */

#ifdef MAP_ANONYMOUS
/* What a rank does as a process of its own; 0: as it should be.  Rank 1, if it is to die, does so before its run. */
static int process(scene *s, rank *r, int dies)
{
    const size_t bytes = 2 * (size_t)s->config.hidden * (size_t)s->tokens[r->number];
    moek_ep_error e;
#ifdef _OPENMP
    omp_set_num_threads(1);                            /* the parent's other threads are not here */
#endif
    if (open_rank(r) != MOEK_OK || !plan_rank(s, r)) return 1;
    if (dies && r->number == 1) raise(SIGKILL);
    r->status = run_rank(r);
    if (!dies) return r->status != MOEK_OK || memcmp(r->y, (const char *)s->one + 2 * HIDDEN * r->first, bytes);
    return moek_ep_poll(&r->ep, &e) != r->status || e.cause != MOEK_E_TIMEOUT || e.peer != 1;
}
/* Windows may as well be memory that processes share; kill -9 is then what it says. */
static void test_processes(void)
{
    int kind, dies, r, first;
    for (kind = 1; kind < MOEK_EP_KIND_COUNT_; kind++) {
        for (dies = 0; dies < 2; dies++) {
            scene *s = scene_new(kind, MOEK_EP_EXACT, 4, FORMAT_BLOCKED);
            pid_t child[RANKS];
            size_t size;
            say(s, dies ? "processes, one is killed" : "processes");
            give_tokens(s, UNEVEN);
            if (dies) s->group.timeout_ms = SOON;
            whole_of(s);
            if (!run_one_rank(s)) { forget(s); continue; }
            new_windows(s);
            size = s->rank[0].window_size;
            fflush(stdout);
            for (r = 0; r < 4; r++)
                s->base[r] = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
            for (r = 0, first = 0; r < 4; first += s->tokens[r++]) {
                s->rank[r].first = first;
                child[r] = fork();
                if (child[r] == 0) _exit(process(s, &s->rank[r], dies));
            }
            for (r = 0; r < 4; r++) {
                int status = 0;
                waitpid(child[r], &status, 0);
                if (dies && r == 1) CHECK(WIFSIGNALED(status), "%s: rank 1 lives", s->what);
                else CHECK(WIFEXITED(status) && !WEXITSTATUS(status), "%s: rank %d: status %d", s->what, r, status);
            }
            for (r = 0; r < 4; r++) munmap(s->base[r], size);
            forget(s);
        }
    }
}
#else
static void test_processes(void) { check_skipped++; }
#endif
