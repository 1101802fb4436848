#!/usr/bin/env python3
"""Do the estimator tests notice mistakes? Changes one place of the estimator sources at a time (a flipped sign, an off-by-one, a
wrong divisor), rebuilds the tests in a copy of the tree, and expects at least one of them to fail.

    tools/mutate_estimator.py [--per-file 10] [--seed 1] [--files hedged_cell.h,stats.h] [--all] [--list]

Mutants that no test can notice because they change nothing are named in EQUIVALENT with the reason, and skipped. Ends with 1
when a mutant survives. A run of the default size takes about five minutes of an idle core.
"""
import argparse
import concurrent.futures
import glob
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Words and pages, and a study that prints what the rest computes; hard_mask.h is data.
SKIP_FILES = {"synth_report.c", "hard_mask.h", "report.h", "report.c", "report_text.c", "report_html.c", "report_view.c", "report_view.h"}
# Slow statistical tests add nothing here.
SKIP_TESTS = {"synthetic_coverage", "synthetic_report"}

# (file, line as it stands, mutated line): why it cannot be noticed.
EQUIVALENT = {}


def equivalent(file, old, new, reason):
    EQUIVALENT[(file, old.strip(), new.strip())] = reason


equivalent("hedged.c", "drop += 0.5 * tv_stats_mean(z, arm->N);", "drop -= 0.5 * tv_stats_mean(z, arm->N);", "only its magnitude is used")
SQUARED = "the work is squared before it is used"
ROUNDING = "the compensation makes up for it, or only the last bits differ"
equivalent("schedule.c", "bias += mean / n_arms;", "bias -= mean / n_arms;", "only its magnitude is used")
equivalent("schedule.c", "for (int l = 0; l < s->L; l++) work += sqrt(V[l] * r[l]);", "for (int l = 0; l < s->L; l++) work -= sqrt(V[l] * r[l]);", SQUARED)
equivalent("schedule.c", 'out, "theta", full.V0[n_levels - 1] > 0 ? least / (full.V0[n_levels - 1] * (double)full.r[n_levels - 1]) : NAN);',
           'out, "theta", full.V0[n_levels - 2] > 0 ? least / (full.V0[n_levels - 1] * (double)full.r[n_levels - 1]) : NAN);', "a guard against 0 alone")
equivalent("stats.h", "const double next = sum + x[i];", "const double next = sum - x[i];", ROUNDING)
for wrong in ("const double d = (x[i] + mean) * (x[i] - mean), next = sum + d;", "const double d = (x[i] - mean) * (x[i] + mean), next = sum + d;",
              "const double d = (x[i] - mean) * (x[i] - mean), next = sum - d;"):
    equivalent("stats.h", "const double d = (x[i] - mean) * (x[i] - mean), next = sum + d;", wrong, ROUNDING)
equivalent("stats.h", "lost += fabs(sum) >= d ? (sum - next) + d : (d - next) + sum;", "lost -= fabs(sum) >= d ? (sum - next) + d : (d - next) + sum;", ROUNDING)
equivalent("stats.h", "return (sum + lost) / (double)(N - 1);", "return (sum - lost) / (double)(N - 1);", ROUNDING)
equivalent("schedule.c", "tv_philox(seed + 1, draw,", "tv_philox(seed + 2, draw,", "another stream of random numbers")
equivalent("synthetic.c", "const double f = 0.5 * erfc(-z / M_SQRT2) - u, slope = exp(-0.5 * z * z) / sqrt(2 * M_PI);",
           "const double f = 0.5 * erfc(-z / M_SQRT2) - u, slope = exp(-0.25 * z * z) / sqrt(2 * M_PI);", "Newton's method finds the same root, more slowly")
equivalent("schedule.c", "(uint64_t)TV_USE_PILOT << 32 | (uint32_t)((l * 2 + a) << 20 | (int)(taken & 0xfffff)));",
           "(uint64_t)TV_USE_PILOT << 32 | (uint32_t)((l * 2 - a) << 20 | (int)(taken & 0xfffff)));", "another stream of random numbers")
equivalent("synthetic.c", "for (int q = 0; q < 5; q++) {", "for (int q = 1; q < 5; q++) {", "another instance, whose distance is exact all the same")
equivalent("synthetic.c", "static double stream_uniform(stream *s) { return ((double)stream_word(s) + 0.5) * 0x1p-32; }",
           "static double stream_uniform(stream *s) { return ((double)stream_word(s) - 0.5) * 0x1p-32; }", "moves a uniform by 2^-32")
equivalent("synthetic.c", "const int tail = BLOCKS - 1;", "const int tail = BLOCKS + 1;", "leaves two contexts that nothing reaches")
equivalent("synthetic.c", "const double x = p[0] + o->sigma * sqrt(p[0] * (1 - p[0])) * stream_normal(g);",
           "const double x = p[0] - o->sigma * sqrt(p[0] * (1 - p[0])) * stream_normal(g);", "the noise is symmetric")
equivalent("synthetic.c", "if (q != 1) log_e[e] += log(q);", "if (q != 1) log_e[e] -= log(q);", "both sides' logarithms turn: the difference keeps its magnitude")

equivalent("calibrate.c", "for (int64_t r = 1; r < R && j.n_sizes < TV_CAL_SIZES - 1; r *= 2) size_r[j.n_sizes++] = r;",
           "for (int64_t r = 1; r < R && j.n_sizes < TV_CAL_SIZES - 2; r *= 2) size_r[j.n_sizes++] = r;", "told apart by 4 million passes alone")
equivalent("calibrate.c", "j.n_lags = (int)(R - 1 < TV_CAL_LAGS ? R - 1 : TV_CAL_LAGS);",
           "j.n_lags = (int)(R - 2 < TV_CAL_LAGS ? R - 1 : TV_CAL_LAGS);", "where R - 1 is TV_CAL_LAGS both branches say so")
equivalent("onset.c", "if (p[x] > 0) u->sum[into][tv_union_at(u, ids[x], x)] += p[x] / (double)(to - from);",
           "if (p[x] > 0) u->sum[into][tv_union_at(u, ids[x], x)] -= p[x] / (double)(to - from);", "all sums turn, and only magnitudes of differences are used")
equivalent("vecmath.h", "tv_v4i biased = (tv_v4i)((((tv_v4u)k + 0x8000000000000000u) >> 52) | 0x4330000000000000u);",
           "tv_v4i biased = (tv_v4i)((((tv_v4u)k - 0x8000000000000000u) >> 52) | 0x4330000000000000u);", "2^63 is its own negative in 64 bits")
equivalent("synthetic.c", "const int topic = s / per_topic < o->topics ? s / per_topic : o->topics - 1;",
           "const int topic = s / per_topic < o->topics ? s / per_topic : o->topics - 2;", "another instance, whose distance is exact all the same")

RULES = [
    ("sign", re.compile(r"(?<=[\w)\]]) \+ (?=[\w(\-])"), " - "),
    ("sign", re.compile(r"(?<=[\w)\]]) - (?=[\w(])"), " + "),
    ("sign", re.compile(r"(?<=[\w)\]]) \+= (?=[\w(\-])"), " -= "),
    ("sign", re.compile(r"(?<=[\w)\]]) -= (?=[\w(])"), " += "),
    ("sign", re.compile(r"(?<=[=(,:?] )-(?=[a-z(])"), ""),
    ("off by one", re.compile(r"(?<= = )0(?=; \w+ <)"), "1"),
    ("off by one", re.compile(r"(?<=[\w)\]] [-+] )1(?=[\s;,)\]])"), "2"),
    ("divisor", re.compile(r"\((\w+) - 1\)"), r"(\1)"),
    ("factor", re.compile(r"\b0\.5 \* "), "0.25 * "),
    ("factor", re.compile(r"\b2 \* (?=[a-z])"), "3 * "),
]
# Places that are no arithmetic of an estimator: messages, memory, pointers, sizes.
NOT_CODE = re.compile(r"TV_FAIL|alloc|sizeof|memcpy|memset|snprintf|^\s*(/?\*|//|#|\"|case |enum|typedef)|tv_progress|fprintf|\bsize_t \w+ = |^\s*extern |free\(")


def mutants(path):
    file = os.path.basename(path)
    lines = open(path).read().split("\n")
    comment = statement_fails = False
    for number, line in enumerate(lines):
        starts, ends = "/*" in line, "*/" in line
        code = line
        if comment:
            comment = not ends
            continue
        if starts:
            code = line[: line.index("/*")]
            comment = not ends
        if "TV_FAIL(" in code:
            statement_fails = True
        if statement_fails:
            statement_fails = ";" not in re.sub(r'"(\\.|[^"])*"', "", code)
            continue
        if NOT_CODE.search(code) or not code.strip():
            continue
        for kind, rule, to in RULES:
            for hit in rule.finditer(code):
                if code[: hit.start()].count('"') % 2:
                    continue
                new = code[: hit.start()] + hit.expand(to) + code[hit.end() :] + line[len(code) :]
                yield file, number, kind, line, new


def run(command, cwd, limit):
    try:
        done = subprocess.run(command, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=limit)
        return done.returncode
    except subprocess.TimeoutExpired:
        return "timeout"


class Build:
    """Objects and test programs of a tree. Only what includes a changed file is compiled again, and a test is linked only when
    one of its cases is to run."""

    def __init__(self, tree, jobs):
        self.tree, self.jobs = tree, jobs
        self.flags = "-O1 -std=gnu17 -Wall -Wextra -Werror -Wno-psabi -ffp-contract=off -fno-math-errno -fopenmp -D_GNU_SOURCE".split()
        self.flags += ["-I" + tree, f'-DTV_SOURCE_DIR="{tree}"', *self.pkg_config("--cflags")]
        self.libraries = [*self.pkg_config("--libs"), "-lm"]
        library = [path for part in ("base", "traces", "estimator") for path in glob.glob(os.path.join(tree, part, "*.c"))]
        library.append(os.path.join(tree, "tests/check.c"))
        tests = [path for path in sorted(glob.glob(os.path.join(tree, "tests/test_*.c"))) if '#include "estimator/' in open(path).read()]
        self.tests = {os.path.basename(path)[:-2]: self.object(path) for path in tests}
        self.sources = library + tests
        self.objects = [self.object(path) for path in library]
        self.includes = {}
        os.mkdir(os.path.join(tree, "build"))
        os.environ.update(TMPDIR=tree, OMP_WAIT_POLICY="passive")

    @staticmethod
    def pkg_config(what):
        command = ["pkg-config", what, "libcjson", "libpcre2-8", "libutf8proc", "libxxhash"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()

    def object(self, source):
        return os.path.join(self.tree, "build", os.path.relpath(source, self.tree).replace("/", "-")[:-1] + "o")

    def compile(self, changed=None):
        """Whether what includes the changed file compiles (warnings are errors); without one: everything."""

        def one(source):
            return run(["cc", *self.flags, "-MMD", "-c", source, "-o", self.object(source)], self.tree, 600) == 0

        sources = [source for source in self.sources if changed is None or changed in self.includes[source]]
        with concurrent.futures.ThreadPoolExecutor(self.jobs) as pool:
            compiled = all(pool.map(one, sources))
        if compiled and changed is None:
            for source in sources:
                self.includes[source] = open(self.object(source)[:-1] + "d").read().split()
        self.linked = set()
        return compiled

    def program(self, test):
        path = os.path.join(self.tree, "build", test)
        if test not in self.linked:
            if run(["cc", "-fopenmp", "-o", path, self.tests[test], *self.objects, *self.libraries], self.tree, 600) != 0:
                sys.exit(f"{test} does not link")
            self.linked.add(test)
        return path

    def cases(self):
        """(test, case, seconds) of every case; all must pass."""
        found = []
        for test in self.tests:
            listed = subprocess.run([self.program(test), "--list"], capture_output=True, text=True).stdout.split()
            for case in listed:
                start = time.time()
                if case in SKIP_TESTS:
                    continue
                if run([self.program(test), case], self.tree, 600) != 0:
                    sys.exit(f"{case} fails without any change: nothing can be learnt")
                found.append((test, case, time.time() - start))
        return found

    def killed_by(self, path, cases, hits):
        """The case that failed, "build" when it no longer compiles, or None. hits: cases that noticed earlier mutants of the file."""
        if not self.compile(path):
            return "build"
        stem = re.sub(r"_.*|\..*", "", os.path.basename(path))
        for test, case, _ in sorted(cases, key=lambda c: (-hits.count(c[1]), stem not in c[0], c[2])):
            if run([self.program(test), case], self.tree, 60) != 0:
                return case
        return None


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--per-file", type=int, default=10, help="mutants of each file, drawn at random (default 10)")
    ap.add_argument("--all", action="store_true", help="every mutant")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--files", help="only these files of estimator/, separated by commas")
    ap.add_argument("--jobs", type=int, default=1, help="compilers at a time (default 1)")
    ap.add_argument("--list", action="store_true", help="print the mutants and stop")
    a = ap.parse_args()
    files = sorted(glob.glob(os.path.join(ROOT, "estimator/*.[ch]")))
    files = [f for f in files if os.path.basename(f) not in SKIP_FILES]
    if a.files:
        files = [f for f in files if os.path.basename(f) in a.files.split(",")]
    chosen = []
    for path in files:
        found = [m for m in mutants(path) if (m[0], m[3].strip(), m[4].strip()) not in EQUIVALENT]
        if not a.all and len(found) > a.per_file:
            found = sorted(random.Random(f"{a.seed} {path[len(ROOT):]}").sample(found, a.per_file), key=lambda m: m[1])
        chosen += found
    if a.list:
        for file, number, kind, old, new in chosen:
            print(f"{file}:{number + 1} [{kind}]\n  - {old.strip()}\n  + {new.strip()}")
        print(len(chosen), "mutants")
        return 0
    tree = tempfile.mkdtemp(prefix="mutate-")
    survivors, hits, start = [], {}, time.time()
    try:
        for part in ("base", "traces", "kernels", "estimator", "models/tiny-qwen3", "tests"):
            shutil.copytree(os.path.join(ROOT, part), os.path.join(tree, part))
        build = Build(tree, a.jobs)
        if not build.compile():
            sys.exit("the copied tree does not compile")
        cases = build.cases()
        for count, (file, number, kind, old, new) in enumerate(chosen):
            path = os.path.join(tree, "estimator", file)
            text = open(path).read()
            lines = text.split("\n")
            lines[number] = new
            open(path, "w").write("\n".join(lines))
            by = build.killed_by(path, cases, hits.setdefault(file, []))
            open(path, "w").write(text)
            print(f"[{count + 1}/{len(chosen)}] {file}:{number + 1} {kind}: {'noticed by ' + by if by else 'SURVIVED'}", flush=True)
            if by:
                hits[file].append(by)
            else:
                survivors.append((file, number, old, new))
                print(f"    - {old.strip()}\n    + {new.strip()}", flush=True)
            if count + 1 == len(chosen) or chosen[count + 1][0] != file:
                build.compile(path)
    finally:
        shutil.rmtree(tree)
    caught = "all caught" if not survivors else f"{len(survivors)} NOT caught"
    print(f"{len(chosen)} mutants, {caught}, {len(EQUIVALENT)} equivalent; {time.time() - start:.0f} s")
    return 1 if survivors else 0


sys.exit(main())
