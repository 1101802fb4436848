/* The tokenizer against ids of the reference library, and what it must refuse. tests/goldens/tokenizer holds a real
 * vocabulary cut down to what the cases reach (tools/reduce_tokenizer.py), with the ids of the whole one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "base/json.h"
#include "models/tokenizer.h"
#include "models/unicode.h"
#include "tests/check.h"
#include "tests/cli_run.h"

/* ---- Fixtures -------------------------------------------------------------------------------------------------- */

static tv_tokenizer *load_golden(void) {
    tv_tokenizer *tok = NULL;
    tv_err err = {0};
    CHECK_OK(tv_tokenizer_load(tv_golden("tokenizer"), &tok, &err), &err);
    return tok;
}

/* cJSON ends strings at an escaped NUL, so it is read as U+F8FF, which no case holds, and put back in case_text. */
static cJSON *load_cases(void) {
    char *text = NULL;
    size_t size = 0;
    tv_err err = {0};
    if (!CHECK_OK(tv_file_read(tv_golden("tokenizer/cases.json"), 1 << 20, &text, &size, &err), &err)) return NULL;
    for (char *c = text; (c = strstr(c, "\\u0000"));) memcpy(c, "\\uf8ff", 6);
    cJSON *json = NULL;
    CHECK_OK(tv_json_parse(text, size, "cases.json", &json, &err), &err);
    free(text);
    return json;
}

/* The case's string in place, NUL bytes restored; returns its size. */
static size_t case_text(char *text) {
    size_t size = strlen(text), n = 0;
    for (size_t i = 0; i < size;) {
        int nul = size - i >= 3 && !memcmp(text + i, "\xEF\xA3\xBF", 3);
        text[n++] = nul ? 0 : text[i];
        i += nul ? 3 : 1;
    }
    text[n] = 0;
    return n;
}

/* ids equal the JSON list. */
static int same_ids(const int32_t *ids, size_t n, const cJSON *want) {
    size_t i = 0;
    const cJSON *item;
    cJSON_ArrayForEach(item, want) {
        if (i >= n || ids[i] != item->valueint) return 0;
        i++;
    }
    return i == n;
}

/* Every case whose name is name (NULL: all): exact ids, the decoded text, and the count of cases. */
static int check_cases(const char *name) {
    tv_tokenizer *tok = load_golden();
    cJSON *cases = load_cases();
    const cJSON *item;
    int checked = 0;
    if (tok && cases) cJSON_ArrayForEach(item, cJSON_GetObjectItem(cases, "strings")) {
            const char *group = cJSON_GetStringValue(cJSON_GetObjectItem(item, "name"));
            if (name && strcmp(group, name)) continue;
            checked++;
            char *text = cJSON_GetObjectItem(item, "text")->valuestring;
            char *decoded = cJSON_GetObjectItem(item, "decoded")->valuestring;
            size_t size = case_text(text), decoded_size = case_text(decoded), n = 0, back_size = 0;
            int32_t *ids = NULL;
            char *back = NULL;
            tv_err err = {0};
            CHECK_OK(tv_tokenizer_encode(tok, text, size, &ids, &n, &err), &err);
            if (!CHECK(same_ids(ids, n, cJSON_GetObjectItem(item, "ids")))) printf("    %s: \"%s\"\n", group, text);
            CHECK_OK(tv_tokenizer_decode(tok, ids, n, 0, 1, &back, &back_size, &err), &err);
            if (CHECK_INT(back_size, decoded_size)) CHECK_BYTES(back, decoded, back_size);
            free(ids);
            free(back);
        }
    cJSON_Delete(cases);
    tv_tokenizer_close(tok);
    return checked;
}

/* tokenizer.json of the goldens as a tree to change. */
static cJSON *golden_tree(void) {
    cJSON *json = NULL;
    tv_err err = {0};
    CHECK_OK(tv_json_load(tv_golden("tokenizer/tokenizer.json"), 1 << 24, &json, &err), &err);
    return json;
}

/* Parses the changed tree (deleted here); NULL when that fails, and then err says why. */
static tv_tokenizer *parse_tree(cJSON *json, const char *config, tv_status *status, tv_err *err) {
    char *text = cJSON_PrintUnformatted(json);
    tv_tokenizer *tok = NULL;
    *status = tv_tokenizer_parse(text, strlen(text), config, config ? strlen(config) : 0, "tokenizer.json", &tok, err);
    cJSON_Delete(json);
    free(text);
    return tok;
}

static void refuse_tree(cJSON *json, const char *config, tv_status want, const char *part) {
    tv_err err = {0};
    tv_status status;
    tv_tokenizer *tok = parse_tree(json, config, &status, &err);
    CHECK(!tok);
    CHECK_FAILS(status, want, &err, part);
    tv_tokenizer_close(tok);
}

static cJSON *model_of(cJSON *json) { return cJSON_GetObjectItem(json, "model"); }

/* Encodes a NUL-terminated string and compares with want[0..n). */
static void check_ids(const tv_tokenizer *tok, const char *text, const int32_t *want, size_t n) {
    int32_t *ids = NULL;
    size_t got = 0;
    tv_err err = {0};
    CHECK_OK(tv_tokenizer_encode(tok, text, strlen(text), &ids, &got, &err), &err);
    if (CHECK_INT(got, n)) CHECK_BYTES(ids, want, n * sizeof *ids);
    free(ids);
}

/* ---- Ids of the reference ---------------------------------------------------------------------------------------- */

/* Code, prose, many scripts, numbers, emoji, random characters. */
static void test_tokenizer_general(void) { CHECK_INT(check_cases("general"), 268); }
/* A run of white space gives its last space to the word behind it: \s+(?!\S). */
static void test_tokenizer_white_space_runs(void) { CHECK_INT(check_cases("whitespace runs"), 12); }
/* U+0085, U+00A0, U+2028, U+3000 are white space; U+180E, U+200B and U+FEFF are not. */
static void test_tokenizer_unicode_white_space(void) { CHECK_INT(check_cases("white space beyond ASCII"), 11); }
/* NFC comes before splitting: combining marks, jamo, the Angstrom sign, exclusions, reordering. */
static void test_tokenizer_nfc(void) { CHECK_INT(check_cases("normalization"), 11); }
/* Numbers are split one character at a time, whatever their category in \p{N}. */
static void test_tokenizer_digits(void) { CHECK_INT(check_cases("digits"), 6); }
/* (?i:'s|'t|...) binds stronger than the words around it, in either case, and to the long s as well. */
static void test_tokenizer_contractions(void) { CHECK_INT(check_cases("contractions"), 8); }
/* One character that is no letter, number or line break may lead a word. */
static void test_tokenizer_leading_character(void) { CHECK_INT(check_cases("leading character"), 10); }
/* NUL, byte-order mark, CRLF and the ends of the code space are characters like others. */
static void test_tokenizer_bytes(void) { CHECK_INT(check_cases("bytes"), 7); }
/* Added tokens are cut out before normalization, the longest first; parts of them are text. */
static void test_tokenizer_added_tokens(void) { CHECK_INT(check_cases("added tokens"), 7); }

/* Families split differently: the pattern is the file's. Ids of the reference with the pattern changed to one that
 * keeps combining marks in words, and to GPT-2's. */
static void test_tokenizer_pattern_of_the_file(void) {
    static const struct {
        const char *regex, *text;
        int32_t ids[8];
    } rows[] = {
        {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| "
         "?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|"
         "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
         "\u0E2A\u0E27\u0E31\u0E2A\u0E14\u0E35\u0E0A\u0E32\u0E27\u0E42\u0E25\u0E01",
         {35648, 124294, 35648, 124311, 126660, 126397}},
        {"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
         "user@example.com",
         {872, 31, 8687, 13, 874}},
        {"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+", "I'M", {40, 6, 44}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cJSON *json = golden_tree();
        cJSON *members = cJSON_GetObjectItem(cJSON_GetObjectItem(json, "pre_tokenizer"), "pretokenizers");
        cJSON *pattern = cJSON_GetObjectItem(cJSON_GetArrayItem(members, 0), "pattern");
        cJSON_ReplaceItemInObject(pattern, "Regex", cJSON_CreateString(rows[i].regex));
        tv_err err = {0};
        tv_status status;
        size_t n = 0;
        while (n < 8 && rows[i].ids[n]) n++;
        tv_tokenizer *tok = parse_tree(json, NULL, &status, &err);
        if (CHECK_OK(status, &err)) check_ids(tok, rows[i].text, rows[i].ids, n);
        tv_tokenizer_close(tok);
    }
}

/* ---- Forms of the file ------------------------------------------------------------------------------------------- */

/* Older files write a merge as "a b", newer ones as ["a", "b"]: read as the other form, every byte would be a token. */
static void test_tokenizer_merges_as_strings(void) {
    cJSON *json = golden_tree(), *merges = cJSON_GetObjectItem(model_of(json), "merges"), *item;
    cJSON *strings = cJSON_CreateArray();
    cJSON_ArrayForEach(item, merges) {
        char *joined = tv_xprintf("%s %s", item->child->valuestring, item->child->next->valuestring);
        cJSON_AddItemToArray(strings, cJSON_CreateString(joined));
        free(joined);
    }
    cJSON_ReplaceItemInObject(model_of(json), "merges", strings);
    tv_err err = {0};
    tv_status status;
    tv_tokenizer *pairs = load_golden(), *other = parse_tree(json, NULL, &status, &err);
    CHECK_OK(status, &err);
    cJSON *cases = load_cases();
    int different = 0, merged = 0;
    if (pairs && other && cases) cJSON_ArrayForEach(item, cJSON_GetObjectItem(cases, "strings")) {
            char *text = cJSON_GetObjectItem(item, "text")->valuestring;
            size_t size = case_text(text), n = 0, m = 0;
            int32_t *a = NULL, *b = NULL;
            CHECK_OK(tv_tokenizer_encode(pairs, text, size, &a, &n, &err), &err);
            CHECK_OK(tv_tokenizer_encode(other, text, size, &b, &m, &err), &err);
            different += n != m || (n && memcmp(a, b, n * sizeof *a));
            merged += n < size;
            free(a);
            free(b);
        }
    CHECK_INT(different, 0);
    CHECK(merged > 200);
    cJSON_Delete(cases);
    tv_tokenizer_close(pairs);
    tv_tokenizer_close(other);
}

/* No merges, an unknown form, a string that splits in more than one way, a token that is missing, a rule twice. */
static void test_tokenizer_bad_merges(void) {
    static const struct {
        const char *merges, *part;
    } rows[] = {
        {"[]", "merges is empty"},
        {"{}", "merges is empty"},
        {"null", "merges is empty"},
        {"[{\"left\": \"a\", \"right\": \"b\"}]", "merge 0 is neither"},
        {"[[\"i\", \"n\"], [\"i\", \"n\", \"g\"]]", "merge 1 is neither"},
        {"[[\"i\", 3]]", "merge 0 is neither"},
        {"[\"i n\", \"a b c\"]", "merge 1, \"a b c\", does not split"},
        {"[\"in\"]", "does not split"},
        {"[\" in\"]", "does not split"},
        {"[\"i \"]", "does not split"},
        {"[\"q zqz\"]", "names a token that the vocabulary lacks"},
        {"[[\"i\", \"n g\"]]", "names a token that the vocabulary lacks"},
        {"[\"i n\", \"i n\"]", "tokenizer.json: merge rule 1 is listed twice"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cJSON *json = golden_tree();
        cJSON_ReplaceItemInObject(model_of(json), "merges", cJSON_Parse(rows[i].merges));
        refuse_tree(json, NULL, TV_EFORMAT, rows[i].part);
    }
    cJSON *json = golden_tree();
    cJSON_DeleteItemFromObject(model_of(json), "merges");
    refuse_tree(json, NULL, TV_EFORMAT, "merges is empty");
}

/* What would change ids and is not done is an error that names it. path: keys from the root, separated by dots. */
static void test_tokenizer_unsupported_settings(void) {
    static const struct {
        const char *path, *value, *part;
    } rows[] = {
        {"normalizer", "{\"type\": \"NFKC\"}", "normalizer \"NFKC\""},
        {"normalizer", "{\"type\": \"Sequence\", \"normalizers\": []}", "normalizer \"Sequence\""},
        {"pre_tokenizer", "null", "without the ByteLevel"},
        {"pre_tokenizer", "{\"type\": \"Metaspace\"}", "pre_tokenizer \"Metaspace\""},
        {"pre_tokenizer", "{\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"use_regex\": false}",
         "add_prefix_space"},
        {"pre_tokenizer", "{\"type\": \"ByteLevel\", \"add_prefix_space\": false}", "use_regex"},
        {"pre_tokenizer", "{\"type\": \"Split\", \"pattern\": {\"String\": \"a\"}, \"behavior\": \"Isolated\"}",
         "without a Regex"},
        {"pre_tokenizer", "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"a\"}, \"behavior\": \"Removed\"}",
         "Removed"},
        {"pre_tokenizer", "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"\\\\w+\"}, \"behavior\": \"Isolated\"}",
         "the escape \"\\w\""},
        {"pre_tokenizer", "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"a*\"}, \"behavior\": \"Isolated\"}",
         "empty string"},
        {"post_processor", "{\"type\": \"TemplateProcessing\"}", "TemplateProcessing"},
        {"decoder", "{\"type\": \"WordPiece\"}", "WordPiece"},
        {"model.type", "\"Unigram\"", "model type \"Unigram\""},
        {"model.dropout", "0.1", "model.dropout"},
        {"model.unk_token", "\"<unk>\"", "model.unk_token"},
        {"model.byte_fallback", "true", "model.byte_fallback"},
        {"model.ignore_merges", "true", "model.ignore_merges"},
        {"model.end_of_word_suffix", "\"</w>\"", "model.end_of_word_suffix"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cJSON *json = golden_tree(), *at = json;
        const char *key = rows[i].path;
        if (!strncmp(key, "model.", 6)) at = model_of(json), key += 6;
        cJSON_DeleteItemFromObject(at, key);
        cJSON_AddItemToObject(at, key, cJSON_Parse(rows[i].value));
        refuse_tree(json, NULL, TV_EUNSUPPORTED, rows[i].part);
    }
    refuse_tree(golden_tree(), "{\"split_special_tokens\": true}", TV_EUNSUPPORTED, "split_special_tokens");
    refuse_tree(golden_tree(), "{\"add_prefix_space\": true}", TV_EUNSUPPORTED, "add_prefix_space");
    refuse_tree(golden_tree(), "[]", TV_EFORMAT, "not a JSON object");
}

/* Vocabularies and added tokens that contradict themselves. */
static void test_tokenizer_bad_tokens(void) {
    static const struct {
        const char *vocab, *part;
    } vocabularies[] = {
        {"{}", "not an object of tokens"},
        {"[]", "not an object of tokens"},
        {"{\"a\": -1}", "not a whole number"},
        {"{\"a\": 1.5}", "not a whole number"},
        {"{\"a\": 1e300}", "not a whole number"},
        {"{\"a\": \"1\"}", "not a whole number"},
        {"{\"a\": 9000000}", "holds 1 tokens and an id of 9000000"},
        {"{\"a\": 1, \"b\": 1}", "id 1 belongs to two tokens"},
    };
    for (size_t i = 0; i < sizeof vocabularies / sizeof *vocabularies; i++) {
        cJSON *json = golden_tree();
        cJSON_ReplaceItemInObject(model_of(json), "vocab", cJSON_Parse(vocabularies[i].vocab));
        refuse_tree(json, NULL, TV_EFORMAT, vocabularies[i].part);
    }
    cJSON *json = golden_tree();
    cJSON_AddNumberToObject(cJSON_GetObjectItem(model_of(json), "vocab"), "two words", 150000);
    refuse_tree(json, NULL, TV_EUNSUPPORTED, "not written in the byte-level alphabet");

    static const struct {
        const char *token, *part;
        tv_status status;
    } added[] = {
        {"{\"id\": 151700}", "no content", TV_EFORMAT},
        {"{\"id\": 151700, \"content\": \"\"}", "no content", TV_EFORMAT},
        {"{\"content\": \"<x>\"}", "not a whole number", TV_EFORMAT},
        {"{\"id\": 151700, \"content\": \"<|im_end|>\"}", "listed twice", TV_EFORMAT},
        {"{\"id\": 0, \"content\": \"<x>\"}", "contradicts the token of id 0", TV_EFORMAT},
        {"{\"id\": 151700, \"content\": \"!\"}", "contradicts the token of id 0", TV_EFORMAT},
        {"{\"id\": 9000000, \"content\": \"<x>\"}", "far-off id", TV_EFORMAT},
        {"{\"id\": 151700, \"content\": \"<x>\", \"lstrip\": true}", "sets lstrip", TV_EUNSUPPORTED},
        {"{\"id\": 151700, \"content\": \"<x>\", \"normalized\": true}", "sets normalized", TV_EUNSUPPORTED},
    };
    for (size_t i = 0; i < sizeof added / sizeof *added; i++) {
        json = golden_tree();
        cJSON_AddItemToArray(cJSON_GetObjectItem(json, "added_tokens"), cJSON_Parse(added[i].token));
        refuse_tree(json, NULL, added[i].status, added[i].part);
    }
    refuse_tree(golden_tree(), "{\"added_tokens_decoder\": {\"7\": {\"content\": \"<|im_end|>\"}}}", TV_EFORMAT,
                "has id 7 here and 151645");
    refuse_tree(golden_tree(), "{\"added_tokens_decoder\": {\"x\": {\"content\": \"<y>\"}}}", TV_EFORMAT,
                "not a token id");
}

/* A token that only tokenizer_config.json lists is added too; one of the vocabulary may be restated as added. */
static void test_tokenizer_added_in_config(void) {
    cJSON *json = golden_tree();
    cJSON_AddItemToArray(cJSON_GetObjectItem(json, "added_tokens"), cJSON_Parse("{\"id\": 0, \"content\": \"!\"}"));
    tv_err err = {0};
    tv_status status;
    tv_tokenizer *tok = parse_tree(
        json, "{\"added_tokens_decoder\": {\"151680\": {\"content\": \"<extra>\", \"special\": true}}}", &status, &err);
    if (!CHECK_OK(status, &err)) return;
    CHECK_INT(tv_tokenizer_special(tok, "<extra>"), 151680);
    CHECK_INT(tv_tokenizer_size(tok), 151681);
    check_ids(tok, "!<extra>!", (const int32_t[]){0, 151680, 0}, 3);
    tv_tokenizer_close(tok);
}

/* Files that are missing, no JSON, or a pointer to the real file. */
static void test_tokenizer_bad_files(void) {
    tv_tokenizer *tok = NULL;
    tv_err err = {0};
    CHECK_FAILS(tv_tokenizer_load(tv_test_dir(), &tok, &err), TV_EIO, &err, "tokenizer.json");
    CHECK(!tok);
    static const char *const texts[] = {"", "{", "version https://git-lfs.github.com/spec/v1\n",
                                        "{\"model\": 1, \"model\": 2}", "{\"model\": {\"vocab\": {\"\\ud800\": 1}}}"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        CHECK_FAILS(tv_tokenizer_parse(texts[i], strlen(texts[i]), NULL, 0, "t.json", &tok, &err), TV_EFORMAT, &err,
                    "t.json");
    CHECK_FAILS(tv_tokenizer_parse("[]", 2, NULL, 0, "t.json", &tok, &err), TV_EFORMAT, &err, "not a JSON object");
}

/* ---- Texts and ids that are not well-formed ---------------------------------------------------------------------- */

/* Invalid UTF-8 is refused with the offset of its first byte: truncated, overlong, surrogate, beyond U+10FFFF. */
static void test_tokenizer_invalid_utf8(void) {
    static const struct {
        const char *text, *part;
    } rows[] = {
        {"\xC3\x28", "at byte 0 (0xC3)"},
        {"ab\xED\xA0\x80", "at byte 2 (0xED)"},
        {"abc\x80", "at byte 3 (0x80)"},
        {"\xC0\xAF", "at byte 0 (0xC0)"},
        {"x\xE0\x80\xAF", "at byte 1 (0xE0)"},
        {"\xF4\x90\x80\x80", "at byte 0 (0xF4)"},
        {"<|im_end|>\xE4\xBD", "at byte 10 (0xE4)"},
        {"\xFF", "at byte 0 (0xFF)"},
    };
    tv_tokenizer *tok = load_golden();
    if (!tok) return;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int32_t *ids = NULL;
        size_t n = 0;
        tv_err err = {0};
        CHECK_FAILS(tv_tokenizer_encode(tok, rows[i].text, strlen(rows[i].text), &ids, &n, &err), TV_EFORMAT, &err,
                    rows[i].part);
        CHECK(!ids);
    }
    tv_tokenizer_close(tok);
}

/* A model's vocabulary may be padded beyond the tokenizer's: such ids print, and nothing is read out of bounds. */
static void test_tokenizer_ids_without_text(void) {
    tv_tokenizer *tok = load_golden();
    if (!tok) return;
    char *text = NULL;
    size_t size = 0;
    tv_err err = {0};
    CHECK_INT(tv_tokenizer_size(tok), 151669);
    CHECK_OK(tv_tokenizer_decode(tok, (const int32_t[]){0, 151935, INT32_MAX, 151669, 1}, 5, 0, 1, &text, &size, &err),
             &err);
    CHECK_STR(text, "!<id:151935><id:2147483647><id:151669>\"");
    CHECK_INT(size, strlen(text));
    free(text);
    CHECK_FAILS(tv_tokenizer_decode(tok, (const int32_t[]){0, -1}, 2, 0, 1, &text, &size, &err), TV_EARG, &err,
                "token id -1 at place 1");
    CHECK(!text);
    CHECK_OK(tv_tokenizer_decode(tok, NULL, 0, 0, 1, &text, &size, &err), &err);
    CHECK_STR(text, "");
    free(text);
    tv_tokenizer_close(tok);
}

/* Special tokens are left out on demand; <think> is an added token that is not special. */
static void test_tokenizer_skip_special(void) {
    tv_tokenizer *tok = load_golden();
    if (!tok) return;
    char *text = NULL;
    size_t size = 0;
    tv_err err = {0};
    const int32_t ids[] = {151644, 0, 151667, 151645};
    CHECK_OK(tv_tokenizer_decode(tok, ids, 4, 1, 1, &text, &size, &err), &err);
    CHECK_STR(text, "!<think>");
    free(text);
    CHECK_OK(tv_tokenizer_decode(tok, ids, 4, 0, 1, &text, &size, &err), &err);
    CHECK_STR(text, "<|im_start|>!<think><|im_end|>");
    free(text);
    CHECK_INT(tv_tokenizer_special(tok, "<|im_end|>"), 151645);
    CHECK_INT(tv_tokenizer_special(tok, "<|im_en"), -1);
    tv_tokenizer_close(tok);
}

/* Tokens end within characters: exact bytes for streams, U+FFFD for each ill-formed prefix when asked for. */
static void test_tokenizer_partial_characters(void) {
    tv_tokenizer *tok = load_golden();
    if (!tok) return;
    tv_err err = {0};
    int32_t bytes[256];
    memset(bytes, 0xFF, sizeof bytes);
    for (int32_t id = 0; id < 256; id++) { /* the first 256 ids of this vocabulary are the bytes, in another order */
        char *text = NULL;
        size_t size = 0;
        CHECK_OK(tv_tokenizer_decode(tok, &id, 1, 0, 0, &text, &size, &err), &err);
        if (CHECK_INT(size, 1)) bytes[(unsigned char)text[0]] = id;
        free(text);
    }
    for (int b = 0; b < 256; b++) CHECK(bytes[b] >= 0);
    const int32_t parts[] = {bytes[0xF0], bytes[0x9F], bytes[0x98], bytes['a'],
                             bytes[0xE4], bytes[0xBD], bytes[0xA0], bytes[0xC0]};
    char *text = NULL;
    size_t size = 0;
    CHECK_OK(tv_tokenizer_decode(tok, parts, 8, 0, 1, &text, &size, &err), &err);
    CHECK_STR(text, "\xEF\xBF\xBD"
                    "a\xE4\xBD\xA0\xEF\xBF\xBD");
    free(text);
    CHECK_OK(tv_tokenizer_decode(tok, parts, 3, 0, 0, &text, &size, &err), &err);
    if (CHECK_INT(size, 3)) CHECK_BYTES(text, "\xF0\x9F\x98", 3);
    CHECK_INT(tv_utf8_tail(text, size), 3);
    free(text);
    /* every ill-formed string of bytes decodes to well-formed text */
    tv_rng rng = {11};
    for (int round = 0; round < 200; round++) {
        int32_t random[24];
        for (int i = 0; i < 24; i++) random[i] = bytes[0x80 * (tv_rng_next(&rng) % 8 > 0) + tv_rng_next(&rng) % 128];
        CHECK_OK(tv_tokenizer_decode(tok, random, 24, 0, 1, &text, &size, &err), &err);
        CHECK_INT(tv_utf8_check(text, size), size);
        free(text);
    }
    tv_tokenizer_close(tok);
}

/* Whatever bytes stand on standard input: ids, or an error with the offset; a line of JSON in, a line out. */
static void test_tokenizer_command(void) {
    const char *model = tv_golden("tokenizer");
    CLI(1, "at byte 0 (0xC3)", "printf '\\303(' | tvgpu tokenize %s", model);
    CLI(1, "at byte 1 (0xED)", "printf 'a\\355\\240\\200' | tvgpu tokenize %s", model);
    CLI(0, "188 188 87", "printf '\\0\\0x' | tvgpu tokenize %s", model);
    CLI(0, "6023", "printf '\\357\\273\\277hi' | tvgpu tokenize %s", model);
    CLI(0, "64 319 65 319", "printf 'a\\r\\nb\\r\\n' | tvgpu tokenize %s", model);
    CLI(1, "not valid JSON", "printf '\"\\\\ud800\"' | tvgpu tokenize %s --jsonl", model);
    CLI(0, "[188, 188, 87]", "printf '\"\\\\u0000\\\\u0000x\"' | tvgpu tokenize %s --jsonl", model);
    CLI(0, "[64]\n[65]", "printf '\"a\"\\r\\n\"b\"' | tvgpu tokenize %s --jsonl", model);
    /* line ends beyond ASCII are escaped: they would cut a line for some readers */
    CLI(0, "\"a\\u0085b\\u2028\\u2029c\\u0000\"",
        "printf '\"a\\302\\205b\\342\\200\\250\\342\\200\\251c\\\\u0000\"' | tvgpu tokenize %s --jsonl | tvgpu "
        "tokenize %s --jsonl --decode",
        model, model);
    CLI(2, "is not a token id", "echo '[-1]' | tvgpu tokenize %s --jsonl --decode", model);
    CLI(1, "not a whole number", "echo '[1.5]' | tvgpu tokenize %s --jsonl --decode", model);
    CLI(0, "<id:151935>", "echo '[151935]' | tvgpu tokenize %s --jsonl --decode", model);
}

/* ---- Time -------------------------------------------------------------------------------------------------------- */

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Encodes size bytes of unit repeated, checks that they come back normalized, returns the processor time taken. */
static double time_repeated(const tv_tokenizer *tok, const char *unit, size_t size) {
    char *text = malloc(size + 1), *back = NULL;
    size_t length = strlen(unit), n = 0, back_size = 0;
    size -= size % length;
    for (size_t i = 0; i < size; i++) text[i] = unit[i % length];
    int32_t *ids = NULL;
    tv_err err = {0};
    double start = seconds();
    CHECK_OK(tv_tokenizer_encode(tok, text, size, &ids, &n, &err), &err);
    double took = seconds() - start;
    CHECK_OK(tv_tokenizer_decode(tok, ids, n, 0, 0, &back, &back_size, &err), &err);
    char *normal = NULL; /* NULL: the text is its own normal form */
    size_t normal_size = 0;
    CHECK_OK(tv_nfc(text, size, &normal, &normal_size, &err), &err);
    if (CHECK_INT(back_size, normal_size)) CHECK_BYTES(back, normal ? normal : text, back_size);
    free(ids), free(back), free(text), free(normal);
    return took;
}

/* One word of a megabyte, one run of white space, marks without a base, half-written added tokens, mixed text: time
 * must grow about as the size does. Quadratic growth would show as a factor of 64. */
static void test_tokenizer_megabyte(void) {
    static const char *const units[] = {
        "a",
        " ",
        "\n",
        " \n",
        "ab",
        "\xCC\x81",
        "\xCC\xA3\xCC\x81",
        "<|im_start",
        "1",
        "'",
        "\xE8\xA9\xB1",
        "The quick (brown) fox's 42 jumps -- over\n\n  the lazy \xE8\xA9\xB1 dog. ",
    };
    tv_tokenizer *tok = load_golden();
    if (!tok) return;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        double little = time_repeated(tok, units[i], 1 << 17), much = time_repeated(tok, units[i], 1 << 20);
        if (!CHECK(much <= 24 * little + 0.25)) printf("    \"%s\": %.3f s and %.3f s\n", units[i], little, much);
    }
    tv_tokenizer_close(tok);
}

/* The bundled model's own tokenizer loads and keeps text. */
static void test_tokenizer_bundled(void) {
    tv_tokenizer *tok = NULL;
    tv_err err = {0};
    if (!CHECK_OK(tv_tokenizer_load(tv_bundled_model(), &tok, &err), &err)) return;
    CHECK(time_repeated(tok, "To be, or not to be: that is the question.\n", 4000) >= 0);
    tv_tokenizer_close(tok);
}

static const tv_test tests[] = {
    {"tokenizer_general", test_tokenizer_general},
    {"tokenizer_white_space_runs", test_tokenizer_white_space_runs},
    {"tokenizer_unicode_white_space", test_tokenizer_unicode_white_space},
    {"tokenizer_nfc", test_tokenizer_nfc},
    {"tokenizer_digits", test_tokenizer_digits},
    {"tokenizer_contractions", test_tokenizer_contractions},
    {"tokenizer_leading_character", test_tokenizer_leading_character},
    {"tokenizer_bytes", test_tokenizer_bytes},
    {"tokenizer_added_tokens", test_tokenizer_added_tokens},
    {"tokenizer_pattern_of_the_file", test_tokenizer_pattern_of_the_file},
    {"tokenizer_merges_as_strings", test_tokenizer_merges_as_strings},
    {"tokenizer_bad_merges", test_tokenizer_bad_merges},
    {"tokenizer_unsupported_settings", test_tokenizer_unsupported_settings},
    {"tokenizer_bad_tokens", test_tokenizer_bad_tokens},
    {"tokenizer_added_in_config", test_tokenizer_added_in_config},
    {"tokenizer_bad_files", test_tokenizer_bad_files},
    {"tokenizer_invalid_utf8", test_tokenizer_invalid_utf8},
    {"tokenizer_ids_without_text", test_tokenizer_ids_without_text},
    {"tokenizer_skip_special", test_tokenizer_skip_special},
    {"tokenizer_partial_characters", test_tokenizer_partial_characters},
    {"tokenizer_command", test_tokenizer_command},
    {"tokenizer_megabyte", test_tokenizer_megabyte},
    {"tokenizer_bundled", test_tokenizer_bundled},
};

TV_TEST_MAIN(tests)
