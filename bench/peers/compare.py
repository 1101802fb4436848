"""The same replay in tvgpu, llama.cpp and transformers, side by side on random weights; `make bench-peers` prepares all of it.

    python3 compare.py --tvgpu PROGRAM --models DIR [--shapes medium,moe,0.6b] [--threads 1] [--rounds 5] [--seconds 0.3]
                       [--batches 1,8,32,128] [--contexts 4,512] [--csv FILE]
                       [--peers llama-bf16,llama-f16,transformers-f32,transformers-bf16]

A step gives each of B sequences one token and takes the 20 most likely next ones with their log-probabilities; all engines get the
same ids. Each engine is a process of its own that holds its model; they take turns, round after round, in an order that moves on
with each round, so that what the machine does otherwise meets all of them. A round's value is the median of its steps; the table has the
median over the rounds, and for peers the median ratio to tvgpu in the same round. With one thread processor time is
compared, which other programs on the machine disturb little; with more, elapsed time, on a machine that should be idle. All
engines of the 0.6B shape together take 17 GB of memory.
"""
import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
import machine

# Tokens in the caches of long contexts, which each engine holds for itself; transformers copies its own, in f32, at every step.
MOST_CACHED = {"0.6b": 16384}
MOST_COPIED = {"0.6b": 4096}
MOST_BF16 = 32  # rows of a step for which transformers in bf16 is still worth waiting
# What tvgpu aims at, as multiples of the peers' speed: (shape, what, batch) -> peer -> ratio.
AIMS = {
    ("0.6b", "decode", 1): {"llama.cpp bf16": 1.15},
    ("0.6b", "decode", 8): {"llama.cpp bf16": 2},
    ("0.6b", "decode", 32): {"llama.cpp bf16": 1.6, "llama.cpp f16": 1.2, "transformers f32": 2.7, "transformers bf16": 7},
    ("0.6b", "decode", 128): {"llama.cpp bf16": 1.5},
    ("0.6b", "prefill", 1): {"llama.cpp bf16": 1.4, "transformers f32": 1.2},
    ("medium", "decode", 32): {"llama.cpp bf16": 1.7, "transformers f32": 2.3},
}


class Worker:
    def __init__(self, command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.facts = self.read()
        self.name = self.facts["name"]

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"{' '.join(self.process.args)} ended with code {self.process.wait()}")
        return json.loads(line)

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.read()

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def start(o, shape, threads):
    model = f"{o.models}/{shape}"
    commands = {
        "llama-bf16": ["steps_llama.py", f"{model}/model.bf16.gguf"],
        "llama-f16": ["steps_llama.py", f"{model}/model.f16.gguf"],
        "transformers-f32": ["steps_transformers.py", model, "float32"],
        "transformers-bf16": ["steps_transformers.py", model, "bfloat16"],
    }
    workers = [Worker([o.tvgpu, "bench", "steps", model, "--threads", str(threads)])]
    for peer in o.peers:
        script, *words = commands[peer]
        workers.append(Worker([sys.executable, f"{HERE}/{script}", *words, str(threads)]))
    return workers


def mad(values):
    middle = statistics.median(values)
    return statistics.median(abs(v - middle) for v in values)


class Table:
    def __init__(self, o):
        self.o, self.rows = o, []
        print(f"{'shape':7} {'threads':>7} {'what':8} {'batch':>5} {'context':>7}  {'engine':18} {'ms':>9} {'+-':>5}  {'tokens/s':>9}  times tvgpu's")

    def add(self, shape, threads, what, batch, context, rows, results, limits, facts):
        """results: engine -> its value of each round."""
        ours = results["tvgpu"]
        for engine, values in results.items():
            ms = statistics.median(values) * 1e3
            line = f"{shape:7} {threads:7} {what:8} {batch:5} {context:7}  {engine:18} {ms:9.2f} {100 * mad(values) / (ms / 1e3):4.0f}%  {rows / ms * 1e3:9.1f}  "
            row = dict(shape=shape, threads=threads, what=what, batch=batch, context=context, engine=engine, ms=ms, mad_ms=mad(values) * 1e3, rounds=len(values))
            if engine == "tvgpu":
                head = rows if what == "decode" else 1
                flop = rows * facts["flop_per_row"] - (rows - head) * facts["head_flop"]
                fma = flop / statistics.median(values) / 1e9 / limits["gflops"]
                head_bytes, row_bytes = facts["head_flop"], facts["flop_per_row"] - facts["head_flop"]  # bf16: 2 bytes, 2 operations
                met = min(facts["weight_bytes"], rows * row_bytes + head_bytes)  # at most: as if no two rows chose the same expert
                read = met / statistics.median(values) / 1e9 / limits["read_gbs"]
                row.update(fma_fraction=fma, read_fraction=read)
                line += f"weights' products at {100 * fma:.0f}% of the multiply-add limit, their reading at {'most ' if row_bytes + head_bytes < facts['weight_bytes'] else ''}{100 * read:.0f}% of the read limit"
            else:
                ratios = [v / u for v, u in zip(values, ours)]
                ratio = statistics.median(ratios)
                aim = AIMS.get((shape, what, batch), {}).get(engine)
                row.update(ratio=ratio, ratio_mad=mad(ratios), aim=aim)
                line += f"{ratio:5.2f} +- {mad(ratios):.2f}" + (f"  aim {aim:g}{'' if ratio >= aim else ': MISSED'}" if aim and (context == min(self.o.contexts) or what == "prefill") else "")
            self.rows.append(row)
            print(line, flush=True)


def rounds(o, workers, ask, clock):
    """engine -> the median of each round's steps, and the limits around them."""
    results, limits = {w.name: [] for w in workers}, []
    for r in range(o.rounds):
        limits.append(workers[0].ask("limits") if workers[0].name == "tvgpu" else None)
        for i in range(len(workers)):
            w = workers[(i + r) % len(workers)]
            time.sleep(0.05)  # threads of the one before stop spinning
            results[w.name].append(statistics.median(w.ask(ask)[clock]))
    return results, {k: statistics.median(x[k] for x in limits) for k in ("gflops", "read_gbs")}


def measure(o, shape, threads, table):
    clock = "cpu" if threads == 1 else "wall"
    workers = start(o, shape, threads)
    ours = workers[0]
    config = json.load(open(f"{o.models}/{shape}/config.json"))
    facts = dict(ours.facts, head_flop=2 * config["vocab_size"] * config["hidden_size"])
    for context in o.contexts:
        long = context >= 128
        fits = lambda b, most: not long or b * context <= most.get(shape, 32 * context)
        batches = [b for b in o.batches if fits(b, MOST_CACHED)]
        some = [w for w in workers if not (long and w.name == "transformers bf16")]
        for w in some:
            w.ask(f"open {max(batches)} {context + 60}")
            if not long:
                w.ask(f"prefill {context}")
        if long:
            results, limits = rounds(o, some, f"prefill {context}", clock)
            table.add(shape, threads, "prefill", 1, context, context, results, limits, facts)
        for b in batches:
            among = [w for w in some if not (w.name == "transformers bf16" and b > MOST_BF16)
                     and (not w.name.startswith("transformers") or fits(b, MOST_COPIED))]
            for w in among:
                w.ask(f"decode {b} {context} 0")  # the first step at a new size allocates
            results, limits = rounds(o, among, f"decode {b} {context} {o.seconds}", clock)
            table.add(shape, threads, "decode", b, context, b, results, limits, facts)
        for w in some:
            w.ask("close")
    for w in workers:
        w.end()


def main():
    numbers = lambda text: [int(x) for x in text.split(",")]
    p = argparse.ArgumentParser()
    p.add_argument("--tvgpu", required=True)
    p.add_argument("--models", required=True)
    p.add_argument("--shapes", default="medium,moe,0.6b", type=lambda t: t.split(","))
    p.add_argument("--threads", default=[1], type=numbers)
    p.add_argument("--rounds", default=5, type=int)
    p.add_argument("--seconds", default=0.3, type=float)
    p.add_argument("--batches", default=[1, 8, 32, 128], type=numbers)
    p.add_argument("--contexts", default=[4, 512], type=numbers)
    p.add_argument("--peers", default="llama-bf16,llama-f16,transformers-f32,transformers-bf16", type=lambda t: t.split(","))
    p.add_argument("--csv")
    o = p.parse_args()
    print(f"{machine.name()}: median of {o.rounds} rounds; one thread: processor time, more: elapsed time")
    table = Table(o)
    for threads in o.threads:
        for shape in o.shapes:
            measure(o, shape, threads, table)
    if o.csv:
        columns = list(dict.fromkeys(k for row in table.rows for k in row))
        with open(o.csv, "w", newline="") as f:
            writer = csv.DictWriter(f, columns, lineterminator="\n")
            writer.writeheader()
            for row in table.rows:
                writer.writerow({k: f"{v:.4g}" if isinstance(v, float) else v for k, v in row.items()})


main()
