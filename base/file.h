/* Files: mapped reading, whole-file reading, and writing that is all there or not there. */
#ifndef TV_FILE_H
#define TV_FILE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/status.h"

/* A read-only mapping of a whole file. */
typedef struct {
    const unsigned char *data; /* [size] bytes; NULL for an empty file */
    size_t size;
} tv_map;

TV_NODISCARD tv_status tv_map_open(const char *path, tv_map *map, tv_err *err);
void tv_map_close(tv_map *map);

/* The file's bytes with a terminating NUL behind them; the caller frees. At most limit bytes, else TV_EFORMAT. */
TV_NODISCARD tv_status tv_file_read(const char *path, size_t limit, char **text, size_t *size, tv_err *err);

/* A file that appears under its name only when tv_atomic_commit succeeds: written as PATH.tmp-DIGITS, synced, renamed,
 * and the folder synced. What is there and no regular file (a device, a folder) is refused. On any failure, or tv_atomic_abort, the temporary file is removed and PATH is as it was. */
typedef struct {
    FILE *f; /* write here */
    char *path, *tmp;
} tv_atomic;

TV_NODISCARD tv_status tv_atomic_open(const char *path, tv_atomic *file, tv_err *err);
/* Writes bytes, failing with the system's reason (disk full: says so). */
TV_NODISCARD tv_status tv_atomic_write(tv_atomic *file, const void *data, size_t size, tv_err *err);
TV_NODISCARD tv_status tv_atomic_commit(tv_atomic *file, tv_err *err);
void tv_atomic_abort(tv_atomic *file);
/* Removes the temporary file tmp unless a living process is writing it (it holds a lock); 1 when it was removed. */
int tv_atomic_clean(const char *tmp);
/* All three steps for data at hand. */
TV_NODISCARD tv_status tv_file_write(const char *path, const void *data, size_t size, tv_err *err);

/* Makes the folder and its parents where missing. */
TV_NODISCARD tv_status tv_dir_make(const char *path, tv_err *err);
int tv_path_exists(const char *path);
int tv_path_is_dir(const char *path);
/* "DIR/NAME" in fresh memory; the caller frees. Aborts when memory is exhausted. */
char *tv_path_join(const char *dir, const char *name);
/* Free bytes for this user on the file system holding path (or its nearest existing parent); 0 when unknown. */
uint64_t tv_disk_free(const char *path);

/* malloc/calloc/realloc/strdup that abort with a message when memory is exhausted: for small bookkeeping only. Large
 * buffers are sized, checked and reported by their owners. */
void *tv_xmalloc(size_t size);
void *tv_xcalloc(size_t count, size_t size);
void *tv_xrealloc(void *p, size_t size);
char *tv_xstrdup(const char *s);
/* printf into fresh memory; the caller frees. */
char *tv_xprintf(const char *fmt, ...) TV_PRINTF(1, 2);

#endif
