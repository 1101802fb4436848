/* Chat templates: the part of Jinja that those of the Qwen families are written in, for prompts without tools. */
#ifndef TV_TEMPLATE_H
#define TV_TEMPLATE_H

#include <stddef.h>

#include "models/tokenizer.h"

/* Renders source (UTF-8, NUL-terminated) as transformers' apply_chat_template does: trim_blocks and lstrip_blocks are
 * set, messages and add_generation_prompt = true are given, enable_thinking where thinking says so, tools and documents
 * are none. *text is fresh memory, the caller frees. *has_flag: the template names enable_thinking. What runs and is
 * not done here (macros, floats, most filters, ...) is TV_EUNSUPPORTED, what is no template TV_EFORMAT, both with the
 * line; a template that raises an exception about the messages is TV_EARG with its words. Work and memory are bounded.
 */
TV_NODISCARD tv_status tv_template_render(const char *source, const tv_message *messages, size_t n_messages,
                                          tv_thinking thinking, char **text, int *has_flag, tv_err *err);

#endif
