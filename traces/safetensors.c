/* Format: u64 header length L (little-endian), L bytes of JSON, then the data section. The header is read by a reader
 * of its own: a general JSON parser turns integers into doubles (2^53 + 1 becomes 2^53) and keeps the last of two equal
 * keys. */
#include "traces/safetensors.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/file.h"

enum { MAX_HEADER = 100000000, ALIGN = 64 }; /* the header limit of the reference implementation */

typedef struct {
    char *key, *value;
} pair;

struct tv_st_file {
    char *name;
    tv_map map;                   /* empty after tv_st_parse */
    tv_st_tensor *tensors;        /* [n], in order of data */
    const tv_st_tensor **by_name; /* [n], sorted by name */
    size_t n;
    pair *meta; /* [n_meta], sorted by key */
    size_t n_meta;
};

/* ---- reading the header ---- */

typedef struct {
    const unsigned char *begin, *p, *end; /* the header text; p is the next byte */
    const char *name;                     /* of the file, for messages */
    tv_err *err;
} reader;

TV_PRINTF(2, 3) static tv_status bad(reader *r, const char *fmt, ...) {
    char what[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    return TV_FAIL(r->err, TV_EFORMAT, "%s: header byte %zu: %s", r->name, (size_t)(r->p - r->begin), what);
}

static void skip_space(reader *r) {
    while (r->p < r->end && (*r->p == ' ' || *r->p == '\t' || *r->p == '\n' || *r->p == '\r')) r->p++;
}

/* The next byte after white space, not consumed; -1 at the end. */
static int peek(reader *r) {
    skip_space(r);
    return r->p < r->end ? *r->p : -1;
}

static tv_status expect(reader *r, char c) {
    int got = peek(r);
    if (got != (unsigned char)c) {
        if (got < 0) return bad(r, "the header ends where '%c' is expected", c);
        if (got < 0x20 || got > 0x7e) return bad(r, "byte 0x%02x where '%c' is expected", (unsigned)got, c);
        return bad(r, "'%c' where '%c' is expected", got, c);
    }
    r->p++;
    return TV_OK;
}

/* After a member or element: 1 in *more when a comma says that another follows, 0 when close was consumed. */
static tv_status next_member(reader *r, char close, int *more) {
    int c = peek(r);
    *more = c == ',';
    if (c != ',' && c != (unsigned char)close) return bad(r, "',' or '%c' is expected", close);
    r->p++;
    return TV_OK;
}

static tv_status read_hex4(reader *r, uint32_t *out) {
    uint32_t v = 0;
    for (int i = 0; i < 4; i++, r->p++) {
        int c = r->p < r->end ? *r->p : 0;
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0) return bad(r, "\\u needs four hexadecimal digits");
        v = v * 16 + (uint32_t)digit;
    }
    *out = v;
    return TV_OK;
}

/* One escape, r->p behind the backslash; writes up to 4 bytes of UTF-8 at *w. */
static tv_status read_escape(reader *r, char **w) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (r->p >= r->end) return bad(r, "the header ends inside a string");
    const char *simple = *r->p ? strchr(from, *r->p) : NULL;
    if (simple) {
        *(*w)++ = to[simple - from];
        r->p++;
        return TV_OK;
    }
    if (*r->p++ != 'u') return bad(r, "unknown escape in a string");
    uint32_t c, low;
    TV_TRY(read_hex4(r, &c));
    if (c >= 0xd800 && c < 0xdc00) {
        if (r->end - r->p < 2 || r->p[0] != '\\' || r->p[1] != 'u') return bad(r, "half of a surrogate pair");
        r->p += 2;
        TV_TRY(read_hex4(r, &low));
        if (low < 0xdc00 || low > 0xdfff) return bad(r, "half of a surrogate pair");
        c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
    } else if (c >= 0xdc00 && c <= 0xdfff) {
        return bad(r, "half of a surrogate pair");
    }
    if (!c) return bad(r, "a NUL character in a string");
    *w += utf8proc_encode_char((utf8proc_int32_t)c, (utf8proc_uint8_t *)*w);
    return TV_OK;
}

/* A string in fresh memory, escapes resolved, UTF-8 checked, without NUL; NULL in *out on failure. */
static tv_status read_string(reader *r, char **out) {
    *out = NULL;
    TV_TRY(expect(r, '"'));
    const unsigned char *close = r->p;
    while (close < r->end && *close != '"') close += *close == '\\' && r->end - close > 1 ? 2 : 1;
    if (close >= r->end) return bad(r, "a string without end");
    char *text = tv_xmalloc((size_t)(close - r->p) + 1), *w = text; /* escapes only shrink */
    tv_status s = TV_OK;
    while (s == TV_OK && r->p < close) {
        if (*r->p == '\\') {
            r->p++;
            s = read_escape(r, &w);
        } else if (*r->p < 0x20) {
            s = bad(r, "control character 0x%02x in a string", *r->p);
        } else {
            utf8proc_int32_t c;
            utf8proc_ssize_t len = utf8proc_iterate(r->p, close - r->p, &c);
            if (len <= 0) {
                s = bad(r, "a string is not UTF-8");
                break;
            }
            memcpy(w, r->p, (size_t)len);
            w += len;
            r->p += len;
        }
    }
    /* An escape cannot have run past close: \u takes hexadecimal digits only, a pair starts with a backslash. */
    if (s != TV_OK) {
        free(text);
        return s;
    }
    r->p = close + 1;
    *w = 0;
    *out = text;
    return TV_OK;
}

/* A whole number >= 0 written in digits, exact to 2^64 - 1. */
static tv_status read_whole(reader *r, const char *tensor, const char *key, uint64_t *out) {
    int c = peek(r);
    if (c == '-') return bad(r, "tensor \"%.200s\": a negative number in %s", tensor, key);
    if (c < '0' || c > '9') return bad(r, "tensor \"%.200s\": %s needs whole numbers", tensor, key);
    uint64_t v = 0;
    const unsigned char *first = r->p;
    for (; r->p < r->end && *r->p >= '0' && *r->p <= '9'; r->p++) {
        unsigned digit = *r->p - '0';
        if (v > (UINT64_MAX - digit) / 10)
            return bad(r, "tensor \"%.200s\": a number in %s does not fit 64 bits", tensor, key);
        v = v * 10 + digit;
    }
    if (*first == '0' && r->p - first > 1)
        return bad(r, "tensor \"%.200s\": a number in %s with a leading zero", tensor, key);
    if (r->p < r->end && (*r->p == '.' || *r->p == 'e' || *r->p == 'E'))
        return bad(r, "tensor \"%.200s\": %s needs whole numbers, not a fraction or exponent", tensor, key);
    *out = v;
    return TV_OK;
}

static tv_status read_dtype(reader *r, tv_st_tensor *t) {
    char *text;
    TV_TRY(read_string(r, &text));
    for (tv_dtype d = TV_BF16; d <= TV_F8_E5M2; d++)
        if (strcmp(text, tv_dtype_name(d)) == 0) {
            t->dtype = d;
            free(text);
            return TV_OK;
        }
    tv_status s = TV_FAIL(r->err, TV_EUNSUPPORTED,
                          "%s: tensor \"%.200s\" has dtype \"%.40s\", which is not one that can be read here", r->name,
                          t->name, text);
    free(text);
    return s;
}

static tv_status read_shape(reader *r, tv_st_tensor *t) {
    TV_TRY(expect(r, '['));
    t->n_dims = 0;
    if (peek(r) == ']') {
        r->p++;
        return TV_OK;
    }
    for (int more = 1; more;) {
        uint64_t v;
        TV_TRY(read_whole(r, t->name, "shape", &v));
        if (v > INT64_MAX) return bad(r, "tensor \"%.200s\": dimension %" PRIu64 " is too large", t->name, v);
        if (t->n_dims == TV_ST_MAX_DIMS)
            return TV_FAIL(r->err, TV_EUNSUPPORTED, "%s: tensor \"%.200s\" has more than %d dimensions", r->name,
                           t->name, TV_ST_MAX_DIMS);
        t->shape[t->n_dims++] = (int64_t)v;
        TV_TRY(next_member(r, ']', &more));
    }
    return TV_OK;
}

/* data_offsets: [begin, end) within the data section of section_size bytes at section. */
static tv_status read_offsets(reader *r, tv_st_tensor *t, const unsigned char *section, size_t section_size) {
    uint64_t at[2];
    int more;
    TV_TRY(expect(r, '['));
    for (int i = 0; i < 2; i++) {
        TV_TRY(read_whole(r, t->name, "data_offsets", &at[i]));
        TV_TRY(next_member(r, ']', &more));
        if (more != (i == 0)) return bad(r, "tensor \"%.200s\": data_offsets needs exactly two numbers", t->name);
    }
    if (at[0] > at[1])
        return bad(r, "tensor \"%.200s\": data_offsets [%" PRIu64 ", %" PRIu64 "] are reversed", t->name, at[0], at[1]);
    if (at[1] > section_size)
        return TV_FAIL(r->err, TV_EFORMAT,
                       "%s: tensor \"%.200s\" ends at byte %" PRIu64
                       " of a data section of %zu bytes: a truncated file "
                       "(incomplete download or copy?)",
                       r->name, t->name, at[1], section_size);
    t->data = section + at[0];
    t->bytes = (size_t)(at[1] - at[0]);
    return TV_OK;
}

/* Bytes that dtype and shape ask for; 0 in *fits when that overflows. */
static size_t shape_bytes(const tv_st_tensor *t, int *fits) {
    size_t bytes = tv_dtype_size(t->dtype);
    *fits = 1;
    for (int i = 0; i < t->n_dims; i++)
        if (__builtin_mul_overflow(bytes, (size_t)t->shape[i], &bytes)) *fits = 0;
    return bytes;
}

/* "[2, 3]" */
static void shape_text(char *text, size_t size, int n_dims, const int64_t *shape) {
    size_t used = (size_t)snprintf(text, size, "[");
    for (int i = 0; i < n_dims && used < size; i++)
        used += (size_t)(shape[i] < 0 ? snprintf(text + used, size - used, "%sany", i ? ", " : "")
                                      : snprintf(text + used, size - used, "%s%" PRId64, i ? ", " : "", shape[i]));
    if (used < size) snprintf(text + used, size - used, "]");
}

/* {"dtype": ..., "shape": [...], "data_offsets": [...]}, each exactly once, in any order. t->name is set. */
static tv_status read_tensor(reader *r, tv_st_tensor *t, const unsigned char *section, size_t section_size) {
    static const char *const keys[] = {"dtype", "shape", "data_offsets"};
    int seen[3] = {0};
    int more = 1;
    if (peek(r) != '{') return bad(r, "tensor \"%.200s\": its entry is not an object", t->name);
    r->p++;
    if (peek(r) == '}') r->p++, more = 0;
    while (more) {
        char *key;
        TV_TRY(read_string(r, &key));
        int which = 0;
        while (which < 3 && strcmp(key, keys[which]) != 0) which++;
        tv_status s = TV_OK;
        if (which == 3)
            s = bad(r, "tensor \"%.200s\": unknown key \"%.100s\"", t->name, key);
        else if (seen[which]++)
            s = bad(r, "tensor \"%.200s\": duplicate key \"%s\"", t->name, keys[which]);
        free(key);
        TV_TRY(s);
        TV_TRY(expect(r, ':'));
        if (which == 0)
            TV_TRY(read_dtype(r, t));
        else if (which == 1)
            TV_TRY(read_shape(r, t));
        else
            TV_TRY(read_offsets(r, t, section, section_size));
        TV_TRY(next_member(r, '}', &more));
    }
    for (int i = 0; i < 3; i++)
        if (!seen[i]) return bad(r, "tensor \"%.200s\": no \"%s\"", t->name, keys[i]);
    int fits;
    size_t bytes = shape_bytes(t, &fits);
    char shape[256];
    shape_text(shape, sizeof shape, t->n_dims, t->shape);
    if (!fits) return TV_FAIL(r->err, TV_EFORMAT, "%s: tensor \"%.200s\": shape %s overflows", r->name, t->name, shape);
    if (bytes != t->bytes)
        return TV_FAIL(r->err, TV_EFORMAT, "%s: tensor \"%.200s\": %s %s needs %zu bytes and data_offsets give %zu",
                       r->name, t->name, tv_dtype_name(t->dtype), shape, bytes, t->bytes);
    return TV_OK;
}

/* Room for one more element in an array that holds n; doubles at powers of two. */
static void *grow(void *array, size_t n, size_t element) {
    return n & (n - 1) ? array : tv_xrealloc(array, (n ? 2 * n : 1) * element);
}

static tv_status read_metadata(reader *r, tv_st_file *f) {
    int more = 1;
    if (peek(r) != '{') return bad(r, "__metadata__ must be an object of strings");
    r->p++;
    if (peek(r) == '}') r->p++, more = 0;
    while (more) {
        f->meta = grow(f->meta, f->n_meta, sizeof *f->meta);
        pair *m = &f->meta[f->n_meta];
        TV_TRY(read_string(r, &m->key));
        m->value = NULL;
        f->n_meta++;
        TV_TRY(expect(r, ':'));
        if (peek(r) != '"') return bad(r, "__metadata__ \"%.200s\" is not a string", m->key);
        TV_TRY(read_string(r, &m->value));
        TV_TRY(next_member(r, '}', &more));
    }
    return TV_OK;
}

static tv_status read_header(reader *r, tv_st_file *f, const unsigned char *section, size_t section_size) {
    int more = 1, seen_metadata = 0;
    TV_TRY(expect(r, '{'));
    if (peek(r) == '}') r->p++, more = 0;
    while (more) {
        char *name;
        TV_TRY(read_string(r, &name));
        tv_status s = expect(r, ':');
        if (s != TV_OK || strcmp(name, "__metadata__") == 0) {
            free(name);
            TV_TRY(s);
            if (seen_metadata++) return bad(r, "duplicate key \"__metadata__\"");
            TV_TRY(read_metadata(r, f));
        } else {
            f->tensors = grow(f->tensors, f->n, sizeof *f->tensors);
            tv_st_tensor *t = &f->tensors[f->n++];
            memset(t, 0, sizeof *t);
            t->name = name;
            TV_TRY(read_tensor(r, t, section, section_size));
        }
        TV_TRY(next_member(r, '}', &more));
    }
    if (peek(r) >= 0) return bad(r, "text behind the JSON object");
    return TV_OK;
}

static int order_by_data(const void *a, const void *b) {
    const tv_st_tensor *x = a, *y = b;
    if (x->data != y->data) return x->data < y->data ? -1 : 1;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1; /* empty tensors share the offset of a neighbour */
    return strcmp(x->name, y->name);
}

static int order_by_name(const void *a, const void *b) {
    return strcmp((*(const tv_st_tensor *const *)a)->name, (*(const tv_st_tensor *const *)b)->name);
}

static int order_by_key(const void *a, const void *b) { return strcmp(((const pair *)a)->key, ((const pair *)b)->key); }

/* Sorts, builds the index, and checks what only the whole shows: duplicates, gaps, overlaps, trailing bytes. */
static tv_status check_whole(tv_st_file *f, const unsigned char *section, size_t section_size, tv_err *err) {
    if (f->n) qsort(f->tensors, f->n, sizeof *f->tensors, order_by_data);
    f->by_name = tv_xmalloc(f->n * sizeof *f->by_name);
    for (size_t i = 0; i < f->n; i++) f->by_name[i] = &f->tensors[i];
    if (f->n) qsort(f->by_name, f->n, sizeof *f->by_name, order_by_name);
    for (size_t i = 1; i < f->n; i++)
        if (strcmp(f->by_name[i - 1]->name, f->by_name[i]->name) == 0)
            return TV_FAIL(err, TV_EFORMAT, "%s: duplicate key: tensor \"%.200s\" occurs twice", f->name,
                           f->by_name[i]->name);
    if (f->n_meta) qsort(f->meta, f->n_meta, sizeof *f->meta, order_by_key);
    for (size_t i = 1; i < f->n_meta; i++)
        if (strcmp(f->meta[i - 1].key, f->meta[i].key) == 0)
            return TV_FAIL(err, TV_EFORMAT, "%s: duplicate key \"%.200s\" in __metadata__", f->name, f->meta[i].key);
    const unsigned char *at = section;
    for (size_t i = 0; i < f->n; i++) {
        const tv_st_tensor *t = &f->tensors[i];
        if (t->data != at)
            return TV_FAIL(err, TV_EFORMAT,
                           "%s: tensor \"%.200s\" begins at data byte %zu, %s byte %zu where the one before it ends",
                           f->name, t->name, (size_t)(t->data - section),
                           t->data > at ? "leaving a gap behind" : "overlapping", (size_t)(at - section));
        at = t->data + t->bytes;
    }
    size_t used = (size_t)(at - section);
    if (used != section_size)
        return TV_FAIL(err, TV_EFORMAT, "%s: %zu bytes behind the last tensor's data; such files must end there",
                       f->name, section_size - used);
    return TV_OK;
}

static tv_status parse_into(tv_st_file *f, const unsigned char *data, size_t size, tv_err *err) {
    static const char lfs[] = "version https://git-lfs";
    if (size >= sizeof lfs - 1 && memcmp(data, lfs, sizeof lfs - 1) == 0)
        return TV_FAIL(err, TV_EFORMAT, "%s: a Git-LFS pointer, not the file itself; fetch it with: git lfs pull",
                       f->name);
    if (size < 8)
        return TV_FAIL(err, TV_EFORMAT, "%s: %zu bytes, too short for a safetensors file (incomplete download?)",
                       f->name, size);
    uint64_t length = 0;
    for (int i = 7; i >= 0; i--) length = length << 8 | data[i];
    if (length > MAX_HEADER)
        return TV_FAIL(err, TV_EFORMAT, "%s: header length %" PRIu64 " is above %d: not a safetensors file", f->name,
                       length, MAX_HEADER);
    if (length > size - 8)
        return TV_FAIL(err, TV_EFORMAT,
                       "%s: header length %" PRIu64 " in a file of %zu bytes: truncated (incomplete download?)",
                       f->name, length, size);
    reader r = {data + 8, data + 8, data + 8 + length, f->name, err};
    const unsigned char *section = r.end;
    size_t section_size = size - 8 - (size_t)length;
    TV_TRY(read_header(&r, f, section, section_size));
    return check_whole(f, section, section_size, err);
}

tv_status tv_st_parse(const unsigned char *data, size_t size, const char *name, tv_st_file **out, tv_err *err) {
    *out = NULL;
    tv_st_file *f = tv_xcalloc(1, sizeof *f);
    f->name = tv_xstrdup(name);
    tv_status s = parse_into(f, data, size, err);
    if (s != TV_OK) {
        tv_st_close(f);
        return s;
    }
    *out = f;
    return TV_OK;
}

tv_status tv_st_open(const char *path, tv_st_file **out, tv_err *err) {
    tv_map map;
    *out = NULL;
    TV_TRY(tv_map_open(path, &map, err));
    tv_status s = tv_st_parse(map.data, map.size, path, out, err);
    if (s != TV_OK)
        tv_map_close(&map);
    else
        (*out)->map = map;
    return s;
}

void tv_st_close(tv_st_file *f) {
    if (!f) return;
    for (size_t i = 0; i < f->n; i++) free((char *)(uintptr_t)f->tensors[i].name);
    for (size_t i = 0; i < f->n_meta; i++) {
        free(f->meta[i].key);
        free(f->meta[i].value);
    }
    free(f->tensors);
    free(f->by_name);
    free(f->meta);
    free(f->name);
    tv_map_close(&f->map);
    free(f);
}

/* ---- asking ---- */

const char *tv_st_name(const tv_st_file *f) { return f->name; }

size_t tv_st_count(const tv_st_file *f) { return f->n; }

const tv_st_tensor *tv_st_at(const tv_st_file *f, size_t i) {
    TV_ASSERT(i < f->n);
    return &f->tensors[i];
}

const tv_st_tensor *tv_st_find(const tv_st_file *f, const char *name) {
    size_t low = 0, high = f->n;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        int c = strcmp(f->by_name[mid]->name, name);
        if (c == 0) return f->by_name[mid];
        if (c < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return NULL;
}

const char *tv_st_meta(const tv_st_file *f, const char *key) {
    size_t low = 0, high = f->n_meta;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        int c = strcmp(f->meta[mid].key, key);
        if (c == 0) return f->meta[mid].value;
        if (c < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return NULL;
}

tv_status tv_st_need(const tv_st_file *f, const char *name, tv_dtype dtype, int n_dims, const int64_t *shape,
                     const tv_st_tensor **out, tv_err *err) {
    char want[256], found[256];
    *out = NULL;
    shape_text(want, sizeof want, n_dims, shape);
    const tv_st_tensor *t = tv_st_find(f, name);
    if (!t)
        return TV_FAIL(err, TV_EFORMAT, "%s: no tensor \"%.200s\" (expected %s %s)", f->name, name,
                       tv_dtype_name(dtype), want);
    int same = t->dtype == dtype && t->n_dims == n_dims;
    for (int i = 0; same && i < n_dims; i++) same = shape[i] < 0 || shape[i] == t->shape[i];
    if (!same) {
        shape_text(found, sizeof found, t->n_dims, t->shape);
        return TV_FAIL(err, TV_EFORMAT, "%s: tensor \"%.200s\" is %s %s, expected %s %s", f->name, name,
                       tv_dtype_name(t->dtype), found, tv_dtype_name(dtype), want);
    }
    *out = t;
    return TV_OK;
}

const void *tv_st_aligned(const tv_st_tensor *t, void **copy) {
    *copy = NULL;
    if (!t->bytes || (uintptr_t)t->data % tv_dtype_size(t->dtype) == 0) return t->data;
    *copy = malloc(t->bytes);
    if (*copy) memcpy(*copy, t->data, t->bytes);
    return *copy;
}

/* ---- writing ---- */

/* Writes s as a JSON string; 0 when it is not UTF-8. */
static int put_string(FILE *out, const char *s) {
    const unsigned char *p = (const unsigned char *)s, *end = p + strlen(s);
    fputc('"', out);
    while (p < end) {
        utf8proc_int32_t c;
        utf8proc_ssize_t len = utf8proc_iterate(p, end - p, &c);
        if (len <= 0) return 0;
        if (c == '"' || c == '\\')
            fprintf(out, "\\%c", (int)c);
        else if (c < 0x20)
            fprintf(out, "\\u%04x", (unsigned)c);
        else
            fwrite(p, 1, (size_t)len, out);
        p += len;
    }
    fputc('"', out);
    return 1;
}

/* The 8 length bytes, the JSON and its padding, in fresh memory. NULL when a string is not UTF-8. */
static char *make_header(const tv_st_tensor *tensors, size_t n, const char *const *metadata, size_t *size) {
    char *text = NULL;
    FILE *out = open_memstream(&text, size);
    TV_ASSERT(out);
    int good = 1, first = 1;
    fwrite("\0\0\0\0\0\0\0", 1, 8, out);
    fputc('{', out);
    if (metadata && *metadata) {
        fputs("\"__metadata__\":{", out);
        for (size_t i = 0; metadata[i]; i += 2) {
            if (i) fputc(',', out);
            good &= put_string(out, metadata[i]);
            fputc(':', out);
            good &= put_string(out, metadata[i + 1]);
        }
        fputc('}', out);
        first = 0;
    }
    uint64_t at = 0;
    for (size_t i = 0; i < n; i++) {
        const tv_st_tensor *t = &tensors[i];
        if (!first) fputc(',', out);
        first = 0;
        good &= put_string(out, t->name);
        fprintf(out, ":{\"dtype\":\"%s\",\"shape\":[", tv_dtype_name(t->dtype));
        for (int d = 0; d < t->n_dims; d++) fprintf(out, "%s%" PRId64, d ? "," : "", t->shape[d]);
        fprintf(out, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", at, at + t->bytes);
        at += t->bytes;
    }
    fputc('}', out);
    for (long used = ftell(out); used % ALIGN; used++) fputc(' ', out);
    TV_ASSERT(fclose(out) == 0 && text);
    for (int i = 0; i < 8; i++) text[i] = (char)((uint64_t)(*size - 8) >> (8 * i));
    if (!good) {
        free(text);
        text = NULL;
    }
    return text;
}

static tv_status check_arguments(const char *path, const tv_st_tensor *tensors, size_t n, tv_err *err) {
    const tv_st_tensor **sorted = tv_xmalloc(n * sizeof *sorted);
    tv_status s = TV_OK;
    for (size_t i = 0; i < n && s == TV_OK; i++) {
        int fits;
        sorted[i] = &tensors[i];
        if (tensors[i].n_dims < 0 || tensors[i].n_dims > TV_ST_MAX_DIMS ||
            strcmp(tensors[i].name, "__metadata__") == 0 || shape_bytes(&tensors[i], &fits) != tensors[i].bytes ||
            !fits)
            s = TV_FAIL(err, TV_EARG, "%s: cannot write tensor \"%.200s\": its name, shape or size is wrong", path,
                        tensors[i].name);
    }
    if (s == TV_OK && n) qsort(sorted, n, sizeof *sorted, order_by_name);
    for (size_t i = 1; i < n && s == TV_OK; i++)
        if (strcmp(sorted[i - 1]->name, sorted[i]->name) == 0)
            s = TV_FAIL(err, TV_EARG, "%s: cannot write two tensors named \"%.200s\"", path, sorted[i]->name);
    free(sorted);
    return s;
}

tv_status tv_st_write_pieces(const char *path, const tv_st_tensor *tensors, const tv_st_pieces *pieces, size_t n,
                             const char *const *metadata, tv_err *err) {
    TV_TRY(check_arguments(path, tensors, n, err));
    size_t size;
    char *header = make_header(tensors, n, metadata, &size);
    if (!header) return TV_FAIL(err, TV_EARG, "%s: cannot write a name or metadata that is not UTF-8", path);
    tv_atomic file;
    tv_status s =
        size - 8 > MAX_HEADER ? TV_FAIL(err, TV_EARG, "%s: cannot write a header of %zu bytes", path, size) : TV_OK;
    if (s == TV_OK) s = tv_atomic_open(path, &file, err);
    if (s != TV_OK) {
        free(header);
        return s;
    }
    s = tv_atomic_write(&file, header, size, err);
    free(header);
    for (size_t i = 0; i < n && s == TV_OK; i++) {
        if (!pieces || !pieces[i].piece) {
            s = tv_atomic_write(&file, tensors[i].data, tensors[i].bytes, err);
            continue;
        }
        TV_ASSERT(pieces[i].n && tensors[i].bytes % pieces[i].n == 0);
        for (size_t j = 0; j < pieces[i].n && s == TV_OK; j++)
            s = tv_atomic_write(&file, pieces[i].piece[j], tensors[i].bytes / pieces[i].n, err);
    }
    if (s == TV_OK) return tv_atomic_commit(&file, err);
    tv_atomic_abort(&file);
    return s;
}

tv_status tv_st_write(const char *path, const tv_st_tensor *tensors, size_t n, const char *const *metadata,
                      tv_err *err) {
    return tv_st_write_pieces(path, tensors, NULL, n, metadata, err);
}

size_t tv_st_write_size(const tv_st_tensor *tensors, size_t n, const char *const *metadata) {
    size_t size = 0;
    free(make_header(tensors, n, metadata, &size));
    for (size_t i = 0; i < n; i++) size += tensors[i].bytes;
    return size;
}
