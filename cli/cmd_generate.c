/* tvgpu generate: one continuation, streamed as text. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "cli/commands.h"
#include "cli/common.h"

typedef struct {
    const tv_tokenizer *tok;
    char pending[8]; /* the start of a UTF-8 sequence whose end the next token brings */
    size_t n_pending;
    tv_err *err;
} stream;

/* Length of the longest prefix of text[0..size) that does not end inside a UTF-8 sequence. */
static size_t whole_characters(const char *text, size_t size) {
    for (size_t back = 1; back <= 3 && back <= size; back++) {
        unsigned char c = (unsigned char)text[size - back];
        if (c < 0x80) break;
        if (c < 0xC0) continue; /* inside a sequence: its lead byte lies further back */
        size_t need = c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : 2;
        return back < need ? size - back : size;
    }
    return size;
}

/* Prints what is new, holding back an unfinished UTF-8 sequence until its next token. */
static int on_token(void *user, int32_t id) {
    stream *s = user;
    char *text;
    size_t size;
    if (tv_tokenizer_decode(s->tok, &id, 1, 1, 0, &text, &size, s->err) != TV_OK) return 1;
    char *all = tv_xmalloc(s->n_pending + size + 1);
    memcpy(all, s->pending, s->n_pending);
    memcpy(all + s->n_pending, text, size);
    size += s->n_pending;
    size_t whole = whole_characters(all, size);
    fwrite(all, 1, whole, stdout);
    s->n_pending = size - whole;
    memcpy(s->pending, all + whole, s->n_pending);
    free(all);
    free(text);
    return fflush(stdout) != 0; /* nobody reads on */
}

static int run(tv_args *args, tv_err *err) {
    char *dir = NULL;
    tv_engine *engine = NULL;
    tv_session *session = NULL;
    tv_tokenizer *tok = NULL;
    cli_prompts prompts = {0};
    stream s = {.err = err};
    tv_engine_info info;
    int64_t n = args->n ? args->n : 256;
    tv_serving *serving = &args->side[0].serving;
    if (cli_model_dir(args->n_positional ? args->positional[0] : NULL, &dir, err) == TV_OK &&
        cli_prompts_make(args, dir, &prompts, err) == TV_OK && tv_tokenizer_load(dir, &tok, err) == TV_OK &&
        cli_engine_open(args, &args->side[0], dir, &engine, err) == TV_OK &&
        tv_serving_check(serving, engine, err) == TV_OK) {
        tv_engine_describe(engine, &info);
        if (!args->n && prompts.longest + n > info.max_positions)
            n = info.max_positions - prompts.longest; /* the default gives way */
        s.tok = tok;
        if (cli_prompts_check(args, &prompts, info.vocab_size, err) == TV_OK &&
            cli_positions_check(&prompts, n < 1 ? 1 : n, &info, err) == TV_OK &&
            tv_session_open(engine, serving, 1, prompts.longest + n, &session, err) == TV_OK &&
            tv_session_generate(session, prompts.ids, prompts.offsets[1], n, args->seed[0], on_token, &s, err) ==
                TV_OK) {
            if (s.n_pending) fputs("\xEF\xBF\xBD", stdout); /* cut off inside a character */
            putchar('\n');
        }
    }
    tv_session_close(session);
    tv_engine_close(engine);
    tv_tokenizer_close(tok);
    cli_prompts_free(&prompts);
    free(dir);
    return EXIT_DONE;
}

const tv_command tv_command_generate = {
    "generate",
    "one continuation of a prompt, as text",
    CMD_GENERATE,
    1,
    "[MODEL] [options]",
    "Samples one continuation and prints it as it is drawn. Ends at end-of-text or after --length tokens\n"
    "(default 256).",
    "  tvgpu generate MODEL --prompt \"Why is the sky blue?\" --length 200 --temperature 0.7\n",
    run,
};
