/* moek/walk/threads.h -- the threads of a run on the CPU. */
#ifndef MOEK_THREADS_H
#define MOEK_THREADS_H
#include "../stages.h"
#include "../kernel/parallel.h"

/* What a step's kernels are launched on: the caller's stream, or on the CPU the caller's threads. */
static moek_stream moek_stream_of_step_(const moek_step *step, moek_stream stream)
{
    const moek_plan *const plan = step->plan;
    if (plan->device >= 0) return stream;
    return moek_stream_of_(step->args.parallel.run ? &step->args.parallel : &plan->config.parallel);
}
#endif
