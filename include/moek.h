/* moek.h -- Mixture-of-Experts layers in C: one header, one call a layer.
 *
 * Do this, in ONE .cu (nvcc; CPU and GPU kernels) or ONE .c (any C99 compiler; CPU kernels):
 *
 *     #define MOEK_IMPLEMENTATION
 *     #include "moek.h"
 *
 * and include "moek.h" without the define wherever you call it.  Needs nothing but this folder, and cudart with nvcc.
 * One of your own headers may have included moek.h before, also in that ONE file.  Compile that file without
 * -ffast-math, -Ofast and --use_fast_math; your other files may have them.
 *
 *     moek_config config = MOEK_QWEN3_30B_A3B;                      1. say what the layer is
 *     config.quant = MOEK_FP8B128;  config.max_tokens = 512;
 *     config.exclude = 1u << MOEK_BACKEND_CPU;                      (memory is on a GPU: never plan for a CPU)
 *     moek_plan plan;
 *     if (moek_plan_init(&plan, &config) != MOEK_OK ||              2. plan once: host only, microseconds
 *         moek_plan_bind(&plan, &weights) != MOEK_OK) puts(plan.why);   3. hand over the weights
 *     if (moek_run(&plan, &args, stream) != MOEK_OK) puts(why);     4. run: kernel launches on `stream`, nothing else
 *                                                                   (args.why = why, args.why_size: the sentence)
 *
 * OPTIONS, read only where MOEK_IMPLEMENTATION is defined; each leaves kernels out, so that they are neither compiled
 * nor listed:
 *     MOEK_HIDDEN=7168          keep kernels for this hidden size and the general ones (hidden 0)
 *     MOEK_BLOCK=32             keep kernels for scales of so many columns, where a format leaves that open
 *     MOEK_QUANT=MOEK_FP8B128   keep kernels for this format
 *     MOEK_ARCH=80              keep kernels of this architecture (80: sm80; 89, 90, 120: sm89, sm90, sm120, which need
 *                               kernels of 80; 0: the CPU, all sets of instructions)
 *     MOEK_WANT_HIDDEN(h), MOEK_WANT_BLOCK(b), MOEK_WANT_QUANT(q), MOEK_WANT_ARCH(a)
 *                               or any test of your own, usable in #if
 *
 * WHAT IT DOES NOT: allocate, free, synchronize, print, read environment variables, keep state, start threads
 * (CPU kernels use OpenMP where the implementation is compiled with it, or your threads: config.parallel).
 *
 * WORDS, as this file and all others use them:
 *     T           bf16 or fp16 (config.dtype): the type of x, y, h, o and biases
 *     x, h, o, y  input of the layer; output of up and activation; output of down; output of the layer
 *     up, down    the two GEMMs.  Gated activations have two matrices in up: gate and up
 *     expert      logical: as the router counts them.  physical: a copy of one, on some rank.  local: on this rank
 *     slot        one (token, k) pair, k counting the token's experts: slot = token * slots a token + k
 *     row         a row of a tensor: of x, one a token; of h and o, one a slot
 *     tile        the m rows and n columns that a block of a kernel computes at a time; row block: a tile's rows
 *     kernel      one line of the table (moek_kernel): one operation, format, architecture and tile
 *     format      what weights and activations are made of: bf16, fp8b128, ... (config.quant; moek/format.h)
 *     standard, batched     activation formats: rows as they come; rows sorted by expert, room for each expert's
 *     plan, run   the choice of kernels for a layer, made once; one call of the layer
 *     rank        one process or thread with a part of the experts (expert parallelism: moek_ep.h)
 *
 * THE LAYER:
 *     route     router_logits [tokens][experts] -> topk_ids, topk_weights [tokens][topk]
 *     prepare   x [tokens][hidden] -> quantized, and brought to where the experts are
 *     experts   up:   h = act(x . Wgate, x . Wup)      w_up   [experts][2 * inter][hidden]  (gated; else [inter])
 *               down: o = h . Wdown                    w_down [experts][hidden][inter]
 *     finalize  y [tokens][hidden] = sum over k of topk_weights * o
 * Sums are f32.  h and o are rounded to T once each; with an fp8 format x and h are quantized (moek/ops.h: quant).
 * o is rounded before its weight is applied, so an o beyond the largest fp16 is Inf in each kernel.  One exception:
 * where T is bf16, which has the range of f32, the kernels for up to 4 tokens (moek_plan_layer) weight and add o in
 * f32.  That saves 4 to 6 % of a layer of one token.  Apart from that, kernels differ in the order of f32 sums.
 * Sums over several ranks: moek_ep.h, COMBINE.
 *
 * THREADS.  Any function, any thread, any time.  The library has no state: a function writes only what its arguments
 * point to.  A plan is read-only after init and bind, so threads and streams may share it; concurrent runs need a
 * workspace each.  A plan belongs to the device that was current at init.
 * MEMORY.  The library allocates nothing and frees nothing, on host or device.  Weights and workspace must outlive the
 * last run that was enqueued with them.
 * DETERMINISM.  The same inputs give the same bits, in every run, whatever the stream or graph.  expert_load counters
 * are integers and exact.
 * NUMBERS.  A NaN or Inf in a token's input reaches only that token's output (fp8t with a dynamic scale too).  Logits
 * whose softmax is no number make that token's y NaN (moek/ops.h: route has what others do).  Scales of whole rows,
 * of matrices and of blocks of 128 columns act on sums, and so do all scales of arrays in few-row kernels of CPUs: f32
 * must have room for sums of codes times x, or y is Inf or NaN, however small the scale.
 * VERSIONS.  Fields are only appended.  A caller compiled against another moek.h gets MOEK_E_VERSION, not a crash.   */
#include "moek/api.h"                                 /* types and functions */
#include "moek/stages.h"                              /* and what engines take besides */

#ifdef MOEK_IMPLEMENTATION                            /* once, also where a header came without it before */
#include "moek/impl.h"
#endif
