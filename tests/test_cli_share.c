/* A run shared out to several processes ends with the files and the numbers of one process, whoever dies on the way. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>

#include "tests/check.h"
#include "tests/cli_run.h"

/* Passes that differ: one run twice, or left out, would show. */
#define NOISY                                                                                                          \
    "m --prompts p.jsonl -N 12 -n 40 -R 3 --batch 6 --order shuffled --arrivals staggered --backend-b math "           \
    "--threads 1"
/* Sides that stop after two of four passes. */
#define DETERMINISTIC "m --prompts p.jsonl -N 6 -n 12 -R 4 --backend-b math --threads 1"

/* Both folders hold the same names, and the same bytes in all that does not tell when and where. */
static void same_runs(const char *x, const char *y) {
    CLI(0, NULL, "for d in %s %s; do (cd $d && ls -A | LC_ALL=C sort >../$d.names); done; cmp %s.names %s.names", x, y,
        x, y);
    CLI(0, NULL, "for f in %s/*.safetensors; do cmp $f %s/${f##*/} || exit 1; done", x, y);
    char name[2][64];
    snprintf(name[0], sizeof name[0], "%s/report.json", x);
    snprintf(name[1], sizeof name[1], "%s/report.json", y);
    char *one = cli_without_timing(name[0]), *other = cli_without_timing(name[1]);
    CHECK_STR(other, one);
    free(one), free(other);
}

/* Runs a command as `count` processes at once; part is what the output of one of them must hold. */
static void together(int count, const char *command, const char *part) {
    CLI(0, part,
        "for i in $(seq %d); do tvgpu %s --shard $i/%d & all=\"$all $!\"; done\n"
        "for p in $all; do wait $p || exit 1; done",
        count, command, count);
}

/* 2 and 4 processes; the first prints the report of one process, the others none. */
static void compare(void) {
    cli_tiny_model();
    cli_result alone = cli_run(NULL, "tvgpu compare " NOISY " -q -o one");
    CHECK_INT(alone.code, 0);
    together(2, "compare " NOISY " -q -o two", NULL);
    same_runs("one", "two");
    together(4, "compare " NOISY " -o four", "process 3 of 4 has done its part; process 1 reports");
    same_runs("one", "four");
    cli_result first = cli_run(NULL, "tvgpu compare " NOISY " -q -o four --shard 1/3"),
               second = cli_run(NULL, "tvgpu compare " NOISY " -q -o four --shard 2/3");
    CHECK_STR(first.out, alone.out); /* nothing is left to do, by however many */
    CHECK_STR(second.out, "");
    cJSON *report = cli_json("two/report.json");
    CHECK_NEAR(cli_number(report, "timing.processes"), 2, 0);
    cJSON_Delete(report);
    cli_free(&alone), cli_free(&first), cli_free(&second);
}

/* Whether a side is deterministic is found out from passes that different processes made. */
static void stopping(void) {
    cli_tiny_model();
    CLI(0, NULL, "tvgpu compare " DETERMINISTIC " -q -o one");
    CHECK_INT(cli_entries("one"), 3 + 2 + 8);
    together(2, "compare " DETERMINISTIC " -q -o two", NULL);
    together(4, "compare " DETERMINISTIC " -q -o four", NULL);
    same_runs("one", "two");
    same_runs("one", "four");
}

/* One of four is killed again and again and comes back; the others wait for it. */
static void killed(void) {
    static const int entries[] = {6, 8, 11}; /* of 17 at the end; four more are signs of life */
    cli_tiny_model();
    CLI(0, NULL, "tvgpu compare " NOISY " -q -o one");
    int pid[4], status, stopped = 0;
    for (int i = 0; i < 4; i++) pid[i] = cli_start("tvgpu compare " NOISY " -q -o four --shard %d/4", i + 1);
    for (size_t k = 0; k < sizeof entries / sizeof *entries; k++) {
        while (cli_entries("four") < entries[k]) nanosleep(&(struct timespec){0, 200000}, NULL);
        kill(pid[2], SIGKILL);
        TV_ASSERT(waitpid(pid[2], &status, 0) == pid[2]);
        stopped += WIFSIGNALED(status);
        pid[2] = cli_start("tvgpu compare " NOISY " -q -o four --shard 3/4");
    }
    CHECK(stopped >= 1);
    for (int i = 0; i < 4; i++) {
        TV_ASSERT(waitpid(pid[i], &status, 0) == pid[i]);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    same_runs("one", "four");
}

/* A process that never comes is named; what is there then serves a run of one process. */
static void dead(void) {
    cli_tiny_model();
    CLI(0, NULL, "tvgpu compare " NOISY " -q -o one");
    CLI(1, "process 2 of 2 makes it and has given no sign of life for 0.3 s (--wait): start that process again",
        "tvgpu compare " NOISY " -q -o half --shard 1/2 --wait 0.3");
    CLI(0, NULL, "tvgpu compare " NOISY " -q -o half");
    same_runs("one", "half");
}

static void halves(void) {
    static const char score[] = "score m -R 3 --batch 6 --order shuffled --threads 1 -q -o parts";
    cli_tiny_model();
    CLI(0, NULL, "tvgpu sample m --prompts p.jsonl -N 12 -n 40 --batch 6 --order shuffled --threads 1 -q -o whole");
    CLI(0, NULL, "tvgpu score m -R 3 --batch 6 --order shuffled --threads 1 -q -o whole");
    together(2, "sample m --prompts p.jsonl -N 12 -n 40 --batch 6 --order shuffled --threads 1 -q -o parts", NULL);
    together(2, score, NULL);
    CLI(0, NULL, "diff -r whole parts");
    CLI(0, NULL, "rm parts/a-on-a.pass-000[01]*");
    CLI(0, NULL, "tvgpu %s --shard 2/2 && test $(ls parts | wc -l) = 3", score); /* its own of the two */
    CLI(0, NULL, "tvgpu %s --shard 1/2 && diff -r whole parts", score);
}

/* The variables of launchers count where they say that there are others. */
static void launchers(void) {
    static const char command[] = "tvgpu compare m --prompts p.jsonl -N 4 -n 4 -R 2 --backend-b math --threads 1";
    static const struct {
        const char *variables, *said;
    } found[] = {
        {"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=3", "process 2 of 3, as Open MPI numbers them"},
        {"RANK=2 WORLD_SIZE=4", "process 3 of 4, as torchrun numbers them"},
        {"SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=4", "process 4 of 4, as Slurm numbers them"},
        {"SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2 OMPI_COMM_WORLD_RANK=7 OMPI_COMM_WORLD_SIZE=8",
         "process 8 of 8, as Open"},
    };
    static const char *const alone[] = {"RANK=0 WORLD_SIZE=1", "RANK=3", "SLURM_PROCID=0 SLURM_NTASKS=4",
                                        "SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1"};
    cli_tiny_model();
    for (size_t i = 0; i < sizeof found / sizeof *found; i++)
        CLI(0, found[i].said, "export %s; %s --dry-run", found[i].variables, command);
    for (size_t i = 0; i < sizeof alone / sizeof *alone; i++)
        CLI(1, NULL, "(export %s; %s -o r) 2>&1 | grep -i ' process '", alone[i], command);
    CLI(0, NULL, "test -e r/report.json");
    CLI(2, "RANK=4 with WORLD_SIZE=4 names no process", "export RANK=4 WORLD_SIZE=4; %s -o r", command);
    CLI(2, "RANK=x with WORLD_SIZE=4 names no process", "export RANK=x WORLD_SIZE=4; %s -o r", command);
    CLI(0, "TV = ", "export RANK=4 WORLD_SIZE=4; %s -o r --shard 1/1", command);
}

static void refused(void) {
    static const char *const wrong[] = {"0/4", "5/4", "1", "1/", "/2", "-1/2", "1/2x", "1/99999", "a/b"};
    cli_tiny_model();
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        CLI(2, "not I/N with I from 1 to N", "tvgpu compare m --prompts p.jsonl -o r --shard %s", wrong[i]);
    CLI(2, "--keep-passes no cannot be shared out",
        "tvgpu compare m --prompts p.jsonl --keep-passes no --shard 1/2 -o r");
    CLI(2, "--target-error cannot be shared out",
        "tvgpu compare m --prompts p.jsonl --target-error 0.1 --shard 1/2 -o r");
    CLI(2, "--keep-passes no cannot be shared out", "tvgpu score m --keep-passes no --shard 1/2 -o r");
}

static const tv_test tests[] = {{"compare", compare}, {"stopping", stopping},   {"killed", killed},  {"dead", dead},
                                {"halves", halves},   {"launchers", launchers}, {"refused", refused}};
TV_TEST_MAIN(tests)
