/* tvgpu export: a run folder as one bundle file. */
#include "base/log.h"
#include "cli/commands.h"
#include "cli/common.h"

static int run(tv_args *args, tv_err *err) {
    if (!args->n_positional || !args->out)
        return (int)TV_FAIL(err, TV_EARG, "export needs a run folder and -o FILE.safetensors");
    tv_dataset *data = NULL;
    if (tv_dataset_open(args->positional, args->n_positional, &data, err) == TV_OK &&
        tv_dataset_write_bundle(data, args->out, err) == TV_OK)
        tv_note("wrote %s", args->out);
    tv_dataset_close(data);
    return EXIT_DONE;
}

const tv_command tv_command_export = {
    "export",
    "a run folder as one bundle file that other tools open",
    CMD_EXPORT,
    TV_MOST_WORDS,
    "PATH... -o FILE.safetensors",
    "Writes the trajectories and all passes of a measurement as one safetensors file\n"
    "(format tvgpu-bundle/1, docs/formats.md), which estimate reads again.",
    "  tvgpu export tvgpu-runs/compare-1a2b3c4d -o pair.safetensors\n",
    run,
};
