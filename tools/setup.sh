#!/usr/bin/env bash
# Checks for what is needed and installs what is missing with Debian's package manager where it may; otherwise says the
# one line to type and ends with 1. Quiet when nothing is missing.
#
#     tools/setup.sh [build] [clang] [fuzz] [cross] [format] [mutants]    without a word: build
set -eu

# Package names on Debian, Fedora and Arch; "-" where the need has no package of its own there.
debian=() fedora=() arch=()
missing() {
    [ "$1" = - ] || debian+=("$1")
    [ "$2" = - ] || fedora+=("$2")
    [ "$3" = - ] || arch+=("$3")
}
need_command() { command -v "$1" >/dev/null 2>&1 || missing "${@:2}"; }
need_library() { pkg-config --exists "$1" 2>/dev/null || missing "${@:2}"; }
# Needs that only a compiler can tell: arguments that must preprocess or link a program read from stdin.
need_program() { # source, "command with options", names
    printf '%b' "$1" | $2 -x c - -o /dev/null >/dev/null 2>&1 || missing "${@:3}"
}

need_build() {
    need_command cc gcc gcc gcc
    need_command c++ g++ gcc-c++ - # the tests run CUDA kernels as C++ on the CPU
    need_program '#include <stdio.h>\nint main(void) { return 0; }\n' "cc -E" libc6-dev glibc-devel glibc
    need_command cmake cmake cmake cmake
    need_command make make make make
    need_command pkg-config pkg-config pkgconf-pkg-config pkgconf
    need_command gnuplot gnuplot-nox gnuplot gnuplot
    need_library libcjson libcjson-dev cjson-devel cjson
    need_library libpcre2-8 libpcre2-dev pcre2-devel pcre2
    need_library libutf8proc libutf8proc-dev utf8proc-devel libutf8proc
    need_library libxxhash libxxhash-dev xxhash-devel xxhash
    # the tests run AVX-512 kernels on processors without it
    [ "$(uname -m)" != x86_64 ] || need_program '#include <simde/simde-arch.h>\n' "cc -E" libsimde-dev simde-devel -
}

need_clang() {
    need_command clang clang clang clang
    need_program '#include <omp.h>\nint main(void) { return omp_get_max_threads() < 1; }\n' "clang -fopenmp" \
        libomp-dev libomp-devel openmp
}

need_fuzz() {
    need_clang
    need_program 'int LLVMFuzzerTestOneInput(const char *p, long n) { return p && n < 0; }\n' \
        "clang -fsanitize=fuzzer,address" libclang-rt-dev compiler-rt compiler-rt
}

# The arm64 libraries themselves are no part of this: tools/cross_check.sh unpacks them under build-aarch64/.
need_cross() {
    need_command aarch64-linux-gnu-gcc gcc-aarch64-linux-gnu gcc-aarch64-linux-gnu aarch64-linux-gnu-gcc
    need_program '#include <stdio.h>\nint main(void) { return 0; }\n' "aarch64-linux-gnu-gcc" libc6-dev-arm64-cross - -
    need_command qemu-aarch64 qemu-user qemu-user qemu-user
}

for mode in "${@:-build}"; do
    case $mode in
    build) need_build ;;
    clang) need_clang ;;
    fuzz) need_fuzz ;;
    cross) need_cross ;;
    format) need_command clang-format clang-format clang-tools-extra clang ;;
    mutants) need_command python3 python3 python3 python ;;
    *)
        echo "setup: no mode \"$mode\": build, clang, fuzz, cross, format or mutants" >&2
        exit 1
        ;;
    esac
done
[ ${#debian[@]} -gt 0 ] || exit 0

say() { # the line to type
    echo "setup: missing: $1. Type this, then run make again:" >&2
    echo "    $2" >&2
    exit 1
}
if ! command -v apt-get >/dev/null 2>&1; then
    if command -v dnf >/dev/null 2>&1; then
        say "${fedora[*]}" "sudo dnf install -y ${fedora[*]}"
    elif command -v pacman >/dev/null 2>&1; then
        say "${arch[*]}" "sudo pacman -S --needed ${arch[*]}"
    fi
    echo "setup: missing: ${debian[*]} (Debian's names). Install them with your package manager, then run make again" >&2
    exit 1
fi
line="apt-get update && sudo apt-get install -y --no-install-recommends ${debian[*]}"
if [ "$(id -u)" = 0 ]; then
    run=()
    line=${line/sudo /}
elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
    run=(sudo)
    line="sudo $line"
else
    say "${debian[*]}" "sudo $line"
fi
echo "setup: installing ${debian[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# A repository of someone else's that does not answer must not stop the installation: apt-get install decides.
"${run[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -qq >"$log" 2>&1 || true
"${run[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${debian[@]}" \
    >>"$log" 2>&1 || {
    cat "$log" >&2
    say "${debian[*]}" "$line"
}
