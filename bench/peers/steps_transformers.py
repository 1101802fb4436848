"""transformers as a worker of compare.py:  python3 steps_transformers.py MODEL float32|bfloat16 THREADS"""
import copy
import inspect
import sys

import torch
from transformers import AutoModelForCausalLM, DynamicCache

from steps import TOP, serve


class Transformers:
    def __init__(self, model, dtype, threads):
        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        self.model = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype), attn_implementation="sdpa").eval()
        for p in self.model.parameters():
            p.data = p.data.clone()  # pages of a mapped file may be taken away between rounds
        self.name = "transformers " + {"float32": "f32", "bfloat16": "bf16"}[dtype]
        names = inspect.signature(self.model.forward).parameters
        self.cache_name = "past_key_values" if "past_key_values" in names else "cache"
        self.first = self.cache = None

    def forward(self, ids, cache):
        out = self.model(input_ids=ids, use_cache=True, logits_to_keep=1, **{self.cache_name: cache})
        torch.log_softmax(out.logits[:, -1].float(), -1).topk(TOP)

    def open(self, B, C):
        pass

    def prefill(self, ids):
        self.first = DynamicCache(config=self.model.config)
        self.forward(torch.tensor([ids]), self.first)

    def keep(self, b):
        """b sequences that hold what the first was filled with."""
        self.cache = copy.deepcopy(self.first)
        if b > 1:
            self.cache.batch_repeat_interleave(b)

    def decode(self, ids, pos):
        self.forward(torch.tensor(ids)[:, None], self.cache)

    def close(self):
        self.first = self.cache = None


engine = Transformers(sys.argv[1], sys.argv[2], int(sys.argv[3]))
serve(engine, engine.model.config.vocab_size)
