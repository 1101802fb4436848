/* safetensors files: what the reference implementation accepts is read, and everything else is refused by name. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "tests/check.h"
#include "traces/safetensors.h"

/* A file in memory: header length, header text, data_bytes bytes 0, 1, 2, ... Exact allocation, so that a sanitizer
 * sees any read behind it. */
static unsigned char *make(const char *header, size_t data_bytes, size_t *size) {
    size_t n = strlen(header);
    unsigned char *p = tv_xmalloc(8 + n + data_bytes);
    for (int i = 0; i < 8; i++) p[i] = (unsigned char)((uint64_t)n >> (8 * i));
    memcpy(p + 8, header, n);
    for (size_t i = 0; i < data_bytes; i++) p[8 + n + i] = (unsigned char)i;
    *size = 8 + n + data_bytes;
    return p;
}

static tv_status parse(const char *header, size_t data_bytes, tv_err *err) {
    size_t size;
    unsigned char *p = make(header, data_bytes, &size);
    tv_st_file *f = NULL;
    tv_status s = tv_st_parse(p, size, "x.safetensors", &f, err);
    CHECK((s == TV_OK) == (f != NULL));
    CHECK(s == TV_OK || strstr(err->message, "x.safetensors"));
    tv_st_close(f);
    free(p);
    return s;
}

/* One tensor "w" with the given dtype, shape and offsets as written. */
static tv_status parse_one(const char *dtype, const char *shape, const char *offsets, size_t data_bytes, tv_err *err) {
    char *h = tv_xprintf("{\"w\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":%s}}", dtype, shape, offsets);
    tv_status s = parse(h, data_bytes, err);
    free(h);
    return s;
}

static tv_status parse_raw(const void *bytes, size_t size, tv_err *err) {
    tv_st_file *f = NULL;
    unsigned char *p = tv_xmalloc(size); /* exact, for the sanitizer */
    memcpy(p, bytes, size);
    tv_status s = tv_st_parse(p, size, "x.safetensors", &f, err);
    tv_st_close(f);
    free(p);
    return s;
}

/* A length near 2^64 must not wrap in "length + 8", nor be believed. */
static void test_header_length_overflow(void) {
    tv_err err = {0};
    for (unsigned low = 0xf8; low <= 0xff; low++) {
        unsigned char p[16] = {(unsigned char)low, 255, 255, 255, 255, 255, 255, 255, '{', '}'};
        CHECK_FAILS(parse_raw(p, sizeof p, &err), TV_EFORMAT, &err, "header length");
    }
    unsigned char limit[8] = {0x01, 0xe1, 0xf5, 0x05}; /* 100,000,001 */
    CHECK_FAILS(parse_raw(limit, 8, &err), TV_EFORMAT, &err, "above 100000000");
    limit[0] = 0; /* 100,000,000: allowed, but not there */
    CHECK_FAILS(parse_raw(limit, 8, &err), TV_EFORMAT, &err, "truncated");
}

/* Files that are no such file: tiny ones, a folder, a Git-LFS pointer, nothing. Each is named, with the way out. */
static void test_not_a_safetensors_file(void) {
    tv_err err = {0};
    tv_st_file *f;
    for (size_t n = 0; n < 8; n++) CHECK_FAILS(parse_raw("\2\0\0\0\0\0\0\0", n, &err), TV_EFORMAT, &err, "too short");
    CHECK_FAILS(parse_raw("\x3c\0\0\0\0\0\0\0", 8, &err), TV_EFORMAT, &err, "truncated");
    CHECK_FAILS(parse_raw("\0\0\0\0\0\0\0\0", 8, &err), TV_EFORMAT, &err, "header ends");
    CHECK_FAILS(tv_st_open(tv_test_dir(), &f, &err), TV_EIO, &err, "a folder");
    CHECK_FAILS(tv_st_open("/nonexistent.safetensors", &f, &err), TV_EIO, &err, "/nonexistent.safetensors");
    char *path = tv_path_join(tv_test_dir(), "model.safetensors");
    const char *pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 3\n";
    CHECK_OK(tv_file_write(path, pointer, strlen(pointer), &err), &err);
    CHECK_FAILS(tv_st_open(path, &f, &err), TV_EFORMAT, &err, "Git-LFS pointer");
    CHECK_OK(tv_file_write(path, "", 0, &err), &err);
    CHECK_FAILS(tv_st_open(path, &f, &err), TV_EFORMAT, &err, "0 bytes");
    free(path);
}

/* Padding on either side of the header is legal and occurs. */
static void test_white_space_padding(void) {
    tv_err err = {0};
    CHECK_OK(parse("{}\x0d\x20\x09\x0a", 0, &err), &err);
    CHECK_OK(parse("\x09\x0a{}\x0d\x20", 0, &err), &err);
    CHECK_OK(
        parse(" { \"w\" : { \"dtype\" : \"I8\" , \"shape\" : [ 2 , 1 ] , \"data_offsets\" : [ 0 , 2 ] } } ", 2, &err),
        &err);
    CHECK_FAILS(parse("{}\x0c", 0, &err), TV_EFORMAT, &err, "behind the JSON");
    CHECK_FAILS(parse("{} {}", 0, &err), TV_EFORMAT, &err, "behind the JSON");
}

/* Last-one-wins would load other weights than the ones another program loads. */
static void test_duplicates(void) {
    tv_err err = {0};
    CHECK_FAILS(parse("{\"model.norm.weight\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                      "\"model.norm.weight\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
                      2, &err),
                TV_EFORMAT, &err, "duplicate key: tensor \"model.norm.weight\"");
    CHECK_FAILS(parse("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                      "\"\\u0061\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
                      2, &err),
                TV_EFORMAT, &err, "duplicate key: tensor \"a\"");
    CHECK_FAILS(parse("{\"w\":{\"dtype\":\"U8\",\"shape\":[1],\"dtype\":\"I8\",\"data_offsets\":[0,1]}}", 1, &err),
                TV_EFORMAT, &err, "duplicate key \"dtype\"");
    CHECK_FAILS(parse("{\"__metadata__\":{\"a\":\"1\",\"b\":\"2\",\"a\":\"1\"}}", 0, &err), TV_EFORMAT, &err,
                "duplicate key \"a\"");
    CHECK_FAILS(parse("{\"__metadata__\":{},\"__metadata__\":{}}", 0, &err), TV_EFORMAT, &err,
                "duplicate key \"__metadata__\"");
}

static void test_offsets(void) {
    tv_err err = {0};
    CHECK_OK(parse_one("U8", "[16]", "[0,16]", 16, &err), &err);
    CHECK_FAILS(parse_one("U8", "[17]", "[-1,16]", 16, &err), TV_EFORMAT, &err, "negative");
    CHECK_FAILS(parse_one("U8", "[16]", "[16,0]", 16, &err), TV_EFORMAT, &err, "reversed");
    CHECK_FAILS(parse_one("U8", "[16]", "[0.5,16]", 16, &err), TV_EFORMAT, &err, "fraction");
    CHECK_FAILS(parse_one("U8", "[16]", "[0,1.6e1]", 16, &err), TV_EFORMAT, &err, "fraction");
    CHECK_FAILS(parse_one("U8", "[16]", "[0,16E0]", 16, &err), TV_EFORMAT, &err, "exponent");
    CHECK_FAILS(parse_one("U8", "[16]", "[0]", 16, &err), TV_EFORMAT, &err, "exactly two");
    CHECK_FAILS(parse_one("U8", "[16]", "[]", 16, &err), TV_EFORMAT, &err, "whole numbers");
    CHECK_FAILS(parse_one("U8", "[16]", "[0,16,16]", 16, &err), TV_EFORMAT, &err, "exactly two");
    CHECK_FAILS(parse_one("U8", "[16]", "\"0\"", 16, &err), TV_EFORMAT, &err, "'[' is expected");
    CHECK_FAILS(parse_one("U8", "[16]", "[\"0\",16]", 16, &err), TV_EFORMAT, &err, "whole numbers");
    CHECK_FAILS(parse_one("U8", "[16]", "[00,16]", 16, &err), TV_EFORMAT, &err, "leading zero");
    CHECK_FAILS(parse_one("U8", "[16]", "[0,18446744073709551616]", 16, &err), TV_EFORMAT, &err, "64 bits");
    CHECK_FAILS(parse_one("U8", "[16]", "[18446744073709551600,18446744073709551615]", 16, &err), TV_EFORMAT, &err,
                "truncated");
    CHECK_FAILS(parse_one("U8", "[16]", "[0,16]", 15, &err), TV_EFORMAT, &err, "truncated");
    CHECK_FAILS(parse_one("U8", "[15]", "[0,16]", 16, &err), TV_EFORMAT, &err,
                "U8 [15] needs 15 bytes and data_offsets give 16");
    CHECK_FAILS(parse_one("F32", "[4]", "[0,8]", 8, &err), TV_EFORMAT, &err, "needs 16 bytes");
}

/* Stray bytes, gaps and overlaps: an error, as in the reference implementation. */
static void test_every_byte_belongs_to_one_tensor(void) {
    tv_err err = {0};
    CHECK_FAILS(parse_one("U8", "[12]", "[0,12]", 16, &err), TV_EFORMAT, &err, "4 bytes behind the last tensor");
    CHECK_FAILS(parse("{}", 4, &err), TV_EFORMAT, &err, "4 bytes behind");
    CHECK_FAILS(parse_one("U8", "[12]", "[4,16]", 16, &err), TV_EFORMAT, &err, "gap");
    CHECK_FAILS(parse("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
                      "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[3,7]}}",
                      7, &err),
                TV_EFORMAT, &err, "tensor \"b\" begins at data byte 3, overlapping byte 4");
    CHECK_FAILS(parse("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
                      "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}",
                      4, &err),
                TV_EFORMAT, &err, "overlapping");
}

/* Integers beyond 2^53 are exact, and products do not wrap. */
static void test_shape_overflow(void) {
    tv_err err = {0};
    CHECK_FAILS(parse_one("U8", "[2,18446744073709551614]", "[0,16]", 16, &err), TV_EFORMAT, &err, "too large");
    CHECK_FAILS(parse_one("U8", "[2,9223372036854775807]", "[0,16]", 16, &err), TV_EFORMAT, &err,
                "needs 18446744073709551614");
    CHECK_FAILS(parse_one("U8", "[4,9223372036854775807]", "[0,16]", 16, &err), TV_EFORMAT, &err, "overflows");
    CHECK_FAILS(parse_one("F32", "[8589934592,2147483648]", "[0,16]", 16, &err), TV_EFORMAT, &err, "overflows");
    CHECK_FAILS(parse_one("U8", "[8589934592,2147483648]", "[0,0]", 0, &err), TV_EFORMAT, &err, "overflows");
    CHECK_FAILS(parse_one("U8", "[9007199254740993]", "[0,0]", 0, &err), TV_EFORMAT, &err,
                "needs 9007199254740993 bytes");
    CHECK_FAILS(parse_one("U8", "[-1]", "[0,1]", 1, &err), TV_EFORMAT, &err, "negative number in shape");
    CHECK_FAILS(parse_one("U8", "[1.0]", "[0,1]", 1, &err), TV_EFORMAT, &err, "fraction");
    CHECK_FAILS(parse_one("U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]", 1, &err), TV_EUNSUPPORTED, &err,
                "more than 8 dimensions");
    CHECK_OK(parse_one("U8", "[1,1,1,1,1,1,1,1]", "[0,1]", 1, &err), &err);
}

/* Legal and rare: empty tensors (also at a neighbour's offset) and scalars. */
static void test_empty_tensors_and_scalars(void) {
    tv_err err = {0};
    CHECK_OK(parse_one("F32", "[2,0]", "[0,0]", 0, &err), &err);
    CHECK_OK(parse_one("I32", "[]", "[0,4]", 4, &err), &err);
    const char *h = "{\"z1\":{\"dtype\":\"F32\",\"shape\":[2,0],\"data_offsets\":[4,4]},"
                    "\"b\":{\"dtype\":\"I32\",\"shape\":[],\"data_offsets\":[4,8]},"
                    "\"a\":{\"dtype\":\"I32\",\"shape\":[],\"data_offsets\":[0,4]},"
                    "\"z0\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]},"
                    "\"z2\":{\"dtype\":\"F32\",\"shape\":[0,7],\"data_offsets\":[8,8]}}";
    CHECK_OK(parse(h, 8, &err), &err);
    size_t size;
    unsigned char *p = make(h, 8, &size);
    tv_st_file *f;
    if (CHECK_OK(tv_st_parse(p, size, "x", &f, &err), &err)) {
        static const char *const order[] = {"z0", "a", "z1", "b", "z2"};
        CHECK_INT(tv_st_count(f), 5);
        for (size_t i = 0; i < 5; i++) CHECK_STR(tv_st_at(f, i)->name, order[i]);
        CHECK_INT(tv_st_find(f, "b")->n_dims, 0);
        CHECK_INT(tv_st_find(f, "b")->data[0], 4);
        tv_st_close(f);
    }
    free(p);
    CHECK_FAILS(parse("{\"a\":{\"dtype\":\"I32\",\"shape\":[],\"data_offsets\":[0,4]},"
                      "\"z\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[2,2]}}",
                      4, &err),
                TV_EFORMAT, &err, "overlapping");
}

static void test_metadata(void) {
    tv_err err = {0};
    CHECK_OK(parse("{\"__metadata__\":{}}", 0, &err), &err);
    CHECK_FAILS(parse("{\"__metadata__\":{\"n\":1}}", 0, &err), TV_EFORMAT, &err, "__metadata__ \"n\" is not a string");
    CHECK_FAILS(parse("{\"__metadata__\":{\"n\":null}}", 0, &err), TV_EFORMAT, &err, "is not a string");
    CHECK_FAILS(parse("{\"__metadata__\":[]}", 0, &err), TV_EFORMAT, &err, "object of strings");
    size_t size;
    unsigned char *p =
        make("{\"w\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},"
             "\"__metadata__\":{\"z\":\"\",\"format\":\"a\\\"\\\\\\/\\u00e9\\ud83d\\ude00\\n\",\"b\":\"\xc3\xa9\"}}",
             0, &size);
    tv_st_file *f;
    if (CHECK_OK(tv_st_parse(p, size, "x", &f, &err), &err)) {
        CHECK_INT(tv_st_count(f), 1);
        CHECK(!tv_st_find(f, "__metadata__"));
        CHECK(!tv_st_find(f, "format"));
        CHECK_STR(tv_st_meta(f, "format"), "a\"\\/\xc3\xa9\xf0\x9f\x98\x80\n");
        CHECK_STR(tv_st_meta(f, "b"), "\xc3\xa9");
        CHECK_STR(tv_st_meta(f, "z"), "");
        CHECK(!tv_st_meta(f, "w"));
        tv_st_close(f);
    }
    free(p);
}

static void test_strings(void) {
    tv_err err = {0};
    static const struct {
        const char *text, *part;
    } rows[] = {
        {"\\ud83d", "surrogate"},
        {"\\ude00", "surrogate"},
        {"\\ud83d\\u0041", "surrogate"},
        {"\\u00g0", "hexadecimal"},
        {"\\u12", "hexadecimal"},
        {"\\u0000", "NUL"},
        {"\\x", "unknown escape"},
        {"a\nb", "control character 0x0a"},
        {"\xff", "not UTF-8"},
        {"\xc3", "not UTF-8"},
        {"\xc0\x80", "not UTF-8"},
        {"\xed\xa0\x80", "not UTF-8"},
        {"\xf4\x90\x80\x80", "not UTF-8"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *h = tv_xprintf("{\"__metadata__\":{\"k\":\"%s\"}}", rows[i].text);
        CHECK_FAILS(parse(h, 0, &err), TV_EFORMAT, &err, rows[i].part);
        free(h);
    }
    static const char *const cut[] = {"{",
                                      "{\"",
                                      "{\"\\",
                                      "{\"\\u",
                                      "{\"w\"",
                                      "{\"w\":",
                                      "{\"w\":{",
                                      "{\"w\":1}",
                                      "{\"w\":{}}",
                                      "{\"w\":[]}",
                                      "{\"w\":{},}",
                                      "{,}",
                                      "[]",
                                      "",
                                      "nul",
                                      "{\"w\":{\"dtype\":\"U8\",}}",
                                      "{\"w\":{\"dtype\":1}}",
                                      "{\"w\":{\"a\":1}}"};
    for (size_t i = 0; i < sizeof cut / sizeof *cut; i++) CHECK_FAILS(parse(cut[i], 0, &err), TV_EFORMAT, &err, NULL);
    CHECK_FAILS(parse("{\"w\":{\"shape\":[0],\"data_offsets\":[0,0]}}", 0, &err), TV_EFORMAT, &err, "no \"dtype\"");
    CHECK_FAILS(parse("{\"w\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0],\"x\":1}}", 0, &err), TV_EFORMAT,
                &err, "unknown key \"x\"");
}

/* Every dtype in the format's spelling; the others are named. */
static void test_dtypes(void) {
    tv_err err = {0};
    for (tv_dtype d = TV_BF16; d <= TV_F8_E5M2; d++) {
        char *offsets = tv_xprintf("[0,%zu]", 3 * tv_dtype_size(d));
        CHECK_OK(parse_one(tv_dtype_name(d), "[3]", offsets, 3 * tv_dtype_size(d), &err), &err);
        free(offsets);
    }
    CHECK_FAILS(parse_one("F4", "[2]", "[0,1]", 1, &err), TV_EUNSUPPORTED, &err, "tensor \"w\" has dtype \"F4\"");
    CHECK_FAILS(parse_one("bf16", "[1]", "[0,2]", 2, &err), TV_EUNSUPPORTED, &err, "\"bf16\"");
}

/* Older writers do not pad the header, so data lies at odd addresses; nothing may read it as its own type in place. */
static void test_misaligned_data(void) {
    tv_err err = {0};
    for (int pad = 0; pad < 8; pad++) {
        char *h = tv_xprintf("{\"a\":{\"dtype\":\"F64\",\"shape\":[3],\"data_offsets\":[0,24]}}%*s", pad, "");
        size_t size;
        unsigned char *p = make(h, 24, &size);
        tv_st_file *f;
        if (CHECK_OK(tv_st_parse(p, size, "x", &f, &err), &err)) {
            void *copy;
            const tv_st_tensor *t = tv_st_find(f, "a");
            const double *x = tv_st_aligned(t, &copy);
            CHECK((uintptr_t)x % 8 == 0);
            CHECK((copy != NULL) == ((uintptr_t)t->data % 8 != 0));
            CHECK_BYTES(x, t->data, 24);
            double sum = x[0] + x[1] + x[2]; /* a misaligned load stops under the sanitizer */
            CHECK(sum > 0);
            free(copy);
            tv_st_close(f);
        }
        free(p), free(h);
    }
}

static void test_need_says_what_it_wanted(void) {
    tv_err err = {0};
    size_t size;
    unsigned char *p = make("{\"w\":{\"dtype\":\"U8\",\"shape\":[2,3],\"data_offsets\":[0,6]}}", 6, &size);
    tv_st_file *f;
    const tv_st_tensor *t;
    if (CHECK_OK(tv_st_parse(p, size, "x", &f, &err), &err)) {
        CHECK_OK(tv_st_need(f, "w", TV_U8, 2, (int64_t[]){2, 3}, &t, &err), &err);
        CHECK_OK(tv_st_need(f, "w", TV_U8, 2, (int64_t[]){-1, 3}, &t, &err), &err);
        CHECK_INT(t->bytes, 6);
        CHECK_FAILS(tv_st_need(f, "w", TV_BF16, 2, (int64_t[]){2, 3}, &t, &err), TV_EFORMAT, &err,
                    "is U8 [2, 3], expected BF16 [2, 3]");
        CHECK_FAILS(tv_st_need(f, "w", TV_U8, 2, (int64_t[]){3, -1}, &t, &err), TV_EFORMAT, &err,
                    "expected U8 [3, any]");
        CHECK_FAILS(tv_st_need(f, "w", TV_U8, 1, (int64_t[]){6}, &t, &err), TV_EFORMAT, &err, "expected U8 [6]");
        CHECK_FAILS(tv_st_need(f, "v", TV_U8, 1, (int64_t[]){6}, &t, &err), TV_EFORMAT, &err,
                    "no tensor \"v\" (expected U8 [6])");
        CHECK(!t);
        tv_st_close(f);
    }
    free(p);
}

/* Written files read back, start their data at a multiple of 64, and are equal byte for byte when the input is. */
static void test_write(void) {
    tv_err err = {0};
    double f64[3] = {1, 2, 3};
    uint16_t u16[5] = {9, 8, 7, 6, 5};
    int32_t scalar = 7;
    tv_st_tensor t[] = {{"z.\"quoted\"\\\t\xc3\xa9", TV_F64, 1, {3}, (const unsigned char *)f64, 24},
                        {"empty", TV_F32, 2, {0, 4}, NULL, 0},
                        {"a", TV_U16, 2, {5, 1}, (const unsigned char *)u16, 10},
                        {"s", TV_I32, 0, {0}, (const unsigned char *)&scalar, 4}};
    const char *meta[] = {"format", "test/1", "text", "\"\\\n\x01\xe4\xbd\xa0", NULL};
    char *path = tv_path_join(tv_test_dir(), "f.safetensors"), *again = tv_path_join(tv_test_dir(), "g.safetensors");
    CHECK_OK(tv_st_write(path, t, 4, meta, &err), &err);
    const void *halves[] = {u16, u16 + 1, u16 + 2, u16 + 3, u16 + 4};
    const tv_st_pieces pieces[4] = {{NULL, 0}, {NULL, 0}, {halves, 5}, {NULL, 0}};
    CHECK_OK(tv_st_write_pieces(again, t, pieces, 4, meta, &err), &err);
    tv_map x, y;
    CHECK_OK(tv_map_open(path, &x, &err), &err);
    CHECK_OK(tv_map_open(again, &y, &err), &err);
    CHECK(x.size == y.size && CHECK_BYTES(x.data, y.data, x.size));
    size_t estimate = tv_st_write_size(t, 4, meta);
    CHECK(estimate >= x.size && estimate <= x.size + 65536);
    tv_map_close(&x), tv_map_close(&y);
    tv_st_file *f;
    if (CHECK_OK(tv_st_open(path, &f, &err), &err)) {
        CHECK_INT(tv_st_count(f), 4);
        for (size_t i = 0; i < 4; i++) {
            const tv_st_tensor *r = tv_st_find(f, t[i].name);
            if (!CHECK(r)) continue;
            CHECK(r->dtype == t[i].dtype && r->n_dims == t[i].n_dims && r->bytes == t[i].bytes);
            if (r->bytes) CHECK_BYTES(r->data, t[i].data, r->bytes);
        }
        CHECK_INT((uintptr_t)tv_st_at(f, 0)->data % 64, 0);
        CHECK_STR(tv_st_meta(f, "text"), meta[3]);
        tv_st_close(f);
    }
    CHECK_OK(tv_st_write(path, NULL, 0, NULL, &err), &err);
    CHECK_OK(tv_st_open(path, &f, &err), &err);
    CHECK_INT(tv_st_count(f), 0);
    tv_st_close(f);
    free(path), free(again);
}

static void test_write_refuses(void) {
    tv_err err = {0};
    unsigned char b[4] = {0};
    char *path = tv_path_join(tv_test_dir(), "f.safetensors");
    tv_st_tensor two[2] = {{"a", TV_U8, 1, {4}, b, 4}, {"a", TV_U8, 1, {4}, b, 4}};
    CHECK_FAILS(tv_st_write(path, two, 2, NULL, &err), TV_EARG, &err, "two tensors named \"a\"");
    two[0].bytes = 3;
    CHECK_FAILS(tv_st_write(path, two, 1, NULL, &err), TV_EARG, &err, "tensor \"a\"");
    two[1].name = "\xff";
    CHECK_FAILS(tv_st_write(path, two + 1, 1, NULL, &err), TV_EARG, &err, "UTF-8");
    CHECK_FAILS(tv_st_write(path, NULL, 0, (const char *[]){"k", "\xc3", NULL}, &err), TV_EARG, &err, "UTF-8");
    CHECK(!tv_path_exists(path));
    CHECK_FAILS(tv_st_write("/nonexistent/f", NULL, 0, NULL, &err), TV_EIO, &err, "/nonexistent/f");
    free(path);
}

/* The bundled checkpoint and a file written by another program read as they should. */
static void test_real_files(void) {
    tv_err err = {0};
    tv_st_file *f;
    char *path = tv_path_join(tv_bundled_model(), "model.safetensors");
    if (CHECK_OK(tv_st_open(path, &f, &err), &err)) {
        CHECK(tv_st_find(f, "model.embed_tokens.weight"));
        CHECK(!tv_st_find(f, "model.embed_tokens.weigh"));
        for (size_t i = 0; i < tv_st_count(f); i++) CHECK(tv_st_find(f, tv_st_at(f, i)->name) == tv_st_at(f, i));
        tv_st_close(f);
    }
    free(path);
    const tv_st_tensor *t;
    if (CHECK_OK(tv_st_open(tv_golden("traces/g1_tiny.safetensors"), &f, &err), &err)) {
        CHECK_INT(tv_st_count(f), 10);
        CHECK_OK(tv_st_need(f, "ids_pi_mu", TV_I32, 4, (int64_t[]){2, 4, 4, 3}, &t, &err), &err);
        tv_st_close(f);
    }
}

/* No prefix and no single changed byte of a good file makes the reader misbehave (the sanitizers watch). */
static void test_cut_and_flipped(void) {
    tv_err err = {0};
    size_t size;
    unsigned char *p =
        make("{\"__metadata__\":{\"a\":\"\\u00e9\"},\"w\":{\"dtype\":\"U8\",\"shape\":[2,3],\"data_offsets\":[0,6]}}",
             6, &size);
    for (size_t n = 0; n < size; n++) CHECK_FAILS(parse_raw(p, n, &err), TV_EFORMAT, &err, NULL);
    for (size_t i = 0; i < size; i++)
        for (int bit = 0; bit < 8; bit++) {
            p[i] ^= (unsigned char)(1 << bit);
            if (parse_raw(p, size, &err) != TV_OK) CHECK(err.message[0]);
            tv_err_clear(&err);
            p[i] ^= (unsigned char)(1 << bit);
        }
    free(p);
}

static const tv_test tests[] = {
    {"header_length_overflow", test_header_length_overflow},
    {"not_a_safetensors_file", test_not_a_safetensors_file},
    {"white_space_padding", test_white_space_padding},
    {"duplicates", test_duplicates},
    {"offsets", test_offsets},
    {"every_byte_belongs_to_one_tensor", test_every_byte_belongs_to_one_tensor},
    {"shape_overflow", test_shape_overflow},
    {"empty_tensors_and_scalars", test_empty_tensors_and_scalars},
    {"metadata", test_metadata},
    {"strings", test_strings},
    {"dtypes", test_dtypes},
    {"misaligned_data", test_misaligned_data},
    {"need_says_what_it_wanted", test_need_says_what_it_wanted},
    {"write", test_write},
    {"write_refuses", test_write_refuses},
    {"real_files", test_real_files},
    {"cut_and_flipped", test_cut_and_flipped},
};
TV_TEST_MAIN(tests)
