/* JSON strictness and files that are all there or not there. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <signal.h>

#include "base/file.h"
#include "base/json.h"
#include "tests/check.h"

static tv_status parse(const char *text, size_t size, tv_err *err) {
    cJSON *json = NULL;
    tv_status s = tv_json_parse(text, size, "x.json", &json, err);
    cJSON_Delete(json);
    return s;
}
#define PARSE(text, err) parse(text, sizeof text - 1, err)

static void test_json_strict(void) {
    tv_err err = {0};
    CHECK_OK(PARSE(" {\"a\": [1, {\"a\": 2}]} \r\n", &err), &err);
    CHECK_FAILS(PARSE("{\"a\": 1, \"b\": 2, \"a\": 3}", &err), TV_EFORMAT, &err, "duplicate key \"a\"");
    CHECK_FAILS(PARSE("[{\"x\": {\"k\": 1, \"k\": 1}}]", &err), TV_EFORMAT, &err, "duplicate key \"k\"");
    CHECK_FAILS(PARSE("{\"a\": 1} x", &err), TV_EFORMAT, &err, "after the JSON value");
    CHECK_FAILS(PARSE("{\"a\": 1", &err), TV_EFORMAT, &err, "not valid JSON");
    CHECK_FAILS(PARSE("{\"a\": 1}\0", &err), TV_EFORMAT, &err, "NUL");
    CHECK_FAILS(PARSE("", &err), TV_EFORMAT, &err, "not valid JSON");
    char deep[400];
    memset(deep, '[', 200), memset(deep + 200, ']', 200);
    CHECK_FAILS(parse(deep, 400, &err), TV_EFORMAT, &err, "deeper");
}

/* cases L09: a number that does not exist is null with a reason; the text never holds NaN, inf or -9999 */
static void test_json_has_no_nan(void) {
    cJSON *o = cJSON_CreateObject();
    tv_json_add_number(o, "nan", NAN);
    tv_json_add_number(o, "inf", -INFINITY);
    tv_json_add_number(o, "x", 0.1);
    tv_json_add_null(o, "se", "one trajectory");
    char *text = tv_json_text(o);
    CHECK(!strstr(text, "\tnan") && !strstr(text, "\t-inf") && !strstr(text, "9999"));
    tv_err err = {0};
    CHECK_OK(parse(text, strlen(text), &err), &err);
    CHECK(cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(o, "nan")) &&
          cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(o, "inf")));
    CHECK_STR(cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(o, "se_reason")), "one trajectory");
    free(text);
    cJSON_Delete(o);
}

/* A report read back gives the very numbers that were measured: no digit lost, none that is not needed. */
static void test_json_numbers_round_trip(void) {
    static const struct {
        double value;
        const char *text;
    } cases[] = {{0.1, "0.1"},
                 {0.1 + 0.2, "0.30000000000000004"},
                 {1.0 / 3, "0.3333333333333333"},
                 {5e-324, "4.94065645841247e-324"},
                 {1.7976931348623157e308, "1.7976931348623157e+308"},
                 {9007199254740992, "9007199254740992"},
                 {9007199254740991, "9007199254740991"},
                 {-0.0, "-0"},
                 {128, "128"},
                 {-2147483649.0, "-2147483649"},
                 {NAN, "null"},
                 {INFINITY, "null"},
                 {-INFINITY, "null"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cJSON *number = cJSON_CreateNumber(cases[i].value);
        char *text = tv_json_line(number);
        CHECK_STR(text, cases[i].text);
        free(text);
        cJSON_Delete(number);
    }
    tv_rng rng = {7};
    cJSON *list = cJSON_CreateArray(), *read = NULL;
    for (int i = 0; i < 2000; i++) {
        double v;
        do { /* any finite double */
            uint64_t bits = tv_rng_next(&rng);
            memcpy(&v, &bits, sizeof v);
        } while (!isfinite(v));
        cJSON *pair = cJSON_CreateObject();
        cJSON_AddNumberToObject(pair, "v", v);
        cJSON_AddItemToArray(list, pair);
    }
    char *path = tv_path_join(tv_test_dir(), "numbers.json");
    tv_err err = {0};
    CHECK_OK(tv_json_save(list, path, &err), &err);
    CHECK_OK(tv_json_load(path, 1 << 24, &read, &err), &err);
    int differ = 0;
    for (const cJSON *x = list->child, *y = read->child; x; x = x->next, y = y->next)
        differ += memcmp(&x->child->valuedouble, &y->child->valuedouble, sizeof(double)) != 0;
    CHECK_INT(differ, 0);
    CHECK(cJSON_IsNumber(list->child->child)); /* printing leaves the tree as it was */
    free(path);
    cJSON_Delete(list);
    cJSON_Delete(read);
}

static void test_json_int_is_exact(void) {
    tv_err err = {0};
    cJSON *j = cJSON_Parse("[1.5, 9007199254740992, 1e300, \"3\", -4]");
    int64_t v = 0;
    CHECK_FAILS(tv_json_int(cJSON_GetArrayItem(j, 0), "f", "x", &v, &err), TV_EFORMAT, &err, "1.5, not a whole number");
    CHECK_OK(tv_json_int(cJSON_GetArrayItem(j, 1), "f", "x", &v, &err), &err);
    CHECK_INT(v, 9007199254740992);
    CHECK_FAILS(tv_json_int(cJSON_GetArrayItem(j, 2), "f", "x", &v, &err), TV_EFORMAT, &err, "whole");
    CHECK_FAILS(tv_json_int(cJSON_GetArrayItem(j, 3), "f", "x", &v, &err), TV_EFORMAT, &err, "not a number");
    CHECK_OK(tv_json_int(cJSON_GetArrayItem(j, 4), "f", "x", &v, &err), &err);
    CHECK_INT(v, -4);
    cJSON_Delete(j);
}

/* A write that hits the end of the disk (here: the file-size limit) leaves the old file and no temporary one. */
static void test_file_full_disk_keeps_old(void) {
    tv_err err = {0};
    char *path = tv_path_join(tv_test_dir(), "f");
    CHECK_OK(tv_file_write(path, "old", 3, &err), &err);
    struct rlimit keep, small = {4096, 4096};
    getrlimit(RLIMIT_FSIZE, &keep);
    small.rlim_max = keep.rlim_max;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small);
    char *big = tv_xcalloc(1, 100000);
    tv_status s = tv_file_write(path, big, 100000, &err);
    setrlimit(RLIMIT_FSIZE, &keep);
    CHECK_FAILS(s, TV_EIO, &err, path);
    char *text = NULL;
    size_t size = 0;
    CHECK_OK(tv_file_read(path, 100, &text, &size, &err), &err);
    CHECK_STR(text, "old");
    char *list = tv_xprintf("test $(ls '%s' | wc -l) = 1", tv_test_dir());
    CHECK_INT(system(list), 0);
    free(list), free(text), free(big), free(path);
}

static void test_file_errors_name_the_path(void) {
    tv_err err = {0};
    tv_map map;
    char *text;
    size_t size;
    CHECK_FAILS(tv_map_open("/nonexistent/f", &map, &err), TV_EIO, &err, "/nonexistent/f: cannot open");
    CHECK_FAILS(tv_map_open(tv_test_dir(), &map, &err), TV_EIO, &err, "a folder, not a regular file");
    CHECK_FAILS(tv_file_write("/nonexistent/f", "x", 1, &err), TV_EIO, &err, "/nonexistent/f: cannot write");
    char *path = tv_path_join(tv_test_dir(), "f");
    CHECK_OK(tv_file_write(path, "12345", 5, &err), &err);
    CHECK_FAILS(tv_file_read(path, 4, &text, &size, &err), TV_EFORMAT, &err, "more than the 4 allowed");
    char *under = tv_path_join(path, "sub"), *fifo = tv_path_join(tv_test_dir(), "pipe");
    struct stat st;
    TV_ASSERT(mkfifo(fifo, 0600) == 0); /* stands for /dev/null, which the file renamed into place would replace */
    CHECK_FAILS(tv_file_write(fifo, "x", 1, &err), TV_EIO, &err, "not a regular file");
    CHECK(stat(fifo, &st) == 0 && S_ISFIFO(st.st_mode));
    CHECK_FAILS(tv_file_write(tv_test_dir(), "x", 1, &err), TV_EIO, &err, "not a regular file");
    free(fifo);
    CHECK_FAILS(tv_dir_make(under, &err), TV_EIO, &err, path);
    CHECK(tv_disk_free("/tmp/no/such/folder/yet") > 0);
    free(under), free(path);
}

static const tv_test tests[] = {
    {"json_strict", test_json_strict},
    {"json_has_no_nan", test_json_has_no_nan},
    {"json_numbers_round_trip", test_json_numbers_round_trip},
    {"json_int_is_exact", test_json_int_is_exact},
    {"file_full_disk_keeps_old", test_file_full_disk_keeps_old},
    {"file_errors_name_the_path", test_file_errors_name_the_path},
};
TV_TEST_MAIN(tests)
