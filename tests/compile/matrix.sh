#!/bin/sh
# matrix.sh c|cuda [quick [OPTION]] -- compiles and links moek.h in every way that it promises: a line a case, and at
# the end N passed, N failed, N skipped.  c: C and C++ compilers (quick: nothing optimized, examples only read, and of
# the rows and of the headers alone one in ten); cuda: nvcc, with the kernels of one format (quick: all but a row alone
# with OPTION; some cases, and the examples, which examples.sh compiles, left out).  CC, CXX, NVCC as in ./moek.
cd "$(dirname "$0")/../.." || exit 1
root=$PWD part=${1:-c} quick=${2:-} option=${3:-}
quick_arch=${quick:+0}
o1=-O1 o3=-O3 step=1 cuda_step=1
[ "$quick" ] && o1=-O0 o3=-O0 step=10 cuda_step=25
work=$root/build/compile_$part
rm -rf "$work"
mkdir -p "$work"
cd "$work" || exit 1
passed=0 failed=0 skipped=0

good() { passed=$((passed + 1)); echo "ok       $1"; }
bad() { failed=$((failed + 1)); echo "FAILED   $1"; sed -n 1,20p log; }
number_of() { sed -n "s/^#define $1  *//p" "$root"/generated/moek_enums.h; }      # of a format, by its whole name
skip() { skipped=$((skipped + 1)); echo "skipped  $1"; }
must() { name=$1; shift; if "$@" > log 2>&1 && ! [ -s log ]; then good "$name"; else bad "$name"; fi; }       # silently
must_fail() {                                          # NAME WORDS COMMAND ...: fails, and says WORDS
    name=$1 words=$2; shift 2
    if "$@" > log 2>&1; then echo "this should have failed: $*" >> log; bad "$name"
    elif grep -q -- "$words" log; then good "$name"
    else echo "it does not say: $words" >> log; bad "$name"; fi
}
none() { if [ -s log ]; then bad "$1"; else good "$1"; fi; }                                             # log is empty
have() { command -v "${1%% *}" > /dev/null 2>&1; }

cat > implementation.c <<'END'
#define MOEK_IMPLEMENTATION
#include "moek.h"
END
cat > caller.c <<'END'
#include "moek.h"
#ifdef __cplusplus
extern "C"
#endif
int caller_rows(void);
int caller_rows(void)
{
    moek_config config = MOEK_QWEN3_30B_A3B;
    moek_plan plan;
    int n = 0;
    config.max_tokens = 16;
    if (!moek_kernels(&n) || moek_plan_init(&plan, &config) != MOEK_OK || moek_workspace_size(&plan) == 0) return 0;
    return n;
}
END
cat > main.c <<'END'
#include <stdio.h>
#include "moek.h"
#ifdef __cplusplus
extern "C"
#endif
int caller_rows(void);
int main(void)
{
    int i, n;
    const moek_kernel *k = moek_kernels(&n);
    for (i = 0; i < n; i++) printf("%s %d %d %d\n", k[i].name, k[i].quant, k[i].hidden, k[i].arch);
    return !n || caller_rows() != n;
}
END
cat > ranks.c <<'END'
#define MOEK_IMPLEMENTATION
#include "moek_ep.h"
END
cat > import.c <<'END'
#define MOEK_IMPLEMENTATION
#include "moek_import.h"
END
printf '#include "moek_ep.h"\n#include "moek_import.h"\n' > everything.c
cat > import_caller.c <<'END'
#include <string.h>
#include "moek_import.h"
#ifdef __cplusplus
extern "C"
#endif
int caller_import(const moek_config *config, const moek_weights *weights, void *w, void *scale);
int caller_import(const moek_config *config, const moek_weights *weights, void *w, void *scale)
{
    moek_import_args a;
    memset(&a, 0, sizeof a);                           /* (fields are appended) */
    a.source = MOEK_FROM_MXFP4;
    a.their_w = w;  a.their_scale = scale;
    return moek_import_place(config, weights, MOEK_MATRIX_DOWN, 0, &a) == MOEK_OK &&
           moek_import(0, &a, NULL) == MOEK_OK;
}
END
cat > ranks_caller.c <<'END'
#include "moek_ep.h"
#ifdef __cplusplus
extern "C"
#endif
size_t caller_window(void);
size_t caller_window(void)
{
    moek_config config = MOEK_QWEN3_30B_A3B;
    moek_ep_config group = { 0, 4, NULL, MOEK_EP_AUTO, MOEK_EP_REDUCED, MOEK_EP_LINEAR, NULL, 0, 0, 0, 0, 0, NULL,
                             NULL, NULL, 0, 0, 0 };
    config.max_tokens = 16;
    group.layer = &config;
    return moek_ep_window_size(&group);
}
END
cat > nccl_caller.c <<'END'
#include "moek_ep_nccl.h"
int caller_nccl(ncclComm_t comm);
int caller_nccl(ncclComm_t comm)
{
    moek_config config = MOEK_QWEN3_30B_A3B;
    moek_ep_config group;
    moek_ep ep;
    moek_ep_nccl wire;
    memset(&group, 0, sizeof group);
    group.layer = &config;
    return moek_ep_nccl_open(&wire, &ep, &group, comm, MOEK_EP_NCCL_AUTO) == MOEK_OK && !moek_ep_nccl_close(&wire);
}
END
# A program that has another moek.h than its implementation: of another version, or with another plan.
mkdir -p other/include other/generated
cp "$root"/include/*.h other/include && cp -R "$root"/include/moek other/include &&
    cp "$root"/generated/*.h other/generated
cat > other.c <<'END'
#include <stdio.h>
#include <string.h>
#include "moek.h"
int main(void)
{
    moek_config config = MOEK_QWEN3_30B_A3B;
    static struct { moek_plan plan; char canary[4096]; } p;
    moek_status status;
    memset(&p, 'x', sizeof p);
    config.max_tokens = 16;
    status = moek_plan_init(&p.plan, &config);
    printf("%s %s\n", moek_status_name(status), memchr(p.plan.why, 0, sizeof p.plan.why) ? p.plan.why : "no sentence");
    return moek_plan_init(NULL, &config) == MOEK_OK;
}
END
other() {                                              # NAME SED-SCRIPT WORDS: must say WORDS in plan.why
    sed "$2" "$root/include/moek/api.h" > other/include/moek/api.h
    cmp -s "$root/include/moek/api.h" other/include/moek/api.h && echo "sed changed nothing" > log && bad "$1" && return
    ${CC:-cc} -std=c99 -Wall -Werror -Iother/include other.c implementation.o -o other_program -lm > log 2>&1 &&
        ./other_program > log 2>&1
    if grep -q "^MOEK_E_VERSION .*$3" log; then good "$1"; else bad "$1"; fi
}
# Headers in any order, with or without the define, more than once: "D" stands for it.
orders='moek.h D moek.h
D moek.h moek.h
D moek/kernel/numbers.h moek.h
D moek/kernel/cpu.h moek.h
moek/kernel/numbers.h moek/kernel/cpu.h D moek.h D moek.h
moek_ep.h D moek_ep.h
moek.h D moek_ep.h
D moek.h moek_ep.h moek.h moek_ep.h
moek_ep.h D moek.h moek_ep.h
moek_import.h D moek_import.h
moek_import.h D moek_ep.h moek_import.h moek_import.h'
# Headers of the library.  (A body is a text in the middle of a kernel.)
headers() { find "$root/include" "$root/generated" -name '*.h' ! -name '*_body.h' | sort; }
# As C says it.
cuda_only='GPU kernels are C[+][+]17|compile the implementation with nvcc|(nccl|cuda_runtime)[.]h: No such file'
alone() {                                              # HEADER: alone.c, .cc and .cu take it, twice for its guard
    printf '#include "%s"\n#include "%s"\nextern int moek_alone_;\n' "$1" "$1" > alone.c
    cp alone.c alone.cc && cp alone.c alone.cu
}
order() {                                              # FILE HEADER ...
    file=$1; shift
    for h in "$@"; do
        if [ "$h" = D ]; then printf '#ifndef MOEK_IMPLEMENTATION\n#define MOEK_IMPLEMENTATION\n#endif\n'
        else printf '#include "%s"\n' "$h"; fi
    done > "$file"
}
for f in implementation caller main ranks ranks_caller import import_caller everything; do
    cp $f.c $f.cc
    cp $f.c $f.cu
done

warnings="-Wall -Wextra -Werror -I$root/include"

# Every name that moek.h brings, beyond names of the system headers it includes, starts with moek_ or MOEK_.
macros() {                                             # NAME HEADER COMMAND-THAT-PRINTS-MACROS
    name=$1 header=$2; shift 2
    grep -h '^ *# *include <' "$root"/include/*.h "$root"/include/moek/*.h "$root"/include/moek/*/*.h |
        grep -v 'cuda\|nccl' | sort -u |
        while read -r line; do                         # (of another family of processors: not there)
            echo "$line" | ${CC:-cc} -E -x c - > /dev/null 2>&1 && echo "$line"
        done > before.h
    { cat before.h; echo "#include \"$header\""; } > after.h
    "$@" before.h 2>&1 | sort > before.txt
    "$@" after.h 2>&1 | sort > after.txt
    comm -13 before.txt after.txt |
        awk '$2 !~ /^(MOEK|moek)_/ { print } $2 == "MOEK_VERSION" { n++ }
             END { if (!n) print "moek.h was not seen" }' > log
    none "$name"
}
symbols() {                                            # NAME OBJECT
    nm -g --defined-only "$2" 2>&1 |                   # the others: weak, of cuda_runtime
        awk '$3 !~ /^moek_/ && $3 !~ /^(_ZN4dim3C[12]Ejjj|DW\.ref\..*)$/' > log
    none "$1: every global starts with moek_"
}

c_part() {
    for cc in "${CC:-cc}" gcc clang; do
        have "$cc" || { skip "no $cc"; continue; }
        [ "$cc" != "${CC:-cc}" ] &&
            [ "$(readlink -f "$(command -v "$cc")")" = "$(readlink -f "$(command -v "${CC:-cc}")")" ] && continue
        for std in c99 c11 c17; do
            must "$cc -std=$std: caller" $cc -std=$std -pedantic $warnings -c caller.c -o caller.o
        done
        must "$cc -std=c99: implementation" \
            $cc -std=c99 -pedantic $warnings $o1 -c implementation.c -o implementation.o
        must "$cc -std=c99: implementation of moek_ep.h" $cc -std=c99 -pedantic $warnings $o1 -c ranks.c -o ranks.o
        must "$cc -std=c99: caller of moek_ep.h" $cc -std=c99 -pedantic $warnings -c ranks_caller.c -o ranks_caller.o
        must "$cc -std=c99: implementation of moek_import.h" \
            $cc -std=c99 -pedantic $warnings $o1 -DMOEK_QUANT=MOEK_BF16 -c import.c -o import.o
        must "$cc -std=c99: caller of moek_import.h" \
            $cc -std=c99 -pedantic $warnings -c import_caller.c -o import_caller.o
        must "$cc -Wconversion, headers by -isystem" $cc -std=c99 -Wall -Wextra -Werror -Wconversion -Wsign-conversion \
            -isystem "$root/include" -DMOEK_IMPLEMENTATION -fsyntax-only everything.c
        must "$cc -std=c99 -fopenmp $o3: implementation" \
            $cc -std=c99 -pedantic $warnings $o3 -fopenmp -c implementation.c -o openmp.o
    done
    for cxx in "${CXX:-g++}" clang++; do
        have "$cxx" || { skip "no $cxx"; continue; }
        for std in 11 14 17 20; do
            must "$cxx -std=c++$std: caller" $cxx -std=c++$std -pedantic $warnings -c caller.cc -o caller_cc.o
        done
        must "$cxx -std=c++11: implementation" \
            $cxx -std=c++11 -pedantic $warnings $o1 -c implementation.cc -o implementation_cc.o
        must "$cxx -std=c++11: implementation of moek_ep.h" \
            $cxx -std=c++11 -pedantic $warnings $o1 -DMOEK_QUANT=MOEK_BF16 -c ranks.cc -o ranks_cc.o
        must "$cxx -std=c++11: caller of moek_ep.h" \
            $cxx -std=c++11 -pedantic $warnings -c ranks_caller.cc -o ranks_caller_cc.o
        must "$cxx -std=c++11: implementation of moek_import.h" \
            $cxx -std=c++11 -pedantic $warnings $o1 -DMOEK_QUANT=MOEK_BF16 -c import.cc -o import_cc.o
        must "$cxx -std=c++11: caller of moek_import.h" \
            $cxx -std=c++11 -pedantic $warnings -c import_caller.cc -o import_caller_cc.o
        # C++20 deprecates arithmetic of an enum with a float, and of two enums.
        must "$cxx -std=c++20: implementations" \
            $cxx -std=c++20 -pedantic $warnings -DMOEK_IMPLEMENTATION -fsyntax-only everything.cc
        # With -Wconversion, headers are for -isystem (docs/embedding.md).
        must "$cxx -Wconversion, headers by -isystem" $cxx -std=c++20 -Wall -Wextra -Werror -Wconversion \
            -Wsign-conversion -isystem "$root/include" -DMOEK_IMPLEMENTATION -fsyntax-only everything.cc
    done
    [ "$quick" ] || emulated_part
    for f in caller ranks_caller import_caller; do
        have clang && must "clang -Weverything: $f" \
            clang -std=c99 -Weverything -Wno-padded -Wno-declaration-after-statement $warnings -c $f.c -o $f.o
    done

    cc=${CC:-cc} n=0
    for f in "$root"/generated/*_cpu.h; do
        case $f in */moek_*) continue ;; esac          # included by kernel/cpu.h
        must "alone: $(basename "$f")" $cc -std=c99 -pedantic $warnings -DMOEK_SPLIT -x c -c "$f" -o alone.o
    done
    for row in $(sed -n 's/^#if MOEK_INSTANCE_(.*, \(moek_.*_on_cpu.*\))$/\1/p' "$root"/generated/*_cpu.h); do
        n=$((n + 1))
        [ $((n % step)) = 0 ] || continue
        f=$(grep -l "^#if MOEK_INSTANCE_(.*, $row)\$" "$root"/generated/*_cpu.h)
        must "alone: $row" $cc -std=c99 -pedantic $warnings -DMOEK_SPLIT -DMOEK_ONE_KERNEL "-DMOEK_ONLY_$row=1" \
            -x c -c "$f" -o alone.o
        nm -g --defined-only alone.o | grep -v " $row\$" > log
        none "alone: $row: nothing else"
    done
    # (GPU code and NCCL's: cuda_part.)
    n=0
    for f in $(headers); do
        n=$((n + 1))
        [ $((n % step)) = 0 ] || continue
        alone "$f"
        strict="-pedantic $warnings -Wno-unused-function -fsyntax-only"
        $cc -std=c99 $strict alone.c > log 2>&1
        grep -qE "$cuda_only" log && continue
        none "alone: ${f#"$root"/}"
        have "${CXX:-g++}" && must "alone: ${f#"$root"/} in C++" ${CXX:-g++} -std=c++11 $strict alone.cc
    done

    must "compile: caller, main" $cc $warnings -c caller.c main.c
    must "link: two files without the implementation, one with it" $cc caller.o main.o implementation.o -o program -lm
    must "run it" sh -c './program > rows.txt'
    must_fail "link: none with it must fail" "undefined" $cc caller.o main.o -o never -lm
    must "link: moek_ep.h in the place of moek.h" $cc caller.o main.o ranks_caller.o ranks.o -o program_ranks -lm
    cp implementation.o twice.o
    must_fail "link: two with it must fail" "moek_plan_init_" $cc caller.o main.o implementation.o twice.o -o never -lm
    other "another moek.h: of version 1.23.45" \
        's/\(define MOEK_VERSION\).*/\1 12345/' 'version 12345, the implementation'
    other "another moek.h: a longer plan" \
        's/^    char why\[MOEK_WHY\];/    char more[1024]; char why[MOEK_WHY];/' 'structs of other'
    other "another moek.h: a shorter plan" 's/^    char note\[MOEK_NOTE\].*/    int none;/' 'structs of other'
    other "another moek.h: a longer config" 's/^} moek_config;/int more; int more_; } moek_config;/' 'structs of other'
    printf '%s\n' "$orders" > orders
    while read -r order <&3; do
        order order.c $order
        must "headers: $order" $cc -std=c99 -pedantic $warnings -DMOEK_QUANT=MOEK_BF16 -c order.c -o order.o
        more=
        case $order in *ep.h*) more=ranks_caller.o ;; esac
        case $order in *import.h*) more="$more import_caller.o" ;; esac
        must "headers: $order: link" $cc main.o caller.o $more order.o -o order -lm
    done 3< orders

    # Bent arithmetic: not in the implementation, nor in a row alone; in callers as they like.
    row=$root/generated/up_cpu.h
    for flag in -ffast-math -Ofast -ffinite-math-only; do
        must_fail "$flag: the implementation says no" "without -ffast-math" \
            $cc -std=c99 $flag -I"$root/include" -c implementation.c -o never.o
        must_fail "$flag: a row alone says no" "without -ffast-math" $cc -std=c99 $flag -DMOEK_SPLIT -x c -c "$row" \
            -o never.o
        must "$flag: callers may" $cc -std=c99 -pedantic $warnings $flag -c caller.c -o fast.o
        must "$flag: callers of moek_ep.h may" $cc -std=c99 -pedantic $warnings $flag -c ranks_caller.c -o fast_ranks.o
    done
    must_fail "MSVC's /fp:fast: the implementation says no" "without -ffast-math" \
        $cc -std=c99 -D_M_FP_FAST -I"$root/include" -c implementation.c -o never.o

    # Machines that kernels are not written for, as their compilers say so: not there either; callers may.
    order="-Wno-builtin-macro-redefined -U__BYTE_ORDER__ -D__BYTE_ORDER__=4321"
    own="-Wno-builtin-macro-redefined -U__FLT_EVAL_METHOD__ -D__FLT_EVAL_METHOD__=16"  # gcc -std=gnu17 with _Float16
    wider="-Wno-builtin-macro-redefined -U__FLT_EVAL_METHOD__ -D__FLT_EVAL_METHOD__=2"
    for f in "implementation.c" "-DMOEK_SPLIT -x c $row"; do
        must_fail "big-endian: ${f##*/} says no" "this machine is big-endian" \
            $cc -std=c99 $order -I"$root/include" -c $f -o never.o
        must_fail "float in a wider type: ${f##*/} says no" "add -msse2 -mfpmath=sse" \
            $cc -std=c99 $wider -I"$root/include" -c $f -o never.o
        must "float in its own type, _Float16 there: ${f##*/}" \
            $cc -std=c99 $own -I"$root/include" -fsyntax-only -DMOEK_QUANT=MOEK_BF16 $f
    done
    must "big-endian, float in a wider type: callers may" $cc -std=c99 $order $wider -I"$root/include" \
        -fsyntax-only caller.c ranks_caller.c import_caller.c
    if $cc -mfpmath=387 -dM -E -x c /dev/null 2> /dev/null | grep -q 'FLT_EVAL_METHOD__ 2'; then
        must_fail "-mfpmath=387: the implementation says no" "add -msse2 -mfpmath=sse" \
            $cc -std=c99 -mfpmath=387 -I"$root/include" -c implementation.c -o never.o
    else
        skip "no -mfpmath=387"
    fi

    if have "${CXX:-g++}"; then
        must "link: C++ caller, C implementation" \
            ${CXX:-g++} $warnings caller.cc main.cc -x none implementation.o -o program_cc -lm
        must "run it" sh -c './program_cc > rows.txt'
    else
        skip "no ${CXX:-g++}: C++ caller, C implementation"
    fi

    for f in moek.h moek_ep.h moek_import.h; do
        macros "macro leak: $f" $f $cc -std=c99 -dM -E -x c -I"$root/include"
        macros "macro leak: $f, implementation" $f $cc -std=c99 -dM -E -x c -I"$root/include" -DMOEK_IMPLEMENTATION
    done
    symbols "symbol leak: implementation.c" implementation.o
    symbols "symbol leak: moek_ep.h" ranks.o
    symbols "symbol leak: moek_import.h" import.o
    forbidden='malloc|calloc|realloc|free|printf|fprintf|puts|putchar|fopen|getenv|exit|abort|__assert_fail|time|rand'
    nm -u openmp.o ranks.o import.o 2> /dev/null | awk '{ print $2 }' |
        grep -E "^(_?_?($forbidden|pthread_create))(_chk)?\$" > log
    none "the implementation asks for no memory, output, environment or exit"

    wanted="-DMOEK_QUANT=MOEK_FP8B128 -DMOEK_HIDDEN=2048"
    must "selection: $wanted" $cc -std=c99 -pedantic $warnings $wanted -c implementation.c -o selected.o
    must "selection: link" $cc main.o selected.o caller.o -o selected -lm
    ./selected > rows.txt 2>&1
    awk -v q="$(number_of MOEK_FP8B128)" '
        { if (($2 != 0 && $2 != q) || ($3 != 0 && $3 != 2048) || $4 >= 80) print "not asked for: " $0; n[$2 != 0]++ }
        END { if (!n[0] || !n[1]) print "rows are missing" }' rows.txt > log
    none "selection: only such rows are listed"
    nm selected.o | grep -E 'moek_[a-z]*_(bf16|fp16|fp8t|fp8c|fp8b128_a|mx|nv|int)[a-z0-9_]*_on_' > log
    none "selection: only such rows are compiled"
    for wrong in -DMOEK_QUANT=99 -DMOEK_ARCH=80 '-DMOEK_WANT_HIDDEN(h)=((h)==77)' '-DMOEK_WANT_BLOCK(b)=((b)==77)'; do
        must_fail "selection: $wrong leaves nothing and says so" "leave no kernel" \
            $cc -std=c99 "$wrong" -I"$root/include" -c implementation.c -o never.o
    done
    for wrong in MOEK_ARCH=sm80 MOEK_HIDDEN=h2048 MOEK_BLOCK=b32 MOEK_QUANT=fp8b128; do                # 0 in #if
        must_fail "selection: $wrong is no number" "moek_${wrong%=*}_is_a_" \
            $cc -std=c99 "-D$wrong" "-DMOEK_WANT_QUANT(q)=((q)==MOEK_BF16)" -I"$root/include" -c implementation.c \
            -o never.o
    done

    for f in "$root"/examples/*.c; do
        [ -f "$f" ] || continue
        example "$f" "$cc -std=c99" c "$cc -std=c99 -pedantic"
        if have "${CXX:-g++}"; then example "$f" "${CXX:-g++} -std=c++11" c++ "${CXX:-g++} -std=c++11"; fi
    done
    for f in "$root"/examples/*.cpp "$root"/examples/*.cc; do
        [ -f "$f" ] || continue
        if have "${CXX:-g++}"; then example "$f" "${CXX:-g++} -std=c++11" c++ "${CXX:-g++} -std=c++11"
        else skip "no C++: $(basename "$f")"; fi
    done
}

# The code of CUDA rows, of the exchange and of imports for GPUs, in C++20: by the emulator's words, only read.
emulated_part() {
    cxx=${CXX:-g++}
    have "$cxx" || { skip "no $cxx: CUDA rows in C++20"; return; }
    emu="$cxx -std=c++20 $warnings -Wno-unknown-pragmas -Wno-unused-parameter -Wno-int-in-bool-context -Wno-psabi \
        -DMOEK_EMU -DMOEK_SPLIT -I$root/tests/emu -I$root -fsyntax-only"
    printf '#define MOEK_IMPLEMENTATION\n#include "emu.h"\n#include "everything.c"\n' > emulated.cc
    must "$cxx -std=c++20: implementations, emulated" $emu -DMOEK_ARCH=80 -I. emulated.cc
    sed -e ':more' -e '/\$$/{N;s/ *\$\n */ /;b more' -e '}' "$root/generated/kernels.ninja" |
        sed -n 's,^build build/emu/\([a-z0-9_]*\).o: split_emu ,\1 ,p' > units
    [ -s units ] || { echo "generated/kernels.ninja has no split_emu" > log; bad "CUDA rows in C++20"; }
    while read -r unit files <&3; do
        for f in emu.h $files; do [ "$f" = "|" ] && break; echo "#include \"$f\""; done > emulated.cc
        must "$cxx -std=c++20: rows of $unit" $emu -DEMU_UNIT=$unit emulated.cc
    done 3< units
}

# An example that needs CUDA's headers is compiled where they are; "c++20" or so in its first lines raises the standard.
example() {                                            # FILE NAME LANGUAGE COMMAND
    case $4 in *c++*)
        standard=$(sed -n '1,15s/.*\(c++[12][0-9]\).*/\1/p' "$1" | sed -n 1p | grep . || echo c++17)
        set -- "$1" "$2" "$3" "$(echo "$4" | sed "s/c++11/$standard/")" ;;
    esac
    cuda=
    if grep -q '#include <cuda' "$1"; then
        for d in "${CUDA_HOME:-/usr/local/cuda}/include" \
                 "$(dirname "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)")/../include"; do
            [ -f "$d/cuda_runtime_api.h" ] && cuda="-isystem $d"
        done
        [ "$cuda" ] || { skip "no CUDA headers: example $(basename "$1")"; return; }
    fi
    must "example $(basename "$1") as $2" $4 $warnings ${quick:+-fsyntax-only} $cuda -x $3 -c "$1" -o example.o
}

cuda_part() {
    nvcc=${NVCC-nvcc}
    have "$nvcc" || { skip "no nvcc"; return; }
    arch=$(sed -n 's/^arch = //p' "$root"/build/config.ninja 2> /dev/null)
    arch=${arch:-80} flags=
    nv="$nvcc -std=c++17 -gencode=arch=compute_$arch,code=sm_$arch -I$root/include -Xcompiler -Wall,-Wextra"
    all=$nv nv="$nv $option"
    must "nvcc: implementation" $nv -DMOEK_QUANT=MOEK_BF16 -c implementation.cu -o implementation.o
    symbols "symbol leak: implementation.cu" implementation.o
    # All kernels in one file are read: the build makes machine code of each, and all of it again takes a quarter hour.
    if [ -z "$quick" ]; then
        read=-fdevice-syntax-only
        $all $read -c caller.cu -o read.o > log 2>&1 || read=
        must "nvcc: implementation of all formats" $all $read -c implementation.cu -o whole.o
        symbols "symbol leak: implementation of all formats" whole.o
    fi
    must "nvcc: implementation of moek_ep.h" $nv -DMOEK_ARCH=0 -DMOEK_QUANT=MOEK_BF16 -c ranks.cu -o ranks.o
    must "nvcc: caller of moek_ep.h" $nv -c ranks_caller.cu -o ranks_caller.o
    must "nvcc: implementation of moek_import.h" $nv -DMOEK_ARCH=0 -DMOEK_QUANT=MOEK_BF16 -c import.cu -o import.o
    symbols "symbol leak: moek_import.h, nvcc" import.o
    if [ "$(sed -n 's/^nccl_libs = //p' "$root"/build/config.ninja 2> /dev/null)" ]; then
        flags="$(sed -n 's/^nccl_flags = //p' "$root"/build/config.ninja) -isystem $(dirname "$(
                 command -v "$nvcc")")/../include"
        must "nvcc: implementation of moek_ep_nccl.h" $nv $flags -DMOEK_ARCH=${quick_arch:-80} -DMOEK_QUANT=MOEK_BF16 \
            -DMOEK_IMPLEMENTATION -x cu -c "$root/include/moek_ep_nccl.h" -o nccl.o
        symbols "symbol leak: moek_ep_nccl.h" nccl.o
        for order in "moek_ep_nccl.h D moek_ep_nccl.h" "moek.h D moek_ep.h moek_ep_nccl.h moek_ep_nccl.h"; do
            [ "$quick" ] && continue
            order order.cu $order
            must "nvcc: headers: $order" $nv $flags -DMOEK_ARCH=0 -DMOEK_QUANT=MOEK_BF16 -c order.cu -o order.o
            nm -g --defined-only order.o | grep -q ' moek_ep_nccl_open' || echo "no moek_ep_nccl_open" > log
            none "nvcc: headers: $order: moek_ep_nccl_open is there"
        done
        must "cc -std=c99: caller of moek_ep_nccl.h" ${CC:-cc} -std=c99 $warnings $flags -include string.h \
            -c nccl_caller.c -o nccl_caller.o
    else
        skip "no NCCL: moek_ep_nccl.h"
    fi
    n=0
    for f in $(headers); do                            # that are GPU code, or have some
        n=$((n + 1))
        [ $((n % cuda_step)) = 0 ] || continue
        alone "$f"
        ${CC:-cc} -std=c99 -fsyntax-only alone.c > log 2>&1
        grep -qE "$cuda_only" log || grep -q MOEK_HAVE_CUDA "$f" || continue
        grep -q 'nccl\.h: No such file' log && [ -z "$flags" ] && continue
        must "alone: ${f#"$root"/} as CUDA" $nvcc -std=c++17 -gencode=arch=compute_90a,code=sm_90a $flags \
            $option -Xcompiler -Wall,-Wextra,-Wno-unused-function -c alone.cu -o alone.o
    done
    row=$root/generated/combine_simt_sm80.h
    must "nvcc: a row alone" $all -DMOEK_SPLIT -x cu -c "$row" -o row.o
    must_fail "C++14: a row says no" "GPU kernels are C++17: compile this file with -std=c++17" \
        $(echo "$all" | sed 's/c++17/c++14/') -DMOEK_SPLIT -x cu -c "$row" -o never.o
    must "nvcc: an instance of a body alone" $all -DMOEK_SPLIT -DMOEK_ONE_KERNEL -x cu \
        -c "$root/generated/up_fragments_sm90.h" -o row.o
    for flag in --use_fast_math --ftz=true --prec-div=false; do
        must_fail "$flag: a row says no" "moek_is_not_for_use_fast_math" \
            $all $flag -DMOEK_SPLIT -x cu -c "$row" -o never.o
        [ "$quick" ] || must "$flag: callers may" $nv $flag -c caller.cu -o fast.o
    done
    order order.cu moek.h D moek.h moek_ep.h
    [ "$quick" ] || must "nvcc: headers: moek.h D moek.h moek_ep.h" \
        $nv -DMOEK_ARCH=0 -DMOEK_QUANT=MOEK_BF16 -c order.cu -o order.o
    must "nvcc: caller and main" $nv -c caller.cu main.cu
    must "link: two .cu without the implementation, one with it" $nvcc caller.o main.o implementation.o -o program
    must "run it" sh -c './program > rows.txt'
    cp implementation.o twice.o
    must_fail "link: two .cu with it must fail" "moek_plan_init_" \
        $nvcc caller.o main.o implementation.o twice.o -o never
    ${CC:-cc} -std=c99 $warnings -c caller.c -o caller_c.o > log 2>&1
    ${CC:-cc} -std=c99 $warnings -c main.c -o main_c.o >> log 2>&1
    must "link: C callers, CUDA implementation" $nvcc caller_c.o main_c.o implementation.o -o program
    wanted="-DMOEK_QUANT=MOEK_BF16 -DMOEK_ARCH=80"
    must "selection: $wanted" $nv $wanted -c implementation.cu -o selected.o
    must "selection: link" $nvcc main.o selected.o caller.o -o selected
    ./selected > rows.txt 2>&1
    awk -v q="$(number_of MOEK_BF16)" '
        { if (($2 != 0 && $2 != q) || $4 != 80) print "not asked for: " $0; n++ }
        END { if (!n) print "no rows" }' rows.txt > log
    none "selection: only such rows are listed"
    for f in "$root"/examples/*; do
        [ "$quick" ] && break
        case $f in
            *.c | *.cc | *.cpp | *.cu) must "example $(basename "$f") as CUDA" $nv -x cu -c "$f" -o example.o ;;
        esac
    done
}

case $part in
    c) c_part ;;
    cuda) cuda_part ;;
    *) echo "matrix.sh c|cuda"; exit 2 ;;
esac
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
