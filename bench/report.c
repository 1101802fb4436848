#include "bench/report.h"

#include <ctype.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include "base/file.h"

/* Value of a line "KEY : VALUE" of /proc/cpuinfo; the caller frees. NULL where the system has none. */
static char *cpuinfo(const char *key) {
    FILE *f = fopen("/proc/cpuinfo", "r");
    char line[512], *value = NULL;
    while (f && !value && fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');
        if (!colon) continue;
        size_t n = (size_t)(colon - line);
        while (n && isspace((unsigned char)line[n - 1])) n--;
        if (n != strlen(key) || memcmp(line, key, n) != 0) continue;
        colon += 1 + strspn(colon + 1, " ");
        colon[strcspn(colon, "\n")] = 0;
        value = tv_xstrdup(colon);
    }
    if (f) fclose(f);
    return value;
}

/* Lower case, runs of anything but letters and digits as one dash, none at the ends. */
static void dashed(char *text) {
    char *to = text;
    for (const char *from = text; *from; from++)
        if (isalnum((unsigned char)*from))
            *to++ = (char)tolower((unsigned char)*from);
        else if (to > text && to[-1] != '-')
            *to++ = '-';
    if (to > text && to[-1] == '-') to--;
    *to = 0;
}

cJSON *tv_bench_machine(void) {
    struct utsname system;
    char *processor = cpuinfo("model name"), *family = cpuinfo("cpu family"), *model = cpuinfo("model");
    if (!processor) processor = tv_xstrdup(uname(&system) == 0 ? system.machine : "unknown");
    char *name =
        tv_xprintf("%s %s %s %d cpus", processor, family ? family : "", model ? model : "", omp_get_num_procs());
    dashed(name);
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "name", name);
    cJSON_AddStringToObject(o, "processor", processor);
    if (family) cJSON_AddStringToObject(o, "family", family);
    if (model) cJSON_AddStringToObject(o, "model", model);
    cJSON_AddNumberToObject(o, "cpus", omp_get_num_procs());
    free(processor), free(family), free(model), free(name);
    return o;
}

static double member(const cJSON *o, const char *key) { return cJSON_GetObjectItemCaseSensitive(o, key)->valuedouble; }

/* The member that says which row of a list this is: text stands for itself, a number behind its name. */
static char *row_name(const cJSON *row) {
    static const char *const keys[] = {"what", "product", "batch", "M"};
    char *name = tv_xstrdup("");
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(row, keys[i]);
        if (!item) continue;
        char *longer = cJSON_IsString(item)
                           ? tv_xprintf("%s%s%s", name, *name ? "/" : "", item->valuestring)
                           : tv_xprintf("%s%s%s %g", name, *name ? "/" : "", keys[i], item->valuedouble);
        free(name);
        name = longer;
    }
    return name;
}

static void put(const cJSON *json, const char *place, FILE *out) {
    if (cJSON_IsNumber(json)) {
        fprintf(out, "%s,%.6g,,,\n", place, json->valuedouble);
    } else if (cJSON_IsObject(json) && cJSON_HasObjectItem(json, "median") && cJSON_HasObjectItem(json, "mad")) {
        fprintf(out, "%s,%.6g,%.3g,%.6g,%g\n", place, member(json, "median"), member(json, "mad"), member(json, "best"),
                member(json, "n"));
    } else if (cJSON_IsObject(json) || (cJSON_IsArray(json) && cJSON_IsObject(json->child))) {
        for (const cJSON *m = json->child; m; m = m->next) {
            if (m->string && (!strcmp(m->string, "machine") || !strcmp(m->string, "batch") || !strcmp(m->string, "M")))
                continue;
            char *name = m->string ? tv_xstrdup(m->string) : row_name(m);
            char *below = tv_xprintf("%s%s%s", place, *place ? "/" : "", name);
            put(m, below, out);
            free(below), free(name);
        }
    }
}

tv_status tv_bench_csv(const cJSON *json, const char *path, tv_err *err) {
    tv_atomic file;
    TV_TRY(tv_atomic_open(path, &file, err));
    fputs("number,median,mad,best,runs\n", file.f);
    put(json, "", file.f);
    return tv_atomic_commit(&file, err);
}
