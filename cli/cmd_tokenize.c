/* tvgpu tokenize: text to ids and back. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "cli/commands.h"
#include "cli/common.h"

static void print_ids(const int32_t *ids, size_t n, int json) {
    if (json) putchar('[');
    for (size_t i = 0; i < n; i++) printf("%s%d", i ? json ? ", " : " " : "", ids[i]);
    puts(json ? "]" : "");
}

/* A JSON array of whole numbers as ids; the caller frees. */
static tv_status ids_from_json(const cJSON *json, const char *where, int32_t **ids, size_t *n, tv_err *err) {
    *n = 0;
    *ids = NULL;
    if (!cJSON_IsArray(json)) return TV_FAIL(err, TV_EARG, "%s: --decode wants an array of ids", where);
    *ids = tv_xmalloc(((size_t)cJSON_GetArraySize(json) + 1) * sizeof **ids);
    const cJSON *item;
    cJSON_ArrayForEach(item, json) {
        int64_t id;
        TV_TRY(tv_json_int(item, where, "a token id", &id, err));
        if (id < 0 || id > INT32_MAX) return TV_FAIL(err, TV_EARG, "%s: %lld is not a token id", where, (long long)id);
        (*ids)[(*n)++] = (int32_t)id;
    }
    return TV_OK;
}

/* The value of a JSON string item as bytes. cJSON ends strings at an embedded NUL, so "\u0000" is decoded here. */
static tv_status string_bytes(const char *line, size_t length, const char *where, const cJSON *json, char **text,
                              size_t *size, tv_err *err) {
    if (!cJSON_IsString(json)) return TV_FAIL(err, TV_EARG, "%s: wants a JSON string a line", where);
    char *copy = tv_xmalloc(length + 1);
    memcpy(copy, line, length);
    copy[length] = 0;
    *text = tv_xmalloc(length + 1);
    *size = 0;
    char *c = strchr(copy, '"') + 1;
    /* split at escaped NULs (an even number of backslashes before them would make them text) */
    while (1) {
        char *part = c, *nul = NULL;
        for (char *d = c; *d && *d != '"'; d++)
            if (*d == '\\') {
                if (!strncmp(d + 1, "u0000", 5)) {
                    nul = d;
                    break;
                }
                d++;
            }
        char *end = nul ? nul : strrchr(copy, '"');
        char *quoted = tv_xprintf("\"%.*s\"", (int)(end - part), part);
        cJSON *piece = cJSON_Parse(quoted);
        free(quoted);
        if (!piece) {
            free(copy);
            return TV_FAIL(err, TV_EFORMAT, "%s: not a JSON string", where);
        }
        size_t n = strlen(piece->valuestring);
        memcpy(*text + *size, piece->valuestring, n);
        *size += n;
        cJSON_Delete(piece);
        if (!nul) break;
        (*text)[(*size)++] = 0;
        c = nul + 6;
    }
    free(copy);
    return TV_OK;
}

static tv_status chat(const tv_tokenizer *tok, const tv_args *args, const cJSON *json, const char *where, tv_err *err) {
    if (!cJSON_IsArray(json))
        return TV_FAIL(err, TV_EARG, "%s: --chat wants an array of {\"role\", \"content\"}", where);
    size_t n = (size_t)cJSON_GetArraySize(json), i = 0, n_ids = 0;
    tv_message *messages = tv_xcalloc(n + 1, sizeof *messages);
    const cJSON *m;
    int32_t *ids = NULL;
    tv_status s = TV_OK;
    cJSON_ArrayForEach(m, json) {
        messages[i].role = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(m, "role"));
        messages[i].content = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(m, "content"));
        if (!messages[i].role || !messages[i].content) {
            s = TV_FAIL(err, TV_EARG, "%s: message %zu needs the strings \"role\" and \"content\"", where, i);
            break;
        }
        i++;
    }
    if (s == TV_OK) s = tv_chat_encode(tok, messages, n, args->thinking, &ids, &n_ids, err);
    if (s == TV_OK) print_ids(ids, n_ids, 1);
    free(ids);
    free(messages);
    return s;
}

/* The escape of a line end beyond ASCII at the beginning of NUL-terminated text, else NULL: readers that split at them
 * would take one line for two. */
static const char *unicode_line_end(const char *text) {
    static const char *const ends[][2] = {
        {"\xC2\x85", "\\u0085"}, {"\xE2\x80\xA8", "\\u2028"}, {"\xE2\x80\xA9", "\\u2029"}};
    for (size_t i = 0; i < 3; i++)
        if (!strncmp(text, ends[i][0], strlen(ends[i][0]))) return ends[i][1];
    return NULL;
}

static tv_status one_line(const tv_tokenizer *tok, const tv_args *args, const char *line, size_t length,
                          const char *where, tv_err *err) {
    cJSON *json = NULL;
    int32_t *ids = NULL;
    char *text = NULL;
    size_t n = 0, size = 0;
    tv_status s = tv_json_parse(line, length, where, &json, err);
    if (s == TV_OK && args->chat) {
        s = chat(tok, args, json, where, err);
    } else if (s == TV_OK && args->decode) {
        s = ids_from_json(json, where, &ids, &n, err);
        if (s == TV_OK) s = tv_tokenizer_decode(tok, ids, n, 0, 1, &text, &size, err);
        if (s == TV_OK) {
            putchar('"');
            for (size_t i = 0; i < size; i++) {
                unsigned char c = (unsigned char)text[i];
                const char *line_end = unicode_line_end(text + i);
                if (c == '"' || c == '\\')
                    printf("\\%c", c);
                else if (c < 0x20 || c == 0x7f)
                    printf("\\u%04x", c);
                else if (line_end)
                    fputs(line_end, stdout), i += c == 0xC2 ? 1 : 2;
                else
                    putchar(c);
            }
            puts("\"");
        }
    } else if (s == TV_OK) {
        s = string_bytes(line, length, where, json, &text, &size, err);
        if (s == TV_OK) s = tv_tokenizer_encode(tok, text, size, &ids, &n, err);
        if (s == TV_OK) print_ids(ids, n, 1);
    }
    free(ids);
    free(text);
    cJSON_Delete(json);
    return s;
}

static tv_status whole_input(const tv_tokenizer *tok, const tv_args *args, tv_err *err) {
    char *text = NULL;
    size_t size = 0, room = 0, got;
    do {
        if (size + 65536 > room) text = tv_xrealloc(text, (room = 2 * room + 65536) + 1);
        got = fread(text + size, 1, room - size, stdin);
        size += got;
    } while (got);
    text[size] = 0;
    int32_t *ids = NULL;
    size_t n = 0;
    tv_status s = TV_OK;
    if (args->decode) {
        int64_t count = 0;
        s = strlen(text) == size ? cli_ids_parse(text, "standard input", &ids, &count, err)
                                 : TV_FAIL(err, TV_EARG, "standard input: a NUL byte among the ids");
        n = (size_t)count;
        char *out = NULL;
        size_t out_size = 0;
        if (s == TV_OK) s = tv_tokenizer_decode(tok, ids, n, 0, 0, &out, &out_size, err);
        if (s == TV_OK) fwrite(out, 1, out_size, stdout);
        free(out);
    } else {
        s = tv_tokenizer_encode(tok, text, size, &ids, &n, err);
        if (s == TV_OK) print_ids(ids, n, 0);
    }
    free(ids);
    free(text);
    return s;
}

static tv_status lines(const tv_tokenizer *tok, const tv_args *args, tv_err *err) {
    char *line = NULL;
    size_t room = 0;
    ssize_t length;
    tv_status s = TV_OK;
    for (int64_t number = 1; s == TV_OK && (length = getline(&line, &room, stdin)) >= 0; number++) {
        while (length && (line[length - 1] == '\n' || line[length - 1] == '\r')) length--;
        char *where = tv_xprintf("line %lld", (long long)number);
        s = length ? one_line(tok, args, line, (size_t)length, where, err)
                   : TV_FAIL(err, TV_EARG, "%s: empty, so that lines out would not match lines in", where);
        free(where);
        if (s == TV_OK && fflush(stdout) != 0) break; /* each line at once; main reports that nobody reads on */
    }
    free(line);
    return s;
}

static int run(tv_args *args, tv_err *err) {
    char *dir = NULL;
    tv_tokenizer *tok = NULL;
    if (args->chat && !args->jsonl) return (int)TV_FAIL(err, TV_EARG, "--chat reads JSON lines: give --jsonl too");
    if (args->chat && args->decode) return (int)TV_FAIL(err, TV_EARG, "--chat and --decode exclude each other");
    if (cli_model_dir(args->n_positional ? args->positional[0] : NULL, &dir, err) == TV_OK &&
        tv_tokenizer_load(dir, &tok, err) == TV_OK) {
        tv_status s = args->jsonl ? lines(tok, args, err) : whole_input(tok, args, err);
        TV_ASSERT(s == TV_OK || err->code != TV_OK);
    }
    tv_tokenizer_close(tok);
    free(dir);
    return EXIT_DONE;
}

const tv_command tv_command_tokenize = {
    "tokenize",
    "text to token ids and back",
    CMD_TOKENIZE,
    1,
    "[MODEL] [options] < INPUT",
    "Reads text on standard input and prints its ids; with --decode ids to text. With --jsonl a JSON\n"
    "string a line becomes a JSON array of ids a line (--decode: the reverse; --chat: an array of\n"
    "messages becomes the ids of the chat prompt with the generation prompt added). Needs only\n"
    "tokenizer.json and tokenizer_config.json in the folder.",
    "  echo -n \"To be, or not\" | tvgpu tokenize\n"
    "  echo '[{\"role\": \"user\", \"content\": \"Hi\"}]' | tvgpu tokenize MODEL --jsonl --chat --thinking off\n",
    run,
};
