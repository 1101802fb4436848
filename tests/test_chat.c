/* Chat prompts against the reference implementation of templates: tests/goldens/tokenizer/chats.json holds templates of
 * the Qwen families, and what jinja2 renders with them (tools/make_chat_goldens.py). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "models/tokenizer.h"
#include "tests/check.h"
#include "tests/cli_run.h"

/* ---- Fixtures -------------------------------------------------------------------------------------------------- */

static cJSON *load(const char *name) {
    cJSON *json = NULL;
    tv_err err = {0};
    CHECK_OK(tv_json_load(tv_golden(name), 1 << 20, &json, &err), &err);
    return json;
}

/* A small tokenizer with this chat template (NULL: none). */
static tv_tokenizer *with_template(const char *template) {
    char *text = NULL;
    size_t size = 0;
    tv_tokenizer *tok = NULL;
    tv_err err = {0};
    cJSON *config = cJSON_CreateObject();
    if (template) cJSON_AddStringToObject(config, "chat_template", template);
    char *config_text = cJSON_PrintUnformatted(config);
    CHECK_OK(tv_file_read(tv_golden("tokenizer/small.json"), 1 << 20, &text, &size, &err), &err);
    CHECK_OK(tv_tokenizer_parse(text, size, config_text, strlen(config_text), "small.json", &tok, &err), &err);
    cJSON_Delete(config);
    free(config_text);
    free(text);
    return tok;
}

/* The messages of a JSON list; the texts belong to it. The caller frees. */
static tv_message *messages_of(const cJSON *list, size_t *n) {
    tv_message *messages = tv_xcalloc((size_t)cJSON_GetArraySize(list) + 1, sizeof *messages);
    const cJSON *item;
    *n = 0;
    cJSON_ArrayForEach(item, list) messages[(*n)++] =
        (tv_message){cJSON_GetObjectItem(item, "role")->valuestring, cJSON_GetObjectItem(item, "content")->valuestring};
    return messages;
}

static tv_thinking thinking_of(const cJSON *flag) {
    return cJSON_IsTrue(flag) ? TV_THINKING_ON : cJSON_IsFalse(flag) ? TV_THINKING_OFF : TV_THINKING_DEFAULT;
}

/* Every case of this template and name (NULL: any) renders to the reference's text; returns their number. */
static int check_cases(const char *template, const char *name) {
    cJSON *json = load("tokenizer/chats.json");
    const cJSON *item;
    int checked = 0;
    cJSON_ArrayForEach(item, cJSON_GetObjectItem(json, "cases")) {
        const char *of = cJSON_GetObjectItem(item, "template")->valuestring;
        if ((template && strcmp(of, template)) ||
            (name && strcmp(cJSON_GetObjectItem(item, "name")->valuestring, name)))
            continue;
        checked++;
        size_t n;
        tv_message *messages = messages_of(cJSON_GetObjectItem(item, "messages"), &n);
        tv_tokenizer *tok = with_template(cJSON_GetObjectItem(cJSON_GetObjectItem(json, "templates"), of)->valuestring);
        char *text = NULL;
        tv_err err = {0};
        CHECK_OK(tv_chat_render(tok, messages, n, thinking_of(cJSON_GetObjectItem(item, "thinking")), &text, &err),
                 &err);
        if (!CHECK_STR(text, cJSON_GetObjectItem(item, "text")->valuestring)) printf("    %s\n", of);
        free(text);
        free(messages);
        tv_tokenizer_close(tok);
    }
    cJSON_Delete(json);
    return checked;
}

static const tv_message hi[] = {{"user", "hi"}};

/* The template ends in this error, which names its line and contains part. */
static void check_refused(const char *template, tv_status want, const char *part) {
    tv_tokenizer *tok = with_template(template);
    static const tv_message talk[] = {{"system", "s"}, {"user", "hi"}, {"assistant", "Hello."}, {"user", "bye"}};
    char *text = NULL;
    tv_err err = {0};
    CHECK_FAILS(tv_chat_render(tok, talk, 4, TV_THINKING_DEFAULT, &text, &err), want, &err, part);
    if (!CHECK(!text)) printf("    %.200s gave %.200s\n", template, text);
    free(text);
    tv_tokenizer_close(tok);
}

/* ---- What the reference renders ---------------------------------------------------------------------------------- */

/* enable_thinking = false closes an empty think block in the prompt; true and no flag add nothing (users expect it the
 * other way round). Text and ids of the real Qwen3 tokenizer. */
static void chat_thinking_flag(void) {
    tv_tokenizer *tok = NULL;
    tv_err err = {0};
    if (!CHECK_OK(tv_tokenizer_load(tv_golden("tokenizer"), &tok, &err), &err)) return;
    cJSON *json = load("tokenizer/cases.json");
    const cJSON *item, *want;
    int off = 0;
    cJSON_ArrayForEach(item, cJSON_GetObjectItem(json, "chats")) {
        tv_thinking thinking = thinking_of(cJSON_GetObjectItem(item, "enable_thinking"));
        off += thinking == TV_THINKING_OFF;
        size_t n_messages, n = 0, i = 0;
        tv_message *messages = messages_of(cJSON_GetObjectItem(item, "messages"), &n_messages);
        for (int again = 0; again <= (thinking == TV_THINKING_DEFAULT); again++) {
            char *text = NULL;
            int32_t *ids = NULL;
            CHECK_OK(tv_chat_render(tok, messages, n_messages, again ? TV_THINKING_ON : thinking, &text, &err), &err);
            CHECK_STR(text, cJSON_GetObjectItem(item, "text")->valuestring);
            CHECK_OK(tv_chat_encode(tok, messages, n_messages, again ? TV_THINKING_ON : thinking, &ids, &n, &err),
                     &err);
            i = 0;
            cJSON_ArrayForEach(want, cJSON_GetObjectItem(item, "ids")) if (i < n) CHECK_INT(ids[i++], want->valueint);
            CHECK_INT(n, cJSON_GetArraySize(cJSON_GetObjectItem(item, "ids")));
            free(ids);
            free(text);
        }
        free(messages);
    }
    CHECK_INT(off, 3);
    cJSON_Delete(json);
    tv_tokenizer_close(tok);
}

/* Qwen3: every kind of conversation, under each setting of the flag. */
static void chat_qwen3(void) { CHECK_INT(check_cases("qwen3", NULL), 61); }
/* Qwen2 and Qwen2.5 put a default system message where none is given, and keep an empty one. */
static void chat_default_system(void) {
    CHECK_INT(check_cases("qwen2", NULL), 24);
    CHECK_INT(check_cases("qwen2.5", NULL), 24);
}
/* Qwen3's later templates: one without the flag, one whose prompt opens a think block. */
static void chat_qwen3_variants(void) {
    CHECK_INT(check_cases("qwen3 without a flag", NULL), 24);
    CHECK_INT(check_cases("qwen3 always thinking", NULL), 24);
}
/* Think blocks before the last query leave the history where the model's template says so, and stay where it does not.
 */
static void chat_reasoning_in_the_history(void) {
    CHECK_INT(check_cases(NULL, "reasoning in the history"), 30);
    CHECK_INT(check_cases(NULL, "reasoning behind the last query"), 39);
}
/* White space control, loops, scopes, slices, tests, strings: each construct as jinja2 has it. */
static void chat_template_language(void) { CHECK_INT(check_cases(NULL, "the language"), 68); }

/* As in transformers the rendered prompt is tokenized as a whole: a special token written in a message becomes one. */
static void chat_special_token_in_message(void) {
    tv_tokenizer *tok = with_template("{{ messages[0].content }}");
    const tv_message message = {"user", "<|im_end|>"};
    int32_t *ids = NULL;
    size_t n = 0;
    tv_err err = {0};
    CHECK_OK(tv_chat_encode(tok, &message, 1, TV_THINKING_DEFAULT, &ids, &n, &err), &err);
    if (CHECK_INT(n, 1)) CHECK_INT(ids[0], tv_tokenizer_special(tok, "<|im_end|>"));
    free(ids);
    tv_tokenizer_close(tok);
}

/* ---- Where the template is --------------------------------------------------------------------------------------- */

static void write(const char *name, const char *text) {
    char *path = tv_path_join(tv_test_dir(), name);
    tv_err err = {0};
    CHECK_OK(tv_file_write(path, text, strlen(text), &err), &err);
    free(path);
}

static void copy_small(void) {
    char *text = NULL;
    size_t size = 0;
    tv_err err = {0};
    CHECK_OK(tv_file_read(tv_golden("tokenizer/small.json"), 1 << 20, &text, &size, &err), &err);
    write("tokenizer.json", text);
    free(text);
}

static void check_folder(const char *want) {
    tv_tokenizer *tok = NULL;
    char *text = NULL;
    tv_err err = {0};
    CHECK_OK(tv_tokenizer_load(tv_test_dir(), &tok, &err), &err);
    if (tok) CHECK_OK(tv_chat_render(tok, hi, 1, TV_THINKING_DEFAULT, &text, &err), &err);
    if (text) CHECK_STR(text, want);
    free(text);
    tv_tokenizer_close(tok);
}

/* A list of named templates has its default used; chat_template.jinja wins over tokenizer_config.json. */
static void chat_template_files(void) {
    copy_small();
    write("tokenizer_config.json", "{\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"no\"}, "
                                   "{\"name\": \"default\", \"template\": \"yes {{ messages[0].content }}\"}]}");
    check_folder("yes hi");
    write("chat_template.jinja", "file {{ messages[0].content }}\n");
    check_folder("file hi");
}

/* A template that does not know the flag would ignore it without a word. */
static void chat_flag_without_effect(void) {
    static const char input[] = "[{\"role\": \"user\", \"content\": \"hi\"}]\n";
    static const char *const templates[] = {
        "{\"chat_template\": \"{{ messages[0].content }}\"}",
        "{\"chat_template\": \"{{ messages[0].content }}{% if enable_thinking is false %}!{% endif %}\"}"};
    copy_small();
    for (int knows = 0; knows < 2; knows++) {
        write("tokenizer_config.json", templates[knows]);
        cli_result r = cli_run(input, "tvgpu tokenize . --jsonl --chat --thinking off");
        CHECK_INT(r.code, 0);
        CHECK((strstr(r.err, "no thinking flag") != NULL) == !knows);
        cli_free(&r);
        r = cli_run(input, "tvgpu tokenize . --jsonl --chat");
        CHECK_STR(r.err, "");
        cli_free(&r);
    }
}

/* ---- What is refused --------------------------------------------------------------------------------------------- */

/* Templates drop roles that they do not know, so those never reach one; a model without a template has no chat. */
static void chat_messages_refused(void) {
    tv_tokenizer *tok = with_template("{{ messages[0].content }}"), *none = with_template(NULL);
    const tv_message tool = {"tool", "42"};
    char *text = NULL;
    int32_t *ids = NULL;
    size_t n = 0;
    tv_err err = {0};
    CHECK_FAILS(tv_chat_render(tok, hi, 0, TV_THINKING_DEFAULT, &text, &err), TV_EARG, &err, "at least one message");
    CHECK_FAILS(tv_chat_render(tok, &tool, 1, TV_THINKING_DEFAULT, &text, &err), TV_EUNSUPPORTED, &err,
                "message 0: role \"tool\"");
    CHECK_FAILS(tv_chat_encode(none, hi, 1, TV_THINKING_DEFAULT, &ids, &n, &err), TV_EUNSUPPORTED, &err,
                "has no chat template");
    CHECK(!text && !ids);
    tv_tokenizer_close(tok);
    tv_tokenizer_close(none);
}

/* What a template may hold and is not done is an error with its line, never another prompt. */
static void chat_template_unsupported(void) {
    static const struct {
        const char *template, *part;
    } rows[] = {
        {"a\n{% macro f() %}{% endmacro %}", "(line 2) uses the statement macro"},
        {"{% break %}", "the statement break"},
        {"{{ messages | tojson }}", "the filter tojson"},
        {"{{ messages[0] is iterable }}", "the test iterable"},
        {"{{ 'a'.upper() }}", "the method upper"},
        {"{{ messages[0].items() }}", "the method items"},
        {"{{ 'a'.split('b', 1) }}", "several arguments"},
        {"{{ strftime_now('%d') }}", "the function strftime_now"},
        {"{{ bos_token }}", "the variable bos_token"},
        {"{{ messages[0] }}", "prints a mapping"},
        {"{{ 'a' + 1 }}", "computes with a string"},
        {"{{ 'a' + nothing }}", "computes with a string"},
        {"{{ 'abc'[1:] }}", "slices a string"},
        {"{{ 'abc'[0] }}", "takes an item of a string"},
        {"{{ messages[::0] }}", "a step of"},
        {"{{ 1 < 2 < 3 }}", "a chain of comparisons"},
        {"{{ 1.5 }}", "the number 1.5"},
        {"{{ 12345678901 }}", "the number"},
        {"{{ 999999999 * 999999999 }}", "beyond 32 bits"},
        {"{{ '\\x41' }}", "an escape other than"},
        {"{{ {} }}", "the character {"},
        {"{{ 'a' 'b' }}", "strings in a row"},
        {"{% for a, b in messages %}{% endfor %}", "several names"},
        {"{% for a in messages if a %}{% endfor %}", "a loop with if"},
        {"{% for a in messages %}{% else %}{% endfor %}", "a loop with else"},
        {"{% for a in 'text' %}{% endfor %}", "loops over a string"},
        {"{% set x %}a{% endset %}", "a set of another form"},
        {"{% set messages.x = 1 %}", "sets an attribute of a list"},
        {"{{ 'a'.strip('\xC3\xA9') }}", "beyond ASCII"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        check_refused(rows[i].template, TV_EUNSUPPORTED, rows[i].part);
}

/* What is no template. */
static void chat_template_broken(void) {
    static const struct {
        const char *template, *part;
    } rows[] = {
        {"a\n\n{{ 'b", "(line 3) holds a string without an end"},
        {"{{ a", "a tag without an end"},
        {"{% if a", "a tag without an end"},
        {"{# a", "a comment without an end"},
        {"{% if a %}b", "where endif is expected"},
        {"{% for a in messages %}b", "where endfor is expected"},
        {"a{% endif %}", "where the end is expected"},
        {"{% if a %}{% endfor %}", "\"endfor\" where endif"},
        {"{{ a b }}", "\"b\" where }} is expected"},
        {"{{ (1 }}", "where ) is expected"},
        {"{{ messages[] }}", "an index is expected"},
        {"{{ messages[1 2] }}", "where ] is expected"},
        {"{{ }}", "a value is expected"},
        {"{{ 1 % 0 }}", "divides by zero"},
        {"{{ nothing.at }}", "asks an undefined value for at"},
        {"{{ messages[9].role }}", "asks an undefined value for role"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) check_refused(rows[i].template, TV_EFORMAT, rows[i].part);
}

/* A template's own refusal is shown in its words. */
static void chat_template_raises(void) {
    check_refused("{% if messages[0].role == 'system' %}{{ raise_exception('no ' + 'system') }}{% endif %}", TV_EARG,
                  "refuses these messages: no system");
}

/* Templates come with checkpoints of anyone: nesting, work and memory end in an error, not in a crash or a hang. */
static void chat_template_bounded(void) {
    char *deep = tv_xmalloc(8000), *at = deep;
    at += sprintf(at, "{{ ");
    for (int i = 0; i < 2000; i++) *at++ = '(';
    strcpy(at, "1 }}");
    check_refused(deep, TV_EUNSUPPORTED, "nests deeper");
    for (at = deep + 3; at < deep + 7000; at += 2) memcpy(at, "1+", 2);
    strcpy(at, "1 }}");
    check_refused(deep, TV_EUNSUPPORTED, "more than 1000 parts");
    free(deep);
    char loops[2000] = "", *end = loops;
    for (int i = 0; i < 40; i++) end += sprintf(end, "{%% for m in messages %%}");
    for (int i = 0; i < 40; i++) end += sprintf(end, "{%% endfor %%}");
    check_refused(loops, TV_EUNSUPPORTED, "steps");
    check_refused("{% set n = namespace(s='0123456789abcdef') %}{% for a in messages %}{% for a in messages %}"
                  "{% for a in messages %}{% set n.s = n.s + n.s %}{% endfor %}{% endfor %}{% endfor %}",
                  TV_EUNSUPPORTED, "needs more than");
}

static const tv_test tests[] = {
    {"chat_thinking_flag", chat_thinking_flag},
    {"chat_qwen3", chat_qwen3},
    {"chat_default_system", chat_default_system},
    {"chat_qwen3_variants", chat_qwen3_variants},
    {"chat_reasoning_in_the_history", chat_reasoning_in_the_history},
    {"chat_template_language", chat_template_language},
    {"chat_special_token_in_message", chat_special_token_in_message},
    {"chat_template_files", chat_template_files},
    {"chat_flag_without_effect", chat_flag_without_effect},
    {"chat_messages_refused", chat_messages_refused},
    {"chat_template_unsupported", chat_template_unsupported},
    {"chat_template_broken", chat_template_broken},
    {"chat_template_raises", chat_template_raises},
    {"chat_template_bounded", chat_template_bounded},
};

TV_TEST_MAIN(tests)
