#!/usr/bin/env bash
# Checks for what the build and the tests need and installs what is missing with the system's package manager where it
# may; otherwise says the one line to type. Quiet when nothing is missing.
set -eu

missing=()
need_command() { command -v "$1" >/dev/null 2>&1 || missing+=("$2"); }
need_library() { pkg-config --exists "$1" 2>/dev/null || missing+=("$2"); }
need_command cc gcc
need_command cmake cmake
need_command make make
need_command pkg-config pkg-config
need_command gnuplot gnuplot-nox
need_library libcjson libcjson-dev
need_library libpcre2-8 libpcre2-dev
need_library libutf8proc libutf8proc-dev
need_library libxxhash libxxhash-dev

if [ ${#missing[@]} -gt 0 ]; then
    if ! command -v apt-get >/dev/null 2>&1; then
        echo "setup: missing (Debian's names): ${missing[*]}; install them with your package manager, then run make again" >&2
        exit 1
    fi
    if [ "$(id -u)" = 0 ]; then
        run=()
    elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
        run=(sudo)
    else
        echo "setup: missing: ${missing[*]}. Type:" >&2
        echo "    sudo apt-get update && sudo apt-get install -y ${missing[*]}" >&2
        exit 1
    fi
    echo "setup: installing ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    "${run[@]}" apt-get update -qq
    "${run[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi
