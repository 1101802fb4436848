"""The plug-in and the hedged estimator in plain NumPy, to measure the C ones against.

    python3 numpy_estimator.py BUNDLE.safetensors READS

Prints one JSON object: seconds, cells a second and values. Written the straightforward way: arrays over all trajectories,
a loop over positions. The normal tail comes from SciPy where it is installed, else from math.erfc through np.vectorize.
"""
import json
import math
import struct
import sys
import time

import numpy as np

try:
    from scipy.special import erfc

    ERFC = "scipy"
except ImportError:
    erfc = np.vectorize(math.erfc, otypes=[float])
    ERFC = "math"

DTYPES = {"F32": np.float32, "I32": np.int32}


def load(path):
    raw = open(path, "rb").read()
    size = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8 : 8 + size])
    out = {}
    for name, t in header.items():
        if name == "__metadata__":
            continue
        lo, hi = t["data_offsets"]
        out[name] = np.frombuffer(raw[8 + size + lo : 8 + size + hi], DTYPES[t["dtype"]]).reshape(t["shape"])
    return out


def probabilities(ids, lps):
    """Renormalised over the slots: [..., k] f64, 0 for empty slots."""
    w = np.where(ids >= 0, np.exp(lps.astype(np.float64)), 0.0)
    return w / w.sum(-1, keepdims=True)


def plugin(a, reads):
    total = 0.0
    for s in "ab":
        tokens, logs = a[f"tokens_{s}"], []
        for e in "ab":
            ids, lps = a[f"ids_{e}_{s}"], a[f"lps_{e}_{s}"]
            q = 0.0
            for r in range(reads):
                p = probabilities(ids[r], lps[r])
                q = q + np.where(ids[r] == tokens[:, :, None], p, 0.0).sum(-1)
            with np.errstate(divide="ignore"):
                logs.append(np.log(q / reads).sum(-1))
        dead = np.isneginf(logs[0]) | np.isneginf(logs[1])
        with np.errstate(invalid="ignore"):
            z = np.tanh(np.abs(logs[0] - logs[1]) / 2)
        total += np.where(dead, 1.0, z).mean() / 2
    return total


def value(D, t, n, par):
    V, h, tau2 = par
    rem = n - 1 - t
    H, v = -math.expm1(-h * rem), V * rem / n
    with np.errstate(over="ignore", invalid="ignore"):
        if v + tau2 <= 0:
            G = np.where(D > 0, -np.expm1(-D), 0.0)
        else:
            S = math.sqrt(v + tau2)
            G = 0.5 * erfc(-(D + v / 2) / S / math.sqrt(2)) - np.exp(-D + tau2 / 2) * 0.5 * erfc(-(D - v / 2 - tau2) / S / math.sqrt(2))
    G = np.where(np.isposinf(D), 1.0, np.where(D < -700, 0.0, G))
    return H + (1 - H) * G


def lookup(candidates, ids, p):
    """p of each candidate [N,c] in a record's ids [N,k]."""
    return np.where(candidates[:, :, None] == ids[:, None, :], p[:, None, :], 0.0).sum(-1)


def arm(tokens, ids_o, lps_o, ids_w, lps_w, reads, par):
    N, n = tokens.shape
    half = reads // 2
    D = {s: np.zeros(N) for s in ("A", "B", "AB")}
    alive = {s: np.ones(N, bool) for s in ("A", "B", "AB")}
    T2, TA, TB, qv, haz = (np.zeros(N) for _ in range(5))
    parts = {"A": range(half), "B": range(half, reads), "AB": range(reads)}
    for t in range(n):
        rec_o = [(ids_o[r, :, t], probabilities(ids_o[r, :, t], lps_o[r, :, t])) for r in range(reads)]
        rec_w = [(ids_w[r, :, t], probabilities(ids_w[r, :, t], lps_w[r, :, t])) for r in range(reads)]
        cand = np.sort(np.concatenate([r[0] for r in rec_o], -1), -1)
        first = np.ones(cand.shape, bool)
        first[:, 1:] = cand[:, 1:] != cand[:, :-1]
        first &= cand >= 0
        own = [np.where(first, lookup(cand, *r), 0.0) for r in rec_o]
        oth = [np.where(first, lookup(cand, *r), 0.0) for r in rec_w]
        o = {s: sum(own[r] for r in reads_) / len(reads_) for s, reads_ in parts.items()}
        w = {s: sum(oth[r] for r in reads_) / len(reads_) for s, reads_ in parts.items()}
        with np.errstate(divide="ignore", invalid="ignore"):
            d = {s: np.where((o[s] > 0) & (w[s] > 0), np.log(o[s]) - np.log(w[s]), np.inf) for s in parts}
        if par is None:
            both = np.isfinite(d["A"]) & np.isfinite(d["B"])
            da, db, oab = np.where(both, d["A"], 0.0), np.where(both, d["B"], 0.0), np.where(both, o["AB"], 0.0)
            qv += (oab * da * db).sum(-1) - (oab * da).sum(-1) * (oab * db).sum(-1)
            m = {s: np.where(w[s] == 0, o[s], 0.0).sum(-1) for s in parts}
            haz += (2 * m["AB"] - (m["A"] + m["B"]) / 2) / n
        else:
            for s, acc in (("AB", T2), ("A", TA), ("B", TB)):
                F = {q: (o[q] * value(D[s][:, None] + d[q], t, n, par)).sum(-1) for q in parts}
                J = 2 * F["AB"] - (F["A"] + F["B"]) / 2 - (value(D[s], t - 1, n, par) if t else 0.0)
                acc += np.where(alive[s], J, 0.0)
        hit = first & (cand == tokens[:, t, None])
        for s in parts:
            step = np.where(hit, d[s], 0.0).sum(-1)
            step = np.where(hit.any(-1), step, np.inf)
            alive[s] = alive[s] & np.isfinite(step)
            D[s] = D[s] + np.where(alive[s], step, 0.0)
    if par is None:
        V = max(qv.mean() - qv.std(ddof=1) / math.sqrt(N), 0.0)
        both = alive["A"] & alive["B"]
        s2 = ((D["A"] - D["B"])[both] ** 2 / 4).mean() if both.any() else 0.0
        return V, max(haz.mean(), 0.0), min(s2 / 4, 0.05)
    zero = np.zeros(1)
    corr = value(zero, -1, n, (par[0], par[1], 0.0)) - value(zero, -1, n, par)
    T2, T2x = T2 + corr, (TA + TB) / 2 + corr
    return 2 * T2 - T2x


def hedged(a, reads):
    total = 0.0
    for s, e in (("a", "b"), ("b", "a")):
        args = (a[f"tokens_{s}"], a[f"ids_{s}_{s}"], a[f"lps_{s}_{s}"], a[f"ids_{e}_{s}"], a[f"lps_{e}_{s}"], reads)
        par = arm(*args, None)
        total += arm(*args, par).mean() / 2
    return total


def main():
    a, reads = load(sys.argv[1]), int(sys.argv[2])
    out = {"erfc": ERFC, "numpy": np.__version__}
    positions = a["tokens_a"].size + a["tokens_b"].size
    start = time.perf_counter()
    out["plugin"] = float(plugin(a, reads))
    out["plugin_seconds"] = time.perf_counter() - start
    out["plugin_cells_per_second"] = positions * 2 * reads / out["plugin_seconds"]
    start = time.perf_counter()
    out["hedged"] = float(hedged(a, 2))
    out["hedged_seconds"] = time.perf_counter() - start
    out["hedged_cells_per_second"] = positions / out["hedged_seconds"]
    print(json.dumps(out))


main()
