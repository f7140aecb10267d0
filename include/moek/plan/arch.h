/* moek/plan/arch.h -- architectures: of the host or of a device, whose rows a plan takes beside its own, what a device
 * can.  No other file of plan/ or walk/ compares numbers of architectures: what a kernel can is a column of its row. */
#ifndef MOEK_ARCH_H
#define MOEK_ARCH_H
#include "../facts.h"
#include "table.h"

/* Memory of the host, not of a device: MOEK_ARCH_CPU and the sets of instructions. */
static int moek_arch_is_host_(int arch) { return MOEK_ARCH_IS_HOST_(arch); }

/* Are rows of `below` taken, too, where rows of `arch` are?  gemm: rows that are GEMMs, of which sm90 has its own; sm89
 * has some, and takes sm80's beside them; sm120 has some, and takes both. */
static int moek_arch_below_(int below, int arch, int gemm)
{
    if (below == arch) return 1;
    if (arch == MOEK_ARCH_SM120 && below == MOEK_ARCH_SM89) return 1;
    if (arch == MOEK_ARCH_SM89 || arch == MOEK_ARCH_SM120) return below == MOEK_ARCH_SM80;
    if (!moek_arch_is_host_(arch)) return arch == MOEK_ARCH_SM90 && below == MOEK_ARCH_SM80 && !gemm;
    return MOEK_SET_BELOW_(below, arch);
}
/* Does a set want a permission, which the process keeps then?  (moek/kernel/isa.h) */
static int moek_arch_asks_(int arch) { return arch == MOEK_ARCH_AMX; }

/* Whole layers need none of the plan's GEMMs: the architecture whose rows for them are asked for first, on a device
 * that may have a better one than the plan, where the config leaves the choice. */
static int moek_arch_of_layers_(const moek_config *c, int arch, int device)
{
    const int newer = device == MOEK_ARCH_SM90 && arch == MOEK_ARCH_SM80;
    return newer && !c->backend && !(c->exclude >> MOEK_BACKEND_SM90 & 1) ? MOEK_ARCH_SM90 : arch;
}
/* Has it rows of some formats alone, and for the others rows of an older one, which are a backend of their own? */
static int moek_arch_adds_(int arch) { return arch == MOEK_ARCH_SM89 || arch == MOEK_ARCH_SM120; }

/* Does a plan for this device take rows of an architecture for which nobody asked?  (kernels.toml: devices) */
static int moek_arch_unasked_(int arch, int device)
{
    int i, listed = 0;
    for (i = 0; i < MOEK_DEVICES_; i++) {
        if (moek_devices_[i].arch != arch) continue;
        if (moek_devices_[i].device == device) return 1;
        listed = 1;
    }
    return !listed;
}

/* Does a row run on the host (arch: its own), or on a device of this compute capability times 10? */
static int moek_runs_on_(const moek_kernel *k, int arch)
{
    return moek_arch_is_host_(k->arch) ? k->arch == arch : arch >= k->arch;
}

/* What nvcc wants for code of a row on a device: the number of an architecture, and behind the number "a", where no
 * newer device has what the row needs, or "f", where newer ones of its family do.  plain: what code without the letter
 * lacks. */
typedef struct moek_target_ { int arch; const char *letter, *plain; } moek_target_;
static moek_target_ moek_target_of_(const moek_kernel *k, int device)
{
    moek_target_ target = { device, "", "" };
    if (k->arch == MOEK_ARCH_SM90) target.letter = "a";
    if (k->arch == MOEK_ARCH_SM120) {
        target.arch = MOEK_ARCH_SM120, target.letter = "f";
        target.plain = " (code for plain sm_120 has no mma.sync by block scale)";
    }
    return target;
}

/* Does a row multiply by mma.sync?  (sm90's do by wgmma.) */
static int moek_by_mma_(const moek_kernel *k) { return !moek_arch_is_host_(k->arch) && k->arch != MOEK_ARCH_SM90; }
/* Are bounds of all rows that plans take for this device measured, so that nobody asks how fast it is? */
static int moek_arch_measured_(int arch) { return arch == MOEK_ARCH_SM90; }

/* Can kernels begin on the plan's device while those before them run (moek/ops.h: early)?  And this one? */
static int moek_launches_early_(const moek_plan *plan) { return plan->arch >= MOEK_ARCH_SM90; }
static int moek_early_(const moek_plan *plan, const moek_kernel *k)
{
    return moek_launches_early_(plan) && k->traits & MOEK_TRAIT_EARLY;
}
#endif
