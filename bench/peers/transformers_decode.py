"""transformers on a checkpoint that tvgpu reads too, for bench/gpu_check.sh: its logits against ours, and decode speed.

    transformers_decode.py MODEL [--device cuda|cpu] [--logits FILE --ids "1 2 3"] [--batches 1,64,512] [--new 128]

Prints a line "name|detail" each, then one line on the logits. Ends with 1 where they are not of the same model.
"""
import argparse
import json
import struct
import sys
import time

import torch
from transformers import AutoModelForCausalLM

SAME = 0.05  # relative root mean square: bf16 rounding in other places makes less, another model some 1.4

parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("--device", default="cuda")
parser.add_argument("--logits")
parser.add_argument("--ids", default="")
parser.add_argument("--batches", default="1,64,512")
parser.add_argument("--new", type=int, default=128)
options = parser.parse_args()
model = AutoModelForCausalLM.from_pretrained(options.model, torch_dtype=torch.bfloat16).to(options.device).eval()
model.generation_config.eos_token_id = None
model.generation_config.pad_token_id = 0


def synchronize():
    if options.device == "cuda":
        torch.cuda.synchronize()


def decode(batch, new):
    ids = torch.randint(0, model.config.vocab_size, (batch, 1), device=options.device)
    synchronize()
    begin = time.perf_counter()
    model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, min_new_tokens=new, do_sample=False)
    synchronize()
    return time.perf_counter() - begin


def logits_of(path):
    """The tensor logits [1,T,V] f32 of a safetensors file that holds nothing else."""
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        tensor = header["logits"]
        return torch.frombuffer(bytearray(file.read()), dtype=torch.float32).reshape(tensor["shape"])


with torch.inference_mode():
    torch.manual_seed(1)
    for batch in map(int, options.batches.split(",")):
        decode(batch, 2)
        print(f"transformers, batch {batch}|{batch * options.new / decode(batch, options.new):.0f} tokens/s", flush=True)
    said, status = "no logits given", 0
    if options.logits:
        ids = torch.tensor([[int(i) for i in options.ids.split()]], device=options.device)
        theirs, ours = model(ids).logits.float().cpu(), logits_of(options.logits)
        off = ((ours - theirs).square().mean() / theirs.square().mean()).sqrt().item()
        status = 0 if off <= SAME else 1
        said = f"{'' if status == 0 else 'FAIL: '}its logits and ours are {off:.1e} apart (relative root mean square)"
print(said)
sys.exit(status)
