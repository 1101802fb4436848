#!/usr/bin/env bash
# gpu_check.sh [-b BUILD] [-o FOLDER] [--emulated]: what a card must show, in at most five minutes: the device's tests on the
# card against the CPU device, cuDNN beside the card's other backends, bits that do not depend on batch or graphs, the
# libraries' choices, speed against what the card's memory can do, transformers on the same weights, compute-sanitizer. One
# table comes last.
#
# Steps run on, each under its own time limit, whatever others did; what is missing here is said. Each step's row goes to
# FOLDER/<card>-<date>.csv (default bench/results) as soon as it is done. Exit 0: all held; 1: a step failed; 77: there is
# no card. --emulated runs what the emulated card can, to check this script, and writes no file.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
build=build results=bench/results emulated=0
while [ $# -gt 0 ]; do
    case $1 in
    -b) build=$2 && shift ;;
    -o) results=$2 && shift ;;
    --emulated) emulated=1 ;;
    *) sed -n '2,10s/^# \{0,1\}//p' "$0" && exit 2 ;;
    esac
    shift
done
started=$SECONDS
total=${GPU_CHECK_SECONDS:-290} # for everything
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rows=() failed=0 csv='' # rows: step|result|seconds|detail

note() {
    rows+=("$1|$2|$3|$4")
    [ "$2" != FAIL ] || failed=1
    printf '%-48s %-5s %5s s  %s\n' "$1" "$2" "$3" "$4"
    [ -z "$csv" ] || csv_row "$@"
}
csv_row() { printf '"%s",%s,%s,"%s"\n' "${1#  }" "$2" "$3" "${4//\"/\'}" >>"$csv"; }

# step NAME SECONDS COMMAND...: runs it for at most so long, within what is left. It fails by its exit status; 77 skips it.
# What it prints last is the row's detail.
step() {
    local name=$1 limit=$2 left=$((total - (SECONDS - started))) begin=$SECONDS status result=ok detail
    shift 2
    [ $left -gt 5 ] || { note "$name" FAIL 0 "not run: no time left"; return 1; }
    [ "$limit" -lt $left ] || limit=$left
    timeout -k 5 "$limit" bash -c '"$@"' _ "$@" >"$work/out" 2>"$work/err"
    status=$?
    detail=$(tail -n 1 "$work/out")
    case $status in
    0) ;;
    77) result=skip && detail=${detail:-$(tail -n 1 "$work/err")} ;;
    124 | 137) result=FAIL detail="not done after $limit s" ;;
    *)
        result=FAIL
        detail="exit $status: $(grep -hE 'FAIL|ERROR|tvgpu: |rror' "$work/err" "$work/out" | tail -n 1 | cut -c1-160)"
        tail -n 40 "$work/out" "$work/err" >&2
        ;;
    esac
    note "$name" $result $((SECONDS - begin)) "$detail"
    [ $result = ok ]
}

# details FILE: a row for each line "name|detail" of what a step left there.
details() {
    local name detail
    [ -s "$1" ] || return 0
    while IFS='|' read -r name detail; do note "  $name" ok - "$detail"; done <"$1"
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
        if ! "$program" sample --device cuda $prompts "${options[@]}" $variant -o "$work/run" -q 2>"$work/said"; then
            cat "$work/said" >&2
            grep -q "is known for cuDNN" "$work/said" && tail -n 1 "$work/said" && return 77
            return 1
        fi
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

# cuDNN's distance from math and from flash, for every class of shapes: a line each goes to classes.txt.
classes() {
    local status
    "$build/${kind}_cudnn_rows" "shape classes" >"$work/classes"
    status=$?
    sed -n 's/^class: \(.*\): \([^:]*\)$/\1|\2/p' "$work/classes" >"$work/classes.txt"
    [ $status = 0 ] || { cat "$work/classes" && return $status; }
    [ -s "$work/classes.txt" ] || { tail -n 1 "$work/classes" && return 77; }
    echo "$(wc -l <"$work/classes.txt") classes of shapes, relative root mean square at most 8e-3"
}

# What a run on the card says of the libraries that it was left to: the report's lines go to libraries.txt.
libraries() { # BACKEND
    rm -rf "$work/run"
    # shellcheck disable=SC2086
    "$program" compare --device cuda $prompts --backend-a "$1" --backend-b math -N "$some" -n "$length" -R 2 -o "$work/run" -q --json \
        >"$work/report.json" || return 1
    grep -oE '"(cuBLASLt|cuDNN)[^"]*"' "$work/report.json" | tr -d '"' | sort -u >"$work/lines"
    grep -m 3 cuBLASLt "$work/lines" | sed 's/^/library|/' >"$work/libraries.txt"
    grep -m 3 cuDNN "$work/lines" | sed 's/^/library|/' >>"$work/libraries.txt"
    [ -s "$work/libraries.txt" ] || { echo "FAIL: the report names no library" && return 1; }
    echo "$(wc -l <"$work/lines") lines in the report"
}

weights() { "$program" bench weights $shape -o "$work/model" -q && du -sh "$work/model" | cut -f1; }

# Prefill and decode of those weights: a line for each goes to speed.txt.
speed() {
    local copy
    copy=$("$build/cuda_copy_bandwidth") || return 1
    "$program" bench engine "$work/model" --device cuda >"$work/engine.txt" || return 1
    awk -v copy="$copy" '
        $1 == "prefill" { printf "prefill|%s tokens/s, %.1f TFLOP/s\n", $3, $6 / 1000 }
        $1 == "sample" || $1 == "replay" {
            goal = $1 == "sample" && $2 == 512 ? ", the goal of 0.85 is " ($8 >= 0.85 * copy ? "reached" : "MISSED") : ""
            printf "%s, batch %s|%s tokens/s, %s GB/s of weights and cache, %.2f of the copies\x27%s\n", $1, $2, $3, $8, $8 / copy, goal
        }' "$work/engine.txt" >"$work/speed.txt"
    [ -s "$work/speed.txt" ] || return 1
    echo "copies move $copy GB/s"
}

# transformers on the same weights: logits of a few ids against ours, and decode speed.
transformers() {
    local ids="11 7930 15849 23768 31687 39606 47525 55444"
    [ $emulated = 0 ] || ids="11 793 1584 2376"
    "$program" logits "$work/model" --device cuda --tokens "$ids" -o "$work/logits.safetensors" -q || return 1
    "$python" bench/peers/transformers_decode.py "$work/model" --device "$torch_device" --logits "$work/logits.safetensors" \
        --ids "$ids" $peer_options >"$work/peer.txt" || return 1
    tail -n 1 "$work/peer.txt"
}

export -f data_of same_bits invariance graphs caches classes libraries weights speed transformers

# ---- the card ----

if [ $emulated = 1 ]; then
    program=$build/tvgpu-simt kind=simt card=emulated shape=small torch_device=cpu
    batches="1 2 3" most=3 some=3 length=2 prompts="--prompts $work/prompt" peer_options="--batches 1 --new 2"
    echo '{"ids": [1, 2, 3]}' >"$work/prompt"
else
    program=$build/tvgpu kind=cuda shape=0.6b torch_device=cuda
    batches="1 2 17 64 512" most=512 some=64 length=16 prompts='' peer_options=''
fi
export TV_TEST_SOURCE=$PWD # where golden models are, also for a build from another folder
export program build work batches most some length prompts kind shape torch_device emulated peer_options

# cuDNN and cuBLASLt as PyTorch's packages bring them, behind those that are installed.
python=${PEERS_PYTHON:-python3}
export python
packaged='import glob, nvidia; print(":".join(d for p in nvidia.__path__ for d in sorted(glob.glob(p + "/*/lib"))))'
packaged=$("$python" -c "$packaged" 2>/dev/null) && export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$packaged

# Ends the script where there is no card; says nothing where the program is not built yet.
need_card() {
    local line
    [ $emulated = 0 ] && [ -x "$program" ] || return 0
    line=$(timeout 60 "$program" info 2>/dev/null | grep -E '^ *cuda ' | head -n 1)
    grep -qE 'cuda +available' <<<"$line" && return 0
    echo "gpu_check: no card: ${line:-tvgpu info names no CUDA device: it was built without nvcc}"
    exit 77
}
need_card
built_in=$(sed -n 's/^CMAKE_HOME_DIRECTORY:INTERNAL=//p' "$build/CMakeCache.txt" 2>/dev/null)
if [ -n "$built_in" ] && [ ! "$built_in" -ef . ]; then
    note build skip 0 "$build was built in another folder: it is taken as it was brought"
elif nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null) && command -v cmake >/dev/null; then
    targets=(tvgpu cuda_copy_bandwidth)
    [ $emulated = 0 ] || targets=(tvgpu-simt simt_rows simt_kv simt_cudnn_rows simt_copy_bandwidth)
    [ -f "$build/CMakeCache.txt" ] || timeout 60 cmake -S . -B "$build" >"$work/configure" 2>&1 || cat "$work/configure"
    [ $emulated = 1 ] || targets+=($(timeout 60 cmake --build "$build" --target help 2>/dev/null | grep -oE '\bcuda_[a-z0-9_]+$'))
    step "build ($nvcc)" 150 cmake --build "$build" -j "$(nproc)" --target "${targets[@]}"
else
    note build skip 0 "no nvcc or no cmake here: $build is taken as it was brought"
fi
[ -x "$program" ] || { echo "gpu_check: $program is not there: build it where nvcc is, with make" >&2; exit 1; }

need_card
if [ $emulated = 0 ]; then
    card=$(command -v nvidia-smi >/dev/null && nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1)
    card=${card:-unnamed card}
    mkdir -p "$results"
    csv=$results/$(tr 'A-Z ' 'a-z-' <<<"${card#NVIDIA }" | tr -cd 'a-z0-9-')-$(date +%Y-%m-%d).csv
    echo step,result,seconds,detail >"$csv"
    for row in "${rows[@]}"; do
        IFS='|' read -r name result seconds detail <<<"$row"
        csv_row "$name" "$result" "$seconds" "$detail"
    done
fi
echo "card: $card"

# ---- against the CPU device ----

tests=(rows linear expand moe logprobs attention kv)
[ $emulated = 0 ] || tests=(rows kv)
for test in "${tests[@]}"; do
    if [ -x "$build/${kind}_$test" ]; then
        step "${kind}_$test" 45 "$build/${kind}_$test"
    else
        note "${kind}_$test" skip 0 "not built"
    fi
done
[ $emulated = 1 ] || step cuda_forward 60 "$build/cuda_forward" golden

# ---- cuDNN ----

cudnn=$(timeout 60 "$program" info --device cuda 2>/dev/null | grep -E '^ *cudnn ' | sed 's/^ *//')
if grep -qE '^cudnn +available' <<<"$cudnn"; then
    backends=(math flash cudnn)
    step "${kind}_cudnn_rows" 60 "$build/${kind}_cudnn_rows" decode mixed "many prompts" "plans are kept"
    step "cuDNN beside math and flash" 90 classes
    details "$work/classes.txt"
else
    backends=(math flash)
    note "cuDNN" skip 0 "${cudnn:-tvgpu info does not name it}"
fi

# ---- bits ----

for backend in "${backends[@]}"; do
    step "batches, $backend" 45 invariance "$backend"
    step "graphs, $backend" 30 graphs "$backend"
done

for precision in fp8 int8; do step "cache, $precision" 45 caches $precision; done

# ---- what was chosen ----

step "libraries" 40 libraries "${backends[-1]}"
details "$work/libraries.txt"

# ---- speed ----

if [ $emulated = 1 ]; then
    step "copies" 20 "$build/simt_copy_bandwidth" 1
fi
step "weights, $shape shape" 60 weights
if [ $emulated = 1 ]; then
    note "speed" skip 0 "an emulated card has none"
else
    step "speed, $shape shape" 100 speed
    details "$work/speed.txt"
fi
usable='import torch, transformers; assert torch.cuda.is_available()'
[ $emulated = 0 ] || usable='import torch, transformers'
if [ ! -f "$work/model/config.json" ]; then
    note "transformers" skip 0 "there are no weights to share"
elif "$python" -c "$usable" 2>/dev/null; then
    step "transformers, same weights" 90 transformers
    [ ! -s "$work/peer.txt" ] || { sed '$d' "$work/peer.txt" >"$work/peer_rows.txt" && details "$work/peer_rows.txt"; }
else
    note "transformers" skip 0 "$python has no torch (with CUDA) and transformers"
fi

# ---- compute-sanitizer ----

if [ $emulated = 0 ]; then
    sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
    for tool in memcheck racecheck; do
        if [ -n "$sanitizer" ]; then
            step "compute-sanitizer, $tool" 45 "$sanitizer" --tool $tool --error-exitcode 9 "$build/cuda_linear" slices schedules
        else
            note "compute-sanitizer, $tool" skip 0 "not here"
        fi
    done
fi

# ---- the table ----

printf '\n%-48s %-5s %7s  %s\n' "$card" "" seconds ""
for row in "${rows[@]}"; do
    IFS='|' read -r name result seconds detail <<<"$row"
    printf '%-48s %-5s %7s  %s\n' "$name" "$result" "$seconds" "$detail"
done
echo "$((SECONDS - started)) s; $([ $failed = 0 ] && echo "nothing failed" || echo "something FAILED")${csv:+; $csv}"
exit $failed
