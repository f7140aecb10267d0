#!/bin/sh
# two_gpus.sh -- all that wants two or more GPUs of one host: the exchange of expert parallelism, tested and timed.
#
#   bench/two_gpus.sh [FOLDER]       logs and tables go there (build/two_gpus); six minutes on two H200 and 32 cores
#
# Tests across devices in all formats, NCCL's paths (a rank that is killed among them), 100,000 operations; then the
# figures of docs/expert-parallelism.md: exchanges of 1, 128 and 4096 tokens, by peer access and over NCCL, and layers.
# One line a step: its last line, and seconds.  1 is returned if a step fails.  Where NCCL is too old for windows, that
# step says so, and is no failure.
cd "$(dirname "$0")/.." || exit 1
out=${1:-build/two_gpus}
mkdir -p "$out"
out=$(cd "$out" && pwd)
failed=0
step() {                                               # NAME SECONDS COMMAND ...: its output becomes NAME.txt
    name=$1 limit=$2
    shift 2
    begin=$(date +%s)
    { echo "# $*"; timeout "$limit" "$@"; } > "$out/$name.txt" 2>&1
    rc=$?
    [ $rc = 0 ] || grep -q "must be 2.28.7 or later" "$out/$name.txt" || failed=1
    last=$(tail -n 1 "$out/$name.txt" | cut -c1-120)
    printf '%-12s rc %3d  %4d s  %s\n' "$name" $rc $(($(date +%s) - begin)) "$last"
}
./moek setup > "$out/setup.txt" 2>&1 || { tail -n 3 "$out/setup.txt"; exit 1; }
targets="test_ep_gpu test_ep_nccl bench_ep bench_ep_nccl demo_ep"
for ninja in ninja build/venv/bin/ninja build/pylib/bin/ninja; do
    PYTHONPATH=build/pylib "$ninja" --version > "$out/setup.txt" 2>&1 && break
done
step build 300 env PYTHONPATH=build/pylib "$ninja" $(printf 'build/cuda/%s ' $targets)
step demo 60 build/cuda/demo_ep
formats="bf16 fp8b128 mxfp8 nvfp4_a4 int8_a8"
step exchange 60 build/cuda/bench_ep exchange 1 128 4096 $formats
for path in window ipc sends; do
    step "$path" 60 build/cuda/bench_ep_nccl exchange $path 1 128 4096 $formats
done
step nccl 200 build/cuda/test_ep_nccl
step test 200 build/cuda/test_ep_gpu
step soak 120 build/cuda/test_ep_gpu soak 100000
step layers 100 build/cuda/bench_ep 1 128 4096 $formats
exit $failed
