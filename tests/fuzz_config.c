/* libFuzzer entry for model configurations: config.json, a NUL byte, generation_config.json. A configuration that is
 * accepted must hold sizes that the engine can multiply, and give finite rope frequencies. */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "models/config.h"
#include "models/rope.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *text = (const char *)data, *nul = memchr(text, 0, size), *generation = nul ? nul + 1 : NULL;
    size_t text_size = nul ? (size_t)(nul - text) : size;
    tv_config c;
    tv_err err = {0};
    if (tv_config_parse(text, text_size, generation, nul ? size - text_size - 1 : 0, "fuzz", &c, &err) != TV_OK) {
        TV_ASSERT(err.message[0] && !c.layer_sparse);
        return 0;
    }
    TV_ASSERT(c.n_layers > 0 && c.d_model > 0 && c.vocab_size > 0 && c.max_positions > 0);
    TV_ASSERT(c.n_kv_heads > 0 && c.n_heads % c.n_kv_heads == 0 && c.head_size % 8 == 0 && c.head_size <= 256);
    TV_ASSERT(c.n_experts_used <= c.n_experts && c.n_eos <= TV_MAX_EOS);
    for (int i = 0; i < c.n_eos; i++) TV_ASSERT(c.eos[i] >= 0 && c.eos[i] < c.vocab_size);
    double freq[128], factor;
    tv_rope_frequencies(&c, freq, &factor);
    TV_ASSERT(isfinite(factor));
    for (int i = 0; i < c.head_size / 2; i++) TV_ASSERT(isfinite(freq[i]));
    tv_config_free(&c);
    return 0;
}
