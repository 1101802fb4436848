#include "base/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

enum { MAX_DEPTH = 64 };

static int compare_keys(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* cJSON keeps both of two equal keys and returns the first: refuse instead of choosing. */
static tv_status check(const cJSON *item, int depth, const char *name, tv_err *err) {
    if (depth > MAX_DEPTH) return TV_FAIL(err, TV_EFORMAT, "%s: nested deeper than %d levels", name, MAX_DEPTH);
    if (cJSON_IsObject(item)) {
        size_t n = 0, i = 0;
        for (const cJSON *c = item->child; c; c = c->next) n++;
        const char **keys = tv_xmalloc(n * sizeof *keys);
        for (const cJSON *c = item->child; c; c = c->next) keys[i++] = c->string;
        if (n > 1) qsort(keys, n, sizeof *keys, compare_keys);
        for (i = 1; i < n; i++)
            if (strcmp(keys[i - 1], keys[i]) == 0) {
                tv_status s = TV_FAIL(err, TV_EFORMAT, "%s: duplicate key \"%.200s\"", name, keys[i]);
                free(keys);
                return s;
            }
        free(keys);
    }
    if (cJSON_IsObject(item) || cJSON_IsArray(item))
        for (const cJSON *c = item->child; c; c = c->next) TV_TRY(check(c, depth + 1, name, err));
    return TV_OK;
}

tv_status tv_json_parse(const char *text, size_t size, const char *name, cJSON **out, tv_err *err) {
    *out = NULL;
    if (memchr(text, 0, size)) return TV_FAIL(err, TV_EFORMAT, "%s: a NUL byte inside the JSON text", name);
    const char *end = NULL;
    cJSON *json = cJSON_ParseWithLengthOpts(text, size, &end, 0);
    if (!json) {
        size_t at = end ? (size_t)(end - text) : 0;
        return TV_FAIL(err, TV_EFORMAT, "%s: not valid JSON near byte %zu", name, at < size ? at : size);
    }
    for (; end < text + size; end++)
        if (!strchr(" \t\r\n", *end)) {
            tv_status s =
                TV_FAIL(err, TV_EFORMAT, "%s: text after the JSON value at byte %zu", name, (size_t)(end - text));
            cJSON_Delete(json);
            return s;
        }
    tv_status s = check(json, 0, name, err);
    if (s != TV_OK) {
        cJSON_Delete(json);
        return s;
    }
    *out = json;
    return TV_OK;
}

tv_status tv_json_load(const char *path, size_t limit, cJSON **out, tv_err *err) {
    char *text;
    size_t size;
    *out = NULL;
    TV_TRY(tv_file_read(path, limit, &text, &size, err));
    tv_status s = tv_json_parse(text, size, path, out, err);
    free(text);
    return s;
}

tv_status tv_json_int(const cJSON *item, const char *name, const char *what, int64_t *out, tv_err *err) {
    if (!cJSON_IsNumber(item)) return TV_FAIL(err, TV_EFORMAT, "%s: %s is not a number", name, what);
    double v = item->valuedouble;
    if (!(fabs(v) <= 9007199254740992.0) || v != floor(v))
        return TV_FAIL(err, TV_EFORMAT, "%s: %s is %.17g, not a whole number", name, what, v);
    *out = (int64_t)v;
    return TV_OK;
}

void tv_json_add_number(cJSON *object, const char *key, double value) {
    if (isfinite(value))
        cJSON_AddNumberToObject(object, key, value);
    else
        cJSON_AddNullToObject(object, key);
}

void tv_json_add_null(cJSON *object, const char *key, const char *reason) {
    char *reason_key = tv_xprintf("%s_reason", key);
    cJSON_AddNullToObject(object, key);
    cJSON_AddStringToObject(object, reason_key, reason);
    free(reason_key);
}

/* Turns the numbers of a tree into the text that reads back as the same double: cJSON itself settles for "nearly the
 * same" (0.1 + 0.2 becomes 0.3). The shortest of 15, 16 and 17 digits; what is not finite becomes null. */
static void spell_numbers(cJSON *item) {
    for (; item; item = item->next) {
        spell_numbers(item->child);
        if (!cJSON_IsNumber(item)) continue;
        double v = item->valuedouble;
        char text[32] = "null";
        for (int digits = 15; isfinite(v) && digits <= 17; digits++) {
            snprintf(text, sizeof text, "%.*g", digits, v);
            if (strtod(text, NULL) == v) break;
        }
        cJSON *raw = cJSON_CreateRaw(text);
        TV_ASSERT(raw);
        item->type = (item->type & ~0xff) | cJSON_Raw;
        item->valuestring = raw->valuestring;
        raw->valuestring = NULL;
        cJSON_Delete(raw);
    }
}

static char *print(const cJSON *json, int pretty) {
    cJSON *spelled = cJSON_Duplicate(json, 1);
    TV_ASSERT(spelled);
    spell_numbers(spelled);
    char *text = pretty ? cJSON_Print(spelled) : cJSON_PrintUnformatted(spelled);
    TV_ASSERT(text);
    cJSON_Delete(spelled);
    return text;
}

char *tv_json_text(const cJSON *json) { return print(json, 1); }

char *tv_json_line(const cJSON *json) { return print(json, 0); }

tv_status tv_json_save(const cJSON *json, const char *path, tv_err *err) {
    char *text = tv_json_text(json);
    char *line = tv_xprintf("%s\n", text);
    tv_status s = tv_file_write(path, line, strlen(line), err);
    free(line);
    free(text);
    return s;
}
