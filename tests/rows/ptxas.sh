#!/bin/sh
# ptxas.sh stop|tell OBJECT COMMAND ... -- runs nvcc -Xptxas -v and reads what it says.  Leaves a line a kernel in
# OBJECT.tsv: name, architecture, registers, bytes of static shared memory, complaint.  A warning, a spill or a stack
# frame is a complaint: printed, and an error if the first word is stop.  But not on a Hopper for rows of sm89, of which
# nvcc makes several instructions there, for tests alone; nor for up to 64 bytes of a row of sm80, whose machines have
# other registers to give (q4_K with 128 rows, where a Hopper has its own: none on sm_80, 56 bytes on sm_90a).
mode=$1 object=$2
shift 2
"$@" > "$object.log" 2>&1 || { cat "$object.log"; exit 1; }
awk -v object="$(basename "$object")" '
    /Compiling entry function/ {
        split($0, part, "\047")
        name = part[2]; arch = part[4]; sub("sm_", "", arch)
        if (match(name, /[0-9]+moek_/)) {                       # _Z26moek_..: 26 characters
            digits = substr(name, RSTART, RLENGTH - 5)
            name = substr(name, RSTART + RLENGTH - 5, digits)
        }
        next
    }
    /bytes stack frame/ && name ~ /_on_sm89_/ && arch ~ /^90/ { next }
    /bytes stack frame/ && name ~ /_on_sm80_/ && arch ~ /^90/ && $1 <= 64 { next }
    /bytes stack frame/ { if ($1 + $5 + $9) bad = bad $1 " bytes stack frame, " $5 + $9 " bytes spilled; "; next }
    /Used [0-9]+ registers/ {
        shared = 0
        for (i = 1; i < NF; i++) {
            if ($i == "Used") registers = $(i + 1)
            if ($(i + 1) == "bytes" && $(i + 2) ~ /^smem/) shared = $i
        }
        print name "\t" arch "\t" registers "\t" shared "\t" bad
        bad = ""
        next
    }
    /Performance Loss/ || !/^ptxas info/ && NF { other = other $0 " " }
    END { if (other) print object "\t?\t0\t0\t" other }
' "$object.log" > "$object.tsv"
grep -q '^moek_' "$object.tsv" || { cat "$object.log"; echo "ptxas.sh: no kernel in $object"; exit 1; }
awk -F '\t' '$5 != "" { print $1 ": " $5; bad = 1 } END { exit bad }' "$object.tsv" && exit 0
grep -v '^ptxas info' "$object.log"
[ "$mode" = tell ] && exit 0
rm -f "$object"
exit 1
