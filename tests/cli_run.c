#include "tests/cli_run.h"

#include <dirent.h>
#include <grp.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "tests/check.h"
#include "tests/tiny_checkpoint.h"

enum { NOBODY = 65534 };

static char *read_all(const char *path, size_t *size) {
    char *text;
    TV_ASSERT(tv_file_read(path, (size_t)1 << 30, &text, size, NULL) == TV_OK);
    return text;
}

/* The command with the function "tvgpu" in front, which names the program. */
static char *script(const char *fmt, va_list ap, int replace) {
    char *command = NULL;
    TV_ASSERT(vasprintf(&command, fmt, ap) >= 0);
    char *text = replace ? tv_xprintf("cd '%s' && exec " TV_RUN_PREFIX "'%s'/%s", tv_test_dir(), TV_BINARY_DIR, command)
                         : tv_xprintf("tvgpu() { " TV_RUN_PREFIX "'%s/tvgpu' \"$@\"; }; cd '%s' || exit 99\n%s",
                                      TV_BINARY_DIR, tv_test_dir(), command);
    free(command);
    return text;
}

static cli_result run(const char *input, const char *text, int drop) {
    char *in = tv_path_join(tv_test_dir(), ".stdin"), *out = tv_path_join(tv_test_dir(), ".stdout"),
         *err = tv_path_join(tv_test_dir(), ".stderr");
    TV_ASSERT(tv_file_write(in, input ? input : "", input ? strlen(input) : 0, NULL) == TV_OK);
    fflush(NULL);
    pid_t pid = fork();
    TV_ASSERT(pid >= 0);
    if (pid == 0) {
        if (!freopen(in, "r", stdin) || !freopen(out, "w", stdout) || !freopen(err, "w", stderr)) _exit(98);
        if (drop && (setgroups(0, NULL) != 0 || setgid(NOBODY) != 0 || setuid(NOBODY) != 0)) _exit(96);
        execl("/bin/sh", "sh", "-c", text, (char *)NULL);
        _exit(97);
    }
    int status;
    TV_ASSERT(waitpid(pid, &status, 0) == pid);
    cli_result r = {.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status)};
    size_t ignored;
    r.out = read_all(out, &r.out_size);
    r.err = read_all(err, &ignored);
    remove(in), remove(out), remove(err);
    free(in), free(out), free(err);
    return r;
}

cli_result cli_run(const char *input, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    char *text = script(fmt, ap, 0);
    va_end(ap);
    cli_result r = run(input, text, 0);
    free(text);
    return r;
}

cli_result cli_run_unprivileged(int *ran, const char *fmt, ...) {
    int drop = geteuid() == 0;
    if (drop) TV_ASSERT(chmod(tv_test_dir(), 0755) == 0);
    char *probe = tv_xprintf(TV_RUN_PREFIX "'%s/tvgpu' --version", TV_BINARY_DIR);
    cli_result r = run(NULL, probe, drop);
    free(probe);
    *ran = r.code == 0;
    if (!*ran) {
        r.out[0] = r.err[0] = 0;
        return r;
    }
    cli_free(&r);
    va_list ap;
    va_start(ap, fmt);
    char *text = script(fmt, ap, 0);
    va_end(ap);
    r = run(NULL, text, drop);
    free(text);
    return r;
}

void cli_free(cli_result *r) {
    free(r->out);
    free(r->err);
}

int cli_start(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    char *text = script(fmt, ap, 1);
    va_end(ap);
    fflush(NULL);
    pid_t pid = fork();
    TV_ASSERT(pid >= 0);
    if (pid == 0) {
        if (!freopen("/dev/null", "r", stdin) || !freopen("/dev/null", "w", stdout) ||
            !freopen("/dev/null", "w", stderr))
            _exit(98);
        execl("/bin/sh", "sh", "-c", text, (char *)NULL);
        _exit(97);
    }
    free(text);
    return pid;
}

int cli_check(const char *file, int line, int code, const char *part, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    char *text = script(fmt, ap, 0);
    va_end(ap);
    cli_result r = run(NULL, text, 0);
    int found = !part || strstr(r.out, part) || strstr(r.err, part);
    int held = tv_check_int(r.code, code, strchr(text, '\n') + 1, file, line) &
               tv_check_true(found, part ? part : "", file, line);
    if (!held) printf("    it printed: %.600s\n    and said: %.1000s\n", r.out, r.err);
    cli_free(&r);
    free(text);
    return held;
}

void cli_tiny_model(void) {
    tiny_options options = tiny_options_default(TV_QWEN3);
    tiny_checkpoint *c = tiny_new(&options);
    tiny_write(c, cli_path("m"));
    tiny_free(c);
    static const char prompts[] = "{\"ids\": [5, 9, 17, 3]}\n\n{\"ids\": [88, 2]}\n{\"ids\": [1, 2, 3, 4, 5, 6]}\n";
    TV_ASSERT(tv_file_write(cli_path("p.jsonl"), prompts, sizeof prompts - 1, NULL) == TV_OK);
}

void cli_small_model(void) {
    tiny_options options = tiny_options_default(TV_QWEN3);
    options.d_model = 32, options.d_ff = 64, options.vocab_size = 4096, options.max_positions = 512;
    options.tie_embeddings = 1;
    tiny_checkpoint *c = tiny_new(&options);
    tiny_write(c, cli_path("m"));
    tiny_free(c);
    CLI(0, NULL, "cp '%s'/tokenizer*.json m", tv_bundled_model());
}

const char *cli_path(const char *name) {
    static char paths[8][4096];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", tv_test_dir(), name);
    return path;
}

cJSON *cli_json(const char *name) {
    cJSON *json = NULL;
    tv_err err = {0};
    if (tv_json_load(cli_path(name), (size_t)1 << 30, &json, &err) != TV_OK) {
        fprintf(stderr, "%s\n", err.message);
        abort();
    }
    return json;
}

const cJSON *cli_at(const cJSON *json, const char *path) {
    while (json && *path) {
        size_t n = strcspn(path, ".");
        char *key = tv_xprintf("%.*s", (int)n, path);
        json = cJSON_GetObjectItemCaseSensitive(json, key);
        free(key);
        path += n + (path[n] == '.');
    }
    return json;
}

double cli_number(const cJSON *json, const char *path) {
    const cJSON *item = cli_at(json, path);
    return cJSON_IsNumber(item) ? item->valuedouble : NAN;
}

char *cli_without_timing(const char *name) {
    cJSON *json = cli_json(name);
    cJSON_DeleteItemFromObjectCaseSensitive(json, "timing");
    char *text = tv_json_text(json);
    cJSON_Delete(json);
    return text;
}

int cli_entries(const char *name) {
    DIR *d = opendir(cli_path(name));
    if (!d) return -1;
    int n = 0;
    for (struct dirent *e; (e = readdir(d));) n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    closedir(d);
    return n;
}
