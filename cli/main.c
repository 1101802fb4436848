/* The program: finds the command, hands over, turns failures into a message and an exit code. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "cli/commands.h"
#include "cli/common.h"

static const tv_command *const commands[] = {
    &tv_command_compare, &tv_command_sample,   &tv_command_score,    &tv_command_estimate, &tv_command_calibrate,
    &tv_command_schedule, &tv_command_synth,   &tv_command_export,   &tv_command_generate, &tv_command_logits,
    &tv_command_tokenize, &tv_command_bench,   &tv_command_info,
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

static void usage(FILE *out) {
    fputs("tvgpu " TV_VERSION ": how far does the output distribution of a language model move when its serving stack changes?\n\n"
          "Usage: tvgpu COMMAND [MODEL] [options]\n\n"
          "MODEL is a checkpoint folder in the Hugging Face layout (Qwen3, Qwen2.5, Qwen3-MoE);\n"
          "left out, it is the small model that comes with the program.\n\nCommands:\n", out);
    for (int i = 0; i < N_COMMANDS; i++) fprintf(out, "  %-10s %s\n", commands[i]->name, commands[i]->summary);
    fputs("\nStart with:\n"
          "  tvgpu compare --quick                              two attention kernels on the bundled model\n"
          "  tvgpu compare MODEL --backend-a flash --backend-b math\n"
          "  tvgpu COMMAND --help                               a command's options, with defaults and units\n\n"
          "Exit codes: 0 done, 1 failed, 2 bad usage or configuration, 3 and 4 with --fail-above: the interval\n"
          "lies above the bound, or cannot tell.\n", out);
}

/* OpenMP's threads spin at the end of every parallel region for as long as a millisecond by default: on a machine that has
 * other work this made a comparison 7 to 20 times slower. Its runtime reads the setting only when the program starts, so
 * the program starts once more with it; a setting of the user's is left alone. */
static void let_threads_sleep(char **argv) {
    if (getenv("OMP_WAIT_POLICY") || setenv("OMP_WAIT_POLICY", "passive", 1) != 0) return;
    execv("/proc/self/exe", argv); /* returns only when it failed: then threads spin, and results are the same */
}

int main(int argc, char **argv) {
    let_threads_sleep(argv);
    if (argc < 2) {
        usage(stderr);
        return EXIT_USAGE;
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help")) {
        usage(stdout);
        return EXIT_DONE;
    }
    if (!strcmp(argv[1], "--version")) {
        puts("tvgpu " TV_VERSION);
        return EXIT_DONE;
    }
    const tv_command *command = NULL;
    for (int i = 0; i < N_COMMANDS; i++)
        if (!strcmp(argv[1], commands[i]->name)) command = commands[i];
    if (!command) {
        fprintf(stderr, "tvgpu: no command \"%s\"; tvgpu --help lists them\n", argv[1]);
        return EXIT_USAGE;
    }
    tv_err err = {0};
    tv_args args;
    for (int i = 2; i < argc && strcmp(argv[i], "--"); i++)
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) {
            tv_args_help(command, stdout);
            return EXIT_DONE;
        }
    int code = EXIT_DONE;
    if (tv_args_parse(command, argc, argv, &args, &err) == TV_OK) {
        tv_log_quiet(args.quiet);
        code = command->run(&args, &err);
    }
    if (err.code != TV_OK) {
        tv_log_quiet(0);
        tv_note("error: %s", err.message);
        code = cli_exit_code(&err);
    }
    if (fflush(stdout) != 0 || ferror(stdout)) {
        tv_note("error: standard output could not be written");
        if (code == EXIT_DONE) code = EXIT_FAILED;
    }
    return code;
}
