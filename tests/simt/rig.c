#include "tests/simt/rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "tests/check.h"

enum { GUARD = 256, MOST = 4096 };
static struct {
    unsigned char *base;
    size_t bytes;
} blocks[MOST];
static int n_blocks;

static void must(tv_status status, const tv_err *err) {
    if (status != TV_OK) fprintf(stderr, "    %s\n", err->message);
    TV_ASSERT(status == TV_OK);
}

tv_dev *rig_open(void) {
    tv_err err = {0};
    char why[256];
    if (!tv_ops_cuda.available(why, sizeof why)) { /* then no test of this executable can run */
        printf("skip: %s\n", why);
        exit(77);
    }
    tv_dev *dev = NULL;
    must(tv_ops_cuda.open(&(tv_dev_options){0}, &dev, &err), &err);
    return dev;
}

void rig_close(tv_dev *dev) {
    for (int i = 0; i < n_blocks; i++) tv_ops_cuda.free(dev, blocks[i].base, blocks[i].bytes + 2 * GUARD);
    n_blocks = 0;
    tv_ops_cuda.close(dev);
}

void *rig_put(tv_dev *dev, const void *host, size_t bytes) {
    tv_err err = {0};
    TV_ASSERT(n_blocks < MOST);
    unsigned char *image = tv_xmalloc(bytes + 2 * GUARD);
    memset(image, 0xff, bytes + 2 * GUARD);
    if (host) memcpy(image + GUARD, host, bytes);
    void *base;
    must(tv_ops_cuda.alloc(dev, bytes + 2 * GUARD, &base, &err), &err);
    must(tv_ops_cuda.upload(dev, base, image, bytes + 2 * GUARD, &err), &err);
    must(tv_ops_cuda.sync(dev, &err), &err);
    free(image);
    blocks[n_blocks].base = base;
    blocks[n_blocks++].bytes = bytes;
    return (unsigned char *)base + GUARD;
}

void rig_get(tv_dev *dev, void *host, const void *p) {
    tv_err err = {0};
    int i = 0;
    while (i < n_blocks && blocks[i].base + GUARD != p) i++;
    TV_ASSERT(i < n_blocks);
    const size_t bytes = blocks[i].bytes;
    unsigned char *image = tv_xmalloc(bytes + 2 * GUARD);
    must(tv_ops_cuda.download(dev, image, blocks[i].base, bytes + 2 * GUARD, &err), &err);
    for (size_t j = 0; j < GUARD; j++)
        if (image[j] != 0xff || image[GUARD + bytes + j] != 0xff) {
            CHECK(!"device memory beside a buffer was written");
            break;
        }
    memcpy(host, image + GUARD, bytes);
    free(image);
}

void rig_drop(tv_dev *dev, void *p) {
    int i = 0;
    while (i < n_blocks && blocks[i].base + GUARD != p) i++;
    TV_ASSERT(i < n_blocks);
    tv_ops_cuda.free(dev, blocks[i].base, blocks[i].bytes + 2 * GUARD);
    blocks[i] = blocks[--n_blocks];
}

tv_bf16 *rig_normals(uint64_t seed, size_t n, double scale) {
    tv_rng rng = {seed};
    tv_bf16 *p = tv_xmalloc((n ? n : 1) * sizeof *p);
    for (size_t i = 0; i < n; i++) p[i] = tv_bf16_from_f32((float)(scale * tv_rng_normal(&rng)));
    return p;
}

/* The emulator's (runtime_simt.cpp); absent where the device is a card. */
__attribute__((weak)) void simt_schedule(int i);
__attribute__((weak)) uint64_t simt_bank_conflicts(void);

int rig_schedules(void) { return simt_schedule ? 4 : 1; }

void rig_schedule(int i) {
    if (simt_schedule) simt_schedule(i);
}

uint64_t rig_bank_conflicts(void) { return simt_bank_conflicts ? simt_bank_conflicts() : 0; }
