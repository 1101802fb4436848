/* The Python exporters, where their packages are installed (TV_PYTHON names the interpreter, default python3): their
 * trace files meet tvgpu's own, position by position, and replay says what sampling said. */
#include <stdlib.h>

#include "tests/check.h"
#include "tests/cli_run.h"

static const char *python(void) {
    const char *given = getenv("TV_PYTHON");
    return given ? given : "python3";
}

/* 1 when the interpreter has the packages; else the test is skipped by name. */
static int have(const char *packages) {
    cli_result r = cli_run(NULL, "%s -c 'import %s' >/dev/null 2>&1", python(), packages);
    const int found = r.code == 0;
    cli_free(&r);
    if (!found) tv_test_skip(packages);
    return found;
}

/* Four trajectories of six tokens of either side, each side in f32 logits over all four passes. Another position,
 * prompt or vocabulary would move log-probabilities by nats; rounding moves them by hundredths. */
static void pair(const char *exporter, const char *options) {
    const char *model = tv_bundled_model();
    CLI(0, NULL, "tvgpu sample '%s' -o r --side a -N 4 -n 6 -q", model);
    CLI(0, NULL, "%s '%s/tools/%s' sample '%s' -o r --threads 1 %s", python(), TV_SOURCE_DIR, exporter, model, options);
    CLI(0, NULL, "tvgpu score '%s' -o r --side a -q", model);
    CLI(0, NULL, "%s '%s/tools/%s' score '%s' -o r -R 1 --threads 1 %s", python(), TV_SOURCE_DIR, exporter, model,
        options);
    /* what lies there is of this command, or refused by name */
    CLI(1, "top_k is 20 there and 7 here", "%s '%s/tools/%s' sample '%s' -o r --threads 1 --top-k 7 %s", python(),
        TV_SOURCE_DIR, exporter, model, options);
    CLI(0, NULL, "tvgpu estimate r -o r.json -q");
    cJSON *json = cli_json("r.json");
    CHECK(cli_number(json, "token.delta_logprob.mean_abs") < 0.05);
    CHECK(cli_number(json, "token.tv") < 0.03);
    CHECK(cli_number(json, "tv.estimate") < 0.2);
    CHECK(cli_number(json, "tv.estimate") > 0);
    CHECK_NEAR(cli_number(json, "checks.sampling_agreement_b"), 0, 0);
    CHECK_NEAR(cli_number(json, "checks.own_zero_mass_b"), 0, 0);
    cJSON_Delete(json);
}

static void transformers(void) {
    if (have("torch, transformers, safetensors, numpy")) pair("export_transformers.py", "--dtype float32");
}

static void llamacpp(void) {
    if (have("llama_cpp, gguf, safetensors, numpy"))
        pair("export_llamacpp.py", "--gguf model.gguf --type f32 --kv-dtype f32");
}

static const tv_test tests[] = {{"exporters_transformers", transformers}, {"exporters_llamacpp", llamacpp}};
TV_TEST_MAIN(tests)
