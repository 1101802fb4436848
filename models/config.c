#include "models/config.h"

#include <dirent.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"

/* Far above any published model, far below what overflows an int or a size_t when multiplied as the engine does. */
enum {
    MAX_LAYERS = 4096,
    MAX_WIDTH = 1 << 20, /* hidden size, ffn size */
    MAX_HEADS = 4096,
    MAX_HEAD_SIZE = 256, /* what the attention kernels hold in registers */
    MAX_VOCAB = 1 << 24,
    MAX_POSITIONS = 1 << 24,
    MAX_EXPERTS = 4096
};
#define CONFIG_LIMIT ((size_t)16 << 20) /* bytes of a configuration file; real ones have a few thousand */

static const struct {
    tv_family family;
    const char *type, *architecture;
} families[] = {
    {TV_QWEN2, "qwen2", "Qwen2ForCausalLM"},
    {TV_QWEN3, "qwen3", "Qwen3ForCausalLM"},
    {TV_QWEN3_MOE, "qwen3_moe", "Qwen3MoeForCausalLM"},
};
enum { N_FAMILIES = sizeof families / sizeof *families };
#define SUPPORTED                                                                                                      \
    "supported are Qwen2ForCausalLM, Qwen3ForCausalLM and Qwen3MoeForCausalLM (model_type qwen2, qwen3, qwen3_moe)"

/* The value under key, or NULL when it is absent or null: in these files both mean the same. */
static const cJSON *get(const cJSON *object, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return item && !cJSON_IsNull(item) ? item : NULL;
}

static tv_status bounded(const cJSON *item, const char *name, const char *key, int64_t low, int64_t high, int *out,
                         tv_err *err) {
    int64_t v;
    TV_TRY(tv_json_int(item, name, key, &v, err));
    if (v < low || v > high)
        return TV_FAIL(err, TV_EFORMAT, "%s: %s is %lld; it must lie between %lld and %lld", name, key, (long long)v,
                       (long long)low, (long long)high);
    *out = (int)v;
    return TV_OK;
}

static tv_status need_int(const cJSON *object, const char *name, const char *key, int low, int high, int *out,
                          tv_err *err) {
    const cJSON *item = get(object, key);
    if (!item) return TV_FAIL(err, TV_EFORMAT, "%s: %s is missing", name, key);
    return bounded(item, name, key, low, high, out, err);
}

static tv_status may_int(const cJSON *object, const char *name, const char *key, int low, int high, int otherwise,
                         int *out, tv_err *err) {
    *out = otherwise;
    const cJSON *item = get(object, key);
    return item ? bounded(item, name, key, low, high, out, err) : TV_OK;
}

static tv_status may_bool(const cJSON *object, const char *name, const char *key, int otherwise, int *out,
                          tv_err *err) {
    *out = otherwise;
    const cJSON *item = get(object, key);
    if (!item) return TV_OK;
    if (!cJSON_IsBool(item)) return TV_FAIL(err, TV_EFORMAT, "%s: %s is neither true nor false", name, key);
    *out = cJSON_IsTrue(item) != 0;
    return TV_OK;
}

/* A finite number in [low, high]; absent: *out keeps its value and *found stays 0. */
static tv_status may_number(const cJSON *object, const char *name, const char *key, double low, double high,
                            double *out, int *found, tv_err *err) {
    const cJSON *item = get(object, key);
    *found = 0;
    if (!item) return TV_OK;
    if (!cJSON_IsNumber(item)) return TV_FAIL(err, TV_EFORMAT, "%s: %s is not a number", name, key);
    if (!(item->valuedouble >= low && item->valuedouble <= high))
        return TV_FAIL(err, TV_EFORMAT, "%s: %s is %.17g; it must lie between %g and %g", name, key, item->valuedouble,
                       low, high);
    *out = item->valuedouble;
    *found = 1;
    return TV_OK;
}

static tv_status read_family(const cJSON *root, const char *name, tv_config *c, tv_err *err) {
    const cJSON *list = get(root, "architectures"), *type = get(root, "model_type");
    const char *architecture = NULL;
    int at = -1;
    if (list) {
        if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) != 1 || !cJSON_IsString(list->child))
            return TV_FAIL(err, TV_EFORMAT, "%s: architectures is not a list of one name", name);
        architecture = list->child->valuestring;
        for (int i = 0; i < N_FAMILIES; i++)
            if (strcmp(architecture, families[i].architecture) == 0) at = i;
        if (at < 0)
            return TV_FAIL(err, TV_EUNSUPPORTED, "%s: architecture \"%.100s\" is not supported; " SUPPORTED, name,
                           architecture);
    }
    if (type) {
        if (!cJSON_IsString(type)) return TV_FAIL(err, TV_EFORMAT, "%s: model_type is not a string", name);
        int by_type = -1;
        for (int i = 0; i < N_FAMILIES; i++)
            if (strcmp(type->valuestring, families[i].type) == 0) by_type = i;
        if (by_type < 0)
            return TV_FAIL(err, TV_EUNSUPPORTED, "%s: model_type \"%.100s\" is not supported; " SUPPORTED, name,
                           type->valuestring);
        if (at >= 0 && by_type != at)
            return TV_FAIL(err, TV_EFORMAT, "%s: architectures says %s but model_type says %s", name, architecture,
                           type->valuestring);
        at = by_type;
    }
    if (at < 0) return TV_FAIL(err, TV_EFORMAT, "%s: neither architectures nor model_type is given; " SUPPORTED, name);
    c->family = families[at].family;
    strcpy(c->architecture, families[at].architecture);
    return TV_OK;
}

/* Keys that change what the model computes and that nothing here implements. Absent, null, false and the neutral number
 * pass. */
static tv_status refuse_unsupported(const cJSON *root, const char *name, tv_err *err) {
    static const struct {
        const char *key;
        double neutral; /* this number passes too; NAN: none does */
    } keys[] = {
        {"partial_rotary_factor", 1},
        {"attn_logit_softcapping", NAN},
        {"final_logit_softcapping", NAN},
        {"logit_softcapping", NAN},
        {"logit_scale", 1},
        {"logits_scaling", 1},
        {"attention_multiplier", NAN},
        {"residual_multiplier", 1},
        {"embedding_multiplier", 1},
        {"dual_chunk_attention_config", NAN},
        {"attention_chunk_size", NAN},
        {"mlp_bias", NAN},
        {"shared_expert_intermediate_size", 0},
        {"n_shared_experts", 0},
        {"attention_sink", NAN},
        {"use_mrope", NAN},
    };
    const cJSON *quant = get(root, "quantization_config");
    if (!quant) quant = get(root, "compression_config");
    if (quant) {
        const cJSON *method = get(quant, "quant_method");
        return TV_FAIL(
            err, TV_EUNSUPPORTED,
            "%s: the checkpoint is quantized (%s: quant_method %.100s); only plain bf16, f16 and f32 weights are read",
            name, quant->string, cJSON_IsString(method) ? method->valuestring : "not named");
    }
    const cJSON *act = get(root, "hidden_act");
    if (act && (!cJSON_IsString(act) || strcmp(act->valuestring, "silu") != 0))
        return TV_FAIL(err, TV_EUNSUPPORTED, "%s: hidden_act is \"%.100s\"; only silu is supported", name,
                       cJSON_IsString(act) ? act->valuestring : "not a string");
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const cJSON *item = get(root, keys[i].key);
        if (!item || cJSON_IsFalse(item) || (cJSON_IsNumber(item) && item->valuedouble == keys[i].neutral)) continue;
        char *text = cJSON_PrintUnformatted(item);
        tv_status s = TV_FAIL(err, TV_EUNSUPPORTED, "%s: %s is %.100s, which is not supported", name, keys[i].key,
                              text ? text : "?");
        cJSON_free(text);
        return s;
    }
    return TV_OK;
}

static tv_status read_sizes(const cJSON *root, const char *name, tv_config *c, tv_err *err) {
    TV_TRY(need_int(root, name, "num_hidden_layers", 1, MAX_LAYERS, &c->n_layers, err));
    TV_TRY(need_int(root, name, "hidden_size", 1, MAX_WIDTH, &c->d_model, err));
    TV_TRY(need_int(root, name, "num_attention_heads", 1, MAX_HEADS, &c->n_heads, err));
    TV_TRY(need_int(root, name, "vocab_size", 1, MAX_VOCAB, &c->vocab_size, err));
    TV_TRY(need_int(root, name, "max_position_embeddings", 1, MAX_POSITIONS, &c->max_positions, err));
    /* null means "as many as query heads"; an absent key would mean another number to every reader */
    const cJSON *groups = cJSON_GetObjectItemCaseSensitive(root, "num_key_value_heads");
    if (groups && cJSON_IsNull(groups))
        c->n_kv_heads = c->n_heads;
    else
        TV_TRY(need_int(root, name, "num_key_value_heads", 1, MAX_HEADS, &c->n_kv_heads, err));
    if (c->n_heads % c->n_kv_heads)
        return TV_FAIL(err, TV_EFORMAT, "%s: num_attention_heads %d is not a multiple of num_key_value_heads %d", name,
                       c->n_heads, c->n_kv_heads);
    /* As the reference implementation: Qwen3 has heads of 128 unless said, the others divide the hidden size. A guess
     * that does not fit the checkpoint is caught when q_proj's shape is checked. */
    int otherwise = c->family == TV_QWEN3 ? 128 : c->d_model / c->n_heads;
    TV_TRY(may_int(root, name, "head_dim", 1, MAX_HEAD_SIZE, otherwise, &c->head_size, err));
    if (c->head_size < 8 || c->head_size % 8 || c->head_size > MAX_HEAD_SIZE)
        return TV_FAIL(err, TV_EUNSUPPORTED, "%s: head_dim %d is not a multiple of 8 between 8 and %d", name,
                       c->head_size, MAX_HEAD_SIZE);
    if ((c->n_heads + 2 * c->n_kv_heads) * c->head_size > MAX_WIDTH)
        return TV_FAIL(err, TV_EFORMAT, "%s: %d heads of size %d are more than %d values", name, c->n_heads,
                       c->head_size, MAX_WIDTH);
    double eps = 0;
    int found;
    TV_TRY(may_number(root, name, "rms_norm_eps", 1e-20, 1, &eps, &found, err));
    if (!found) return TV_FAIL(err, TV_EFORMAT, "%s: rms_norm_eps is missing", name);
    c->rms_eps = (float)eps;
    return TV_OK;
}

/* Qwen2 has q, k, v biases and no o bias whatever the file says (its implementation reads no key); Qwen3's
 * attention_bias puts biases on all four. */
static tv_status read_switches(const cJSON *root, const char *name, tv_config *c, tv_err *err) {
    int bias;
    TV_TRY(may_bool(root, name, "attention_bias", 0, &bias, err));
    c->qkv_bias = c->family == TV_QWEN2 ? 1 : bias;
    c->o_bias = c->family == TV_QWEN2 ? 0 : bias;
    return may_bool(root, name, "tie_word_embeddings", 0, &c->tie_embeddings, err);
}

/* A window narrower than the positions that some layer would use: refused. */
static tv_status refuse_window(const cJSON *root, const char *name, const tv_config *c, tv_err *err) {
    int use, window = 4096, first;
    const cJSON *types = get(root, "layer_types"), *type;
    if (types) {
        if (!cJSON_IsArray(types)) return TV_FAIL(err, TV_EFORMAT, "%s: layer_types is not a list", name);
        if (cJSON_GetArraySize(types) != c->n_layers)
            return TV_FAIL(err, TV_EFORMAT, "%s: layer_types has %d entries for %d layers", name,
                           cJSON_GetArraySize(types), c->n_layers);
        cJSON_ArrayForEach(type, types) {
            if (!cJSON_IsString(type))
                return TV_FAIL(err, TV_EFORMAT, "%s: layer_types holds something that is not a string", name);
            if (strcmp(type->valuestring, "full_attention") != 0)
                return TV_FAIL(err, TV_EUNSUPPORTED,
                               "%s: layer_types asks for \"%.100s\"; only full_attention is supported", name,
                               type->valuestring);
        }
    }
    TV_TRY(may_bool(root, name, "use_sliding_window", 0, &use, err));
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(root, "sliding_window");
    if (!use || (item && cJSON_IsNull(item))) return TV_OK;
    if (item) TV_TRY(bounded(item, name, "sliding_window", 1, INT_MAX, &window, err));
    TV_TRY(may_int(root, name, "max_window_layers", 0, INT_MAX, 28, &first, err));
    if (window >= c->max_positions) return TV_OK; /* never narrower than the text */
    if (c->family == TV_QWEN3_MOE)
        first = 0; /* all its layers are windowed, whatever max_window_layers says */
    else if (types || first >= c->n_layers)
        return TV_OK;
    return TV_FAIL(err, TV_EUNSUPPORTED,
                   "%s: use_sliding_window is true (sliding_window %d from layer %d on of %d), which is not supported",
                   name, window, first, c->n_layers);
}

/* What the rope keys of one or two objects say so far; a second statement must agree with the first. */
typedef struct {
    char type[32];         /* "" = not said */
    int has_theta, scaled; /* scaled: some key that only a scaled rope has was seen */
    double theta;
} rope_said;

static tv_status say_theta(const cJSON *object, const char *name, rope_said *said, tv_err *err) {
    double theta = 0;
    int found;
    TV_TRY(may_number(object, name, "rope_theta", 1.0 + 1e-9, 1e15, &theta, &found, err));
    if (found && said->has_theta && theta != said->theta)
        return TV_FAIL(err, TV_EFORMAT, "%s: rope_theta is given twice, as %.17g and as %.17g", name, said->theta,
                       theta);
    if (found) said->theta = theta, said->has_theta = 1;
    return TV_OK;
}

static tv_status say_type(const cJSON *object, const char *key, const char *name, rope_said *said, tv_err *err) {
    const cJSON *item = get(object, key);
    if (!item) return TV_OK;
    if (!cJSON_IsString(item)) return TV_FAIL(err, TV_EFORMAT, "%s: the rope's %s is not a string", name, key);
    if (strcmp(item->valuestring, "default") != 0 && strcmp(item->valuestring, "yarn") != 0)
        return TV_FAIL(err, TV_EUNSUPPORTED, "%s: %s \"%.100s\" is not supported; supported are default and yarn", name,
                       key, item->valuestring);
    if (said->type[0] && strcmp(said->type, item->valuestring) != 0)
        return TV_FAIL(err, TV_EFORMAT, "%s: the rope type is given twice, as %s and as %s (keys type, rope_type)",
                       name, said->type, item->valuestring);
    strcpy(said->type, item->valuestring);
    return TV_OK;
}

/* One object of rope keys: rope_scaling, rope_parameters, or the full_attention part of the latter. */
static tv_status read_rope_object(const cJSON *object, const char *what, const char *name, tv_config *c,
                                  rope_said *said, tv_err *err) {
    static const char *const known[] = {"rope_type",        "type",
                                        "rope_theta",       "partial_rotary_factor",
                                        "factor",           "original_max_position_embeddings",
                                        "beta_fast",        "beta_slow",
                                        "attention_factor", "mscale",
                                        "mscale_all_dim",   "truncate"};
    enum { N_KNOWN = sizeof known / sizeof *known, FIRST_SCALED = 4 };
    for (const cJSON *item = object->child; item; item = item->next) {
        int k = 0;
        while (k < N_KNOWN && strcmp(item->string, known[k]) != 0) k++;
        if (k >= FIRST_SCALED && !cJSON_IsNull(item)) said->scaled = 1;
    }
    TV_TRY(
        say_type(object, "rope_type", name, said, err)); /* first: a type that is not supported brings its own keys */
    TV_TRY(say_type(object, "type", name, said, err));
    TV_TRY(say_theta(object, name, said, err));
    for (const cJSON *item = object->child; item; item = item->next) {
        int k = 0;
        while (k < N_KNOWN && strcmp(item->string, known[k]) != 0) k++;
        if (k == N_KNOWN && !cJSON_IsNull(item))
            return TV_FAIL(err, TV_EUNSUPPORTED, "%s: key \"%.100s\" of %s is not supported", name, item->string, what);
    }
    double v = 1, mscale = 0, mscale_all = 0;
    int found, all_found, mscale_found, given;
    TV_TRY(may_number(object, name, "partial_rotary_factor", -1e9, 1e9, &v, &found, err));
    if (v != 1)
        return TV_FAIL(err, TV_EUNSUPPORTED, "%s: partial_rotary_factor is %.17g; only 1 is supported", name, v);
    TV_TRY(may_number(object, name, "factor", 1, 1e6, &c->yarn_factor, &found, err));
    /* 0 counts as not given, as it does in the reference implementation */
    TV_TRY(may_number(object, name, "beta_fast", 0, 1e9, &v, &found, err));
    if (found && v != 0) c->yarn_beta_fast = v;
    TV_TRY(may_number(object, name, "beta_slow", 0, 1e9, &v, &found, err));
    if (found && v != 0) c->yarn_beta_slow = v;
    TV_TRY(may_int(object, name, "original_max_position_embeddings", 1, MAX_POSITIONS, c->yarn_original_positions,
                   &c->yarn_original_positions, err));
    TV_TRY(may_bool(object, name, "truncate", c->yarn_truncate, &c->yarn_truncate, err));
    TV_TRY(may_number(object, name, "attention_factor", 1e-6, 1e6, &c->yarn_attention_factor, &given, err));
    TV_TRY(may_number(object, name, "mscale", 0, 1e6, &mscale, &mscale_found, err));
    TV_TRY(may_number(object, name, "mscale_all_dim", 0, 1e6, &mscale_all, &all_found, err));
    if (!given && mscale != 0 && mscale_all != 0 && c->yarn_factor > 1) {
        double l = 0.1 * log(c->yarn_factor);
        c->yarn_attention_factor = (mscale * l + 1) / (mscale_all * l + 1);
    }
    return TV_OK;
}

static tv_status read_rope(const cJSON *root, const char *name, tv_config *c, tv_err *err) {
    static const char *const keys[] = {"rope_scaling", "rope_parameters"};
    rope_said said = {0};
    c->yarn_beta_fast = 32, c->yarn_beta_slow = 1, c->yarn_truncate = 1;
    TV_TRY(say_theta(root, name, &said, err));
    int scaled_in = 0; /* objects with scaling keys */
    for (int k = 0; k < 2; k++) {
        const cJSON *object = get(root, keys[k]), *nested;
        if (!object) continue;
        if (!cJSON_IsObject(object)) return TV_FAIL(err, TV_EFORMAT, "%s: %s is not an object", name, keys[k]);
        if ((nested = get(object, "full_attention"))) { /* one set of keys per attention type */
            if (!cJSON_IsObject(nested))
                return TV_FAIL(err, TV_EFORMAT, "%s: full_attention of %s is not an object", name, keys[k]);
            object = nested;
        }
        said.scaled = 0;
        TV_TRY(read_rope_object(object, keys[k], name, c, &said, err));
        if (said.scaled && ++scaled_in > 1)
            return TV_FAIL(err, TV_EFORMAT, "%s: both rope_scaling and rope_parameters scale the rope; keep one", name);
    }
    if (!said.has_theta)
        return TV_FAIL(err, TV_EFORMAT, "%s: rope_theta is missing (neither at the top level nor in rope_parameters)",
                       name);
    if (scaled_in && !said.type[0])
        return TV_FAIL(err, TV_EFORMAT, "%s: the rope is scaled but no rope_type says how", name);
    c->rope_theta = said.theta;
    c->rope_yarn = strcmp(said.type, "yarn") == 0;
    if (!c->rope_yarn) {
        c->yarn_factor = c->yarn_beta_fast = c->yarn_beta_slow = c->yarn_attention_factor = 0;
        c->yarn_original_positions = c->yarn_truncate = 0;
        return TV_OK;
    }
    TV_TRY(may_int(root, name, "original_max_position_embeddings", 1, MAX_POSITIONS, c->yarn_original_positions,
                   &c->yarn_original_positions, err)); /* at the top level it wins */
    if (!c->yarn_original_positions) c->yarn_original_positions = c->max_positions;
    if (!(c->yarn_factor >= 1)) return TV_FAIL(err, TV_EFORMAT, "%s: rope type yarn needs its factor", name);
    if (!(c->yarn_beta_fast > c->yarn_beta_slow))
        return TV_FAIL(err, TV_EFORMAT, "%s: yarn's beta_fast %g is not above its beta_slow %g", name,
                       c->yarn_beta_fast, c->yarn_beta_slow);
    double reach = c->yarn_factor * c->yarn_original_positions;
    if (reach > MAX_POSITIONS)
        return TV_FAIL(err, TV_EFORMAT, "%s: yarn's factor %g times %d positions is more than %d", name, c->yarn_factor,
                       c->yarn_original_positions, MAX_POSITIONS);
    if (reach > c->max_positions) c->max_positions = (int)reach;
    return TV_OK;
}

static tv_status read_experts(const cJSON *root, const char *name, tv_config *c, tv_err *err) {
    int dense = c->n_layers;
    c->layer_sparse = tv_xcalloc((size_t)c->n_layers, 1);
    if (c->family == TV_QWEN3_MOE) {
        int old, step;
        TV_TRY(may_int(root, name, "num_experts", 1, MAX_EXPERTS, 0, &old, err));
        TV_TRY(may_int(root, name, "num_local_experts", 1, MAX_EXPERTS, 0, &c->n_experts, err));
        if (old && c->n_experts && old != c->n_experts)
            return TV_FAIL(err, TV_EFORMAT, "%s: num_experts is %d but num_local_experts is %d", name, old,
                           c->n_experts);
        if (old) c->n_experts = old;
        if (!c->n_experts) return TV_FAIL(err, TV_EFORMAT, "%s: num_experts (or num_local_experts) is missing", name);
        TV_TRY(need_int(root, name, "num_experts_per_tok", 1, c->n_experts, &c->n_experts_used, err));
        TV_TRY(need_int(root, name, "moe_intermediate_size", 1, MAX_WIDTH, &c->d_ff_expert, err));
        if (!get(root, "norm_topk_prob")) return TV_FAIL(err, TV_EFORMAT, "%s: norm_topk_prob is missing", name);
        TV_TRY(may_bool(root, name, "norm_topk_prob", 0, &c->norm_topk_prob, err));
        TV_TRY(may_int(root, name, "decoder_sparse_step", 1, INT_MAX, 1, &step, err));
        for (int i = 0; i < c->n_layers; i++) c->layer_sparse[i] = (i + 1) % step == 0;
        const cJSON *list = get(root, "mlp_only_layers"), *item;
        if (list && !cJSON_IsArray(list)) return TV_FAIL(err, TV_EFORMAT, "%s: mlp_only_layers is not a list", name);
        cJSON_ArrayForEach(item, list) {
            int layer;
            TV_TRY(bounded(item, name, "an entry of mlp_only_layers", 0, c->n_layers - 1, &layer, err));
            c->layer_sparse[layer] = 0;
        }
        for (int i = 0; i < c->n_layers; i++) dense -= c->layer_sparse[i];
    }
    if (dense || get(root, "intermediate_size"))
        TV_TRY(need_int(root, name, "intermediate_size", 1, MAX_WIDTH, &c->d_ff, err));
    if (!dense) c->d_ff = 0;
    return TV_OK;
}

/* An id outside the vocabulary cannot be drawn, so it cannot stop anything: files cut down from larger models carry
 * such. */
static tv_status add_eos(const cJSON *item, const char *name, tv_config *c, tv_err *err) {
    int64_t id;
    TV_TRY(tv_json_int(item, name, "eos_token_id", &id, err));
    if (id < 0) return TV_FAIL(err, TV_EFORMAT, "%s: eos_token_id %lld is negative", name, (long long)id);
    if (id >= c->vocab_size) {
        tv_warn("%s: eos_token_id %lld is not below vocab_size %d and is ignored", name, (long long)id, c->vocab_size);
        return TV_OK;
    }
    for (int i = 0; i < c->n_eos; i++)
        if (c->eos[i] == id) return TV_OK;
    if (c->n_eos == TV_MAX_EOS)
        return TV_FAIL(err, TV_EUNSUPPORTED, "%s: eos_token_id lists more than %d ids", name, TV_MAX_EOS);
    c->eos[c->n_eos++] = (int32_t)id;
    return TV_OK;
}

/* generation may be NULL; where it names an eos_token_id it wins over config.json. */
static tv_status read_eos(const cJSON *root, const cJSON *generation, const char *name, tv_config *c, tv_err *err) {
    const cJSON *eos = generation ? get(generation, "eos_token_id") : NULL, *item;
    if (!eos) eos = get(root, "eos_token_id");
    if (!eos) return TV_OK;
    if (!cJSON_IsArray(eos)) return add_eos(eos, name, c, err);
    cJSON_ArrayForEach(item, eos) TV_TRY(add_eos(item, name, c, err));
    return TV_OK;
}

static tv_status read_all(const cJSON *root, const cJSON *generation, const char *name, tv_config *c, tv_err *err) {
    if (!cJSON_IsObject(root)) return TV_FAIL(err, TV_EFORMAT, "%s: not a JSON object", name);
    if (generation && !cJSON_IsObject(generation))
        return TV_FAIL(err, TV_EFORMAT, "%s: its generation_config.json is not a JSON object", name);
    TV_TRY(read_family(root, name, c, err));
    TV_TRY(refuse_unsupported(root, name, err));
    TV_TRY(read_sizes(root, name, c, err));
    TV_TRY(read_switches(root, name, c, err));
    TV_TRY(refuse_window(root, name, c, err));
    TV_TRY(read_rope(root, name, c, err));
    TV_TRY(read_experts(root, name, c, err));
    return read_eos(root, generation, name, c, err);
}

tv_status tv_config_parse(const char *text, size_t size, const char *generation, size_t generation_size,
                          const char *name, tv_config *config, tv_err *err) {
    cJSON *root = NULL, *extra = NULL;
    memset(config, 0, sizeof *config);
    tv_status s = tv_json_parse(text, size, name, &root, err);
    if (s == TV_OK && generation) {
        char *both = tv_xprintf("%s: generation_config.json", name);
        s = tv_json_parse(generation, generation_size, both, &extra, err);
        free(both);
    }
    if (s == TV_OK) s = read_all(root, extra, name, config, err);
    cJSON_Delete(root);
    cJSON_Delete(extra);
    if (s != TV_OK) tv_config_free(config);
    return s;
}

tv_status tv_config_load(const char *dir, tv_config *config, tv_err *err) {
    char *path = tv_path_join(dir, "config.json"), *generation_path = tv_path_join(dir, "generation_config.json");
    char *text = NULL, *generation = NULL;
    size_t size = 0, generation_size = 0;
    memset(config, 0, sizeof *config);
    tv_status s = tv_file_read(path, CONFIG_LIMIT, &text, &size, err);
    if (s == TV_OK && tv_path_exists(generation_path))
        s = tv_file_read(generation_path, CONFIG_LIMIT, &generation, &generation_size, err);
    if (s == TV_OK) s = tv_config_parse(text, size, generation, generation_size, path, config, err);
    free(text), free(generation), free(path), free(generation_path);
    return s;
}

void tv_config_free(tv_config *config) {
    free(config->layer_sparse);
    config->layer_sparse = NULL;
}

/* The commit that refs/main names, or NULL where there is no such file. */
static tv_status read_ref(const char *path, char **commit, tv_err *err) {
    char *ref = tv_path_join(path, "refs/main");
    size_t size;
    *commit = NULL;
    tv_status s = TV_OK;
    if (tv_path_exists(ref)) {
        s = tv_file_read(ref, 4096, commit, &size, err);
        if (s == TV_OK) (*commit)[strcspn(*commit, " \t\r\n")] = 0;
        if (s == TV_OK && (!**commit || strchr(*commit, '/') || **commit == '.')) {
            s = TV_FAIL(err, TV_EFORMAT, "%s: does not hold the name of a snapshot", ref);
            free(*commit);
            *commit = NULL;
        }
    }
    free(ref);
    return s;
}

/* The only entry of folder snapshots, or NULL with *n entries counted. */
static char *only_entry(const char *folder, int *n) {
    char *found = NULL;
    *n = 0;
    DIR *d = opendir(folder);
    if (!d) return NULL;
    for (struct dirent *e; (e = readdir(d));) {
        if (e->d_name[0] == '.') continue;
        free(found);
        found = ++*n == 1 ? tv_xstrdup(e->d_name) : NULL;
    }
    closedir(d);
    return found;
}

tv_status tv_model_dir_resolve(const char *path, char **out, tv_err *err) {
    *out = NULL;
    if (!tv_path_exists(path))
        return TV_FAIL(err, TV_EIO,
                       "%s: no such folder (expected a checkpoint folder with config.json, or a Hugging Face cache "
                       "folder with snapshots/)",
                       path);
    if (!tv_path_is_dir(path))
        return TV_FAIL(err, TV_EARG, "%s: not a folder; name the folder that holds config.json and model.safetensors",
                       path);
    char *own = tv_path_join(path, "config.json"), *snapshots = tv_path_join(path, "snapshots"), *commit = NULL;
    tv_status s = TV_OK;
    if (tv_path_exists(own) || !tv_path_is_dir(snapshots)) {
        *out = tv_xstrdup(path);
    } else if ((s = read_ref(path, &commit, err)) == TV_OK) {
        int n = 0;
        if (!commit) commit = only_entry(snapshots, &n);
        if (commit) {
            *out = tv_path_join(snapshots, commit);
            if (!tv_path_is_dir(*out)) {
                s = TV_FAIL(err, TV_EIO, "%s: refs/main names snapshot %s, which is not there (incomplete download?)",
                            path, commit);
                free(*out);
                *out = NULL;
            }
        } else {
            s = TV_FAIL(err, TV_EIO, "%s: no refs/main and %d snapshots; name one of the folders in %s", path, n,
                        snapshots);
        }
    }
    free(commit), free(own), free(snapshots);
    return s;
}
