/* moek/stages.h -- what engines take besides moek/api.h: the stages of moek_run one by one, parts of their own in the
 * place of built-in ones, and quantization by itself. */
#ifndef MOEK_STAGES_H
#define MOEK_STAGES_H
#include "api.h"
#include "ops.h"                                      /* the contract of each kernel */

#ifdef __cplusplus
extern "C" {
#endif

/* The stages of moek_run, for engines that do something between them (tokens at most plan.chunk).  `step` is what they
 * hand over: begin fills it, each stage reads and extends it.  Running all of them in this order is moek_run of one
 * chunk.  receive may be called later and elsewhere in the program, as a hook: send only starts, receive completes.  */
typedef struct moek_step {
    const moek_plan *plan;
    moek_args args;                   /* of this chunk; as the caller gave them, so a stride may be 0 (hidden)        */
    int first;                        /* its first token                                                              */
    int tokens;
    int32_t *topk_ids;                /* [tokens][slots]: as routed or given (of args.topk_ids64: these as int32, -1 for
                                         what is out of range, once moek_route is through)                            */
    float *topk_weights;
    const int32_t *ids;               /* [tokens][slots]: mapped to experts of this rank, or -1; if prepare/finalize is
                                         collective: physical experts of any rank, or -1                              */
    /* prepare -> experts */
    const void *a;                    /* STANDARD [rows][hidden]; BATCHED [local_experts][rows][hidden]; T or e4m3;
                                         rows a_stride apart                                                          */
    const void *a_scale;              /* moek/ops.h: quant, by row; NULL if a is T                                    */
    int rows;                         /* of a (an expert's, in BATCHED)                                               */
    const int32_t *expert_ids;        /* STANDARD [rows][slots]: local expert or -1, for the rows of a                */
    const float *expert_weights;      /* STANDARD [rows][slots]                                                       */
    const int32_t *expert_tokens;     /* [local_experts] on device: live rows; BATCHED: required, else may be NULL    */
    /* experts -> finalize */
    void *out;                        /* STANDARD [rows][slots][hidden] (NOOP: [rows][hidden], or the experts set it to
                                         args.y and write there, rows args.y_stride apart); BATCHED
                                         [local_experts][rows][hidden]; T.  Rows that no expert owns are not the
                                         experts' to write; many rows of x may lie here on their way to the experts   */
    int straight;                     /* set by moek_finalize: finalize_receive follows finalize_send, with no kernel of
                                         the caller between.  A part that launches a kernel there sets it to 0        */
    /* workspaces, 256-byte aligned */
    void *prepare_workspace, *experts_workspace;
    int routed;                       /* set by moek_run: routing was launched, and no kernel of the caller since then.
                                         A part that launches a kernel before the experts sets it to 0                */
    size_t a_stride;                  /* elements from a row of a to the next, set with a: hidden, unless a prepare part
                                         says otherwise.  `local` leaves x in place if it stays as it is (bf16, fp16, or
                                         expects_unquantized): then x's stride                                        */
    moek_selection selection;         /* of this chunk; where prepare brings rows of other ranks, decided anew by
                                         moek_experts_apply                                                           */
} moek_step;

moek_status moek_begin(const moek_plan *plan, const moek_args *args, moek_step *step);  /* checks, lays out workspace */
moek_status moek_route(moek_step *step, moek_stream stream);             /* logits -> ids, weights (or given); map */
moek_status moek_prepare_send(moek_step *step, moek_stream stream);
moek_status moek_prepare_receive(moek_step *step, moek_stream stream);
moek_status moek_experts_apply(moek_step *step, moek_stream stream);
moek_status moek_finalize_send(moek_step *step, moek_stream stream);
moek_status moek_finalize_receive(moek_step *step, moek_stream stream);
moek_status moek_prepare(moek_step *step, moek_stream stream);           /* send, then receive */
moek_status moek_finalize(moek_step *step, moek_stream stream);          /* send, shared experts, receive */

/* Your own parts.  Fill one in, keep it alive as long as the plan, put a pointer in the config.                      */

/* Prepare/finalize: quantize and dispatch, combine.  The contract of vLLM's modular FusedMoEPrepareAndFinalize.      */
typedef struct moek_prepare_finalize {
    const char *name;
    int format;                       /* MOEK_STANDARD or MOEK_BATCHED: what prepare delivers                         */
    int output_is_reduced;            /* y is already summed over all ranks (for the host to read)                    */
    int num_dispatchers;              /* ranks that may send to this one; 0: 1                                        */
    int max_tokens_per_rank;          /* 0: no limit                                                                  */
    int cannot_defer;                 /* cannot deliver unquantized rows to experts that quantize themselves          */
    void *context;
    /* 1: serves this config; 0: not, and a reason goes to why ("hidden 100 is no multiple of 128").  NULL: always.   */
    int (*supports)(const struct moek_prepare_finalize *self, const moek_config *config, char *why, size_t why_size);
    size_t (*workspace)(const struct moek_prepare_finalize *self, const moek_plan *plan);        /* bytes; NULL: 0.
                                         Asked once, by moek_plan_init                                                */
    /* send + receive of prepare set step->a, a_scale, rows, expert_ids, expert_weights, expert_tokens; a_stride only if
     * rows of a do not lie side by side.  Rows of step->args.x are args.x_stride elements apart (0: hidden).
     * They quantize to plan->config.quant unless plan->experts->expects_unquantized; `local` leaves x (a_scale NULL) to
     * the library's experts where these put it in order, so x stays the caller's to keep until they have run.        */
    moek_status (*prepare_send)(const struct moek_prepare_finalize *self, moek_step *step, moek_stream stream);
    moek_status (*prepare_receive)(const struct moek_prepare_finalize *self, moek_step *step, moek_stream stream);
    /* send + receive of finalize write step->args.y from step->out, which may hold anything behind them (`local` and
     * `batched` discard it: it need not go to memory); weight_and_reduce: what is left to do.
     * Add args.shared_y, if there is one, in receive.  Of both, rows have strides: args.y_stride, shared_y_stride.   */
    moek_status (*finalize_send)(const struct moek_prepare_finalize *self, moek_step *step, int weight_and_reduce,
                                 moek_stream stream);
    moek_status (*finalize_receive)(const struct moek_prepare_finalize *self, moek_step *step, int weight_and_reduce,
                                    moek_stream stream);
    int collective;                   /* rows go to other ranks: step->ids are physical experts, wherever they live
                                         (weights.expert_map stays NULL), and every run takes all the chunks that
                                         config.max_tokens has, the last ones perhaps of no tokens, so that ranks with
                                         different numbers of tokens meet                                             */
    int max_rows;                     /* STANDARD: the most rows prepare delivers; 0: max_tokens_per_rank (or the tokens
                                         of a chunk) times num_dispatchers                                            */
    /* NULL, or refuses what can be refused before anything is launched or written, with a sentence in args->why (which
     * may be NULL): asked by moek_run, by moek_begin and, since a part may have changed meanwhile, by moek_route ahead
     * of what it does.  It writes nothing else and waits for nothing.                                                */
    moek_status (*check)(const struct moek_prepare_finalize *self, const moek_plan *plan, const moek_args *args);
} moek_prepare_finalize;

/* Experts: permute, up, activation, down, unpermute.  The contract of vLLM's modular FusedMoEExperts.                */
typedef struct moek_experts {
    const char *name;
    int format;                       /* what apply takes                                                             */
    int weight_and_reduce;            /* MOEK_DELEGATE, _NOOP, ...: what apply leaves for finalize                    */
    int expects_unquantized;          /* apply quantizes itself: prepare delivers T                                   */
    void *context;
    int (*supports)(const struct moek_experts *self, const moek_config *config, char *why, size_t why_size);
    size_t (*workspace)(const struct moek_experts *self, const moek_plan *plan);
    moek_status (*apply)(const struct moek_experts *self, moek_step *step, moek_stream stream);   /* writes step->out */
} moek_experts;

extern const moek_prepare_finalize moek_local;        /* one rank, standard format                                    */
extern const moek_prepare_finalize moek_batched;      /* one rank, batched format: [local_experts][rows][hidden]      */
extern const moek_experts moek_standard_experts;      /* made of kernels of the table: for config.experts_impl, or to
                                                         compare plan.experts with                                    */
extern const moek_experts moek_batched_experts;       /* the same for the batched format                              */

/* Quantize by itself, with any scale layout (moek/ops.h: quant).  arch: 0 for host memory, else the device's; stream:
 * as kernels take it (moek/ops.h), so on the host NULL or a moek_parallel's address.  OK,
 * E_ARGUMENT (a NULL, a size below 0 or too large, an address that is not aligned, ue8m0 for a format without
 * it; on the host, a static scale below 0; ...), E_NO_KERNEL, E_CUDA.                                                */
moek_status moek_quantize(int quant, int arch, const moek_quant_args *args, moek_stream stream);
#ifdef __cplusplus
}
#endif
#endif
