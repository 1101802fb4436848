/* Chat prompts of the Qwen families. The template language is not interpreted: what a template does is recognised from
 * its text, rendered here, and refused where it is something else. */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "models/tokenizer.h"

/* What a recognised template does. */
typedef struct {
    int thinking_flag;     /* Qwen3: enable_thinking = false adds an empty think block to the prompt */
    int strips_reasoning;  /* Qwen3: think blocks before the last query are dropped from the history */
    int begins_thinking;   /* Qwen3-Thinking: the prompt opens a think block */
    char *default_system;  /* Qwen2, Qwen2.5: the system message when none is given; owned, NULL: none */
} rules;

/* In the template's text a newline inside a string literal is the two characters \ n. */
static const char SYSTEM_OPEN[] = "<|im_start|>system\\n", TURN_END[] = "<|im_end|>";

/* The literal system message of the Qwen2 and Qwen2.5 templates: it follows the opening of a system turn at once. */
static char *find_default_system(const char *t) {
    for (const char *at = strstr(t, SYSTEM_OPEN); at; at = strstr(at + 1, SYSTEM_OPEN)) {
        const char *text = at + strlen(SYSTEM_OPEN), *end = strpbrk(text, "'<\\");
        if (end > text && !strncmp(text, "You are", 7)) return tv_xprintf("%.*s", (int)(end - text), text);
    }
    /* Qwen2.5 writes the message as a literal of its own behind the opening */
    static const char qwen[] = "'You are Qwen, created by Alibaba Cloud. You are a helpful assistant.'";
    if (strstr(t, qwen)) return tv_xprintf("%.*s", (int)sizeof qwen - 3, qwen + 1);
    return NULL;
}

static tv_status recognise(const char *t, rules *r, tv_err *err) {
    memset(r, 0, sizeof *r);
    if (!t) return TV_FAIL(err, TV_EUNSUPPORTED, "the model has no chat template (tokenizer_config.json, chat_template): use --raw");
    if (!strstr(t, "<|im_start|>") || !strstr(t, TURN_END) || !strstr(t, "add_generation_prompt") || !strstr(t, "<|im_start|>assistant\\n"))
        return TV_FAIL(err, TV_EUNSUPPORTED, "the model's chat template is not one of the Qwen families: render the prompt yourself and use --raw");
    r->thinking_flag = strstr(t, "enable_thinking") != NULL;
    r->strips_reasoning = strstr(t, "last_query_index") != NULL;
    if (strstr(t, "</think>") && !r->strips_reasoning && r->thinking_flag)
        return TV_FAIL(err, TV_EUNSUPPORTED, "the model's chat template treats <think> blocks in a way that is not recognised: use --raw");
    const char *generation = strstr(t, "add_generation_prompt");
    r->begins_thinking = generation && strstr(generation, "<|im_start|>assistant\\n<think>\\n'") != NULL;
    r->default_system = find_default_system(t);
    return TV_OK;
}

typedef struct {
    char *text;
    size_t n, room;
} string;

static void add_bytes(string *s, const char *text, size_t n) {
    if (s->n + n + 1 > s->room) s->text = tv_xrealloc(s->text, s->room = 2 * s->room + n + 256);
    memcpy(s->text + s->n, text, n);
    s->text[s->n += n] = 0;
}

static void add(string *s, const char *text) { add_bytes(s, text, strlen(text)); }

static void add_turn(string *s, const char *role, const char *content) {
    add(s, "<|im_start|>"), add(s, role), add(s, "\n"), add(s, content), add(s, "<|im_end|>\n");
}

/* text[0..*n) without newlines at the ends that are asked for. */
static const char *strip(const char *text, size_t *n, int left, int right) {
    while (left && *n && text[0] == '\n') text++, (*n)--;
    while (right && *n && text[*n - 1] == '\n') (*n)--;
    return text;
}

/* An assistant turn of the history under Qwen3's rule: the reasoning stays only behind the last query. */
static void add_assistant(string *s, const char *content, int behind_query, int last) {
    static const char open[] = "<think>", close[] = "</think>";
    const char *first_close = strstr(content, close), *answer = content, *reasoning = "";
    size_t answer_size = strlen(content), reasoning_size = 0;
    if (first_close) {
        for (const char *c = first_close; c; c = strstr(answer, close)) answer = c + strlen(close);
        answer_size = strlen(answer);
        answer = strip(answer, &answer_size, 1, 0);
        reasoning = content;
        reasoning_size = (size_t)(first_close - content);
        strip(reasoning, &reasoning_size, 0, 1);
        for (const char *c = content; (c = strstr(c, open)) && c + strlen(open) <= content + reasoning_size; c += strlen(open)) reasoning = c + strlen(open);
        reasoning_size -= (size_t)(reasoning - content);
        reasoning = strip(reasoning, &reasoning_size, 1, 0);
    }
    add(s, "<|im_start|>assistant\n");
    if (behind_query && (last || reasoning_size)) {
        reasoning = strip(reasoning, &reasoning_size, 1, 1);
        answer = strip(answer, &answer_size, 1, 0);
        add(s, "<think>\n"), add_bytes(s, reasoning, reasoning_size), add(s, "\n</think>\n\n");
    }
    add_bytes(s, answer, answer_size);
    add(s, "<|im_end|>\n");
}

static int is_tool_response(const char *text) {
    static const char open[] = "<tool_response>", close[] = "</tool_response>";
    size_t n = strlen(text);
    return !strncmp(text, open, strlen(open)) && n >= strlen(close) && !strcmp(text + n - strlen(close), close);
}

static tv_status render(const rules *r, const tv_message *messages, size_t n, tv_thinking thinking, string *s, tv_err *err) {
    if (!n) return TV_FAIL(err, TV_EARG, "a chat prompt needs at least one message");
    size_t last_query = n - 1;
    for (size_t i = 0; i < n; i++) {
        const char *role = messages[i].role;
        if (strcmp(role, "system") && strcmp(role, "user") && strcmp(role, "assistant"))
            return TV_FAIL(err, TV_EUNSUPPORTED, "message %zu: role \"%.40s\" is not supported (system, user and assistant are)", i, role);
    }
    for (size_t i = n; i-- > 0;)
        if (!strcmp(messages[i].role, "user") && !is_tool_response(messages[i].content)) {
            last_query = i;
            break;
        }
    if (r->default_system && strcmp(messages[0].role, "system")) add_turn(s, "system", r->default_system);
    for (size_t i = 0; i < n; i++) {
        int assistant = !strcmp(messages[i].role, "assistant");
        if (assistant && r->strips_reasoning) add_assistant(s, messages[i].content, i > last_query, i + 1 == n);
        else add_turn(s, messages[i].role, messages[i].content);
    }
    add(s, "<|im_start|>assistant\n");
    if (r->begins_thinking) add(s, "<think>\n");
    if (thinking != TV_THINKING_DEFAULT && !r->thinking_flag) tv_warn("this model's chat template has no thinking flag: --thinking changes nothing");
    if (thinking == TV_THINKING_OFF && r->thinking_flag) add(s, "<think>\n\n</think>\n\n");
    return TV_OK;
}

tv_status tv_chat_render(const tv_tokenizer *tok, const tv_message *messages, size_t n_messages, tv_thinking thinking, char **text, tv_err *err) {
    rules r;
    string s = {0};
    *text = NULL;
    tv_status status = recognise(tv_tokenizer_chat_template(tok), &r, err);
    if (status == TV_OK) status = render(&r, messages, n_messages, thinking, &s, err);
    free(r.default_system);
    if (status == TV_OK) *text = s.text;
    else free(s.text);
    return status;
}

tv_status tv_chat_encode(const tv_tokenizer *tok, const tv_message *messages, size_t n_messages, tv_thinking thinking, int32_t **ids, size_t *n, tv_err *err) {
    char *text;
    *ids = NULL;
    *n = 0;
    TV_TRY(tv_chat_render(tok, messages, n_messages, thinking, &text, err));
    tv_status s = tv_tokenizer_encode(tok, text, strlen(text), ids, n, err);
    free(text);
    return s;
}
