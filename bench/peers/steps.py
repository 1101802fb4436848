"""The worker's side of what compare.py asks, for engines with a Python interface: the protocol of `tvgpu bench steps`
(bench/bench_steps.h). An engine has name, open(B, C), prefill(ids), decode(ids, pos), keep(b) and close()."""
import json
import os
import sys
import time

TOP = 20


def cpu():
    return time.clock_gettime(time.CLOCK_PROCESS_CPUTIME_ID)


def token(seq, pos, vocabulary):
    return (12345 + seq * 7919 + pos * 104729) % vocabulary


def timed(f, *args):
    wall, used = time.perf_counter(), cpu()
    f(*args)
    return time.perf_counter() - wall, cpu() - used


def serve(engine, vocabulary):
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print to standard output
    print(json.dumps({"name": engine.name}), file=out, flush=True)
    positions = 0
    for line in sys.stdin:
        words = line.split()
        answer = {}
        if words[0] == "open":
            positions = int(words[2])
            engine.open(int(words[1]), positions)
        elif words[0] == "prefill":
            wall, used = timed(engine.prefill, [token(0, i, vocabulary) for i in range(int(words[1]))])
            answer = {"wall": [wall], "cpu": [used]}
        elif words[0] == "decode":
            b, t, seconds = int(words[1]), int(words[2]), float(words[3])
            engine.keep(b)
            answer = {"wall": [], "cpu": []}
            begin = time.perf_counter()
            while not answer["wall"] or (time.perf_counter() - begin < seconds and t < positions):
                wall, used = timed(engine.decode, [token(s, t, vocabulary) for s in range(b)], t)
                answer["wall"].append(wall)
                answer["cpu"].append(used)
                t += 1
        elif words[0] == "close":
            engine.close()
        print(json.dumps(answer), file=out, flush=True)
