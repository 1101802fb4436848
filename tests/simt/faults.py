#!/usr/bin/env python3
"""Plants one known kind of bug at a time in the kernels and shows which leg of the tests notices.

    tests/simt/faults.py [-b BUILD] [--all] [NAME...]

Legs: plain (the emulated card), asan, tsan, ptx (what nvcc makes of it, interpreted). A fault is given to one leg after
the other until one notices; with --all to every leg. NAMEs choose faults by parts of their names. Needs a finished build
and nvcc; only the file with the fault is compiled. Ends with 1 where a fault escapes every leg, or is not in the
sources any more.
"""
import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LEGS = ("plain", "asan", "tsan", "ptx")
SYNC = "        __syncthreads();\n"

# name; file with the fault; file to compile where that is a header; unit, and names of its tests to run; what to replace.
# "host": the fault is in a launcher, which no PTX shows.
FAULTS = [
    # barriers and warps
    ("rmsnorm: no barrier between the row and its sum", "rmsnorm.cu", None, "rows rmsnorm_formula rmsnorm",
     [(SYNC + "        if (threadIdx.x < 32) {\n            int i", "        if (threadIdx.x < 32) {\n            int i")]),
    ("rmsnorm: no barrier before a chunk is overwritten", "rmsnorm.cu", None, "rows rmsnorm norm_order",
     [("if (start) __syncthreads();", "")]),
    ("rmsnorm: threads beyond the row return early", "rmsnorm.cu", None, "rows rmsnorm_formula rmsnorm",
     [("    float chain = 0;\n    for (int start", "    if (first >= D) return;\n    float chain = 0;\n    for (int start")]),
    ("rope: half a warp skips the shuffles", "rope.cu", None, "rows rope", [("if (weight) {", "if (weight && lane < 16) {")]),
    ("rope: no __syncwarp before the rotation", "rope.cu", None, "rows rope", [("    __syncwarp();\n    const int half", "    const int half")]),
    ("moe_route: no __syncwarp before the sum", "moe_route.cu", None, "rows moe_route",
     [("    __syncwarp();\n    float sum = 0;", "    float sum = 0;")]),
    ("linear: no barrier between the copies and their use", "gemm_tile.h", "linear.cu", "linear slices schedules",
     [("        __syncthreads();                /* everyone", "        /* everyone")]),
    ("linear: no barrier before results take the operands' place", "gemm_tile.h", "linear.cu", "linear against_f64",
     [("    cp_async_wait<0>();\n    __syncthreads();\n", "    cp_async_wait<0>();\n")]),
    ("attention rows: no barrier after the queries are staged", "attention_math.cu", None, "attention rows_scratch",
     [(SYNC + "\n        float most[R];", "\n        float most[R];")]),
    ("attention flash: no barrier after the keys' copies", "attention_flash.cu", None, "attention flash_reference",
     [("flash_sync<WARPS>(); /* the keys are there", "/* the keys are there")]),
    ("logprobs: no barrier after n_kept is read", "logprobs.cu", None, "logprobs order",
     [("            __syncthreads(); /* all have read n_kept */", "            (void)0;")]),
    ("logprobs: a barrier that some warps skip", "logprobs.cu", None, "logprobs order",
     [("    if (lane == 0) largest[warp] = key;\n    __syncthreads();",
       "    if (lane == 0) largest[warp] = key;\n    if (threadIdx.x < 64) __syncthreads();")]),
    ("moe: one buffer for the counts of two turns", "moe.cu", None, "moe batch_invariance parts",
     [("int *counts = part[2 + turn];", "int *counts = part[2];")]),
    # asynchronous copies
    ("linear: waits for one copy too few", "gemm_tile.h", "linear.cu", "linear slices schedules",
     [("cp_async_wait<T::STAGES - 2>();", "cp_async_wait<T::STAGES - 1>();")]),
    ("linear: no empty group at the end", "gemm_tile.h", "linear.cu", "linear slices schedules",
     [("        cp_async_commit(); /* an empty", "        if (load_k < o.end) cp_async_commit(); /* an empty")]),
    # bounds and alignment
    ("rmsnorm: reads past the end of a row", "rmsnorm.cu", None, "rows rmsnorm_formula rmsnorm",
     [("for (int i = first; i < n; i += step) {", "for (int i = first; i < n + width; i += step) {")]),
    ("rmsnorm: one row too many", "rmsnorm.cu", "host", "rows rmsnorm_formula rmsnorm",
     [("(unsigned)a->M, (unsigned)threads, smem", "(unsigned)a->M + 1, (unsigned)threads, smem")]),
    ("swiglu: 16-byte loads from 8-byte addresses", "swiglu.cu", "host", "rows swiglu", [("a->F % 8 == 0 &&", "a->F % 4 == 0 &&")]),
    ("linear: rows beyond M are loaded", "gemm_tile.h", "linear.cu", "linear slices schedules",
     [("in_k && m0 + j * T::STEP + row < o.M;", "in_k;")]),
    ("linear: columns beyond N are stored", "gemm_tile.h", "linear.cu", "linear against_f64",
     [("m >= M || n >= N) continue;", "m >= M) continue;"), ("for (int e = 0; e < 8 && n + e < N; e++)", "for (int e = 0; e < 8; e++)")]),
    ("linear: less shared memory than the tile needs", "linear.cu", "host", "linear slices schedules",
     [("T::SMEM, (cudaStream_t)", "T::SMEM - 1024, (cudaStream_t)")]),
    ("embed: one vector too many of a row", "embed.cu", None, "rows embed", [("i < D; i", "i < D + 8; i")]),
    ("attention flash: a key too many is copied", "attention_flash.cu", None, "attention flash_reference",
     [("valid && r < n);", "valid && r < n + 1);")]),
    # what is not written, and what is written twice
    ("logprobs: a counter is not reset", "logprobs.cu", None, "logprobs order",
     [("n_chosen[0] = n_kept[0] = rank[0] = fault[0] = 0", "n_chosen[0] = n_kept[0] = fault[0] = 0")]),
    ("logprobs: one warp's maximum is not written", "logprobs.cu", None, "logprobs order",
     [("    if (lane == 0) largest[warp] = key;", "    if (lane == 0 && warp != 3) largest[warp] = key;")]),
    ("linear: two blocks write one tile", "linear.cu", None, "linear against_f64",
     [("n0 = (int)blockIdx.y * T::BN,", "n0 = (int)(blockIdx.y & ~1u) * T::BN,")]),
    ("moe: an expert's tiles run on into the next expert's rows", "moe.cu", None, "moe parts",
     [("const int M = first[e + 1];", "const int M = first[E];")]),
    # fragments, orders, masks, rounding
    ("linear: quadrants of the A operand swapped", "gemm_tile.h", "linear.cu", "linear slices against_f64",
     [("at(wm + i * 16 + lane % 16, kk * 2 + lane / 16)", "at(wm + i * 16 + lane % 8 + lane / 16 * 8, kk * 2 + lane / 8 % 2)")]),
    ("linear: slices added from the last", "linear.cu", None, "linear slices",
     [("sum += partial[s * count + i]", "sum += partial[(slices - s) * count + i]")]),
    ("linear: bias added to rounded values", "gemm_tile.h", "linear.cu", "linear against_f64",
     [("                if (bias) v0 += b0, v1 += b1;\n",
       "                if (out != GEMM_F32) v0 = bf16_lo(bf16_pack(v0, v1)), v1 = bf16_lo(bf16_pack(v1, v0));\n"
       "                if (bias) v0 += b0, v1 += b1;\n")]),
    ("linear: swizzle dropped (bank conflicts alone)", "gemm_tile.h", "linear.cu", "linear schedules",
     [("return r * GEMM_K + ((c ^ r) & 7) * 8;", "return r * GEMM_K + c * 8;"),
      ("row * GEMM_K + ((chunk ^ row) & 7) * 8;", "row * GEMM_K + chunk * 8;")]),
    ("attention flash: mask off by one", "attention_flash.cu", None, "attention flash_reference",
     [("min(n, n_keys[h] - key)", "min(n, n_keys[h] + 1 - key)")]),
    ("attention flash: weights of merged splits swapped", "attention_flash.cu", None, "attention flash_reference",
     [("fmaf(next_l, w.now, l * w.was)", "fmaf(next_l, w.was, l * w.now)")]),
    ("attention eager: probabilities not rounded", "attention_math.cu", None, "attention rows_bits",
     [("row[j] = a.eager ? bf16_round(p) : p;", "row[j] = p;")]),
    ("rope: positions of another segment", "rope.cu", None, "rows rope", [("pos = s.pos + row - s.row;", "pos = s.pos + row;")]),
    ("swiglu: the gate is not rounded", "swiglu.cu", None, "rows swiglu",
     [("return bf16_round((__float_as_uint(x) >> 31 ? x * e : x) / (1.0f + e)) * up;",
       "return (__float_as_uint(x) >> 31 ? x * e : x) / (1.0f + e) * up;")]),
    ("moe_route: ties go to the highest expert", "moe_route.cu", None, "rows moe_route",
     [("(uint32_t)~e;", "(uint32_t)e;"), ("(int)~(uint32_t)best;", "(int)(uint32_t)best;")]),
    ("moe: partial sums are not rounded", "moe.cu", None, "moe parts", [("rounded(weight * bf16_lo(y))", "weight * bf16_lo(y)")]),
    ("logprobs: ties go to the highest id", "logprobs.cu", None, "logprobs order",
     [("<< 32 | (uint32_t)~id;", "<< 32 | (uint32_t)id;"), ("return (int)~(uint32_t)key;", "return (int)(uint32_t)key;")]),
    ("logprobs: rank off by one", "logprobs.cu", None, "logprobs order", [("id < t);", "id <= t);")]),
    # caches of bytes and packed weights
    ("append: no __syncwarp before a turned head becomes bytes", "rope.cu", None, "kv append",
     [("    if (!bytes) return;\n    __syncwarp();\n", "    if (!bytes) return;\n")]),
    ("append: ties of fp8 go away from zero", "kv.h", "rope.cu", "kv append", [("0x7ffff + (a >> 20 & 1)", "0x80000")]),
    ("append: a row's scale comes from a part of its lanes", "kv.h", "rope.cu", "kv append", [("for (int o = 16; o; o >>= 1) largest", "for (int o = 8; o; o >>= 1) largest")]),
    ("append: a NaN is lost in the maximum", "kv.h", "rope.cu", "kv append",
     [("largest < 0x7f800000 ?", "largest < 0xff800000 ?")]),
    ("attention rows: values of bytes are not rounded to bf16", "attention_math.cu", None, "kv attention",
     [("make_float2(bf16_round(v.x * scale), bf16_round(v.y * scale))", "make_float2(v.x * scale, v.y * scale)")]),
    ("attention rows: bytes at the places of bf16", "attention_math.cu", None, "kv kernels",
     [("KV == KV_BF16 ? 2 : 1; /* bytes, of the cache */", "2;")]),
    ("attention flash: the scale of a neighbouring value", "attention_flash.cu", None, "kv kernels",
     [("lane % 4 * 2 + i / 2 * 8 + i % 2)", "lane % 4 * 2 + i / 2 * 8)")]),
    ("attention flash: queries not in the order of bytes", "attention_flash.cu", None, "kv kernels",
     [("d * 16 + lane % 4 * 4 + i / 2 * 2;", "place;")]),
    ("attention flash: scales of keys that do not exist", "attention_flash.cu", None, "kv kernels",
     [("a.key_tile + r,\n                           r < n);", "a.key_tile + r, true);")]),
    ("expand: nibbles swapped", "expand.cu", None, "expand rows", [("i % 2 == 0 ? byte : byte >> 4", "i % 2 ? byte : byte >> 4")]),
    ("expand: the scale of the next group", "expand.cu", None, "expand rows", [("scales[first / group]", "scales[(first + 8) / group]")]),
    # inline PTX: its host twins are right
    ("asm: the two E4M3 codes change places", "dev.h", "attention_flash.cu", "kv kernels",
     [("cvt.f32.f16 %0, lo; cvt.f32.f16 %1, hi;", "cvt.f32.f16 %0, hi; cvt.f32.f16 %1, lo;")]),
    ("asm: cp.async of 4 bytes does not fill with zeros", "dev.h", "attention_flash.cu", "kv kernels", [("4, %2;\"", "4;\"")]),
    ("asm: two A registers of mma swapped", "dev.h", "linear.cu", "linear against_f64",
     [("{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}", "{%0,%1,%2,%3}, {%4,%6,%5,%7}, {%8,%9}")]),
    ("asm: cp.async does not fill with zeros", "dev.h", "linear.cu", "linear against_f64", [("16, %2;\"", "16;\"")]),
    ("asm: ldmatrix transposes", "dev.h", "linear.cu", "linear against_f64", [("x4.shared.b16", "x4.trans.shared.b16")]),
    ("asm: wait_group keeps one more", "dev.h", "linear.cu", "linear against_f64", [("\"n\"(KEEP)", "\"n\"(KEEP + 1)")]),
]

# What a leg says of a fault, by the words in its output: the first that is there.
SAID = [
    ("WARNING: ThreadSanitizer: data race", "data race"), ("shared-memory race", "shared-memory race"),
    ("warps meet at different bar", "divergent barrier"), ("a warp ended while", "early return"),
    ("deadlock", "deadlock"), ("divergent barrier", "divergent barrier"), ("different numbers of", "early return"),
    ("returned while", "early return"), ("different warp operations", "divergent warp"), ("not here together", "divergent warp"),
    ("while other lanes of the warp", "divergent warp"), ("past the end of shared", "shared overrun"),
    ("never waited", "copy not waited for"), ("not in this block", "shared overrun"), ("shared memory access out", "shared overrun"),
    ("global access out", "out of bounds"), ("use-after-poison", "out of bounds"), ("unknown-crash", "out of bounds"),
    ("AddressSanitizer", "out of bounds"), ("misaligned", "misaligned"), ("not aligned", "misaligned"), ("byte aligned", "misaligned"),
    ("beside a buffer was written", "guard overwritten"), ("FAIL", "wrong result"),
]


def variables(path):
    """NAME = value lines of a flags.make."""
    with open(path) as file:
        return dict(line.rstrip("\n").split(" = ", 1) for line in file if " = " in line)


class Bench:
    def __init__(self, build, work):
        self.build, self.work = os.path.abspath(build), work
        self.overlay = os.path.join(self.work, "src")
        os.makedirs(os.path.join(self.overlay, "kernels/cuda"), exist_ok=True)
        with open(os.path.join(self.build, "CMakeCache.txt")) as file:
            cache = dict(re.match(r"([^:]+):\w+=(.*)", line).groups() for line in file if re.match(r"[^#/].*:\w+=", line))
        self.nvcc, self.compiler = cache.get("TV_NVCC", ""), cache["CMAKE_CXX_COMPILER"]
        self.legs = [leg for leg in LEGS if os.path.isdir(f"{self.build}/CMakeFiles/{self.archive(leg)}.dir")]

    @staticmethod
    def archive(leg):
        return "tv_cuda_simt" if leg == "plain" else f"tv_cuda_{leg}"

    @staticmethod
    def target(leg, unit):
        return {"plain": f"simt_{unit}", "ptx": f"ptx_{unit}"}.get(leg, f"simt_{unit}_{leg}")

    def compile(self, leg, source):
        """The emulated object of a source file, of the overlay where it is there."""
        flags = variables(f"{self.build}/CMakeFiles/{self.archive(leg)}.dir/flags.make")
        own = f"{self.overlay}/kernels/cuda/{source}"
        command = [self.compiler, *shlex.split(flags["CXX_DEFINES"]), "-I" + self.overlay, *shlex.split(flags["CXX_INCLUDES"]),
                   *shlex.split(flags["CXX_FLAGS"]), "-w", "-x", "c++", "-c", own if os.path.exists(own) else f"{ROOT}/kernels/cuda/{source}",
                   "-o", f"{self.work}/{leg}.o"]
        return subprocess.run(command, capture_output=True, text=True)

    def link(self, leg, unit):
        target = self.target(leg, unit)
        with open(f"{self.build}/CMakeFiles/{target}.dir/link.txt") as file:
            command = shlex.split(file.read())
        command[command.index("-o") + 1] = f"{self.work}/{target}"
        first = next(i for i, word in enumerate(command) if word.endswith(".o"))
        command.insert(first, f"{self.work}/{leg}.o")  # before the library's, which then is not taken
        return subprocess.run(command, capture_output=True, text=True, cwd=self.build)

    def ptx(self, source):
        own = f"{self.overlay}/kernels/cuda/{source}"
        command = [self.nvcc, "-arch=sm_90", "-std=c++17", "-O3", "-fmad=false", "-w", "-I" + self.overlay, "-I" + ROOT, "-ptx",
                   own if os.path.exists(own) else f"{ROOT}/kernels/cuda/{source}", "-o", f"{self.work}/fault.ptx"]
        return subprocess.run(command, capture_output=True, text=True)

    def run(self, leg, executable, tests, env):
        command = (["setarch", "-R"] if leg == "tsan" else []) + [executable, *tests]
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=300,
                                  env=dict(os.environ, OMP_NUM_THREADS="1", **env))
        except subprocess.TimeoutExpired:
            return "not done"
        if done.returncode == 0:
            return "-"
        said = done.stdout + done.stderr
        return next((what for words, what in SAID if words in said), "crash" if done.returncode < 0 else "failed")

    def try_leg(self, leg, fault):
        """What the leg says, "-" where it notices nothing, "" where the fault is none of its business."""
        name, file, other, test, _ = fault
        unit, *tests = test.split()
        source = other if file.endswith(".h") else file
        if leg == "ptx":
            if other == "host":
                return ""
            steps, executable, env = [self.ptx(source)], f"{self.build}/{self.target(leg, unit)}", {"TV_PTX": f"{self.work}/fault.ptx"}
        else:
            if name.startswith("asm:"):
                return ""
            steps, executable, env = [self.compile(leg, source), self.link(leg, unit)], f"{self.work}/{self.target(leg, unit)}", {}
        for step in steps:
            if step.returncode:
                return "not built: " + (step.stderr.strip().splitlines() or ["?"])[0]
        return self.run(leg, executable, tests, env)

    def plant(self, fault):
        """The faulty file alone in the overlay. False where the sources have no place for it."""
        folder = f"{self.overlay}/kernels/cuda"
        for left in os.listdir(folder):
            os.remove(f"{folder}/{left}")
        with open(f"{ROOT}/kernels/cuda/{fault[1]}") as file:
            text = file.read()
        for old, new in fault[4]:
            if old not in text:
                return False
            text = text.replace(old, new)
        with open(f"{folder}/{fault[1]}", "w") as file:
            file.write(text)
        return True


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-b", "--build", default=f"{ROOT}/build")
    parser.add_argument("--all", action="store_true", help="every leg, not only until one notices")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        return plant_all(options, Bench(options.build, work))


def plant_all(options, bench):
    if "ptx" not in bench.legs:
        print("without nvcc: faults in inline PTX cannot be seen, and are left out", file=sys.stderr)
    escaped, caught = [], 0
    print(f"| fault | {' | '.join(bench.legs)} |\n|---|{'---|' * len(bench.legs)}")
    for fault in FAULTS:
        name = fault[0]
        if options.names and not any(part in name for part in options.names):
            continue
        if name.startswith("asm:") and "ptx" not in bench.legs:
            continue
        answers = dict.fromkeys(bench.legs, "")
        if bench.plant(fault):
            for leg in bench.legs:
                answers[leg] = bench.try_leg(leg, fault)
                if not options.all and answers[leg] not in ("", "-") and not answers[leg].startswith("not "):
                    break
        else:
            answers[bench.legs[0]] = "not built: the sources have no place for it"
        noticed = [a for a in answers.values() if a not in ("", "-") and not a.startswith("not ")]
        wrong = any(a.startswith("not built") for a in answers.values())
        caught += bool(noticed) and not wrong
        if wrong or not noticed:
            escaped.append(name)
        print(f"| {name} | {' | '.join(answers[leg] for leg in bench.legs)} |", flush=True)
    print(f"\n{caught} of {caught + len(escaped)} faults caught")
    for name in escaped:
        print("escaped: " + name)
    return 1 if escaped or not caught else 0


if __name__ == "__main__":
    sys.exit(main())
