#!/bin/sh
# ep_launch.sh -- starts a program once a rank, as  PROGRAM RANK RANKS FILE , and waits for all of them.
#
#   sh examples/ep_launch.sh 4 ./ep_layer
#
# FILE is empty, and for what ranks tell each other.  mpirun does as well, on one host, with a file that is not there:
#   mpirun -n 4 sh -c './ep_layer $OMPI_COMM_WORLD_RANK $OMPI_COMM_WORLD_SIZE /tmp/a_new_file'
ranks=$1 program=$2
file=$(mktemp) || exit 1
trap 'rm -f "$file"' EXIT
rank=0 pids='' wrong=0
while [ "$rank" -lt "$ranks" ]; do
    "$program" "$rank" "$ranks" "$file" &
    pids="$pids $!" rank=$((rank + 1))
done
for pid in $pids; do wait "$pid" || wrong=1; done
exit $wrong
