/* libFuzzer: no bytes make the safetensors reader read outside them; what it accepts keeps its promises. */
#include <stdlib.h>
#include <string.h>

#include "traces/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    tv_st_file *f;
    tv_err err = {0};
    if (tv_st_parse(data, size, "fuzz", &f, &err) != TV_OK) {
        TV_ASSERT(err.message[0]);
        return 0;
    }
    size_t bytes = 0;
    for (size_t i = 0; i < tv_st_count(f); i++) {
        const tv_st_tensor *t = tv_st_at(f, i);
        size_t want = tv_dtype_size(t->dtype);
        for (int d = 0; d < t->n_dims; d++) want *= (size_t)t->shape[d];
        TV_ASSERT(want == t->bytes && tv_st_find(f, t->name) == t && strlen(t->name) < size);
        bytes += t->bytes;
        void *copy;
        const unsigned char *p = tv_st_aligned(t, &copy);
        unsigned sum = 0;
        for (size_t j = 0; j < t->bytes; j++) sum += p[j];
        TV_ASSERT(t->bytes < size && sum <= 255 * size);
        free(copy);
    }
    TV_ASSERT(bytes < size);
    (void)tv_st_meta(f, "format");
    tv_st_close(f);
    return 0;
}
