"""A Qwen3 checkpoint of one bf16 safetensors file as GGUF without a tokenizer, for llama.cpp.

    python3 to_gguf.py MODEL OUT.gguf bf16|f16|f32
"""
import json
import struct
import sys

import gguf
import numpy as np

NAMES = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}


def tensors(path):
    """(name, f32 array) of every tensor."""
    with open(path, "rb") as f:
        size = struct.unpack("<Q", f.read(8))[0]
        header = json.loads(f.read(size))
        for name, t in header.items():
            if name == "__metadata__":
                continue
            lo, hi = t["data_offsets"]
            f.seek(8 + size + lo)
            bits = np.frombuffer(f.read(hi - lo), np.uint16).astype(np.uint32) << 16
            yield name, bits.view(np.float32).reshape(t["shape"])


def gguf_name(name):
    name = name.removeprefix("model.")
    if name in ("embed_tokens.weight", "norm.weight"):
        return {"e": "token_embd.weight", "n": "output_norm.weight"}[name[0]]
    _, layer, rest = name.split(".", 2)
    return f"blk.{layer}.{NAMES[rest.removesuffix('.weight')]}.weight"


def main():
    model, out, kind = sys.argv[1:4]
    c = json.load(open(f"{model}/config.json"))
    w = gguf.GGUFWriter(out, "qwen3")
    w.add_name("random")
    w.add_block_count(c["num_hidden_layers"])
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv(c["num_key_value_heads"])
    w.add_key_length(c["head_dim"])
    w.add_value_length(c["head_dim"])
    w.add_vocab_size(c["vocab_size"])
    w.add_rope_freq_base(c["rope_theta"])
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_tokenizer_model("none")
    w.add_file_type({"bf16": gguf.LlamaFileType.MOSTLY_BF16, "f16": gguf.LlamaFileType.MOSTLY_F16, "f32": gguf.LlamaFileType.ALL_F32}[kind])
    dtype = {"bf16": gguf.GGMLQuantizationType.BF16, "f16": gguf.GGMLQuantizationType.F16, "f32": gguf.GGMLQuantizationType.F32}[kind]
    for name, values in tensors(f"{model}/model.safetensors"):
        if values.ndim == 1:
            w.add_tensor(gguf_name(name), values)
        else:
            w.add_tensor(gguf_name(name), gguf.quants.quantize(values, dtype), raw_dtype=dtype)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


main()
