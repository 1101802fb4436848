#!/usr/bin/env bash
# Builds for aarch64 with Debian's cross compiler and runs the tests under qemu-user. The system is left as it is: the
# arm64 libraries are downloaded with apt into build-aarch64/ and unpacked there. Needs `tools/setup.sh cross`.
#
#     tools/cross_check.sh [arguments for ctest]
set -eu
cd "$(dirname "$0")/.."
build=$PWD/build-aarch64
sysroot=$build/sysroot
packages=(libcjson1 libcjson-dev libpcre2-8-0 libpcre2-dev libutf8proc-dev libxxhash0 libxxhash-dev)
mkdir -p "$build"
log=$build/log
quietly() { "$@" >"$log" 2>&1 || { cat "$log" >&2; exit 1; }; }

unpack_sysroot() {
    command -v apt-get >/dev/null 2>&1 || {
        echo "cross-check: the arm64 libraries come from Debian's packages, and this system has no apt-get" >&2
        exit 1
    }
    echo "cross-check: fetching arm64 libraries into $sysroot"
    # apt's own state, for arm64 alone; sources and keys are the system's.
    local apt=$build/apt
    rm -rf "$sysroot" "$apt"
    mkdir -p "$apt/state/lists/partial" "$apt/cache/archives/partial" "$apt/packages"
    local get=(apt-get -q -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::State="$apt/state"
        -o Dir::State::status=/dev/null -o Dir::Cache="$apt/cache" -o APT::Sandbox::User="$(id -un)")
    quietly "${get[@]}" update
    # The shared library behind a -dev package changes its name between releases: ask for it.
    local utf8proc
    utf8proc=$(apt-cache "${get[@]:2}" depends libutf8proc-dev | sed -n 's/^ *Depends: \(libutf8proc[0-9.]*\)$/\1/p')
    (cd "$apt/packages" && quietly "${get[@]}" download "${packages[@]}" $utf8proc)
    mkdir "$sysroot.part"
    for package in "$apt"/packages/*.deb; do dpkg-deb -x "$package" "$sysroot.part"; done
    rm -rf "$apt"
    mv "$sysroot.part" "$sysroot"
}

[ -d "$sysroot" ] || unpack_sysroot
quietly cmake -S . -B "$build" -DCMAKE_TOOLCHAIN_FILE="$PWD/tools/aarch64.cmake" -DTV_SYSROOT="$sysroot"
cmake --build "$build" -j "${JOBS:-$(nproc)}"
ctest --test-dir "$build" --output-on-failure -j "${JOBS:-$(nproc)}" "$@"
