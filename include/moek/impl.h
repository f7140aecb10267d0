/* moek/impl.h -- the host side, compiled where MOEK_IMPLEMENTATION is defined: table, plan, parts, run. */
#ifndef MOEK_IMPL_H
#define MOEK_IMPL_H
#include <stdarg.h>
#include <stdio.h>
#include "strict.h"
#include "kernel/numbers.h"
#include "want.h"

#if MOEK_HAVE_CUDA_ && (!defined(MOEK_EMU) || defined(MOEK_EMU_CUDA))
#define MOEK_HAVE_CUDART_ 1                            /* what cuda_runtime_api.h declares: CUDA's, or a test's */
#else
#define MOEK_HAVE_CUDART_ 0
#endif
#include "plan/device_query.h"
#include "plan/table.h"
#include "plan/arch.h"
#include "text.h"
#include "plan/check.h"
#include "plan/rows.h"
#include "plan/tuned.h"
#include "plan/rule.h"
#include "plan/workspace.h"
#include "plan/plan.h"
#include "plan/pair.h"
#include "plan/alignment.h"
#include "plan/bind.h"
#include "plan/describe.h"
#include "plan/fields.h"
#include "walk/overlap.h"
#include "walk/arguments.h"
#include "walk/weights.h"
#include "walk/quantize.h"
#include "walk/route.h"
#include "walk/prepare.h"
#include "walk/experts.h"
#include "walk/finalize.h"
#include "walk/parts.h"
#include "walk/run.h"
#endif
