#include "models/unicode.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

size_t tv_utf8_char(const char *text, size_t size, uint32_t *c, size_t *bad) {
    const unsigned char *s = (const unsigned char *)text;
    size_t n = s[0] < 0x80                   ? 1
               : s[0] >= 0xC2 && s[0] < 0xE0 ? 2
               : (s[0] & 0xF0) == 0xE0       ? 3
               : s[0] >= 0xF0 && s[0] < 0xF5 ? 4
                                             : 0;
    uint32_t value = n == 1 ? s[0] : n == 2 ? s[0] & 0x1F : n == 3 ? s[0] & 0x0F : s[0] & 0x07;
    for (size_t i = 1; i < n; i++) {
        /* The second byte's range excludes overlong forms, surrogates and values above U+10FFFF (Unicode, table 3-7).
         */
        unsigned low = i > 1 ? 0x80 : s[0] == 0xE0 ? 0xA0 : s[0] == 0xF0 ? 0x90 : 0x80;
        unsigned high = i > 1 ? 0xBF : s[0] == 0xED ? 0x9F : s[0] == 0xF4 ? 0x8F : 0xBF;
        if (i >= size || s[i] < low || s[i] > high) {
            if (bad) *bad = i;
            return 0;
        }
        value = value << 6 | (s[i] & 0x3F);
    }
    if (n == 0 && bad) *bad = 1;
    if (n && c) *c = value;
    return n;
}

size_t tv_utf8_check(const char *text, size_t size) {
    for (size_t i = 0; i < size;) {
        if ((unsigned char)text[i] < 0x80) {
            i++;
            continue;
        }
        size_t n = tv_utf8_char(text + i, size - i, NULL, NULL);
        if (!n) return i;
        i += n;
    }
    return size;
}

size_t tv_utf8_tail(const char *text, size_t size) {
    for (size_t n = 1; n <= 3 && n <= size; n++) {
        const char *s = text + size - n;
        if (((unsigned char)*s & 0xC0) == 0x80) continue;
        size_t bad = 0;
        return !tv_utf8_char(s, n, NULL, &bad) && bad == n && (unsigned char)*s >= 0xC2 && (unsigned char)*s < 0xF5 ? n
                                                                                                                    : 0;
    }
    return 0;
}

size_t tv_utf8_put(uint32_t c, char *out) {
    return (size_t)utf8proc_encode_char((utf8proc_int32_t)c, (utf8proc_uint8_t *)out);
}

/* A decomposed character with its combining class in the top byte: one integer to sort by. */
static int compare_class(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Canonical order of chars[0..n): every run of nonzero combining class, stably by class. utf8proc's own decomposition
 * does this by exchanging neighbours, which is quadratic in the length of a run; scratch is [n]. */
static void order_marks(int32_t *chars, size_t n, uint64_t *scratch) {
    for (size_t i = 0; i < n;) {
        int last = utf8proc_get_property(chars[i])->combining_class, sorted = 1;
        size_t end = i + 1;
        if (last) {
            for (; end < n; end++) {
                int class = utf8proc_get_property(chars[end])->combining_class;
                if (!class) break;
                sorted &= last <= class;
                last = class;
            }
            if (!sorted) {
                /* class, place in the run, character: equal classes keep their order (a run is shorter than 2^32) */
                uint64_t *keys = scratch;
                for (size_t k = i; k < end; k++)
                    keys[k - i] = (uint64_t)utf8proc_get_property(chars[k])->combining_class << 32 | (uint64_t)(k - i);
                qsort(keys, end - i, sizeof *keys, compare_class);
                for (size_t k = 0; k < end - i; k++) keys[k] = (uint32_t)chars[i + (uint32_t)keys[k]];
                for (size_t k = 0; k < end - i; k++) chars[i + k] = (int32_t)keys[k];
            }
        }
        i = end;
    }
}

tv_status tv_nfc(const char *text, size_t size, char **out, size_t *out_size, tv_err *err) {
    *out = NULL;
    *out_size = size;
    size_t ascii = 0;
    while (ascii < size && (unsigned char)text[ascii] < 0x80) ascii++;
    if (ascii == size) return TV_OK;
    /* A character decomposes into at most four (U+1F82 and the like), and one of b bytes never into more than 2b. */
    size_t capacity = 2 * size + 4, n = 0;
    int32_t *chars = malloc((capacity + 1) * sizeof *chars);
    uint64_t *scratch = malloc(capacity * sizeof *scratch);
    char *bytes = malloc(4 * capacity + 1);
    if (!chars || !scratch || !bytes) {
        free(chars), free(scratch), free(bytes);
        return TV_FAIL(err, TV_ENOMEM, "no memory to normalize %zu bytes of text", size);
    }
    for (size_t i = 0; i < size;) {
        uint32_t c = 0;
        size_t used = tv_utf8_char(text + i, size - i, &c, NULL);
        TV_ASSERT(used);
        i += used;
        if (c < 0x80) {
            chars[n++] = (int32_t)c;
            continue;
        }
        int boundary = 0;
        utf8proc_ssize_t got = utf8proc_decompose_char((int32_t)c, chars + n, (utf8proc_ssize_t)(capacity - n),
                                                       UTF8PROC_STABLE | UTF8PROC_DECOMPOSE, &boundary);
        TV_ASSERT(got > 0 && n + (size_t)got <= capacity);
        n += (size_t)got;
    }
    order_marks(chars, n, scratch);
    utf8proc_ssize_t composed =
        utf8proc_normalize_utf32(chars, (utf8proc_ssize_t)n, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    TV_ASSERT(composed >= 0);
    size_t written = 0;
    for (size_t i = 0; i < (size_t)composed; i++) written += tv_utf8_put((uint32_t)chars[i], bytes + written);
    free(chars), free(scratch);
    bytes[written] = 0;
    *out = bytes;
    *out_size = written;
    return TV_OK;
}

int tv_is_white_space(uint32_t c) {
    return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
           c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

int tv_is_word(uint32_t c) {
    switch (utf8proc_category((int32_t)c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return 1;
    default:
        /* joiners, and the circled and squared letters that are alphabetic symbols */
        return c == 0x200C || c == 0x200D || (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
               (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
    }
}
