"""What the exporters share: trajectories sampled and replayed along an engine's decode path, written as tvgpu trace files.

An engine is an object with
    configuration         dict, the part of a serving configuration that is the engine's own
    vocab_size, eos       its vocabulary, and the ids that end a text
    start(prompt, B)      begins B sequences with the same prompt (ids); logits [B,V] f32 of the token that follows
    step(tokens)          appends tokens [B]; logits [B,V] f32 of the token that follows
Records are taken before a trajectory's token is forced, as tvgpu takes them: log-softmax over the whole vocabulary after
temperature, ties by lowest id (docs/formats.md, "Trace file").
"""
import argparse
import json
import os
import pathlib
import sys
import time

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save

SYSTEM = "You are a helpful assistant."
PROMPT = "Tell me a story about a robot learning to paint."


def fail(message):
    sys.exit(f"error: {message}")


# ---- trace files ----


def read_trace(path):
    """Tensors and metadata of a trace file."""
    if not pathlib.Path(path).is_file():
        fail(f"{path}: no such file; tvgpu sample or a script's sample command writes it")
    with safe_open(path, "numpy") as f:
        metadata = f.metadata() or {}
        if metadata.get("format") != "tvgpu-trace/1":
            fail(f'{path}: format is "{metadata.get("format")}", not "tvgpu-trace/1"')
        return {name: f.get_tensor(name) for name in f.keys()}, metadata


def prompts_of(trace):
    offsets = trace["prompt_offsets"]
    return [trace["prompt_ids"][offsets[p] : offsets[p + 1]] for p in range(len(offsets) - 1)]


def write_trace(path, tensors, metadata):
    """Appears under its name only when complete."""
    temporary = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    temporary.write_bytes(save({name: np.ascontiguousarray(x) for name, x in tensors.items()}, metadata))
    os.replace(temporary, path)


# ---- dumps for tvgpu import ----


def dump_parser(description, top):
    """The options that the scripts for engines with dumps of their own share; top: log-probabilities a token."""
    p = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("command", choices=["sample", "score"])
    p.add_argument("model", metavar="MODEL", help="checkpoint folder or name")
    p.add_argument("dump", metavar="DUMP", help="the JSON-lines file to write")
    p.add_argument("-o", "--out", required=True, metavar="DIR", help="folder of the trace files: prompts and trajectories")
    p.add_argument("--set", choices=["a", "b"], default="a", help="sample: whose prompts, score: whose trajectories (default a)")
    p.add_argument("--seed", type=int, default=1, metavar="S", help="engine seed of sample (default 1)")
    p.add_argument("--top-k", type=int, default=top, metavar="K", help=f"sampling takes the K most likely (default {top})")
    p.add_argument("--dtype", default="auto", help="of the model (default auto)")
    return p


def samples_of(args):
    """The trace of the set that the options name."""
    return read_trace(pathlib.Path(args.out) / f"{args.set}.samples.safetensors")[0]


# ---- one next-token distribution ----


class Records:
    """The rows of one pass over N trajectories of n tokens, k slots each."""

    def __init__(self, N, n, k):
        self.ids = np.full((N, n, k), -1, np.int32)
        self.lps = np.full((N, n, k), -np.inf, np.float32)
        self.own = np.zeros((N, n), np.float32)
        self.rank = np.zeros((N, n), np.int32)

    def tensors(self):
        return dict(topk_ids=self.ids, topk_logprobs=self.lps, token_logprobs=self.own, token_rank=self.rank)


def log_softmax(logits, temperature, suppressed):
    """Of one row [V] f32, in f64; stored as f32. Suppressed ids get no mass."""
    if np.isnan(logits).any():
        fail("the engine's logits hold NaN")
    x = logits.astype(np.float64) / temperature
    x[suppressed] = -np.inf
    x -= x.max()
    return (x - np.log(np.exp(x).sum())).astype(np.float32)


def largest(lp, k):
    """Ids and values of the k largest of lp [V], descending, ties by lowest id."""
    edge = np.partition(lp, len(lp) - k)[len(lp) - k]
    above = np.flatnonzero(lp > edge)
    ids = np.concatenate([above, np.flatnonzero(lp == edge)[: k - len(above)]])
    ids = ids[np.lexsort((ids, -lp[ids]))]
    return ids, lp[ids]


def draw(lps, u):
    """Slot of a draw from the renormalised probabilities of lps, by inversion of u in [0,1)."""
    p = np.exp(lps.astype(np.float64) - lps[0])
    return min(int(np.searchsorted(np.cumsum(p), u * p.sum(), side="right")), int(np.flatnonzero(p)[-1]))


# ---- sampling and replay ----


class Progress:
    """One line on standard error: rewritten on a terminal, else printed every 30 s."""

    def __init__(self, label, total):
        self.label, self.total, self.done, self.began, self.shown = label, total, 0, time.time(), 0
        self.terminal = sys.stderr.isatty()

    def add(self, tokens):
        self.done += tokens
        now, last = time.time(), self.done == self.total
        if not last and now - self.shown < (0.5 if self.terminal else 30):
            return
        self.shown = now
        rate = self.done / max(now - self.began, 1e-9)
        left = (self.total - self.done) / rate
        line = f"{self.label}: {self.done}/{self.total} tokens, {rate:.1f}/s, {left:.0f} s left"
        print(f"\r{line}\033[K" if self.terminal else line, end="\n" if last or not self.terminal else "",
              file=sys.stderr, flush=True)


def batches(prompt_index, order, size):
    """Rows in batches of at most size, taken in the given order; one batch follows one prompt."""
    for prompt in np.unique(prompt_index):
        rows = [i for i in order if prompt_index[i] == prompt]
        size_here = size or len(rows)
        for at in range(0, len(rows), size_here):
            yield prompt, np.array(rows[at : at + size_here])


def follow(engine, args, prompts, prompt_index, N, n, order, label, tokens=None):
    """One pass: replays tokens [N,n], or samples them where they are None. Returns (tokens, Records)."""
    records, sampling = Records(N, n, args.store_k), tokens is None
    suppressed = [] if args.ignore_eos else [i for i in engine.eos if i < engine.vocab_size]
    if sampling:  # a trajectory's draws are its own: batches and their order leave them alone
        tokens = np.zeros((N, n), np.int32)
        uniform = np.stack([np.random.Generator(np.random.Philox(key=np.array([args.seed, i], np.uint64))).random(n)
                            for i in range(N)])
    progress = Progress(label, N * n)
    for prompt, rows in batches(prompt_index, order, args.batch):
        logits = engine.start(prompts[prompt], len(rows))
        for t in range(n):
            for row, i in zip(logits, rows):
                lp = log_softmax(row, args.temperature, suppressed)
                ids, lps = largest(lp, max(args.store_k, args.top_k))
                if sampling:
                    tokens[i, t] = ids[draw(lps[: args.top_k], uniform[i, t])]
                own = tokens[i, t]
                records.ids[i, t], records.lps[i, t] = ids[: args.store_k], lps[: args.store_k]
                records.ids[i, t][lps[: args.store_k] == -np.inf] = -1
                records.own[i, t] = lp[own]
                records.rank[i, t] = (lp > lp[own]).sum() + (lp[:own] == lp[own]).sum()
            progress.add(len(rows))
            if t + 1 < n:
                logits = engine.step(tokens[rows, t])
    return tokens, records


# ---- the two commands ----


def prompt_tensors(prompts, prompt_index):
    return dict(prompt_ids=np.concatenate(prompts).astype(np.int32),
                prompt_offsets=np.cumsum([0] + [len(p) for p in prompts]).astype(np.int32),
                prompt_index=np.asarray(prompt_index, np.int32))


def metadata_of(args, engine, side, of_set, number, seed):
    serving = dict(batch=args.batch, order=args.order, arrivals="together", top_k=args.top_k, store_k=args.store_k,
                   temperature=args.temperature, eos="ignore" if args.ignore_eos else "suppress",
                   pass_seed=args.pass_seed, threads=args.threads)
    return {"format": "tvgpu-trace/1", "side": side, "set": of_set, "pass": str(number), "k": str(args.store_k),
            "temperature": repr(float(args.temperature)), "seed": str(seed),
            "configuration": json.dumps(engine.configuration | serving)}


def check_stored(path, metadata):
    """What lies there was made by this command."""
    _, theirs = read_trace(path)
    x, y = json.loads(theirs["configuration"]), json.loads(metadata["configuration"])
    for key in sorted(x.keys() | y.keys()):
        if x.get(key) != y.get(key):
            fail(f"{path} was made by another command: {key} is {x.get(key)!r} there and {y.get(key)!r} here; "
                 "name another folder with -o")


def given_prompts(args, chat):
    """Prompts, the prompt of each trajectory, N and n: from the options, else as the other side has them."""
    other = pathlib.Path(args.out) / f"{'b' if args.side == 'a' else 'a'}.samples.safetensors"
    if args.tokens is None and args.prompt is None and other.exists():
        theirs, _ = read_trace(other)
        prompts = prompts_of(theirs)
        N, n = args.trajectories or len(theirs["tokens"]), args.length or theirs["tokens"].shape[1]
        index = theirs["prompt_index"][:N] if N <= len(theirs["prompt_index"]) else np.arange(N) % len(prompts)
        return prompts, index, N, n
    if args.tokens is not None:
        ids = [int(x) for x in args.tokens.replace(",", " ").split()]
    else:
        ids = chat(args.system, args.prompt or PROMPT)
    if not ids or min(ids) < 0:
        fail("the prompt has no token ids, or negative ones")
    return [np.array(ids, np.int32)], np.zeros(args.trajectories or 128, np.int32), args.trajectories or 128, args.length or 128


def longest(args):
    """Tokens of the longest trajectory that the command will handle, for engines that size a cache beforehand."""
    lengths = [args.length or 0]
    for side in "ab":
        path = pathlib.Path(args.out) / f"{side}.samples.safetensors"
        if path.exists():
            lengths.append(read_trace(path)[0]["tokens"].shape[1])
    return max(lengths) or 128


def sample(args, engine, chat):
    path = pathlib.Path(args.out) / f"{args.side}.samples.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    seed = args.seed = args.seed if args.seed is not None else int(args.side == "b")
    metadata = metadata_of(args, engine, args.side, args.side, -1, seed)
    if path.exists():
        check_stored(path, metadata)
        print(f"{path} is there already", file=sys.stderr)
        return
    prompts, index, N, n = given_prompts(args, chat)
    tokens, records = follow(engine, args, prompts, index, N, n, range(N), f"sampling side {args.side}")
    write_trace(path, dict(tokens=tokens, trajectory=np.arange(N, dtype=np.int64)) | records.tensors()
                | prompt_tensors(prompts, index), metadata)
    print(f"wrote {path}", file=sys.stderr)


def score(args, engine):
    found = False
    for of_set in "ab":
        samples = pathlib.Path(args.out) / f"{of_set}.samples.safetensors"
        if not samples.exists():
            continue
        found = True
        theirs, about = read_trace(samples)
        if float(about["temperature"]) != args.temperature:
            fail(f"{samples} was sampled at temperature {about['temperature']}; give the same with --temperature")
        if "lengths" in theirs:
            fail(f"{samples} holds trajectories that end early; sample with --suppress-eos or --ignore-eos")
        tokens, prompts = theirs["tokens"], prompts_of(theirs)
        if tokens.max() >= engine.vocab_size:
            fail(f"{samples} holds token {tokens.max()}; this model's vocabulary has {engine.vocab_size}")
        for number in range(args.repeats):
            path = samples.with_name(f"{args.side}-on-{of_set}.pass-{number:04d}.safetensors")
            metadata = metadata_of(args, engine, args.side, of_set, number, int(about["seed"]))
            if path.exists():
                check_stored(path, metadata)
                continue
            order = np.arange(len(tokens))
            if args.order == "shuffled":
                order = np.random.Generator(np.random.Philox(
                    key=np.array([args.pass_seed, number], np.uint64))).permutation(len(tokens))
            _, records = follow(engine, args, prompts, theirs["prompt_index"], *tokens.shape, order,
                                f"{args.side} on {of_set}, pass {number + 1}/{args.repeats}", tokens)
            kept = {x: theirs[x] for x in ("tokens", "trajectory", "prompt_ids", "prompt_offsets", "prompt_index")}
            write_trace(path, kept | records.tensors(), metadata)
    if not found:
        fail(f"{args.out} holds no SIDE.samples.safetensors: draw trajectories with tvgpu sample, or with sample here")


def parser(doc):
    """The options that every exporter has."""
    p = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("command", choices=["sample", "score"])
    p.add_argument("model", metavar="MODEL", help="checkpoint folder in the Hugging Face layout")
    p.add_argument("-o", "--out", required=True, metavar="DIR", help="folder of the trace files, shared by both sides")
    p.add_argument("--side", choices="ab", default="b", help="which side this engine is (default b)")
    p.add_argument("-N", "--trajectories", type=int, metavar="N", help="to sample (default: as the other side, else 128)")
    p.add_argument("-n", "--length", type=int, metavar="n", help="tokens of each (default: as the other side, else 128)")
    p.add_argument("-R", "--repeats", type=int, default=2, metavar="R", help="passes over each set (default 2)")
    p.add_argument("--prompt", metavar="TEXT", help="the user's message (default: the other side's prompt, else the "
                   "case study's)")
    p.add_argument("--system", default=SYSTEM, metavar="TEXT", help=f'the system message (default "{SYSTEM}")')
    p.add_argument("--tokens", metavar="IDS", help='the prompt as token ids "1 2 3" instead')
    p.add_argument("--seed", type=int, metavar="S", help="sampling seed (default 0 for side a, 1 for side b)")
    p.add_argument("--temperature", type=float, default=1, metavar="T", help="sampling temperature (default 1)")
    p.add_argument("--top-k", type=int, default=20, metavar="K", help="sampling takes the K most likely (default 20)")
    p.add_argument("--store-k", type=int, default=32, metavar="K", help="log-probabilities recorded per token (default 32)")
    p.add_argument("--batch", type=int, default=0, metavar="B", help="sequences at once (default 0: all)")
    p.add_argument("--order", choices=["fixed", "shuffled"], default="fixed",
                   help="whether each pass draws other batches (default fixed)")
    p.add_argument("--pass-seed", type=int, default=0, metavar="S", help="seed of those draws (default 0)")
    p.add_argument("--ignore-eos", action="store_true",
                   help="end-of-text is an ordinary token (default: it has probability 0)")
    p.add_argument("--threads", type=int, default=0, metavar="T", help="CPU threads (default 0: the engine's own choice)")
    return p


def check(args):
    if not args.temperature > 0 or args.temperature == float("inf"):
        fail(f"--temperature {args.temperature}: a number above 0")
    for name in ("top_k", "store_k", "repeats"):
        if getattr(args, name) < 1:
            fail(f"--{name.replace('_', '-')} {getattr(args, name)}: at least 1")
    for name in ("trajectories", "length"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            fail(f"--{name} {getattr(args, name)}: at least 1")


def eos_ids(model):
    """End-of-text ids of a checkpoint folder: generation_config.json's, else config.json's."""
    for name in ("generation_config.json", "config.json"):
        path = pathlib.Path(model) / name
        if path.exists() and (ids := json.loads(path.read_text()).get("eos_token_id")) is not None:
            return ids if isinstance(ids, list) else [ids]
    return []
