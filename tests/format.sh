#!/bin/sh
# format.sh -- the form of the sources: a line a finding, and at the end  N passed, N failed, N skipped.
cd "$(dirname "$0")/.." || exit 1
passed=0 failed=0
say() {                                                # NAME FINDINGS
    if [ "$2" ]; then failed=$((failed + 1)); printf '%s\n' "$2" | sed "s/^/$1: /"; else passed=$((passed + 1)); fi
}

files=$(find include templates codegen tests bench examples clients docs .ci -type f ! -name '*.pyc' \
            ! -name '*.tsv' ! -name '*_golden.txt' ! -name '*.safetensors' ! -name '*.gguf'
        ls build.ninja moek CMakeLists.txt ./*.toml ./*.md)
# ep/nccl.h allocates, and its manual says so.
library=$(find include generated -name '*.h' ! -path include/moek/ep/nccl.h
          find templates -name '*.j2' -o -name '*.cuh')

say "tab, carriage return or blank at the end of a line" "$(grep -nE "$(printf '[\t\r]|[ \t]$')" $files /dev/null)"
say "not ASCII" "$(LC_ALL=C grep -nE '[^ -~]' $files /dev/null | grep -v "$(printf '\t')")"
tables='/(moek_(enums|kernels|models|names|table)[.](h|py)|readme_table|kernels_page)[.]j2$'   # of tables: data lines
say "longer than 120 characters" \
    "$(awk -v tables="$tables" 'length > 120 && FILENAME !~ /\.(toml|md)$/ && FILENAME !~ tables {
                                    print FILENAME ":" FNR }' $files)"
data='/moek_(enums|kernels|models|table|rules)[.]h$'                                # generated tables: data lines
say "generated: longer than 120 characters" \
    "$(awk -v data="$data" 'length > 120 && FILENAME !~ data { print FILENAME ":" FNR }' generated/*.h)"
say "generated, bodies: a function longer than 150 lines" \
    "$(awk 'FNR == 1 { begin = 0 }
            /^(    )?\{$/ { begin = FNR }
            /^(    )?\}/ { if (begin && FNR - begin >= 150) print FILENAME ":" begin ": " FNR - begin + 1 " lines"
                    begin = 0 }' generated/*.h $(find templates -name '*.cuh'))"
say "no newline at the end" "$(for f in $files; do [ -s "$f" ] && [ "$(tail -c 1 "$f")" ] && echo "$f"; done)"
say "not executable" "$(for f in moek .ci/run; do [ -x $f ] || echo $f; done)"
say "sh -n" "$(for f in moek $(find tests -name '*.sh'); do sh -n "$f" 2>&1; done)"
say "a measured choice of a row that there is no more" \
    "$(cat bench/tuned/*.tsv 2>/dev/null | awk -F'\t' '!/^#/ && $1 != "device" { print $8 }' | sort -u |
       while read -r row; do grep -qw "$row" generated/moek_kernels.h || echo "$row"; done)"
calls='malloc|calloc|realloc|free|printf|fprintf|puts|exit|abort|assert|getenv'
calls="$calls|cudaMalloc[A-Za-z]*|cudaFree[A-Za-z]*|cuda[A-Za-z]*Synchronize"
say "the library does not allocate, print, stop or read the environment" \
    "$(grep -nE "(^|[^a-z_A-Z])($calls) *\(" $library /dev/null | grep -v '^[^:]*:[0-9]*: \* ' |
       grep -v 'cudaStreamSynchronize(\(cudaStreamPerThread\|stream\))')"       # where a group opens, or ends

# Lowest first: the order in which impl.h and the headers of expert parallelism include their files.
rooms=$(sed -n 's,^#include "\([a-z].*\)",include/moek/\1,p' include/moek/impl.h
        sed -n 's,^#include "\(moek/[a-z]*/.*\)",include/\1,p' include/moek_ep.h include/moek_ep_nccl.h \
               include/moek_import.h | grep -v 'api[.]h$')
say "a file calls one above it, or is not in the order of impl.h and moek_ep.h" \
    "$(awk '{ gsub(/\/\*.*\*\/|"[^"]*"/, ""); sub(/\/\*.*/, ""); sub(/^ \*.*/, "") }
            { name = $0; sub(/\(.*/, "", name); sub(/.*[ *]/, "", name) }
            /^[a-zA-Z].*\(/ && !/;$/ && name ~ /^moek_/ && !(name in home) { home[name] = FILENAME; at[name] = ++n }
            FNR == 1 { floor[FILENAME] = n + 0 }
            { line[++lines] = $0; file[lines] = FILENAME; number[lines] = FNR }
            END { for (i = 1; i <= lines; i++) { text = line[i]
                      while (match(text, /moek_[a-z0-9_]+/)) {
                          name = substr(text, RSTART, RLENGTH); text = substr(text, RSTART + RLENGTH)
                          if (name in home && home[name] != file[i] && at[name] > floor[file[i]])
                              print file[i] ":" number[i] ": " name " is in " home[name] } } }' $rooms
       for f in include/moek/plan/*.h include/moek/walk/*.h include/moek/ep/*.h include/moek/import/*.h; do
           case $f in *api.h | */chosen.h) continue ;; esac                   # declarations
           echo "$rooms" | grep -qxF "$f" || echo "$f"
       done)"
say "heavy include" \
    "$(grep -nE '#include <(cub|thrust|cuda/|cooperative_groups|cuda_(bf16|fp16|fp8|fp4)|mma\.h|cutlass)' \
       $library /dev/null)"
say "a format by number or name, where moek.format.h or fmt in templates have what it is" \
    "$(grep -rnE '[=!]= *MOEK_(BF16|FP16|FP8[A-Z0-9]*)([^A-Z0-9_]|$)|quant (==|!=|in) ["(\[]' include templates)"
compared='(==|!=|<=?|>=?)'
guess="arch *$compared *([0-9]|MOEK_ARCH_)|plan->arch *(&&|[?])|![a-z>-]*arch\b"
guess="$guess|(->|\.)m *$compared *[0-9]|w_bits *$compared"
say "what a kernel can, guessed from its tile, architecture or format: columns of the table have it (columns.py)" \
    "$(grep -rnE "$guess" include/moek/plan include/moek/walk include/moek/ep |
       grep -v '^include/moek/plan/arch[.]h:')"
# But for comments, for what a user writes (the format of a config, MOEK_QUANT), and for what checkpoints become.
formats=$(sed -n 's/^formats\.\([a-z0-9_]*\) *=.*/\1/p' kernels.toml | grep -vxE 'bf16|fp16' | paste -sd '|' -)
macros=$(echo "bf16|fp16|$formats" | tr a-z A-Z)
say "a format by number or name, where formats.h of tests has what is asked" \
    "$(grep -nE "(^|[^A-Z_])MOEK_($macros)([^A-Z0-9_]|$)|\"($formats)\"" \
           tests/*.[ch] tests/*/*.[ch] bench/*.[ch] bench/*.cu examples/*.[ch]* codegen/moegen.py |
       grep -vE '^[^:]*:[0-9]*:(//| \*)|/\*.*MOEK_|^examples/.*(quant = |config_of\(|#define MOEK_QUANT )MOEK_' |
       grep -vE '^(examples/checkpoint[.]h|tests/import/make_checkpoints[.]py):')"
# One level of templates: integers and a format struct, or two, the second of down (docs/contributing.md).
cpp='(^|[^a-z_])(template *<|auto |class |constexpr |namespace |operator *[^a-z ]|std::|struct [a-z_]+ *: )'
say "C++ beyond that in a kernel" \
    "$(grep -nE "$cpp" $library /dev/null |
       sed -E 's/template *<((int [A-Z][A-Z0-9_]*|class Format|class Of_down( = Format)?)(, |>))+//
               s/if constexpr //g' | grep -E "$cpp")"
say "README.md has more than 150 lines" "$(sed -n '151p' README.md)"
say "notes: longer than 160 characters" "$(awk 'length > 160 { print FILENAME ":" FNR }' docs/notes/*.md)"
say "notes: an id without its entry, its line of the index and the link of that, or twice" \
    "$(for form in '### \([a-z0-9-]*\)$' '| \[\([a-z0-9-]*\)\] .*' '\[\([a-z0-9-]*\)\]: .*'; do
           sed -n "s/^$form/\1/p" docs/notes/*.md
       done | sort | uniq -c | awk '$1 != 3 { print $2 }')"
say "notes: no such entry" \
    "$({ grep -rhoE 'docs/notes: [a-z0-9-]+' include templates codegen bench kernels.toml | sed 's/.*: //'
          sed -n 's/.* note = "\([^"]*\)".*/\1/p' rules.toml; } | sort -u |
       while read -r id; do grep -qx "### $id" docs/notes/*.md || echo "$id"; done)"
echo "$passed passed, $failed failed, 0 skipped"
[ $failed = 0 ]
