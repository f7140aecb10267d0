#!/bin/sh
# platforms.sh [full] [NAME ...] -- CPU tests on machines, systems and C libraries that are not this one's, by cross
# compilers, qemu-user and wine: a line a case, and at the end N passed, N failed, N skipped.  What is not installed is
# skipped with the packages of Debian that bring it.  NAME: only these of the table below.  full: every test on all of
# them; else slow emulators have a part.  Everything lies in build/platforms.
#
# aarch64 is compiled as users compile: -O3, in the compiler's own dialect, where products and sums may be one FMA.
cd "$(dirname "$0")/.." || exit 1
full=
[ "${1-}" = full ] && full=1 && shift
only=$*
work=build/platforms
mkdir -p "$work"
passed=0 failed=0 skipped=0
good() { passed=$((passed + 1)); echo "ok       $1"; }
bad() { failed=$((failed + 1)); echo "FAILED   $1"; sed -n 1,20p "$work/log"; }
skip() { skipped=$((skipped + 1)); echo "skipped  $1"; }
have() { command -v "$1" > /dev/null 2>&1; }
asked() { [ -z "$only" ] || case " $only " in *" $1 "*) ;; *) false ;; esac; }
must() {                                               # NAME COMMAND ...: silently
    name=$1; shift
    if "$@" > "$work/log" 2>&1 && ! [ -s "$work/log" ]; then good "$name"; else bad "$name"; false; fi
}
must_fail() {                                          # NAME WORDS COMMAND ...: fails, and says WORDS
    name=$1 words=$2; shift 2
    if "$@" > "$work/log" 2>&1; then echo "this should have failed: $*" >> "$work/log"; bad "$name"
    elif grep -q -- "$words" "$work/log"; then good "$name"
    else echo "it does not say: $words" >> "$work/log"; bad "$name"; fi
}
tools() {                                              # NAME PACKAGES TOOL ...: are they there?
    name=$1 packages=$2; shift 2
    for tool; do have "$tool" || { skip "$name: no $tool (apt-get install $packages)"; return 1; }; done
}

strict="-std=c99 -pedantic" warnings="-Wall -Wextra -Werror" include="-DMOEK_ARCH=0 -Iinclude"
whole="-DMOEK_IMPLEMENTATION -x c -c include/moek_import.h"
everything="$work/everything.c"                        # moek_ep.h, too
printf '#define MOEK_IMPLEMENTATION\n#include "moek_ep.h"\n#include "moek_import.h"\n' > $everything
every="units; golden; codes; digits; bytes; floats; blocks; api; import quick; rows quick; layer quick CPU"
few="golden; api; layer quick CPU test_formats"

run() {                                                # NAME COMMAND ...: a test, which says what passed
    name=$1; shift
    "$@" > "$work/log" 2>&1 < /dev/null
    status=$?
    line=$(tr -d '\r' < "$work/log" | grep -E '^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' | tail -n 1)
    case $line in
        [1-9]*' passed, 0 failed, '*) [ $status = 0 ] && good "$name: $line" && return ;;
    esac
    grep -v '^ok' "$work/log" | tail -n 20 > "$work/short" && mv "$work/short" "$work/log"
    bad "$name: exit status $status"
}
# NAME COMPILER "FLAGS OF THE IMPLEMENTATION" "RUNNER" TESTS: compiles all of them, and runs them.
platform() {
    of=$1 cc=$2 flags=$3 runner=$4 tests=$5 at=$work/$1
    [ "$full" ] && tests=$every
    mkdir -p "$at"
    must "$of: implementation" $cc $flags $warnings $include $whole -o "$at/moek.o" || return
    printf '%s\n' "$tests" | tr ';' '\n' > "$at/tests"
    while read -r test words <&3; do
        object=$at/moek.o split=-DMOEK_SPLIT
        case $test in codes | digits | bytes | floats | blocks) object= split= ;; esac     # it has the implementation
        must "$of: compile $test" $cc $strict -O1 $warnings $include $split -DTEST_SMALL tests/*/test_$test.c \
            $object -static -pthread -lm -o "$at/$test.exe" || continue
        run "$of: $test${words:+ $words}" $runner "$at/$test.exe" $words
    done 3< "$at/tests"
}
emulated() {                                           # NAME TRIPLE PACKAGES QEMU "FLAGS" TESTS
    asked "$1" && tools "$1" "$3 qemu-user" "$2-gcc" "$4" && platform "$1" "$2-gcc" "$5" "$4" "$6"
}

emulated aarch64 aarch64-linux-gnu "gcc-aarch64-linux-gnu libc6-dev-arm64-cross" qemu-aarch64 "-O3" "$every"
if asked aarch64 && have qemu-aarch64; then            # older processors: without i8mm, and without dotprod
    for cpu in neoverse-n1 cortex-a72; do
        for exe in "$work"/aarch64/bytes.exe "$work"/aarch64/floats.exe; do
            [ -f "$exe" ] && run "aarch64, $cpu: $(basename "$exe" .exe)" qemu-aarch64 -cpu $cpu "$exe"
        done
    done
fi
emulated riscv64 riscv64-linux-gnu "gcc-riscv64-linux-gnu libc6-dev-riscv64-cross" qemu-riscv64 "$strict -O1" "$every"
emulated ppc64le powerpc64le-linux-gnu "gcc-powerpc64le-linux-gnu libc6-dev-ppc64el-cross" qemu-ppc64le \
    "$strict -O1" "$few"
emulated arm arm-linux-gnueabihf "gcc-arm-linux-gnueabihf libc6-dev-armhf-cross" qemu-arm "$strict -O1" "$few"
sse="i686-linux-gnu-gcc -msse2 -mfpmath=sse" i386="gcc-i686-linux-gnu libc6-dev-i386-cross"
if asked i386 && tools i386 "$i386" i686-linux-gnu-gcc; then
    runner=                                            # most machines of 64 bits run its programs
    echo 'int main(void) { return 0; }' > "$work/try.c"
    $sse -static "$work/try.c" -o "$work/try" > "$work/log" 2>&1 && "$work/try" || runner=qemu-i386
    tools i386 "qemu-user" $runner && platform i386 "$sse" "$strict -O1" "$runner" "$every"
fi
asked musl && tools musl musl-tools musl-gcc && platform musl musl-gcc "$strict -O1" "" "$every"
if asked windows && tools windows "gcc-mingw-w64-x86-64 wine64 wine" x86_64-w64-mingw32-gcc wine; then
    WINEPREFIX=$PWD/$work/wine WINEDEBUG=-all WINEDLLOVERRIDES="mscoree=;mshtml="
    export WINEPREFIX WINEDEBUG WINEDLLOVERRIDES
    wine cmd /c exit > "$work/wine.log" 2>&1           # makes its folder, and tells of that
    platform windows x86_64-w64-mingw32-gcc "$strict -O1" wine "$every"
    have wineserver && wineserver -k
fi

# Compiled only: other compilers of this machine, and Windows of 32 bits.
if asked compilers; then
    for cc in gcc-9 gcc-10 gcc-11 gcc-12 gcc-13 gcc-14 gcc-15 \
              clang-13 clang-14 clang-15 clang-16 clang-17 clang-18 clang-19 clang-20 clang-21 clang-22; do
        have $cc || continue
        must "$cc: implementation" $cc $strict $warnings $include -c $everything -o "$work/never.o"
    done
    # (It has no -pedantic, and not the builtins that moek_ep.h asks for.)
    have tcc && must "tcc: implementation, without moek_ep.h" tcc $warnings $include $whole -o "$work/never.o"
fi
if asked windows32 && tools windows32 gcc-mingw-w64-i686 i686-w64-mingw32-gcc; then
    must "windows32: implementation, without moek_ep.h" \
        i686-w64-mingw32-gcc -msse2 -mfpmath=sse $strict $warnings $include $whole -o "$work/never.o"
    must_fail "windows32: moek_ep.h says what to define" "define MOEK_EP_MS() and MOEK_EP_PAUSE()" \
        i686-w64-mingw32-gcc -msse2 -mfpmath=sse $include -c $everything -o "$work/never.o"
    must "windows32: moek_ep.h with that" i686-w64-mingw32-gcc -msse2 -mfpmath=sse $strict $warnings $include \
        -include windows.h '-DMOEK_EP_MS()=GetTickCount()' '-DMOEK_EP_PAUSE()=SwitchToThread()' \
        -c $everything -o "$work/never.o"
fi

# Refused, with a sentence.
if asked s390x && tools s390x "gcc-s390x-linux-gnu libc6-dev-s390x-cross" s390x-linux-gnu-gcc; then
    must_fail "s390x: the implementation says no" "this machine is big-endian" \
        s390x-linux-gnu-gcc $include $whole -o "$work/never.o"
fi
if asked x87 && tools x87 "$i386" i686-linux-gnu-gcc; then
    must_fail "x87: the implementation says no" "add -msse2 -mfpmath=sse" \
        i686-linux-gnu-gcc $include $whole -o "$work/never.o"
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
