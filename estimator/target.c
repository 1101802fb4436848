#include "estimator/target.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"
#include "estimator/schedule.h"

enum { AT_LEAST = 32 };
/* The allowance for bias falls like r^-1/2 at least where reads remove it. Four times the reads that leave more than
 * this much of it do not; the margin is for its own noise. */
static const double STUCK = 0.8;

/* What one round found, and what it says comes next. */
typedef struct {
    double N, n, R, half, bias;
    int done, possible;
    double trajectories, reads, queries;
    const char *reason; /* lives as long as next */
    cJSON *next;
} round_result;

static double number(const cJSON *o, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(o, key);
    return cJSON_IsNumber(item) ? item->valuedouble : NAN;
}

static tv_status look(const tv_target_work *work, int64_t blocks, double target, round_result *r, tv_err *err) {
    cJSON *report = NULL;
    TV_TRY(work->report(work->user, blocks, &report, err));
    const tv_status s = tv_schedule_next(report, target, 0, &r->next, err);
    r->N = number(report, "N"), r->n = number(report, "n"), r->R = number(report, "R");
    cJSON_Delete(report);
    TV_TRY(s);
    r->half = number(r->next, "half_width"), r->bias = number(r->next, "bias_allowance");
    r->done = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(r->next, "done"));
    r->possible = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(r->next, "possible"));
    r->trajectories = number(r->next, "trajectories"), r->reads = number(r->next, "reads");
    r->queries = number(r->next, "queries");
    r->reason = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(r->next, "reason"));
    return TV_OK;
}

static void add_round(cJSON *rounds, const round_result *r) {
    cJSON *row = cJSON_CreateObject();
    cJSON_AddNumberToObject(row, "trajectories", r->N);
    cJSON_AddNumberToObject(row, "reads", r->R);
    cJSON_AddNumberToObject(row, "half_width", r->half);
    cJSON_AddNumberToObject(row, "bias_allowance", r->bias);
    cJSON_AddItemToArray(rounds, row);
}

static void say(const tv_target_work *work, const round_result *r, double target) {
    if (!work->say) return;
    char *line = r->done ? tv_xprintf("%.0f trajectories a side, %.0f reads: within +-%.4g", r->N, r->R, r->half)
                         : tv_xprintf("%.0f trajectories a side, %.0f reads: within +-%.4g; +-%.4g needs about %.0f "
                                      "trajectories and %.0f reads (%.3g queries a side)",
                                      r->N, r->R, r->half, target, r->trajectories, r->reads, r->queries);
    work->say(work->user, line);
    free(line);
}

/* Why measuring ends short of the target; NULL: it goes on. In fresh memory. */
static char *give_up(const tv_target_options *o, const round_result *now, const cJSON *rounds) {
    if (!now->possible) return tv_xstrdup(now->reason);
    for (const cJSON *row = rounds->child; row && now->reads > now->R; row = row->next) {
        const double R = number(row, "reads"), bias = number(row, "bias_allowance");
        if (now->R >= 4 * R && now->bias > STUCK * bias)
            return tv_xprintf(
                "the interval's allowance for bias is %.4g at %.0f reads and was %.4g at %.0f: more reads "
                "do not bring it below what the target leaves",
                now->bias, now->R, bias, R);
    }
    if (o->budget > 0 && now->queries > o->budget)
        return tv_xprintf("it would need about %.3g queries a side (%.0f trajectories, %.0f reads), and the budget is "
                          "%.3g",
                          now->queries, now->trajectories, now->reads, o->budget);
    return NULL;
}

static cJSON *answer(const tv_target_options *o, const round_result *r, const char *why_not, cJSON *rounds) {
    cJSON *out = cJSON_CreateObject();
    cJSON_AddNumberToObject(out, "target_error", o->target);
    cJSON_AddBoolToObject(out, "reached", r->done);
    cJSON_AddStringToObject(out, "reason", why_not ? why_not : r->reason);
    cJSON_AddNumberToObject(out, "half_width", r->half);
    cJSON_AddNumberToObject(out, "bias_allowance", r->bias);
    cJSON_AddNumberToObject(out, "trajectories", r->N);
    cJSON_AddNumberToObject(out, "reads", r->R);
    cJSON_AddNumberToObject(out, "queries", 2 * r->N * r->n * r->R);
    static const char *const keys[] = {"needed_trajectories", "needed_reads", "needed_queries"};
    const double needed[] = {r->trajectories, r->reads, r->queries};
    for (int k = 0; k < 3; k++)
        if (r->done)
            tv_json_add_null(out, keys[k], "the target is reached");
        else if (isfinite(needed[k]))
            cJSON_AddNumberToObject(out, keys[k], needed[k]);
        else
            tv_json_add_null(out, keys[k], r->reason);
    cJSON_AddItemToObject(out, "rounds", rounds);
    return out;
}

tv_status tv_target_run(const tv_target_options *o, const tv_target_work *work, cJSON **result, tv_err *err) {
    *result = NULL;
    if (!(o->target > 0 && o->target < 1))
        return TV_FAIL(err, TV_EARG, "a target error of %g: it must lie within (0, 1)", o->target);
    if (o->block < 1 || o->reads < 1)
        return TV_FAIL(err, TV_EARG, "blocks of %lld trajectories with %lld reads: at least 1 of each",
                       (long long)o->block, (long long)o->reads);
    const int64_t at_least = o->at_least > 0 ? o->at_least : AT_LEAST;
    int64_t blocks = (at_least + o->block - 1) / o->block, reads = o->reads;
    round_result now = {0};
    cJSON *rounds = cJSON_CreateArray();
    char *why_not = NULL;
    tv_status s;
    for (;;) {
        s = work->measure(work->user, blocks, reads, err);
        if (s == TV_OK) s = look(work, blocks, o->target, &now, err);
        if (s != TV_OK) break;
        add_round(rounds, &now);
        say(work, &now, o->target);
        if (now.done || (why_not = give_up(o, &now, rounds))) break;
        /* Doubling at most; a deterministic side's reads cannot grow, so that R may stay where it is. */
        const double wanted = ceil(now.trajectories / (double)o->block);
        const int64_t more = wanted < 2.0 * (double)blocks ? (int64_t)wanted : 2 * blocks;
        const int64_t deeper = now.reads < 2.0 * (double)reads ? (int64_t)now.reads : 2 * reads;
        const int64_t was_blocks = blocks, was_reads = reads;
        if (more > blocks) blocks = more;
        if (deeper > reads) reads = deeper;
        if (blocks == was_blocks && reads == was_reads) blocks++;
        cJSON_Delete(now.next);
        now.next = NULL;
    }
    if (s == TV_OK)
        *result = answer(o, &now, why_not, rounds);
    else
        cJSON_Delete(rounds);
    free(why_not);
    cJSON_Delete(now.next);
    return s;
}
