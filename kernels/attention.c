/* The table of attention backends and the one place that chooses among them. */
#include "kernels/attention.h"

#include <stdio.h>
#include <string.h>

#include "kernels/cpu/attention.h"
#include "kernels/cuda/attention.h"

static int cpu_supports(const tv_attn_limits *l, const char **why) {
    *why = l->HS < 1 || l->HS % CPU_ATTN_HEAD_STEP || l->HS > CPU_ATTN_MAX_HEAD
               ? "needs a head size that is a multiple of 8, at most 256"
           : l->G < 1 || l->H < 1 || l->H % l->G ? "needs a number of query heads that is a multiple of the kv heads"
                                                 : NULL;
    return !*why;
}

enum { CPU_CAPS = TV_ATTN_BATCH_INVARIANT | TV_ATTN_KV_BYTES };
static const tv_attn_backend cpu_flash = {"flash", "cpu", CPU_CAPS, cpu_supports, cpu_attn_flash};
static const tv_attn_backend cpu_math = {"math", "cpu", CPU_CAPS, cpu_supports, cpu_attn_math};
static const tv_attn_backend cpu_eager = {"eager", "cpu", CPU_CAPS, cpu_supports, cpu_attn_eager};

#ifdef TV_CUDA
enum { OURS = TV_ATTN_BATCH_INVARIANT | TV_ATTN_GRAPH_SAFE | TV_ATTN_KV_BYTES };
static int cuda_supports(const tv_attn_limits *l, const char **why) {
    *why = l->HS < 1 || l->HS % CUDA_ATTN_HEAD_STEP || l->HS > CUDA_ATTN_MAX_HEAD
               ? "needs a head size that is a multiple of 8, at most 256"
           : l->G < 1 || l->H < 1 || l->H % l->G ? "needs a number of query heads that is a multiple of the kv heads"
                                                 : NULL;
    return !*why;
}

static int cuda_flash_supports(const tv_attn_limits *l, const char **why) {
    if (!cuda_supports(l, why)) return 0;
    if (l->kv_dtype != TV_BF16 && (l->HS % CUDA_ATTN_BYTES_HEAD_STEP || l->HS > CUDA_ATTN_BYTES_MAX_HEAD))
        *why = "needs a head size that is a multiple of 16, at most 128, for an fp8 or int8 cache";
    return !*why;
}

static const tv_attn_backend cuda_cudnn = {"cudnn", "cuda", TV_ATTN_BATCH_INVARIANT | TV_ATTN_GRAPH_SAFE,
                                           cuda_cudnn_supports, cuda_backend_cudnn};
static const tv_attn_backend cuda_flash = {"flash", "cuda", OURS, cuda_flash_supports, cuda_backend_flash};
static const tv_attn_backend cuda_math = {"math", "cuda", OURS, cuda_supports, cuda_backend_math};
static const tv_attn_backend cuda_eager = {"eager", "cuda", OURS, cuda_supports, cuda_backend_eager};
#endif

/* In order of preference within a device. */
static const tv_attn_backend *const backends[] = {
#ifdef TV_CUDA
    &cuda_cudnn, &cuda_flash, &cuda_math, &cuda_eager,
#endif
    &cpu_flash,  &cpu_math,   &cpu_eager};
enum { N_BACKENDS = sizeof backends / sizeof *backends };

/* Names that mean something, whether or not this build has them, and what they need. */
static const struct {
    const char *name, *needs;
} names[] = {{"flash", NULL}, {"math", NULL}, {"eager", NULL}, {"cudnn", "needs a CUDA device"}};

const tv_attn_backend *const *tv_attn_backends(int *n) {
    *n = N_BACKENDS;
    return backends;
}

int tv_attn_supports(const tv_attn_backend *b, const tv_attn_limits *limits, const char **why) {
    if (limits->kv_dtype != TV_BF16 && !(b->caps & TV_ATTN_KV_BYTES)) {
        *why = "reads a bf16 cache only (--kv-dtype bf16)";
        return 0;
    }
    return b->supports(limits, why);
}

tv_status tv_attn_choose(const tv_attn_limits *limits, const char *name, const tv_attn_backend **out, tv_err *err) {
    int any = !strcmp(name, "auto");
    const char *reason = NULL;
    for (int i = 0; i < N_BACKENDS; i++) {
        const tv_attn_backend *b = backends[i];
        const char *why = NULL;
        if (strcmp(b->device, limits->device) || (!any && strcmp(b->name, name))) continue;
        if (tv_attn_supports(b, limits, &why)) {
            *out = b;
            return TV_OK;
        }
        reason = why;
    }

    char list[640] = "";
    for (int i = 0; i < N_BACKENDS; i++) {
        if (strcmp(backends[i]->device, limits->device)) continue;
        const char *why = NULL;
        int can = tv_attn_supports(backends[i], limits, &why);
        size_t used = strlen(list);
        snprintf(list + used, sizeof list - used, "%s%s (%.120s%s)", used ? ", " : "", backends[i]->name,
                 can ? "available" : why, !can && strlen(why) > 120 ? "..." : "");
    }
    if (!*list) snprintf(list, sizeof list, "none");
    int known = any;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(names[i].name, name)) known = 1, reason = reason ? reason : names[i].needs;
    if (!known)
        return TV_FAIL(err, TV_EARG, "attention backend %s is unknown; on device %s there are: auto, %s", name,
                       limits->device, list);
    return TV_FAIL(err, TV_EUNSUPPORTED, "attention backend %s %s (H=%d, G=%d, HS=%d); on device %s there are: %s",
                   name, reason ? reason : "does not exist on this device", limits->H, limits->G, limits->HS,
                   limits->device, list);
}
