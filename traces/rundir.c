#include "traces/rundir.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "traces/fold.h"

enum { MAX_MANIFEST = 64 << 20, REPORT_BYTES = 16 << 20 };

struct tv_rundir {
    char *path;
    cJSON *manifest;
    int resumed;
};

/* ---- comparing manifests ---- */

/* A value as it may stand in a message: compact, cut where it is long. */
static char *value_text(const cJSON *item) {
    enum { MAX_SHOWN = 120 };
    if (!item) return tv_xstrdup("absent");
    char *text = tv_json_line(item);
    if (strlen(text) > MAX_SHOWN) {
        size_t cut = MAX_SHOWN;
        while (cut && ((unsigned char)text[cut] & 0xc0) == 0x80) cut--; /* not within a character */
        char *shown = tv_xprintf("%.*s...", (int)cut, text);
        free(text);
        return shown;
    }
    return text;
}

static int ignored(const char *key, const char *const *ignore) {
    for (; ignore && *ignore; ignore++)
        if (strcmp(key, *ignore) == 0) return 1;
    return 0;
}

static char *differ(const cJSON *x, const char *x_name, const cJSON *y, const char *y_name, const char *path,
                    const char *const *ignore);

/* The difference of two members (either may be NULL: absent) named path.key, or path[index] when key is NULL. */
static char *differ_member(const cJSON *x, const char *x_name, const cJSON *y, const char *y_name, const char *path,
                           const char *key, int64_t index) {
    char *below = key ? tv_xprintf("%s%s%s", path, *path ? "." : "", key) : tv_xprintf("%s[%" PRId64 "]", path, index);
    char *found = differ(x, x_name, y, y_name, below, NULL);
    free(below);
    return found;
}

static char *differ(const cJSON *x, const char *x_name, const cJSON *y, const char *y_name, const char *path,
                    const char *const *ignore) {
    char *found = NULL;
    if (x && y && cJSON_IsObject(x) && cJSON_IsObject(y)) {
        for (const cJSON *m = x->child; m && !found; m = m->next)
            if (!ignored(m->string, ignore))
                found = differ_member(m, x_name, cJSON_GetObjectItemCaseSensitive(y, m->string), y_name, path,
                                      m->string, 0);
        for (const cJSON *m = y->child; m && !found; m = m->next)
            if (!ignored(m->string, ignore) && !cJSON_GetObjectItemCaseSensitive(x, m->string))
                found = differ_member(NULL, x_name, m, y_name, path, m->string, 0);
        return found;
    }
    if (x && y && cJSON_IsArray(x) && cJSON_IsArray(y)) {
        const cJSON *p = x->child, *q = y->child;
        for (int64_t i = 0; (p || q) && !found; i++) {
            found = differ_member(p, x_name, q, y_name, path, NULL, i);
            p = p ? p->next : NULL;
            q = q ? q->next : NULL;
        }
        return found;
    }
    char *x_text = value_text(x), *y_text = value_text(y);
    int same = x && y && cJSON_Compare(x, y, 1);
    /* cJSON compares numbers with a tolerance: a seed or a temperature one bit off is another run */
    if (same && cJSON_IsNumber(x)) same = x->valuedouble == y->valuedouble;
    if (!same)
        found = tv_xprintf("%s is %s in %s and %s in %s", *path ? path : "the value", x_text, x_name, y_text, y_name);
    free(x_text);
    free(y_text);
    return found;
}

char *tv_fields_differ(const cJSON *x, const char *x_name, const cJSON *y, const char *y_name,
                       const char *const *ignore) {
    return differ(x, x_name, y, y_name, "", ignore);
}

/* ---- names ---- */

static void samples_name(char name[64], int side) { snprintf(name, 64, "%c.samples.safetensors", "ab"[side]); }

static void pass_name(char name[64], int side, int set, int64_t pass) {
    snprintf(name, 64, "%c-on-%c.pass-%04" PRId64 ".safetensors", "ab"[side], "ab"[set], pass);
}

char *tv_samples_path(const char *dir, int side) {
    char name[64];
    samples_name(name, side);
    return tv_path_join(dir, name);
}

char *tv_pass_path(const char *dir, int side, int set, int64_t pass) {
    char name[64];
    pass_name(name, side, set, pass);
    return tv_path_join(dir, name);
}

int tv_rundir_parse_name(const char *name, int *side, int *set, int64_t *pass) {
    char expected[64];
    if (name[0] != 'a' && name[0] != 'b') return 0;
    *side = *set = name[0] - 'a';
    *pass = -1;
    samples_name(expected, *side);
    if (strcmp(name, expected) == 0) return 1;
    if (strncmp(name + 1, "-on-", 4) != 0 || (name[5] != 'a' && name[5] != 'b') || strncmp(name + 6, ".pass-", 6) != 0)
        return 0;
    *set = name[5] - 'a';
    errno = 0;
    *pass = strtoll(name + 12, NULL, 10);
    if (errno || *pass < 0) return 0;
    pass_name(expected, *side, *set, *pass); /* one spelling for each number */
    return strcmp(name, expected) == 0;
}

char *tv_rundir_alive_path(const char *dir, int index, int count) {
    return tv_xprintf("%s/process-%d-of-%d.alive", dir, index + 1, count);
}

/* FILE.tmp-DIGITS for a file that a run writes, or a process's sign of life. */
static int is_temporary(const char *name) {
    static const char *const others[] = {"run.json", "report.json", "report.html"};
    int part, count, end = 0;
    if (sscanf(name, "process-%9d-of-%9d.alive%n", &part, &count, &end) == 2 && end && !name[end]) return 1;
    const char *mark = strstr(name, ".tmp-");
    if (!mark || !mark[5] || mark[5 + strspn(mark + 5, "0123456789")]) return 0;
    char *file = tv_xprintf("%.*s", (int)(mark - name), name);
    int side, set, index, known = 0;
    int64_t pass;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) known |= strcmp(file, others[i]) == 0;
    known |= tv_rundir_parse_name(file, &side, &set, &pass) || tv_fold_parse_name(file, &side, &set, &index);
    free(file);
    return known;
}

/* ---- opening ---- */

/* Removes leftovers. *other gets the name of a file that no run writes, or NULL; the caller frees it. */
static tv_status clean(const char *dir, char **other, tv_err *err) {
    *other = NULL;
    DIR *d = opendir(dir);
    if (!d) return TV_FAIL(err, TV_EIO, "%s: cannot read the folder: %s", dir, strerror(errno));
    for (struct dirent *e; (e = readdir(d));) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        if (is_temporary(e->d_name)) {
            char *tmp = tv_path_join(dir, e->d_name);
            tv_atomic_clean(tmp); /* one that another process is writing stays */
            free(tmp);
        } else if (!*other) {
            *other = tv_xstrdup(e->d_name);
        }
    }
    closedir(d);
    return TV_OK;
}

void tv_rundir_clean(const char *dir) {
    char *other;
    if (clean(dir, &other, NULL) == TV_OK) free(other);
}

static tv_status open_existing(tv_rundir *run, const char *json_path, tv_err *err) {
    static const char *const ignore[] = {"timing", "host", NULL};
    cJSON *stored;
    TV_TRY(tv_json_load(json_path, MAX_MANIFEST, &stored, err));
    char *difference = tv_fields_differ(stored, "that run", run->manifest, "this command", ignore);
    cJSON_Delete(run->manifest);
    run->manifest = stored;
    run->resumed = 1;
    if (!difference) return TV_OK;
    tv_status s = TV_FAIL(
        err, TV_EARG,
        "%s: another run lies here: %s; repeat that run's options to resume it, or choose another folder with --out",
        json_path, difference);
    free(difference);
    return s;
}

static tv_status open_dir(tv_rundir *run, tv_err *err) {
    const char *dir = run->path;
    char *other = NULL;
    TV_TRY(tv_dir_make(dir, err));
    if (access(dir, R_OK | W_OK | X_OK) != 0)
        return TV_FAIL(err, TV_EIO, "%s: cannot write into the folder: %s", dir, strerror(errno));
    TV_TRY(clean(dir, &other, err));
    char *json_path = tv_path_join(dir, "run.json");
    tv_status s;
    if (tv_path_exists(json_path))
        s = open_existing(run, json_path, err);
    else if (other)
        s = TV_FAIL(err, TV_EARG,
                    "%s: holds \"%s\" and no run.json: not a run folder; choose an empty or new one with --out", dir,
                    other);
    else
        s = tv_json_save(run->manifest, json_path, err);
    free(json_path);
    free(other);
    return s;
}

tv_status tv_rundir_open(const char *dir, const cJSON *manifest, tv_rundir **out, tv_err *err) {
    *out = NULL;
    tv_rundir *run = tv_xcalloc(1, sizeof *run);
    run->path = tv_xstrdup(dir);
    run->manifest = cJSON_Duplicate(manifest, 1);
    TV_ASSERT(run->manifest);
    tv_status s = open_dir(run, err);
    if (s != TV_OK)
        tv_rundir_close(run);
    else
        *out = run;
    return s;
}

void tv_rundir_close(tv_rundir *run) {
    if (!run) return;
    cJSON_Delete(run->manifest);
    free(run->path);
    free(run);
}

const char *tv_rundir_path(const tv_rundir *run) { return run->path; }

int tv_rundir_resumed(const tv_rundir *run) { return run->resumed; }

const cJSON *tv_rundir_manifest(const tv_rundir *run) { return run->manifest; }

char *tv_rundir_samples_path(const tv_rundir *run, int side) { return tv_samples_path(run->path, side); }

char *tv_rundir_pass_path(const tv_rundir *run, int side, int set, int64_t pass) {
    return tv_pass_path(run->path, side, set, pass);
}

static int there(char *path) {
    int exists = tv_path_exists(path);
    free(path);
    return exists;
}

int tv_rundir_has_samples(const tv_rundir *run, int side) { return there(tv_rundir_samples_path(run, side)); }

int tv_rundir_has_pass(const tv_rundir *run, int side, int set, int64_t pass) {
    return there(tv_rundir_pass_path(run, side, set, pass));
}

/* ---- disk ---- */

uint64_t tv_rundir_disk_need(const tv_rundir *run, const int64_t *N, int64_t n, int64_t k, const int64_t *passes,
                             int64_t n_prompt_ids) {
    uint64_t need = REPORT_BYTES;
    for (int set = 0; set < 2; set++) {
        uint64_t file = tv_trace_file_size(N[set], n, k, n_prompt_ids);
        if (!run || !tv_rundir_has_samples(run, set)) need += file;
        for (int side = 0; side < 2; side++)
            for (int64_t pass = 0; pass < passes[side]; pass++)
                if (!run || !tv_rundir_has_pass(run, side, set, pass)) need += file;
    }
    return need;
}

/* "12.3 GB" */
static void bytes_text(char text[32], uint64_t bytes) {
    if (bytes < 1000000000)
        snprintf(text, 32, "%.1f MB", (double)bytes * 1e-6);
    else
        snprintf(text, 32, "%.1f GB", (double)bytes * 1e-9);
}

tv_status tv_rundir_check_disk(const char *dir, uint64_t need, tv_err *err) {
    uint64_t free_bytes = tv_disk_free(dir);
    if (!free_bytes || need <= free_bytes) return TV_OK; /* 0: unknown; a full disk then shows at the first write */
    char need_text[32], free_text[32];
    bytes_text(need_text, need);
    bytes_text(free_text, free_bytes);
    return TV_FAIL(err, TV_ENOMEM,
                   "%s: the run needs %s of disk and %s are free there; a smaller --repeats, --store-k, --trajectories "
                   "or --length needs less, with many passes so does --keep-passes no, and --out chooses another disk",
                   dir, need_text, free_text);
}
