#include "base/gnuplot.h"

#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"

enum { MOST = 32 << 20 }; /* bytes of a picture */

/* Through unnamed temporary files: neither end of a pipe can fill up and wait for the other. */
int tv_gnuplot(const char *script, char **picture, size_t *size) {
    FILE *in = tmpfile(), *out = tmpfile();
    char *argv[] = {(char *)"gnuplot", (char *)"-", NULL};
    posix_spawn_file_actions_t actions;
    pid_t pid;
    int status = -1, drawn = 0;
    *picture = NULL;
    *size = 0;
    if (in && out && fputs(script, in) >= 0 && fflush(in) == 0 && fseek(in, 0, SEEK_SET) == 0 &&
        posix_spawn_file_actions_init(&actions) == 0) {
        posix_spawn_file_actions_adddup2(&actions, fileno(in), 0);
        posix_spawn_file_actions_adddup2(&actions, fileno(out), 1);
        posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", 1 /* O_WRONLY */, 0);
        lseek(fileno(in), 0, SEEK_SET);
        if (posix_spawnp(&pid, argv[0], &actions, NULL, argv, environ) == 0 && waitpid(pid, &status, 0) == pid &&
            WIFEXITED(status) && WEXITSTATUS(status) == 0) {
            off_t bytes = lseek(fileno(out), 0, SEEK_END);
            if (bytes > 0 && bytes < MOST) {
                *size = (size_t)bytes;
                *picture = tv_xcalloc(*size + 1, 1);
                drawn = pread(fileno(out), *picture, *size, 0) == (ssize_t)bytes;
            }
        }
        posix_spawn_file_actions_destroy(&actions);
    }
    if (in) fclose(in);
    if (out) fclose(out);
    if (!drawn) free(*picture), *picture = NULL, *size = 0;
    return drawn;
}
