/* What the parts of import share: completions in one shape, whatever form they came in. */
#ifndef TV_IMPORT_PRIVATE_H
#define TV_IMPORT_PRIVATE_H

#include "base/json.h"
#include "traces/import.h"

/* Token texts, numbered in order of appearance. */
typedef struct {
    char **text; /* [n] bytes in hexadecimal */
    int64_t n;
    int32_t *slot; /* [slots] hash table of numbers, -1 = free */
    int64_t slots;
    int used_text, used_ids; /* which kinds of tokens were met */
} tv_labels;
int32_t tv_labels_number(tv_labels *labels, const char *hex);
/* DIR/tokens.json; nothing there is an empty table. */
TV_NODISCARD tv_status tv_labels_load(tv_labels *labels, const char *path, tv_err *err);
TV_NODISCARD tv_status tv_labels_save(const tv_labels *labels, const char *path, tv_err *err);
void tv_labels_free(tv_labels *labels);

/* One completion, or one prompt whose tokens were scored. Record t is the distribution before token t. */
typedef struct {
    char *where;        /* "FILE:LINE" or "FILE[ENTRY]", and the completion within it */
    int64_t trajectory; /* as the dump says, or -1 */
    int32_t *prompt;    /* [n_prompt] ids, or the bytes of a text; NULL: not stated */
    int64_t n_prompt;
    int is_text;      /* prompt is a text's bytes */
    int from_prompt;  /* tokens are the prompt's from its second on, the trajectory at their end */
    int64_t n;        /* tokens */
    int32_t *tokens;  /* [n] */
    float *own;       /* [n] log-probability of the token; NaN: not known */
    int64_t *first;   /* [n+1] slots of record t are first[t]..first[t+1]-1 */
    int32_t *ids;     /* [first[n]] */
    float *lps;       /* [first[n]] */
    int64_t capacity; /* of ids and lps */
} tv_completion;

typedef struct {
    const tv_import_options *options;
    int scoring;         /* the dump scores trajectories that are there: records may be those of prompts */
    tv_import_form form; /* as given, or that of the first entry */
    tv_labels labels;
    tv_completion *c; /* [n_c] */
    int64_t n_c;
} tv_reader;

/* Adds the completions of one entry of a dump (traces/import_forms.c). where: "FILE:LINE" or "FILE[ENTRY]". */
TV_NODISCARD tv_status tv_import_entry(tv_reader *r, const cJSON *entry, const char *where, tv_err *err);
/* Reads every entry of a file (traces/import_read.c). */
TV_NODISCARD tv_status tv_import_file(tv_reader *r, const char *path, tv_err *err);
void tv_reader_free(tv_reader *r);

#endif
