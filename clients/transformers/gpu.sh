#!/bin/sh
# gpu.sh OUT [WHEELS [test | bench]] -- on a machine with a GPU and nvcc, no network needed: tests moek in transformers,
# then times it.
#
#     pip download -d wheels torch transformers accelerate compressed-tensors numpy    where there is a network,
#                                                                                      for the same python
#     sh clients/transformers/gpu.sh out wheels                where the GPU is: out/test.log, out/bench.tsv
#
# WHEELS is - or missing where python3 (or $PYTHON) has torch and transformers.  test, bench: one of both only.  Tests
# that want accelerate or compressed-tensors are skipped without.
# Compiled libraries go to $XDG_CACHE_HOME or OUT/cache.
here=$(cd "$(dirname "$0")" && pwd)
out=${1:?where to write} wheels=${2:--} only=${3-} python=${PYTHON:-python3} status=0
mkdir -p "$out" || exit 1
if [ "$wheels" != - ]; then
    [ -x "$out/venv/bin/python" ] || "$python" -m venv "$out/venv" || exit 1
    "$out/venv/bin/pip" install -q --no-index --find-links "$wheels" torch transformers numpy || exit 1
    "$out/venv/bin/pip" install -q --no-index --find-links "$wheels" accelerate compressed-tensors
    python=$out/venv/bin/python
fi
export HF_HUB_OFFLINE=1 XDG_CACHE_HOME="${XDG_CACHE_HOME:-$out/cache}"
if [ "$only" != bench ]; then
    "$python" "$here/test_transformers.py" cuda > "$out/test.log" 2> "$out/test.err" || status=1
    cat "$out/test.log"
fi
if [ "$only" != test ]; then
    "$python" "$here/bench.py" -o "$out/bench.tsv" 2> "$out/bench.err" || status=1
    cat "$out/bench.tsv"
    tail -n 5 "$out/bench.err"
fi
rm -rf "$out/venv"
exit $status
