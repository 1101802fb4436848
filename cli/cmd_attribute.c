/* tvgpu attribute: flip one option at a time and rank what moves the distribution. */
#include "cli/attribution.h"
#include "cli/commands.h"
#include "cli/common.h"

static int run(tv_args *args, tv_err *err) {
    cJSON *result = NULL;
    if (cli_attribution_run(args, args->out, &result, err) == TV_OK && result) {
        if (args->json)
            cli_print_json(result);
        else
            cli_attribution_print(result, stdout);
    }
    cJSON_Delete(result);
    return EXIT_DONE;
}

const tv_command tv_command_attribute = {
    "attribute",
    "which switch moves the distribution, and by how much more than noise",
    CMD_ATTRIBUTE,
    1,
    "[MODEL] [options]",
    "Starting from side a, which the options describe, flips one option at a time, measures each flipped\n"
    "side against a, and ranks them: distance with interval, floor, next-token metrics, the first position\n"
    "and the first layer at which the two differ by more than each differs from itself. Every axis has a\n"
    "run folder of its own, and the same command goes on where it stopped.",
    "  tvgpu attribute --quick\n"
    "  tvgpu attribute MODEL --axis backend=math,logits=f32,batch=8\n"
    "  tvgpu attribute MODEL --batch 8 --axis order=shuffled,order=shuffled+arrivals=staggered -R 8\n",
    run,
};
