/* moek/enums.h -- numbers and names that callers, the plan and kernels share. */
#ifndef MOEK_API_ENUMS_H
#define MOEK_API_ENUMS_H

typedef struct CUstream_st *moek_stream;              /* the type that CUDA calls cudaStream_t; NULL on the CPU */

/* Threads of the caller, for CPU kernels: config.parallel, args.parallel.  Zeros: the threads of OpenMP, where the
 * implementation is compiled with OpenMP, else the calling thread.
 *     run(pool, tasks, task, data)     calls task(data, i) for each i from 0 to tasks - 1
 * run must call each of them exactly once, on any threads (the caller's, too), in any order, side by side or one by
 * one, and return when all have returned, with what they wrote visible to the calling thread.  It has no way to fail:
 * where a thread is missing, another does its tasks.
 * tasks is at least 1.  No task waits for another, throws, or calls a function of the caller.  A task takes up to 96 KB
 * of stack.  The results have the same bits, whatever the threads and the order.  A run of a plan calls `run` some
 * times, one after the other, from the thread that called moek_run; runs on several threads may do so at once. */
typedef void (*moek_task_fn)(const void *data, long long i);
typedef struct moek_parallel {
    void (*run)(void *pool, long long tasks, moek_task_fn task, const void *data);
    void *pool;                                       /* handed to run; may be NULL */
    int threads;                                      /* that it has, by which tasks are cut; 0: not known */
} moek_parallel;

#include "../../generated/moek_enums.h"               /* MOEK_BF16, MOEK_SILU, ...: numbers from kernels.toml */

#define MOEK_EACH_STATUS(X)                                                                                     \
    X(OK,          0, "success")                                                                                \
    X(E_ARGUMENT,  1, "a pointer is NULL, a count is out of range, or fields contradict each other")            \
    X(E_NO_KERNEL, 2, "no compiled kernel fits the config; plan.why has the row to add")                        \
    X(E_ARCH,      3, "a kernel fits the config but not this device, or was not compiled for it")               \
    X(E_WORKSPACE, 4, "workspace is too small or not aligned to 256 bytes")                                     \
    X(E_VERSION,   5, "caller and implementation were compiled from different moek.h")                          \
    X(E_CUDA,      6, "a CUDA call failed; cudaPeekAtLastError() has the reason")                               \
    X(E_BACKEND,   7, "the backend, prepare/finalize or experts asked for cannot serve this config")            \
    X(E_UNBOUND,   8, "moek_plan_bind has not given this plan its weights")                                     \
    X(E_CAPACITY,  9, "a rank would receive more rows than its window holds; args.why has the number")          \
    X(E_TIMEOUT,  10, "a rank did not answer in time; moek_ep_poll says which")                                 \
    X(E_ABORTED,  11, "the group of ranks was aborted, here or by another rank; moek_ep_poll says why")         \
    X(E_MISMATCH, 12, "ranks of a group were given different configurations")
#define MOEK_STATUS_(name, number, text) MOEK_##name = number,
typedef enum moek_status { MOEK_EACH_STATUS(MOEK_STATUS_) MOEK_STATUS_COUNT_ } moek_status;

enum {                                                /* element types; 0: the default */
    MOEK_DTYPE_DEFAULT, MOEK_DTYPE_BF16, MOEK_DTYPE_FP16, MOEK_DTYPE_F32
};
enum {                                                /* how moek/ops.h: route scores a logit */
    MOEK_SCORE_SOFTMAX, MOEK_SCORE_SIGMOID, MOEK_SCORE_SQRTSOFTPLUS, MOEK_SCORE_RAW, MOEK_SCORE_SPARSEMIXER
};
enum {                                                /* and what follows the choice */
    MOEK_NORM_NONE, MOEK_NORM_SUM, MOEK_NORM_SOFTMAX, MOEK_NORM_SIGMOID, MOEK_NORM_SIGMOID_SUM
};
enum {                                                /* how a group of experts scores: by its best expert, or by the */
    MOEK_GROUP_SCORE_DEFAULT, MOEK_GROUP_SCORE_MAX, MOEK_GROUP_SCORE_TOP2                /* sum of its two best ones */
};

/* Routing methods: X(name, number, score, normalize, eps, group score, what it is).  Numbers below 100 are FlashInfer's
 * and vLLM's RoutingMethodType.  Any of them may have groups, a bias, a scale (moek/ops.h: route has the formula).
 * eps and group score are defaults, for config.router_eps and config.group_score.  A method whose group score is MAX
 * takes TOP2 by default where weights.router_bias is given, as vLLM does.                                            */
#define MOEK_EACH_ROUTING(X)                                                                                    \
    X(SOFTMAX,         0, SOFTMAX,      NONE,    0.0f,   MAX,  "softmax over all experts, top-k, not renormalized") \
    X(TOPK_SOFTMAX,    1, RAW,          SOFTMAX, 0.0f,   MAX,  "top-k, softmax over the chosen (Mixtral, gpt-oss)") \
    X(DEEPSEEK_V3,     2, SIGMOID,      SUM,     1e-20f, TOP2, "sigmoid + bias, groups, divide by the sum, scale") \
    X(LLAMA4,          3, RAW,          SIGMOID, 0.0f,   MAX,  "top-k, sigmoid of the chosen (Llama 4: topk 1)") \
    X(SOFTMAX_RENORM,  4, SOFTMAX,      SUM,     0.0f,   MAX,  "softmax, top-k, divide by the sum (Qwen3)")     \
    X(TOPK,            5, RAW,          NONE,    0.0f,   MAX,  "top-k of the logits, which are the weights")    \
    X(SIGMOID_RENORM,  6, SIGMOID,      SUM,     0.0f,   MAX,  "sigmoid, top-k, divide by the sum")             \
    X(MINIMAX2,        7, SIGMOID,      SUM,     1e-20f, TOP2, "sigmoid + bias, divide by the sum")             \
    X(SIGMOID,         8, SIGMOID,      NONE,    0.0f,   MAX,  "sigmoid, top-k")                                \
    X(DEEPSEEK_V4,   100, SQRTSOFTPLUS, SUM,     0.0f,   TOP2, "sqrt(softplus) + bias, divide by the sum, scale") \
    X(SQRTSOFTPLUS,  103, SQRTSOFTPLUS, NONE,    0.0f,   TOP2, "sqrt(softplus) + bias")                         \
    X(SPARSEMIXER,   104, SPARSEMIXER,  NONE,    0.0f,   MAX,  "Phi-3.5-MoE, top-2, jitter 0.01")               \
    X(LLAMA4_RENORM, 105, RAW,          SIGMOID_SUM, 0.0f, MAX, "top-k, sigmoid of the chosen, divide by the sum")
/* SPARSEMIXER: m1 = max of the logits s, at expert i1; the first weight is softmax at i1 over the experts with
 * m1 - s <= 0.02 * max(|s|, m1).  Then without i1: m2, i2, and the same with m2.                                   */
#define MOEK_ROUTING_(name, number, score, normalize, eps, group, text) MOEK_ROUTE_##name = number,
enum { MOEK_EACH_ROUTING(MOEK_ROUTING_) MOEK_ROUTE_COUNT_ };

enum { MOEK_STANDARD, MOEK_BATCHED };                 /* activations: [rows][hidden]; [local experts][rows][hidden] */
enum {                                                /* which part applies the top-k weights and sums over k */
    MOEK_DELEGATE,                                    /* the experts did neither; prepare/finalize chooses one below */
    MOEK_NOOP,                                        /* the experts did both: out is [rows][hidden] */
    MOEK_CONTIGUOUS,                                  /* out is [rows][topk][hidden] */
    MOEK_NAIVE_BATCHED                                /* out is [local experts][max rows][hidden] */
};
enum { MOEK_UP_DEFAULT, MOEK_UP_GATE_UP, MOEK_UP_INTERLEAVED, MOEK_UP_SWAPPED, MOEK_UP_SEPARATE };
            /* rows of w_up: [gate; up], g0 u0 g1 u1 .., [up; gate]; SEPARATE: up alone, and gate in weights.w_gate */
enum { MOEK_UP_SCALES_TOGETHER, MOEK_UP_SCALES_SEPARATE };         /* moek_weights: w_up_scale */
enum { MOEK_WEIGHTS_CHECKPOINT, MOEK_WEIGHTS_TILED, MOEK_WEIGHTS_PANELS, MOEK_WEIGHTS_BLOCKS };
            /* as below; as moek_repack_up and _down make them, TILED for GPUs, PANELS for CPUs; blocks as a GGUF
               file has them (moek/format.h), for CPUs and by the sm80 kernels of GPUs; TILED, these read them faster */
enum { MOEK_CPU_BEST, MOEK_CPU_PLAIN };               /* config.cpu; or MOEK_ARCH_AVX2, ... */
enum { MOEK_SCALE_ROW, MOEK_SCALE_COLUMN, MOEK_SCALE_PACKED };     /* moek/ops.h: quant */

/* Backends, best first: X(name, number, arch of its rows).  The plan takes the first that accepts the config.        */
#define MOEK_EACH_BACKEND(X) X(USER, 1, -1) X(SM120, 6, 120) X(SM90, 2, 90) X(SM89, 5, 89) X(SM80, 3, 80) \
    X(CPU, 4, 0)
#define MOEK_BACKEND_(name, number, arch) MOEK_BACKEND_##name = number,
enum { MOEK_BACKEND_AUTO = 0, MOEK_EACH_BACKEND(MOEK_BACKEND_) MOEK_BACKEND_COUNT_ };
#define MOEK_BACKENDS_GPU /* for config.exclude */ \
    (1u << MOEK_BACKEND_SM120 | 1u << MOEK_BACKEND_SM90 | 1u << MOEK_BACKEND_SM89 | 1u << MOEK_BACKEND_SM80)
#endif
