"""Decode speed of transformers on random weights of Qwen3-0.6B's shape, for bench/gpu_check.sh: a line for each batch."""
import sys
import time

import torch
from transformers import AutoModelForCausalLM, Qwen3Config

NEW = 128  # tokens of each sequence

config = Qwen3Config(
    vocab_size=151936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16,
    num_key_value_heads=8, head_dim=128, tie_word_embeddings=True, torch_dtype="bfloat16", eos_token_id=None,
    pad_token_id=0, max_position_embeddings=4096,
)
torch.manual_seed(1)
with torch.device("cuda"):
    model = AutoModelForCausalLM.from_config(config, torch_dtype=torch.bfloat16).eval()


def decode(batch, new):
    ids = torch.randint(0, config.vocab_size, (batch, 1), device="cuda")
    torch.cuda.synchronize()
    begin = time.perf_counter()
    model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, min_new_tokens=new, do_sample=False)
    torch.cuda.synchronize()
    return time.perf_counter() - begin


said = []
with torch.inference_mode():
    for batch in (1, 64, 512):
        decode(batch, 8)
        seconds = decode(batch, NEW)
        said.append(f"batch {batch}: {batch * NEW / seconds:.0f} tokens/s")
        print(said[-1], file=sys.stderr)
print(", ".join(said))
