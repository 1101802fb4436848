/* What the printed report and the page say alike: numbers read from the JSON, and the answers in words. */
#ifndef TV_REPORT_VIEW_H
#define TV_REPORT_VIEW_H

#include "base/json.h"

/* Item at a path of keys separated by '.', NULL when missing. */
const cJSON *tv_view_item(const cJSON *json, const char *path);
/* Number there; NaN when missing or null. */
double tv_view_number(const cJSON *json, const char *path);
/* String there; "" when missing. */
const char *tv_view_string(const cJSON *json, const char *path);

/* The number with as many digits as its error bar (NaN: unknown) supports; "-" for NaN. The caller frees. */
char *tv_view_text(double value, double se);
/* "[0.431, 0.473]", or "-" without one. */
char *tv_view_interval(const cJSON *interval, double se);
/* Thousands apart: 1,234,567. */
char *tv_view_count(double count);

/* One field in which the configurations report["a"] and report["b"] differ. Strings are owned by the list. */
typedef struct {
    char *key, *a, *b;
} tv_view_difference;
typedef struct {
    tv_view_difference *item; /* [n] */
    int n;
    int known; /* 0: the report carries no configurations */
} tv_view_differences;
tv_view_differences tv_view_diff(const cJSON *report);
void tv_view_diff_free(tv_view_differences *d);

/* What libraries chose for the steps of a side, report["libraries"]["a"], when libraries took part on any side: "side
 * a", "side b", or once "both sides" where they chose the same. Returns the number of lists, 0 to 2. */
typedef struct {
    const char *who;
    const cJSON *list; /* of strings, in the report */
} tv_view_library_list;
int tv_view_libraries(const cJSON *report, tv_view_library_list lists[2]);

/* The six answers, one to three sentences each, in the order in which people ask. Owned; tv_view_answers_free. */
enum {
    TV_ANSWER_IDENTICAL,
    TV_ANSWER_DISTANCE,
    TV_ANSWER_NOISE,
    TV_ANSWER_SWITCH,
    TV_ANSWER_WHERE,
    TV_ANSWER_CI,
    TV_ANSWERS
};
extern const char *const tv_view_questions[TV_ANSWERS];
typedef struct {
    char *text[TV_ANSWERS];
} tv_view_answers;
tv_view_answers tv_view_answer(const cJSON *report, const tv_view_differences *d);
void tv_view_answers_free(tv_view_answers *a);

/* What to know when side e (0 or 1) scored its trajectories otherwise than it sampled them; NULL where it did not. The
 * caller frees. */
char *tv_view_scoring(const cJSON *report, int e);

/* "model: 128 tokens a trajectory, 128 + 128 trajectories, 4 reads a side". */
char *tv_view_subject(const cJSON *report);

#endif
