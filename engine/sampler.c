/* Sampling: trajectories drawn through the step loop, and one continuation streamed. */
#include <stdlib.h>

#include "base/file.h"
#include "engine/session.h"

tv_status tv_session_sample(tv_session *s, const tv_job *job, char side, const tv_progress *progress, tv_trace **out,
                            tv_err *err) {
    tv_pass pass = {.N = job->N,
                    .n = job->n,
                    .P = job->P,
                    .prompt_ids = job->prompt_ids,
                    .prompt_offsets = job->prompt_offsets,
                    .prompt_index = job->prompt_index,
                    .trajectory = job->trajectory,
                    .seed = job->seed,
                    .pass = -1};
    TV_TRY(tv_pass_check(s, &pass, err));
    char set[2] = {side, 0};
    tv_trace *trace = NULL;
    TV_TRY(tv_pass_trace(s, &pass, side, set, NULL, &trace, err));
    tv_trace_mut mut = tv_trace_writable(trace);
    pass.tokens = mut.tokens;
    pass.lengths = mut.lengths;
    tv_status status = tv_pass_run(s, &pass, progress, err);
    if (status != TV_OK) {
        tv_trace_close(trace);
        return status;
    }
    tv_pass_finish(s, trace);
    *out = trace;
    return TV_OK;
}

tv_status tv_session_generate(tv_session *s, const int32_t *prompt, int64_t n_prompt, int64_t n, uint64_t seed,
                              int (*fn)(void *user, int32_t id), void *user, tv_err *err) {
    if (n_prompt < 1) return TV_FAIL(err, TV_EARG, "the prompt has no tokens: a prompt needs at least one");
    if (n_prompt > s->max_positions || n < 1 || n > s->max_positions - n_prompt)
        return TV_FAIL(err, TV_EARG, "a prompt of %lld tokens and -n %lld do not fit into the session's %lld positions",
                       (long long)n_prompt, (long long)n, (long long)s->max_positions);
    int32_t offsets[2] = {0, (int32_t)n_prompt}, length = 0;
    tv_pass pass = {.N = 1,
                    .n = n,
                    .P = 1,
                    .prompt_ids = prompt,
                    .prompt_offsets = offsets,
                    .seed = seed,
                    .pass = -1,
                    .lengths = &length,
                    .on_token = fn,
                    .user = user};
    TV_TRY(tv_pass_check(s, &pass, err));
    pass.tokens = tv_xmalloc((size_t)n * sizeof *pass.tokens);
    tv_status status = tv_pass_run(s, &pass, NULL, err);
    free(pass.tokens);
    return status;
}
