#!/usr/bin/env bash
# Runs every fuzz target (tests/fuzz_*.c) under libFuzzer, AddressSanitizer and UndefinedBehaviorSanitizer for
# FUZZ_SECONDS seconds each (600 unless set), JOBS at a time. Inputs that were worth keeping stay in build-fuzz/corpus/,
# findings go to build-fuzz/findings/; ends with 1 where there is one. Needs `tools/setup.sh fuzz`.
#
#     tools/fuzz.sh [target...]        such as fuzz_config; without a word: all
set -eu
cd "$(dirname "$0")/.."
build=build-fuzz
seconds=${FUZZ_SECONDS:-600}
jobs=${JOBS:-$(nproc)}
if [ $# -eq 0 ]; then
    for source in tests/fuzz_*.c; do set -- "$@" "$(basename "$source" .c)"; done
fi
mkdir -p $build/findings
cmake -S . -B $build -DCMAKE_C_COMPILER=clang -DTV_FUZZ=ON -DTV_SANITIZE=ON >$build/log 2>&1 || {
    cat $build/log >&2
    exit 1
}
cmake --build $build -j "$jobs" --target "$@"

# Something of the right kind to start from, where the repository has it, small enough to be changed in many places.
seed() {
    local corpus=$build/corpus/$1
    mkdir -p "$corpus"
    case $1 in
    fuzz_config) find models tests/goldens -name config.json ;;
    fuzz_safetensors | fuzz_trace) find tests/goldens -name '*.safetensors' -size -100k ;;
    esac | while read -r file; do cp "$file" "$corpus/$(echo "$file" | tr / _)"; done
    if [ "$1" = fuzz_tokenizer ]; then # its parts are divided by NUL bytes
        { # a config without the tokens, which have other ids in it
            printf '%s\0{"chat_template":' "$(cat tests/goldens/tokenizer/small.json)"
            sed -n 's/^ *"chat_template": \(".*"\),\{0,1\}$/\1/p' tests/goldens/tokenizer/tokenizer_config.json
            printf '}\0It is 42,  the\n\nthing\303\200 <|im_end|>'
        } >"$corpus/small"
    fi
}

fuzz() {
    local target=$1 log=$build/$1.log
    if $build/"$target" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=4096 -print_final_stats=1 \
        -artifact_prefix=$build/findings/"$target"- $build/corpus/"$target" >"$log" 2>&1; then
        echo "$target: $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") inputs in $seconds s, no finding"
    else
        echo "$target: FOUND something ($build/findings/, $log)"
        grep -m 1 -A 12 -E 'ERROR|runtime error|Assertion|SUMMARY' "$log" || tail -n 20 "$log"
        return 1
    fi
}
export -f fuzz
export build seconds
for target in "$@"; do seed "$target"; done
echo "fuzzing $* for $seconds s each, $jobs at a time"
printf '%s\n' "$@" | xargs -P "$jobs" -I{} bash -c 'fuzz {}' || exit 1
