/* libFuzzer entry for tokenizers: tokenizer.json, a NUL byte, tokenizer_config.json, a NUL byte, text. The files may be
 * left out from behind. What is accepted must encode text, give the same bytes back, and render a chat or say why not.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "models/tokenizer.h"
#include "models/unicode.h"

/* Splits *data at its first NUL; the part before it. */
static const char *part(const char **data, size_t *left, size_t *size) {
    const char *text = *data, *nul = *left ? memchr(text, 0, *left) : NULL;
    *size = nul ? (size_t)(nul - text) : *left;
    *data = nul ? nul + 1 : text + *left;
    *left -= *size + (nul != NULL);
    return text;
}

static void check_text(const tv_tokenizer *tok, const char *text, size_t size) {
    int32_t *ids = NULL;
    size_t n = 0, back_size = 0, normal_size = 0;
    char *back = NULL, *normal = NULL;
    tv_err err = {0};
    if (tv_tokenizer_encode(tok, text, size, &ids, &n, &err) != TV_OK) {
        TV_ASSERT(err.message[0] && !ids);
        return;
    }
    TV_ASSERT(tv_utf8_check(text, size) == size && n <= 4 * size);
    for (size_t i = 0; i < n; i++) TV_ASSERT(ids[i] >= 0 && ids[i] < tv_tokenizer_size(tok));
    TV_ASSERT(tv_tokenizer_decode(tok, ids, n, 0, 0, &back, &back_size, &err) == TV_OK);
    TV_ASSERT(tv_nfc(text, size, &normal, &normal_size, &err) == TV_OK);
    if (!normal) TV_ASSERT(back_size == size && !memcmp(back, text, size)); /* ASCII is its own normal form */
    free(ids), free(back), free(normal);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *at = (const char *)data;
    size_t json_size, config_size, left = size;
    const char *json = part(&at, &left, &json_size), *config = part(&at, &left, &config_size);
    tv_tokenizer *tok = NULL;
    tv_err err = {0};
    if (tv_tokenizer_parse(json, json_size, config_size ? config : NULL, config_size, "fuzz", &tok, &err) != TV_OK) {
        TV_ASSERT(err.message[0] && !tok);
        return 0;
    }
    check_text(tok, at, left);
    check_text(tok, "Hi, it's 42  x\n", 15);
    const tv_message messages[] = {
        {"system", "s"}, {"user", "a"}, {"assistant", "<think>\nb\n</think>\n\nc"}, {"user", "d"}};
    char *prompt = NULL;
    if (tv_chat_render(tok, messages, 4, TV_THINKING_DEFAULT, &prompt, &err) == TV_OK)
        check_text(tok, prompt, strlen(prompt));
    else
        TV_ASSERT(err.message[0] && !prompt);
    free(prompt);
    tv_tokenizer_close(tok);
    return 0;
}
