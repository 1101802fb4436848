"""llama.cpp as a worker of compare.py:  python3 steps_llama.py MODEL.gguf THREADS"""
import ctypes
import sys

import numpy as np
import torch
import llama_cpp as lc
from llama_cpp._logger import set_verbose

from steps import TOP, serve


class Llama:
    def __init__(self, path, threads):
        torch.set_num_threads(threads)
        set_verbose(False)  # what it tells about loading would bury the table
        lc.llama_backend_init()
        p = lc.llama_model_default_params()
        p.use_mmap = False  # pages of a mapped file may be taken away between rounds
        self.model = lc.llama_model_load_from_file(path.encode(), p)
        assert self.model, path
        self.vocabulary = lc.llama_vocab_n_tokens(lc.llama_model_get_vocab(self.model))
        self.threads = threads
        self.name = "llama.cpp " + path.rsplit(".", 2)[-2]
        self.context = None

    def open(self, B, C):
        p = lc.llama_context_default_params()
        p.n_ctx, p.n_seq_max = B * ((C + 255) // 256 * 256), B
        p.n_batch = max(512, B)
        p.n_threads = p.n_threads_batch = self.threads
        p.kv_unified = False  # a cache for each sequence, as the others have
        self.context = lc.llama_init_from_model(self.model, p)
        assert self.context
        self.batch = lc.llama_batch_init(max(512, B), 0, 1)

    def run(self, ids, seqs, positions, wanted):
        b = self.batch
        b.n_tokens = len(ids)
        for i, (token, seq, pos) in enumerate(zip(ids, seqs, positions)):
            b.token[i], b.pos[i], b.n_seq_id[i], b.seq_id[i][0] = token, pos, 1, seq
            b.logits[i] = wanted(i)
        assert lc.llama_decode(self.context, b) == 0
        n = sum(1 for i in range(len(ids)) if wanted(i))
        logits = np.ctypeslib.as_array(ctypes.cast(lc.llama_get_logits(self.context), ctypes.POINTER(ctypes.c_float)), (n, self.vocabulary))
        torch.log_softmax(torch.from_numpy(logits), -1).topk(TOP)

    def prefill(self, ids):
        lc.llama_memory_clear(lc.llama_get_memory(self.context), True)
        self.filled, self.copies = len(ids), 1
        self.run(ids, [0] * len(ids), range(len(ids)), lambda i: i == len(ids) - 1)

    def keep(self, b):
        memory = lc.llama_get_memory(self.context)
        for s in range(self.copies):
            lc.llama_memory_seq_rm(memory, s, self.filled, -1)
        for s in range(self.copies, b):
            lc.llama_memory_seq_cp(memory, 0, s, -1, -1)
        self.copies = max(self.copies, b)

    def decode(self, ids, pos):
        self.run(ids, range(len(ids)), [pos] * len(ids), lambda i: True)

    def close(self):
        lc.llama_batch_free(self.batch)
        lc.llama_free(self.context)
        self.context = None


engine = Llama(sys.argv[1], int(sys.argv[2]))
serve(engine, engine.vocabulary)
