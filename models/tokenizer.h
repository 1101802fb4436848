/* Text to token ids and back: byte-level BPE from tokenizer.json. */
#ifndef TV_TOKENIZER_H
#define TV_TOKENIZER_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct tv_tokenizer tv_tokenizer;

/* Reads DIR/tokenizer.json and, where present, DIR/tokenizer_config.json and DIR/chat_template.jinja (which wins over
 * the template in the former, as in transformers). Whatever in the files changes ids and is not done here is an error
 * naming it: TV_EUNSUPPORTED; what is broken is TV_EFORMAT. */
TV_NODISCARD tv_status tv_tokenizer_load(const char *dir, tv_tokenizer **out, tv_err *err);
/* From text (fuzz entry); config may be NULL. */
TV_NODISCARD tv_status tv_tokenizer_parse(const char *json, size_t size, const char *config, size_t config_size,
                                          const char *name, tv_tokenizer **out, tv_err *err);
void tv_tokenizer_close(tv_tokenizer *tok);

/* Ids of UTF-8 text[0..size), the same as Hugging Face's encode(text, add_special_tokens=False); added tokens in the
 * text are recognised. *ids is fresh memory, the caller frees. Invalid UTF-8 (overlong forms and surrogates included):
 * TV_EFORMAT with the byte offset. NUL bytes, byte-order marks and CRLF are characters like others. n log n in time. */
TV_NODISCARD tv_status tv_tokenizer_encode(const tv_tokenizer *tok, const char *text, size_t size, int32_t **ids,
                                           size_t *n, tv_err *err);
/* Bytes of ids, NUL-terminated; the caller frees. Ids without text (padding of the vocabulary) print as "<id:N>"; added
 * tokens marked special are left out when skip_special is set. Byte sequences that are not UTF-8 become U+FFFD when
 * valid_utf8 is set (one for each longest prefix of a character, as everywhere); without it the bytes are exact and
 * texts of consecutive ids can be joined: print all but tv_utf8_tail (models/unicode.h) of them. No other clean-up is
 * done, whatever clean_up_tokenization_spaces says. Ids < 0 are refused. */
TV_NODISCARD tv_status tv_tokenizer_decode(const tv_tokenizer *tok, const int32_t *ids, size_t n, int skip_special,
                                           int valid_utf8, char **text, size_t *size, tv_err *err);
/* Id of an added token's exact text, or -1. */
int32_t tv_tokenizer_special(const tv_tokenizer *tok, const char *text);
/* One more than the largest id that has text. */
int32_t tv_tokenizer_size(const tv_tokenizer *tok);

typedef enum { TV_THINKING_DEFAULT, TV_THINKING_ON, TV_THINKING_OFF } tv_thinking;

typedef struct {
    const char *role;    /* "system", "user" or "assistant" */
    const char *content; /* UTF-8, NUL-terminated */
} tv_message;

/* The chat prompt with the generation prompt added, as ids (models/chat.c). A template that is not one of the
 * recognised Qwen ones, statement by statement, is refused, and so are tools; warns when the template ignores the
 * thinking flag. As in Hugging Face's apply_chat_template the rendered text is tokenized as a whole: text such as
 * "<|im_end|>" inside a message becomes that special token. The caller frees *ids. */
TV_NODISCARD tv_status tv_chat_encode(const tv_tokenizer *tok, const tv_message *messages, size_t n_messages,
                                      tv_thinking thinking, int32_t **ids, size_t *n, tv_err *err);
/* The chat prompt as text, before tokenizing; the caller frees *text. */
TV_NODISCARD tv_status tv_chat_render(const tv_tokenizer *tok, const tv_message *messages, size_t n_messages,
                                      tv_thinking thinking, char **text, tv_err *err);
/* The chat template's text from tokenizer_config.json, or NULL (for models/chat.c). */
const char *tv_tokenizer_chat_template(const tv_tokenizer *tok);

#endif
