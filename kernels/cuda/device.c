/* The CUDA device: opening a card, memory, matrices, and the table of operations. */
#include "kernels/cuda/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

static const double MiB = 1 << 20;

static int available(char *why, size_t size) { return cuda_rt_cards(why, size) > 0; }

static tv_status dev_open(const tv_dev_options *options, tv_dev **out, tv_err *err) {
    tv_dev *dev = tv_xcalloc(1, sizeof *dev);
    dev->generation = 1;
    tv_status s = cuda_rt_open(options->gpu, &dev->info, err);
    if (s == TV_OK) s = cuda_rt_stream_open(&dev->stream, err);
    if (s == TV_OK && (s = cuda_lt_open(dev, err)) != TV_OK) cuda_rt_stream_close(dev->stream);
    if (s != TV_OK) {
        free(dev);
        return s;
    }
    snprintf(dev->description, sizeof dev->description, "cuda:%d, %s, sm_%d%d, %d multiprocessors", options->gpu,
             dev->info.name, dev->info.major, dev->info.minor, dev->info.multiprocessors);
    *out = dev;
    return TV_OK;
}

static void dev_close(tv_dev *dev) {
    if (!dev) return;
    cuda_steps_close(dev);
    cuda_cudnn_close(dev);
    for (int i = 0; i < 2; i++) {
        if (dev->stage_read[i]) cuda_rt_event_close(dev->stage_read[i]);
        cuda_rt_host_free(dev->stage[i]);
    }
    cuda_moe_close(dev);
    cuda_lt_close(dev);
    cuda_rt_stream_close(dev->stream);
    for (int i = 0; i < CUDA_N_SCRATCH; i++) cuda_rt_free(dev->scratch[i]);
    cuda_rt_free(dev->segments);
    free(dev->segments_host);
    free(dev);
}

static const char *describe(const tv_dev *dev) { return dev->description; }

/* What a session may plan with: the rest is for scratch, graphs and the libraries. */
static uint64_t memory_total(const tv_dev *dev) {
    const uint64_t reserve = (uint64_t)512 << 20;
    return dev->info.free > reserve ? dev->info.free - reserve : 0;
}

static char *libraries(const tv_dev *dev, const void *owner) {
    uint64_t owners = owner ? 0 : UINT64_MAX;
    for (int i = 0; owner && i < CUDA_OWNERS; i++)
        if (dev->owners[i] == owner) owners = UINT64_C(1) << i;
    char *products = cuda_lt_text(dev, owners), *attention = cuda_cudnn_text(dev, owners);
    char *text = tv_xprintf("%s%s", products, attention);
    free(products);
    free(attention);
    return text;
}

static tv_status dev_alloc(tv_dev *dev, size_t bytes, void **p, tv_err *err) {
    tv_err own = {0};
    if (cuda_rt_alloc(bytes, p, &own) != TV_OK) {
        if (own.code != TV_ENOMEM) return TV_FAIL(err, own.code, "%s", own.message);
        return TV_FAIL(err, TV_ENOMEM, "cuda: %.1f MiB asked for, with %.1f MiB in use of the %.1f MiB that were free",
                       (double)bytes / MiB, (double)dev->allocated / MiB, (double)dev->info.free / MiB);
    }
    tv_status s = cuda_rt_zero(*p, bytes, dev->stream, err);
    if (s != TV_OK) {
        cuda_rt_free(*p);
        return s;
    }
    dev->allocated += bytes;
    return TV_OK;
}

static void dev_free(tv_dev *dev, void *p, size_t bytes) {
    if (!p) return;
    tv_err err = {0};
    if (cuda_rt_stream_sync(dev->stream, &err) != TV_OK) tv_err_clear(&err); /* its first failure was reported then */
    cuda_rt_free(p);
    dev->allocated -= bytes;
}

/* Through the pinned buffers: the runtime's own way for pageable memory copies at a fraction of the bus's speed, and
 * stops the host meanwhile. */
static tv_status upload_staged(tv_dev *dev, char *dst, const char *src, size_t bytes, tv_err *err) {
    for (int i = 0; i < 2 && !dev->stage[1]; i++) {
        if (!dev->stage[i]) TV_TRY(cuda_rt_host_alloc(CUDA_STAGE, &dev->stage[i], err));
        if (!dev->stage_read[i]) TV_TRY(cuda_rt_event_open(&dev->stage_read[i], err));
    }
    for (size_t at = 0; at < bytes; at += CUDA_STAGE, dev->stage_next ^= 1) {
        const int i = dev->stage_next;
        const size_t n = bytes - at < CUDA_STAGE ? bytes - at : CUDA_STAGE;
        TV_TRY(cuda_rt_event_sync(dev->stage_read[i], err));
        memcpy(dev->stage[i], src + at, n);
        TV_TRY(cuda_rt_copy(dst + at, dev->stage[i], n, dev->stream, err));
        TV_TRY(cuda_rt_event_record(dev->stage_read[i], dev->stream, err));
    }
    return TV_OK;
}

static tv_status upload(tv_dev *dev, void *dst, const void *src, size_t bytes, tv_err *err) {
    enum { SMALL = 64 << 10 }; /* up to here the runtime itself copies at once and lets the host go on */
    if (bytes && (!dst || !src)) return TV_FAIL(err, TV_EARG, "upload: %s is NULL", dst ? "src" : "dst");
    if (bytes > SMALL) return upload_staged(dev, dst, src, bytes, err);
    return bytes ? cuda_rt_copy(dst, src, bytes, dev->stream, err) : TV_OK;
}

static tv_status download(tv_dev *dev, void *dst, const void *src, size_t bytes, tv_err *err) {
    if (bytes && (!dst || !src)) return TV_FAIL(err, TV_EARG, "download: %s is NULL", dst ? "src" : "dst");
    if (bytes) TV_TRY(cuda_rt_copy(dst, src, bytes, dev->stream, err));
    return cuda_rt_stream_sync(dev->stream, err);
}

static tv_status sync(tv_dev *dev, tv_err *err) { return cuda_rt_stream_sync(dev->stream, err); }

static tv_status copy_pinned(tv_dev *dev, void *dst, const void *src, size_t bytes, tv_err *err) {
    return cuda_rt_copy(dst, src, bytes, dev->stream, err);
}

static tv_status event_open(tv_dev *dev, tv_event **event, tv_err *err) {
    (void)dev;
    return cuda_rt_event_open((cuda_rt_event **)event, err);
}

static void event_close(tv_event *event) {
    if (event) cuda_rt_event_close((cuda_rt_event *)event);
}

static tv_status event_record(tv_dev *dev, tv_event *event, tv_err *err) {
    return cuda_rt_event_record((cuda_rt_event *)event, dev->stream, err);
}

static tv_status event_wait(tv_event *event, tv_err *err) { return cuda_rt_event_sync((cuda_rt_event *)event, err); }

tv_status cuda_scratch(tv_dev *dev, int kind, size_t bytes, void **p, tv_err *err) {
    TV_ASSERT(kind >= 0 && kind < CUDA_N_SCRATCH);
    if (bytes > dev->scratch_bytes[kind]) {
        dev_free(dev, dev->scratch[kind], dev->scratch_bytes[kind]);
        dev->scratch[kind] = NULL, dev->scratch_bytes[kind] = 0;
        TV_TRY(dev_alloc(dev, bytes, &dev->scratch[kind], err));
        dev->scratch_bytes[kind] = bytes;
        dev->generation++;
    }
    *p = dev->scratch[kind];
    return TV_OK;
}

tv_status cuda_segments(tv_dev *dev, const tv_segment *segments, int n, const tv_segment **out, tv_err *err) {
    size_t bytes = (size_t)n * sizeof *segments;
    if (dev->step_card && (dev->reach || segments == dev->step_host)) { /* or their envelope */
        *out = dev->step_card;
        return TV_OK;
    }
    if (n > dev->max_segments) {
        dev_free(dev, dev->segments, (size_t)dev->max_segments * sizeof *segments);
        dev->segments = NULL, dev->n_segments = dev->max_segments = 0;
        void *p;
        TV_TRY(dev_alloc(dev, bytes, &p, err));
        dev->segments = p, dev->max_segments = n;
        dev->generation++;
        free(dev->segments_host);
        dev->segments_host = tv_xmalloc(bytes);
    }
    if (n != dev->n_segments || memcmp(dev->segments_host, segments, bytes)) {
        memcpy(dev->segments_host, segments, bytes);
        dev->n_segments = n;
        TV_TRY(cuda_rt_copy(dev->segments, dev->segments_host, bytes, dev->stream, err));
    }
    *out = dev->segments;
    return TV_OK;
}

/* The rows of a packed part in `to` [N,K] bf16: a few at a time reach scratch and are expanded from there. */
static tv_status upload_packed(tv_dev *dev, const tv_packed_rows *rows, int N, int K, tv_bf16 *to, tv_err *err) {
    const size_t row = rows->bits == 8 ? (size_t)K : ((size_t)K + 1) / 2;
    const size_t groups = ((size_t)K + (size_t)rows->group - 1) / (size_t)rows->group,
                 scales = groups * sizeof(tv_bf16);
    const size_t room = dev->expand_scratch ? dev->expand_scratch : (size_t)CUDA_EXPAND, fit = room / (row + scales);
    const int most = fit < 1 ? 1 : fit < (size_t)N ? (int)fit : N;
    const size_t values = ((size_t)most * row + 15) / 16 * 16;
    void *scratch;
    TV_TRY(cuda_scratch(dev, CUDA_SCRATCH_EXPAND, values + (size_t)most * scales, &scratch, err));
    for (int j = 0, n; j < N; j += n) {
        n = N - j < most ? N - j : most;
        const tv_packed_rows part = {rows->bits, rows->group, scratch, (tv_bf16 *)(void *)((char *)scratch + values)};
        TV_TRY(upload(dev, part.q, rows->q + (size_t)j * row, (size_t)n * row, err));
        TV_TRY(upload(dev, part.scale, rows->scale + (size_t)j * groups, (size_t)n * scales, err));
        TV_TRY(cuda_expand(dev, &part, n, K, to + (size_t)j * (size_t)K, err));
    }
    return TV_OK;
}

/* After the check: parts as bf16, or packed. */
static tv_status load(tv_dev *dev, int n_parts, const void *const *parts, const tv_packed_rows *packed,
                      const int *part_N, const void *const *bias, int N, int K, tv_matrix *out, tv_err *err) {
    const size_t row = (size_t)K * sizeof(tv_bf16), values = (size_t)N * row;
    void *data;
    TV_TRY(dev_alloc(dev, values + (bias ? (size_t)N * sizeof(tv_bf16) : 0), &data, err));
    tv_bf16 *biases = (tv_bf16 *)((char *)data + values);
    tv_status s = TV_OK;
    size_t n = 0;
    for (int i = 0; i < n_parts && s == TV_OK; i++) {
        tv_bf16 *to = (tv_bf16 *)((char *)data + n * row);
        s = packed ? upload_packed(dev, &packed[i], part_N[i], K, to, err)
                   : upload(dev, to, parts[i], (size_t)part_N[i] * row, err);
        if (s == TV_OK && bias && bias[i])
            s = upload(dev, biases + n, bias[i], (size_t)part_N[i] * sizeof(tv_bf16), err);
        n += (size_t)part_N[i];
    }
    *out = (tv_matrix){.N = N, .K = K, .data = data, .bias = bias ? biases : NULL};
    return s;
}

static tv_status matrix_load(tv_dev *dev, int n_parts, const void *const *parts, const int *part_N,
                             const void *const *bias, int K, tv_matrix *out, tv_err *err) {
    int N = 0;
    TV_TRY(tv_check_matrix_load(n_parts, parts, part_N, K, out, &N, err));
    return load(dev, n_parts, parts, NULL, part_N, bias, N, K, out, err);
}

static tv_status matrix_load_packed(tv_dev *dev, int n_parts, const tv_packed_rows *parts, const int *part_N,
                                    const void *const *bias, int K, tv_matrix *out, tv_err *err) {
    int N = 0;
    TV_TRY(tv_check_matrix_load_packed(n_parts, parts, part_N, K, out, &N, err));
    return load(dev, n_parts, NULL, parts, part_N, bias, N, K, out, err);
}

static void matrix_free(tv_dev *dev, tv_matrix *m) {
    if (!m->data) return;
    size_t values = (size_t)m->N * (size_t)m->K * sizeof(tv_bf16);
    dev_free(dev, m->data, values + (m->bias ? (size_t)m->N * sizeof(tv_bf16) : 0));
    *m = (tv_matrix){0};
}

const tv_ops tv_ops_cuda = {.name = "cuda",
                            .available = available,
                            .open = dev_open,
                            .close = dev_close,
                            .describe = describe,
                            .memory_total = memory_total,
                            .alloc = dev_alloc,
                            .free = dev_free,
                            .upload = upload,
                            .download = download,
                            .sync = sync,
                            .host_alloc = cuda_rt_host_alloc,
                            .host_free = cuda_rt_host_free,
                            .upload_pinned = copy_pinned,
                            .download_pinned = copy_pinned,
                            .event_open = event_open,
                            .event_close = event_close,
                            .event_record = event_record,
                            .event_wait = event_wait,
                            .step_begin = cuda_step_begin,
                            .step_end = cuda_step_end,
                            .steps_forget = cuda_steps_forget,
                            .libraries = libraries,
                            .matrix_load = matrix_load,
                            .matrix_load_packed = matrix_load_packed,
                            .matrix_free = matrix_free,
                            .moe_scratch_bytes = cuda_moe_scratch_bytes,
                            .embed = cuda_embed,
                            .rmsnorm = cuda_rmsnorm,
                            .linear = cuda_linear,
                            .rope = cuda_rope,
                            .swiglu = cuda_swiglu,
                            .moe_route = cuda_moe_route,
                            .moe = cuda_moe,
                            .logprobs = cuda_logprobs,
                            .sample = cuda_sample,
                            .carry = cuda_carry};
