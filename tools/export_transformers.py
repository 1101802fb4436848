#!/usr/bin/env python3
"""Samples and replays through Hugging Face transformers, and writes what tvgpu estimate reads.

    pip install torch transformers safetensors numpy

One side of a comparison is transformers (--attention eager or sdpa, --dtype), the other any engine that writes trace files:

    tvgpu sample MODEL -o pair --side a
    export_transformers.py sample MODEL -o pair --side b --attention sdpa --dtype float32
    tvgpu score MODEL -o pair --side a -R 2
    export_transformers.py score MODEL -o pair --side b --attention sdpa --dtype float32
    tvgpu estimate pair

sample draws trajectories with the log-probabilities of every step; score replays both sides' trajectories token by token
through the decode path (a forward call of one token per sequence on a KV cache). Files that are there are kept.
"""
import torch
import transformers

import trace_export


class Transformers:
    def __init__(self, args):
        if args.threads:
            torch.set_num_threads(args.threads)
        transformers.logging.set_verbosity_error()
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            args.model, dtype=getattr(torch, args.dtype), attn_implementation=args.attention).eval().to(args.device)
        self.vocab_size, self.eos = self.model.config.vocab_size, trace_export.eos_ids(args.model)
        self.configuration = dict(engine=f"transformers {transformers.__version__}, torch {torch.__version__}",
                                  device=args.device, backend=args.attention, dtype=args.dtype)

    @torch.no_grad()
    def forward(self, ids):
        out = self.model(input_ids=ids.to(self.model.device), past_key_values=self.cache, use_cache=True, logits_to_keep=1)
        self.cache = out.past_key_values
        return out.logits[:, -1].float().cpu().numpy()

    def start(self, prompt, B):
        self.cache = None
        return self.forward(torch.tensor(prompt, dtype=torch.long).repeat(B, 1))

    def step(self, tokens):
        return self.forward(torch.tensor(tokens, dtype=torch.long)[:, None])


def main():
    parser = trace_export.parser(__doc__)
    parser.add_argument("--attention", default="sdpa", metavar="NAME",
                        help="attn_implementation: eager, sdpa, flash_attention_2, ... (default sdpa)")
    parser.add_argument("--dtype", choices=["bfloat16", "float16", "float32"], default="bfloat16",
                        help="of weights, activations and cache (default bfloat16; slow on CPUs without bf16 units)")
    parser.add_argument("--device", default="cpu", help="torch device (default cpu)")
    args = parser.parse_args()
    trace_export.check(args)
    engine = Transformers(args)

    def chat(system, prompt):
        messages = [{"role": "system", "content": system}] * bool(system) + [{"role": "user", "content": prompt}]
        return transformers.AutoTokenizer.from_pretrained(args.model).apply_chat_template(
            messages, add_generation_prompt=True, return_dict=False)

    if args.command == "sample":
        trace_export.sample(args, engine, chat)
    else:
        trace_export.score(args, engine)


if __name__ == "__main__":
    main()
