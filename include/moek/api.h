/* moek/api.h -- the types and functions of moek.h, which says what the words mean.
 *     1 the layer   2 the weights   3 one run   4 the kernel table and the plan   5 functions
 * What engines take besides, stages of a run and parts of their own, is in moek/stages.h.                            */
#ifndef MOEK_API_H
#define MOEK_API_H
#include <stddef.h>
#include <stdint.h>
#include "enums.h"
#include "format.h"                                   /* what a format is: elements, scales, bytes */
#include "plan/chosen.h"

#define MOEK_VERSION 300                              /* 10000 * major + 100 * minor + patch */

#ifdef __cplusplus
extern "C" {
#endif

struct moek_prepare_finalize;
struct moek_experts;

/* Activations, g the gate (or only) value, u the up value, sigma(x) = 1 / (1 + exp(-x)).
 *   SILU                    g sigma(g) u;  limit > 0: first g = min(g, limit), u = clamp(u, +-limit)
 *   GELU, GELU_TANH         g/2 (1 + erf(g / sqrt 2)) u;  g/2 (1 + tanh(sqrt(2/pi) (g + 0.044715 g^3))) u
 *   SWIGLUOAI               g = min(g, limit), u = clamp(u, +-limit);  g sigma(alpha g) (u + beta);  rows of w_up
 *                           interleaved unless config.up_layout says otherwise (gpt-oss)
 *   SWIGLUOAI_UNINTERLEAVE  the same formula, rows of w_up in halves (MiniMax-M3)
 *   SWIGLUSTEP              min(g sigma(g), limit) clamp(u, +-limit)  (Step-3.5, Step-3.7)
 *   SITU                    alpha tanh(g / alpha) sigma(g) u', u' = beta tanh(u / beta) if beta > 0, else u (Kimi K3)
 *   SILU_NO_MUL, GELU_NO_MUL, GELU_TANH_NO_MUL     the same without u
 *   RELU_NO_MUL, RELU2_NO_MUL                      max(g, 0)  (Switch, NLLB);  max(g, 0)^2  (Nemotron-H)
 * All in f32, rounded to T once.  What 0 in config.alpha, beta and limit means (a field that the activation does not
 * have must be 0):
 *                             alpha   beta   limit
 *   SILU, SWIGLUSTEP          -       -      no clamp, as 0 in a checkpoint's list of limits does
 *   SWIGLUOAI, _UNINTERLEAVE  1.702   1      7
 *   SITU                      1       none   -
 * MOEK_NO_LIMIT: no clamp, whatever the activation.                                                                  */
#define MOEK_NO_LIMIT (-1.0f)

/* ---- 1. What the layer is.  Zero means "the default" everywhere.  In C++: moek_config c = {}; c.hidden = ...; ---- */

typedef struct moek_config {
    int hidden, inter;                /* required, at most 2^24 each.  inter: of this rank's shard                    */
    int experts, topk;                /* required.  experts: routed experts the router knows, <= 1024; topk <= 32     */
    int quant;                        /* required: the format, MOEK_BF16, MOEK_FP8B128, ... (moek/format.h)           */
    int act;                          /* required: MOEK_SILU, ...                                                     */
    int max_tokens;                   /* required: the most tokens a run will carry; at most 2^31 - 2^20 slots        */
    int dtype;                        /* T, of x, y and biases: MOEK_DTYPE_BF16, _FP16; default: as quant, else bf16  */

    float alpha, beta, limit;         /* of the activation; 0: as above                                               */
    int up_layout;                    /* MOEK_UP_*; default: INTERLEAVED for SWIGLUOAI, else GATE_UP                  */
    int ue8m0;                        /* fp8b128, mxfp4_a8: round activation scales up to powers of two               */
    int router_weight_on_input;       /* multiply x by the weight before the experts; topk 1 only                     */

    int routing;                      /* MOEK_ROUTE_*.  0 is SOFTMAX, which does not renormalize: most models do, by
                                         SOFTMAX_RENORM                                                               */
    int groups, topk_groups;          /* grouped top-k; 0 or 1: none                                                  */
    float scale;                      /* routed scaling factor; 0: 1                                                  */
    int logits_dtype;                 /* default f32                                                                  */
    int shared_slots;                 /* slots behind the topk ones that every token has: ids experts .. experts +
                                         shared_slots - 1                                                             */
    float shared_weight;              /* their weight; 0: 1                                                           */

    int local_experts;                /* experts in w_up and w_down here; 0: experts + shared_slots                   */
    int physical_experts;             /* length of expert_map and expert_load; 0: experts + shared_slots              */
    int max_replicas;                 /* row length of weights.replicas                                               */

    int chunk_tokens;                 /* run in chunks of at most this many tokens, to bound the workspace; 0: never  */
    int format;                       /* MOEK_STANDARD or MOEK_BATCHED                                                */
    int max_rows_per_expert;          /* BATCHED: rows kept for each expert, more is dropped; 0: the tokens of a chunk
                                         (times num_dispatchers), enough unless a token names an expert twice         */

    int backend;                      /* demand one of MOEK_BACKEND_*; 0: the first that accepts                      */
    unsigned exclude;                 /* bits 1u << MOEK_BACKEND_*: pass these over; not the demanded one's          */
    int batch_invariant;              /* a token's result must not depend on the other tokens: one tile for all sizes,
                                         no dynamic fp8t                                                              */
    const char *kernel;               /* demand this row, by a name from moek_kernels(), for the op it serves         */
    const struct moek_prepare_finalize *prepare_finalize;      /* your own; NULL: built in, by format                 */
    const struct moek_experts *experts_impl;                   /* your own; NULL: built in                            */
    const char *tuned;                /* the text of a file that ./moek tune wrote: the fastest kernels by tokens
                                         (docs/tuning.md).  Lines for another device or layer do not count, nor kernels
                                         of an excluded backend.  Yours again when moek_plan_init returns.  NULL: the
                                         built-in rule                                                                */
    int weight_layout;                /* of w_up and w_down: MOEK_WEIGHTS_CHECKPOINT, or as moek_repack_up makes them,
                                         _TILED for GPUs, _PANELS for the CPU; _BLOCKS: blocks of a GGUF file         */
    float router_eps;                 /* added to the sum that a method divides by; 0: the method's (LFM2: 1e-6)      */
    int group_score;                  /* MOEK_GROUP_SCORE_*, with groups; default: the method's (Mistral-4: TOP2)     */
    int up_scales;                    /* fp8b128: MOEK_UP_SCALES_TOGETHER or _SEPARATE, as with up_layout SEPARATE    */
    int inter_offset;                 /* fp8b128: number of this shard's first row of gate and of up in its block of 128
                                         rows, (rank * inter) % 128; the same of its first column of w_down.  Not 0:
                                         scales of gate and up are SEPARATE.  Of other formats where columns share
                                         scales, of w or of x: by these columns; gate and up may be together.
                                         docs/formats.md has the sizes of scales                                      */
    int block;                        /* columns of a scale of the weights, where a format leaves that open
                                         (moek/format.h), 0: a whole row; else 0                                      */
    int expand_weights;               /* mxfp4_a8, nvfp4_a8, TILED and STANDARD, not batch_invariant.  1: in runs of
                                         many rows an expert all weights of a GEMM become e4m3 first, in the workspace,
                                         and kernels of another format multiply (moek_format.expands), which must be
                                         compiled.  moek_describe says whether a run can have so many rows;
                                         docs/formats.md, how much faster it is, and how exact                        */
    int cpu;                          /* backend CPU, for tests and timings: kernels of which instructions.  0: the best
                                         that this processor has;  MOEK_ARCH_AVX2, _AVX512, _AMX, ..: these and what
                                         is below;  MOEK_CPU_PLAIN: plain C alone                                     */
    moek_parallel parallel;           /* backend CPU: your threads for all that this plan does (moek/enums.h), zeros:
                                         OpenMP's.  The pool is in use as long as the plan is                         */
    int down_quant;                   /* the format of w_down and of h, where gate, up and x have another (GGUF
                                         files: q6_K beside q4_K); 0: as quant.  Both have one T; not for your own
                                         experts                                                                      */
} moek_config;

#include "../../generated/moek_models.h"              /* MOEK_QWEN3_30B_A3B, ...: initializers from models.toml */

/* ---- 2. The weights.  Device pointers for a GPU plan, host pointers for a CPU plan. ------------------------------ */

/* moek_alignment says what addresses must be multiples of: w_up, w_down, w_gate and biases of 16 bytes (blocks of a
 * GGUF file on a CPU: of 1), scales of their type or of what kernels load at once.                                   */

typedef struct moek_weights {
    const void *w_up;                 /* [local_experts][2 * inter][hidden] gated, else [inter][hidden]: format's w   */
    const void *w_down;               /* [local_experts][hidden][inter]                                               */
    const void *w_up_scale;           /* dequantizing, of the type that moek/format.h has.  fp8t
                                         [local_experts]; fp8c [local_experts][rows]; others of R rows and C columns a
                                         scale [local_experts][ceil(rows / R)][ceil(hidden / C)]; fp8b128
                                         [local_experts][ceil(rows / 128)][ceil(hidden / 128)], rows being all rows of
                                         w_up.  up_scales SEPARATE (checkpoints quantize gate and up apart, so shards of
                                         tensor parallelism need it where inter is no multiple of 128):
                                         [local_experts][2 * B][ceil(hidden / 128)], B = ceil((inter_offset + inter) /
                                         128) rows of scales for gate and B for up, in the order of up_layout         */
    const void *w_down_scale;         /* fp8t, fp8c as above; fp8b128 [local_experts][ceil(hidden / 128)][B]          */
    const void *w_up_bias;            /* [local_experts][rows of w_up] T, or NULL                                     */
    const void *w_down_bias;          /* [local_experts][hidden] T, or NULL                                           */
    const float *x_scale, *h_scale;   /* fp8t: [1] static scales of x and of h; NULL: dynamic.  nvfp4_a4, required: [1]
                                         factors on top of the e4m3 scales of x and of h, amax / (6 * 448)            */
    const float *router_bias;         /* [experts] or NULL                                                            */
    const float *router_expert_scale; /* [experts] or NULL: factor on an expert's weight (Gemma 4)                    */
    const int32_t *router_table;      /* [router_table_rows][topk] or NULL: hash routing, ids =
                                         router_table[token_ids[t]]                                                   */
    const int32_t *replicas;          /* [experts + shared_slots][max_replicas] or NULL: logical -> physical          */
    const int32_t *replica_count;     /* [experts + shared_slots], with replicas                                      */
    const int32_t *expert_map;        /* [physical_experts] -> local expert or -1; NULL: all experts are local, or a
                                         group of ranks (moek_ep.h) knows where they are                              */
    int64_t *expert_load;             /* [physical_experts] or NULL: each slot adds 1 to its physical expert          */
    const void *w_gate;               /* up_layout SEPARATE: [local_experts][inter][hidden], the shape of w_up, too.
                                         NULL otherwise, as are its scale and bias                                    */
    const void *w_gate_scale;         /* of w_gate, as w_up_scale then is of w_up alone (fp8t: may be the same array);
                                         fp8b128: [local_experts][B][ceil(hidden / 128)] each                         */
    const void *w_gate_bias;          /* [local_experts][inter] T, with w_up_bias, which then has the same shape      */
    int router_table_rows;            /* required with router_table.  A token id outside gets no expert (CPU plans
                                         refuse it), nor does an entry of the table that is no id                     */
    const float *w_up_global_scale;   /* formats with a global scale (moek/format.h), required: a factor on top of
                                         w_up_scale.  Gated [local_experts][2], in the order of up_layout (SWAPPED: up
                                         first); not gated, or up_layout SEPARATE, [local_experts]                    */
    const float *w_down_global_scale; /* [local_experts]                                                              */
    const float *w_gate_global_scale; /* up_layout SEPARATE: [local_experts]                                          */
    const void *w_up_zero;            /* formats that may have zero points, or NULL: an element of w for each of
                                         w_up_scale, the elements of a row of scales side by side from a byte on;
                                         (w - zero) * scale                                                           */
    const void *w_down_zero;          /* given if w_up_zero is                                                        */
    const void *w_gate_zero;          /* up_layout SEPARATE: given if w_up_zero is                                    */
} moek_weights;

/* ---- 3. One run. ------------------------------------------------------------------------------------------------- */

/* Shared experts: called once a chunk between the send and the receive of finalize; enqueue work on `stream` that
 * writes rows first .. first + tokens - 1 of args.shared_y from your own input.  The ids and weights of these tokens
 * lie in args.topk_ids (or topk_ids64) and args.topk_weights by then, in the order of `stream`, if the caller gave
 * these.                                                                                                             */
typedef moek_status (*moek_shared_fn)(void *context, int first, int tokens, moek_stream stream);

typedef struct moek_args {
    int tokens;                       /* 0 .. max_tokens; 0 does nothing (and takes part in an exchange)              */
    const void *x;                    /* [tokens][hidden] T, aligned to 16 bytes                                      */
    const void *router_logits;        /* [tokens][experts] of logits_dtype; NULL: topk_ids and topk_weights are given.
                                         If the kernel ahead in the stream was launched early, it must end after all
                                         kernels ahead of it                                                          */
    int32_t *topk_ids;                /* [tokens][topk + shared_slots].  Read if router_logits is NULL: ids outside   */
    float *topk_weights;              /*   the range count as -1, no expert (CPU plans refuse them).  Else written,
                                           if not NULL                                                                */
    void *y;                          /* [tokens][hidden] T, aligned to 16 bytes, written; may be x, if y_stride is
                                         x_stride.  What is written lies in no other array of a run: not in the
                                         workspace, nor a row further on in x                                         */
    void *workspace;                  /* 256-byte aligned; need not be zeroed; holds nothing between runs             */
    size_t workspace_size;            /* at least moek_workspace_size(plan)                                           */
    const int32_t *token_ids;         /* [tokens], with weights.router_table; without one they are not read           */
    const unsigned char *is_padding;  /* [tokens] or NULL: tokens that no expert gets; their y is 0 (plus shared_y).
                                         Their finite x still counts in a dynamic scale of fp8t                       */
    moek_shared_fn shared;            /* or NULL                                                                      */
    void *shared_context;
    const void *shared_y;             /* [tokens][hidden] T, aligned to 16 bytes, or NULL: added to y; may be y, if the
                                         strides are the same.
                                         Latent MoE, whose shared experts have another hidden size: leave NULL, add
                                         after its projection                                                         */
    int handle;                       /* 0 or 1: number of this run, of two in flight (dual-batch overlap).  Each run
                                         needs its own workspace; a prepare/finalize that exchanges rows uses the
                                         number                                                                       */
    char *why;                        /* NULL, or where a sentence goes when the run is refused                       */
    size_t why_size;
    void *state;                      /* NULL, or moek_state_size() bytes of device memory, 256-byte aligned, zeroed
                                         once (cudaMemset), then left alone.  With it, runs of few tokens (without
                                         `shared`) take one launch (moek_plan_layer), and runs of some rows an expert
                                         one launch for both GEMMs (moek_plan_up_down).
                                         SAFETY: blocks of such a launch wait for each other, so it needs all SMs at
                                         once.  Never two such runs on a device at the same time, in any stream or
                                         process; and beside such a run no kernel that waits for work enqueued behind
                                         it.  Else they may wait for each other forever (docs/one-launch.md)          */
    int64_t *topk_ids64;              /* in the place of topk_ids, which then is NULL: the same ids as int64 (DeepEP's,
                                         torch's)                                                                     */
    const float *shared_weights;      /* [tokens][shared_slots] f32 or NULL: weights of the constant slots, token by
                                         token (a gate's), in the place of config.shared_weight.  With router_logits  */
    size_t x_stride, y_stride, shared_y_stride;       /* elements from a row to the next; 0: hidden.  hidden, or more
                                         and a multiple of 8; below 2^30, and the rows of a chunk (plan.chunk tokens)
                                         within 2^35.  What lies between rows is neither read nor written             */
    size_t router_logits_stride;      /* elements from a token's logits to the next one's, at least experts;
                                         0: experts                                                                   */
    moek_parallel parallel;           /* backend CPU: your threads for this run (moek/enums.h); zeros: as
                                         config.parallel says                                                         */
} moek_args;

/* ---- 4. The kernel table. ---------------------------------------------------------------------------------------- */

typedef moek_status (*moek_launch)(const void *args, moek_stream stream);      /* args: moek/ops.h, by op */

typedef struct moek_kernel {
    const char *name;
    int op, quant;                    /* MOEK_OP_UP, ...; MOEK_BF16, ... or 0: no such axis                           */
    int hidden;                       /* baked in, or 0: any multiple of `granule`, as inter is                       */
    int granule;
    int m;                            /* tile rows: best while experts hold at most m rows.  0: no such axis          */
    int arch;                         /* below 80: of the host, MOEK_ARCH_CPU (0) plain C, _AVX2, .. with
                                         such instructions; 80: sm_80 and up; 90: sm_90, code for sm_90a              */
    int threads, shared_bytes;        /* of a block                                                                   */
    moek_launch launch;
    const char *row;                  /* its row in kernels.toml                                                      */
    int block;                        /* columns of a scale of w, baked in; 0: a whole row, or the format says it     */
    int reads, traits;                /* bits: MOEK_READS_*, how w may lie; MOEK_TRAIT_*, what it does and wants      */
    int scratch, flags;               /* of GEMMs and layers: bytes of split of a block, flags that begin as zeros    */
    int max_tokens;                   /* layer: of a launch; 0: any number, by rows an expert                         */
    int ring, pages;                  /* layer of few tokens: moek/kernel/decode_smem.h; else 0                       */
    int down_quant;                   /* layer: the format of w_down, where it is another; else 0                     */
} moek_kernel;

enum { MOEK_WHY = 1024, MOEK_NOTE = 256 };

/* A plan is a plain value that owns nothing: keep it, copy it, drop it.  Read it; only init and bind write it.       */
typedef struct moek_plan {
    moek_config config;               /* with the defaults filled in                                                  */
    moek_weights weights;             /* moek_plan_bind                                                               */
    int bound;
    int backend;                      /* MOEK_BACKEND_*                                                               */
    int device;                       /* CUDA ordinal, or -1: this plan runs on the CPU, on host memory               */
    int arch;                         /* 10 * compute capability, 90 on Hopper; 0 on the CPU                          */
    int slots;                        /* topk + shared_slots                                                          */
    int local_experts;
    int chunk;                        /* tokens a chunk                                                               */
    int rows;                         /* STANDARD: the most rows prepare delivers to the experts of this rank         */
    int rows_per_expert;              /* BATCHED, else 0                                                              */
    const struct moek_prepare_finalize *prepare_finalize;
    const struct moek_experts *experts;
    size_t workspace_size;
    char why[MOEK_WHY];               /* the reason, when moek_plan_init or moek_plan_bind said no; else empty        */
    char note[MOEK_NOTE];             /* what of config.tuned was passed over, and why; else empty                    */
    moek_chosen chosen;               /* the library's (plan/chosen.h): moek_describe and moek_selection_of say       */
} moek_plan;

/* ---- 5. Functions. ----------------------------------------------------------------------------------------------- */

/* Choose.  Host only, allocates nothing, launches nothing.  On any error plan->why says what was asked, what was found
 * and what to type, and the plan is one that every function below refuses, as it does one of zeros.  (plan NULL:
 * E_ARGUMENT.)  OK, E_ARGUMENT, E_NO_KERNEL, E_ARCH, E_VERSION, E_BACKEND, E_CUDA.                                   */
moek_status moek_plan_init_(moek_plan *plan, const moek_config *config, size_t config_size, size_t plan_size,
                            int version);
int         moek_version(void);                                  /* of the implementation */
void        moek_version_text_(char *why, int version);          /* another moek.h has `why` elsewhere       */

#if defined(__CUDACC__) && defined(__GNUC__)           /* nvcc tells of each that is not called */
#define MOEK_INLINE_ static inline __attribute__((unused))
#else
#define MOEK_INLINE_ static inline
#endif
MOEK_INLINE_ moek_status moek_plan_init(moek_plan *plan, const moek_config *config)
{
    const moek_status status = moek_plan_init_(plan, config, sizeof(moek_config), sizeof(moek_plan), MOEK_VERSION);
    if (plan && status == MOEK_E_VERSION) moek_version_text_(plan->why, MOEK_VERSION);
    return status;
}

/* Sets config->quant to the format that serves the weights of config->quant best here: of all formats with the same
 * weights and scales (moek_same_weights) one that moek_plan_init accepts with this config.  docs/formats.md has the
 * order, which puts x in T before an x that kernels would widen again.  Call this before moek_plan_init, and before
 * moek_ep_open where ranks are several.  Numbers change with the format.  ue8m0 and expand_weights become 0 where the
 * format that was chosen has none.  Nothing else of config changes, and nothing at all on an error.
 * text [size], or NULL: written: why this format, and what becomes of the others; on an error, why each refuses.
 * OK; E_ARGUMENT; E_VERSION; else what moek_plan_init says of the format that was asked for, since none serves.      */
moek_status moek_choose_format_(moek_config *config, char *text, size_t size, size_t config_size, int version);
MOEK_INLINE_ moek_status moek_choose_format(moek_config *config, char *text, size_t size)
{
    return moek_choose_format_(config, text, size, sizeof(moek_config), MOEK_VERSION);
}

/* Hand over the weights (the struct is copied, the arrays are not).  Checks that what the format needs is there and
 * aligned.  Runs take the addresses of the last call: for others, as where weights are streamed through buffers, call
 * it again before the next run, and never write to plan->weights.  What lies in the arrays may change between runs
 * without a call.  A graph keeps the addresses that it was captured with.  OK, E_ARGUMENT.                           */
moek_status moek_plan_bind(moek_plan *plan, const moek_weights *weights);
/* What the address of an array of weights or args ("weights.w_up_scale", "args.x", ...) must be a multiple of for this
 * plan, in bytes.  moek_plan_bind and moek_run refuse others.  0: there is no such address, or the plan is not
 * initialized.  docs/formats.md has a table.                                                                         */
size_t      moek_alignment(const moek_plan *plan, const char *field);

/* Weights for config.weight_layout, made once: MOEK_WEIGHTS_TILED with a plan for a GPU, on its device; with a plan for
 * the CPU MOEK_WEIGHTS_PANELS, of all formats, in host memory (stream NULL; threads: config.parallel).  Sizes stay the
 * same.  docs/formats.md draws both orders.  Else config.weight_layout of this plan does not matter.
 *   tiled   hidden and inter multiples of 128 bytes.  Weights of 4 bits, and of 8 and x in T, are fragments, and serve
 *           this format alone: multiples of 64.  Scales and zero points of 4-bit weights are repacked, too
 *           Blocks of GGUF files (moek_format.only_blocks): whole blocks to as many bytes, with all that is in them.
 *           Of a format that has arrays, too (mxfp4_a16, nvfp4_a16): arrays.  A plan whose weight_layout is BLOCKS
 *           there is refused (E_ARGUMENT), as its weights are no arrays
 *   panels  hidden, inter and inter_offset multiples of 32.  Scales of one row and some columns are repacked, too, and
 *           zero points of such.  Blocks of GGUF files as above
 * Scales of whole rows and global scales stay as they are.  up_layout SEPARATE: on a GPU moek_repack_up refuses it; on
 * the CPU it takes gate and up, a call each.
 *   from, to   [experts], experts of them at a time; apart; aligned to 16 bytes.  to is written
 *   back       1: from there to a checkpoint's order
 * OK, E_ARGUMENT (also: another device is current), E_NO_KERNEL, E_CUDA.                                             */
moek_status moek_repack_up(const moek_plan *plan, const void *from, void *to, int experts, int back,
                           moek_stream stream);
moek_status moek_repack_down(const moek_plan *plan, const void *from, void *to, int experts, int back,
                             moek_stream stream);
moek_status moek_repack_up_scale(const moek_plan *plan, const void *from, void *to, int experts, int back,
                                 moek_stream stream);            /* scales that are repacked, else E_ARGUMENT */
moek_status moek_repack_down_scale(const moek_plan *plan, const void *from, void *to, int experts, int back,
                                   moek_stream stream);
moek_status moek_repack_up_zero(const moek_plan *plan, const void *from, void *to, int experts, int back,
                                moek_stream stream);             /* formats that may have zero points              */
moek_status moek_repack_down_zero(const moek_plan *plan, const void *from, void *to, int experts, int back,
                                  moek_stream stream);

size_t      moek_workspace_size(const moek_plan *plan);          /* bytes; 0 for a plan that is not initialized */
size_t      moek_state_size(void);                               /* bytes of args.state, whatever the plan */

/* The selection of a run: which kernels serve it, and how they share the work.  moek_run selects once a chunk, by the
 * measured choice for so many rows if there is one (config.tuned), else by the built-in rule (rules.toml).           */
typedef struct moek_selection {
    const moek_kernel *layer;         /* all behind routing in one launch; or NULL                                    */
    const moek_kernel *up_down;       /* else, up, quantization of h and down in one launch; or NULL.  standard format,
                                         at most 1024 row blocks (moek/ops.h), hidden above 896 bytes and inter above
                                         128; a scale a tensor: after moek_plan_bind, with static scales              */
    const moek_kernel *up, *down;     /* else, these.  Built-in rule: of the smallest tile that holds an expert's mean
                                         share of the rows; the largest has no bound                                  */
    moek_details details;             /* how they share the work (moek/plan/chosen.h)                                 */
} moek_selection;
enum { MOEK_FUSE_NONE, MOEK_FUSE_UP_DOWN, MOEK_FUSE_LAYER };   /* kernels whose blocks wait for each other (args.state):
                                                                  none; up_down; layer and up_down                    */
/* rows: as many as a run brings to the experts (tokens, on one rank).  fuse: with args.state moek_run takes FUSE_LAYER,
 * but FUSE_UP_DOWN with args.shared, and the stages below take FUSE_UP_DOWN; else FUSE_NONE.  A plan that is not
 * initialized: all zeros.                                                                                            */
moek_selection moek_selection_of(const moek_plan *plan, int rows, int fuse);
int         moek_plan_tile(const moek_plan *plan, int rows);                     /* .details.tile of FUSE_NONE        */
const moek_kernel *moek_plan_layer(const moek_plan *plan, int tokens);           /* .layer of FUSE_LAYER              */
const moek_kernel *moek_plan_up_down(const moek_plan *plan, int rows);           /* .up_down of FUSE_UP_DOWN          */

/* Run the layer.  Kernel launches on `stream`, nothing else: no allocation, no synchronization; capturable in a graph.
 * A CPU plan has done the work on return.  Refuses before anything is launched or written, with a sentence in
 * args->why.  OK, E_ARGUMENT, E_WORKSPACE, E_UNBOUND, E_CUDA, and what your own parts return.                        */
moek_status moek_run(const moek_plan *plan, const moek_args *args, moek_stream stream);

/* The table, and why. */
const moek_kernel *moek_kernels(int *count);                                     /* every compiled row, best first    */
const moek_kernel *moek_kernel_find(const char *name);                           /* NULL if not compiled              */
size_t      moek_explain(const moek_config *config, char *text, size_t size);    /* every backend and row: taken, or why
                                                                                    not; last, what moek_plan_init says;
                                                                                    returns the length it needs       */
size_t      moek_describe(const moek_plan *plan, char *text, size_t size);       /* the steps of a plan, a line each  */
/* The next of a list of usual sizes (kernels.toml: hidden; 2048, 2560, 2880, ... 8192), for which the exchange between
 * ranks has kernels with constants; 0: above the largest.  No kernel demands such a size: hidden is any multiple of the
 * granule of its kernels.                                                                                            */
int         moek_hidden_round_up(int hidden);
const char *moek_status_name(moek_status status);                                /* "MOEK_E_NO_KERNEL"                */
const char *moek_status_text(moek_status status);
const char *moek_quant_name(int quant);                                          /* "fp8b128"; NULL if there is none  */
const char *moek_act_name(int act);                                              /* "silu"                            */

/* For callers without a C compiler (ctypes, Rust, Go, ...): bytes of the structs of the implementation, and where a
 * field lies (moek/plan/fields.h lists them all).  Zero a struct, then set fields by offset.  They call
 * moek_plan_init_(plan, config, moek_config_size(), moek_plan_size(), moek_version()).  examples/ffi.py does it.     */
size_t      moek_config_size(void);
size_t      moek_plan_size(void);
size_t      moek_offset(const char *field);           /* of "config.hidden", "weights.w_up", "args.x", "plan.why",
                                                         "step.out", "kernel.name", "quant_args.x", ...; (size_t)-1:
                                                         there is none.  A struct alone, "args": its size             */

#ifdef __cplusplus
}
#endif
#endif
