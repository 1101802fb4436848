/* Strict reading of JSON on top of cJSON: what a hostile or careless file can hold is refused with the file's name. */
#ifndef TV_JSON_H
#define TV_JSON_H

#include <cjson/cJSON.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* Parses text[0..size) (NUL bytes inside are errors). name goes into messages. Refuses: trailing bytes other than
 * white space, duplicate keys in any object, nesting deeper than 64. The caller frees with cJSON_Delete. */
TV_NODISCARD tv_status tv_json_parse(const char *text, size_t size, const char *name, cJSON **out, tv_err *err);
/* The same for a file of at most limit bytes. */
TV_NODISCARD tv_status tv_json_load(const char *path, size_t limit, cJSON **out, tv_err *err);

/* Integer of a number item, exact: fails unless it is whole, |value| <= 2^53. what names it in messages. */
TV_NODISCARD tv_status tv_json_int(const cJSON *item, const char *name, const char *what, int64_t *out, tv_err *err);

/* Adds a number that may not exist: finite values as numbers, others as null. */
void tv_json_add_number(cJSON *object, const char *key, double value);
/* Adds null under key and the reason under "KEY_reason". */
void tv_json_add_null(cJSON *object, const char *key, const char *reason);

/* Pretty-printed text; the caller frees with free(). Every number reads back as the same double (at most 17 digits);
 * one that is not finite is null. */
char *tv_json_text(const cJSON *json);
/* The same on one line without white space. */
char *tv_json_line(const cJSON *json);
/* Writes tv_json_text and a final newline. */
TV_NODISCARD tv_status tv_json_save(const cJSON *json, const char *path, tv_err *err);

#endif
