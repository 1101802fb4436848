/* What the tokenizer needs to know about text: valid UTF-8, NFC, white space and word characters. */
#ifndef TV_UNICODE_H
#define TV_UNICODE_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* Bytes of the well-formed character at text[0..size) (1 to 4; overlong forms, surrogates and values above U+10FFFF are
 * not well-formed), its value in *c. 0: not well-formed; then *bad is the length (1 to 3) of the longest prefix that
 * could have begun a character, which is what one U+FFFD replaces. size must be at least 1; c and bad may be NULL. */
size_t tv_utf8_char(const char *text, size_t size, uint32_t *c, size_t *bad);
/* Offset of the first byte that is not well-formed UTF-8, or size when all is well. */
size_t tv_utf8_check(const char *text, size_t size);
/* How many bytes at the end of text[0..size) begin a character that more bytes could complete (0 to 3): what a stream
 * holds back before it prints. */
size_t tv_utf8_tail(const char *text, size_t size);
/* UTF-8 of a scalar value into out[4]; returns the number of bytes. */
size_t tv_utf8_put(uint32_t c, char *out);

/* Normalization form C of well-formed UTF-8 text[0..size); NUL bytes are characters like others. *out is fresh memory,
 * the caller frees; NULL when the text is ASCII and therefore its own normal form. Time grows as n log n whatever the
 * text. The tables are of Unicode 14 or later; those of Hugging Face's tokenizers are of Unicode 9, so that 98 marks
 * younger than that (Telugu's nukta, Lao's virama, ...) are not put in canonical order there, and ids differ where a
 * text has one behind another mark in the wrong order. Fails with TV_ENOMEM. */
TV_NODISCARD tv_status tv_nfc(const char *text, size_t size, char **out, size_t *out_size, tv_err *err);

/* Unicode's White_Space property (25 characters). PCRE2's \s adds U+180E, C's isspace knows six: neither is used. */
int tv_is_white_space(uint32_t c);
/* A word character as Hugging Face's single_word means it: alphabetic, mark, decimal digit, connector, joiner. */
int tv_is_word(uint32_t c);

#endif
