/* tvgpu logits: the logits of given token ids, through prefill or decode. */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "cli/commands.h"
#include "cli/common.h"

static tv_status read_ids(const char *path, int32_t **ids, int64_t *B, int64_t *T, tv_err *err) {
    tv_st_file *file;
    const tv_st_tensor *t;
    TV_TRY(tv_st_open(path, &file, err));
    static const int64_t any[2] = {-1, -1};
    tv_status s = tv_st_need(file, "tokens", TV_I32, 2, any, &t, err);
    if (s == TV_OK && !t->bytes) s = TV_FAIL(err, TV_EARG, "%s: tokens is empty", path);
    if (s == TV_OK) {
        *ids = tv_xmalloc(t->bytes);
        memcpy(*ids, t->data, t->bytes);
        *B = t->shape[0], *T = t->shape[1];
    }
    tv_st_close(file);
    return s;
}

static tv_status work(tv_args *args, const char *dir, tv_err *err) {
    int32_t *ids = NULL;
    float *logits = NULL;
    int64_t B = 1, T = 0;
    tv_engine *engine = NULL;
    tv_session *session = NULL;
    tv_engine_info info;
    size_t length = strlen(args->tokens);
    int is_file = (length > 12 && !strcmp(args->tokens + length - 12, ".safetensors")) || tv_path_exists(args->tokens);
    tv_status s =
        is_file ? read_ids(args->tokens, &ids, &B, &T, err) : cli_ids_parse(args->tokens, "--tokens", &ids, &T, err);
    if (s == TV_OK && !T) s = TV_FAIL(err, TV_EARG, "--tokens holds no ids");
    if (s == TV_OK) s = cli_engine_open(args, &args->side[0], dir, &engine, err);
    if (s == TV_OK) {
        tv_engine_describe(engine, &info);
        for (int64_t i = 0; i < B * T && s == TV_OK; i++)
            if (ids[i] < 0 || ids[i] >= info.vocab_size)
                s = TV_FAIL(err, TV_EARG,
                            "%s: id %d at row %lld, position %lld is not in the model's vocabulary (0 to %d)",
                            is_file ? args->tokens : "--tokens", ids[i], (long long)(i / T), (long long)(i % T),
                            info.vocab_size - 1);
    }
    if (s == TV_OK && T > info.max_positions)
        s = TV_FAIL(err, TV_EARG, "%s: rows of %lld ids are longer than the %d positions of the model",
                    is_file ? args->tokens : "--tokens", (long long)T, info.max_positions);
    if (s == TV_OK) s = tv_session_open(engine, &args->side[0].serving, B, T, &session, err);
    if (s == TV_OK) {
        logits = malloc((size_t)B * (size_t)T * (size_t)info.vocab_size * sizeof *logits);
        s = logits ? tv_session_logits(session, ids, B, T, !strcmp(args->path, "decode"), logits, NULL, err)
                   : TV_FAIL(err, TV_ENOMEM, "no memory for %lld x %lld x %d logits; give fewer tokens", (long long)B,
                             (long long)T, info.vocab_size);
    }
    if (s == TV_OK) {
        tv_st_tensor out = {.name = "logits",
                            .dtype = TV_F32,
                            .n_dims = 3,
                            .shape = {B, T, info.vocab_size},
                            .data = (const unsigned char *)logits};
        out.bytes = (size_t)B * (size_t)T * (size_t)info.vocab_size * sizeof *logits;
        cJSON *list = tv_session_libraries(session);
        char *libraries = list ? tv_json_line(list) : NULL;
        const char *metadata[] = {libraries ? "libraries" : NULL, libraries, NULL};
        s = tv_st_write(args->out, &out, 1, metadata, err);
        free(libraries);
        cJSON_Delete(list);
        if (s == TV_OK)
            tv_note("wrote %s: logits f32 [%lld,%lld,%d], %s path, %s attention", args->out, (long long)B, (long long)T,
                    info.vocab_size, args->path, tv_session_backend(session));
    }
    free(logits);
    free(ids);
    tv_session_close(session);
    tv_engine_close(engine);
    return s;
}

static int run(tv_args *args, tv_err *err) {
    if (!args->tokens || !args->out)
        return (int)TV_FAIL(err, TV_EARG, "logits needs --tokens \"1 2 3\" (or a file) and -o OUT.safetensors");
    char *dir = NULL;
    if (cli_model_dir(args->n_positional ? args->positional[0] : NULL, &dir, err) == TV_OK &&
        work(args, dir, err) != TV_OK)
        TV_ASSERT(err->code != TV_OK);
    free(dir);
    return EXIT_DONE;
}

const tv_command tv_command_logits = {
    "logits",
    "logits of given token ids, through prefill or decode",
    CMD_LOGITS,
    1,
    "[MODEL] --tokens IDS|FILE -o OUT.safetensors [options]",
    "Writes a safetensors file with the tensor logits f32 [B,T,V]. Needs no tokenizer files.",
    "  tvgpu logits MODEL --tokens \"1 2 3\" -o logits.safetensors\n"
    "  tvgpu logits MODEL --tokens ids.safetensors --path decode --backend math -o logits.safetensors\n",
    run,
};
