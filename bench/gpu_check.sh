#!/usr/bin/env bash
# gpu_check.sh [-b BUILD] [-o FOLDER] [--emulated]: what a card must show, in at most five minutes: the device's tests on the
# card against the CPU device, cuDNN against the other backends, bits that do not depend on batch or graphs, speed
# against what the card's memory can do, transformers beside it, compute-sanitizer. One table comes last.
#
# Steps whose tool is missing say so. Writes FOLDER/<card>-<date>.csv (default bench/results). Exit 0: all held; 1: a
# step failed; 77: there is no card. --emulated runs what the emulated card can, to check this script, and writes no file.
set -uo pipefail
cd "$(dirname "$0")/.."
build=build results=bench/results emulated=0
while [ $# -gt 0 ]; do
    case $1 in
    -b) build=$2 && shift ;;
    -o) results=$2 && shift ;;
    --emulated) emulated=1 ;;
    *) sed -n '2,8s/^# //p' "$0" && exit 2 ;;
    esac
    shift
done
started=$SECONDS
total=300 # seconds for everything
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rows=() failed=0 # rows: step|result|seconds|detail

note() { printf '%-30s %-5s %5s s  %s\n' "$1" "$2" "$3" "$4"; rows+=("$1|$2|$3|$4") && [ "$2" != FAIL ] || failed=1; }

# step NAME SECONDS COMMAND...: runs it for at most so long, within what is left. It fails by its exit status; 77, or the
# last line "skip: reason", skips it. What it prints last is the row's detail.
step() {
    local name=$1 limit=$2 left=$((total - (SECONDS - started))) begin=$SECONDS status result=ok detail
    shift 2
    [ $left -gt 5 ] || { note "$name" skip 0 "no time left"; return 1; }
    [ "$limit" -lt $left ] || limit=$left
    export -f data_of same_bits invariance graphs caches speed
    timeout -k 5 "$limit" bash -c '"$@"' _ "$@" >"$work/out" 2>"$work/err"
    status=$?
    detail=$(tail -n 1 "$work/out")
    case $status in
    0) ;;
    77) result=skip && detail=${detail:-$(tail -n 1 "$work/err")} ;;
    124 | 137) result=FAIL detail="not done after $limit s" ;;
    *)
        result=FAIL
        detail="exit $status: $(grep -hE 'FAIL|ERROR|tvgpu: |rror' "$work/err" "$work/out" | tail -n 1 | cut -c1-100)"
        cat "$work/err" >&2
        ;;
    esac
    note "$name" $result $((SECONDS - begin)) "$detail"
    [ $result = ok ]
}

# ---- the steps ----

# The tensors of a trace file, without the header, which names the configuration.
data_of() { tail -c +$((9 + $(od -An -t u8 -N 8 "$1"))) "$1" | sha256sum | cut -d' ' -f1; }

# same_bits NAME OPTIONS... -- VARIANT...: samples once for each variant (its words are options); all give the same tensors.
same_bits() {
    local name=$1 options=() first='' here variant
    shift
    while [ "$1" != -- ]; do options+=("$1") && shift; done
    shift
    for variant in "$@"; do
        rm -rf "$work/run"
        # shellcheck disable=SC2086
        "$program" sample --device cuda $prompts "${options[@]}" $variant -o "$work/run" -q || return 1
        here=$(data_of "$work"/run/a.samples.safetensors) || return 1
        first=${first:-$here}
        [ "$here" = "$first" ] || { echo "FAIL $name: other bits with $variant" && return 1; }
    done
    echo "$name: same bits with $(printf '%s, ' "$@" | sed 's/, $//')"
}

invariance() { # BACKEND
    local variants=() b
    for b in $batches; do variants+=("--batch $b"); done
    same_bits "$1" --backend "$1" --reduction fixed -N "$most" -n "$length" -- "${variants[@]}"
}

graphs() { same_bits "$1" --backend "$1" --reduction serving -N "$most" -n "$length" -- "--graphs on" "--graphs off"; }

caches() { # PRECISION: any batch, with graphs and without
    local variants=("--graphs off") b
    for b in $batches; do variants+=("--batch $b"); done
    same_bits "$1" --kv-dtype "$1" --backend flash --reduction fixed -N "$most" -n "$length" -- "${variants[@]}"
}

# A model of Qwen3-0.6B's shape: a line "batch tokens/s GB/s fraction" for each batch goes to speed.txt.
speed() {
    local copy
    copy=$("$build/cuda_copy_bandwidth") || return 1
    "$program" bench engine --device cuda >"$work/engine.txt" || return 1
    awk -v copy="$copy" '$1 == "sample" { printf "%s %s %s %.3f\n", $2, $3, $8, $8 / copy }' "$work/engine.txt" >"$work/speed.txt"
    [ -s "$work/speed.txt" ] || return 1
    echo "copies move $copy GB/s"
}

# ---- the card ----

if [ $emulated = 1 ]; then
    program=$build/tvgpu-simt kind=simt card=emulated
    batches="1 2 3" most=3 length=2 prompts="--prompts $work/prompt"
    echo '{"ids": [1, 2, 3]}' >"$work/prompt"
else
    program=$build/tvgpu kind=cuda
    batches="1 2 17 64 512" most=512 length=16 prompts=
fi
export program build work batches most length prompts

# Ends the script where there is no card; says nothing where the program is not built yet.
need_card() {
    local line
    [ $emulated = 0 ] && [ -x "$program" ] || return 0
    line=$("$program" info 2>/dev/null | grep -E '^ *cuda ' | head -n 1)
    grep -qE 'cuda +available' <<<"$line" && return 0
    echo "gpu_check: no card: ${line:-tvgpu info names no CUDA device: it was built without nvcc}"
    exit 77
}
need_card
if nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null) && command -v cmake >/dev/null; then
    targets=(tvgpu cuda_copy_bandwidth)
    [ $emulated = 0 ] || targets=(tvgpu-simt simt_rows simt_kv simt_cudnn_rows simt_copy_bandwidth)
    [ -f "$build/CMakeCache.txt" ] || cmake -S . -B "$build" >"$work/configure" 2>&1 || cat "$work/configure"
    [ $emulated = 1 ] || targets+=($(cmake --build "$build" --target help 2>/dev/null | grep -oE '\bcuda_[a-z0-9_]+$'))
    step "build ($nvcc)" 240 cmake --build "$build" -j "$(nproc)" --target "${targets[@]}"
else
    note build skip 0 "no nvcc or no cmake here: $build is taken as it was brought"
fi
[ -x "$program" ] || { echo "gpu_check: $program is not there: build it where nvcc is, with make" >&2; exit 1; }

need_card
if [ $emulated = 0 ]; then
    card=$(command -v nvidia-smi >/dev/null && nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1)
    card=${card:-unnamed card}
fi
echo "card: $card"

tests=("$build/${kind}"_{rows,linear,expand,moe,logprobs,attention,kv,cudnn_rows})
[ $emulated = 0 ] || tests=("$build"/simt_{rows,kv,cudnn_rows})
for test in "${tests[@]}"; do
    if [ -x "$test" ]; then
        step "$(basename "$test")" 60 "$test"
    else
        note "$(basename "$test")" skip 0 "not built"
    fi
done
[ $emulated = 1 ] || step cuda_forward 60 "$build/cuda_forward" golden

for backend in math flash cudnn; do
    if [ $emulated = 0 ] && [ $backend = cudnn ] && ! "$program" info | grep -qE '^ *cudnn +available'; then
        note "batches, cudnn" skip 0 "$("$program" info | grep -E '^ *cudnn ' | sed 's/^ *//')"
        continue
    fi
    step "batches, $backend" 60 invariance $backend
    step "graphs, $backend" 40 graphs $backend
done

for precision in fp8 int8; do step "cache, $precision" 60 caches $precision; done

if [ $emulated = 1 ]; then
    step "copies" 20 "$build/simt_copy_bandwidth" 1
    note "speed" skip 0 "an emulated card has none"
else
    if step "speed, 0.6B shape" 150 speed; then
        while read -r b tokens gbs of; do
            note "  decode, batch $b" ok - "$tokens tokens/s, $gbs GB/s of weights and cache, $of of the copies'"
        done <"$work/speed.txt"
    fi
    if python3 -c 'import torch, transformers; assert torch.cuda.is_available()' 2>/dev/null; then
        step "transformers, 0.6B shape" 90 python3 bench/peers/transformers_decode.py
    else
        note "transformers" skip 0 "python3 with torch (CUDA) and transformers is not here"
    fi
    sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
    for tool in memcheck racecheck; do
        if [ -n "$sanitizer" ]; then
            step "compute-sanitizer, $tool" 60 "$sanitizer" --tool $tool --error-exitcode 9 "$build/cuda_linear" slices schedules
        else
            note "compute-sanitizer, $tool" skip 0 "not here"
        fi
    done
fi

# ---- the table ----

if [ $emulated = 0 ]; then
    mkdir -p "$results"
    csv=$results/$(tr 'A-Z ' 'a-z-' <<<"${card#NVIDIA }" | tr -cd 'a-z0-9-')-$(date +%Y-%m-%d).csv
    {
        echo step,result,seconds,detail
        for row in "${rows[@]}"; do
            IFS='|' read -r name result seconds detail <<<"$row"
            echo "\"${name# *}\",$result,$seconds,\"${detail//\"/\'}\""
        done
    } >"$csv"
fi
printf '\n%-30s %-5s %7s  %s\n' "$card" "" seconds ""
for row in "${rows[@]}"; do
    IFS='|' read -r name result seconds detail <<<"$row"
    printf '%-30s %-5s %7s  %s\n' "$name" "$result" "$seconds" "$detail"
done
echo "$((SECONDS - started)) s; $([ $failed = 0 ] && echo "nothing failed" || echo "something FAILED")${csv:+; $csv}"
exit $failed
