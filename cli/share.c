#include "cli/share.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "cli/progress.h"
#include "traces/rundir.h"

enum { MOST_PROCESSES = 1 << 16, BEAT_SECONDS = 2 };

/* ---- who this process is ---- */

/* A whole number of digits alone, at most 9 of them; -1 for anything else. */
static int number(const char *text, size_t length) {
    if (!length || length > 9 || strspn(text, "0123456789") < length) return -1;
    return atoi(text);
}

static tv_status from_option(cli_share *share, const char *value, tv_err *err) {
    const char *slash = strchr(value, '/');
    int part = slash ? number(value, (size_t)(slash - value)) : -1,
        count = slash ? number(slash + 1, strlen(slash + 1)) : -1;
    if (part < 1 || count < part || count > MOST_PROCESSES)
        return TV_FAIL(err, TV_EARG, "--shard %s: not I/N with I from 1 to N, as in --shard 2/4", value);
    share->index = part - 1, share->count = count;
    return TV_OK;
}

/* Launchers start one another: the innermost, which knows each process best, comes first. Slurm's SLURM_NTASKS would
 * mislead: a batch script has it too, where one process runs and nobody else comes; what srun started has a step. */
static tv_status from_launcher(cli_share *share, tv_err *err) {
    static const struct {
        const char *name, *index, *count;
    } launchers[] = {{"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                     {"torchrun", "RANK", "WORLD_SIZE"},
                     {"Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"}};
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++) {
        const char *x = getenv(launchers[i].index), *n = getenv(launchers[i].count);
        if (!x || !n || !strcmp(n, "1")) continue;
        const int index = number(x, strlen(x)), count = number(n, strlen(n));
        if (index < 0 || count <= index || count > MOST_PROCESSES)
            return TV_FAIL(
                err, TV_EARG,
                "%s=%s with %s=%s names no process of a launcher: unset them, or say --shard I/N (--shard 1/1: "
                "one process does everything)",
                launchers[i].index, x, launchers[i].count, n);
        share->index = index, share->count = count;
        tv_note("process %d of %d, as %s numbers them (%s, %s)", index + 1, count, launchers[i].name,
                launchers[i].index, launchers[i].count);
        return TV_OK;
    }
    return TV_OK;
}

tv_status cli_share_find(cli_share *share, const tv_args *args, tv_err *err) {
    *share = (cli_share){.count = 1, .patience = args->wait};
    return args->shard ? from_option(share, args->shard, err) : from_launcher(share, err);
}

int cli_share_divided(const cli_share *share) { return share->count > 1; }

int cli_share_owner(const cli_share *share, int64_t item) {
    return cli_share_divided(share) ? (int)((item + item / share->count) % share->count) : 0;
}

int cli_share_mine(const cli_share *share, int64_t item) { return cli_share_owner(share, item) == share->index; }

/* ---- signs of life ---- */

/* Makes or touches the file, by name: what removed it does not silence this process. It is locked as long as the
 * process lives, so that tv_rundir_clean tells it from a leftover. */
static void touch(const cli_share *share, int *fd) {
    struct stat held, named;
    if (*fd < 0 || fstat(*fd, &held) != 0 || stat(share->alive, &named) != 0 || held.st_ino != named.st_ino) {
        if (*fd >= 0) close(*fd);
        *fd = open(share->alive, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
        if (*fd >= 0) (void)!flock(*fd, LOCK_EX | LOCK_NB);
    }
    if (*fd >= 0) (void)!futimens(*fd, NULL);
}

static void *beat(void *user) {
    cli_share *share = user;
    int fd = -1;
    pthread_mutex_lock(&share->lock);
    while (!share->ending) {
        touch(share, &fd);
        struct timespec next;
        clock_gettime(CLOCK_REALTIME, &next);
        next.tv_sec += BEAT_SECONDS;
        pthread_cond_timedwait(&share->wake, &share->lock, &next);
    }
    pthread_mutex_unlock(&share->lock);
    if (fd >= 0) close(fd);
    return NULL;
}

tv_status cli_share_begin(cli_share *share, const char *folder, tv_err *err) {
    if (!cli_share_divided(share)) return TV_OK;
    share->folder = folder;
    share->alive = tv_rundir_alive_path(folder, share->index, share->count);
    pthread_mutex_init(&share->lock, NULL);
    pthread_cond_init(&share->wake, NULL);
    const int failed = pthread_create(&share->thread, NULL, beat, share);
    if (!failed) return TV_OK;
    free(share->alive);
    share->alive = NULL;
    return TV_FAIL(err, TV_ENOMEM, "process %d of %d cannot start a thread: %s", share->index + 1, share->count,
                   strerror(failed));
}

void cli_share_end(cli_share *share) {
    if (!share->alive) return;
    pthread_mutex_lock(&share->lock);
    share->ending = 1;
    pthread_cond_signal(&share->wake);
    pthread_mutex_unlock(&share->lock);
    pthread_join(share->thread, NULL);
    pthread_cond_destroy(&share->wake);
    pthread_mutex_destroy(&share->lock);
    unlink(share->alive);
    free(share->alive);
    share->alive = NULL;
}

/* ---- waiting ---- */

tv_status cli_share_wait(const cli_share *share, const char *path, int owner, tv_err *err) {
    enum { FIRST_MS = 2, MOST_MS = 500 };
    char *alive = tv_rundir_alive_path(share->folder, owner, share->count);
    const double begin = tv_clock();
    double sign = begin; /* when the owner was last seen to live, by this machine's clock */
    struct timespec seen = {0};
    int ms = FIRST_MS, said = 0;
    tv_status s = TV_OK;
    while (!tv_path_exists(path)) {
        struct stat st;
        const double now = tv_clock();
        if (stat(alive, &st) == 0 && (st.st_mtim.tv_sec != seen.tv_sec || st.st_mtim.tv_nsec != seen.tv_nsec)) {
            seen = st.st_mtim;
            sign = now;
        }
        if (now - sign > share->patience) {
            s = TV_FAIL(
                err, TV_EIO,
                "%s: process %d of %d makes it and has given no sign of life for %g s (--wait): start that "
                "process again, or repeat the command with --shard 1/1 to compute here what is missing; what is "
                "done stays",
                path, owner + 1, share->count, share->patience);
            break;
        }
        if (!said && now - begin > 1) {
            tv_note("waiting for process %d of %d: %s", owner + 1, share->count, path);
            said = 1;
        }
        nanosleep(&(struct timespec){0, ms * 1000000L}, NULL);
        ms = 2 * ms < MOST_MS ? 2 * ms : MOST_MS;
    }
    free(alive);
    return s;
}
