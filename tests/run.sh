#!/bin/sh
# run.sh LOG COMMAND ... -- runs a test program.  Its output goes to LOG, and is shown if it fails; whatever happens,
# the last line of LOG is  N passed, N failed, N skipped.  (What compute-sanitizer says behind it counts by its exit
# status.)  Beside LOG, in .seconds instead of .log: how long it took, and seconds of processors.
log=$1
shift
rm -f "$log"
start=$(date +%s)
limit=
command -v timeout > /dev/null && limit="timeout ${TEST_SECONDS:-1500}"
OMP_WAIT_POLICY=passive $limit "$@" > "$log" 2>&1
status=$?
# (times, of this shell and then of its children: 0m1.25s 0m0.01s, user and system.)
times > "${log%.log}.seconds"
used=$(awk -F '[ ms]+' 'NR == 2 { printf "%.0f", 60 * $1 + $2 + 60 * $3 + $4 }' "${log%.log}.seconds")
echo "$(($(date +%s) - start)) $used" > "${log%.log}.seconds"
line=$(grep -v '^=========' "$log" | tail -n 1 | grep -E '^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$')
case $line in
    *', 0 failed,'*) [ $status = 0 ] && exit 0 ;;
    *failed*) cat "$log"; exit 1 ;;
esac
{
    why="and no line of results at the end"
    [ "$line" ] && why="in spite of the line above"
    echo "$*: exit status $status, $why"
    set -- $line
    echo "${1:-0} passed, 1 failed, ${5:-0} skipped"
} >> "$log"
cat "$log"
exit 1
