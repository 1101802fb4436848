/* Model configurations: both key spellings read the same, and whatever would change the mathematics unseen is refused.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "models/config.h"
#include "models/rope.h"
#include "tests/check.h"

static const char *const base_text[] = {
    [TV_QWEN2] =
        "{\"architectures\": [\"Qwen2ForCausalLM\"], \"model_type\": \"qwen2\", \"hidden_act\": \"silu\","
        "\"hidden_size\": 64, \"intermediate_size\": 160, \"num_hidden_layers\": 4, \"num_attention_heads\": 4,"
        "\"num_key_value_heads\": 2, \"vocab_size\": 512, \"max_position_embeddings\": 1024,"
        "\"rms_norm_eps\": 1e-6, \"rope_theta\": 1000000.0, \"tie_word_embeddings\": false,"
        "\"torch_dtype\": \"bfloat16\", \"eos_token_id\": 1}",
    [TV_QWEN3] =
        "{\"architectures\": [\"Qwen3ForCausalLM\"], \"model_type\": \"qwen3\", \"hidden_act\": \"silu\","
        "\"hidden_size\": 64, \"intermediate_size\": 160, \"num_hidden_layers\": 4, \"num_attention_heads\": 4,"
        "\"num_key_value_heads\": 2, \"head_dim\": 32, \"vocab_size\": 512, \"max_position_embeddings\": 1024,"
        "\"rms_norm_eps\": 1e-6, \"rope_theta\": 1000000.0, \"tie_word_embeddings\": true,"
        "\"torch_dtype\": \"bfloat16\", \"eos_token_id\": 1}",
    [TV_QWEN3_MOE] =
        "{\"architectures\": [\"Qwen3MoeForCausalLM\"], \"model_type\": \"qwen3_moe\", \"hidden_act\": \"silu\","
        "\"hidden_size\": 64, \"intermediate_size\": 160, \"num_hidden_layers\": 4, \"num_attention_heads\": 4,"
        "\"num_key_value_heads\": 2, \"head_dim\": 32, \"vocab_size\": 512, \"max_position_embeddings\": 1024,"
        "\"rms_norm_eps\": 1e-6, \"rope_theta\": 1000000.0, \"tie_word_embeddings\": false,"
        "\"num_experts\": 8, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 48, \"norm_topk_prob\": true,"
        "\"torch_dtype\": \"bfloat16\", \"eos_token_id\": 1}",
};

/* Parses the family's base file with the keys of patch (a JSON object) set, or removed where the value is "-". */
static tv_status read_with(tv_family family, const char *patch, const char *generation, tv_config *c, tv_err *err) {
    cJSON *root = cJSON_Parse(base_text[family]), *changes = cJSON_Parse(patch);
    TV_ASSERT(root && changes);
    for (const cJSON *item = changes->child; item; item = item->next) {
        cJSON_DeleteItemFromObjectCaseSensitive(root, item->string);
        if (!cJSON_IsString(item) || strcmp(item->valuestring, "-") != 0)
            cJSON_AddItemToObject(root, item->string, cJSON_Duplicate(item, 1));
    }
    char *text = cJSON_PrintUnformatted(root);
    tv_status s =
        tv_config_parse(text, strlen(text), generation, generation ? strlen(generation) : 0, "m/config.json", c, err);
    free(text);
    cJSON_Delete(root);
    cJSON_Delete(changes);
    return s;
}

static void accepts(tv_family family, const char *patch, tv_config *c, int line) {
    tv_err err = {0};
    tv_check_ok(read_with(family, patch, NULL, c, &err), &err, patch, __FILE__, line);
    tv_config_free(c);
}
#define ACCEPTS(family, patch) accepts(family, patch, &(tv_config){0}, __LINE__)

static void refuses(tv_family family, const char *patch, tv_status want, const char *part, int line) {
    tv_err err = {0};
    tv_config c;
    tv_status s = read_with(family, patch, NULL, &c, &err);
    if (s != TV_OK) tv_check_true(strstr(err.message, "m/config.json") != NULL, "the file is named", __FILE__, line);
    tv_check_fails(s, want, &err, part, patch, __FILE__, line);
    tv_config_free(&c);
}
#define REFUSES(family, patch, want, part) refuses(family, patch, want, part, __LINE__)

static void test_families(void) {
    tv_err err = {0};
    tv_config c;
    CHECK_OK(read_with(TV_QWEN3_MOE, "{}", NULL, &c, &err), &err);
    CHECK_INT(c.family, TV_QWEN3_MOE);
    CHECK_STR(c.architecture, "Qwen3MoeForCausalLM");
    CHECK_INT(c.n_layers, 4);
    CHECK_INT(c.d_model, 64);
    CHECK_INT(c.n_heads, 4);
    CHECK_INT(c.n_kv_heads, 2);
    CHECK_INT(c.head_size, 32);
    CHECK_INT(c.vocab_size, 512);
    CHECK_INT(c.max_positions, 1024);
    CHECK_INT(c.n_experts, 8);
    CHECK_INT(c.n_experts_used, 2);
    CHECK_INT(c.d_ff_expert, 48);
    CHECK_INT(c.norm_topk_prob, 1);
    CHECK_INT(c.d_ff, 0); /* no dense layer */
    CHECK_NEAR(c.rms_eps, 1e-6, 1e-12);
    tv_config_free(&c);
    CHECK_OK(tv_config_load(tv_bundled_model(), &c, &err), &err);
    CHECK_INT(c.family, TV_QWEN3);
    CHECK_INT(c.n_eos, 1);
    CHECK_INT(c.eos[0], 4095);
    tv_config_free(&c);
    ACCEPTS(TV_QWEN3, "{\"architectures\": \"-\"}");
    ACCEPTS(TV_QWEN3, "{\"model_type\": \"-\"}");
    REFUSES(TV_QWEN3, "{\"architectures\": \"-\", \"model_type\": \"-\"}", TV_EFORMAT, "Qwen3MoeForCausalLM");
    REFUSES(TV_QWEN3, "{\"architectures\": [\"LlamaForCausalLM\"]}", TV_EUNSUPPORTED, "LlamaForCausalLM");
    REFUSES(TV_QWEN3, "{\"architectures\": [\"Qwen3ForSequenceClassification\"]}", TV_EUNSUPPORTED, "supported are");
    REFUSES(TV_QWEN3, "{\"model_type\": \"qwen2_moe\", \"architectures\": \"-\"}", TV_EUNSUPPORTED, "qwen2_moe");
    REFUSES(TV_QWEN3, "{\"model_type\": \"qwen2\"}", TV_EFORMAT, "architectures says Qwen3ForCausalLM");
    REFUSES(TV_QWEN3, "{\"architectures\": []}", TV_EFORMAT, "architectures");
    REFUSES(TV_QWEN3, "{\"architectures\": [3]}", TV_EFORMAT, "architectures");
    REFUSES(TV_QWEN3, "{\"hidden_act\": \"gelu\"}", TV_EUNSUPPORTED, "hidden_act is \"gelu\"");
    CHECK_FAILS(tv_config_parse("[]", 2, NULL, 0, "c", &c, &err), TV_EFORMAT, &err, "not a JSON object");
    CHECK_FAILS(tv_config_parse("{", 1, NULL, 0, "c", &c, &err), TV_EFORMAT, &err, "c: not valid JSON");
    CHECK_FAILS(tv_config_load("/nonexistent", &c, &err), TV_EIO, &err, "/nonexistent/config.json");
}

/* C01: head_dim is a value of its own; absent it is what the reference implementation takes. */
static void test_head_size(void) {
    tv_err err = {0};
    tv_config c;
    CHECK_OK(read_with(TV_QWEN3, "{\"head_dim\": 40}", NULL, &c, &err), &err);
    CHECK_INT(c.head_size, 40);
    tv_config_free(&c);
    CHECK_OK(read_with(TV_QWEN3, "{\"head_dim\": \"-\"}", NULL, &c, &err), &err);
    CHECK_INT(c.head_size, 128);
    tv_config_free(&c);
    CHECK_OK(read_with(TV_QWEN2, "{}", NULL, &c, &err), &err);
    CHECK_INT(c.head_size, 16);
    tv_config_free(&c);
    CHECK_OK(read_with(TV_QWEN3_MOE, "{\"head_dim\": null}", NULL, &c, &err), &err);
    CHECK_INT(c.head_size, 16);
    tv_config_free(&c);
    REFUSES(TV_QWEN3, "{\"head_dim\": 33}", TV_EUNSUPPORTED, "head_dim 33");
    REFUSES(TV_QWEN3, "{\"head_dim\": 4}", TV_EUNSUPPORTED, "head_dim 4");
    REFUSES(TV_QWEN3, "{\"head_dim\": 264}", TV_EFORMAT, "head_dim is 264");
}

static void test_sizes_are_checked(void) {
    static const char *const keys[] = {"num_hidden_layers",   "hidden_size", "num_attention_heads",
                                       "num_key_value_heads", "vocab_size",  "max_position_embeddings",
                                       "intermediate_size"};
    static const char *const values[] = {"-1",   "0",   "1.5", "\"64\"", "1e300",
                                         "true", "[1]", "{}",  "1e12",   "4294967360"};
    char patch[200];
    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
        for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
            snprintf(patch, sizeof patch, "{\"%s\": %s}", keys[k], values[v]);
            REFUSES(TV_QWEN3, patch, TV_EFORMAT, keys[k]);
        }
        snprintf(patch, sizeof patch, "{\"%s\": \"-\"}", keys[k]);
        REFUSES(TV_QWEN3, patch, TV_EFORMAT, keys[k]);
    }
    REFUSES(TV_QWEN3, "{\"num_key_value_heads\": 3}", TV_EFORMAT, "not a multiple of num_key_value_heads 3");
    REFUSES(TV_QWEN3, "{\"num_key_value_heads\": 8}", TV_EFORMAT, "num_attention_heads 4");
    REFUSES(TV_QWEN3, "{\"num_attention_heads\": 4096, \"num_key_value_heads\": 4096, \"head_dim\": 256}", TV_EFORMAT,
            "4096");
    REFUSES(TV_QWEN3, "{\"rms_norm_eps\": \"-\"}", TV_EFORMAT, "rms_norm_eps");
    REFUSES(TV_QWEN3, "{\"rms_norm_eps\": -1e-6}", TV_EFORMAT, "rms_norm_eps");
    REFUSES(TV_QWEN3, "{\"rms_norm_eps\": \"1e-6\"}", TV_EFORMAT, "rms_norm_eps");
    ACCEPTS(TV_QWEN3, "{\"num_key_value_heads\": null}");
    tv_err err = {0};
    tv_config c;
    CHECK_OK(read_with(TV_QWEN3, "{\"num_key_value_heads\": null}", NULL, &c, &err), &err);
    CHECK_INT(c.n_kv_heads, 4);
    tv_config_free(&c);
}

/* C15, C16: Qwen2's q, k, v biases need no key and never have an o bias; Qwen3's key puts biases on all four. */
static void test_biases_and_tying(void) {
    tv_err err = {0};
    tv_config c;
    CHECK_OK(read_with(TV_QWEN2, "{}", NULL, &c, &err), &err);
    CHECK(c.qkv_bias && !c.o_bias && !c.tie_embeddings);
    tv_config_free(&c);
    CHECK_OK(read_with(TV_QWEN2, "{\"attention_bias\": true}", NULL, &c, &err), &err);
    CHECK(c.qkv_bias && !c.o_bias);
    tv_config_free(&c);
    CHECK_OK(read_with(TV_QWEN3, "{}", NULL, &c, &err), &err);
    CHECK(!c.qkv_bias && !c.o_bias && c.tie_embeddings);
    tv_config_free(&c);
    CHECK_OK(read_with(TV_QWEN3, "{\"attention_bias\": true, \"tie_word_embeddings\": \"-\"}", NULL, &c, &err), &err);
    CHECK(c.qkv_bias && c.o_bias && !c.tie_embeddings);
    tv_config_free(&c);
    REFUSES(TV_QWEN3, "{\"attention_bias\": \"false\"}", TV_EFORMAT, "attention_bias");
    REFUSES(TV_QWEN3, "{\"tie_word_embeddings\": 1}", TV_EFORMAT, "tie_word_embeddings");
}

/* C06: the base frequency is found in either place, must agree, and is never guessed. C22: an odd one is the user's
 * word. */
static void test_rope_theta(void) {
    static const char *const same[] = {
        "{}",
        "{\"rope_theta\": \"-\", \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 1000000}}",
        "{\"rope_theta\": \"-\", \"rope_parameters\": {\"rope_theta\": 1000000.0}}",
        "{\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 1000000}, \"rope_scaling\": null}",
        "{\"rope_theta\": \"-\", \"rope_parameters\": {\"full_attention\": {\"rope_type\": \"default\", "
        "\"rope_theta\": "
        "1000000}}}",
        "{\"rope_theta\": \"-\", \"rope_parameters\": {\"full_attention\": {\"rope_type\": \"default\", "
        "\"rope_theta\": "
        "1000000}, \"sliding_attention\": {\"rope_type\": \"default\", \"rope_theta\": 10000}}}",
        "{\"rope_theta\": \"-\", \"rope_parameters\": {\"rope_theta\": 1000000, \"partial_rotary_factor\": 1.0}}",
    };
    tv_err err = {0};
    tv_config c;
    for (int family = TV_QWEN2; family <= TV_QWEN3_MOE; family++) {
        for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
            CHECK_OK(read_with(family, same[i], NULL, &c, &err), &err);
            CHECK_NEAR(c.rope_theta, 1e6, 0);
            CHECK_INT(c.rope_yarn, 0);
            tv_config_free(&c);
        }
        REFUSES(family, "{\"rope_theta\": \"-\"}", TV_EFORMAT, "rope_theta is missing");
        REFUSES(family, "{\"rope_theta\": null, \"rope_parameters\": {\"rope_type\": \"default\"}}", TV_EFORMAT,
                "rope_theta is missing");
    }
    CHECK_OK(read_with(TV_QWEN3, "{\"rope_theta\": 1000}", NULL, &c, &err), &err);
    CHECK_NEAR(c.rope_theta, 1000, 0);
    tv_config_free(&c);
    REFUSES(TV_QWEN3, "{\"rope_parameters\": {\"rope_theta\": 10000}}", TV_EFORMAT, "rope_theta is given twice");
    REFUSES(TV_QWEN3, "{\"rope_theta\": \"1e6\"}", TV_EFORMAT, "rope_theta");
    REFUSES(TV_QWEN3, "{\"rope_theta\": -5}", TV_EFORMAT, "rope_theta");
    REFUSES(TV_QWEN3, "{\"rope_theta\": 1e999}", TV_EFORMAT, "rope_theta");
    REFUSES(TV_QWEN3, "{\"partial_rotary_factor\": 0.5}", TV_EUNSUPPORTED, "partial_rotary_factor is 0.5");
    REFUSES(TV_QWEN3, "{\"rope_parameters\": {\"partial_rotary_factor\": 0.25}}", TV_EUNSUPPORTED,
            "partial_rotary_factor");
}

/* C07: null and {} are the default; type and rope_type are the same key; a conflict is refused. C10: other types are
 * named. */
static void test_rope_types(void) {
    tv_err err = {0};
    tv_config c;
    static const char *const yarn[] = {
        "{\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4.0, \"original_max_position_embeddings\": 512}}",
        "{\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4.0, \"original_max_position_embeddings\": 512}}",
        "{\"rope_scaling\": {\"rope_type\": \"yarn\", \"type\": \"yarn\", \"factor\": 4, "
        "\"original_max_position_embeddings\": 512, \"beta_fast\": 32, \"beta_slow\": 1}}",
        "{\"rope_theta\": \"-\", \"rope_parameters\": {\"rope_type\": \"yarn\", \"rope_theta\": 1000000, \"factor\": "
        "4.0, "
        "\"original_max_position_embeddings\": 512, \"attention_factor\": null}}",
        "{\"rope_theta\": \"-\", \"rope_parameters\": {\"full_attention\": {\"rope_type\": \"yarn\", \"rope_theta\": "
        "1000000, \"factor\": 4.0, \"original_max_position_embeddings\": 512}}}",
    };
    ACCEPTS(TV_QWEN3, "{\"rope_scaling\": null}");
    ACCEPTS(TV_QWEN3, "{\"rope_scaling\": {}}");
    ACCEPTS(TV_QWEN3, "{\"rope_scaling\": {\"type\": \"default\"}}");
    for (size_t i = 0; i < sizeof yarn / sizeof *yarn; i++) {
        CHECK_OK(read_with(TV_QWEN3, yarn[i], NULL, &c, &err), &err);
        CHECK_INT(c.rope_yarn, 1);
        CHECK_NEAR(c.yarn_factor, 4, 0);
        CHECK_NEAR(c.yarn_beta_fast, 32, 0);
        CHECK_NEAR(c.yarn_beta_slow, 1, 0);
        CHECK_NEAR(c.yarn_attention_factor, 0, 0);
        CHECK_INT(c.yarn_original_positions, 512);
        CHECK_INT(c.max_positions, 2048); /* 4 x 512, more than the file's 1024 */
        tv_config_free(&c);
    }
    REFUSES(TV_QWEN3, "{\"rope_scaling\": {\"type\": \"default\", \"rope_type\": \"yarn\", \"factor\": 4}}", TV_EFORMAT,
            "given twice");
    REFUSES(
        TV_QWEN3,
        "{\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4}, \"rope_parameters\": {\"rope_type\": \"default\"}}",
        TV_EFORMAT, "given twice");
    REFUSES(TV_QWEN3,
            "{\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4}, \"rope_parameters\": {\"rope_type\": \"yarn\", "
            "\"factor\": 2}}",
            TV_EFORMAT, "keep one");
    REFUSES(TV_QWEN3, "{\"rope_scaling\": {\"factor\": 4.0}}", TV_EFORMAT, "rope_type");
    REFUSES(TV_QWEN3, "{\"rope_scaling\": {\"type\": \"yarn\"}}", TV_EFORMAT, "factor");
    REFUSES(TV_QWEN3, "{\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 0.5}}", TV_EFORMAT, "factor");
    REFUSES(TV_QWEN3, "{\"rope_scaling\": {\"type\": \"yarn\", \"factor\": \"4\"}}", TV_EFORMAT, "factor");
    /* C09: swapped */
    REFUSES(TV_QWEN3, "{\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4, \"beta_fast\": 1, \"beta_slow\": 32}}",
            TV_EFORMAT, "beta_fast 1");
    REFUSES(TV_QWEN3, "{\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 1e5}}", TV_EFORMAT, "factor");
    REFUSES(TV_QWEN3, "{\"rope_scaling\": \"yarn\"}", TV_EFORMAT, "rope_scaling is not an object");
    REFUSES(TV_QWEN3, "{\"rope_scaling\": {\"type\": 4}}", TV_EFORMAT, "type is not a string");
    REFUSES(TV_QWEN3, "{\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4, \"zeta\": 1}}", TV_EUNSUPPORTED, "zeta");
    REFUSES(TV_QWEN3, "{\"rope_scaling\": {\"type\": \"default\", \"mrope_section\": [1, 2]}}", TV_EUNSUPPORTED,
            "mrope_section");
    static const char *const other[] = {"dynamic", "linear", "llama3", "longrope", "su", "mrope", "foo"};
    for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
        char patch[300];
        snprintf(patch, sizeof patch, "{\"rope_scaling\": {\"type\": \"%s\", \"factor\": 4, \"low_freq_factor\": 1}}",
                 other[i]);
        REFUSES(TV_QWEN3, patch, TV_EUNSUPPORTED, other[i]);
        snprintf(patch, sizeof patch,
                 "{\"rope_parameters\": {\"rope_type\": \"%s\", \"rope_theta\": 1000000, \"short_factor\": [1]}}",
                 other[i]);
        REFUSES(TV_QWEN3, patch, TV_EUNSUPPORTED, other[i]);
    }
}

/* C09: frequencies and factor as the reference implementation's own code gives them (evaluated in f64). Pairs in steps.
 */
static void test_yarn_frequencies(void) {
    static const struct {
        const char *patch;
        int step;
        double factor, freq[16];
    } cases[] = {
        {"{\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4.0}}",
         1,
         1.1386294361119891,
         {1, 0.42169650342858228, 0.15115374985330843, 0.052492594653271905, 0.017392527130926087,
          0.0053340857286532962, 0.0014058533129758727, 0.00059284342641541374, 0.00025000000000000001,
          0.00010542412585714557, 4.4456985250973067e-05, 1.8747355233311396e-05, 7.9056941504209488e-06,
          3.3338035804083101e-06, 1.4058533129758728e-06, 5.928434264154138e-07}},
        {"{\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4.0, \"beta_fast\": 16, \"beta_slow\": 2, "
         "\"attention_factor\": 1.5, \"original_max_position_embeddings\": 256}}",
         1,
         1.5,
         {1, 0.42169650342858228, 0.13337095575291921, 0.037494710466622796, 0.0079056941504209478,
          0.0033338035804083102, 0.0014058533129758727, 0.00059284342641541374, 0.00025000000000000001,
          0.00010542412585714557, 4.4456985250973067e-05, 1.8747355233311396e-05, 7.9056941504209488e-06,
          3.3338035804083101e-06, 1.4058533129758728e-06, 5.928434264154138e-07}},
        {"{\"rope_theta\": 10000.0, \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 8.0, \"truncate\": false}}",
         1,
         1.2079441541679836,
         {1, 0.56234132519034907, 0.31622776601683794, 0.17337959549004359, 0.082965076073705582, 0.038481939492891915,
          0.017044109036450414, 0.0070001559666603205, 0.0024831334413176736, 0.00070292665648793637,
          0.00039528470752104737, 0.00022228492625486537, 0.000125, 7.0292665648793637e-05, 3.9528470752104742e-05,
          2.2228492625486534e-05}},
        {"{\"head_dim\": 128, \"max_position_embeddings\": 40960, \"rope_scaling\": {\"rope_type\": \"yarn\", "
         "\"factor\": "
         "4.0, \"original_max_position_embeddings\": 32768}}",
         4,
         1.1386294361119891,
         {1, 0.42169650342858228, 0.17782794100389226, 0.074989420933245579, 0.031622776601683791, 0.013335214321633241,
          0.0053753214907901019, 0.0018482765647068781, 0.00060294117647058821, 0.00017984115587395423,
          4.4456985250973067e-05, 1.8747355233311396e-05, 7.9056941504209488e-06, 3.3338035804083101e-06,
          1.4058533129758728e-06, 5.928434264154138e-07}},
        {"{\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4.0, \"mscale\": 0.7, \"mscale_all_dim\": 0.4}}",
         1,
         1.0394038191422568,
         {1, 0.42169650342858228, 0.15115374985330843, 0.052492594653271905, 0.017392527130926087,
          0.0053340857286532962, 0.0014058533129758727, 0.00059284342641541374, 0.00025000000000000001,
          0.00010542412585714557, 4.4456985250973067e-05, 1.8747355233311396e-05, 7.9056941504209488e-06,
          3.3338035804083101e-06, 1.4058533129758728e-06, 5.928434264154138e-07}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tv_err err = {0};
        tv_config c;
        double freq[64], factor;
        if (!CHECK_OK(read_with(TV_QWEN3, cases[i].patch, NULL, &c, &err), &err)) continue;
        tv_rope_frequencies(&c, freq, &factor);
        CHECK_NEAR(factor, cases[i].factor, 1e-12);
        for (int k = 0; k < 16; k++) CHECK_NEAR(freq[k * cases[i].step] / cases[i].freq[k], 1, 1e-12);
        tv_config_free(&c);
    }
}

/* N02: the tables come from angles that are exact far out: position 15962 (and every other) within half a bf16 step. */
static void test_rope_tables(void) {
    tv_err err = {0};
    tv_config c;
    CHECK_OK(read_with(TV_QWEN3,
                       "{\"max_position_embeddings\": 32768, \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 2}}",
                       NULL, &c, &err),
             &err);
    CHECK_INT(c.max_positions, 65536);
    size_t half = (size_t)c.head_size / 2;
    tv_bf16 *cosines = tv_xmalloc(65536 * half * 2), *sines = tv_xmalloc(65536 * half * 2);
    tv_rope_tables(&c, cosines, sines);
    double freq[16], factor;
    tv_rope_frequencies(&c, freq, &factor);
    static const int at[] = {0, 1, 255, 256, 1000, 15962, 32767, 65535};
    for (size_t p = 0; p < sizeof at / sizeof *at; p++)
        for (size_t i = 0; i < half; i++) {
            long double angle = (long double)at[p] * freq[i];
            CHECK_NEAR(tv_f32_from_bf16(cosines[(size_t)at[p] * half + i]), (double)cosl(angle) * factor,
                       1.0 / 256 * factor);
            CHECK_NEAR(tv_f32_from_bf16(sines[(size_t)at[p] * half + i]), (double)sinl(angle) * factor,
                       1.0 / 256 * factor);
        }
    free(cosines), free(sines);
    tv_config_free(&c);
}

/* C12: an id or a list, and generation_config.json wins. */
static void test_eos(void) {
    tv_err err = {0};
    tv_config c;
    CHECK_OK(read_with(TV_QWEN3, "{}", "{\"eos_token_id\": [7, 3, 7]}", &c, &err), &err);
    CHECK_INT(c.n_eos, 2);
    CHECK(c.eos[0] == 7 && c.eos[1] == 3);
    tv_config_free(&c);
    CHECK_OK(read_with(TV_QWEN3, "{\"eos_token_id\": [5, 6]}", "{\"eos_token_id\": 9}", &c, &err), &err);
    CHECK(c.n_eos == 1 && c.eos[0] == 9);
    tv_config_free(&c);
    CHECK_OK(read_with(TV_QWEN3, "{\"eos_token_id\": [5, 6]}", "{\"eos_token_id\": null}", &c, &err), &err);
    CHECK(c.n_eos == 2 && c.eos[0] == 5 && c.eos[1] == 6);
    tv_config_free(&c);
    CHECK_OK(read_with(TV_QWEN3, "{\"eos_token_id\": null}", "{}", &c, &err), &err);
    CHECK_INT(c.n_eos, 0);
    tv_config_free(&c);
    CHECK_OK(read_with(TV_QWEN3, "{\"eos_token_id\": [511, 151643]}", NULL, &c, &err), &err); /* warns of the second */
    CHECK(c.n_eos == 1 && c.eos[0] == 511);
    tv_config_free(&c);
    REFUSES(TV_QWEN3, "{\"eos_token_id\": -1}", TV_EFORMAT, "eos_token_id -1");
    REFUSES(TV_QWEN3, "{\"eos_token_id\": 1.5}", TV_EFORMAT, "eos_token_id");
    REFUSES(TV_QWEN3, "{\"eos_token_id\": [1, \"2\"]}", TV_EFORMAT, "eos_token_id");
    REFUSES(TV_QWEN3, "{\"eos_token_id\": [0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]}", TV_EUNSUPPORTED,
            "eos_token_id");
    CHECK_FAILS(read_with(TV_QWEN3, "{}", "{\"eos_token_id\": [}", &c, &err), TV_EFORMAT, &err,
                "generation_config.json: not valid JSON");
    CHECK_FAILS(read_with(TV_QWEN3, "{}", "[]", &c, &err), TV_EFORMAT, &err, "generation_config.json");
}

/* C13: a window that some layer would use is refused; one that is switched off, or wider than the text, is not in use.
 */
static void test_sliding_window(void) {
    for (int family = TV_QWEN2; family <= TV_QWEN3; family++) {
        ACCEPTS(family, "{\"sliding_window\": 8, \"max_window_layers\": 2, \"use_sliding_window\": false}");
        ACCEPTS(family, "{\"sliding_window\": 8, \"max_window_layers\": 4, \"use_sliding_window\": true}");
        ACCEPTS(family, "{\"sliding_window\": null, \"max_window_layers\": 2, \"use_sliding_window\": true}");
        ACCEPTS(family, "{\"sliding_window\": 1024, \"max_window_layers\": 2, \"use_sliding_window\": true}");
        REFUSES(family, "{\"sliding_window\": 8, \"max_window_layers\": 2, \"use_sliding_window\": true}",
                TV_EUNSUPPORTED, "sliding_window 8");
        ACCEPTS(family,
                "{\"sliding_window\": 8, \"max_window_layers\": 2, \"use_sliding_window\": true, \"layer_types\": "
                "[\"full_attention\", \"full_attention\", \"full_attention\", \"full_attention\"]}");
        REFUSES(family,
                "{\"sliding_window\": 8, \"use_sliding_window\": true, \"layer_types\": [\"full_attention\", "
                "\"sliding_attention\", \"full_attention\", \"full_attention\"]}",
                TV_EUNSUPPORTED, "layer_types asks for \"sliding_attention\"");
        REFUSES(family, "{\"layer_types\": [\"full_attention\"]}", TV_EFORMAT,
                "layer_types has 1 entries for 4 layers");
        REFUSES(family,
                "{\"layer_types\": [\"linear_attention\", \"full_attention\", \"full_attention\", \"full_attention\"]}",
                TV_EUNSUPPORTED, "linear_attention");
    }
    REFUSES(TV_QWEN3_MOE, "{\"sliding_window\": 8, \"max_window_layers\": 4, \"use_sliding_window\": true}",
            TV_EUNSUPPORTED, "sliding_window 8");
    ACCEPTS(TV_QWEN3_MOE, "{\"sliding_window\": 8, \"use_sliding_window\": false}");
    REFUSES(TV_QWEN3, "{\"use_sliding_window\": \"yes\"}", TV_EFORMAT, "use_sliding_window");
    /* absent sliding_window means 4096 to the reference implementation: narrower than 32768 positions */
    REFUSES(TV_QWEN3, "{\"use_sliding_window\": true, \"max_window_layers\": 0, \"max_position_embeddings\": 32768}",
            TV_EUNSUPPORTED, "sliding_window 4096");
}

/* C21, and other keys that nothing here implements. */
static void test_unsupported_is_named(void) {
    REFUSES(TV_QWEN3, "{\"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"bits\": 4}}",
            TV_EUNSUPPORTED, "compressed-tensors");
    REFUSES(TV_QWEN3, "{\"quantization_config\": {\"quant_method\": \"fp8\"}}", TV_EUNSUPPORTED,
            "quantization_config: quant_method fp8");
    REFUSES(TV_QWEN3, "{\"quantization_config\": {}}", TV_EUNSUPPORTED, "quantized");
    REFUSES(TV_QWEN3, "{\"quantization_config\": 3}", TV_EUNSUPPORTED, "quantized");
    REFUSES(TV_QWEN3, "{\"compression_config\": {\"quant_method\": \"gptq\"}}", TV_EUNSUPPORTED, "gptq");
    ACCEPTS(TV_QWEN3, "{\"quantization_config\": null}");
    REFUSES(TV_QWEN3, "{\"dual_chunk_attention_config\": {\"chunk_size\": 262144}}", TV_EUNSUPPORTED,
            "dual_chunk_attention_config");
    REFUSES(TV_QWEN3, "{\"final_logit_softcapping\": 30.0}", TV_EUNSUPPORTED, "final_logit_softcapping is 30");
    ACCEPTS(TV_QWEN3, "{\"logits_scaling\": 1.0, \"mlp_bias\": false, \"n_shared_experts\": 0}");
    REFUSES(TV_QWEN3, "{\"logits_scaling\": 8}", TV_EUNSUPPORTED, "logits_scaling is 8");
}

/* E02 and both spellings of the number of experts. */
static void test_experts(void) {
    tv_err err = {0};
    tv_config c;
    CHECK_OK(read_with(TV_QWEN3_MOE, "{\"decoder_sparse_step\": 2, \"mlp_only_layers\": [3]}", NULL, &c, &err), &err);
    CHECK_BYTES(c.layer_sparse, ((uint8_t[]){0, 1, 0, 0}), 4);
    CHECK_INT(c.d_ff, 160);
    tv_config_free(&c);
    CHECK_OK(read_with(TV_QWEN3_MOE, "{\"num_experts\": \"-\", \"num_local_experts\": 6, \"mlp_only_layers\": null}",
                       NULL, &c, &err),
             &err);
    CHECK_INT(c.n_experts, 6);
    CHECK_BYTES(c.layer_sparse, ((uint8_t[]){1, 1, 1, 1}), 4);
    tv_config_free(&c);
    CHECK_OK(read_with(TV_QWEN3, "{\"num_experts\": 8}", NULL, &c, &err), &err); /* a dense family has none */
    CHECK_BYTES(c.layer_sparse, ((uint8_t[]){0, 0, 0, 0}), 4);
    CHECK_INT(c.n_experts, 0);
    tv_config_free(&c);
    ACCEPTS(TV_QWEN3_MOE, "{\"num_local_experts\": 8, \"intermediate_size\": \"-\"}");
    REFUSES(TV_QWEN3_MOE, "{\"mlp_only_layers\": [0], \"intermediate_size\": \"-\"}", TV_EFORMAT, "intermediate_size");
    REFUSES(TV_QWEN3_MOE, "{\"num_local_experts\": 6}", TV_EFORMAT, "num_local_experts is 6");
    REFUSES(TV_QWEN3_MOE, "{\"num_experts\": \"-\"}", TV_EFORMAT, "num_experts");
    REFUSES(TV_QWEN3_MOE, "{\"num_experts_per_tok\": 9}", TV_EFORMAT, "num_experts_per_tok is 9");
    REFUSES(TV_QWEN3_MOE, "{\"norm_topk_prob\": \"-\"}", TV_EFORMAT, "norm_topk_prob");
    REFUSES(TV_QWEN3_MOE, "{\"moe_intermediate_size\": \"-\"}", TV_EFORMAT, "moe_intermediate_size");
    REFUSES(TV_QWEN3_MOE, "{\"decoder_sparse_step\": 0}", TV_EFORMAT, "decoder_sparse_step");
    REFUSES(TV_QWEN3_MOE, "{\"mlp_only_layers\": [4]}", TV_EFORMAT, "mlp_only_layers is 4");
    REFUSES(TV_QWEN3_MOE, "{\"mlp_only_layers\": [0.5]}", TV_EFORMAT, "mlp_only_layers");
    REFUSES(TV_QWEN3_MOE, "{\"mlp_only_layers\": 1}", TV_EFORMAT, "mlp_only_layers is not a list");
}

static void write_text(const char *folder, const char *name, const char *text) {
    tv_err err = {0};
    char *path = tv_path_join(folder, name);
    CHECK_OK(tv_file_write(path, text, strlen(text), &err), &err);
    free(path);
}

/* A Hugging Face cache folder stands for its snapshot. */
static void test_model_dir_resolve(void) {
    tv_err err = {0};
    char *cache = tv_path_join(tv_test_dir(), "models--a--b"), *got = NULL;
    char *one = tv_path_join(cache, "snapshots/1111"), *two = tv_path_join(cache, "snapshots/2222");
    char *refs = tv_path_join(cache, "refs"), *main_ref = tv_path_join(refs, "main");
    CHECK_FAILS(tv_model_dir_resolve(cache, &got, &err), TV_EIO, &err, "no such folder");
    CHECK_OK(tv_dir_make(one, &err), &err);
    CHECK_OK(tv_model_dir_resolve(one, &got, &err), &err);
    CHECK_STR(got, one); /* a folder without snapshots is the checkpoint, whatever it holds */
    free(got);
    CHECK_OK(tv_model_dir_resolve(cache, &got, &err), &err);
    CHECK_STR(got, one); /* the only one */
    free(got);
    CHECK_OK(tv_dir_make(two, &err), &err);
    CHECK_FAILS(tv_model_dir_resolve(cache, &got, &err), TV_EIO, &err, "2 snapshots");
    CHECK_OK(tv_dir_make(refs, &err), &err);
    write_text(refs, "main", "2222\n");
    CHECK_OK(tv_model_dir_resolve(cache, &got, &err), &err);
    CHECK_STR(got, two);
    free(got);
    write_text(refs, "main", "3333");
    CHECK_FAILS(tv_model_dir_resolve(cache, &got, &err), TV_EIO, &err, "3333");
    write_text(refs, "main", "../../..");
    CHECK_FAILS(tv_model_dir_resolve(cache, &got, &err), TV_EFORMAT, &err, "refs/main");
    write_text(refs, "main", "");
    CHECK_FAILS(tv_model_dir_resolve(cache, &got, &err), TV_EFORMAT, &err, "refs/main");
    CHECK_FAILS(tv_model_dir_resolve(main_ref, &got, &err), TV_EARG, &err, "not a folder");
    CHECK(got == NULL);
    write_text(cache, "config.json", "{}"); /* its own config.json makes a folder the checkpoint */
    CHECK_OK(tv_model_dir_resolve(cache, &got, &err), &err);
    CHECK_STR(got, cache);
    free(got), free(main_ref), free(refs), free(one), free(two), free(cache);
}

static const tv_test tests[] = {
    {"families", test_families},
    {"head_size", test_head_size},
    {"sizes_are_checked", test_sizes_are_checked},
    {"biases_and_tying", test_biases_and_tying},
    {"rope_theta", test_rope_theta},
    {"rope_types", test_rope_types},
    {"yarn_frequencies", test_yarn_frequencies},
    {"rope_tables", test_rope_tables},
    {"eos", test_eos},
    {"sliding_window", test_sliding_window},
    {"unsupported_is_named", test_unsupported_is_named},
    {"experts", test_experts},
    {"model_dir_resolve", test_model_dir_resolve},
};
TV_TEST_MAIN(tests)
