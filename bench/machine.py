"""The machine as result files name it: its processor, not its host."""
import os
import platform
import re


def facts():
    out = {}
    try:
        for line in open("/proc/cpuinfo"):
            key, _, value = line.partition(":")
            out.setdefault(key.strip(), value.strip())
    except OSError:
        pass
    return out


def name():
    """"amd-epyc-25-1-2-cpus": processor, family and model where the system says them, cores that this process may use."""
    f = facts()
    text = f.get("model name") or platform.machine()
    parts = [text, f.get("cpu family", ""), f.get("model", ""), f"{len(os.sched_getaffinity(0))} cpus"]
    return re.sub(r"[^a-z0-9]+", "-", re.sub(r"\((r|tm)\)|cpu |processor", "", " ".join(parts).lower())).strip("-")
