/* tvgpu import: what other engines recorded, as trace files. */
#include <string.h>

#include "base/log.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "traces/import.h"

static int run(tv_args *args, tv_err *err) {
    static const char *const FORMS[] = {"auto", "vllm", "sglang", "openai"};
    if (!args->n_positional || !args->out)
        return (int)TV_FAIL(err, TV_EARG, "import needs the dumps and -o DIR, the folder of the trajectories");
    if (args->by_prefix && !args->set_name)
        return (int)TV_FAIL(err, TV_EARG, "--by-prefix needs --set a|b, the trajectories to score");
    tv_import_options o = {.side = args->side_name[0] - 'a',
                           .set = args->set_name ? args->set_name[0] - 'a' : -1,
                           .by_prefix = args->by_prefix,
                           .length = args->n,
                           .temperature = args->dump_temperature,
                           .top_k = args->dump_top_k,
                           .seed = args->seed[0],
                           .engine = args->engine_name};
    for (int i = 0; i < 4; i++)
        if (args->form && !strcmp(args->form, FORMS[i])) o.form = (tv_import_form)i;
    tv_import_result r;
    if (tv_import(args->positional, args->n_positional, args->out, &o, &r, err) != TV_OK) return EXIT_FAILED;
    if (o.set < 0)
        tv_note(
            "wrote %s/%s.samples.safetensors and its own pass 0: %lld trajectories of %lld tokens after %lld prompt%s, "
            "%lld log-probabilities each",
            args->out, args->side_name, (long long)r.N, (long long)r.n, (long long)r.prompts, r.prompts == 1 ? "" : "s",
            (long long)r.k);
    else
        tv_note(
            "wrote %s/%s-on-%s.pass-%04lld.safetensors: %lld trajectories of %lld tokens, %lld log-probabilities each",
            args->out, args->side_name, args->set_name, (long long)r.pass, (long long)r.N, (long long)r.n,
            (long long)r.k);
    if (r.from_prompt)
        tv_note(
            "these scores are of prompts, taken all at once: where an engine decodes by other kernels, the distance "
            "holds that difference too");
    if (args->json) {
        cJSON *json = cJSON_CreateObject();
        cJSON_AddStringToObject(json, "folder", args->out);
        cJSON_AddStringToObject(json, "side", args->side_name);
        cJSON_AddStringToObject(json, "set", args->set_name ? args->set_name : args->side_name);
        cJSON_AddNumberToObject(json, "pass", (double)r.pass);
        cJSON_AddNumberToObject(json, "N", (double)r.N);
        cJSON_AddNumberToObject(json, "n", (double)r.n);
        cJSON_AddNumberToObject(json, "k", (double)r.k);
        cJSON_AddNumberToObject(json, "prompts", (double)r.prompts);
        cJSON_AddBoolToObject(json, "token_texts", r.strings);
        cJSON_AddBoolToObject(json, "scores_of_prompts", r.from_prompt);
        cli_print_json(json);
        cJSON_Delete(json);
    }
    return EXIT_DONE;
}

const tv_command tv_command_import = {
    "import",
    "log-probabilities recorded by vLLM, SGLang or an OpenAI-style server, as trace files",
    CMD_IMPORT,
    TV_MOST_WORDS,
    "DUMP... -o DIR --side a|b [options]",
    "Reads JSON or JSON lines: vLLM's RequestOutput, what SGLang's generate returns, or OpenAI-style\n"
    "responses with top log-probabilities (docs/formats.md shows each). A distance needs four things in\n"
    "DIR: what each side sampled, and each side's scores of the other's trajectories. Scores come from a\n"
    "replay of forced tokens, from prompts scored at once (vLLM prompt_logprobs, SGLang input logprobs,\n"
    "OpenAI echo) or, for the first tokens, from equal beginnings (--by-prefix). Everything is checked\n"
    "before anything is written.\n"
    "Where sampling took the whole vocabulary (--top-k 0), the recorded top is a truncated view, and\n"
    "estimate says bounds [low, high].",
    "  tvgpu import a.jsonl -o pair --side a                   what side a sampled\n"
    "  tvgpu import b.jsonl -o pair --side b\n"
    "  tvgpu import b-scores-a.jsonl -o pair --side b --set a  side b's scores of side a's trajectories\n"
    "  tvgpu import a-scores-b.jsonl -o pair --side a --set b\n"
    "  tvgpu estimate pair\n"
    "\nAn API that scores no given text: many prompts, first tokens:\n"
    "  tvgpu import a.jsonl -o first --side a --length 1\n"
    "  tvgpu import b.jsonl -o first --side b --length 1\n"
    "  tvgpu import b.jsonl -o first --side b --set a --by-prefix\n"
    "  tvgpu import a.jsonl -o first --side a --set b --by-prefix\n",
    run,
};
