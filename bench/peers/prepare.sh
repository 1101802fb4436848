#!/usr/bin/env bash
# prepare.sh PROGRAM VENV MODELS: what compare.py needs, made where it is missing: llama.cpp and transformers from PyPI in the
# virtual environment VENV, and in MODELS one checkpoint of random weights a shape, as safetensors and as GGUF.
set -eu
cd "$(dirname "$0")/../.."
program=$1 venv=$2 models=$3
if ! "$venv/bin/python" -c 'import gguf, llama_cpp, torch, transformers' 2>/dev/null; then
    echo "installing torch, transformers and llama-cpp-python (compiled here) into $venv"
    [ -x "$venv/bin/pip" ] || python3 -m venv "$venv"
    "$venv/bin/pip" install -q torch transformers safetensors numpy gguf llama-cpp-python
fi
for shape in medium moe 0.6b; do
    [ -e "$models/$shape/model.safetensors" ] || "$program" bench weights $shape -o "$models/$shape"
    for kind in bf16 f16; do
        gguf=$models/$shape/model.$kind.gguf
        [ -e "$gguf" ] || "$venv/bin/python" tools/to_gguf.py "$models/$shape" "$gguf" $kind
    done
done
