/* Dumps as entries: JSON or JSON lines, with what Python writes beyond JSON; and the numbers of token texts. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/file.h"
#include "traces/import_private.h"

static const size_t MOST_BYTES = (size_t)8 << 30;

/* ---- token texts ---- */

static void insert(tv_labels *l, int64_t number) {
    uint64_t at = XXH64(l->text[number], strlen(l->text[number]), 0) % (uint64_t)l->slots;
    while (l->slot[at] >= 0) at = (at + 1) % (uint64_t)l->slots;
    l->slot[at] = (int32_t)number;
}

int32_t tv_labels_number(tv_labels *l, const char *hex) {
    if (l->slots) {
        uint64_t at = XXH64(hex, strlen(hex), 0) % (uint64_t)l->slots;
        for (; l->slot[at] >= 0; at = (at + 1) % (uint64_t)l->slots)
            if (strcmp(l->text[l->slot[at]], hex) == 0) return l->slot[at];
    }
    if (2 * (l->n + 1) > l->slots) {
        l->slots = l->slots ? 2 * l->slots : 1024;
        l->slot = tv_xrealloc(l->slot, (size_t)l->slots * sizeof *l->slot);
        l->text = tv_xrealloc(l->text, (size_t)l->slots * sizeof *l->text);
        for (int64_t i = 0; i < l->slots; i++) l->slot[i] = -1;
        for (int64_t i = 0; i < l->n; i++) insert(l, i);
    }
    l->text[l->n] = tv_xstrdup(hex);
    insert(l, l->n);
    return (int32_t)l->n++;
}

tv_status tv_labels_load(tv_labels *l, const char *path, tv_err *err) {
    if (!tv_path_exists(path)) return TV_OK;
    cJSON *json;
    TV_TRY(tv_json_load(path, MOST_BYTES, &json, err));
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(json, "tokens"), *item;
    tv_status s = cJSON_IsArray(list) ? TV_OK : TV_FAIL(err, TV_EFORMAT, "%s: no list \"tokens\"", path);
    if (s == TV_OK) cJSON_ArrayForEach(item, list) {
            const int64_t due = l->n;
            const char *hex = cJSON_GetStringValue(item);
            if (s == TV_OK && (!hex || tv_labels_number(l, hex) != due))
                s = TV_FAIL(err, TV_EFORMAT, "%s: tokens[%" PRId64 "] is no text, or one that is there already", path,
                            due);
        }
    cJSON_Delete(json);
    return s;
}

tv_status tv_labels_save(const tv_labels *l, const char *path, tv_err *err) {
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "format", "tvgpu-tokens/1");
    cJSON_AddItemToObject(json, "tokens", cJSON_CreateStringArray((const char *const *)l->text, (int)l->n));
    tv_status s = tv_json_save(json, path, err);
    cJSON_Delete(json);
    return s;
}

void tv_labels_free(tv_labels *l) {
    for (int64_t i = 0; i < l->n; i++) free(l->text[i]);
    free(l->text);
    free(l->slot);
}

/* ---- files ---- */

/* Python's json module writes what JSON does not know. -Infinity is a probability of 0 and becomes a number that reads
 * as such; NaN and Infinity are refused by name. */
static tv_status tame(char *text, size_t size, const char *where, tv_err *err) {
    static const char INFINITE[] = "Infinity", NUMBER[] = "-1e999999";
    const char *key = "", *opened = NULL;
    int key_length = 0;
    for (size_t i = 0; i < size; i++) {
        if (opened) {
            if (text[i] == '\\') {
                i++;
            } else if (text[i] == '"') {
                key = opened, key_length = (int)(text + i - opened), opened = NULL;
            }
            continue;
        }
        if (text[i] == '"') opened = text + i + 1;
        const int nan = size - i >= 3 && !memcmp(text + i, "NaN", 3);
        const int infinite = size - i >= 8 && !memcmp(text + i, INFINITE, 8);
        if (infinite && i && text[i - 1] == '-')
            memcpy(text + i - 1, NUMBER, 9);
        else if (nan || infinite)
            return TV_FAIL(err, TV_EFORMAT, "%s: %s at byte %zu, behind \"%.*s\": a log-probability is a number", where,
                           nan ? "NaN" : INFINITE, i, key_length > 60 ? 60 : key_length, key);
    }
    return TV_OK;
}

static tv_status read_value(tv_reader *r, char *text, size_t size, const char *where, int is_list, tv_err *err) {
    cJSON *json;
    TV_TRY(tame(text, size, where, err));
    TV_TRY(tv_json_parse(text, size, where, &json, err));
    tv_status s = TV_OK;
    if (!is_list) s = tv_import_entry(r, json, where, err);
    int64_t i = 0;
    if (is_list)
        for (const cJSON *item = json->child; item && s == TV_OK; item = item->next) {
            char *entry = tv_xprintf("%s[%" PRId64 "]", where, i++);
            s = tv_import_entry(r, item, entry, err);
            free(entry);
        }
    cJSON_Delete(json);
    return s;
}

static size_t blank(const char *text, size_t size) {
    size_t n = 0;
    while (n < size && strchr(" \t\r\n", text[n]) && text[n]) n++;
    return n;
}

tv_status tv_import_file(tv_reader *r, const char *path, tv_err *err) {
    char *text;
    size_t size;
    TV_TRY(tv_file_read(path, MOST_BYTES, &text, &size, err));
    size_t at = blank(text, size);
    tv_status s = TV_OK;
    if (at == size) {
        s = TV_FAIL(err, TV_EFORMAT, "%s: empty: no entries", path);
    } else if (text[at] == '[') {
        s = read_value(r, text, size, path, 1, err);
    } else {
        /* One value a line where the first line is one and more follows; else one value. */
        char *line_end = memchr(text + at, '\n', size - at);
        size_t first = line_end ? (size_t)(line_end - text) : size;
        const int lines = first + blank(text + first, size - first) < size && strchr("}]\r", text[first - 1]) &&
                          text[at + 1] != '\n' && text[at + 1] != '\r';
        if (!lines) s = read_value(r, text, size, path, 0, err);
        for (int64_t number = 1, begin = 0; lines && s == TV_OK && (size_t)begin < size; number++) {
            char *end = memchr(text + begin, '\n', size - (size_t)begin);
            size_t length = end ? (size_t)(end - text) - (size_t)begin : size - (size_t)begin;
            char *where = tv_xprintf("%s:%" PRId64, path, number);
            if (blank(text + begin, length) < length) s = read_value(r, text + begin, length, where, 0, err);
            free(where);
            begin += (int64_t)length + 1;
        }
    }
    free(text);
    return s;
}

void tv_reader_free(tv_reader *r) {
    for (int64_t i = 0; i < r->n_c; i++) {
        tv_completion *c = &r->c[i];
        free(c->where);
        free(c->prompt);
        free(c->tokens);
        free(c->own);
        free(c->first);
        free(c->ids);
        free(c->lps);
    }
    free(r->c);
    tv_labels_free(&r->labels);
}
