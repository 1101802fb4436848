#include "cli/options.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

typedef enum { FLAG, INT, INT64, U64, REAL, TEXT, CHOICE } kind;

typedef struct {
    const char *name;
    char letter;
    const char *value; /* metavariable, or the choices "x|y"; NULL for a flag */
    kind kind;
    int sided; /* 1: the field lies in tv_side and -a / -b suffixes exist; 2: an array of two with suffixes */
    size_t offset;
    double low, high;
    unsigned commands;
    const char *group, *help;
} option;

#define ARG(field) offsetof(tv_args, field)
#define SIDE(field) offsetof(tv_side, field)
#define SERVING(field) (offsetof(tv_side, serving) + offsetof(tv_serving, field))
#define BIG 9007199254740992.0

static const option table[] = {
    /* what runs */
    {"model", 0, "DIR", TEXT, 1, SIDE(model), 0, 0, CMD_COMPARE, "Model and device",
     "checkpoint of one side (--model-b DIR: another checkpoint for side b)"},
    {"device", 0, "auto|cpu|cuda", CHOICE, 1, SIDE(device), 0, 0, CMD_MODEL | CMD_FIGURE | CMD_BENCH,
     "Model and device", "where it runs (default auto: cuda where there is one, else cpu)"},
    {"threads", 0, "N", INT, 0, ARG(threads), 0, 4096, ~0u, "Model and device",
     "CPU threads (default 0: all cores); results do not depend on it"},
    {"isa", 0, "NAME", TEXT, 1, SIDE(isa), 0, 0, CMD_MODEL | CMD_FIGURE | CMD_BENCH, "Model and device",
     "CPU instructions: auto, scalar, avx2, avx512, neon: the same bits (default auto); avx512bf16, amx: faster "
     "products that round differently; scalar-bf16, scalar-tiles: the same two on any machine, slowly"},
    {"gpu", 0, "I", INT, 0, ARG(gpu), 0, 1024, ~0u, "Model and device", "which GPU, where one is used (default 0)"},
    {"graphs", 0, "on|off", CHOICE, 0, ARG(graphs), 0, 0, CMD_MODEL, "Model and device",
     "CUDA: decode steps as graphs (default on); the same numbers either way"},
    /* serving configuration */
    {"backend", 0, "auto|math|eager|flash|cudnn", CHOICE, 1, SERVING(backend), 0, 0, CMD_MODEL, "Serving configuration",
     "attention kernel (default auto)"},
    {"batch", 0, "B", INT, 1, SERVING(batch), 0, 1 << 20, CMD_RUN, "Serving configuration",
     "most sequences running at once (default 0: all)"},
    {"batch", 0, "B", INT, 1, SERVING(batch), 0, 1 << 20, CMD_INFO, "Serving configuration",
     "with --plan, on a card: sequences of the steps that libraries choose for (default 1)"},
    {"pad-batch", 0, NULL, FLAG, 1, SERVING(pad_batch), 0, 0, CMD_RUN, "Serving configuration",
     "padding sequences complete the last batch"},
    {"order", 0, "fixed|shuffled", CHOICE, 1, SERVING(order), 0, 0, CMD_RUN, "Serving configuration",
     "whether each pass draws a new composition (default fixed)"},
    {"arrivals", 0, "together|staggered", CHOICE, 1, SERVING(arrivals), 0, 0, CMD_RUN, "Serving configuration",
     "staggered requests make the batch grow and shrink (default together)"},
    {"reduction", 0, "serving|fixed", CHOICE, 1, SERVING(reduction_fixed), 0, 0, CMD_MODEL, "Serving configuration",
     "summation orders from the running batch, or from sizes alone (default serving)"},
    {"plan-units", 0, "U", INT, 1, SERVING(plan_units), 1, 1 << 16, CMD_MODEL, "Serving configuration",
     "multiprocessors that the serving plan fills (default 132)"},
    {"logits", 0, "bf16|f32", CHOICE, 1, SERVING(logits_f32), 0, 0, CMD_MODEL, "Serving configuration",
     "precision of the logits (default bf16)"},
    {"kv-dtype", 0, "bf16|fp8|int8", CHOICE, 1, SERVING(kv_dtype), 0, 0, CMD_RUN | CMD_GENERATE | CMD_LOGITS,
     "Serving configuration", "precision of the KV cache, a scale for each position and head (default bf16)"},
    {"weight-dtype", 0, "bf16|int8|int4", CHOICE, 1, SIDE(weight_dtype), 0, 0, CMD_RUN | CMD_GENERATE | CMD_LOGITS,
     "Serving configuration",
     "what the layers' weights are rounded to at load: int8 per output channel, int4 in groups of 128 (default bf16)"},
    {"kv-tokens", 0, "T", INT64, 1, SERVING(kv_tokens), 0, 1e12, CMD_RUN, "Serving configuration",
     "cache tokens that running sequences share (default 0: no limit)"},
    {"admission", 0, "reserve|grow", CHOICE, 1, SERVING(admission), 0, 0, CMD_RUN, "Serving configuration",
     "with --kv-tokens: a sequence takes its declared length, or what it has so far and may be preempted (default "
     "reserve)"},
    {"prefill", 0, "mixed|alone", CHOICE, 1, SERVING(prefill), 0, 0, CMD_RUN, "Serving configuration",
     "whether decode rows run beside prompts, or wait while there are any (default mixed)"},
    {"prefill-chunk", 0, "C", INT, 1, SERVING(prefill_chunk), 0, 1 << 20, CMD_RUN | CMD_GENERATE,
     "Serving configuration", "prompt tokens processed a step (default 0: the whole prompt)"},
    {"top-k", 0, "K", INT, 1, SERVING(top_k), 1, 128, CMD_RUN | CMD_GENERATE, "Serving configuration",
     "sampling takes the K most likely tokens (default 20)"},
    {"temperature", 0, "T", REAL, 1, SERVING(temperature), 0, 1e6, CMD_RUN | CMD_GENERATE, "Serving configuration",
     "sampling temperature (default 1; 0 = the most likely token)"},
    {"store-k", 0, "K", INT, 1, SERVING(store_k), 1, 128, CMD_RUN, "Serving configuration",
     "log-probabilities recorded per token (default 32)"},
    {"pass-seed", 0, "S", U64, 1, SERVING(pass_seed), 0, 0, CMD_RUN, "Serving configuration",
     "seed of what a pass draws: composition and arrival steps (default 0)"},
    /* sampling */
    {"trajectories", 'N', "N", INT64, 0, ARG(N), 1, 1e7, CMD_COMPARE | CMD_ATTRIBUTE, "Sampling",
     "trajectories sampled by each side (default 128; 512 on a GPU; 64 with --quick)"},
    {"trajectories", 'N', "N", INT64, 0, ARG(N), 2, 1e7, CMD_FIGURE, "Sampling",
     "trajectories of a side in every run (default: what --scale says)"},
    {"trajectories", 'N', "N", INT64, 0, ARG(N), 1, 1e7, CMD_SAMPLE, "Sampling",
     "trajectories to sample (default 128; 512 on a GPU)"},
    {"length", 'n', "n", INT64, 0, ARG(n), 1, 1e6, CMD_COMPARE | CMD_ATTRIBUTE, "Sampling",
     "tokens of a trajectory (default 128; 500 on a GPU; 64 with --quick)"},
    {"length", 'n', "n", INT64, 0, ARG(n), 2, 1e6, CMD_FIGURE, "Sampling",
     "tokens of a trajectory in every run (default: what --scale says)"},
    {"length", 'n', "n", INT64, 0, ARG(n), 1, 1e6, CMD_SAMPLE, "Sampling",
     "tokens of a trajectory (default 128; 500 on a GPU)"},
    {"length", 'n', "n", INT64, 0, ARG(n), 1, 1e6, CMD_GENERATE, "Sampling", "most tokens to write (default 256)"},
    {"seed", 0, "S", U64, 2, ARG(seed), 0, 0, CMD_COMPARE | CMD_SAMPLE, "Sampling",
     "sampling seed (default 0 for side a, 1 for side b)"},
    {"seed", 0, "S", U64, 0, ARG(seed), 0, 0, CMD_ATTRIBUTE, "Sampling",
     "sampling seed of side a; the other sides draw with the one that follows (default 0)"},
    {"seed", 0, "S", U64, 0, ARG(seed), 0, 0, CMD_GENERATE, "Sampling", "sampling seed (default 0)"},
    {"prompt", 0, "TEXT", TEXT, 0, ARG(prompt), 0, 0, CMD_COMPARE | CMD_ATTRIBUTE | CMD_SAMPLE | CMD_GENERATE,
     "Sampling", "the user's message (default \"Tell me a story about a robot learning to paint.\")"},
    {"system", 0, "TEXT", TEXT, 0, ARG(system), 0, 0, CMD_COMPARE | CMD_ATTRIBUTE | CMD_SAMPLE | CMD_GENERATE,
     "Sampling", "the system message (default \"You are a helpful assistant.\"; \"\" for none)"},
    {"prompts", 0, "FILE", TEXT, 0, ARG(prompts), 0, 0, CMD_COMPARE | CMD_ATTRIBUTE | CMD_SAMPLE, "Sampling",
     "a prompt a line (JSON): a string, {\"messages\": [...]} or {\"ids\": [...]}"},
    {"raw", 0, NULL, FLAG, 0, ARG(raw), 0, 0, CMD_COMPARE | CMD_ATTRIBUTE | CMD_SAMPLE | CMD_GENERATE, "Sampling",
     "the prompt as it is, without the chat template"},
    {"thinking", 0, "on|off", CHOICE, 0, ARG(thinking), 0, 0,
     CMD_COMPARE | CMD_ATTRIBUTE | CMD_SAMPLE | CMD_GENERATE | CMD_TOKENIZE, "Sampling",
     "the chat template's thinking flag (default: as the template has it)"},
    {"suppress-eos", 0, NULL, FLAG, 0, ARG(suppress_eos), 0, 0, CMD_RUN | CMD_GENERATE, "Sampling",
     "end-of-text has probability 0: every trajectory has n tokens (default of compare, sample, score)"},
    {"ignore-eos", 0, NULL, FLAG, 0, ARG(ignore_eos), 0, 0, CMD_RUN | CMD_GENERATE, "Sampling",
     "end-of-text is an ordinary token, continued past"},
    {"stop-eos", 0, NULL, FLAG, 0, ARG(stop_eos), 0, 0, CMD_RUN | CMD_GENERATE, "Sampling",
     "a trajectory ends at end-of-text (default of generate)"},
    /* scoring */
    {"repeats", 'R', "R", INT64, 0, ARG(R), 1, 1e6, CMD_COMPARE | CMD_ATTRIBUTE, "Scoring",
     "passes of each side over each set (default 4; 16 on a GPU; 4 with --quick)"},
    {"repeats", 'R', "R", INT64, 0, ARG(R), 2, 1e6, CMD_FIGURE, "Scoring",
     "passes of each side under serving noise (default: what --scale says)"},
    {"repeats", 'R', "R", INT64, 0, ARG(R), 1, 1e6, CMD_SCORE, "Scoring", "passes over each set (default 1)"},
    {"always-repeat", 0, NULL, FLAG, 0, ARG(always_repeat), 0, 0, CMD_COMPARE | CMD_ATTRIBUTE, "Scoring",
     "keep repeating a side whose passes are bit-identical"},
    {"keep-passes", 0, "yes|no", CHOICE, 0, ARG(keep_passes), 0, 0, CMD_COMPARE | CMD_SCORE, "Scoring",
     "no: fold each pass into averages instead of keeping it, so that disk does not grow with R (default yes)"},
    {"method", 0, "replay|prefill", CHOICE, 0, ARG(method), 0, 0, CMD_SCORE, "Scoring",
     "teacher-forced decode steps, or the whole trajectory at once (default replay)"},
    {"side", 0, "a|b", CHOICE, 0, ARG(side_name), 0, 0, CMD_SAMPLE | CMD_SCORE, "Scoring",
     "which side these options describe (default a)"},
    {"axis", 0, "NAME=VALUE,...", TEXT, 0, ARG(axis), 0, 0, CMD_ATTRIBUTE, "Scoring",
     "options to flip, one at a time; NAME=VALUE+NAME=VALUE flips several together (default: a list of all that may "
     "move the distribution)"},
    /* importing */
    {"form", 0, "auto|vllm|sglang|openai", CHOICE, 0, ARG(form), 0, 0, CMD_IMPORT, "The dump",
     "whose form the dumps have (default auto: as their keys say)"},
    {"side", 0, "a|b", CHOICE, 0, ARG(side_name), 0, 0, CMD_IMPORT, "The dump", "whose dump it is (default a)"},
    {"set", 0, "a|b", CHOICE, 0, ARG(set_name), 0, 0, CMD_IMPORT, "The dump",
     "it scores the trajectories of this side, which are in the folder (default: it holds what --side sampled)"},
    {"by-prefix", 0, NULL, FLAG, 0, ARG(by_prefix), 0, 0, CMD_IMPORT, "The dump",
     "with --set: it holds what --side sampled; its records count where a text begins as the trajectory does"},
    {"length", 'n', "n", INT64, 0, ARG(n), 1, 1e6, CMD_IMPORT, "The dump",
     "use the first n tokens of every completion (default: all)"},
    {"top-k", 0, "K", INT, 0, ARG(dump_top_k), 0, 1e9, CMD_IMPORT, "The dump",
     "sampling took the K most likely tokens (default 0: the whole vocabulary)"},
    {"temperature", 0, "T", REAL, 0, ARG(dump_temperature), 0, 1e6, CMD_IMPORT, "The dump",
     "temperature of samples and of log-probabilities (default 1)"},
    {"seed", 0, "S", U64, 0, ARG(seed), 0, 0, CMD_IMPORT, "The dump", "sampling seed, for the record (default 0)"},
    {"engine", 0, "TEXT", TEXT, 0, ARG(engine_name), 0, 0, CMD_IMPORT, "The dump",
     "what made it, for the report (default: the form's name)"},
    /* estimating */
    {"readout", 0, "K", INT64, 0, ARG(readout), 1, 1e6, CMD_COMPARE | CMD_ATTRIBUTE | CMD_DATA, "Estimating",
     "use the K most likely recorded slots, renormalised (default: the sampler's top-k)"},
    {"reads", 0, "R", INT64, 0, ARG(reads), 1, 1e6, CMD_ESTIMATE | CMD_CALIBRATE, "Estimating",
     "use the first R passes (default: all)"},
    {"reads", 0, "R", INT64, 0, ARG(reads), 1, 1e6, CMD_SCHEDULE, "Estimating",
     "for --target-error and --budget: use the first R passes (default: all)"},
    {"serving-order", 0, NULL, FLAG, 0, ARG(serving_order), 0, 0, CMD_COMPARE | CMD_ATTRIBUTE | CMD_DATA, "Estimating",
     "keep the passes in stored order for sigma, floors and levels"},
    {"fail-above", 0, "X", REAL, 0, ARG(fail_above), 0, 1, CMD_COMPARE | CMD_ESTIMATE, "Estimating",
     "exit 3 when the interval lies above X, 4 when it cannot tell"},
    {"baseline", 0, "FILE", TEXT, 0, ARG(baseline), 0, 0, CMD_COMPARE | CMD_ESTIMATE, "Estimating",
     "an earlier report.json: has the distance moved since?"},
    {"theory", 0, NULL, FLAG, 0, ARG(theory), 0, 0, CMD_SCHEDULE, "Estimating",
     "parameters that theory gives for --length, --sigma, --eps, --delta"},
    {"length", 'n', "n", INT64, 0, ARG(n), 1, 1e6, CMD_SCHEDULE, "Estimating",
     "tokens of a trajectory, for --theory (default 500)"},
    {"sigma", 0, "S", REAL, 0, ARG(sigma), 0, 1e6, CMD_SCHEDULE, "Estimating",
     "noise of one read, relative (default 0.02)"},
    {"eps", 0, "E", REAL, 0, ARG(eps), 1e-6, 1, CMD_SCHEDULE, "Estimating", "wanted error (default 0.02)"},
    {"delta", 0, "D", REAL, 0, ARG(delta), 1e-12, 0.5, CMD_SCHEDULE, "Estimating",
     "allowed failure probability (default 0.05)"},
    {"target-error", 0, "E", REAL, 0, ARG(target_error), 1e-6, 1, CMD_COMPARE | CMD_SCHEDULE, "Estimating",
     "a 95% interval within +-E: compare measures on until it is (exit 4: cannot be), schedule says what to run next"},
    {"budget", 0, "Q", REAL, 0, ARG(budget), 1, 1e15, CMD_COMPARE | CMD_SCHEDULE, "Estimating",
     "Q queries (scored tokens a side): compare's limit for --target-error, or what schedule is to spend"},
    {"coverage", 0, NULL, FLAG, 0, ARG(coverage), 0, 0, CMD_SYNTH, "Estimating",
     "measure how often the intervals contain the truth"},
    {"scale", 0, "quick|full", CHOICE, 0, ARG(size), 0, 0, CMD_FIGURE, "Estimating",
     "minutes on a CPU with the bundled model, or the sizes of a published study, meant for a GPU (default quick)"},
    {"run", 0, "DIR", TEXT, 0, ARG(run), 0, 0, CMD_FIGURE, "Estimating",
     "take the pair of sides under serving noise from this run folder instead of measuring it"},
    {"scale", 0, "X", REAL, 0, ARG(scale), 0.01, 1e6, CMD_SYNTH, "Estimating",
     "amount of work relative to the default of under a minute (default 1)"},
    {"seed", 0, "S", U64, 0, ARG(seed), 0, 0, CMD_FIGURE, "Estimating",
     "seed of sampling and of synthetic draws (default 0)"},
    {"seed", 0, "S", U64, 0, ARG(seed), 0, 0, CMD_SYNTH | CMD_DATA, "Estimating",
     "seed of permutations, bootstrap and synthetic draws (default 0)"},
    /* bench */
    {"repetitions", 0, "N", INT64, 0, ARG(reps), 1, 1000, CMD_BENCH, "Measuring",
     "repetitions of each measurement of limits and ops (default 9)"},
    /* input of small commands */
    {"tokens", 0, "IDS|FILE", TEXT, 0, ARG(tokens), 0, 0, CMD_LOGITS, "Input",
     "token ids \"1 2 3\", or a safetensors file with tensor tokens i32 [B,T]"},
    {"path", 0, "prefill|decode", CHOICE, 0, ARG(path), 0, 0, CMD_LOGITS, "Input",
     "all positions at once, or one by one through decode (default prefill)"},
    {"jsonl", 0, NULL, FLAG, 0, ARG(jsonl), 0, 0, CMD_TOKENIZE, "Input",
     "read one JSON value a line, print one a line"},
    {"decode", 0, NULL, FLAG, 0, ARG(decode), 0, 0, CMD_TOKENIZE, "Input", "ids to text"},
    {"chat", 0, NULL, FLAG, 0, ARG(chat), 0, 0, CMD_TOKENIZE, "Input",
     "with --jsonl: arrays of {\"role\", \"content\"} to the ids of the chat prompt"},
    {"plan", 0, NULL, FLAG, 0, ARG(plan), 0, 0, CMD_INFO, "Input", "print the summation orders of the reduction plan"},
    /* several processes */
    {"shard", 0, "I/N", TEXT, 0, ARG(shard), 0, 0, CMD_SHARED, "Several processes",
     "this process is the I-th of N that share the run and its folder (default: what Slurm's srun, mpirun or torchrun "
     "say, else 1/1)"},
    {"wait", 0, "S", REAL, 0, ARG(wait), 0.1, 1e9, CMD_SHARED, "Several processes",
     "seconds without a sign of life after which another process counts as dead (default 300)"},
    /* output */
    {"out", 'o', "DIR", TEXT, 0, ARG(out), 0, 0, CMD_COMPARE, "Output",
     "run folder (default tvgpu-runs/compare-HASH, the same for the same command)"},
    {"out", 'o', "DIR", TEXT, 0, ARG(out), 0, 0, CMD_ATTRIBUTE, "Output",
     "folder of the run folders, one an axis (default tvgpu-runs/attribute-HASH, the same for the same command)"},
    {"out", 'o', "DIR", TEXT, 0, ARG(out), 0, 0, CMD_SAMPLE | CMD_SCORE | CMD_IMPORT, "Output",
     "folder of the trajectories"},
    {"out", 'o', "DIR", TEXT, 0, ARG(out), 0, 0, CMD_FIGURE, "Output",
     "folder of the figures, and of the runs behind them (default figures)"},
    {"out", 'o', "FILE", TEXT, 0, ARG(out), 0, 0, CMD_LOGITS | CMD_EXPORT, "Output", "the file to write"},
    {"out", 'o', "FILE", TEXT, 0, ARG(out), 0, 0, CMD_ESTIMATE, "Output", "write the result there too, as JSON"},
    {"out", 'o', "FILE|DIR", TEXT, 0, ARG(out), 0, 0, CMD_BENCH, "Output",
     "write the numbers there too, as JSON or NAME.csv, or into a folder as MACHINE.csv; of weights: the folder"},
    {"html", 0, "FILE", TEXT, 0, ARG(html), 0, 0, CMD_ESTIMATE, "Output",
     "write the report there too, as one self-contained page with plots"},
    {"quick", 0, NULL, FLAG, 0, ARG(quick), 0, 0, CMD_COMPARE | CMD_ATTRIBUTE, "Output",
     "smaller N, n and R: under a minute with the bundled model"},
    {"dry-run", 0, NULL, FLAG, 0, ARG(dry_run), 0, 0, CMD_RUN, "Output",
     "say what would run: passes, time, memory and disk"},
    {"json", 0, NULL, FLAG, 0, ARG(json), 0, 0, ~(CMD_TOKENIZE | CMD_LOGITS | CMD_GENERATE | CMD_EXPORT), "Output",
     "print the result as JSON"},
    {"quiet", 'q', NULL, FLAG, 0, ARG(quiet), 0, 0, ~0u, "Output", "no progress and no notes"},
    {"version", 0, NULL, FLAG, 0, ARG(version), 0, 0, ~0u, "Output", "the version of the program"},
    {"help", 'h', NULL, FLAG, 0, ARG(help), 0, 0, ~0u, "Output", "this text"},
};
enum { N_OPTIONS = sizeof table / sizeof *table };

/* 1 when text starts like a number itself: strtod and friends would skip white space and a plus sign. */
static int starts_plainly(const char *text, int minus) {
    if (minus && *text == '-') text++;
    return (*text >= '0' && *text <= '9') || *text == '.';
}

static tv_status set(const option *o, const char *shown, void *base, const char *value, tv_err *err) {
    void *field = (char *)base + o->offset;
    char *end = NULL;
    switch (o->kind) {
    case FLAG:
        *(int *)field = 1;
        return TV_OK;
    case TEXT:
        *(const char **)field = value;
        return TV_OK;
    case U64:
        errno = 0;
        *(uint64_t *)field = strtoull(value, &end, 10);
        if (errno || !starts_plainly(value, 0) || end == value || *end)
            return TV_FAIL(err, TV_EARG, "%s %s: not a whole number from 0 to 2^64-1", shown, value);
        return TV_OK;
    case INT:
    case INT64: {
        errno = 0;
        long long v = strtoll(value, &end, 10);
        if (errno || !starts_plainly(value, 1) || end == value || *end || (double)v < o->low || (double)v > o->high)
            return TV_FAIL(err, TV_EARG, "%s %s: not a whole number from %.0f to %.0f", shown, value, o->low, o->high);
        if (o->kind == INT)
            *(int *)field = (int)v;
        else
            *(int64_t *)field = v;
        return TV_OK;
    }
    case REAL: {
        double v = strtod(value, &end);
        int decimal = !value[strspn(value, "0123456789.eE+-")]; /* strtod takes hexadecimal too */
        if (!decimal || !starts_plainly(value, 1) || end == value || *end || !(v >= o->low && v <= o->high))
            return TV_FAIL(err, TV_EARG, "%s %s: not a number from %g to %g", shown, value, o->low, o->high);
        *(double *)field = v;
        return TV_OK;
    }
    case CHOICE: {
        int index = 0;
        size_t length = strlen(value);
        for (const char *c = o->value; c; index++) {
            const char *bar = strchr(c, '|');
            size_t n = bar ? (size_t)(bar - c) : strlen(c);
            if (n == length && !memcmp(c, value, n)) {
                if (o->offset == SERVING(backend) && o->sided == 1)
                    memcpy(field, value, length + 1);
                else if (o->offset == ARG(thinking) && !o->sided)
                    *(tv_thinking *)field = index ? TV_THINKING_OFF : TV_THINKING_ON;
                else if (o->sided == 1 && o->offset != SIDE(device))
                    *(int *)field = index; /* the enums of tv_serving are in the order of the choices */
                else
                    *(const char **)field = value;
                return TV_OK;
            }
            c = bar ? bar + 1 : NULL;
        }
        return TV_FAIL(err, TV_EARG, "%s %s: choose one of %s", shown, value, o->value);
    }
    }
    return TV_OK;
}

tv_status tv_args_set_side(unsigned command, const char *name, const char *value, tv_side *side, tv_err *err) {
    for (int i = 0; i < N_OPTIONS; i++)
        if (table[i].commands & command && table[i].sided == 1 && !strcmp(table[i].name, name)) {
            if (table[i].kind == FLAG)
                return TV_FAIL(err, TV_EARG, "--%s takes no value and cannot be flipped by one", name);
            char *shown = tv_xprintf("--%s", name);
            tv_status s = set(&table[i], shown, side, value, err);
            free(shown);
            return s;
        }
    return TV_FAIL(err, TV_EARG, "--%s: no option of the serving configuration; see tvgpu attribute --help", name);
}

/* Finds name (without dashes) for command; *side becomes 0, 1 or -1 (both). NULL when there is none. */
static const option *find(const char *name, size_t length, unsigned bit, int *side) {
    for (int i = 0; i < N_OPTIONS; i++) {
        const option *o = &table[i];
        size_t n = strlen(o->name);
        if (!(o->commands & bit) || length < n || memcmp(o->name, name, n)) continue;
        *side = -1;
        if (length == n) return o;
        if (o->sided && bit == CMD_COMPARE && length == n + 2 && name[n] == '-' &&
            (name[n + 1] == 'a' || name[n + 1] == 'b')) {
            *side = name[n + 1] - 'a';
            return o;
        }
    }
    return NULL;
}

size_t tv_word_distance(const char *a, size_t n_a, const char *b) {
    size_t n_b = strlen(b), row[64];
    if (n_a >= 64 || n_b >= 64) return SIZE_MAX;
    for (size_t c = 0; c <= n_b; c++) row[c] = c;
    for (size_t r = 1; r <= n_a; r++) {
        size_t diagonal = row[0];
        row[0] = r;
        for (size_t c = 1; c <= n_b; c++) {
            size_t up = row[c], d = diagonal + (a[r - 1] != b[c - 1]);
            if (up + 1 < d) d = up + 1;
            if (row[c - 1] + 1 < d) d = row[c - 1] + 1;
            diagonal = up;
            row[c] = d;
        }
    }
    return row[n_b];
}

/* " (did you mean --NAME?)" with the option of the command that is nearest in spelling; "" when none is near. */
static void suggest(char *text, size_t size, const char *name, size_t length, unsigned bit) {
    size_t best_distance = length < 4 ? 2 : 4;
    *text = 0;
    for (int i = 0; i < N_OPTIONS; i++) {
        const option *o = &table[i];
        if (!(o->commands & bit)) continue;
        int suffix = o->sided && bit == CMD_COMPARE && length > 2 && name[length - 2] == '-' &&
                     (name[length - 1] == 'a' || name[length - 1] == 'b');
        size_t d = tv_word_distance(name, length - (suffix ? 2 : 0), o->name);
        if (d >= best_distance) continue;
        best_distance = d;
        snprintf(text, size, " (did you mean --%s%.*s?)", o->name, suffix ? 2 : 0, name + length - 2);
    }
}

tv_status tv_args_parse(const tv_command *command, int argc, char **argv, tv_args *args, tv_err *err) {
    memset(args, 0, sizeof *args);
    args->side[0].serving = args->side[1].serving = tv_serving_default();
    args->side[0].device = args->side[1].device = "auto";
    args->seed[1] = 1;
    args->side[0].isa = args->side[1].isa = "auto";
    args->fail_above = args->target_error = args->budget = NAN;
    args->sigma = 0.02, args->eps = 0.02, args->delta = 0.05, args->scale = 1;
    args->method = "replay", args->path = "prefill", args->side_name = "a", args->keep_passes = "yes";
    args->size = "quick", args->form = "auto", args->dump_temperature = 1;
    args->wait = 300;
    for (int i = 2, only_words = 0; i < argc; i++) {
        const char *word = argv[i];
        if (only_words || word[0] != '-' || !word[1]) {
            if (args->n_positional == (int)(sizeof args->positional / sizeof *args->positional))
                return TV_FAIL(err, TV_EARG, "more than %d words; name the folder that holds the files",
                               args->n_positional);
            args->positional[args->n_positional++] = word;
            continue;
        }
        if (!strcmp(word, "--")) {
            only_words = 1;
            continue;
        }
        const option *o = NULL;
        const char *value = NULL;
        int side = -1;
        size_t shown = strlen(word);
        if (word[1] == '-') {
            const char *equals = strchr(word, '=');
            if (equals) shown = (size_t)(equals - word), value = equals + 1;
            o = find(word + 2, shown - 2, command->bit, &side);
        } else {
            for (int j = 0; j < N_OPTIONS && !o; j++)
                if (table[j].letter == word[1] && table[j].commands & command->bit) o = &table[j];
            if (o && word[2]) shown = 2, value = word + 2;
        }
        if (!o) {
            char guess[96] = "";
            if (word[1] == '-') suggest(guess, sizeof guess, word + 2, shown - 2, command->bit);
            return TV_FAIL(err, TV_EARG, "%.*s: no such option of %s%s; see tvgpu %s --help", (int)shown, word,
                           command->name, guess, command->name);
        }
        char name[64];
        snprintf(name, sizeof name, "%.*s", (int)shown, word);
        if (o->kind == FLAG && value) return TV_FAIL(err, TV_EARG, "%s takes no value", name);
        if (o->kind != FLAG && !value) {
            if (++i >= argc) return TV_FAIL(err, TV_EARG, "%s needs a value: %s", name, o->value);
            value = argv[i];
        }
        if (side >= 0) args->side_given = 1;
        if (o->sided == 1) {
            for (int s = 0; s < 2; s++)
                if (side < 0 || side == s) TV_TRY(set(o, name, &args->side[s], value, err));
        } else if (o->sided == 2) {
            for (int s = 0; s < 2; s++)
                if (side < 0 || side == s)
                    TV_TRY(set(o, name, (char *)args + (size_t)s * sizeof(uint64_t), value, err));
        } else {
            TV_TRY(set(o, name, args, value, err));
        }
    }
    if (args->suppress_eos + args->ignore_eos + args->stop_eos > 1)
        return TV_FAIL(err, TV_EARG, "--suppress-eos, --ignore-eos and --stop-eos exclude one another");
    int stop = args->stop_eos || (command->bit == CMD_GENERATE && !args->suppress_eos && !args->ignore_eos);
    for (int s = 0; s < 2; s++)
        args->side[s].serving.eos = args->ignore_eos ? TV_EOS_IGNORE : stop ? TV_EOS_STOP : TV_EOS_SUPPRESS;
    if (args->n_positional > command->most_words)
        return TV_FAIL(err, TV_EARG, "\"%s\": %s takes %s; see tvgpu %s --help", args->positional[command->most_words],
                       command->name,
                       command->most_words == 0   ? "no words beside options"
                       : command->most_words == 1 ? "one MODEL"
                                                  : "fewer words",
                       command->name);
    return TV_OK;
}

/* Prints text in lines of at most 100 columns, indented. */
static void wrap(FILE *out, const char *text, int column, int indent) {
    for (int first = 1; *text; first = 0) {
        size_t word = strcspn(text, " ");
        if (!first && column + 1 + (int)word > 100)
            fprintf(out, "\n%*s", column = indent, "");
        else if (!first)
            fputc(' ', out), column++;
        fwrite(text, 1, word, out);
        column += (int)word;
        text += word;
        text += strspn(text, " ");
    }
    fputc('\n', out);
}

void tv_args_help(const tv_command *command, FILE *out) {
    enum { INDENT = 34 };
    fprintf(out, "Usage: tvgpu %s %s\n\n%s\n", command->name, command->usage, command->describe);
    const char *group = NULL;
    int sided = 0;
    for (int i = 0; i < N_OPTIONS; i++) {
        const option *o = &table[i];
        if (!(o->commands & command->bit)) continue;
        if (!group || strcmp(group, o->group)) fprintf(out, "\n%s:\n", group = o->group);
        char left[96];
        int n = o->letter ? snprintf(left, sizeof left, "  -%c, --%s", o->letter, o->name)
                          : snprintf(left, sizeof left, "      --%s", o->name);
        int suffixed = o->sided && command->bit == CMD_COMPARE;
        sided |= suffixed;
        n += snprintf(left + n, sizeof left - (size_t)n, "%s%s%s", suffixed ? "[-a|-b]" : "", o->value ? " " : "",
                      o->value ? o->value : "");
        fputs(left, out);
        if (n > INDENT - 2)
            fprintf(out, "\n%*s", INDENT, "");
        else
            fprintf(out, "%*s", INDENT - n, "");
        wrap(out, o->help, INDENT, INDENT);
    }
    if (sided) fputs("\nA plain option applies to both sides; with -a or -b behind its name it applies to one.\n", out);
    if (command->examples) fprintf(out, "\nExamples:\n%s", command->examples);
}
