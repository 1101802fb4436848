/* Other engines' dumps: the documented forms give one and the same measurement, truncated lists give bounds, and every
 * fault of a dump is refused by file, entry and key before anything is written. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "tests/check.h"
#include "tests/cli_run.h"
#include "traces/dataset.h"
#include "traces/trace.h"

static void write_text(const char *name, const char *text) {
    TV_ASSERT(tv_file_write(cli_path(name), text, strlen(text), NULL) == TV_OK);
}

static const char *dump(const char *form, const char *rest) {
    char *name = tv_xprintf("import/%s-%s.jsonl", form, rest);
    const char *path = tv_golden(name);
    free(name);
    return path;
}

static void import_pair(const char *form) {
    CLI(0, "2 trajectories of 2 tokens after 1 prompt, 3 log-probabilities", "tvgpu import '%s' -o r --side a",
        dump(form, "a"));
    CLI(0, NULL, "tvgpu import '%s' -o r --side b -q", dump(form, "b"));
    CLI(0, "scores are of prompts", "tvgpu import '%s' -o r --side a --set b", dump(form, "a-scores-b"));
    CLI(0, "\"scores_of_prompts\":\ttrue", "tvgpu import '%s' -o r --side b --set a --json -q",
        dump(form, "b-scores-a"));
}

/* Tokens, slots and own log-probabilities lie where the dump has them, whichever form said so; a token beyond the list
 * (vLLM adds it as one more entry) is no slot of it. */
static void contents(void) {
    static const char *const forms[] = {"vllm", "sglang"};
    for (int f = 0; f < 2; f++) {
        tv_err err = {0};
        tv_trace *t = NULL;
        CLI(0, NULL, "rm -rf r; tvgpu import '%s' -o r --side a -q", dump(forms[f], "a"));
        if (!CHECK_OK(tv_trace_open(cli_path("r/a.samples.safetensors"), &t, &err), &err)) return;
        static const int32_t ids[] = {11, 12, 13, 11, 15, 16, 11, 12, 13, 11, 15, 16}, tokens[] = {11, 15, 14, 11};
        static const double own[] = {0.5, 0.125, 0.0625, 0.75};
        CHECK_INT(t->N, 2);
        CHECK_INT(t->n, 2);
        CHECK_INT(t->k, 3);
        CHECK_INT(t->pass, -1);
        CHECK_BYTES(t->topk_ids, ids, sizeof ids);
        CHECK_BYTES(t->tokens, tokens, sizeof tokens);
        for (int i = 0; i < 4; i++) CHECK_NEAR(t->token_logprobs[i], log(own[i]), 1e-6);
        CHECK_NEAR(t->topk_logprobs[7], log(0.25), 1e-6);
        CHECK_INT(t->P, 1);
        CHECK_INT(t->prompt_ids[1], 6);
        CHECK(!t->token_rank);
        tv_trace_close(t);
    }
}

/* The three forms that score given text hold one measurement by hand: Z is 0 and 1/6 over a, 2/5 and 0 over b. Every
 * token's probability is known, so nothing is cut off, though one is in neither list. */
static void forms_agree(void) {
    static const char *const forms[] = {"vllm", "sglang", "openai-text"};
    for (int f = 0; f < 3; f++) {
        CLI(0, NULL, "rm -rf r");
        import_pair(forms[f]);
        CLI(0, "nothing is cut off", "tvgpu estimate r -o r.json");
        cJSON *json = cli_json("r.json");
        CHECK_NEAR(cli_number(json, "tv.estimate"), (1.0 / 12 + 1.0 / 5) / 2, 1e-6);
        CHECK_NEAR(cli_number(json, "tv.one_sided_a"), 1.0 / 12, 1e-6);
        CHECK_NEAR(cli_number(json, "truncated.low"), cli_number(json, "truncated.high"), 0);
        CHECK_NEAR(cli_number(json, "truncated.tail_a"), (0.125 + 0.0625) / 2, 1e-6);
        /* next-token: both list the same ids, so at least what they differ in, and at most that and the tail */
        CHECK_NEAR(cli_number(json, "truncated.token_tv.low"), (0.25 + 0.125) / 2, 1e-6);
        CHECK_NEAR(cli_number(json, "truncated.token_tv.high"), (0.25 + 0.125) / 2 + (0.125 + 0.0625) / 2, 1e-6);
        cJSON_Delete(json);
    }
}

/* A chat API scores no given text: equal beginnings do. Token " its" is in neither list and b never drew it, so its
 * probability under b is anything up to the tail: bounds, labelled as such in text and JSON. */
static void bounds(void) {
    CLI(0, NULL, "tvgpu import '%s' -o r --side a -n 1 -q", dump("openai-chat", "a"));
    CLI(0, NULL, "tvgpu import '%s' -o r --side b -n 1 -q", dump("openai-chat", "b"));
    CLI(0, NULL, "tvgpu import '%s' -o r --side a --set b --by-prefix -q", dump("openai-chat", "a"));
    CLI(0, NULL, "tvgpu import '%s' -o r --side b --set a --by-prefix -q", dump("openai-chat", "b"));
    CLI(0, "TV lies between 0.2500 and 0.5000", "tvgpu estimate r");
    CLI(0, "\"estimator\":\t\"truncated\"", "tvgpu estimate r --json");
    CLI(0, "TV lies between", "tvgpu estimate r --html r.html");
    CLI(0, NULL, "grep -q 'TV lies between' r.html");
    CLI(0, NULL, "tvgpu estimate r -o r.json -q");
    cJSON *json = cli_json("r.json");
    CHECK_NEAR(cli_number(json, "truncated.low"), 0.25, 1e-6);
    CHECK_NEAR(cli_number(json, "truncated.high"), 0.5, 1e-6);
    CHECK_NEAR(cli_number(json, "truncated.unknown_tokens_a"), 0.5, 1e-9);
    CHECK_NEAR(cli_number(json, "truncated.unknown_tokens_b"), 0, 0);
    CHECK_NEAR(cli_number(json, "tv.estimate"), 0.375, 1e-6);
    const cJSON *ci = cli_at(json, "tv.ci95");
    CHECK(cJSON_GetArrayItem(ci, 0)->valuedouble <= 0.25 && cJSON_GetArrayItem(ci, 1)->valuedouble >= 0.5);
    cJSON_Delete(json);
    CLI(4, "cannot tell", "tvgpu estimate r --fail-above 0.375");
    /* past the first token nothing is scored where the texts part */
    CLI(0, NULL, "tvgpu import '%s' -o l --side a -q; tvgpu import '%s' -o l --side b -q", dump("openai-chat", "a"),
        dump("openai-chat", "b"));
    CLI(2, "no completion of the dump begins with its first 1 tokens",
        "tvgpu import '%s' -o l --side b --set a --by-prefix", dump("openai-chat", "b"));
}

/* A dump of forced tokens is a replay, as often as it is taken; two equal ones show that the side repeats itself. */
static void replays(void) {
    CLI(0, NULL, "tvgpu import '%s' -o r --side a -q --top-k 3", dump("vllm", "a"));
    CLI(2, "with --set a the dump is read as a replay of it", "tvgpu import '%s' -o r --side a", dump("vllm", "a"));
    CLI(0, "r/a-on-a.pass-0001.safetensors", "tvgpu import '%s' -o r --side a --set a --top-k 3", dump("vllm", "a"));
    CLI(0, NULL, "tvgpu import '%s' -o r --side b --top-k 3 -q; tvgpu import '%s' -o r --side b --set b --top-k 3 -q",
        dump("vllm", "b"), dump("vllm", "b"));
    for (int i = 0; i < 2; i++)
        CLI(0, NULL,
            "tvgpu import '%s' -o r --side a --set b --top-k 3 -q; tvgpu import '%s' -o r --side b --set a --top-k 3 "
            "-q",
            dump("vllm", "a-scores-b"), dump("vllm", "b-scores-a"));
    /* the sampler took the listed tokens alone: their renormalised lists are the distributions, no bounds */
    CLI(0, "both sides are deterministic", "tvgpu estimate r -o r.json");
    cJSON *json = cli_json("r.json");
    CHECK(!cli_at(json, "truncated"));
    CHECK_INT((int)cli_number(json, "R"), 2);
    cJSON_Delete(json);
}

#define VLLM(tokens, records)                                                                                          \
    "{\"prompt_token_ids\": [5], \"outputs\": [{\"token_ids\": " tokens ", \"logprobs\": " records "}]}"
#define GOOD VLLM("[1]", "[{\"1\": {\"logprob\": -0.5}, \"2\": {\"logprob\": -1.5}}]") "\n"
#define ONE(records) VLLM("[1]", records)
#define SGLANG(own, top)                                                                                               \
    "{\"output_ids\": [1], \"meta_info\": {\"output_token_logprobs\": " own ", \"output_top_logprobs\": " top "}}"
#define CHAT(logprob, top)                                                                                             \
    "{\"choices\": [{\"logprobs\": {\"content\": [{\"token\": \"a\", \"logprob\": " logprob ", \"top_logprobs\": " top \
    "}]}}]}"
#define SLOT(token, logprob) "{\"token\": \"" token "\", \"logprob\": " logprob "}"
#define TEXT(body) "{\"choices\": [{\"logprobs\": {" body "}}]}"

/* Every fault is named by file, line or entry, and key, and leaves no folder behind. */
static void faults(void) {
    static const struct {
        const char *text, *part;
    } cases[] = {
        /* numbers */
        {GOOD ONE("[{\"1\": {\"logprob\": NaN}}]"), "d.jsonl:2: NaN at byte 88, behind \"logprob\""},
        {GOOD ONE("[{\"1\": {\"logprob\": Infinity}}]"), "d.jsonl:2: Infinity at byte 88, behind \"logprob\""},
        {GOOD ONE("[{\"1\": {\"logprob\": 0.5}}]"),
         "d.jsonl:2: outputs[0].logprobs[0][\"1\"] is 0.5: not a log-probability"},
        {ONE("[{\"1\": {\"logprob\": 1e300}}]"), "d.jsonl: outputs[0].logprobs[0][\"1\"] is 1e+300: not a log-prob"},
        {ONE("[{\"1\": {\"logprob\": null}}]"), "[\"1\"] is null: not a log-probability"},
        {ONE("[{\"1\": {\"rank\": 1}}]"), "[\"1\"] is missing: not a log-probability"},
        {ONE("[{\"1\": {\"logprob\": \"-1\"}}]"), "[\"1\"] is no number: not a log-probability"},
        {ONE("[{\"1\": -0.1, \"2\": -0.1}]"), "the probabilities of record 0 sum to 1.80967, more than 1"},
        {VLLM("[-1]", "[{\"1\": -1}]"), "outputs[0].token_ids[0] is -1: not a token id"},
        {VLLM("[1e300]", "[{\"1\": -1}]"), "outputs[0].token_ids[0] is 1e+300"},
        {VLLM("[1.5]", "[{\"1\": -1}]"), "outputs[0].token_ids[0] is 1.5: not a token id"},
        {VLLM("[\"1\"]", "[{\"1\": -1}]"), "outputs[0].token_ids[0] is no number"},
        {ONE("[{\"1\": -1, \"9999999999\": -2}]"), "[\"9999999999\"]: the key is no token id"},
        {ONE("[{\"1\": -1, \"-2\": -2}]"), "[\"-2\"]: the key is no token id"},
        /* tokens and lists */
        {GOOD ONE("[{\"2\": -1, \"3\": -2}]"), "d.jsonl:2: outputs[0].logprobs[0] lacks the token itself (id 1)"},
        {ONE("[{\"1\": -1, \"1\": -2}]"), "d.jsonl: duplicate key \"1\""},
        {ONE("[{\"1\": -1, \"01\": -2}]"), "[\"01\"]: the token is in this list already"},
        {ONE("[{\"1\": -1}, {\"1\": -1}]"), "outputs[0].logprobs has 2 records and there are 1 tokens"},
        {GOOD ONE("null"), "d.jsonl:2: outputs[0].logprobs (SamplingParams(logprobs=20) records it) is missing"},
        {ONE("[null]"), "outputs[0].logprobs[0] is null, where"},
        {GOOD ONE("[{\"1\": -1, \"2\": -2, \"3\": -3}]"),
         "d.jsonl:2: outputs[0]: record 0 lists 3 tokens and another lists 2"},
        {VLLM("[]", "[]"), "d.jsonl: outputs[0]: no tokens"},
        {"{\"prompt_token_ids\": [5], \"outputs\": []}", "outputs is empty"},
        {"{\"prompt_token_ids\": 5, \"outputs\": [{}]}", "prompt_token_ids is no list"},
        {SGLANG("[[-1, 2, null]]", "[[[-1, 2, null]]]"),
         "meta_info.output_token_logprobs[0] is of token 2 and output_ids[0] is 1"},
        {SGLANG("[[-1, 1, null]]", "[]"), "output_token_logprobs has 1 entries and meta_info.output_top_logprobs 0"},
        {SGLANG("[[-1, 1, null]]", "[[[-1, 1], [-2, 1]]]"),
         "output_top_logprobs[0][1]: the token is in this list already"},
        {SGLANG("[[-1, 1, null]]", "[[[-2, 1]]]"), "log-probability is -1 by itself and -2 among the most likely"},
        {SGLANG("[[-1, 1, null]]", "[null]"), "meta_info.output_top_logprobs[0] is missing, where a list is due"},
        {SGLANG("[[-1]]", "[[]]"), "meta_info.output_token_logprobs[0] is not [log-probability, id, text]"},
        {SGLANG("[]", "null"), "top_logprobs_num=20 records it"},
        {CHAT("-1", "[]"), "choices[0]: record 0 lists no likely tokens"},
        {CHAT("-1", "null"), "content[0].top_logprobs (\"top_logprobs\": 20 asks for it) is missing"},
        {CHAT("0.1", "[]"), "choices[0].logprobs.content[0].logprob is 0.1"},
        {CHAT("-1", "[" SLOT("a", "-1") ", " SLOT("a", "-2") "]"),
         "top_logprobs[1]: the token is in this list already"},
        {CHAT("-1", "[{\"token\": \"a\", \"bytes\": [256], \"logprob\": -1}]"), "hold what is no byte"},
        {CHAT("-1", "[" SLOT("token_id:x", "-1") "]"), "is \"token_id:x\": not a token id"},
        {CHAT("-1", "[" SLOT("token_id:7", "-1") "]"), "tokens as text and as ids in one dump"},
        {"{\"choices\": [{\"text\": \"a\", \"logprobs\": null}]}",
         "choices[0].logprobs is missing: ask for \"logprobs\""},
        {TEXT("\"tokens\": [\"a\", \"b\"], \"token_logprobs\": [-1], \"top_logprobs\": [{}]"),
         "choices[0].logprobs has 2 tokens, 1 token_logprobs and 1 top_logprobs"},
        {TEXT("\"tokens\": [\"a\"], \"token_logprobs\": [null], \"top_logprobs\": [null]"),
         "echoes its prompt and usage.prompt_tokens is missing"},
        {TEXT("\"tokens\": [\"a\"], \"token_logprobs\": [-1], \"top_logprobs\": [{\"a\": -1, \"a\": -2}]"),
         "duplicate key"},
        /* entries and files */
        {"", "d.jsonl: empty: no entries"},
        {"[]", "d.jsonl: no entries"},
        {"[" ONE("[{\"1\": -1}]") ", {\"text\": 1}]", "d.jsonl[1]: none of \"outputs\" (vLLM), \"meta_info\" (SGLang)"},
        {"{\"outputs\": [], \"choices\": []}", "more than one of \"outputs\""},
        {GOOD CHAT("-1", "[" SLOT("a", "-1") "]"), "d.jsonl:2: another than in the entries before"},
        {"{\"custom_id\": \"1\", \"response\": null, \"error\": {\"message\": \"rate limit\"}}",
         "d.jsonl: the request failed: rate limit"},
        {GOOD "{\"outputs\": ", "d.jsonl:2: not valid JSON"},
        {"7", "none of \"outputs\""},
        {"{\"trajectory\": 1, \"prompt_token_ids\": [5], \"outputs\": [{\"token_ids\": [1], \"logprobs\": [{\"1\": "
         "-1}]}, "
         "{\"token_ids\": [1], \"logprobs\": [{\"1\": -1}]}]}",
         "are both trajectory 1"},
        {"{\"sampling_params\": {\"temperature\": 0.7}, \"outputs\": []}",
         "sampling_params.temperature is 0.7 and --temperature is 1; import it with --temperature 0.7"},
        {"{\"request\": {\"top_k\": 20}, \"choices\": []}", "request.top_k is 20 and --top-k is 0"},
    };
    int before = cli_entries(".");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_text("d.jsonl", cases[i].text);
        cli_result r = cli_run(NULL, "tvgpu import d.jsonl -o r --side a");
        CHECK(r.code == 1 || r.code == 2);
        if (!CHECK(strstr(r.err, cases[i].part) != NULL))
            printf("case %zu: %s\n  wants: %s\n", i, r.err, cases[i].part);
        CHECK_INT(cli_entries("."), before + 1);
        cli_free(&r);
    }
}

/* What does not belong to the trajectories of the folder: other tokens, prompts, counts, temperatures, lists. */
static void alignment(void) {
    static const char A[] =
        "{\"prompt_token_ids\": [5], \"outputs\": [{\"token_ids\": [1, 2], \"logprobs\": [{\"1\": -1, "
        "\"2\": -2}, {\"2\": -1, \"3\": -3}]}]}\n";
    static const struct {
        const char *text, *part;
    } cases[] = {
        {"{\"prompt_token_ids\": [5], \"outputs\": [{\"token_ids\": [1, 3], \"logprobs\": [{\"1\": -1, \"2\": -2}, "
         "{\"2\": -1, "
         "\"3\": -3}]}]}",
         "outputs[0]: token 1 is 3, and trajectory 0 of r/a.samples.safetensors has 2 there"},
        {"{\"prompt_token_ids\": [5], \"outputs\": [{\"token_ids\": [1], \"logprobs\": [{\"1\": -1, \"2\": -2}]}]}",
         "1 tokens, and trajectory 0 of r/a.samples.safetensors has 2"},
        {"{\"prompt_token_ids\": [6], \"outputs\": [{\"token_ids\": [1, 2], \"logprobs\": [{\"1\": -1, \"2\": -2}, "
         "{\"2\": -1, "
         "\"3\": -3}]}]}",
         "its prompt is not that of trajectory 0 of r/a.samples.safetensors"},
        {"{\"trajectory\": 7, \"prompt_token_ids\": [5], \"outputs\": [{\"token_ids\": [1, 2], \"logprobs\": [{\"1\": "
         "-1, "
         "\"2\": -2}, {\"2\": -1, \"3\": -3}]}]}",
         "trajectory 7 is not in r/a.samples.safetensors"},
        /* one position early: the record of the prompt's own last token would be taken for the trajectory's first */
        {"{\"prompt_token_ids\": [5, 1], \"prompt_logprobs\": [null, {\"1\": -1}]}",
         "1 tokens, and trajectory 0 of r/a.samples.safetensors has 2"},
        {"{\"prompt_token_ids\": [4, 5, 1, 2], \"prompt_logprobs\": [null, {\"5\": -1}, {\"1\": -1}, {\"2\": -1}]}",
         "its prompt is not that of trajectory 0"},
    };
    write_text("a.jsonl", A);
    CLI(2, "r/a.samples.safetensors is not there: import what side a sampled first",
        "tvgpu import a.jsonl -o r --side b --set a");
    CLI(0, NULL, "tvgpu import a.jsonl -o r --side a -q");
    int before = cli_entries("r");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_text("d.jsonl", cases[i].text);
        CLI(2, cases[i].part, "tvgpu import d.jsonl -o r --side b --set a");
    }
    CLI(2, "2 scored trajectories, and r/a.samples.safetensors holds 1",
        "cat a.jsonl a.jsonl >d.jsonl; tvgpu import "
        "d.jsonl -o r --side b --set a");
    CLI(2, "its prompt (1 tokens or bytes) is not among those of r/a.samples.safetensors",
        "sed 's/\\[5\\]/[6]/' a.jsonl >d.jsonl; tvgpu import d.jsonl -o r --side b");
    CLI(2, "the longest completion has 1 tokens and r/a.samples.safetensors has 2",
        "tvgpu import a.jsonl -o r --side b --length 1");
    CLI(2, "tokens are text, and those of the folder are ids", "tvgpu import '%s' -o r --side b",
        dump("openai-chat", "b"));
    CHECK_INT(cli_entries("r"), before);
    /* another temperature or list length is taken, and refused where it would meet */
    CLI(0, NULL,
        "tvgpu import a.jsonl -o r --side b --set a --temperature 0.7 -q; tvgpu import a.jsonl -o r --side b -q; "
        "tvgpu import a.jsonl -o r --side a --set b -q");
    CLI(1, "temperature is", "tvgpu estimate r");
    CLI(0, NULL,
        "tvgpu import a.jsonl -o s --side a -q; tvgpu import a.jsonl -o s --side b -q; "
        "tvgpu import a.jsonl -o s --side a --set b -q");
    CLI(0, NULL,
        "sed 's/\"2\": -2}/\"2\": -2, \"4\": -4}/; s/\"3\": -3}/\"3\": -3, \"4\": -4}/' a.jsonl >d.jsonl; "
        "tvgpu import d.jsonl -o s --side b --set a -q");
    CLI(1, "k is 2 in side a's passes over set a and 3 in side b's", "tvgpu estimate s");
    /* one trajectory a side: a number without an error bar, by reason, never NaN */
    CLI(0, NULL, "rm s/b-on-a*; tvgpu import a.jsonl -o s --side b --set a -q; tvgpu estimate s -o s.json -q");
    cJSON *json = cli_json("s.json");
    CHECK(cJSON_IsTrue(cli_at(json, "bit_identical")));
    CHECK_NEAR(cli_number(json, "tv.estimate"), 0, 0);
    cJSON_Delete(json);
    /* a text that does not begin with the prompt */
    CLI(0, NULL, "tvgpu import '%s' -o u --side a -q", dump("openai-text", "a"));
    CLI(2, "its prompt is not that of trajectory 0",
        "sed 's/\"prompt\": \"Go on/\"prompt\": \"Go in/' '%s' >d.jsonl; tvgpu import d.jsonl -o u --side b --set a",
        dump("openai-text", "b-scores-a"));
    CLI(2, "--by-prefix needs --set", "tvgpu import a.jsonl -o q --side a --by-prefix");
    CLI(2, "import needs the dumps and -o DIR", "tvgpu import a.jsonl");
}

/* Numbered entries are matched by their number, in any order and over several files; -Infinity, and vLLM's -9999 in its
 * place, are probabilities of 0. */
static void order_and_zero(void) {
    write_text("x.jsonl", "{\"trajectory\": 4, \"outputs\": [{\"token_ids\": [7], \"logprobs\": [{\"7\": -0.0, \"8\": "
                          "-Infinity, \"9\": -9999.0}]}]}\n");
    write_text("y.json",
               "[{\"trajectory\": 2, \"outputs\": [{\"token_ids\": [8], \"logprobs\": [{\"8\": -0.5, \"7\": -1.5, "
               "\"9\": -3}]}]}]");
    tv_err err = {0};
    tv_trace *t = NULL;
    CLI(0, NULL, "tvgpu import x.jsonl y.json -o r --side a -q --engine 'vLLM 0.1' --seed 9");
    if (!CHECK_OK(tv_trace_open(cli_path("r/a.samples.safetensors"), &t, &err), &err)) return;
    static const int64_t numbers[] = {2, 4};
    static const int32_t tokens[] = {8, 7}, ids[] = {8, 7, 9, 7, -1, -1};
    CHECK_BYTES(t->trajectory, numbers, sizeof numbers);
    CHECK_BYTES(t->tokens, tokens, sizeof tokens);
    CHECK_BYTES(t->topk_ids, ids, sizeof ids);
    CHECK_INT((long long)t->seed, 9);
    CHECK(strstr(t->config_json, "vLLM 0.1") != NULL);
    tv_trace_close(t);
    CLI(0, NULL, "tvgpu import y.json x.jsonl -o r --side b --set a -q");
    CHECK_OK(tv_trace_open(cli_path("r/b-on-a.pass-0000.safetensors"), &t, &err), &err);
    CHECK_BYTES(t->trajectory, numbers, sizeof numbers);
    tv_trace_close(t);
}

static const tv_test tests[] = {{"import_contents", contents},
                                {"import_forms_agree", forms_agree},
                                {"import_bounds", bounds},
                                {"import_replays", replays},
                                {"import_faults", faults},
                                {"import_alignment", alignment},
                                {"import_order_and_zero", order_and_zero}};
TV_TEST_MAIN(tests)
