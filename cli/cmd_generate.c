/* tvgpu generate: one continuation, streamed as text. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "cli/commands.h"
#include "cli/common.h"

typedef struct {
    const tv_tokenizer *tok;
    int32_t *ids;
    size_t n, room, printed; /* tokens so far; bytes of their text already printed */
    tv_err *err;
} stream;

/* Prints what is new, holding back an unfinished UTF-8 sequence until its next token. */
static int on_token(void *user, int32_t id) {
    stream *s = user;
    if (s->n == s->room) s->ids = tv_xrealloc(s->ids, (s->room = 2 * s->room + 64) * sizeof *s->ids);
    s->ids[s->n++] = id;
    char *text;
    size_t size;
    if (tv_tokenizer_decode(s->tok, s->ids, s->n, 1, 0, &text, &size, s->err) != TV_OK) return 1;
    size_t whole = size;
    for (size_t back = 1; back <= 3 && back <= size - (s->printed < size ? s->printed : size); back++) {
        unsigned char c = (unsigned char)text[size - back];
        if (c < 0x80) break;
        if (c >= 0xC0) { /* a lead byte: is its sequence complete? */
            size_t need = c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : 2;
            if (back < need) whole = size - back;
            break;
        }
    }
    if (whole > s->printed) fwrite(text + s->printed, 1, whole - s->printed, stdout), s->printed = whole;
    fflush(stdout);
    free(text);
    return 0;
}

static int run(tv_args *args, tv_err *err) {
    char *dir = NULL;
    tv_engine *engine = NULL;
    tv_session *session = NULL;
    tv_tokenizer *tok = NULL;
    cli_prompts prompts = {0};
    stream s = {.err = err};
    int64_t n = args->n ? args->n : 256;
    tv_serving *serving = &args->side[0].serving;
    if (!args->suppress_eos && !args->ignore_eos) serving->eos = TV_EOS_STOP;
    if (args->n_positional > 1) return (int)TV_FAIL(err, TV_EARG, "generate takes one MODEL; the prompt goes behind --prompt");
    if (cli_model_dir(args->n_positional ? args->positional[0] : NULL, &dir, err) == TV_OK &&
        cli_prompts_make(args, dir, &prompts, err) == TV_OK && tv_tokenizer_load(dir, &tok, err) == TV_OK &&
        cli_engine_open(args, &args->side[0], dir, &engine, err) == TV_OK &&
        tv_session_open(engine, serving, 1, prompts.longest + n, &session, err) == TV_OK) {
        s.tok = tok;
        if (tv_session_generate(session, prompts.ids, prompts.offsets[1], n, args->seed[0], on_token, &s, err) == TV_OK) putchar('\n');
    }
    free(s.ids);
    tv_session_close(session);
    tv_engine_close(engine);
    tv_tokenizer_close(tok);
    cli_prompts_free(&prompts);
    free(dir);
    return EXIT_DONE;
}

const tv_command tv_command_generate = {
    "generate", "one continuation of a prompt, as text", CMD_GENERATE, "[MODEL] [options]",
    "Samples one continuation and prints it as it is drawn. Ends at end-of-text or after --length tokens\n"
    "(default 256).",
    "  tvgpu generate MODEL --prompt \"Why is the sky blue?\" --length 200 --temperature 0.7\n", run,
};
