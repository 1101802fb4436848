/* The forms in which engines record log-probabilities: vLLM's RequestOutput, SGLang's generate, OpenAI-style responses.
 */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "traces/import_private.h"

static const double MAX_LP = 1e-3;   /* f32 log-softmax may end a rounding above 0 */
static const double NO_MASS = -9999; /* what vLLM's server writes for -inf */
static const double SAME_LP = 1e-3;  /* one token's log-probability, said twice */

typedef struct {
    tv_reader *r;
    const char *where;
    tv_completion *c; /* being filled */
} form;

/* Names a place within the entry: "FILE:3: outputs[0].logprobs[5]". */
typedef struct {
    char text[200];
} place;
static place at(const char *fmt, ...) TV_PRINTF(1, 2);
static place at(const char *fmt, ...) {
    place p;
    va_list list;
    va_start(list, fmt);
    vsnprintf(p.text, sizeof p.text, fmt, list);
    va_end(list);
    return p;
}

static const cJSON *get(const cJSON *object, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsNull(item) ? NULL : item; /* Python's None is absence */
}

static tv_status need_array(const form *f, const cJSON *item, place p, tv_err *err) {
    if (cJSON_IsArray(item)) return TV_OK;
    return TV_FAIL(err, TV_EFORMAT, "%s: %s is %s, where a list is due", f->where, p.text,
                   item ? "no list" : "missing");
}

/* ---- numbers ---- */

static tv_status read_id(const form *f, const cJSON *item, place p, int32_t *id, tv_err *err) {
    const double v = cJSON_IsNumber(item) ? item->valuedouble : NAN;
    if (!(v >= 0 && v <= INT32_MAX && v == floor(v)))
        return cJSON_IsNumber(item) ? TV_FAIL(err, TV_EFORMAT, "%s: %s is %.12g: not a token id", f->where, p.text, v)
                                    : TV_FAIL(err, TV_EFORMAT, "%s: %s is no number: not a token id", f->where, p.text);
    *id = (int32_t)v;
    f->r->labels.used_ids = 1;
    return TV_OK;
}

static tv_status read_lp(const form *f, const cJSON *item, place p, float *lp, tv_err *err) {
    if (!cJSON_IsNumber(item))
        return TV_FAIL(err, TV_EFORMAT, "%s: %s is %s: not a log-probability", f->where, p.text,
                       !item                ? "missing"
                       : cJSON_IsNull(item) ? "null"
                                            : "no number");
    const double v = item->valuedouble;
    if (!(v <= MAX_LP)) return TV_FAIL(err, TV_EFORMAT, "%s: %s is %g: not a log-probability", f->where, p.text, v);
    *lp = v <= NO_MASS ? -INFINITY : (float)v;
    return TV_OK;
}

/* The number of a token given as text: its id where the server wrote "token_id:123", else by its bytes. */
static tv_status read_text(const form *f, const char *text, const cJSON *bytes, place p, int32_t *id, tv_err *err) {
    static const char PREFIX[] = "token_id:";
    if (!text) return TV_FAIL(err, TV_EFORMAT, "%s: %s is missing or no text", f->where, p.text);
    if (!strncmp(text, PREFIX, sizeof PREFIX - 1)) {
        const char *digits = text + sizeof PREFIX - 1;
        const long long v =
            strlen(digits) <= 10 && digits[strspn(digits, "0123456789")] == 0 && *digits ? atoll(digits) : -1;
        if (v < 0 || v > INT32_MAX)
            return TV_FAIL(err, TV_EFORMAT, "%s: %s is \"%.60s\": not a token id", f->where, p.text, text);
        f->r->labels.used_ids = 1;
        *id = (int32_t)v;
        return TV_OK;
    }
    const int listed = cJSON_IsArray(bytes);
    const size_t n = listed ? (size_t)cJSON_GetArraySize(bytes) : strlen(text);
    char *hex = tv_xcalloc(2 * n + 1, 1);
    const cJSON *byte = listed ? bytes->child : NULL;
    for (size_t i = 0; i < n; i++, byte = byte ? byte->next : NULL) {
        const double v = !byte ? (unsigned char)text[i] : cJSON_IsNumber(byte) ? byte->valuedouble : -1;
        if (!(v >= 0 && v <= 255 && v == floor(v))) {
            free(hex);
            return TV_FAIL(err, TV_EFORMAT, "%s: the bytes of %s hold what is no byte", f->where, p.text);
        }
        snprintf(hex + 2 * i, 3, "%02x", (unsigned)v);
    }
    f->r->labels.used_text = 1;
    *id = tv_labels_number(&f->r->labels, hex);
    free(hex);
    return TV_OK;
}

/* ---- completions ---- */

static void begin(form *f, const cJSON *entry, char *where) {
    tv_reader *r = f->r;
    r->c = tv_xrealloc(r->c, (size_t)(r->n_c + 1) * sizeof *r->c);
    f->c = &r->c[r->n_c++];
    *f->c = (tv_completion){.where = where, .trajectory = -1, .first = tv_xcalloc(1, sizeof *f->c->first)};
    const cJSON *number = get(entry, "trajectory");
    if (cJSON_IsNumber(number) && number->valuedouble >= 0 && number->valuedouble < 1e15)
        f->c->trajectory = (int64_t)number->valuedouble;
}

static void add_token(form *f, int32_t id, float own) {
    tv_completion *c = f->c;
    if (!(c->n & (c->n + 1))) { /* grows at 0, 1, 3, 7, ... */
        const size_t room = 2 * (size_t)c->n + 2;
        c->tokens = tv_xrealloc(c->tokens, room * sizeof *c->tokens);
        c->own = tv_xrealloc(c->own, room * sizeof *c->own);
        c->first = tv_xrealloc(c->first, (room + 1) * sizeof *c->first);
    }
    c->tokens[c->n] = id;
    c->own[c->n] = own;
    c->first[c->n + 1] = c->first[c->n];
    c->n++;
}

/* A slot of the last token's record. Refuses an id that is there already. */
static tv_status add_slot(form *f, int32_t id, float lp, place p, tv_err *err) {
    tv_completion *c = f->c;
    int64_t *end = &c->first[c->n];
    for (int64_t j = c->first[c->n - 1]; j < *end; j++)
        if (c->ids[j] == id)
            return TV_FAIL(
                err, TV_EFORMAT,
                "%s: %s: the token is in this list already; where different tokens read alike, ask for their "
                "bytes or ids (vLLM: return_tokens_as_token_ids)",
                f->where, p.text);
    if (*end == c->capacity) {
        c->capacity = c->capacity ? 2 * c->capacity : 256;
        c->ids = tv_xrealloc(c->ids, (size_t)c->capacity * sizeof *c->ids);
        c->lps = tv_xrealloc(c->lps, (size_t)c->capacity * sizeof *c->lps);
    }
    c->ids[*end] = id;
    c->lps[*end] = lp;
    ++*end;
    return TV_OK;
}

/* The last token's own value and its slot, if it has one, must agree. */
static tv_status check_own(form *f, place p, tv_err *err) {
    tv_completion *c = f->c;
    const int64_t t = c->n - 1;
    for (int64_t j = c->first[t]; j < c->first[t + 1]; j++)
        if (c->ids[j] == c->tokens[t] && c->lps[j] != c->own[t] && !(fabsf(c->lps[j] - c->own[t]) <= SAME_LP))
            return TV_FAIL(err, TV_EFORMAT,
                           "%s: %s: the token's log-probability is %g by itself and %g among the most likely", f->where,
                           p.text, (double)c->own[t], (double)c->lps[j]);
    return TV_OK;
}

/* The prompt as ids, or a text as its bytes. */
static tv_status read_prompt(form *f, const cJSON *ids, const char *name, const char *text, tv_err *err) {
    tv_completion *c = f->c;
    if (ids) {
        TV_TRY(need_array(f, ids, at("%s", name), err));
        c->n_prompt = cJSON_GetArraySize(ids);
        c->prompt = tv_xcalloc((size_t)c->n_prompt + 1, sizeof *c->prompt);
        int64_t i = 0;
        for (const cJSON *item = ids->child; item; item = item->next, i++)
            TV_TRY(read_id(f, item, at("%s[%" PRId64 "]", name, i), &c->prompt[i], err));
    } else if (text) {
        c->is_text = 1;
        c->n_prompt = (int64_t)strlen(text);
        c->prompt = tv_xcalloc((size_t)c->n_prompt + 1, sizeof *c->prompt);
        for (int64_t i = 0; i < c->n_prompt; i++) c->prompt[i] = (unsigned char)text[i];
    }
    return TV_OK;
}

/* ---- vLLM ---- */

/* {"ID": {"logprob": x, ...}, ...}: the most likely tokens, and the token itself where it is none of them. */
static tv_status vllm_record(form *f, int32_t token, const cJSON *record, place p, tv_err *err) {
    if (!cJSON_IsObject(record))
        return TV_FAIL(err, TV_EFORMAT, "%s: %s is %s, where {\"ID\": {\"logprob\": ...}} is due", f->where, p.text,
                       cJSON_IsNull(record) ? "null" : "no object");
    add_token(f, token, NAN);
    for (const cJSON *item = record->child; item; item = item->next) {
        place q = at("%s[\"%.40s\"]", p.text, item->string);
        char *end;
        const long long id = strtoll(item->string, &end, 10);
        if (*item->string < '0' || *item->string > '9' || *end || id > INT32_MAX)
            return TV_FAIL(err, TV_EFORMAT, "%s: %s: the key is no token id", f->where, q.text);
        float lp;
        TV_TRY(
            read_lp(f, cJSON_IsObject(item) ? cJSON_GetObjectItemCaseSensitive(item, "logprob") : item, q, &lp, err));
        if (id == token) f->c->own[f->c->n - 1] = lp;
        TV_TRY(add_slot(f, (int32_t)id, lp, q, err));
    }
    if (isnan(f->c->own[f->c->n - 1]))
        return TV_FAIL(err, TV_EFORMAT, "%s: %s lacks the token itself (id %d)", f->where, p.text, token);
    f->r->labels.used_ids = 1;
    return TV_OK;
}

static tv_status vllm_list(form *f, const int32_t *tokens, int64_t n, const cJSON *list, const char *name, int64_t skip,
                           tv_err *err) {
    TV_TRY(need_array(f, list, at("%s (SamplingParams(logprobs=20) records it)", name), err));
    if (cJSON_GetArraySize(list) != n)
        return TV_FAIL(err, TV_EFORMAT, "%s: %s has %d records and there are %" PRId64 " tokens", f->where, name,
                       cJSON_GetArraySize(list), n);
    int64_t t = 0;
    for (const cJSON *record = list->child; record; record = record->next, t++)
        if (t >= skip) TV_TRY(vllm_record(f, tokens[t], record, at("%s[%" PRId64 "]", name, t), err));
    return TV_OK;
}

static tv_status read_vllm(form *f, const cJSON *entry, tv_err *err) {
    const cJSON *outputs = get(entry, "outputs"), *ids = get(entry, "prompt_token_ids");
    const cJSON *scores = f->r->scoring ? get(entry, "prompt_logprobs") : NULL;
    const char *text = cJSON_GetStringValue(get(entry, "prompt"));
    if (scores) {
        begin(f, entry, tv_xstrdup(f->where));
        f->c->from_prompt = 1;
        TV_TRY(need_array(f, ids, at("prompt_token_ids"), err));
        TV_TRY(read_prompt(f, ids, "prompt_token_ids", NULL, err));
        return vllm_list(f, f->c->prompt, f->c->n_prompt, scores, "prompt_logprobs", 1, err);
    }
    TV_TRY(need_array(f, outputs, at("outputs"), err));
    if (!outputs->child) return TV_FAIL(err, TV_EFORMAT, "%s: outputs is empty", f->where);
    int o = 0;
    for (const cJSON *output = outputs->child; output; output = output->next, o++) {
        begin(f, entry, tv_xprintf("%s: outputs[%d]", f->where, o));
        TV_TRY(read_prompt(f, ids, "prompt_token_ids", text, err));
        const cJSON *tokens = get(output, "token_ids");
        TV_TRY(need_array(f, tokens, at("outputs[%d].token_ids", o), err));
        const int64_t n = cJSON_GetArraySize(tokens);
        int32_t *x = tv_xcalloc((size_t)n + 1, sizeof *x);
        tv_status s = TV_OK;
        int64_t t = 0;
        for (const cJSON *item = tokens->child; item && s == TV_OK; item = item->next, t++)
            s = read_id(f, item, at("outputs[%d].token_ids[%" PRId64 "]", o, t), &x[t], err);
        place name = at("outputs[%d].logprobs", o);
        if (s == TV_OK) s = vllm_list(f, x, n, get(output, "logprobs"), name.text, 0, err);
        free(x);
        TV_TRY(s);
    }
    return TV_OK;
}

/* ---- SGLang ---- */

/* [log-probability, id, text or null] */
static tv_status sglang_pair(form *f, const cJSON *pair, place p, int32_t *id, float *lp, tv_err *err) {
    if (!cJSON_IsArray(pair) || cJSON_GetArraySize(pair) < 2)
        return TV_FAIL(err, TV_EFORMAT, "%s: %s is not [log-probability, id, text]", f->where, p.text);
    TV_TRY(read_id(f, pair->child->next, at("%s[1]", p.text), id, err));
    return read_lp(f, pair->child, at("%s[0]", p.text), lp, err);
}

static tv_status read_sglang(form *f, const cJSON *entry, tv_err *err) {
    const cJSON *meta = get(entry, "meta_info"), *ids = get(entry, "input_ids"), *output_ids = get(entry, "output_ids");
    if (!ids) ids = get(entry, "prompt_token_ids");
    const cJSON *scored = get(meta, "input_top_logprobs");
    const int from_prompt = f->r->scoring && cJSON_GetArraySize(scored) > 0;
    const char *own_name = from_prompt ? "meta_info.input_token_logprobs" : "meta_info.output_token_logprobs";
    const char *top_name = from_prompt ? "meta_info.input_top_logprobs" : "meta_info.output_top_logprobs";
    const cJSON *own = get(meta, strchr(own_name, '.') + 1), *top = get(meta, strchr(top_name, '.') + 1);
    begin(f, entry, tv_xstrdup(f->where));
    f->c->from_prompt = from_prompt;
    TV_TRY(read_prompt(f, ids, "input_ids", cJSON_GetStringValue(get(entry, "prompt")), err));
    TV_TRY(need_array(f, own, at("%s (return_logprob=True records it)", own_name), err));
    TV_TRY(need_array(f, top, at("%s (top_logprobs_num=20 records it)", top_name), err));
    if (cJSON_GetArraySize(own) != cJSON_GetArraySize(top))
        return TV_FAIL(err, TV_EFORMAT, "%s: %s has %d entries and %s %d", f->where, own_name, cJSON_GetArraySize(own),
                       top_name, cJSON_GetArraySize(top));
    if (!from_prompt && output_ids && cJSON_GetArraySize(output_ids) != cJSON_GetArraySize(own))
        return TV_FAIL(err, TV_EFORMAT, "%s: output_ids has %d tokens and %s %d", f->where,
                       cJSON_GetArraySize(output_ids), own_name, cJSON_GetArraySize(own));
    const cJSON *o = own->child, *r = top->child;
    const cJSON *said = from_prompt || !cJSON_IsArray(output_ids) ? NULL : output_ids->child;
    for (int64_t t = 0; o; o = o->next, r = r->next, t++, said = said ? said->next : NULL) {
        if (from_prompt && !t && cJSON_IsArray(o) && cJSON_IsNull(o->child)) continue; /* nothing stands before it */
        place p = at("%s[%" PRId64 "]", own_name, t), q = at("%s[%" PRId64 "]", top_name, t);
        int32_t id, other;
        float lp;
        TV_TRY(sglang_pair(f, o, p, &id, &lp, err));
        if (said) {
            TV_TRY(read_id(f, said, at("output_ids[%" PRId64 "]", t), &other, err));
            if (other != id)
                return TV_FAIL(err, TV_EFORMAT, "%s: %s is of token %d and output_ids[%" PRId64 "] is %d", f->where,
                               p.text, id, t, other);
        }
        add_token(f, id, lp);
        TV_TRY(need_array(f, cJSON_IsNull(r) ? NULL : r, q, err));
        int64_t j = 0;
        for (const cJSON *pair = r->child; pair; pair = pair->next, j++) {
            place slot = at("%s[%" PRId64 "]", q.text, j);
            TV_TRY(sglang_pair(f, pair, slot, &other, &lp, err));
            TV_TRY(add_slot(f, other, lp, slot, err));
        }
        TV_TRY(check_own(f, p, err));
    }
    return TV_OK;
}

/* ---- OpenAI ---- */

/* choices[].logprobs.content[]: {"token", "bytes", "logprob", "top_logprobs": [the same without the last]} */
static tv_status openai_chat(form *f, const cJSON *content, int c, tv_err *err) {
    int64_t t = 0;
    for (const cJSON *item = content->child; item; item = item->next, t++) {
        place p = at("choices[%d].logprobs.content[%" PRId64 "]", c, t);
        int32_t id;
        float lp;
        TV_TRY(read_text(f, cJSON_GetStringValue(get(item, "token")), get(item, "bytes"), at("%s.token", p.text), &id,
                         err));
        TV_TRY(read_lp(f, cJSON_GetObjectItemCaseSensitive(item, "logprob"), at("%s.logprob", p.text), &lp, err));
        add_token(f, id, lp);
        const cJSON *top = get(item, "top_logprobs");
        TV_TRY(need_array(f, top, at("%s.top_logprobs (\"top_logprobs\": 20 asks for it)", p.text), err));
        int64_t j = 0;
        for (const cJSON *slot = top->child; slot; slot = slot->next, j++) {
            place q = at("%s.top_logprobs[%" PRId64 "]", p.text, j);
            TV_TRY(read_text(f, cJSON_GetStringValue(get(slot, "token")), get(slot, "bytes"), at("%s.token", q.text),
                             &id, err));
            TV_TRY(read_lp(f, cJSON_GetObjectItemCaseSensitive(slot, "logprob"), at("%s.logprob", q.text), &lp, err));
            TV_TRY(add_slot(f, id, lp, q, err));
        }
        TV_TRY(check_own(f, p, err));
    }
    return TV_OK;
}

/* choices[].logprobs: {"tokens": [], "token_logprobs": [], "top_logprobs": [{token: log-probability}]}. With "echo" the
 * prompt's tokens come first: skip of them are left out. */
static tv_status openai_text(form *f, const cJSON *logprobs, int c, int64_t skip, tv_err *err) {
    const cJSON *tokens = get(logprobs, "tokens"), *own = get(logprobs, "token_logprobs"),
                *top = get(logprobs, "top_logprobs");
    place p = at("choices[%d].logprobs", c);
    TV_TRY(need_array(f, tokens, at("%s.tokens", p.text), err));
    TV_TRY(need_array(f, own, at("%s.token_logprobs", p.text), err));
    TV_TRY(need_array(f, top, at("%s.top_logprobs (\"logprobs\": 20 asks for it)", p.text), err));
    const int n = cJSON_GetArraySize(tokens);
    if (cJSON_GetArraySize(own) != n || cJSON_GetArraySize(top) != n)
        return TV_FAIL(err, TV_EFORMAT, "%s: %s has %d tokens, %d token_logprobs and %d top_logprobs", f->where, p.text,
                       n, cJSON_GetArraySize(own), cJSON_GetArraySize(top));
    const cJSON *x = tokens->child, *o = own->child, *record = top->child;
    for (int64_t t = 0; x; x = x->next, o = o->next, record = record->next, t++) {
        int32_t id;
        float lp;
        if (t < skip || (!t && f->c->from_prompt && cJSON_IsNull(o))) continue;
        TV_TRY(read_text(f, cJSON_GetStringValue(x), NULL, at("%s.tokens[%" PRId64 "]", p.text, t), &id, err));
        place q = at("%s.token_logprobs[%" PRId64 "]", p.text, t);
        TV_TRY(read_lp(f, o, q, &lp, err));
        add_token(f, id, lp);
        if (!cJSON_IsObject(record))
            return TV_FAIL(err, TV_EFORMAT, "%s: %s.top_logprobs[%" PRId64 "] is no object", f->where, p.text, t);
        for (const cJSON *slot = record->child; slot; slot = slot->next) {
            place s = at("%s.top_logprobs[%" PRId64 "][\"%.40s\"]", p.text, t, slot->string);
            TV_TRY(read_text(f, slot->string, NULL, s, &id, err));
            TV_TRY(read_lp(f, slot, s, &lp, err));
            TV_TRY(add_slot(f, id, lp, s, err));
        }
        TV_TRY(check_own(f, q, err));
    }
    return TV_OK;
}

/* The response itself, or one within a line of a batch or of a log. */
static const cJSON *response_of(const cJSON *entry) {
    const cJSON *response = get(entry, "response");
    if (!response) return entry;
    return get(response, "body") ? get(response, "body") : response;
}

static tv_status read_openai(form *f, const cJSON *entry, tv_err *err) {
    const cJSON *response = response_of(entry), *choices = get(response, "choices"), *request = get(entry, "request");
    if (!request) request = entry;
    TV_TRY(need_array(f, choices, at("choices"), err));
    if (!choices->child) return TV_FAIL(err, TV_EFORMAT, "%s: choices is empty", f->where);
    const cJSON *messages = get(request, "messages"), *prompt = get(request, "prompt");
    const cJSON *ids = get(response, "prompt_token_ids");
    if (!ids && cJSON_IsArray(prompt)) ids = prompt;
    char *text = messages ? tv_json_line(messages) : cJSON_IsString(prompt) ? tv_xstrdup(prompt->valuestring) : NULL;
    tv_status s = TV_OK;
    int c = 0;
    for (const cJSON *choice = choices->child; choice && s == TV_OK; choice = choice->next, c++) {
        const cJSON *logprobs = get(choice, "logprobs"), *content = get(logprobs, "content");
        begin(f, entry, tv_xprintf("%s: choices[%d]", f->where, c));
        s = read_prompt(f, ids, "prompt_token_ids", text, err);
        if (s != TV_OK) break;
        if (!cJSON_IsObject(logprobs)) {
            s = TV_FAIL(err, TV_EFORMAT, "%s: choices[%d].logprobs is missing: ask for \"logprobs\"", f->where, c);
        } else if (content) {
            s = need_array(f, content, at("choices[%d].logprobs.content", c), err);
            if (s == TV_OK) s = openai_chat(f, content, c, err);
        } else {
            const cJSON *own = get(logprobs, "token_logprobs"), *usage = get(get(response, "usage"), "prompt_tokens");
            const int echo = cJSON_IsArray(own) && cJSON_IsNull(own->child);
            f->c->from_prompt = f->r->scoring && echo;
            if (echo && !f->r->scoring && !cJSON_IsNumber(usage))
                s = TV_FAIL(err, TV_EFORMAT, "%s: choices[%d] echoes its prompt and usage.prompt_tokens is missing",
                            f->where, c);
            if (s == TV_OK)
                s = openai_text(f, logprobs, c, echo && !f->r->scoring ? (int64_t)usage->valuedouble : 0, err);
        }
    }
    free(text);
    return s;
}

/* ---- any ---- */

/* What the dump says of its sampling is what the options say. */
static tv_status check_stated(const form *f, const cJSON *entry, tv_err *err) {
    const cJSON *from[] = {get(entry, "sampling_params"), get(entry, "request")};
    const struct {
        const char *key, *option;
        double value;
    } due[] = {{"temperature", "--temperature", f->r->options->temperature},
               {"top_k", "--top-k", f->r->options->top_k}};
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++) {
            const cJSON *said = get(from[i], due[j].key);
            const double v = cJSON_IsNumber(said) ? j && said->valuedouble < 0 ? 0 : said->valuedouble : due[j].value;
            if (v != due[j].value)
                return TV_FAIL(err, TV_EARG, "%s: %s.%s is %g and %s is %g; import it with %s %g", f->where,
                               i ? "request" : "sampling_params", due[j].key, v, due[j].option, due[j].value,
                               due[j].option, v);
        }
    return TV_OK;
}

tv_status tv_import_entry(tv_reader *r, const cJSON *entry, const char *where, tv_err *err) {
    form f = {r, where, NULL};
    const int vllm = get(entry, "outputs") || get(entry, "prompt_logprobs"), sglang = get(entry, "meta_info") != NULL,
              openai = get(response_of(entry), "choices") != NULL;
    const char *failed = cJSON_GetStringValue(get(get(entry, "error"), "message"));
    if (failed) return TV_FAIL(err, TV_EFORMAT, "%s: the request failed: %.200s", where, failed);
    if (r->options->form == TV_FORM_AUTO) {
        const tv_import_form found = vllm ? TV_FORM_VLLM : sglang ? TV_FORM_SGLANG : TV_FORM_OPENAI;
        if (vllm + sglang + openai != 1 || (r->form && r->form != found))
            return TV_FAIL(
                err, TV_EFORMAT,
                "%s: %s \"outputs\" (vLLM), \"meta_info\" (SGLang) and \"choices\" (OpenAI); docs/formats.md "
                "shows the forms",
                where,
                vllm + sglang + openai == 0   ? "none of"
                : vllm + sglang + openai == 1 ? "another than in the entries before: of"
                                              : "more than one of");
        r->form = found;
    }
    TV_TRY(check_stated(&f, entry, err));
    return r->form == TV_FORM_VLLM     ? read_vllm(&f, entry, err)
           : r->form == TV_FORM_SGLANG ? read_sglang(&f, entry, err)
                                       : read_openai(&f, entry, err);
}
