#!/usr/bin/env python3
"""A Qwen2.5, Qwen3 or Qwen3-MoE checkpoint as GGUF for llama.cpp: matrices in TYPE, vectors in f32, without a tokenizer.

    pip install gguf numpy
    to_gguf.py MODEL OUT.gguf bf16|f16|f32
"""
import json
import pathlib
import re
import sys

import gguf
import numpy as np

from trace_export import fail

NAMES = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
         "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
         "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate",
         "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.gate": "ffn_gate_inp", "mlp.experts.gate_proj": "ffn_gate_exps",
         "mlp.experts.up_proj": "ffn_up_exps", "mlp.experts.down_proj": "ffn_down_exps"}
ARCHITECTURES = {"qwen2": "qwen2", "qwen3": "qwen3", "qwen3_moe": "qwen3moe"}


def tensors_of(folder):
    """(name, array) of every tensor of a checkpoint; bf16 as its bits, u16."""
    for path in sorted(pathlib.Path(folder).glob("model*.safetensors")):
        data = np.memmap(path, np.uint8, "r")
        size = int(data[:8].view(np.uint64)[0])
        for name, x in json.loads(bytes(data[8 : 8 + size])).items():
            if name == "__metadata__":
                continue
            if x["dtype"] not in ("BF16", "F16", "F32"):
                fail(f"{path}: {name} is {x['dtype']}; this converter knows BF16, F16 and F32")
            dtype = {"BF16": np.uint16, "F16": np.float16, "F32": np.float32}[x["dtype"]]
            begin, end = (8 + size + at for at in x["data_offsets"])
            yield name, np.frombuffer(data[begin:end].tobytes(), dtype).reshape(x["shape"])


def stacked(tensors, n_experts):
    """The same, the experts of a layer stacked as [experts, rows, columns] under a name without their number."""
    waiting = {}
    for name, x in tensors:
        expert = re.fullmatch(r"(.*\.mlp\.experts)\.(\d+)(\..*)", name)
        if not expert:
            yield name, x
            continue
        name = expert[1] + expert[3]
        waiting.setdefault(name, {})[int(expert[2])] = x
        if len(waiting[name]) == n_experts:
            yield name, np.stack([x for _, x in sorted(waiting.pop(name).items())])
    if waiting:
        fail(f"{next(iter(waiting))}: some of its {n_experts} experts are missing")


def gguf_name(name):
    name = name.removeprefix("model.")
    if name in ("embed_tokens.weight", "norm.weight", "lm_head.weight"):
        return {"e": "token_embd.weight", "n": "output_norm.weight", "l": "output.weight"}[name[0]]
    _, layer, rest = name.split(".", 2)
    part, kind = rest.rsplit(".", 1)
    if part not in NAMES:
        fail(f"tensor {name}: this converter knows Qwen2.5, Qwen3 and Qwen3-MoE layers; convert it otherwise and give --gguf")
    return f"blk.{layer}.{NAMES[part]}.{kind}"


def convert(folder, out, kind):
    config = json.loads((pathlib.Path(folder) / "config.json").read_text())
    if config["model_type"] not in ARCHITECTURES:
        fail(f"{folder}: model_type is {config['model_type']}; this converter knows {', '.join(ARCHITECTURES)}, so give a --gguf file")
    n_experts = config.get("num_experts", 0)
    if n_experts and not config["norm_topk_prob"]:
        fail(f"{folder}: norm_topk_prob is false, and llama.cpp always divides the chosen experts' weights by their sum")
    rope = config.get("rope_parameters") or config
    w = gguf.GGUFWriter(f"{out}.tmp", ARCHITECTURES[config["model_type"]])
    w.add_name(config["model_type"])
    w.add_block_count(config["num_hidden_layers"])
    w.add_context_length(config["max_position_embeddings"])
    w.add_embedding_length(config["hidden_size"])
    w.add_feed_forward_length(config["intermediate_size"])
    if n_experts:
        w.add_expert_count(n_experts)
        w.add_expert_used_count(config["num_experts_per_tok"])
        w.add_expert_feed_forward_length(config["moe_intermediate_size"])
    w.add_head_count(config["num_attention_heads"])
    w.add_head_count_kv(config["num_key_value_heads"])
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    w.add_key_length(head)
    w.add_value_length(head)
    w.add_vocab_size(config["vocab_size"])
    w.add_rope_freq_base(rope["rope_theta"])
    w.add_layer_norm_rms_eps(config["rms_norm_eps"])
    w.add_tokenizer_model("none")
    target = {"bf16": gguf.GGMLQuantizationType.BF16, "f16": gguf.GGMLQuantizationType.F16,
              "f32": gguf.GGMLQuantizationType.F32}[kind]
    for name, x in stacked(tensors_of(folder), n_experts):
        if name == "lm_head.weight" and config.get("tie_word_embeddings"):
            continue
        if x.ndim > 1 and kind == "bf16" and x.dtype == np.uint16:
            w.add_tensor(gguf_name(name), x.view(np.uint8), raw_dtype=target)  # the same bits
            continue
        f32 = (x.astype(np.uint32) << 16).view(np.float32) if x.dtype == np.uint16 else x.astype(np.float32)
        if x.ndim == 1:
            w.add_tensor(gguf_name(name), f32)
        else:
            w.add_tensor(gguf_name(name), gguf.quants.quantize(f32, target), raw_dtype=target)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    pathlib.Path(f"{out}.tmp").rename(out)


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[3] not in ("bf16", "f16", "f32"):
        sys.exit(__doc__)
    convert(*sys.argv[1:])
