#include "models/tokenizer.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "models/bpe.h"
#include "models/split.h"
#include "models/unicode.h"

enum { MAX_ID = 1 << 24, MAX_FILE = 1 << 30 };

typedef struct {
    char *text; /* bytes, owned */
    size_t size;
    int32_t id;
    int special;
} added_token;

struct tv_tokenizer {
    int32_t size;         /* one more than the largest id */
    char **text;          /* [size] bytes of each token, NULL where an id has none; owned */
    uint32_t *length;     /* [size] */
    int32_t byte_id[256]; /* token of a single byte, -1 where the vocabulary has none */
    tv_bpe bpe;
    tv_split *split; /* NULL: the text is one word */
    int nfc;
    added_token *added; /* [n_added] longest first, so that the first match is the longest */
    size_t n_added;
    uint8_t starts[256]; /* 1: an added token begins with this byte */
    char *chat_template; /* NULL: none */
    char *name;
};

/* ---- The byte alphabet ------------------------------------------------------------------------------------------ */

/* Byte-level BPE writes each byte as one printable character: itself where it is printable Latin-1, else U+0100 + its
 * place among the others (GPT-2's table). */
static void byte_alphabet(uint16_t of_byte[256], int16_t of_char[512]) {
    memset(of_char, 0xFF, 512 * sizeof *of_char);
    int next = 256;
    for (int b = 0; b < 256; b++) {
        int printable = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
        of_byte[b] = (uint16_t)(printable ? b : next++);
        of_char[of_byte[b]] = (int16_t)b;
    }
}

/* The bytes that token stands for, or NULL when a character is outside the alphabet. */
static char *token_bytes(const char *token, const int16_t of_char[512], uint32_t *length) {
    size_t size = strlen(token), n = 0;
    char *bytes = tv_xmalloc(size + 1);
    for (size_t i = 0; i < size;) {
        uint32_t c = 0;
        size_t step = tv_utf8_char(token + i, size - i, &c, NULL);
        if (!step || c >= 512 || of_char[c] < 0) {
            free(bytes);
            return NULL;
        }
        bytes[n++] = (char)of_char[c];
        i += step;
    }
    bytes[n] = 0;
    *length = (uint32_t)n;
    return bytes;
}

/* ---- Vocabulary and merges ------------------------------------------------------------------------------------- */

/* Token text (in the byte alphabet, as the file has it) to id. */
typedef struct {
    const char **keys; /* [slots] borrowed from the JSON tree */
    int32_t *ids;
    size_t slots;
} vocabulary;

static size_t hash_bytes(const char *s, size_t n) {
    uint64_t h = 0xcbf29ce484222325u; /* FNV-1a */
    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)s[i]) * 0x100000001b3u;
    return (size_t)(h ^ h >> 32);
}

static int32_t vocabulary_find(const vocabulary *v, const char *s, size_t n) {
    for (size_t i = hash_bytes(s, n) & (v->slots - 1);; i = (i + 1) & (v->slots - 1)) {
        if (!v->keys[i]) return -1;
        if (!strncmp(v->keys[i], s, n) && !v->keys[i][n]) return v->ids[i];
    }
}

static tv_status read_id(const cJSON *item, const char *name, const char *token, int32_t *id, tv_err *err) {
    double v = cJSON_IsNumber(item) ? item->valuedouble : -1;
    if (!(v >= 0 && v < MAX_ID) || v != (double)(int32_t)v)
        return TV_FAIL(err, TV_EFORMAT, "%s: the id of token \"%.80s\" is not a whole number from 0 to %d", name, token,
                       MAX_ID - 1);
    *id = (int32_t)v;
    return TV_OK;
}

/* Gives id its bytes (taken over); two tokens of one id are refused. */
static tv_status set_text(tv_tokenizer *tok, int32_t id, char *bytes, uint32_t length, const char *shown, tv_err *err) {
    if (id >= tok->size) {
        int32_t size = id + 1;
        tok->text = tv_xrealloc(tok->text, (size_t)size * sizeof *tok->text);
        tok->length = tv_xrealloc(tok->length, (size_t)size * sizeof *tok->length);
        for (int32_t i = tok->size; i < size; i++) tok->text[i] = NULL, tok->length[i] = 0;
        tok->size = size;
    }
    if (tok->text[id]) {
        int same = tok->length[id] == length && !memcmp(tok->text[id], bytes, length);
        free(bytes);
        return same ? TV_OK
                    : TV_FAIL(err, TV_EFORMAT, "%s: id %d belongs to two tokens, one of them \"%.80s\"", tok->name, id,
                              shown);
    }
    tok->text[id] = bytes;
    tok->length[id] = length;
    return TV_OK;
}

static tv_status read_vocabulary(tv_tokenizer *tok, const cJSON *vocab, vocabulary *v, tv_err *err) {
    uint16_t of_byte[256];
    int16_t of_char[512];
    byte_alphabet(of_byte, of_char);
    if (!cJSON_IsObject(vocab) || !vocab->child)
        return TV_FAIL(err, TV_EFORMAT, "%s: model.vocab is not an object of tokens", tok->name);
    size_t n = 0;
    int32_t largest = 0;
    const cJSON *item;
    cJSON_ArrayForEach(item, vocab) {
        int32_t id;
        TV_TRY(read_id(item, tok->name, item->string, &id, err));
        if (id > largest) largest = id;
        n++;
    }
    /* Tables have one entry an id. Vocabularies cut down for tests leave most ids out; a few tokens and an id in the
     * millions is a broken file. */
    if ((size_t)largest >= 64 * n + (1 << 18))
        return TV_FAIL(err, TV_EFORMAT, "%s: model.vocab holds %zu tokens and an id of %d", tok->name, n, largest);
    for (v->slots = 16; v->slots < 2 * n; v->slots *= 2) {}
    v->keys = tv_xcalloc(v->slots, sizeof *v->keys);
    v->ids = tv_xcalloc(v->slots, sizeof *v->ids);
    TV_TRY(set_text(tok, largest, NULL, 0, "", err)); /* one growth to the whole size */
    cJSON_ArrayForEach(item, vocab) {
        int32_t id;
        TV_TRY(read_id(item, tok->name, item->string, &id, err));
        uint32_t length;
        char *bytes = token_bytes(item->string, of_char, &length);
        if (!bytes)
            return TV_FAIL(err, TV_EUNSUPPORTED, "%s: token \"%.80s\" is not written in the byte-level alphabet",
                           tok->name, item->string);
        TV_TRY(set_text(tok, id, bytes, length, item->string, err));
        if (length == 1) tok->byte_id[(unsigned char)bytes[0]] = id;
        size_t i = hash_bytes(item->string, strlen(item->string)) & (v->slots - 1);
        while (v->keys[i]) i = (i + 1) & (v->slots - 1);
        v->keys[i] = item->string;
        v->ids[i] = id;
    }
    return TV_OK;
}

/* A merge is "left right" or ["left", "right"]; a part that holds a space can only be told apart in the second form. */
static tv_status read_merge(const tv_tokenizer *tok, const vocabulary *v, const cJSON *item, size_t index,
                            tv_merge *merge, tv_err *err) {
    const char *left, *right;
    size_t left_size;
    if (cJSON_IsString(item)) {
        left = item->valuestring;
        const char *space = strchr(left, ' ');
        if (!space || strchr(space + 1, ' ') || space == left || !space[1])
            return TV_FAIL(err, TV_EFORMAT, "%s: merge %zu, \"%.80s\", does not split into two tokens at one space",
                           tok->name, index, left);
        left_size = (size_t)(space - left);
        right = space + 1;
    } else if (cJSON_IsArray(item) && cJSON_GetArraySize(item) == 2 && cJSON_IsString(item->child) &&
               cJSON_IsString(item->child->next)) {
        left = item->child->valuestring;
        left_size = strlen(left);
        right = item->child->next->valuestring;
    } else {
        return TV_FAIL(err, TV_EFORMAT, "%s: merge %zu is neither \"left right\" nor [\"left\", \"right\"]", tok->name,
                       index);
    }
    size_t right_size = strlen(right);
    char *both = tv_xmalloc(left_size + right_size + 1);
    memcpy(both, left, left_size);
    memcpy(both + left_size, right, right_size + 1);
    merge->left = vocabulary_find(v, left, left_size);
    merge->right = vocabulary_find(v, right, right_size);
    merge->merged = vocabulary_find(v, both, left_size + right_size);
    tv_status s = TV_OK;
    if (merge->left < 0 || merge->right < 0 || merge->merged < 0)
        s = TV_FAIL(err, TV_EFORMAT, "%s: merge %zu, \"%.60s\", names a token that the vocabulary lacks", tok->name,
                    index, both);
    free(both);
    return s;
}

static tv_status read_merges(tv_tokenizer *tok, const cJSON *list, const vocabulary *v, tv_err *err) {
    int n = cJSON_GetArraySize(list);
    if (!cJSON_IsArray(list) || !n)
        return TV_FAIL(err, TV_EFORMAT, "%s: model.merges is empty: every byte would be a token of its own", tok->name);
    tv_merge *merges = tv_xmalloc((size_t)n * sizeof *merges);
    size_t i = 0;
    const cJSON *item;
    cJSON_ArrayForEach(item, list) {
        tv_status s = read_merge(tok, v, item, i, &merges[i], err);
        if (s != TV_OK) {
            free(merges);
            return s;
        }
        i++;
    }
    int64_t twice;
    tv_err bpe_err = {0};
    tv_status s = tv_bpe_open(merges, (uint32_t)n, &tok->bpe, &twice, &bpe_err);
    return s == TV_OK ? TV_OK : TV_FAIL(err, s, "%s: %s", tok->name, bpe_err.message);
}

/* ---- The rest of tokenizer.json -------------------------------------------------------------------------------- */

static const char *type_of(const cJSON *item) {
    const char *type = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "type"));
    return type ? type : "?";
}

/* A key that changes ids when it is set to something else than what is done here. */
static tv_status demand(const tv_tokenizer *tok, const cJSON *object, const char *where, const char *key, int wanted,
                        tv_err *err) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    if (!item || cJSON_IsNull(item) || (cJSON_IsBool(item) && cJSON_IsTrue(item) == wanted)) return TV_OK;
    if (cJSON_IsString(item) && !*item->valuestring && !wanted) return TV_OK; /* an empty affix */
    return TV_FAIL(err, TV_EUNSUPPORTED, "%s: %s.%s is set to something that is not supported", tok->name, where, key);
}

static tv_status read_normalizer(tv_tokenizer *tok, const cJSON *item, tv_err *err) {
    if (!item || cJSON_IsNull(item)) return TV_OK;
    if (strcmp(type_of(item), "NFC"))
        return TV_FAIL(err, TV_EUNSUPPORTED, "%s: normalizer \"%s\" is not supported (NFC is)", tok->name,
                       type_of(item));
    tok->nfc = 1;
    return TV_OK;
}

static tv_status read_split(tv_tokenizer *tok, const cJSON *item, int byte_level, tv_err *err) {
    const char *regex = cJSON_GetStringValue(
        cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(item, "pattern"), "Regex"));
    const char *behavior = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "behavior"));
    if (!regex)
        return TV_FAIL(err, TV_EUNSUPPORTED, "%s: pre_tokenizer Split without a Regex pattern is not supported",
                       tok->name);
    if (!behavior || strcmp(behavior, "Isolated"))
        return TV_FAIL(err, TV_EUNSUPPORTED, "%s: pre_tokenizer behavior \"%.40s\" is not supported (Isolated is)",
                       tok->name, behavior ? behavior : "?");
    TV_TRY(demand(tok, item, "pre_tokenizer", "invert", 0, err));
    if (byte_level) return TV_FAIL(err, TV_EUNSUPPORTED, "%s: a Split behind ByteLevel is not supported", tok->name);
    if (tok->split)
        return TV_FAIL(err, TV_EUNSUPPORTED, "%s: more than one Split pre-tokenizer is not supported", tok->name);
    return tv_split_open(regex, tok->name, &tok->split, err);
}

/* One member of the pre-tokenizer; byte_level says that the byte alphabet was asked for. */
static tv_status read_pre_tokenizer(tv_tokenizer *tok, const cJSON *item, int *byte_level, tv_err *err) {
    const char *type = type_of(item);
    if (!strcmp(type, "Split")) return read_split(tok, item, *byte_level, err);
    if (strcmp(type, "ByteLevel"))
        return TV_FAIL(err, TV_EUNSUPPORTED, "%s: pre_tokenizer \"%s\" is not supported (Split and ByteLevel are)",
                       tok->name, type);
    *byte_level = 1;
    TV_TRY(demand(tok, item, "pre_tokenizer", "add_prefix_space", 0, err));
    const cJSON *use_regex = cJSON_GetObjectItemCaseSensitive(item, "use_regex");
    if (!cJSON_IsFalse(use_regex))
        return TV_FAIL(err, TV_EUNSUPPORTED, "%s: ByteLevel with its built-in pattern (use_regex) is not supported",
                       tok->name);
    return TV_OK;
}

static tv_status read_pre_tokenizers(tv_tokenizer *tok, const cJSON *item, tv_err *err) {
    int byte_level = 0;
    if (!strcmp(type_of(item), "Sequence")) {
        const cJSON *member;
        cJSON_ArrayForEach(member, cJSON_GetObjectItemCaseSensitive(item, "pretokenizers"))
            TV_TRY(read_pre_tokenizer(tok, member, &byte_level, err));
    } else if (cJSON_IsObject(item)) {
        TV_TRY(read_pre_tokenizer(tok, item, &byte_level, err));
    }
    if (!byte_level)
        return TV_FAIL(err, TV_EUNSUPPORTED, "%s: a tokenizer without the ByteLevel pre-tokenizer is not supported",
                       tok->name);
    return TV_OK;
}

static int longer_first(const void *a, const void *b) {
    const added_token *x = a, *y = b;
    return x->size != y->size ? (x->size < y->size ? 1 : -1) : x->id - y->id;
}

/* One added token, from tokenizer.json or from tokenizer_config.json, which repeats them. */
static tv_status add_token(tv_tokenizer *tok, const cJSON *item, int32_t id, const char *content, tv_err *err) {
    if (id > tok->size + 65536)
        return TV_FAIL(err, TV_EFORMAT, "%s: added token \"%.80s\" has the far-off id %d", tok->name, content, id);
    static const char *const flags[] = {"single_word", "lstrip", "rstrip", "normalized"};
    for (size_t f = 0; f < sizeof flags / sizeof *flags; f++)
        if (cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(item, flags[f])))
            return TV_FAIL(err, TV_EUNSUPPORTED, "%s: added token \"%.80s\" sets %s, which is not supported", tok->name,
                           content, flags[f]);
    size_t size = strlen(content);
    /* An added token may restate one of the vocabulary, with the same id: under another id Hugging Face would ignore
     * it. */
    for (int32_t i = 0; i < tok->size; i++)
        if (tok->text[i] && (i == id) != (tok->length[i] == size && !memcmp(tok->text[i], content, size)))
            return TV_FAIL(err, TV_EFORMAT, "%s: added token \"%.80s\" with id %d contradicts the token of id %d",
                           tok->name, content, id, i);
    TV_TRY(set_text(tok, id, tv_xstrdup(content), (uint32_t)size, content, err));
    tok->added = tv_xrealloc(tok->added, (tok->n_added + 1) * sizeof *tok->added);
    tok->added[tok->n_added++] =
        (added_token){.text = tv_xstrdup(content),
                      .size = size,
                      .id = id,
                      .special = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(item, "special"))};
    tok->starts[(unsigned char)content[0]] = 1;
    return TV_OK;
}

static const added_token *find_added(const tv_tokenizer *tok, const char *content) {
    for (size_t i = 0; i < tok->n_added; i++)
        if (!strcmp(tok->added[i].text, content)) return &tok->added[i];
    return NULL;
}

static tv_status read_added(tv_tokenizer *tok, const cJSON *list, tv_err *err) {
    const cJSON *item;
    if (list && !cJSON_IsNull(list) && !cJSON_IsArray(list))
        return TV_FAIL(err, TV_EFORMAT, "%s: added_tokens is not a list", tok->name);
    cJSON_ArrayForEach(item, list) {
        const char *content = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "content"));
        if (!content || !*content) return TV_FAIL(err, TV_EFORMAT, "%s: an added token has no content", tok->name);
        int32_t id;
        TV_TRY(read_id(cJSON_GetObjectItemCaseSensitive(item, "id"), tok->name, content, &id, err));
        if (find_added(tok, content))
            return TV_FAIL(err, TV_EFORMAT, "%s: added token \"%.80s\" is listed twice", tok->name, content);
        TV_TRY(add_token(tok, item, id, content, err));
    }
    return TV_OK;
}

static tv_status read_model(tv_tokenizer *tok, const cJSON *model, tv_err *err) {
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(model, "type");
    if (!cJSON_IsObject(model)) return TV_FAIL(err, TV_EFORMAT, "%s: there is no model", tok->name);
    if (type && strcmp(type_of(model), "BPE"))
        return TV_FAIL(err, TV_EUNSUPPORTED, "%s: model type \"%s\" is not supported (BPE is)", tok->name,
                       type_of(model));
    static const char *const off[] = {
        "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "ignore_merges"};
    for (size_t i = 0; i < sizeof off / sizeof *off; i++) TV_TRY(demand(tok, model, "model", off[i], 0, err));
    vocabulary v = {0};
    tv_status s = read_vocabulary(tok, cJSON_GetObjectItemCaseSensitive(model, "vocab"), &v, err);
    if (s == TV_OK) s = read_merges(tok, cJSON_GetObjectItemCaseSensitive(model, "merges"), &v, err);
    free(v.keys);
    free(v.ids);
    return s;
}

static tv_status read_tokenizer(tv_tokenizer *tok, const cJSON *json, tv_err *err) {
    if (!cJSON_IsObject(json)) return TV_FAIL(err, TV_EFORMAT, "%s: not a JSON object", tok->name);
    TV_TRY(read_normalizer(tok, cJSON_GetObjectItemCaseSensitive(json, "normalizer"), err));
    TV_TRY(read_pre_tokenizers(tok, cJSON_GetObjectItemCaseSensitive(json, "pre_tokenizer"), err));
    const cJSON *post = cJSON_GetObjectItemCaseSensitive(json, "post_processor");
    if (cJSON_IsObject(post) && strcmp(type_of(post), "ByteLevel"))
        return TV_FAIL(err, TV_EUNSUPPORTED, "%s: post_processor \"%s\" is not supported (it may add tokens)",
                       tok->name, type_of(post));
    const cJSON *decoder = cJSON_GetObjectItemCaseSensitive(json, "decoder");
    if (cJSON_IsObject(decoder) && strcmp(type_of(decoder), "ByteLevel"))
        return TV_FAIL(err, TV_EUNSUPPORTED, "%s: decoder \"%s\" is not supported (ByteLevel is)", tok->name,
                       type_of(decoder));
    TV_TRY(read_model(tok, cJSON_GetObjectItemCaseSensitive(json, "model"), err));
    return read_added(tok, cJSON_GetObjectItemCaseSensitive(json, "added_tokens"), err);
}

/* added_tokens_decoder of tokenizer_config.json: what it lists and tokenizer.json does not is added, as transformers
 * does. */
static tv_status read_added_decoder(tv_tokenizer *tok, const cJSON *decoder, tv_err *err) {
    static const char where[] = "tokenizer_config.json: added_tokens_decoder";
    const cJSON *item;
    cJSON_ArrayForEach(item, decoder) {
        const char *content = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "content"));
        if (!item->string || !content || !*content)
            return TV_FAIL(err, TV_EFORMAT, "%s: a token has no content", where);
        char *end;
        long id = strtol(item->string, &end, 10);
        if (*end || end == item->string || id < 0 || id >= MAX_ID)
            return TV_FAIL(err, TV_EFORMAT, "%s: \"%.40s\" is not a token id", where, item->string);
        const added_token *known = find_added(tok, content);
        if (!known)
            TV_TRY(add_token(tok, item, (int32_t)id, content, err));
        else if (known->id != id)
            return TV_FAIL(err, TV_EFORMAT, "%s: \"%.80s\" has id %ld here and %d in tokenizer.json", where, content,
                           id, known->id);
    }
    return TV_OK;
}

/* The chat template of tokenizer_config.json: a string, or a list of named ones of which "default" counts. */
static tv_status read_config_tree(tv_tokenizer *tok, const cJSON *json, tv_err *err) {
    if (!cJSON_IsObject(json)) return TV_FAIL(err, TV_EFORMAT, "tokenizer_config.json: not a JSON object");
    static const char *const off[] = {"add_prefix_space", "split_special_tokens"};
    for (size_t i = 0; i < sizeof off / sizeof *off; i++)
        if (cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(json, off[i])))
            return TV_FAIL(err, TV_EUNSUPPORTED, "tokenizer_config.json: %s is set, which is not supported", off[i]);
    TV_TRY(read_added_decoder(tok, cJSON_GetObjectItemCaseSensitive(json, "added_tokens_decoder"), err));
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, "chat_template"), *named;
    const char *chosen = cJSON_GetStringValue(item);
    if (cJSON_IsArray(item)) {
        cJSON_ArrayForEach(named, item) {
            const char *name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(named, "name"));
            if (name && !strcmp(name, "default"))
                chosen = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(named, "template"));
        }
    }
    if (chosen) tok->chat_template = tv_xstrdup(chosen);
    return TV_OK;
}

static tv_status read_config(tv_tokenizer *tok, const char *text, size_t size, tv_err *err) {
    cJSON *json = NULL;
    TV_TRY(tv_json_parse(text, size, "tokenizer_config.json", &json, err));
    tv_status s = read_config_tree(tok, json, err);
    cJSON_Delete(json);
    return s;
}

tv_status tv_tokenizer_parse(const char *json, size_t size, const char *config, size_t config_size, const char *name,
                             tv_tokenizer **out, tv_err *err) {
    cJSON *tree = NULL;
    *out = NULL;
    TV_TRY(tv_json_parse(json, size, name, &tree, err));
    tv_tokenizer *tok = tv_xcalloc(1, sizeof *tok);
    tok->name = tv_xstrdup(name);
    memset(tok->byte_id, 0xFF, sizeof tok->byte_id);
    tv_status s = read_tokenizer(tok, tree, err);
    cJSON_Delete(tree);
    if (s == TV_OK && config) s = read_config(tok, config, config_size, err);
    if (tok->n_added) qsort(tok->added, tok->n_added, sizeof *tok->added, longer_first);
    if (s != TV_OK) {
        tv_tokenizer_close(tok);
        return s;
    }
    *out = tok;
    return TV_OK;
}

tv_status tv_tokenizer_load(const char *dir, tv_tokenizer **out, tv_err *err) {
    char *path = tv_path_join(dir, "tokenizer.json"), *config_path = tv_path_join(dir, "tokenizer_config.json");
    char *jinja_path = tv_path_join(dir, "chat_template.jinja"), *text = NULL, *config = NULL;
    size_t size = 0, config_size = 0;
    *out = NULL;
    tv_status s = tv_file_read(path, MAX_FILE, &text, &size, err);
    if (s == TV_OK && tv_path_exists(config_path)) s = tv_file_read(config_path, MAX_FILE, &config, &config_size, err);
    if (s == TV_OK) s = tv_tokenizer_parse(text, size, config, config_size, path, out, err);
    if (s == TV_OK && tv_path_exists(jinja_path)) {
        char *jinja;
        size_t jinja_size;
        s = tv_file_read(jinja_path, MAX_FILE, &jinja, &jinja_size, err);
        if (s == TV_OK) {
            free((*out)->chat_template);
            (*out)->chat_template = jinja;
        } else {
            tv_tokenizer_close(*out);
            *out = NULL;
        }
    }
    free(text), free(config), free(path), free(config_path), free(jinja_path);
    return s;
}

void tv_tokenizer_close(tv_tokenizer *tok) {
    if (!tok) return;
    for (int32_t i = 0; i < tok->size; i++) free(tok->text[i]);
    for (size_t i = 0; i < tok->n_added; i++) free(tok->added[i].text);
    tv_bpe_close(&tok->bpe);
    tv_split_close(tok->split);
    free(tok->text), free(tok->length), free(tok->added), free(tok->chat_template), free(tok->name);
    free(tok);
}

/* ---- Encoding and decoding ------------------------------------------------------------------------------------- */

typedef struct {
    int32_t *ids;
    size_t n, capacity;
} id_list;

static void reserve(id_list *list, size_t more) {
    if (list->n + more <= list->capacity) return;
    list->capacity = 2 * list->capacity + more + 64;
    list->ids = tv_xrealloc(list->ids, list->capacity * sizeof *list->ids);
}

typedef struct {
    tv_split_scratch *split;
    tv_bpe_scratch bpe;
    tv_pieces pieces;
} scratch;

/* Text between added tokens: normalize, split into words, merge each. offset: of text in the whole input. */
static tv_status encode_plain(const tv_tokenizer *tok, const char *text, size_t size, size_t offset, scratch *s,
                              id_list *list, tv_err *err) {
    char *normal = NULL;
    if (!size) return TV_OK;
    if (tok->nfc) TV_TRY(tv_nfc(text, size, &normal, &size, err));
    const char *t = normal ? normal : text;
    s->pieces.n = 0;
    tv_status status = tok->split ? tv_split_run(tok->split, s->split, t, size, 0, &s->pieces, err)
                                  : tv_pieces_add(&s->pieces, size, err);
    for (size_t p = 0, begin = 0; status == TV_OK && p < s->pieces.n; begin = s->pieces.ends[p++]) {
        size_t n = s->pieces.ends[p] - begin;
        reserve(list, n);
        int32_t *ids = list->ids + list->n;
        for (size_t i = 0; i < n; i++) {
            ids[i] = tok->byte_id[(unsigned char)t[begin + i]];
            if (ids[i] < 0) {
                status =
                    TV_FAIL(err, TV_EUNSUPPORTED, "%s: the vocabulary has no token for byte 0x%02X (text at byte %zu)",
                            tok->name, (unsigned char)t[begin + i], offset);
                break;
            }
        }
        if (status == TV_OK) status = tv_bpe_merge(&tok->bpe, ids, &n, &s->bpe, err);
        if (status == TV_OK) list->n += n;
    }
    free(normal);
    return status;
}

static const added_token *added_at(const tv_tokenizer *tok, const char *text, size_t size) {
    if (!tok->starts[(unsigned char)text[0]]) return NULL;
    for (size_t i = 0; i < tok->n_added; i++)
        if (tok->added[i].size <= size && !memcmp(tok->added[i].text, text, tok->added[i].size)) return &tok->added[i];
    return NULL;
}

tv_status tv_tokenizer_encode(const tv_tokenizer *tok, const char *text, size_t size, int32_t **ids, size_t *n,
                              tv_err *err) {
    *ids = NULL;
    *n = 0;
    size_t bad = tv_utf8_check(text, size);
    if (bad < size)
        return TV_FAIL(err, TV_EFORMAT, "the text is not valid UTF-8 at byte %zu (0x%02X)", bad,
                       (unsigned char)text[bad]);
    scratch s = {0};
    id_list list = {0};
    reserve(&list, size / 3 + 16);
    tv_status status = tok->split ? tv_split_scratch_open(&s.split, err) : TV_OK;
    size_t begin = 0;
    for (size_t i = 0; status == TV_OK && i <= size;) {
        const added_token *a = i < size ? added_at(tok, text + i, size - i) : NULL;
        if (!a && i < size) {
            i++;
            continue;
        }
        status = encode_plain(tok, text + begin, i - begin, begin, &s, &list, err);
        if (i == size) break;
        reserve(&list, 1);
        list.ids[list.n++] = a->id;
        begin = i += a->size;
    }
    if (s.split) tv_split_scratch_close(s.split);
    tv_bpe_scratch_free(&s.bpe);
    tv_pieces_free(&s.pieces);
    if (status != TV_OK) {
        free(list.ids);
        return status;
    }
    *ids = list.ids;
    *n = list.n;
    return TV_OK;
}

static int is_special(const tv_tokenizer *tok, int32_t id) {
    for (size_t i = 0; i < tok->n_added; i++)
        if (tok->added[i].id == id) return tok->added[i].special;
    return 0;
}

/* Replaces what is not UTF-8 by U+FFFD. */
static void replace_invalid(char **text, size_t *size) {
    size_t n = 0;
    char *out = tv_xmalloc(3 * *size + 1);
    for (size_t i = 0; i < *size;) {
        size_t bad = 1, step = tv_utf8_char(*text + i, *size - i, NULL, &bad);
        if (step)
            memcpy(out + n, *text + i, step), n += step;
        else
            n += tv_utf8_put(0xFFFD, out + n);
        i += step ? step : bad;
    }
    out[n] = 0;
    free(*text);
    *text = out;
    *size = n;
}

tv_status tv_tokenizer_decode(const tv_tokenizer *tok, const int32_t *ids, size_t n, int skip_special, int valid_utf8,
                              char **text, size_t *size, tv_err *err) {
    *text = NULL;
    *size = 0;
    size_t room = 4 * n + 64, used = 0;
    char *out = tv_xmalloc(room);
    for (size_t i = 0; i < n; i++) {
        char shown[24];
        const char *piece = shown;
        size_t length;
        if (ids[i] < 0) {
            free(out);
            return TV_FAIL(err, TV_EARG, "token id %d at place %zu is negative", ids[i], i);
        }
        if (skip_special && is_special(tok, ids[i])) continue;
        if (ids[i] < tok->size && tok->text[ids[i]])
            piece = tok->text[ids[i]], length = tok->length[ids[i]];
        else
            length = (size_t)snprintf(shown, sizeof shown, "<id:%d>", ids[i]);
        if (used + length + 1 > room) out = tv_xrealloc(out, room = 2 * room + length + 1);
        memcpy(out + used, piece, length);
        used += length;
    }
    out[used] = 0;
    if (valid_utf8 && tv_utf8_check(out, used) < used) replace_invalid(&out, &used);
    *text = out;
    *size = used;
    return TV_OK;
}

int32_t tv_tokenizer_special(const tv_tokenizer *tok, const char *text) {
    for (size_t i = 0; i < tok->n_added; i++)
        if (!strcmp(tok->added[i].text, text)) return tok->added[i].id;
    return -1;
}

int32_t tv_tokenizer_size(const tv_tokenizer *tok) { return tok->size; }

const char *tv_tokenizer_chat_template(const tv_tokenizer *tok) { return tok->chat_template; }
