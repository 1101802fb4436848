#!/bin/sh
# check_registers.sh NVCC TABLE LOG...: registers and static shared memory of every kernel, from what ptxas said (cmake/nvcc.sh
# keeps it), against the committed table. Fails where a kernel grew by more than a tenth, or is in one of the two only.
# `make registers` writes the table anew. Skips (77) where nvcc is another release than the table's: its counts are its own.
set -eu
nvcc=$1 table=$2
shift 2
release=$("$nvcc" --version | sed -n 's/.*release \([0-9.]*\).*/\1/p')
found=$(mktemp)
trap 'rm -f "$found"' EXIT
awk '/Compiling entry function/ { split($0, part, "\047"); name = part[2] }
     /Used [0-9]+ registers/ {
         smem = 0
         for (i = 2; i <= NF; i++) {
             if ($i == "registers" || $i == "registers,") regs = $(i - 1)
             if ($i == "smem" || $i == "smem,") smem = $(i - 2)
         }
         print name, regs, smem
     }' "$@" | while read -r name regs smem; do
    printf '%s %s %s\n' "$(c++filt -p "$name" | sed 's/^void //; s/ //g')" "$regs" "$smem"
done | LC_ALL=C sort >"$found"
[ -s "$found" ] || { echo "no kernel in $*" >&2; exit 1; }

if [ "$table" = - ]; then
    printf '# Kernels as nvcc %s builds them for sm_90: registers of a thread, bytes of static shared memory. make registers\n' "$release"
    cat "$found"
    exit 0
fi
grep -q "nvcc $release " "$table" || { echo "nvcc $release is not the table's" >&2; exit 77; }
awk 'FNR == NR { if ($1 != "#") { regs[$1] = $2; smem[$1] = $3 } next }
     !($1 in regs) { print $1 ": not in the table (make registers)"; bad = 1; next }
     { seen[$1] = 1 }
     $2 > regs[$1] * 1.1 { print $1 ": " $2 " registers, the table has " regs[$1]; bad = 1 }
     $3 > smem[$1] * 1.1 { print $1 ": " $3 " bytes of shared memory, the table has " smem[$1]; bad = 1 }
     END {
         for (k in regs) if (!(k in seen)) { print k ": in the table, and no such kernel was built"; bad = 1 }
         print FNR " kernels"
         exit bad
     }' "$table" "$found" >&2
