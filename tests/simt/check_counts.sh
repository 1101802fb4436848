#!/bin/sh
# check_counts.sh NVCC TABLE BUILD: what each kernel's PTX did in a few tests (tests/simt/ptx.cpp counts it) against the
# committed table: warp instructions, sectors of 32 bytes of global memory and the least that would have done, passes over
# shared memory and those that bank conflicts added. Fails where a count grew by more than a tenth, or a kernel is in one of
# the two only. `make counts` writes the table anew. Skips (77) where nvcc is another release than the table's.
set -eu
nvcc=$1 table=$2 build=$3
release=$("$nvcc" --version | sed -n 's/.*release \([0-9.]*\).*/\1/p')
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
[ "$table" = - ] || grep -q "nvcc $release " "$table" || { echo "nvcc $release is not the table's" >&2; exit 77; }
export OMP_NUM_THREADS=1 TV_PTX_COUNTS="$work/counts"
while read -r test names; do
    # shellcheck disable=SC2086
    "$build/$test" $names >"$work/out" 2>&1 || { cat "$work/out" >&2; exit 1; }
done <<END
ptx_rows embed rmsnorm_formula rope swiglu moe_route sample
ptx_linear schedules
ptx_moe matrices
ptx_attention rows_scratch flash_extreme plan_and_rerun
ptx_logprobs bad
ptx_cudnn_rows decode
ptx_kv append kernels
ptx_expand expand_rows
END
# A kernel may have run in several of them.
awk '{ for (i = 2; i <= 6; i++) sum[$1, i] += $i; names[$1] = 1 }
     END { for (n in names) print n, sum[n, 2], sum[n, 3], sum[n, 4], sum[n, 5], sum[n, 6] }' "$work/counts" |
    while read -r name rest; do
        printf '%s %s\n' "$(c++filt -p "$name" | sed 's/^void //; s/ //g')" "$rest"
    done | LC_ALL=C sort >"$work/found"

if [ "$table" = - ]; then
    printf '# What kernels as nvcc %s builds them do in the tests of check_counts.sh (make counts): warp instructions, global\n' "$release"
    printf '# sectors, least sectors, passes over shared memory, added by bank conflicts.\n'
    cat "$work/found"
    exit 0
fi
awk 'BEGIN { split("warp instructions:global sectors::shared passes:bank conflicts", what, ":") }
     FNR == NR { if ($1 != "#") for (i = 2; i <= 6; i++) { old[$1, i] = $i; kernel[$1] = 1 } next }
     !($1 in kernel) { print $1 ": not in the table (make counts)"; bad = 1; next }
     { seen[$1] = 1; for (i = 2; i <= 6; i++) if (i != 4 && $i > old[$1, i] * 1.1) {
           print $1 ": " $i " " what[i - 1] ", the table has " old[$1, i]; bad = 1 } }
     END {
         for (k in kernel) if (!(k in seen)) { print k ": in the table, and not run"; bad = 1 }
         print FNR " kernels"
         exit bad
     }' "$table" "$work/found" >&2
