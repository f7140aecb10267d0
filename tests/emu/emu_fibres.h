/* emu_fibres.h -- a part of emu.h, which includes it once: fibres. */
/* Of the device: SMs, which have a block each at once, and kilobytes of shared memory a block, without which it is what
 * sm_80 or sm_90 has.  A program that is compiled with -DEMU_SMS=3 -DEMU_KB=99 says so for the kernels that are linked
 * to it, too. */
EMU_STATE int emu_sms, emu_kb;                           /* 0: not said */
#ifdef EMU_SMS
static const int emu_sms_said __attribute__((unused)) = emu_sms = EMU_SMS;
#endif
#ifdef EMU_KB
static const int emu_kb_said __attribute__((unused)) = emu_kb = EMU_KB;
#else
#define EMU_KB emu_kb
#endif
#define EMU_RESIDENT (emu_sms ? emu_sms : 4)
#define EMU_SHARED ((emu_kb ? emu_kb : 227) * 1024)
/* (Stacks a power of two apart would all lie in the same sets of the caches.) */
enum { EMU_THREADS = 1024, EMU_SMS_MOST = 48, EMU_STACK = 128 * 1024 + 17 * 64, EMU_BEHIND = 4096, EMU_POISON = 0x7f };
/* Those behind EMU_AT_BLOCK: emu_sm90.h. */
enum emu_state { EMU_DONE, EMU_RUNS, EMU_PAUSES, EMU_POLLS, EMU_AT_WARP, EMU_AT_BLOCK, EMU_AT_BAR, EMU_AT_MBARRIER,
                 EMU_AT_CLUSTER };
enum emu_word {
    EMU_SYNCWARP, EMU_SHFL, EMU_BALLOT, EMU_MATCH, EMU_REDUCE_ADD, EMU_REDUCE_MIN, EMU_REDUCE_MAX,
    EMU_REDUCE_UMIN, EMU_REDUCE_UMAX, EMU_REDUCE_AND, EMU_REDUCE_OR, EMU_REDUCE_XOR, EMU_MMA_BF16, EMU_MMA_FP16,
    EMU_MMA_S8, EMU_MMA_E4M3, EMU_MMA_SCALED, EMU_WGMMA
};
static const char *const emu_words[] = { "__syncwarp", "a shuffle", "a vote", "__match_any_sync", "__reduce_add_sync",
    "__reduce_min_sync", "__reduce_max_sync", "__reduce_min_sync", "__reduce_max_sync", "__reduce_and_sync",
    "__reduce_or_sync", "__reduce_xor_sync", "moek_mma_bf16_", "moek_mma_fp16_",
    "moek_mma_s8_", "moek_mma_e4m3_", "an mma by block scale", "moek_wgmma_wait_" };
static_assert(sizeof emu_words / sizeof *emu_words == EMU_WGMMA + 1, "each word has its text");

struct emu_copy { void *to; const void *from; int bytes, size, group; };
struct emu_wgmma;
struct emu_scaled;
struct emu_fibre {
    void *stack_pointer;
    char *stack;
    int state, line;
    /* what it brings to a meeting of lanes, and takes away */
    int word, from;                                   /* from: the lane it reads, or -1: its own */
    uint32_t mask;
    uint64_t value;
    void *d;                                          /* float or int32_t [4] */
    const uint32_t *a, *b;
    const emu_scaled *scaled;                         /* emu_sm120.h */
    /* cp.async */
    emu_copy *copies;
    int copies_count, copies_room, groups;
    /* what it waits for: a barrier by number, or an mbarrier and the phase that is to end; its wgmma on their way */
    int bar;
    const uint64_t *mbarrier;
    uint32_t parity;
    emu_wgmma *wgmmas;
    int wgmmas_count, wgmma_groups;
};
/* Of a warp: its lanes that have finished, and the meeting that lanes of `mask` are coming to.  Lanes that come to
 * another one meanwhile, and until all such have met, are `others`: each of them looks at the lanes by itself. */
struct emu_meeting { uint32_t done, mask, came; int word, line, others; };
/* A block that is there: its threads, its shared memory (static: while another one runs), its barriers; how many
 * threads have not finished, are at __syncthreads, let others go first. */
struct emu_resident {
    emu_fibre *fibres;
    char *shared, *statics;
    size_t statics_room;
    dim3 index;
    int any, arrived[16], registers[EMU_THREADS / 128];
    int alive, at_block, yielded;
    emu_meeting meetings[EMU_THREADS / 32];
};
EMU_STATE emu_resident emu_residents[EMU_SMS_MOST];
EMU_STATE int emu_here, emu_here_count;                  /* the block that runs; blocks that are there */
EMU_STATE emu_fibre *emu_fibres;                         /* of the block that runs */
EMU_STATE int emu_now, emu_count;                        /* the thread that runs; threads of the block */
EMU_STATE char *emu_shared;
EMU_STATE void *emu_scheduler;
EMU_STATE void (*emu_body)(void *);
EMU_STATE void *emu_context;
EMU_STATE const char *emu_kernel = "";
EMU_STATE int moek_emu_backwards;
EMU_STATE int emu_narrow;                              /* sums of e4m3 as narrow as hardware's (emu_mma_e4m3) */

EMU_FN void emu_tell(const emu_resident *block)
{
    static const char *const doing[] = { "finished", "running", "pausing", "looking at memory again and again",
        "waiting in its warp at ", "waiting at __syncthreads", "waiting at bar.sync ", "waiting at an mbarrier, ",
        "waiting for its cluster" };
    int i, j;
    for (i = 0; i < emu_count; i = j) {
        const emu_fibre *f = &block->fibres[i], *g;
        const int warp = f->state == EMU_AT_WARP, placed = warp || f->state == EMU_AT_BLOCK;
        for (j = i + 1; j < emu_count; j++) {
            g = &block->fibres[j];
            if (g->state != f->state || (placed && g->line != f->line)) break;
            if (warp && (g->word != f->word || g->mask != f->mask)) break;
            if (f->state == EMU_AT_BAR && f->bar != g->bar) break;
            if (f->state == EMU_AT_MBARRIER && (f->mbarrier != g->mbarrier || f->parity != g->parity)) break;
        }
        fprintf(stderr, "  threads %4d .. %4d: %s%s", i, j - 1, doing[f->state], warp ? emu_words[f->word] : "");
        if (warp) fprintf(stderr, ", mask %08x", f->mask);
        if (placed) fprintf(stderr, ", line %d", f->line);
        if (f->state == EMU_AT_BAR) fprintf(stderr, "%d", f->bar);
        if (f->state == EMU_AT_MBARRIER)
            fprintf(stderr, "at byte %ld, parity %u", (long)((const char *)f->mbarrier - block->shared), f->parity);
        fprintf(stderr, "\n");
    }
}
__attribute__((unused, noreturn)) static void emu_die(const char *what)
{
    int i;
    fflush(stdout);
    fprintf(stderr, "emu: %s, block (%u, %u, %u), ", emu_kernel, blockIdx.x, blockIdx.y, blockIdx.z);
    fprintf(stderr, "thread %d: %s\n", emu_now, what);
    for (i = 0; i < emu_here_count; i++) {
        const dim3 b = emu_residents[i].index;
        if (emu_here_count > 1) fprintf(stderr, " block (%u, %u, %u)\n", b.x, b.y, b.z);
        emu_tell(&emu_residents[i]);
    }
    abort();
}

/* emu_switch(&mine, theirs): keep my stack pointer, go on with theirs.  No system call. */
#if defined(__x86_64__) && defined(__ELF__) && !defined(EMU_UCONTEXT)
extern "C" void emu_switch(void **mine, void *theirs) __asm__("emu_switch_");
__asm__(".text\n.p2align 4\n.type emu_switch_, @function\nemu_switch_:\n"
        "    pushq %rbp\n    pushq %rbx\n    pushq %r12\n    pushq %r13\n    pushq %r14\n    pushq %r15\n"
        "    movq %rsp, (%rdi)\n    movq %rsi, %rsp\n"
        "    popq %r15\n    popq %r14\n    popq %r13\n    popq %r12\n    popq %rbx\n    popq %rbp\n    ret\n"
        ".size emu_switch_, .-emu_switch_\n");
EMU_FN void *emu_first_frame(char *top, void (*entry)())
{
    void **sp = (void **)top - 8;                     /* six registers, entry, and where it never returns to */
    memset(sp, 0, 8 * sizeof *sp);
    sp[6] = (void *)entry;
    return sp;
}
#elif defined(__aarch64__) && defined(__ELF__) && !defined(EMU_UCONTEXT)
extern "C" void emu_switch(void **mine, void *theirs) __asm__("emu_switch_");
__asm__(".text\n.p2align 4\n.type emu_switch_, %function\nemu_switch_:\n"
        "    sub sp, sp, #160\n"
        "    stp x19, x20, [sp]\n    stp x21, x22, [sp, #16]\n    stp x23, x24, [sp, #32]\n"
        "    stp x25, x26, [sp, #48]\n    stp x27, x28, [sp, #64]\n    stp x29, x30, [sp, #80]\n"
        "    stp d8, d9, [sp, #96]\n    stp d10, d11, [sp, #112]\n"
        "    stp d12, d13, [sp, #128]\n    stp d14, d15, [sp, #144]\n"
        "    mov x9, sp\n    str x9, [x0]\n    mov sp, x1\n"
        "    ldp x19, x20, [sp]\n    ldp x21, x22, [sp, #16]\n    ldp x23, x24, [sp, #32]\n"
        "    ldp x25, x26, [sp, #48]\n    ldp x27, x28, [sp, #64]\n    ldp x29, x30, [sp, #80]\n"
        "    ldp d8, d9, [sp, #96]\n    ldp d10, d11, [sp, #112]\n"
        "    ldp d12, d13, [sp, #128]\n    ldp d14, d15, [sp, #144]\n"
        "    add sp, sp, #160\n    ret\n"
        ".size emu_switch_, .-emu_switch_\n");
EMU_FN void *emu_first_frame(char *top, void (*entry)())
{
    void **sp = (void **)top - 20;
    memset(sp, 0, 20 * sizeof *sp);
    sp[11] = (void *)entry;                           /* x30 */
    return sp;
}
#else                                                 /* any other: slower, for swapcontext asks the kernel */
#define EMU_IS_UCONTEXT 1
#include <ucontext.h>
EMU_STATE ucontext_t emu_contexts[EMU_SMS_MOST * EMU_THREADS + 1];
EMU_STATE int emu_contexts_made;
EMU_FN void emu_switch(void **mine, void *theirs)
{
    if (!*mine) *mine = &emu_contexts[EMU_SMS_MOST * EMU_THREADS];
    swapcontext((ucontext_t *)*mine, (ucontext_t *)theirs);
}
EMU_FN void *emu_first_frame(char *top, void (*entry)())
{
    ucontext_t *c = &emu_contexts[emu_contexts_made++];
    getcontext(c);
    c->uc_stack.ss_sp = top - EMU_STACK;
    c->uc_stack.ss_size = EMU_STACK;
    makecontext(c, entry, 0);
    return c;
}
#endif

#ifdef EMU_IS_UCONTEXT
EMU_FN int emu_below(const void *, const char *) { return 0; }
#else
EMU_FN int emu_below(const void *stack_pointer, const char *stack) { return (const char *)stack_pointer < stack; }
#endif

EMU_FN void emu_yield() { emu_switch(&emu_fibres[emu_now].stack_pointer, emu_scheduler); }
EMU_FN void emu_entry()
{
    for (;;) {                                        /* a fibre serves one block after another */
        emu_body(emu_context);
        if (emu_fibres[emu_now].stack[0] != EMU_POISON) emu_die("its stack overflowed: EMU_STACK");
        emu_fibres[emu_now].state = EMU_DONE;
        emu_residents[emu_here].alive--;
        emu_residents[emu_here].meetings[emu_now / 32].done |= 1u << emu_now % 32;
        emu_yield();
    }
}
EMU_FN void emu_resume(int thread)
{
    emu_fibre *f = &emu_fibres[thread];
    const unsigned x = blockDim.x, y = blockDim.y;
    emu_now = thread;
    if ((unsigned)thread < x) threadIdx = dim3((unsigned)thread, 0, 0);          /* no division */
    else threadIdx = dim3((unsigned)thread % x, (unsigned)thread / x % y, (unsigned)thread / x / y);
    emu_switch(&emu_scheduler, f->stack_pointer);
    if (emu_below(f->stack_pointer, f->stack)) emu_die("its stack overflowed: EMU_STACK");
}

/* In emu_sm90.h.  What happens by itself, later: when nothing runs, the first of it happens; 0: there is nothing. */
EMU_FN int emu_happens_later(int nothing_runs);
EMU_FN int emu_mbar_ended(const uint64_t *bar, uint32_t parity);
EMU_STATE uint64_t emu_moves;                            /* grows with each thread that ends, each barrier that opens */

/* Run lanes of a warp until none of them can go on. */
EMU_FN int emu_run_warp(int warp)
{
    int ran = 0, again, i;
    do {
        again = 0;
        for (i = 0; i < 32; i++) {
            const int thread = 32 * warp + (moek_emu_backwards ? 31 - i : i);
            emu_fibre *const f = &emu_fibres[thread];
            if (thread >= emu_count) continue;
            if (f->state == EMU_AT_MBARRIER && emu_mbar_ended(f->mbarrier, f->parity)) f->state = EMU_RUNS;
            if (f->state != EMU_RUNS) continue;
            emu_resume(thread);
            emu_moves += f->state == EMU_DONE;
            ran = again = 1;
        }
    } while (again);
    return ran;
}
EMU_FN int emu_release_block()
{
    emu_resident *const b = &emu_residents[emu_here];
    int i, first = -1;
    if (!b->at_block || b->at_block < b->alive) return 0;
    for (i = 0; i < emu_count; i++) {
        emu_fibre *const f = &emu_fibres[i];
        if (f->state != EMU_AT_BLOCK) continue;
        if (first < 0) first = i;
        if (f->line != emu_fibres[first].line) emu_die("threads wait at different __syncthreads");
    }
    for (i = first; i < emu_count; i++) if (emu_fibres[i].state == EMU_AT_BLOCK) emu_fibres[i].state = EMU_RUNS;
    b->at_block = 0;
    emu_moves++;
    return 1;
}

/* The static shared variables of all kernels of this object. */
extern "C" char emu_static_begin[] __asm__("__start_moek_emu_" EMU_TEXT(EMU_UNIT)) __attribute__((weak));
extern "C" char emu_static_end[] __asm__("__stop_moek_emu_" EMU_TEXT(EMU_UNIT)) __attribute__((weak));
EMU_FN size_t emu_static_bytes() { return emu_static_begin ? (size_t)(emu_static_end - emu_static_begin) : 0; }

/* From here on this block runs. */
EMU_FN void emu_enter(int block)
{
    emu_resident *const old = &emu_residents[emu_here], *const b = &emu_residents[block];
    if (block != emu_here && emu_static_begin) {
        memcpy(old->statics, emu_static_begin, emu_static_bytes());
        memcpy(emu_static_begin, b->statics, emu_static_bytes());
    }
    emu_here = block, emu_fibres = b->fibres, emu_shared = b->shared, blockIdx = b->index;
}
/* Blocks that are there, to their end. */
EMU_FN void emu_run_blocks(size_t shared)
{
    const int warps = (emu_count + 31) / 32, n = emu_here_count;
    uint64_t moves = 0, rounds = 0;
    for (;;) {
        int alive = 0, ran = 0, pause = 0, poll = 0, i, k;
        for (k = 0; k < n; k++) {
            int again;
            emu_enter(moek_emu_backwards ? n - 1 - k : k);
            for (i = 0; i < emu_count && emu_residents[emu_here].yielded; i++) {
                emu_fibre *const f = &emu_fibres[i];
                pause |= f->state == EMU_PAUSES;
                poll |= f->state == EMU_POLLS;
                if (f->state == EMU_PAUSES || f->state == EMU_POLLS) f->state = EMU_RUNS;
            }
            emu_residents[emu_here].yielded = 0;
            do {
                for (again = 0, i = 0; i < warps; i++) again |= emu_run_warp(moek_emu_backwards ? warps - 1 - i : i);
                if (!again) again = emu_release_block();
                ran |= again;
            } while (again);
            alive += emu_residents[emu_here].alive;
        }
        if (emu_happens_later(!ran)) emu_moves++;
        else if (!alive) break;
        else if (!ran) emu_die("threads wait for others that never come");
        rounds = moves != emu_moves ? 0 : rounds + (pause || poll);
        moves = emu_moves;
        if (rounds > (pause ? 1000000 : 20000)) emu_die("threads look at memory that nobody will change");
    }
    for (int k = 0; k < n; k++) {
        emu_enter(k);
        for (int i = 0; i < EMU_BEHIND; i++)
            if (emu_shared[shared + i] != EMU_POISON) emu_die("it wrote behind its dynamic shared memory");
    }
}

EMU_FN void emu_set_up(emu_resident *b)
{
    char *stacks = (char *)malloc((size_t)EMU_THREADS * EMU_STACK + 64);
    char *shared = (char *)malloc(EMU_SHARED + EMU_BEHIND + 1024);
    int i;
    b->fibres = (emu_fibre *)calloc(EMU_THREADS, sizeof *b->fibres);
    if (!stacks || !shared || !b->fibres) abort();
    stacks += (64 - ((uintptr_t)stacks & 63)) & 63;
    b->shared = shared + ((1024 - ((uintptr_t)shared & 1023)) & 1023);
    for (i = 0; i < EMU_THREADS; i++) {
        emu_fibre *f = &b->fibres[i];
        f->stack = stacks + (size_t)i * EMU_STACK;
        f->stack[0] = EMU_POISON;
        f->stack_pointer = emu_first_frame(f->stack + EMU_STACK, emu_entry);
    }
}
EMU_FN void emu_start_block(int number, dim3 index, size_t shared)
{
    emu_resident *const b = &emu_residents[number];
    int i;
    if (!b->fibres) emu_set_up(b);
    if (b->statics_room < emu_static_bytes()) {
        b->statics_room = emu_static_bytes();
        b->statics = (char *)realloc(b->statics, b->statics_room);
        if (!b->statics) abort();
    }
    b->index = index, b->any = 0;
    b->alive = emu_count, b->at_block = b->yielded = 0;
    memset(b->meetings, 0, sizeof b->meetings);
    memset(b->arrived, 0, sizeof b->arrived);
    memset(b->registers, 0, sizeof b->registers);
    emu_enter(number);
    memset(b->shared, EMU_POISON, shared + EMU_BEHIND);
    if (emu_static_begin) memset(emu_static_begin, EMU_POISON, emu_static_bytes());
    for (i = 0; i < emu_count; i++) {
        emu_fibre *const f = &b->fibres[i];
        f->state = EMU_RUNS;
        f->copies_count = f->groups = f->wgmmas_count = f->wgmma_groups = 0;
    }
}
template <class Body> static void emu_call(void *body) { (*(Body *)body)(); }
/* cluster: blocks side by side that reach each other's shared memory.  ordered: blocks wait for those before them. */
template <class Body> static void emu_launch(const char *kernel, dim3 grid, dim3 threads, size_t shared, Body body,
                                             int cluster = 1, int ordered = 0)
{
    const uint64_t blocks = (uint64_t)grid.x * grid.y * grid.z;
    const int resident = blocks <= (uint64_t)EMU_RESIDENT ? (int)blocks : cluster;
    uint64_t i;
    int k;
    emu_kernel = kernel, emu_count = 0, emu_now = 0, emu_here = 0, emu_here_count = 0;
    if (threads.x * threads.y * threads.z - 1 >= EMU_THREADS) emu_die("launched with 0 or more than 1024 threads");
    if (!blocks || grid.y > 65535 || grid.z > 65535) emu_die("launched with a grid of 0 blocks, or y or z above 65535");
    if (EMU_RESIDENT > EMU_SMS_MOST) emu_die("emulated with too many SMs");
    if (shared > (size_t)EMU_SHARED) emu_die("launched with more shared memory than a block may have");
    if (blocks % (unsigned)cluster || cluster > EMU_RESIDENT) emu_die("launched with a part of a cluster");
    emu_body = emu_call<Body>, emu_context = &body;
    emu_open();
    blockDim = threads, gridDim = grid;
    emu_count = (int)(threads.x * threads.y * threads.z);
    for (i = 0; i < blocks; i += (unsigned)resident) {
        const uint64_t first = moek_emu_backwards && !ordered ? blocks - resident - i : i;
        for (k = 0; k < resident; k++) {
            const uint64_t b = first + (unsigned)k;
            emu_start_block(k, dim3((unsigned)(b % grid.x), (unsigned)(b / grid.x % grid.y),
                                    (unsigned)(b / grid.x / grid.y)), shared);
        }
        emu_here_count = resident;
        emu_run_blocks(shared);
    }
    emu_close();
    emu_context = NULL;                                /* body is gone now */
}

EMU_STATE const char *moek_emu_hold;
EMU_STATE std::vector<std::function<void()> > emu_held;
EMU_STATE std::mutex emu_one_launch;                     /* tests launch from several threads; emu_* is shared */
/* Takes a launch to its stream, and says whether all is well there; NULL: it runs at once.  (Streams: emu_cuda.h.) */
EMU_STATE int (*emu_on_stream)(void *stream, std::function<void()> launch);
template <class Args> static int emu_submit(const char *name, dim3 grid, dim3 threads, size_t shared, int cluster,
                                            int ordered, void *stream, void (*kernel)(Args), const Args &args)
{
    const auto launch = [=] { emu_launch(name, grid, threads, shared, [&] { kernel(args); }, cluster, ordered); };
    if (emu_on_stream) return emu_on_stream(stream, launch);
    std::lock_guard<std::mutex> hold(emu_one_launch);
    if (!moek_emu_hold || !strstr(name, moek_emu_hold)) launch();
    else emu_held.push_back(launch);
    return 1;
}
EMU_FN void moek_emu_let_go()
{
    size_t i;
    for (i = 0; i < emu_held.size(); i++) emu_held[i]();
    emu_held.clear();
    moek_emu_hold = NULL;
}
#define EMU_SUBMIT(kernel, grid, threads, shared, cluster, ordered, stream, args) \
    (emu_submit(#kernel, dim3(grid), dim3(threads), (size_t)(shared), cluster, ordered, (void *)(stream), kernel, \
                args) ? MOEK_OK : MOEK_E_CUDA)
#define MOEK_LAUNCH_(kernel, grid, threads, shared, stream, args) \
    EMU_SUBMIT(kernel, grid, threads, shared, 1, 0, stream, args)
#define MOEK_LAUNCH_PAIRS_(kernel, grid, threads, shared, stream, early, args) \
    ((void)(early), EMU_SUBMIT(kernel, grid, threads, shared, 2, 0, stream, args))
#define MOEK_CHAIN_ORDERED_(kernel, grid, threads, shared, stream, early, args) \
    ((void)(early), EMU_SUBMIT(kernel, grid, threads, shared, 1, 1, stream, args))
#define MOEK_READY_(kernel, shared) ((void)(kernel), (int)(shared) <= (int)EMU_SHARED ? MOEK_OK : MOEK_E_ARCH)
#define MOEK_SHARED_(type, name) type *const name = (type *)emu_shared
#define MOEK_SHARED_1024_(name) unsigned char *const name = (unsigned char *)emu_shared
