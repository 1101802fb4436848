#!/usr/bin/env python3
"""Samples and replays through llama.cpp, and writes what tvgpu estimate reads.

    pip install llama-cpp-python gguf numpy safetensors

One side of a comparison is llama.cpp, the other any engine that writes trace files:

    tvgpu sample MODEL -o pair --side a
    export_llamacpp.py sample MODEL -o pair --side b --gguf model-bf16.gguf --type bf16
    tvgpu score MODEL -o pair --side a -R 2
    export_llamacpp.py score MODEL -o pair --side b --gguf model-bf16.gguf
    tvgpu estimate pair

Where the GGUF file is not there it is made from MODEL (Qwen2.5, Qwen3 and Qwen3-MoE checkpoints): matrices in --type, vectors in f32,
without a tokenizer, so the prompt comes from the other side's samples or from --tokens ("tvgpu tokenize --chat" makes them).
Batches go through llama_decode with a sequence id each: one token per sequence and step, as a server decodes. Files that are
there are kept.
"""
import ctypes
import pathlib

import numpy as np

import trace_export
from to_gguf import convert
from trace_export import fail


# ---- the engine ----


class LlamaCpp:
    def __init__(self, args):
        import llama_cpp  # what --help needs comes without it

        self.api = llama_cpp
        self.args = args
        self.quiet = llama_cpp.llama_log_callback(lambda level, text, user: None)
        llama_cpp.llama_log_set(self.quiet, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        model = llama_cpp.llama_model_default_params()
        model.n_gpu_layers = args.gpu_layers
        self.model = llama_cpp.llama_model_load_from_file(str(args.gguf).encode(), model)
        if not self.model:
            fail(f"{args.gguf}: llama.cpp cannot load it")
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.eos = trace_export.eos_ids(args.model)
        self.context = None
        kind = ctypes.create_string_buffer(256)
        llama_cpp.llama_model_desc(self.model, kind, 256)
        self.configuration = dict(engine=f"llama-cpp-python {llama_cpp.__version__}", model=kind.value.decode(),
                                  device="gpu" if args.gpu_layers else "cpu", backend=f"flash attention {args.flash_attention}",
                                  kv_dtype=args.kv_dtype, ubatch=args.ubatch)

    def open(self, B, tokens):
        """A context for B sequences of that many tokens."""
        api, args = self.api, self.args
        if self.context:
            api.llama_free(self.context)
            api.llama_batch_free(self.batch)
        p = api.llama_context_default_params()
        each = -(-tokens // 256) * 256
        p.n_ctx, p.n_seq_max = B * each, B
        p.n_batch = p.n_ubatch = max(args.ubatch, B)
        p.n_threads = p.n_threads_batch = args.threads or p.n_threads
        kinds = {"f16": 1, "f32": 0, "bf16": 30}  # ggml_type
        p.type_k = p.type_v = kinds[args.kv_dtype]
        p.flash_attn_type = int(args.flash_attention == "on")
        self.context = api.llama_init_from_model(self.model, p)
        if not self.context:
            fail(f"llama.cpp makes no context of {B} sequences of {each} tokens")
        self.batch, self.room = api.llama_batch_init(p.n_batch, 0, B), p.n_batch
        self.shape = (B, tokens)

    def decode(self, rows):
        """Rows of (sequence, position, token, wants logits), in batches; logits of those that want them, in order."""
        out = []
        for at in range(0, len(rows), self.room):
            part, b = rows[at : at + self.room], self.batch
            b.n_tokens = len(part)
            for i, (sequence, position, token, wanted) in enumerate(part):
                b.token[i], b.pos[i], b.n_seq_id[i], b.seq_id[i][0], b.logits[i] = token, position, 1, sequence, wanted
            if self.api.llama_decode(self.context, b) != 0:
                fail("llama_decode failed")
            for i, row in enumerate(part):
                if row[3]:
                    at_i = self.api.llama_get_logits_ith(self.context, i)
                    out.append(np.ctypeslib.as_array(at_i, (self.vocab_size,)).copy())
        return np.stack(out)

    def start(self, prompt, B):
        need = (B, len(prompt) + self.args.longest)
        if not self.context or self.shape[0] != B or self.shape[1] < need[1]:
            self.open(*need)
        self.api.llama_memory_clear(self.api.llama_get_memory(self.context), True)
        self.position = len(prompt)
        rows = [(s, p, int(x), int(p + 1 == len(prompt))) for s in range(B) for p, x in enumerate(prompt)]
        return self.decode(rows)

    def step(self, tokens):
        logits = self.decode([(s, self.position, int(x), 1) for s, x in enumerate(tokens)])
        self.position += 1
        return logits


def main():
    parser = trace_export.parser(__doc__)
    parser.add_argument("--gguf", required=True, type=pathlib.Path, metavar="FILE",
                        help="the model as GGUF; made from MODEL where it is not there")
    parser.add_argument("--type", choices=["bf16", "f16", "f32"], default="bf16",
                        help="of its matrices, when made (default bf16)")
    parser.add_argument("--kv-dtype", choices=["f16", "bf16", "f32"], default="f16", help="of the cache (default f16)")
    parser.add_argument("--flash-attention", choices=["on", "off"], default="off", help="fused attention kernel (default off)")
    parser.add_argument("--ubatch", type=int, default=512, metavar="T", help="most tokens computed at once (default 512)")
    parser.add_argument("--gpu-layers", type=int, default=0, metavar="L", help="layers on a GPU (default 0)")
    args = parser.parse_args()
    trace_export.check(args)
    if not args.gguf.exists():
        convert(args.model, args.gguf, args.type)

    def chat(system, prompt):
        fail("this side has no tokenizer: sample the other side first, or give --tokens (tvgpu tokenize --chat makes them)")

    args.longest = trace_export.longest(args)
    if args.command == "sample":
        trace_export.sample(args, LlamaCpp(args), chat)
    else:
        trace_export.score(args, LlamaCpp(args))


if __name__ == "__main__":
    main()
