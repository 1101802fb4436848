/* libFuzzer: trace files and bundles from arbitrary bytes. The fuzzer rarely gets a header past the safetensors reader,
 * so the input is also taken as a recipe: it chooses dims, metadata and which tensors there are, and fills their
 * values. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "traces/dataset.h"
#include "traces/trace.h"

static void read_trace(const uint8_t *data, size_t size) {
    tv_err err = {0};
    tv_trace *t;
    if (tv_trace_parse(data, size, "fuzz", &t, &err) != TV_OK) {
        TV_ASSERT(err.message[0]);
        return;
    }
    int64_t differing, of;
    /* every value that counts is readable and equals itself bit for bit */
    TV_ASSERT(tv_trace_same(t, t, &differing, &of) && differing == 0);
    for (int64_t i = 0; i < t->N; i++) TV_ASSERT(t->prompt_index[i] < t->P && (!t->lengths || t->lengths[i] <= t->n));
    tv_trace_close(t);
}

static void read_bundle(const uint8_t *data, size_t size) {
    tv_err err = {0};
    tv_dataset *d;
    if (tv_dataset_parse_bundle(data, size, "fuzz", &d, &err) != TV_OK) {
        TV_ASSERT(err.message[0]);
        return;
    }
    for (int s = 0; s < 2; s++)
        for (int e = 0; e < 2; e++)
            for (int64_t r = 0; r < d->set[s].reads[e]; r++)
                for (int64_t j = 0; j < d->set[s].N * d->n * d->set[s].k[e]; j++) {
                    volatile int32_t id = d->set[s].ids[e][r][j];
                    volatile float lp = d->set[s].lps[e][r][j];
                    (void)id, (void)lp;
                }
    tv_dataset_close(d);
}

/* The input as a stream of small choices; zero at its end. */
typedef struct {
    const uint8_t *p, *end;
} stream;

static unsigned take(stream *in, unsigned below) { return in->p < in->end ? *in->p++ % below : 0; }

/* A value for an element of dtype: mostly plausible, so that the checks behind the first are reached. */
static void fill(stream *in, tv_dtype dtype, unsigned char *at) {
    static const float f32[] = {-1, -2, -3, -4, -0.5f, 0, 1, -1e30f};
    unsigned c = take(in, 256);
    if (dtype == TV_F32) {
        float v = f32[c % 8];
        uint32_t special = c & 16 ? 0xff800000u : 0x7fc00000u; /* -inf, NaN */
        memcpy(at, c >= 224 ? (void *)&special : (void *)&v, 4);
    } else if (dtype == TV_I64) {
        int64_t v = (int64_t)c - 1;
        memcpy(at, &v, 8);
    } else {
        int32_t v = (int32_t)(c % 16) - 1;
        if (c > 250) v = (int32_t)(c * 16777619u);
        memcpy(at, &v, 4);
    }
}

/* Builds a file in memory: header from the recipe, data from the stream. */
typedef struct {
    FILE *header;
    unsigned char data[1 << 14];
    size_t used;
    stream in;
} builder;

static void tensor(builder *b, const char *name, tv_dtype dtype, int n_dims, const unsigned *shape) {
    if (take(&b->in, 16) == 15) return; /* left out */
    size_t elements = 1, size = tv_dtype_size(dtype);
    for (int d = 0; d < n_dims; d++) elements *= shape[d];
    if (b->used + elements * size > sizeof b->data) return;
    fprintf(b->header, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", name, tv_dtype_name(dtype));
    for (int d = 0; d < n_dims; d++) fprintf(b->header, "%s%u", d ? "," : "", shape[d]);
    fprintf(b->header, "],\"data_offsets\":[%zu,%zu]}", b->used, b->used + elements * size);
    for (size_t i = 0; i < elements; i++) fill(&b->in, dtype, b->data + b->used + i * size);
    b->used += elements * size;
}

static void recipe(const uint8_t *data, size_t size) {
    builder *b = tv_xcalloc(1, sizeof *b);
    b->in = (stream){data, data + size};
    char *header = NULL;
    size_t header_size;
    b->header = open_memstream(&header, &header_size);
    int is_bundle = (int)take(&b->in, 2);
    unsigned N = take(&b->in, 4), n = take(&b->in, 4), k = take(&b->in, 5), R = take(&b->in, 4),
             P = 1 + take(&b->in, 3);
    unsigned odd = take(&b->in, 8); /* bytes of padding: misaligned data */
    fprintf(b->header, "{\"__metadata__\":{\"format\":\"tvgpu-%s/1\"", is_bundle ? "bundle" : "trace");
    if (is_bundle) {
        if (take(&b->in, 2))
            fprintf(b->header, ",\"deterministic_a\":\"%u\",\"temperature\":\"%u\"", take(&b->in, 3), take(&b->in, 3));
    } else {
        fprintf(b->header,
                ",\"side\":\"%c\",\"set\":\"a\",\"pass\":\"%d\",\"k\":\"%u\",\"temperature\":\"1\",\"seed\":\"0\","
                "\"configuration\":\"{}\"",
                "ab"[take(&b->in, 2)], (int)take(&b->in, 4) - 1, k);
    }
    fputc('}', b->header);
    if (is_bundle) {
        for (int s = 0; s < 2; s++) {
            char name[64];
            unsigned N_s = N + (s && take(&b->in, 2));
            snprintf(name, sizeof name, "tokens_%c", "ab"[s]), tensor(b, name, TV_I32, 2, (unsigned[]){N_s, n});
            if (take(&b->in, 4) == 1)
                snprintf(name, sizeof name, "lengths_%c", "ab"[s]), tensor(b, name, TV_I32, 1, &N_s);
            if (take(&b->in, 4) == 1)
                snprintf(name, sizeof name, "trajectory_%c", "ab"[s]), tensor(b, name, TV_I64, 1, &N_s);
            if (take(&b->in, 4) == 1)
                snprintf(name, sizeof name, "sample_ids_%c", "ab"[s]),
                    tensor(b, name, TV_I32, 3, (unsigned[]){N_s, n, k});
            if (take(&b->in, 4) == 1)
                snprintf(name, sizeof name, "sample_lps_%c", "ab"[s]),
                    tensor(b, name, TV_F32, 3, (unsigned[]){N_s, n, k});
            for (int e = 0; e < 2; e++) {
                snprintf(name, sizeof name, "ids_%c_%c", "ab"[e], "ab"[s]),
                    tensor(b, name, TV_I32, 4, (unsigned[]){R, N_s, n, k});
                snprintf(name, sizeof name, "lps_%c_%c", "ab"[e], "ab"[s]),
                    tensor(b, name, TV_F32, 4, (unsigned[]){R, N_s, n, k});
                if (take(&b->in, 4) == 1)
                    snprintf(name, sizeof name, "token_logprobs_%c_%c", "ab"[e], "ab"[s]),
                        tensor(b, name, TV_F32, 3, (unsigned[]){R, N_s, n});
            }
        }
    } else {
        unsigned ids = take(&b->in, 4), offsets = P + 1;
        tensor(b, "trajectory", TV_I64, 1, &N);
        tensor(b, "tokens", TV_I32, 2, (unsigned[]){N, n});
        if (take(&b->in, 2)) tensor(b, "lengths", TV_I32, 1, &N);
        if (k)
            tensor(b, "topk_ids", TV_I32, 3, (unsigned[]){N, n, k}),
                tensor(b, "topk_logprobs", TV_F32, 3, (unsigned[]){N, n, k});
        tensor(b, "token_logprobs", TV_F32, 2, (unsigned[]){N, n});
        tensor(b, "token_rank", TV_I32, 2, (unsigned[]){N, n});
        tensor(b, "prompt_ids", TV_I32, 1, &ids);
        tensor(b, "prompt_offsets", TV_I32, 1, &offsets);
        tensor(b, "prompt_index", TV_I32, 1, &N);
    }
    fprintf(b->header, "}%*s", (int)odd, "");
    fclose(b->header);
    size_t total = 8 + header_size + b->used;
    unsigned char *file = tv_xmalloc(total); /* exact: reads behind it are seen */
    for (int i = 0; i < 8; i++) file[i] = (unsigned char)(header_size >> (8 * i));
    memcpy(file + 8, header, header_size);
    memcpy(file + 8 + header_size, b->data, b->used);
    if (is_bundle)
        read_bundle(file, total);
    else
        read_trace(file, total);
    free(file);
    free(header);
    free(b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    read_trace(data, size);
    read_bundle(data, size);
    recipe(data, size);
    return 0;
}
