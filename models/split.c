#define PCRE2_CODE_UNIT_WIDTH 8
#include "models/split.h"

#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "models/unicode.h"

struct tv_split {
    pcre2_code *code;
    char *name;
};

struct tv_split_scratch {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

#define WHITE_SPACE                                                                                                    \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"

enum { MAX_GROUPS = 32, MAX_PATTERN = 4096 };

/* The translation under way. */
typedef struct {
    const char *pattern; /* what is read, NUL-terminated */
    size_t at, size;
    const char *name;
    char *out; /* what is written; every construct grows by at most the length of WHITE_SPACE and brackets */
    size_t written;
    char caseless[MAX_GROUPS]; /* for each open group: inside (?i: ) */
    int depth;
    char last; /* the last literal when it is an ASCII letter inside (?i: ), else 0 */
} translation;

static void emit(translation *t, const char *s, size_t n) {
    memcpy(t->out + t->written, s, n);
    t->written += n;
}

static tv_status refuse(const translation *t, const char *what, size_t at, size_t n, tv_err *err) {
    if (n > t->size - at) n = t->size - at;
    return TV_FAIL(err, TV_EUNSUPPORTED, "%s: the split pattern holds %s \"%.*s\" at byte %zu, which is not supported",
                   t->name, what, (int)n, t->pattern + at, at);
}

/* Characters with several that fold together to one (ss and sharp s, ff and its ligature, ...): Oniguruma matches those
 * in
 * (?i: ), PCRE2 does not. */
static int folds_together(char a, char b) {
    return (a == 's' && (b == 's' || b == 't')) || (a == 'f' && (b == 'f' || b == 'i' || b == 'l'));
}

static tv_status literal(translation *t, size_t n, tv_err *err) {
    char c = t->pattern[t->at];
    int caseless = t->depth && t->caseless[t->depth - 1];
    char letter = 0;
    if (caseless) {
        if ((unsigned char)c >= 0x80) return refuse(t, "a character beyond ASCII inside (?i:", t->at, n, err);
        letter = c >= 'A' && c <= 'Z' ? (char)(c + 32) : c >= 'a' && c <= 'z' ? c : 0;
        if (letter && t->last && folds_together(t->last, letter))
            return refuse(t, "letters inside (?i: that also match as one character:", t->at - 1, 2, err);
    }
    t->last = letter;
    if (strchr("#-&~", c)) emit(t, "\\", 1);
    emit(t, t->pattern + t->at, n);
    t->at += n;
    return TV_OK;
}

/* \p{Name}, \P{Name}, \p{^Name}: general categories, whose names are the same in both engines. */
static tv_status property(translation *t, tv_err *err) {
    static const char *const names[] = {"L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N",
                                        "Nd", "Nl", "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po",
                                        "S",  "Sm", "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp"};
    const char *s = t->pattern + t->at;
    const char *close = s[2] == '{' ? strchr(s, '}') : NULL;
    if (!close) return refuse(t, "a property without braces", t->at, 3, err);
    size_t n = (size_t)(close - s) + 1, skip = s[3] == '^';
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strlen(names[i]) == n - 4 - skip && strncmp(names[i], s + 3 + skip, n - 4 - skip) == 0) {
            emit(t, s, n);
            t->at += n;
            return TV_OK;
        }
    return refuse(t, "the property", t->at, n, err);
}

/* An escape; in_class says where. */
static tv_status escape(translation *t, int in_class, tv_err *err) {
    char c = t->pattern[t->at + 1];
    if (c == 'p' || c == 'P') {
        t->last = 0;
        return property(t, err);
    }
    if (c == 's' || (c == 'S' && !in_class)) {
        if (!in_class) emit(t, c == 's' ? "[" : "[^", c == 's' ? 1 : 2);
        emit(t, WHITE_SPACE, sizeof WHITE_SPACE - 1);
        if (!in_class) emit(t, "]", 1);
    } else if (c == 'd' || c == 'D') {
        emit(t, c == 'd' ? "\\p{Nd}" : "\\P{Nd}", 6);
    } else if (c == 'v') {
        emit(t, "\\x{b}", 5); /* PCRE2's \v is a whole class */
    } else if ((c && strchr("rntf", c)) || (c > 0x20 && c < 0x7F && strchr("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", c))) {
        emit(t, t->pattern + t->at, 2);
    } else {
        return refuse(t, "the escape", t->at, 2, err);
    }
    t->at += 2;
    t->last = 0;
    return TV_OK;
}

static tv_status class(translation *t, tv_err *err) {
    size_t start = t->at;
    emit(t, "[", 1), t->at++;
    if (t->pattern[t->at] == '^') emit(t, "^", 1), t->at++;
    if (t->pattern[t->at] == ']') return refuse(t, "a class that begins with ]:", start, 3, err);
    while (t->pattern[t->at] != ']') {
        char c = t->pattern[t->at];
        if (!c) return refuse(t, "an unclosed class", start, 8, err);
        if (c == '[') return refuse(t, "a class inside a class", start, t->at - start + 2, err);
        if (c == '&' && t->pattern[t->at + 1] == '&')
            return refuse(t, "a class intersection", start, t->at - start + 2, err);
        if (c == '\\') {
            TV_TRY(escape(t, 1, err));
            continue;
        }
        size_t n = tv_utf8_char(t->pattern + t->at, t->size - t->at, NULL, NULL);
        if (t->depth && t->caseless[t->depth - 1])
            return refuse(t, "a class with characters inside (?i:", start, 8, err);
        emit(t, t->pattern + t->at, n);
        t->at += n;
    }
    emit(t, "]", 1), t->at++;
    t->last = 0;
    return TV_OK;
}

static tv_status group(translation *t, tv_err *err) {
    static const char *const kinds[] = {"(?:", "(?i:", "(?=", "(?!", "(?>"};
    int caseless = t->depth && t->caseless[t->depth - 1];
    size_t n = 1;
    if (t->pattern[t->at + 1] == '?') {
        n = 0;
        for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
            if (strncmp(t->pattern + t->at, kinds[i], strlen(kinds[i])) == 0) n = strlen(kinds[i]);
        if (!n) return refuse(t, "the group", t->at, 4, err);
        caseless |= n == 4;
    } else if (t->pattern[t->at + 1] == '*') {
        return refuse(t, "the verb", t->at, 4, err);
    }
    if (t->depth == MAX_GROUPS) return refuse(t, "groups nested too deep", t->at, 1, err);
    t->caseless[t->depth++] = (char)caseless;
    emit(t, t->pattern + t->at, n);
    t->at += n;
    t->last = 0;
    return TV_OK;
}

/* {n}, {n,}, {n,m}: what else a brace can open differs between the engines. */
static tv_status braces(translation *t, tv_err *err) {
    const char *s = t->pattern + t->at;
    size_t n = 1, digits = strspn(s + n, "0123456789");
    n += digits;
    if (s[n] == ',') n++, n += strspn(s + n, "0123456789");
    if (!digits || s[n] != '}' || s[n + 1] == '+') return refuse(t, "the quantifier", t->at, n + 2, err);
    emit(t, s, n + 1);
    t->at += n + 1;
    t->last = 0;
    return TV_OK;
}

static tv_status translate(translation *t, tv_err *err) {
    while (t->at < t->size) {
        char c = t->pattern[t->at];
        if (c == '\\') {
            TV_TRY(escape(t, 0, err));
        } else if (c == '[') {
            TV_TRY(class(t, err));
        } else if (c == '(') {
            TV_TRY(group(t, err));
        } else if (c == '{') {
            TV_TRY(braces(t, err));
        } else if (strchr(".^$", c)) {
            return refuse(t, "the operator", t->at, 1, err);
        } else if (strchr("|*+?)", c)) {
            if (c == ')' && t->depth) t->depth--;
            t->last = 0;
            emit(t, &c, 1);
            t->at++;
        } else {
            TV_TRY(literal(t, tv_utf8_char(t->pattern + t->at, t->size - t->at, NULL, NULL), err));
        }
    }
    return TV_OK;
}

tv_status tv_split_open(const char *pattern, const char *name, tv_split **out, tv_err *err) {
    *out = NULL;
    size_t size = strlen(pattern);
    if (size == 0 || size > MAX_PATTERN)
        return TV_FAIL(err, TV_EUNSUPPORTED, "%s: a split pattern of %zu bytes (1 to %d are supported)", name, size,
                       MAX_PATTERN);
    if (tv_utf8_check(pattern, size) != size)
        return TV_FAIL(err, TV_EFORMAT, "%s: the split pattern is not valid UTF-8", name);
    translation t = {.pattern = pattern, .size = size, .name = name};
    t.out = tv_xmalloc(size / 2 * (sizeof WHITE_SPACE + 4) + size * 2 + 16);
    tv_status s = translate(&t, err);
    if (s != TV_OK) {
        free(t.out);
        return s;
    }
    int code = 0;
    PCRE2_SIZE where = 0;
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    TV_ASSERT(context && pcre2_set_newline(context, PCRE2_NEWLINE_LF) == 0);
    pcre2_code *compiled = pcre2_compile((PCRE2_SPTR)t.out, t.written, PCRE2_UTF | PCRE2_UCP, &code, &where, context);
    pcre2_compile_context_free(context);
    free(t.out);
    if (!compiled) {
        PCRE2_UCHAR why[160];
        pcre2_get_error_message(code, why, sizeof why);
        return TV_FAIL(err, TV_EFORMAT, "%s: the split pattern does not compile: %s", name, (const char *)why);
    }
    uint32_t empty = 0;
    pcre2_pattern_info(compiled, PCRE2_INFO_MATCHEMPTY, &empty);
    if (empty) {
        pcre2_code_free(compiled);
        return TV_FAIL(err, TV_EUNSUPPORTED, "%s: the split pattern can match the empty string, which is not supported",
                       name);
    }
    (void)pcre2_jit_compile(compiled,
                            PCRE2_JIT_COMPLETE); /* without it pcre2_match interprets: slower, the same result */
    *out = tv_xcalloc(1, sizeof **out);
    (*out)->code = compiled;
    (*out)->name = tv_xstrdup(name);
    return TV_OK;
}

void tv_split_close(tv_split *split) {
    if (!split) return;
    pcre2_code_free(split->code);
    free(split->name);
    free(split);
}

void tv_pieces_free(tv_pieces *pieces) {
    free(pieces->ends);
    *pieces = (tv_pieces){0};
}

tv_status tv_pieces_add(tv_pieces *pieces, size_t end, tv_err *err) {
    if (pieces->n == pieces->capacity) {
        size_t capacity = pieces->capacity ? 2 * pieces->capacity : 256;
        size_t *ends = realloc(pieces->ends, capacity * sizeof *ends);
        if (!ends) return TV_FAIL(err, TV_ENOMEM, "no memory for %zu pieces of text", capacity);
        pieces->ends = ends;
        pieces->capacity = capacity;
    }
    pieces->ends[pieces->n++] = end;
    return TV_OK;
}

tv_status tv_split_scratch_open(tv_split_scratch **out, tv_err *err) {
    tv_split_scratch *s = tv_xcalloc(1, sizeof *s);
    s->data = pcre2_match_data_create(1, NULL);
    s->context = pcre2_match_context_create(NULL);
    s->stack = pcre2_jit_stack_create(32 << 10, 4 << 20, NULL); /* NULL where there is no JIT */
    *out = s;
    if (!s->data || !s->context) {
        tv_split_scratch_close(s);
        *out = NULL;
        return TV_FAIL(err, TV_ENOMEM, "no memory to split text");
    }
    if (s->stack) pcre2_jit_stack_assign(s->context, NULL, s->stack);
    return TV_OK;
}

void tv_split_scratch_close(tv_split_scratch *scratch) {
    if (!scratch) return;
    pcre2_match_data_free(scratch->data);
    pcre2_match_context_free(scratch->context);
    if (scratch->stack) pcre2_jit_stack_free(scratch->stack);
    free(scratch);
}

tv_status tv_split_run(const tv_split *split, tv_split_scratch *scratch, const char *text, size_t size, size_t base,
                       tv_pieces *pieces, tv_err *err) {
    /* A run of white space is walked forwards and back once by each alternative: some steps a byte are normal. */
    uint64_t limit = 1000000 + 64 * (uint64_t)size;
    pcre2_set_match_limit(scratch->context, limit < UINT32_MAX ? (uint32_t)limit : UINT32_MAX);
    size_t at = 0;
    while (at < size) {
        /* The text is known to be valid; checking it again from every start would be quadratic. */
        int rc =
            pcre2_match(split->code, (PCRE2_SPTR)text, size, at, PCRE2_NO_UTF_CHECK, scratch->data, scratch->context);
        if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
            rc = pcre2_match(split->code, (PCRE2_SPTR)text, size, at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, scratch->data,
                             scratch->context);
        if (rc == PCRE2_ERROR_NOMATCH) return tv_pieces_add(pieces, base + size, err);
        if (rc < 0) {
            PCRE2_UCHAR why[160];
            pcre2_get_error_message(rc, why, sizeof why);
            return TV_FAIL(err, TV_EUNSUPPORTED,
                           "%s: the split pattern gave up on text at byte %zu of a part of %zu bytes: %s", split->name,
                           at, size, (const char *)why);
        }
        const PCRE2_SIZE *match = pcre2_get_ovector_pointer(scratch->data);
        TV_ASSERT(match[0] >= at && match[1] > match[0]);
        if (match[0] > at) TV_TRY(tv_pieces_add(pieces, base + match[0], err));
        TV_TRY(tv_pieces_add(pieces, base + match[1], err));
        at = match[1];
    }
    return TV_OK;
}
