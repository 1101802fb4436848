"""The tables of docs/performance.md from what compare.py kept:  python3 table.py RESULTS.csv"""
import csv
import sys

PEERS = ("llama.cpp bf16", "llama.cpp f16", "transformers f32", "transformers bf16")


def cell(row):
    if not row:
        return "–"
    aim = row["aim"] and (row["context"] == "4" or row["what"] == "prefill")
    return f"{float(row['ratio']):.2f} ± {float(row['ratio_mad']):.2f}" + (f" ({float(row['aim']):g})" if aim else "")


def main():
    lines = {}
    for row in csv.DictReader(open(sys.argv[1])):
        key = int(row["threads"]), row["shape"], row["what"] == "prefill", int(row["context"]), int(row["batch"])
        lines.setdefault(key, {})[row["engine"]] = row
    last = None
    for (threads, shape, prefill, context, batch), engines in sorted(lines.items()):
        if threads != last:
            print(f"\n{threads} thread{'s' if threads > 1 else ''}:\n\n| shape, work | tvgpu | of the limit | {' | '.join(PEERS)} |\n|{'---|' * 7}")
            last = threads
        ours = engines["tvgpu"]
        multiply, read = float(ours["fma_fraction"]), float(ours["read_fraction"])
        limit = f"{100 * multiply:.0f}% FMA" if multiply > 0.4 else f"{100 * read:.0f}% read"
        work = f"prefill of {context}" if prefill else f"batch {batch}" + (f", context {context}" if context > 4 else "")
        print(f"| {shape}, {work} | {float(ours['ms']):.4g} ms | {limit} | {' | '.join(cell(engines.get(p)) for p in PEERS)} |")


main()
