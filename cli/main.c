/* The program: finds the command, hands over, turns failures into a message and an exit code. */
#include <fcntl.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "cli/commands.h"
#include "cli/common.h"

static const tv_command *const commands[] = {
    &tv_command_compare,  &tv_command_attribute, &tv_command_sample,   &tv_command_score,
    &tv_command_estimate, &tv_command_calibrate, &tv_command_schedule, &tv_command_synth,
    &tv_command_figure,   &tv_command_import,    &tv_command_export,   &tv_command_generate,
    &tv_command_logits,   &tv_command_tokenize,  &tv_command_bench,    &tv_command_info,
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

static void usage(FILE *out) {
    fputs("tvgpu " TV_VERSION
          ": how far does the output distribution of a language model move when its serving stack changes?\n\n"
          "Usage: tvgpu COMMAND [MODEL] [options]\n\n"
          "MODEL is a checkpoint folder in the Hugging Face layout (Qwen3, Qwen2.5, Qwen3-MoE);\n"
          "left out, it is the small model that comes with the program.\n\nCommands:\n",
          out);
    for (int i = 0; i < N_COMMANDS; i++) fprintf(out, "  %-10s %s\n", commands[i]->name, commands[i]->summary);
    fputs("\nStart with:\n"
          "  tvgpu compare --quick                              two attention kernels on the bundled model\n"
          "  tvgpu compare MODEL --backend-a flash --backend-b math\n"
          "  tvgpu COMMAND --help                               a command's options, with defaults and units\n\n"
          "Exit codes: 0 done, 1 failed, 2 bad usage or configuration, 3 and 4 with --fail-above: the interval\n"
          "lies above the bound, or cannot tell.\n",
          out);
}

/* OpenMP's threads spin at the end of every parallel region for as long as a millisecond by default: on a machine that
 * has other work this made a comparison 7 to 20 times slower. Its runtime reads the setting only when the program
 * starts, so the program starts once more with it; a setting of the user's is left alone. */
static void let_threads_sleep(char **argv) {
    if (getenv("OMP_WAIT_POLICY") || setenv("OMP_WAIT_POLICY", "passive", 1) != 0) return;
    execv("/proc/self/exe", argv); /* returns only when it failed: then threads spin, and results are the same */
}

/* A closed standard stream's number would go to the next file opened, and what is printed into that file. */
static void hold_standard_streams(void) {
    int fd;
    do fd = open("/dev/null", O_RDONLY);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0) close(fd);
}

static const tv_command *find_command(const char *name) {
    for (int i = 0; i < N_COMMANDS; i++)
        if (!strcmp(name, commands[i]->name)) return commands[i];
    return NULL;
}

static int no_command(const char *name) {
    const char *guess = NULL;
    size_t best = 4;
    for (int i = 0; i < N_COMMANDS; i++) {
        size_t d = tv_word_distance(name, strlen(name), commands[i]->name);
        if (d < best && d < strlen(commands[i]->name)) best = d, guess = commands[i]->name;
    }
    fprintf(stderr, "tvgpu: no command \"%s\"%s%s%s; tvgpu --help lists them\n", name, guess ? " (did you mean " : "",
            guess ? guess : "", guess ? "?)" : "");
    return EXIT_USAGE;
}

/* Whether all that was printed went out; code otherwise. */
static int printed(int code) {
    if (fflush(stdout) == 0 && !ferror(stdout)) return code;
    tv_note("error: standard output could not be written");
    return code == EXIT_DONE ? EXIT_FAILED : code;
}

int main(int argc, char **argv) {
    hold_standard_streams();
    let_threads_sleep(argv);
    if (argc < 2) {
        usage(stderr);
        return EXIT_USAGE;
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help")) {
        if (argc > 2 && argv[2][0] != '-') {
            const tv_command *about = find_command(argv[2]);
            if (!about) return no_command(argv[2]);
            tv_args_help(about, stdout);
        } else {
            usage(stdout);
        }
        return printed(EXIT_DONE);
    }
    if (!strcmp(argv[1], "--version")) {
        puts("tvgpu " TV_VERSION);
        return printed(EXIT_DONE);
    }
    const tv_command *command = find_command(argv[1]);
    if (!command) return no_command(argv[1]);
    tv_err err = {0};
    tv_args args;
    for (int i = 2; i < argc && strcmp(argv[i], "--"); i++)
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) {
            tv_args_help(command, stdout);
            return printed(EXIT_DONE);
        }
    int code = EXIT_DONE;
    if (tv_args_parse(command, argc, argv, &args, &err) == TV_OK) {
        tv_log_quiet(args.quiet);
        if (args.threads) omp_set_num_threads(args.threads); /* of estimators; devices take theirs from the options */
        if (args.version)
            puts("tvgpu " TV_VERSION);
        else
            code = command->run(&args, &err);
    }
    if (err.code != TV_OK) {
        tv_log_quiet(0);
        tv_note("error: %s", err.message);
        code = cli_exit_code(&err);
    }
    return printed(code);
}
