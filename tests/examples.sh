#!/bin/sh
# examples.sh c|cuda ARCH [quick [OPTION]] -- compiles each example by the commands of its own head comment, in an empty
# folder outside the repository, and runs it.  So it does with the programs in docs/models.md and README.md: blocks of C
# that begin with  /* NAME.c -- .  c: the lines of cc, c++ and python3; cuda: nvcc's lines, for ARCH instead of 90a;
# quick: with -O0, CPU kernels from build/cpu/rows.a, and no CUDA kernels, which take nvcc most of its time (so no GPU
# is to be seen).  OPTION: of nvcc.
quick=${3:-} optimize=-O3
[ "$quick" ] && optimize=-O0 && export NVCC_APPEND_FLAGS="-DMOEK_ARCH=0 ${4:-}" CUDA_VISIBLE_DEVICES=
kind=$1 arch=${2:-90a} python=${PYTHON:-python3}
root=$(cd "$(dirname "$0")/.." && pwd)
cc=${CC:-cc} cxx=${CXX-c++} nvcc=${NVCC:-nvcc}
passed=0 failed=0 skipped=0
work=$(mktemp -d) || exit 1
rows="-x none '$root/build/cpu/rows.a' ${OPENMP-} -lm"
[ "$kind" = cuda ] && rows="-Xlinker '$root/build/cpu/rows.a' ${OPENMP:+-Xcompiler $OPENMP} -lm"
trap 'rm -rf "$work"' EXIT
cp "$root"/examples/* "$work" && cd "$work" || exit 1
awk '/^```/ { name = ""; first = /^```c$/; next }
     first { first = 0; if ($1 == "/*" && $3 == "--") name = $2 }
     name { print > name }' "$root/docs/models.md" "$root/README.md"
[ -f recipe_bf16.c ] || { failed=1; echo "FAILED   docs/models.md: there is no recipe_bf16.c in it"; }
[ -f engine.c ] || { failed=$((failed + 1)); echo "FAILED   README.md: there is no engine.c in it"; }

# The commands of a file: indented lines of its head comment that start with a compiler, with what they continue on.
commands() {
    sed -n '1,20{s/^\(\/\/\| \*\)//;s/ *(your GPU here).*//;s/ *\*\/$//;p;}' "$1" | awk '
        /^  +(cc|c\+\+|nvcc|python3) / { if (c) print c; c = $0; next }
        c && /^        +[^ ]/ { sub(/\\$/, "", c); sub(/^ +/, " "); c = c $0; next }
        c { print c; c = "" }
        END { if (c) print c }' | sed 's/\\$//'
}
run() {                                                # FILE COMMAND
    line=$(printf '%s' "$2" | sed "s|-Iinclude|-I'$root/include'|g; s|-I moek/include|-I'$root/include'|g
        s|examples/||g; s|90a|$arch|g; s|-O3|$optimize|; s| tests/| '$root/tests'/|g")
    case $line in *' -o '*' && ./'* | *' -c '*) ;; *' -o '*) line="$line && ./$(basename "$1" | sed 's/\..*//')" ;; esac
    line=$(printf '%s' "$line" | sed "s|^ *cc |$cc |; s|^ *c++ |$cxx |; s|^ *nvcc |$nvcc |; s|^ *python3 |$python |")
    [ "$quick" ] && line=$(printf '%s' "$line" | sed "
        / -o /s|^[^ ]* -.* -o [^ ]*|& -DMOEK_SPLIT $rows|; / -c /s|\$| -DMOEK_SPLIT|; /^[^ ]* ffi/s|\$| -O0|")
    # (Its command makes all kernels, which the build has made; with one format, as its head says, in a minute.)
    [ "$kind $1" = "cuda moek.cu" ] && line="$line -DMOEK_QUANT=MOEK_BF16"
    if sh -c "$line" > log 2>&1; then passed=$((passed + 1)); printf 'ok       %s\n' "$2"
    else failed=$((failed + 1)); printf 'FAILED   %s: %s\n' "$1" "$line"; sed -n 1,20p log; fi
}
for f in *.c *.cpp *.cu *.py; do
    commands "$f" > list
    [ -s list ] || { failed=$((failed + 1)); echo "FAILED   $f: its head comment has no compile line"; }
    while read -r command <&3; do
        case $kind:$command in
            c:cc\ * | c:python3\ *) run "$f" "$command" ;;
            c:c++\ *) if [ "$cxx" ]; then run "$f" "$command"; else skipped=$((skipped + 1)); fi ;;
            cuda:nvcc\ *) run "$f" "$command" ;;
        esac
    done 3< list
done
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
