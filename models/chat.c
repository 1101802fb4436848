/* Chat prompts: messages through the model's own chat template, then the tokenizer. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "models/template.h"
#include "models/tokenizer.h"

tv_status tv_chat_render(const tv_tokenizer *tok, const tv_message *messages, size_t n_messages, tv_thinking thinking,
                         char **text, tv_err *err) {
    const char *source = tv_tokenizer_chat_template(tok);
    *text = NULL;
    if (!source)
        return TV_FAIL(err, TV_EUNSUPPORTED,
                       "the model has no chat template (tokenizer_config.json, chat_template): use --raw");
    if (!n_messages) return TV_FAIL(err, TV_EARG, "a chat prompt needs at least one message");
    /* Templates drop messages of roles that they do not know. */
    static const char *const roles[] = {"system", "user", "assistant"};
    for (size_t i = 0; i < n_messages; i++) {
        size_t k = 0;
        while (k < 3 && strcmp(messages[i].role, roles[k])) k++;
        if (k == 3)
            return TV_FAIL(err, TV_EUNSUPPORTED,
                           "message %zu: role \"%.40s\" is not supported (system, user and assistant are)", i,
                           messages[i].role);
    }
    int has_flag;
    TV_TRY(tv_template_render(source, messages, n_messages, thinking, text, &has_flag, err));
    if (thinking != TV_THINKING_DEFAULT && !has_flag)
        tv_warn("this model's chat template has no thinking flag: --thinking changes nothing");
    return TV_OK;
}

tv_status tv_chat_encode(const tv_tokenizer *tok, const tv_message *messages, size_t n_messages, tv_thinking thinking,
                         int32_t **ids, size_t *n, tv_err *err) {
    char *text;
    *ids = NULL;
    *n = 0;
    TV_TRY(tv_chat_render(tok, messages, n_messages, thinking, &text, err));
    tv_status s = tv_tokenizer_encode(tok, text, strlen(text), ids, n, err);
    free(text);
    return s;
}
