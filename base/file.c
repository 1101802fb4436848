#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

tv_status tv_map_open(const char *path, tv_map *map, tv_err *err) {
    map->data = NULL;
    map->size = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return TV_FAIL(err, TV_EIO, "%s: cannot open: %s", path, strerror(errno));
    struct stat st;
    if (fstat(fd, &st) != 0) {
        int e = errno;
        close(fd);
        return TV_FAIL(err, TV_EIO, "%s: cannot stat: %s", path, strerror(e));
    }
    if (!S_ISREG(st.st_mode)) {
        close(fd);
        return TV_FAIL(err, TV_EIO, "%s: %s, not a regular file", path,
                       S_ISDIR(st.st_mode) ? "a folder" : "a special file");
    }
    if (st.st_size > 0) {
        void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED) {
            int e = errno;
            close(fd);
            return TV_FAIL(err, TV_EIO, "%s: cannot map %lld bytes: %s", path, (long long)st.st_size, strerror(e));
        }
        map->data = p;
        map->size = (size_t)st.st_size;
    }
    close(fd);
    return TV_OK;
}

void tv_map_close(tv_map *map) {
    if (map->data) munmap((void *)(uintptr_t)map->data, map->size);
    map->data = NULL;
    map->size = 0;
}

tv_status tv_file_read(const char *path, size_t limit, char **text, size_t *size, tv_err *err) {
    tv_map map;
    *text = NULL;
    *size = 0;
    TV_TRY(tv_map_open(path, &map, err));
    if (map.size > limit) {
        size_t n = map.size;
        tv_map_close(&map);
        return TV_FAIL(err, TV_EFORMAT, "%s: %zu bytes, more than the %zu allowed for such a file", path, n, limit);
    }
    char *p = malloc(map.size + 1);
    if (!p) {
        size_t n = map.size;
        tv_map_close(&map);
        return TV_FAIL(err, TV_ENOMEM, "%s: no memory for its %zu bytes", path, n);
    }
    if (map.size) memcpy(p, map.data, map.size);
    p[map.size] = 0;
    *text = p;
    *size = map.size;
    tv_map_close(&map);
    return TV_OK;
}

tv_status tv_atomic_open(const char *path, tv_atomic *file, tv_err *err) {
    memset(file, 0, sizeof *file);
    struct stat st;
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) /* the rename would put a file in the place of /dev/null */
        return TV_FAIL(err, TV_EIO, "%s: cannot write: exists and is not a regular file", path);
    file->path = tv_xstrdup(path);
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now); /* processes of two machines may have one number */
    file->tmp = tv_xprintf("%s.tmp-%ld%09ld", path, (long)getpid(), now.tv_nsec);
    do { /* the lock tells a file being written from a leftover; one removed as such before it was locked is made again
          */
        if (file->f) fclose(file->f);
        file->f = fopen(file->tmp, "wbx");
        if (!file->f) {
            int e = errno;
            TV_FAIL(err, TV_EIO, "%s: cannot write: %s", path, strerror(e));
            tv_atomic_abort(file);
            return TV_EIO;
        }
    } while (flock(fileno(file->f), LOCK_EX) == 0 && fstat(fileno(file->f), &st) == 0 && st.st_nlink == 0);
    return TV_OK;
}

int tv_atomic_clean(const char *tmp) {
    int fd = open(tmp, O_RDWR | O_CLOEXEC);
    int removed = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0 && unlink(tmp) == 0;
    if (fd >= 0) close(fd);
    return removed;
}

tv_status tv_atomic_write(tv_atomic *file, const void *data, size_t size, tv_err *err) {
    if (size && fwrite(data, 1, size, file->f) != size)
        return TV_FAIL(err, TV_EIO, "%s: cannot write: %s; nothing was left behind", file->path, strerror(errno));
    return TV_OK;
}

/* A rename is durable once the folder that holds the name is synced. */
static void sync_parent(const char *path) {
    char *copy = tv_xstrdup(path);
    int fd = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        fsync(fd); /* some file systems refuse this for folders; the data itself is synced already */
        close(fd);
    }
    free(copy);
}

tv_status tv_atomic_commit(tv_atomic *file, tv_err *err) {
    int bad = fflush(file->f) != 0 || fsync(fileno(file->f)) != 0;
    int e = errno;
    if (fclose(file->f) != 0 && !bad) bad = 1, e = errno;
    file->f = NULL;
    if (!bad && rename(file->tmp, file->path) != 0) bad = 1, e = errno;
    if (bad) {
        TV_FAIL(err, TV_EIO, "%s: cannot write: %s; nothing was left behind", file->path, strerror(e));
        tv_atomic_abort(file);
        return TV_EIO;
    }
    sync_parent(file->path);
    free(file->path);
    free(file->tmp);
    memset(file, 0, sizeof *file);
    return TV_OK;
}

void tv_atomic_abort(tv_atomic *file) {
    if (file->f) fclose(file->f);
    if (file->tmp) unlink(file->tmp);
    free(file->path);
    free(file->tmp);
    memset(file, 0, sizeof *file);
}

tv_status tv_file_write(const char *path, const void *data, size_t size, tv_err *err) {
    tv_atomic file;
    TV_TRY(tv_atomic_open(path, &file, err));
    tv_status s = tv_atomic_write(&file, data, size, err);
    if (s != TV_OK) {
        tv_atomic_abort(&file);
        return s;
    }
    return tv_atomic_commit(&file, err);
}

tv_status tv_dir_make(const char *path, tv_err *err) {
    char *p = tv_xstrdup(path);
    for (char *c = p + 1;; c++) {
        if (*c && *c != '/') continue;
        char keep = *c;
        *c = 0;
        if (mkdir(p, 0777) != 0 && errno != EEXIST) {
            tv_status s = TV_FAIL(err, TV_EIO, "%s: cannot make the folder: %s", p, strerror(errno));
            free(p);
            return s;
        }
        *c = keep;
        if (!keep) break;
    }
    free(p);
    if (!tv_path_is_dir(path)) return TV_FAIL(err, TV_EIO, "%s: exists and is not a folder", path);
    return TV_OK;
}

int tv_path_exists(const char *path) {
    struct stat st;
    return stat(path, &st) == 0;
}

int tv_path_is_dir(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

char *tv_path_join(const char *dir, const char *name) {
    size_t n = strlen(dir);
    return tv_xprintf("%s%s%s", dir, n && dir[n - 1] == '/' ? "" : "/", name);
}

uint64_t tv_disk_free(const char *path) {
    char *p = tv_xstrdup(path);
    struct statvfs vfs;
    uint64_t bytes = 0;
    while (statvfs(p, &vfs) != 0) {
        char *parent = tv_xstrdup(dirname(p));
        int same = strcmp(parent, ".") == 0 || strcmp(parent, "/") == 0;
        free(p);
        p = parent;
        if (same) {
            if (statvfs(p, &vfs) != 0) goto done;
            break;
        }
    }
    bytes = (uint64_t)vfs.f_bavail * vfs.f_frsize;
done:
    free(p);
    return bytes;
}

static void *checked(void *p, size_t size) {
    if (!p && size) {
        fprintf(stderr, "tvgpu: out of memory (%zu bytes)\n", size);
        abort();
    }
    return p;
}

void *tv_xmalloc(size_t size) { return checked(malloc(size ? size : 1), size); }
void *tv_xcalloc(size_t count, size_t size) {
    return checked(calloc(count ? count : 1, size ? size : 1), count * size);
}
void *tv_xrealloc(void *p, size_t size) { return checked(realloc(p, size ? size : 1), size); }

char *tv_xstrdup(const char *s) {
    size_t n = strlen(s) + 1;
    return memcpy(tv_xmalloc(n), s, n);
}

char *tv_xprintf(const char *fmt, ...) {
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    TV_ASSERT(n >= 0);
    char *p = tv_xmalloc((size_t)n + 1);
    vsnprintf(p, (size_t)n + 1, fmt, again);
    va_end(again);
    return p;
}
