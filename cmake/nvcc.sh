#!/bin/sh
# nvcc.sh OUT SOURCE NVCC FLAGS...: compiles SOURCE to OUT.o, and keeps what tests read: OUT.ptx, the PTX that went into the
# object, and OUT.ptxas, the registers and shared memory of each kernel. Says nothing unless it fails.
set -eu
out=$1 source=$2
shift 2
name=$(basename "$out")
mkdir -p "$out.keep"
if ! "$@" --keep --keep-dir "$out.keep" -MD -MF "$out.d" -MT "$out.o" -c "$source" -o "$out.o" >"$out.log" 2>&1; then
    cat "$out.log" >&2
    rm -rf "$out.keep" "$out.o"
    exit 1
fi
mv "$out.log" "$out.ptxas"
mv "$out.keep/$name.ptx" "$out.ptx"
rm -rf "$out.keep"
