/* test_mma_scaled.c -- the emulator's mma.sync by block scale beside a second reading of the PTX manual.
 *
 *   ninja build/log/emu_mma_scaled.log
 *
 * What a register of a lane holds stands here as the manual has it, as data: fragments of mma.m16n8k32 and of
 * mma.m16n8k64 by numbers of elements, and the lanes and bytes of scales ("Block Scaling for mma.sync", with figures 43
 * to 45 and tables 36 and 37).  The product is made of matrices, with numbers of the oracle. */
#include "emu.h"
#include "moek.h"
#include "../../include/moek/kernel/ptx_sm120.h"
#include "../check.h"
#include "../oracle/ref.h"
#include <signal.h>
#include <sys/wait.h>
#include <utility>

enum { M = 16, N = 8, MOST_K = 64, MOST_SCALES = 4 };

/* ---- as data ----------------------------------------------------------------------------------------------------- */

/* Elements first to last of a fragment: row (of b: column) groupID + row, k threadID_in_group * each + (i & each - 1) +
 * k.  An element is one of `each` in a register. */
typedef struct piece { int first, last, row, k; } piece;
typedef struct fragments { int k, each; piece a[4], b[2]; } fragments;
static const fragments of_k32 = { 32, 4, { { 0, 3, 0, 0 }, { 4, 7, 8, 0 }, { 8, 11, 0, 16 }, { 12, 15, 8, 16 } },
                                  { { 0, 3, 0, 0 }, { 4, 7, 0, 16 } } };
static const fragments of_k64 = { 64, 8, { { 0, 7, 0, 0 }, { 8, 15, 8, 0 }, { 16, 23, 0, 32 }, { 24, 31, 8, 32 } },
                                  { { 0, 7, 0, 0 }, { 8, 15, 0, 32 } } };
/* Lanes with the scales of rows 0 to 15 of a, by thread-id-a; of columns 0 to 7 of b, by thread-id-b. */
static const int lanes_of_a[2][M] = { { 0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29 },
                                      { 2, 6, 10, 14, 18, 22, 26, 30, 3, 7, 11, 15, 19, 23, 27, 31 } };
static const int lanes_of_b[4][N] = { { 0, 4, 8, 12, 16, 20, 24, 28 }, { 1, 5, 9, 13, 17, 21, 25, 29 },
                                      { 2, 6, 10, 14, 18, 22, 26, 30 }, { 3, 7, 11, 15, 19, 23, 27, 31 } };
/* Scales of a row, and their type; byte-id says which byte has the first, and the others follow; one, and a NaN. */
typedef struct kind { const char *name; const fragments *shape; int scales, type, bytes, byte[4], one, nan; } kind;
static const kind kinds[] = {
    { "mxf8f6f4 1X ue8m0", &of_k32, 1, REF_E8M0, 4, { 0, 1, 2, 3 }, 127, 255 },
    { "mxf4 2X ue8m0", &of_k64, 2, REF_E8M0, 2, { 0, 2 }, 127, 255 },
    { "mxf4nvf4 4X ue8m0", &of_k64, 4, REF_E8M0, 1, { 0 }, 127, 255 },
    { "mxf4nvf4 4X ue4m3", &of_k64, 4, REF_E4M3, 1, { 0 }, 56, 127 }
};
enum { KINDS = sizeof kinds / sizeof *kinds };
static_assert(EMU_MX_E4M3 == MOEK_MX_E4M3 && EMU_MX_E2M1 == MOEK_MX_E2M1, "a type has one number");

/* ---- a problem, as matrices of codes, and what lanes make of it -------------------------------------------------- */

typedef struct operand { int e2m1; uint8_t code[M][MOST_K], scale[M][MOST_SCALES]; } operand;
typedef struct selector { int byte_a, thread_a, byte_b, thread_b; } selector;
typedef void multiply(float d[4], const uint32_t a[4], const uint32_t b[2], uint32_t scale_a, uint32_t scale_b);
typedef struct problem {
    int kind;
    selector at;
    operand a, b;
    float d[M][N];
    multiply *by;                                     /* NULL: emu_mma_scaled */
    int damage;                                       /* what must stop it */
} problem;
enum { DAMAGE_NONE, DAMAGE_BYTE, DAMAGE_PAIR, DAMAGE_THREAD_A, DAMAGE_THREAD_B, DAMAGE_LANES, DAMAGE_PADDING,
       DAMAGE_SIGN, DAMAGES };

/* An element in its container: e2m1 for m16n8k32 in the middle four bits of a byte. */
static uint32_t container(const kind *kind, const operand *o, int row, int k)
{
    const uint32_t code = o->code[row][k];
    return o->e2m1 && kind->shape->each == 4 ? code << 2 : code;
}
static void pack(uint32_t *words, const problem *p, int lane, int of_b)
{
    const kind *const kind = &kinds[p->kind];
    const fragments *const f = kind->shape;
    const piece *const pieces = of_b ? f->b : f->a;
    int n, i;
    for (n = 0; n < (of_b ? 2 : 4); n++)
        for (words[n] = 0, i = pieces[n].first; i <= pieces[n].last; i++) {
            const int row = lane / 4 + pieces[n].row, k = lane % 4 * f->each + (i & (f->each - 1)) + pieces[n].k;
            words[n] |= container(kind, of_b ? &p->b : &p->a, row, k) << 32 / f->each * (i - pieces[n].first);
        }
}
/* Bytes and lanes that nobody should read are NaN. */
static uint32_t scales_of(const problem *p, int lane, int of_b)
{
    const kind *const kind = &kinds[p->kind];
    const operand *const o = of_b ? &p->b : &p->a;
    const int *const lanes = of_b ? lanes_of_b[p->at.thread_b] : lanes_of_a[p->at.thread_a];
    uint8_t bytes[4] = { (uint8_t)kind->nan, (uint8_t)kind->nan, (uint8_t)kind->nan, (uint8_t)kind->nan };
    uint32_t word;
    int row, i;
    for (row = 0; row < (of_b ? N : M); row++)
        for (i = 0; lanes[row] == lane && i < kind->scales; i++)
            bytes[(of_b ? p->at.byte_b : p->at.byte_a) + i] = o->scale[row][i];
    memcpy(&word, bytes, 4);
    return word;
}
static void damage(int what, uint32_t a[4], emu_scaled *op)
{
    switch (what) {
    case DAMAGE_BYTE:     op->b.byte = 4 - emu_scaled_shapes[op->kind].scales + 1; break;
    case DAMAGE_PAIR:     op->b.byte = 1; break;
    case DAMAGE_THREAD_A: op->a.thread = 2; break;
    case DAMAGE_THREAD_B: op->b.thread = 4; break;
    case DAMAGE_LANES:    if (threadIdx.x == 31) op->a.thread ^= 1; break;
    case DAMAGE_PADDING:  if (threadIdx.x == 5) a[2] |= 0x00010000; break;
    case DAMAGE_SIGN:     if (threadIdx.x == 4) op->a.scales |= 0x00800000; break;
    default:              break;
    }
}
static __global__ void mma_kernel(problem *p)
{
    const int lane = (int)threadIdx.x;
    const uint32_t scale_a = scales_of(p, lane, 0), scale_b = scales_of(p, lane, 1);
    emu_scaled op = { (emu_scaled_kind)p->kind, { p->a.e2m1, scale_a, p->at.byte_a, p->at.thread_a },
                      { p->b.e2m1, scale_b, p->at.byte_b, p->at.thread_b } };
    uint32_t a[4], b[2];
    float d[4];
    int i;
    pack(a, p, lane, 0);
    pack(b, p, lane, 1);
    damage(p->damage, a, &op);
    for (i = 0; i < 4; i++) d[i] = p->d[lane / 4 + (i < 2 ? 0 : 8)][lane % 4 * 2 + (i & 1)];
    if (p->by) p->by(d, a, b, scale_a, scale_b);
    else emu_mma_scaled(d, a, b, op);
    for (i = 0; i < 4; i++) p->d[lane / 4 + (i < 2 ? 0 : 8)][lane % 4 * 2 + (i & 1)] = d[i];
}

/* ---- the product of the matrices, in double ---------------------------------------------------------------------- */

static double scaled(const problem *p, const operand *o, int row, int k)
{
    const kind *const kind = &kinds[p->kind];
    const double value = ref_decode(&ref_numbers[o->e2m1 ? REF_E2M1 : REF_E4M3], o->code[row][k]);
    return value * ref_decode(&ref_numbers[kind->type], o->scale[row][k * kind->scales / kind->shape->k]);
}
/* Sums that are wrong by more than `part` of their magnitudes, or are NaN where they should not be, or are not. */
static int wrong_of(problem *p, double part)
{
    double sum[M][N], magnitude[M][N];
    int m, n, k, wrong = 0;
    for (m = 0; m < M; m++)
        for (n = 0; n < N; n++) {
            sum[m][n] = p->d[m][n], magnitude[m][n] = fabs(p->d[m][n]);
            for (k = 0; k < kinds[p->kind].shape->k; k++) {
                const double product = scaled(p, &p->a, m, k) * scaled(p, &p->b, n, k);
                sum[m][n] += product, magnitude[m][n] += fabs(product);
            }
        }
    CHECK(MOEK_LAUNCH_(mma_kernel, 1, 32, 0, NULL, p) == MOEK_OK, "no launch");
    for (m = 0; m < M; m++)
        for (n = 0; n < N; n++)
            wrong += sum[m][n] != sum[m][n] ? p->d[m][n] == p->d[m][n]
                                            : !(fabs(p->d[m][n] - sum[m][n]) <= part * magnitude[m][n]);
    return wrong;
}
static uint8_t code_of(const operand *o, int zero)
{
    uint8_t c;
    if (zero) return 0;
    do c = (uint8_t)rng_below(o->e2m1 ? 16 : 256); while ((c & 127) == 127);
    return c;
}
static void fill(operand *o, const kind *kind, int zero, int scaled)
{
    int row, i;
    for (row = 0; row < M; row++) {
        for (i = 0; i < MOST_K; i++) o->code[row][i] = code_of(o, zero);
        for (i = 0; i < MOST_SCALES; i++)
            o->scale[row][i] = (uint8_t)(!scaled ? kind->one : kind->type == REF_E8M0 ? 117 + rng_below(21)
                                                                                      : rng_below(127));
    }
}
/* The types that a kind takes, 0 to 3; 0: that is none. */
static int start(problem *p, int number, int types, int zero_a, int zero_b, int scaled)
{
    memset(p, 0, sizeof *p);
    p->kind = number, p->a.e2m1 = types & 1, p->b.e2m1 = types >> 1;
    if (kinds[number].shape == &of_k64 && types != 3) return 0;
    fill(&p->a, &kinds[number], zero_a, scaled);
    fill(&p->b, &kinds[number], zero_b, scaled);
    return 1;
}

/* ---- the tests --------------------------------------------------------------------------------------------------- */

/* Each element of a in turn is the only one, then of b: a product each, which is exact. */
static void test_places(void)
{
    static problem p;
    int number, types, side, i, wrong;
    for (number = 0; number < KINDS; number++)
        for (types = 0; types < 4; types++)
            for (side = wrong = 0; side < 2 && start(&p, number, types, !side, side, 0); side++) {
                const int k = kinds[number].shape->k;
                for (i = 0; i < (side ? N : M) * k; i++) {
                    operand *const o = side ? &p.b : &p.a;
                    o->code[i / k][i % k] = o->e2m1 ? 0x2 : 0x38;              /* 1 */
                    memset(p.d, 0, sizeof p.d);
                    wrong += wrong_of(&p, 0);
                    o->code[i / k][i % k] = 0;
                }
                CHECK(!wrong, "%s, types %d: %d sums are of other elements", kinds[number].name, types, wrong);
            }
}
/* Each scale in turn is another one: 2, or a NaN, which reaches its row or its column also over zeros. */
static void test_scales(void)
{
    static problem p;
    int number, i, side, nan, wrong;
    for (number = 0; number < KINDS; number++)
        for (side = 0; side < 2; side++)
            for (nan = wrong = 0; nan < 2; nan++) {
                const kind *const kind = &kinds[number];
                start(&p, number, 3, nan, 0, 0);
                for (i = 0; i < (side ? N : M) * kind->scales; i++) {
                    uint8_t *const scale = &(side ? &p.b : &p.a)->scale[i / kind->scales][i % kind->scales];
                    *scale = (uint8_t)(nan ? kind->nan : kind->type == REF_E8M0 ? 128 : 64);
                    memset(p.d, 0, sizeof p.d);
                    wrong += wrong_of(&p, ldexp(1, -24));
                    *scale = (uint8_t)kind->one;
                }
                CHECK(!wrong, "%s, side %d: %d sums have other scales", kind->name, side, wrong);
            }
}
/* Every selector of table 37, with NaN in all bytes and lanes that it does not name. */
static void test_selectors(void)
{
    static problem p;
    int number, types, i, wrong, seen = 0;
    for (number = 0; number < KINDS; number++) {
        const kind *const kind = &kinds[number];
        for (types = 0; types < 4; types++) {
            for (i = wrong = 0; i < kind->bytes * kind->bytes * 8 && start(&p, number, types, 0, 0, 1); i++, seen++) {
                const int byte_a = kind->byte[i / 8 / kind->bytes], byte_b = kind->byte[i / 8 % kind->bytes];
                const selector at = { byte_a, i & 1, byte_b, i / 2 % 4 };
                p.at = at;
                p.d[3][4] = 1000, p.d[9][1] = -0.5f;
                wrong += wrong_of(&p, ldexp(1, -24));
            }
            CHECK(!wrong, "%s, types %d: %d sums by some selector", kind->name, types, wrong);
        }
    }
    CHECK(seen == 4 * 128 + 32 + 8 + 8, "%d selectors", seen);
}
/* The names that kernels call, of each type and selector. */
template <int I> static void mxf8f6f4(float d[4], const uint32_t a[4], const uint32_t b[2], uint32_t sa, uint32_t sb)
{
    moek_mma_mxf8f6f4_<I & 1, I / 2 & 1, I / 4 & 3, I / 16 & 1, I / 32 & 3, I / 128>(d, a, b, sa, sb);
}
template <int... I> static multiply *mxf8f6f4_by(int i, std::integer_sequence<int, I...>)
{
    static multiply *const all[] = { mxf8f6f4<I>... };
    return all[i];
}
template <int I> static void mxf4nvf4(float d[4], const uint32_t a[4], const uint32_t b[2], uint32_t sa, uint32_t sb)
{
    moek_mma_mxf4nvf4_<I & 1, I / 2>(d, a, b, sa, sb);
}
template <int... I> static multiply *mxf4nvf4_by(int i, std::integer_sequence<int, I...>)
{
    static multiply *const all[] = { mxf4nvf4<I>... };
    return all[i];
}
static void test_names(void)
{
    static problem p;
    int i, wrong = 0;
    for (i = 0; i < 512; i++) {
        const selector at = { i / 4 & 3, i / 16 & 1, i / 32 & 3, i / 128 };
        start(&p, EMU_MXF8F6F4, (i & 1) | (i & 2), 0, 0, 1);
        p.at = at, p.by = mxf8f6f4_by(i, std::make_integer_sequence<int, 512>());
        wrong += wrong_of(&p, ldexp(1, -24));
    }
    CHECK(!wrong, "moek_mma_mxf8f6f4_: %d sums", wrong);
    for (i = wrong = 0; i < 8; i++) {
        const selector at = { 0, i & 1, 0, i / 2 };
        start(&p, EMU_MXF4NVF4, 3, 0, 0, 1);
        p.at = at, p.by = mxf4nvf4_by(i, std::make_integer_sequence<int, 8>());
        wrong += wrong_of(&p, ldexp(1, -24));
    }
    CHECK(!wrong, "moek_mma_mxf4nvf4_: %d sums", wrong);
}
/* Narrow sums are off by no more than a bit for each term, and by more than f32's. */
static void test_narrow(void)
{
    static problem p;
    int number, exact = 0, wrong = 0;
    emu_narrow = 1;
    for (number = 0; number < KINDS; number++) {
        start(&p, number, 3, 0, 0, 1);
        wrong += wrong_of(&p, (kinds[number].shape->k + 1) * ldexp(1, -EMU_NARROW_BITS));
        start(&p, number, 3, 0, 0, 1);
        p.d[0][0] = 1;
        p.a.scale[0][0] = (uint8_t)kinds[number].one;
        exact += !wrong_of(&p, ldexp(1, -24));
    }
    emu_narrow = 0;
    CHECK(!wrong, "narrow: %d sums are off by more than a bit a term", wrong);
    CHECK(exact < KINDS, "narrow sums are as good as f32's");
}
/* What the manual leaves open stops the program. */
static void test_stops(void)
{
    static problem p;
    int what, number, stopped = 0, asked = 0;
    fflush(stdout);
    for (what = 1; what < DAMAGES; what++)
        for (number = 0; number < KINDS; number++) {
            int status = 0;
            pid_t child;
            if ((what == DAMAGE_PADDING && number != EMU_MXF8F6F4) || (what == DAMAGE_SIGN && number != EMU_MXF4NVF4) ||
                (what == DAMAGE_PAIR && number != EMU_MXF4))
                continue;
            start(&p, number, 3, 0, 0, 0);
            p.damage = what;
            child = fork();
            if (!child) {
                if (!freopen("/dev/null", "w", stderr)) _exit(2);
                (void)!MOEK_LAUNCH_(mma_kernel, 1, 32, 0, NULL, &p);
                _exit(0);
            }
            asked++, waitpid(child, &status, 0);
            stopped += WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
            CHECK(stopped == asked, "%s: fault %d passed", kinds[number].name, what);
        }
}

int main(void)
{
    test_places();
    test_scales();
    test_selectors();
    test_names();
    test_narrow();
    test_stops();
    return check_end();
}
