"""How the cost of a run grows: processor time and memory of `tvgpu compare` against one size at a time, with fitted exponents.

    python3 bench/growth.py --tvgpu build/tvgpu [--axes N,n,B,k,R,model] [--csv FILE.csv] [--plot DIR] [--work DIR]
    python3 bench/growth.py --from FILE.csv [--plot DIR]

Each point is a whole run in a fresh folder with one thread, the other sizes at their base; its cost is the processor time of the
process less that of the smallest run there is (loading, report). Processor time hardly depends on what else runs. The
exponent is the slope of a line through (log size, log cost), and `at the end` the slope of the last two points: where a fixed
part is shared by more and more work, the first approaches the second. --csv DIR writes DIR/PROCESSOR-growth.csv. --plot draws
DIR/growth.png with gnuplot: every size's points with the fitted lines and exponents. --from takes the points of an earlier run
instead of measuring. Needs Python's standard library alone.
"""
import argparse
import csv
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import machine

LEAST = 1e-3 # seconds: what is left of a run no longer than the smallest still has a logarithm
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
        yield parameters, max(seconds - one[0], LEAST), memory


def axis_points(o, axis, least):
    for value in AXES[axis][0]:
        seconds, memory = compare(o, BASE | {axis: value})
        yield value, max(seconds - least, LEAST), memory


COLOURS = {"time": "#10284f", "memory": "#a33412"}
LABELS = {"time": "processor time, s", "memory": "peak memory, MB"}
COLUMNS = 3


def points_of(rows, axis):
    return ((float(r["size"]), float(r["cpu_seconds"]), float(r["memory_mb"])) for r in rows if r["axis"] == axis)


def ends(values, margin):
    return f"[{min(values) / margin:.6g}:{max(values) * margin:.6g}]"


def powers(values):
    return range(math.floor(math.log10(min(values))), math.ceil(math.log10(max(values))) + 1)


def tics(values):
    """The sizes themselves, or powers of ten where there are too many digits to print."""
    return ", ".join(f"{x:.0f}" for x in values) if max(values) < 1e4 else ", ".join(f"'10^{{{p}}}' 1e{p}" for p in powers(values))


def panel(number, axis, points, first, last):
    """Time against the left axis, memory against the right one, each with the line whose slope is the exponent."""
    symbol = "parameters" if axis == "model" else axis
    out, title, elements = [f"$d{number} << EOD", *(f"{x:.9g} {s:.9g} {m:.9g}" for x, s, m in points), "EOD"], [], []
    for column, which, y_axis, dash, mark in ((2, "time", "x1y1", "1", 7), (3, "memory", "x1y2", "'-'", 4)):
        line = [(p[0], p[column - 1]) for p in points]
        exponent = slope(line)
        start = math.exp(statistics.mean(math.log(y) - exponent * math.log(x) for x, y in line))
        style = f"axes {y_axis} lc rgb '{COLOURS[which]}'"
        elements.append(f"{start:.9g} * x ** {exponent:.9g} {style} lw 1.4 dt {dash} notitle")
        elements.append(f"$d{number} using 1:{column} with points {style} pt {mark} ps 1 notitle")
        title.append(f"{which} ∝ {symbol}^{{{exponent:.2f}}}")
    sizes = [p[0] for p in points]
    out += [f"set title \"{{/:Bold {axis}: {AXES[axis][1]}}}\\n{',   '.join(title)}\"", f"set xrange {ends(sizes, 1.15)}",
            f"set xtics ({tics(sizes)})"]
    for name, which, shown in (("y", "time", first), ("y2", "memory", last)):
        out.append(f"set {name}label '{LABELS[which] if shown else ''}' tc rgb '{COLOURS[which]}'")
        out.append(f"set format {name} '{'%h' if shown else ''}'")
    return out + ["plot " + ", ".join(elements)]


def plot(rows, path):
    """One panel a size. All have the same axes of time and memory, so that heights can be compared."""
    axes = list(dict.fromkeys(r["axis"] for r in rows))
    points = {a: list(points_of(rows, a)) for a in axes}
    columns = min(COLUMNS, len(axes))
    lines = -(-len(axes) // columns)
    script = [f"set terminal pngcairo size {columns * 600},{lines * 520} font 'Sans,11' fontscale 1.5 linewidth 1.8 pointscale 1.5",
              "set encoding utf8", "set border 11 lw 1", "set tics nomirror out", "set grid lc rgb '#e3e6ea' lt 1 lw 0.6",
              "set logscale xyy2"]
    for column, name, which in ((1, "y", "time"), (2, "y2", "memory")):
        values = [p[column] for a in axes for p in points[a]]
        marks = ", ".join(f"{m * 10.0 ** p:g}" for p in powers(values) for m in (1, 3))
        script += [f"set {name}range {ends(values, 1.3)}", f"set {name}tics ({marks}) tc rgb '{COLOURS[which]}'"]
    script.append(f"set multiplot layout {lines},{columns} margins {0.18 / columns:.3f},{1 - 0.21 / columns:.3f},"
                  f"{0.13 / lines:.3f},{1 - 0.2 / lines:.3f} spacing {0.09 / columns:.3f},{0.33 / lines:.3f}")
    for number, axis in enumerate(axes):
        script += panel(number, axis, points[axis], number % columns == 0, (number + 1) % columns == 0 or axis == axes[-1])
    with open(path, "wb") as f:
        subprocess.run(["gnuplot", "-"], input="\n".join(script + ["unset multiplot", ""]).encode(), stdout=f, check=True)


HEAD = "| against | sizes | processor seconds | exponent | at the end | MB | exponent |\n|---|---|---|---|---|---|---|"


def table_row(axis, points):
    time, memory = [(x, s) for x, s, _ in points], [(x, m) for x, _, m in points]
    cells = [f"{axis}: {AXES[axis][1]}", ", ".join(f"{x:.3g}" for x, _ in time), ", ".join(f"{s:.3g}" for _, s in time)]
    cells += [f"{slope(time):.2f}", f"{slope(time[-2:]):.2f}", ", ".join(f"{m:.0f}" for _, m in memory), f"{slope(memory):.2f}"]
    return "| " + " | ".join(cells) + " |"


def measure(o):
    made = None if o.work else tempfile.mkdtemp()
    o.work = o.work or made
    least = compare(o, BASE | {"N": 1, "n": 1, "R": 1})[0]
    print(f"{machine.name()}; base: {', '.join(f'{k} {v}' for k, v in BASE.items())}; the smallest run takes {least:.2f} s\n{HEAD}")
    for axis in o.axes.split(","):
        yield axis, list(model_points(o) if axis == "model" else axis_points(o, axis, least))
    if made:
        shutil.rmtree(made)


def stored(path):
    with open(path, newline="") as f:
        rows = list(csv.DictReader(f))
    print(HEAD)
    for axis in dict.fromkeys(r["axis"] for r in rows):
        yield axis, list(points_of(rows, axis))


def main():
    p = argparse.ArgumentParser()
    source = p.add_mutually_exclusive_group(required=True)
    source.add_argument("--tvgpu")
    source.add_argument("--from", dest="stored", help="a CSV file that --csv wrote")
    p.add_argument("--axes", default=",".join(AXES))
    p.add_argument("--csv", help="FILE.csv, or a folder that gets PROCESSOR-growth.csv")
    p.add_argument("--plot", help="a folder that gets growth.png")
    p.add_argument("--work", help="for runs and models; default: a temporary folder that is removed")
    o = p.parse_args()
    rows = []
    for axis, points in stored(o.stored) if o.stored else measure(o):
        rows += [{"axis": axis, "size": f"{x:.0f}", "cpu_seconds": f"{s:.4g}", "memory_mb": f"{m:.4g}"} for x, s, m in points]
        print(table_row(axis, points), flush=True)
    if o.csv:
        path = o.csv if o.csv.endswith(".csv") else f"{o.csv}/{machine.name()}-growth.csv"
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(path, "w", newline="") as f:
            writer = csv.DictWriter(f, rows[0], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    if o.plot:
        os.makedirs(o.plot, exist_ok=True)
        plot(rows, f"{o.plot}/growth.png")


main()
