/* What the layers compute during a replay, brought to the host through the taps of the layer loop. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "engine/session.h"

typedef struct {
    tv_session *s;
    const tv_pass *pass;
    int64_t trajectory, positions;
    int64_t *index; /* [rows of a step] the trajectory behind each row with logits; -1: padding, or one not wanted */
    tv_activations *out;
} recorder;

/* Which trajectories the rows of the step at hand belong to: the same at all its taps. */
static void look_up(recorder *w) {
    const tv_step_io *io = &w->s->io;
    for (int r = 0; r < io->n_logits; r++) {
        w->index[r] = -1;
        if (io->token[r] < 0 || io->position[r] >= w->positions) continue; /* in a replay padding alone has no token */
        int64_t i = 0;
        while (i < w->pass->N && (w->pass->trajectory ? w->pass->trajectory[i] : i) != io->trajectory[r]) i++;
        if (i < w->pass->N) w->index[r] = i;
    }
}

static tv_activation *entry(recorder *w, const char *name, int layer, int width, tv_dtype dtype) {
    tv_activations *out = w->out;
    for (int x = 0; x < out->n; x++)
        if (out->at[x].layer == layer && !strcmp(out->at[x].name, name)) return &out->at[x];
    out->at = tv_xrealloc(out->at, (size_t)(out->n + 1) * sizeof *out->at);
    tv_activation *a = &out->at[out->n];
    *a = (tv_activation){.layer = layer, .width = width, .rows = w->positions};
    snprintf(a->name, sizeof a->name, "%s", name);
    if (dtype == TV_I32) a->rows *= w->pass->N;
    size_t n = (size_t)a->rows * (size_t)width;
    void *memory = calloc(n, 4);
    if (!memory) return NULL;
    if (dtype == TV_I32) {
        a->ids = memory;
        for (size_t j = 0; j < n; j++) a->ids[j] = -1;
    } else {
        a->values = memory;
    }
    out->n++;
    return a;
}

static void on_tap(void *user, const char *name, int layer, const void *data, int rows, int width, tv_dtype dtype) {
    recorder *w = user;
    tv_session *s = w->s;
    if (!strcmp(name, "embed")) look_up(w);
    if (s->tap_status != TV_OK) return;
    const int by_logit = rows == s->io.n_logits && layer < 0 && strcmp(name, "embed") != 0;
    size_t row_bytes = (size_t)width * tv_dtype_size(dtype);
    tv_activation *a = entry(w, name, layer, width, dtype);
    char *row = malloc(row_bytes);
    if (!a || !row)
        s->tap_status =
            TV_FAIL(s->tap_err, TV_ENOMEM, "no memory for the activations of %lld positions", (long long)w->positions);
    for (int r = 0; r < s->io.n_logits && s->tap_status == TV_OK; r++) {
        int64_t i = w->index[r], t = s->io.position[r];
        if (i < 0 || (dtype != TV_I32 && i != w->trajectory)) continue;
        const char *from = (const char *)data + (size_t)(by_logit ? r : s->io.logit_rows[r]) * row_bytes;
        s->tap_status = s->engine->ops->download(s->engine->dev, row, from, row_bytes, s->tap_err);
        if (s->tap_status != TV_OK) break;
        size_t at = (size_t)(dtype == TV_I32 ? i * w->positions + t : t) * (size_t)width;
        if (dtype == TV_BF16)
            for (int c = 0; c < width; c++) a->values[at + (size_t)c] = tv_f32_from_bf16(((tv_bf16 *)(void *)row)[c]);
        else
            memcpy(dtype == TV_I32 ? (void *)(a->ids + at) : (void *)(a->values + at), row, row_bytes);
    }
    free(row);
}

void tv_activations_free(tv_activations *a) {
    for (int x = 0; x < a->n; x++) {
        free(a->at[x].values);
        free(a->at[x].ids);
    }
    free(a->at);
    memset(a, 0, sizeof *a);
}

tv_status tv_session_activations(tv_session *s, const tv_trace *set, int64_t trajectory, int64_t positions,
                                 int64_t number, tv_activations *out, tv_err *err) {
    tv_pass pass;
    memset(out, 0, sizeof *out);
    TV_TRY(tv_pass_from_set(s, set, number, &pass, err));
    if (trajectory < 0 || trajectory >= pass.N || positions < 1 || positions > pass.n)
        return TV_FAIL(err, TV_EARG, "%lld positions of trajectory %lld: the set has %lld trajectories of %lld tokens",
                       (long long)positions, (long long)trajectory, (long long)pass.N, (long long)pass.n);
    int32_t *lengths = tv_xmalloc((size_t)pass.N * sizeof *lengths);
    for (int64_t i = 0; i < pass.N; i++) {
        lengths[i] = pass.given_lengths ? pass.given_lengths[i] : (int32_t)pass.n;
        if (lengths[i] > positions) lengths[i] = (int32_t)positions;
    }
    pass.given_lengths = lengths;
    recorder w = {s, &pass, trajectory, positions, tv_xmalloc((size_t)s->limits.logits * sizeof(int64_t)), out};
    s->observer = (tv_tap){on_tap, &w};
    tv_status status = tv_pass_run(s, &pass, NULL, err);
    s->observer = (tv_tap){0};
    free(w.index);
    free(lengths);
    if (status != TV_OK) tv_activations_free(out);
    return status;
}
