"""How the cost of a run grows: processor time and memory of `tvgpu compare` against one size at a time, with fitted exponents.

    python3 bench/growth.py --tvgpu build/tvgpu [--axes N,n,B,k,R,model] [--csv FILE] [--work DIR]

Each point is a whole run in a fresh folder with one thread, the other sizes at their base; its cost is the processor time of the
process less that of the smallest run there is (loading, report). Processor time hardly depends on what else runs. The
exponent is the slope of a line through (log size, log cost), and `at the end` the slope of the last two points: where a fixed
part is shared by more and more work, the first approaches the second. Needs Python's standard library alone.
"""
import argparse
import csv
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import machine

BASE = {"N": 64, "n": 64, "R": 2, "k": 32, "B": 0}
AXES = {
    "N": ([16, 32, 64, 128, 256], "trajectories of a side"),
    "n": ([16, 32, 64, 128, 256], "tokens of a trajectory"),
    "B": ([1, 2, 4, 8, 16, 32, 64], "sequences at once, N = 64"),
    "k": ([4, 8, 16, 32, 64, 128], "log-probabilities recorded a token"),
    "R": ([1, 2, 4, 8], "passes"),
    "model": (["small", "medium", "0.6b"], "parameters; N = 8, n = 8"),
}


def run(command):
    """Processor seconds, peak memory in MB."""
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = status
    if status:
        sys.exit(f"{' '.join(command)} ended with status {status}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1000


def compare(o, sizes, model=()):
    folder = tempfile.mkdtemp(dir=o.work)
    words = [o.tvgpu, "compare", *model, "--threads", "1", "-q", "--always-repeat", "-o", f"{folder}/run"]
    words += ["-N", str(sizes["N"]), "-n", str(sizes["n"]), "-R", str(sizes["R"]), "--store-k", str(sizes["k"])]
    words += ["--batch", str(sizes["B"]), "--top-k", str(min(20, sizes["k"])), "--backend-b", "math"]
    cost = run(words)
    shutil.rmtree(folder)
    return cost


def slope(points):
    x, y = [math.log(a) for a, _ in points], [math.log(b) for _, b in points]
    mx, my = statistics.mean(x), statistics.mean(y)
    return sum((a - mx) * (b - my) for a, b in zip(x, y)) / sum((a - mx) ** 2 for a in x)


def model_points(o):
    prompts = f"{o.work}/prompts.jsonl"
    open(prompts, "w").write('{"ids": [1, 2, 3, 4]}\n')
    for shape in AXES["model"][0]:
        folder = f"{o.work}/{shape}"
        if not os.path.exists(f"{folder}/model.safetensors"):
            subprocess.run([o.tvgpu, "bench", "weights", shape, "-o", folder], check=True)
        parameters = os.path.getsize(f"{folder}/model.safetensors") / 2
        one = compare(o, BASE | {"N": 1, "n": 1, "R": 1}, [folder, "--prompts", prompts])
        seconds, memory = compare(o, BASE | {"N": 8, "n": 8}, [folder, "--prompts", prompts])
        yield parameters, seconds - one[0], memory


def axis_points(o, axis, least):
    for value in AXES[axis][0]:
        seconds, memory = compare(o, BASE | {axis: value})
        yield value, seconds - least, memory


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--tvgpu", required=True)
    p.add_argument("--axes", default=",".join(AXES))
    p.add_argument("--csv")
    p.add_argument("--work", help="for runs and models; default: a temporary folder that is removed")
    o = p.parse_args()
    made = None if o.work else tempfile.mkdtemp()
    o.work = o.work or made
    least = compare(o, BASE | {"N": 1, "n": 1, "R": 1})[0]
    print(f"{machine.name()}; base: {', '.join(f'{k} {v}' for k, v in BASE.items())}; the smallest run takes {least:.2f} s")
    rows = []
    print("| against | sizes | processor seconds | exponent | at the end | MB | exponent |\n|---|---|---|---|---|---|---|")
    for axis in o.axes.split(","):
        points = list(model_points(o) if axis == "model" else axis_points(o, axis, least))
        rows += [{"axis": axis, "size": f"{x:.0f}", "cpu_seconds": f"{s:.4g}", "memory_mb": f"{m:.4g}"} for x, s, m in points]
        time, memory = [(x, max(s, 1e-3)) for x, s, _ in points], [(x, m) for x, _, m in points]
        cells = [f"{axis}: {AXES[axis][1]}", ", ".join(f"{x:.3g}" for x, _ in time), ", ".join(f"{s:.3g}" for _, s in time)]
        cells += [f"{slope(time):.2f}", f"{slope(time[-2:]):.2f}", ", ".join(f"{m:.0f}" for _, m in memory), f"{slope(memory):.2f}"]
        print("| " + " | ".join(cells) + " |", flush=True)
    if o.csv:
        with open(o.csv, "w", newline="") as f:
            writer = csv.DictWriter(f, rows[0], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    if made:
        shutil.rmtree(made)


main()
