/* Run folders: what resumes, what is refused, and that a killed run leaves complete files or none. */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "tests/check.h"
#include "traces/dataset.h"
#include "traces/rundir.h"

static cJSON *manifest(void) {
    return cJSON_Parse(
        "{\"tvgpu\":\"0.1.0\",\"a\":{\"backend\":\"flash\",\"order\":\"fixed\"},\"b\":{\"backend\":\"math\"},"
        "\"temperature\":0.7,\"seeds\":[0,1],\"prompt_ids\":[[1,2,3]],"
        "\"timing\":{\"started\":\"now\"},\"host\":{\"threads\":2}}");
}

static char *run_path(void) { return tv_path_join(tv_test_dir(), "run"); }

static void touch(const char *dir, const char *name) {
    tv_err err = {0};
    char *path = tv_path_join(dir, name);
    CHECK_OK(tv_file_write(path, "x", 1, &err), &err);
    free(path);
}

static int has(const char *dir, const char *name) {
    char *path = tv_path_join(dir, name);
    int there = tv_path_exists(path);
    free(path);
    return there;
}

static void test_make_and_resume(void) {
    tv_err err = {0};
    tv_rundir *run;
    char *dir = tv_path_join(tv_test_dir(), "deep/er/run");
    cJSON *m = manifest();
    if (CHECK_OK(tv_rundir_open(dir, m, &run, &err), &err)) {
        CHECK_INT(tv_rundir_resumed(run), 0);
        CHECK_STR(tv_rundir_path(run), dir);
        tv_rundir_close(run);
    }
    cJSON_ReplaceItemInObject(m, "timing", cJSON_CreateNull());
    cJSON_DeleteItemFromObject(m, "host");
    if (CHECK_OK(tv_rundir_open(dir, m, &run, &err), &err)) {
        CHECK_INT(tv_rundir_resumed(run), 1);
        CHECK(cJSON_IsObject(cJSON_GetObjectItem(tv_rundir_manifest(run), "host")));
        tv_rundir_close(run);
    }
    cJSON_Delete(m);
    free(dir);
}

/* The names that other programs rely on. */
static void test_names(void) {
    tv_err err = {0};
    tv_rundir *run;
    char *dir = run_path();
    cJSON *m = manifest();
    CHECK_OK(tv_rundir_open(dir, m, &run, &err), &err);
    char *p[3] = {tv_rundir_samples_path(run, TV_B), tv_rundir_pass_path(run, TV_A, TV_B, 7),
                  tv_rundir_pass_path(run, TV_B, TV_A, 12345)};
    CHECK_STR(p[0] + strlen(dir), "/b.samples.safetensors");
    CHECK_STR(p[1] + strlen(dir), "/a-on-b.pass-0007.safetensors");
    CHECK_STR(p[2] + strlen(dir), "/b-on-a.pass-12345.safetensors");
    CHECK(!tv_rundir_has_samples(run, TV_B) && !tv_rundir_has_pass(run, TV_A, TV_B, 7));
    touch(dir, "b.samples.safetensors"), touch(dir, "a-on-b.pass-0007.safetensors");
    CHECK(tv_rundir_has_samples(run, TV_B) && !tv_rundir_has_samples(run, TV_A));
    CHECK(tv_rundir_has_pass(run, TV_A, TV_B, 7) && !tv_rundir_has_pass(run, TV_B, TV_A, 7) &&
          !tv_rundir_has_pass(run, TV_A, TV_B, 8));
    int side, set;
    int64_t pass;
    CHECK(tv_rundir_parse_name("b-on-a.pass-12345.safetensors", &side, &set, &pass) && side == TV_B && set == TV_A &&
          pass == 12345);
    CHECK(tv_rundir_parse_name("a.samples.safetensors", &side, &set, &pass) && side == TV_A && set == TV_A &&
          pass == -1);
    static const char *const others[] = {"",
                                         "a",
                                         "c.samples.safetensors",
                                         "a-on-b.pass-7.safetensors",
                                         "a-on-b.pass-00007.safetensors",
                                         "a-on-c.pass-0007.safetensors",
                                         "a-on-b.pass-0007.safetensors.tmp-1",
                                         "a-on-b.pass--007.safetensors",
                                         "a-on-b.pass-99999999999999999999.safetensors",
                                         "a-on-b.pass-000x.safetensors"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        CHECK(!tv_rundir_parse_name(others[i], &side, &set, &pass));
    for (int i = 0; i < 3; i++) free(p[i]);
    tv_rundir_close(run);
    cJSON_Delete(m);
    free(dir);
}

/* Another run's folder is refused, naming the first field that differs and both values. */
static void refuse(const char *changed, const char *part) {
    tv_err err = {0};
    tv_rundir *run;
    char *dir = run_path();
    cJSON *m = cJSON_Parse(changed);
    CHECK(m);
    CHECK_FAILS(tv_rundir_open(dir, m, &run, &err), TV_EARG, &err, part);
    cJSON_Delete(m);
    free(dir);
}

static void test_other_options_are_refused(void) {
    tv_err err = {0};
    tv_rundir *run;
    char *dir = run_path();
    cJSON *m = cJSON_Parse("{\"a\":{\"backend\":\"flash\",\"batch\":8},\"seeds\":[0,1],\"t\":0.7}");
    CHECK_OK(tv_rundir_open(dir, m, &run, &err), &err);
    tv_rundir_close(run);
    refuse("{\"a\":{\"backend\":\"math\",\"batch\":8},\"seeds\":[0,1],\"t\":0.7}",
           "a.backend is \"flash\" in that run and \"math\" in this command");
    refuse("{\"a\":{\"backend\":\"flash\"},\"seeds\":[0,1],\"t\":0.7}",
           "a.batch is 8 in that run and absent in this command");
    refuse("{\"a\":{\"backend\":\"flash\",\"batch\":8,\"pad\":true},\"seeds\":[0,1],\"t\":0.7}",
           "a.pad is absent in that run and true");
    refuse("{\"a\":{\"backend\":\"flash\",\"batch\":8},\"seeds\":[0,2],\"t\":0.7}", "seeds[1] is 1 in that run and 2");
    refuse("{\"a\":{\"backend\":\"flash\",\"batch\":8},\"seeds\":[0],\"t\":0.7}",
           "seeds[1] is 1 in that run and absent");
    refuse("{\"a\":{\"backend\":\"flash\",\"batch\":8},\"seeds\":[0,1],\"t\":0.70000000000001}", "t is 0.7");
    refuse("{\"a\":[],\"seeds\":[0,1],\"t\":0.7}", "a is {\"backend\":\"flash\",\"batch\":8} in that run and []");
    refuse("{\"a\":{\"backend\":\"flash\",\"batch\":8,\"timing\":1},\"seeds\":[0,1],\"t\":0.7}", "a.timing is absent");
    CHECK_OK(tv_rundir_open(dir, m, &run, &err), &err);
    tv_rundir_close(run);
    cJSON_Delete(m);
    free(dir);
}

/* Printing rounds a number: the same command must still resume its own run. */
static void test_numbers_survive_the_file(void) {
    tv_err err = {0};
    tv_rundir *run;
    char *dir = run_path();
    cJSON *m = cJSON_CreateObject();
    cJSON_AddNumberToObject(m, "x", 0.1 + 0.2);
    cJSON_AddNumberToObject(m, "y", nextafter(1, 2));
    for (int i = 0; i < 2; i++) {
        if (!CHECK_OK(tv_rundir_open(dir, m, &run, &err), &err)) break;
        CHECK_INT(tv_rundir_resumed(run), i);
        tv_rundir_close(run);
    }
    cJSON_Delete(m);
    free(dir);
}

static void test_other_folders_are_refused(void) {
    tv_err err = {0};
    tv_rundir *run;
    char *dir = run_path(), *file = tv_path_join(tv_test_dir(), "file");
    cJSON *m = manifest();
    CHECK_OK(tv_dir_make(dir, &err), &err);
    CHECK_OK(tv_rundir_open(dir, m, &run, &err), &err); /* empty: fine */
    tv_rundir_close(run);
    char *json = tv_path_join(dir, "run.json");
    remove(json);
    touch(dir, "thesis.tex");
    CHECK_FAILS(tv_rundir_open(dir, m, &run, &err), TV_EARG, &err, "holds \"thesis.tex\" and no run.json");
    CHECK(has(dir, "thesis.tex") && !has(dir, "run.json"));
    CHECK_OK(tv_file_write(json, "{\"a\":", 5, &err), &err);
    CHECK_FAILS(tv_rundir_open(dir, m, &run, &err), TV_EFORMAT, &err, "run.json: not valid JSON");
    CHECK_OK(tv_file_write(file, "x", 1, &err), &err);
    CHECK_FAILS(tv_rundir_open(file, m, &run, &err), TV_EIO, &err, "not a folder");
    char *below = tv_path_join(file, "run");
    CHECK_FAILS(tv_rundir_open(below, m, &run, &err), TV_EIO, &err, file);
    free(below), free(json), free(file), free(dir);
    cJSON_Delete(m);
}

static void test_unwritable_folder_is_an_error_at_once(void) {
    tv_err err = {0};
    tv_rundir *run;
    cJSON *m = manifest();
    char *dir = run_path();
    if (geteuid() == 0) { /* root may write anywhere but where no folder can be made at all */
        CHECK_FAILS(tv_rundir_open("/proc/tvgpu-run", m, &run, &err), TV_EIO, &err, "/proc/tvgpu-run");
    } else {
        CHECK(mkdir(dir, 0555) == 0);
        CHECK_FAILS(tv_rundir_open(dir, m, &run, &err), TV_EIO, &err, "cannot write into the folder");
        chmod(dir, 0755);
    }
    cJSON_Delete(m);
    free(dir);
}

/* Only what a dead run of ours left behind goes; what another process writes at this moment, or anything else, stays.
 */
static void test_leftovers(void) {
    tv_err err = {0};
    tv_rundir *run;
    cJSON *m = manifest();
    char *dir = run_path();
    CHECK_OK(tv_rundir_open(dir, m, &run, &err), &err);
    tv_rundir_close(run);
    static const char *const dead[] = {"a.samples.safetensors.tmp-12", "a-on-b.pass-0003.safetensors.tmp-999999",
                                       "report.json.tmp-1", "run.json.tmp-4"};
    static const char *const kept[] = {"a.samples.safetensors.tmp-", "a.samples.safetensors.tmp-12x", "notes.tmp-12",
                                       "a.samples.safetensors.bak"};
    for (size_t i = 0; i < 4; i++) touch(dir, dead[i]), touch(dir, kept[i]);
    int ready[2], go[2];
    CHECK(pipe(ready) == 0 && pipe(go) == 0);
    pid_t pid = fork();
    if (pid == 0) { /* another shard in the middle of a file */
        tv_atomic file;
        tv_err e = {0};
        char *path = tv_path_join(dir, "b-on-a.pass-0001.safetensors"), c = 'r';
        int good = tv_atomic_open(path, &file, &e) == TV_OK && write(ready[1], &c, 1) == 1 && read(go[0], &c, 1) == 1 &&
                   tv_atomic_write(&file, "done", 4, &e) == TV_OK && tv_atomic_commit(&file, &e) == TV_OK;
        _exit(good ? 0 : 1);
    }
    char c;
    CHECK(read(ready[0], &c, 1) == 1);
    CHECK_OK(tv_rundir_open(dir, m, &run, &err), &err);
    tv_rundir_close(run);
    for (size_t i = 0; i < 4; i++) CHECK(!has(dir, dead[i]) && has(dir, kept[i]));
    int status;
    CHECK(write(go[1], &c, 1) == 1 && waitpid(pid, &status, 0) == pid && status == 0);
    CHECK(has(dir, "b-on-a.pass-0001.safetensors"));
    for (int i = 0; i < 2; i++) close(ready[i]), close(go[i]);
    cJSON_Delete(m);
    free(dir);
}

static tv_trace *make_pass(int64_t pass) {
    tv_err err = {0};
    tv_trace *t;
    if (tv_trace_new(40, 50, 8, 1, 4, &t, &err) != TV_OK) return NULL;
    tv_trace_mut m = tv_trace_writable(t);
    for (int i = 0; i < 40 * 50; i++)
        for (int j = 0; j < 8; j++)
            m.topk_ids[8 * i + j] = j, m.topk_logprobs[8 * i + j] = -3 - (float)j - (float)pass / 64;
    for (int i = 0; i < 40; i++) m.trajectory[i] = i;
    t->side = tv_xstrdup("a"), t->set = tv_xstrdup("b"), t->pass = pass;
    return t;
}

/* kill -9 at any moment: every file that is there opens and validates, leftovers go at the next start, and the next
 * start goes on behind what is finished. */
static void test_kill_at_any_moment(void) {
    tv_err err = {0};
    tv_rng rng = {11};
    cJSON *m = manifest();
    char *dir = run_path();
    int64_t next = 0;
    int leftovers = 0;
    for (int round = 0; round < 30; round++) {
        pid_t pid = fork();
        if (pid == 0) {
            tv_rundir *run;
            tv_err e = {0};
            if (tv_rundir_open(dir, m, &run, &e) != TV_OK) _exit(1);
            for (int64_t pass = 0;; pass++) {
                if (tv_rundir_has_pass(run, TV_A, TV_B, pass)) continue;
                tv_trace *t = make_pass(pass);
                char *path = tv_rundir_pass_path(run, TV_A, TV_B, pass);
                if (!t || tv_trace_write(t, path, &e) != TV_OK) _exit(2);
                tv_trace_close(t);
                free(path);
            }
        }
        struct timespec wait = {0, 2000000 + (long)(tv_rng_next(&rng) % 30000000)};
        nanosleep(&wait, NULL);
        kill(pid, SIGKILL);
        int status;
        CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status));
        char *count = tv_xprintf("test $(ls '%s' 2>/dev/null | grep -c tmp-) = 0", dir);
        leftovers += system(count) != 0;
        free(count);
        tv_rundir *run;
        if (!CHECK_OK(tv_rundir_open(dir, m, &run, &err), &err)) break;
        char *none = tv_xprintf("test $(ls '%s' | grep -c tmp-) = 0", dir);
        CHECK_INT(system(none), 0);
        free(none);
        while (tv_rundir_has_pass(run, TV_A, TV_B, next)) {
            char *path = tv_rundir_pass_path(run, TV_A, TV_B, next);
            tv_trace *t, *want = make_pass(next);
            if (CHECK_OK(tv_trace_open(path, &t, &err), &err)) {
                CHECK(t->pass == next && tv_trace_same(t, want, NULL, NULL));
                tv_trace_close(t);
            }
            tv_trace_close(want);
            free(path);
            next++;
        }
        CHECK(!tv_rundir_has_pass(run, TV_A, TV_B, next + 1));
        tv_rundir_close(run);
    }
    printf("  %lld passes finished, %d of 30 kills left a temporary file\n", (long long)next, leftovers);
    cJSON_Delete(m);
    free(dir);
}

/* The disk is checked before anything is computed, and the message says what to change. */
static void test_disk_need(void) {
    tv_err err = {0};
    tv_rundir *run;
    const int64_t N[2] = {512, 512}, passes[2] = {16, 1};
    uint64_t all = tv_rundir_disk_need(NULL, N, 500, 32, passes, 30), file = tv_trace_file_size(512, 500, 32, 30);
    CHECK(all >= 2 * (16 + 1 + 1) * file && all < 2 * (16 + 1 + 1) * file + (64 << 20));
    char *dir = run_path();
    CHECK_OK(tv_rundir_check_disk(dir, 1000, &err), &err);
    CHECK_FAILS(tv_rundir_check_disk(dir, UINT64_MAX / 2, &err), TV_ENOMEM, &err,
                "the run needs 9223372036.9 GB of disk");
    CHECK(tv_rundir_check_disk(dir, UINT64_MAX / 2, &err) != TV_OK);
    CHECK(strstr(err.message, dir) && strstr(err.message, "--store-k"));
    tv_err_clear(&err);
    cJSON *m = manifest();
    CHECK_OK(tv_rundir_open(dir, m, &run, &err), &err);
    touch(dir, "a.samples.safetensors"), touch(dir, "a-on-b.pass-0015.safetensors");
    CHECK(tv_rundir_disk_need(run, N, 500, 32, passes, 30) == all - 2 * file);
    tv_rundir_close(run);
    cJSON_Delete(m);
    free(dir);
}

static const tv_test tests[] = {
    {"make_and_resume", test_make_and_resume},
    {"names", test_names},
    {"other_options_are_refused", test_other_options_are_refused},
    {"numbers_survive_the_file", test_numbers_survive_the_file},
    {"other_folders_are_refused", test_other_folders_are_refused},
    {"unwritable_folder_is_an_error_at_once", test_unwritable_folder_is_an_error_at_once},
    {"leftovers", test_leftovers},
    {"kill_at_any_moment", test_kill_at_any_moment},
    {"disk_need", test_disk_need},
};
TV_TEST_MAIN(tests)
