/* Preloaded, this makes the folder $SHIM_BELOW lie on such a file system as clusters have.
 *
 * SHIM_LOCKS: what flock and fcntl locks do there: an error's number; "nfs", flock as NFS has it (exclusive only of a
 * file that is open for writing, never of a folder); "own", which nobody else sees. Hard links, shared mappings and
 * the fsync of folders fail. SHIM_FILES: pairs PATH=PATH, of files that are read in place of others.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define REFUSE(error) do { errno = (error); return -1; } while (0)

static int below(const char *path) {
    const char *folder = getenv("SHIM_BELOW");
    return folder && !strncmp(path, folder, strlen(folder));
}

static int inside(int file) {
    char link[64], path[PATH_MAX + 1];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t size = readlink(link, path, PATH_MAX);
    path[size < 0 ? 0 : size] = 0;
    return below(path);
}

static int refusal(void) {  /* 0: none */
    const char *locks = getenv("SHIM_LOCKS");
    return locks ? atoi(locks) : 0;
}

int flock(int file, int how) {
    const char *locks = getenv("SHIM_LOCKS");
    if (locks && inside(file)) {
        if (refusal()) REFUSE(refusal());
        if (!strcmp(locks, "own")) return 0;
        if (how & LOCK_EX && (REAL(fcntl)(file, F_GETFL) & O_ACCMODE) == O_RDONLY) REFUSE(EBADF);
    }
    return REAL(flock)(file, how);
}

#define FCNTL(name)                                                                                       \
    int name(int file, int what, ...) {                                                                   \
        va_list rest;                                                                                     \
        va_start(rest, what);                                                                             \
        void *value = va_arg(rest, void *);                                                               \
        va_end(rest);                                                                                     \
        int locks = what == F_SETLK || what == F_SETLKW || what == F_OFD_SETLK || what == F_OFD_SETLKW;   \
        if (locks && refusal() && inside(file)) REFUSE(refusal());                                        \
        return REAL(name)(file, what, value);                                                             \
    }
FCNTL(fcntl)
FCNTL(fcntl64)

int link(const char *from, const char *to) {
    if (below(from) || below(to)) REFUSE(EPERM);
    return REAL(link)(from, to);
}

int linkat(int a, const char *from, int b, const char *to, int flags) {
    if (below(from) || below(to)) REFUSE(EOPNOTSUPP);
    return REAL(linkat)(a, from, b, to, flags);
}

#define SYNC(name)                                                                                        \
    int name(int file) {                                                                                  \
        struct stat status;                                                                               \
        if (!fstat(file, &status) && S_ISDIR(status.st_mode) && inside(file)) REFUSE(EINVAL);             \
        return REAL(name)(file);                                                                          \
    }
SYNC(fsync)
SYNC(fdatasync)

#define MAP(name)                                                                                         \
    void *name(void *where, size_t size, int rights, int how, int file, off_t at) {                       \
        if ((how & MAP_TYPE) != MAP_PRIVATE && file >= 0 && inside(file)) {                               \
            errno = ENODEV;                                                                               \
            return MAP_FAILED;                                                                            \
        }                                                                                                 \
        return REAL(name)(where, size, rights, how, file, at);                                            \
    }
MAP(mmap)
MAP(mmap64)

static const char *instead(const char *path) {
    static __thread char kept[PATH_MAX];
    const char *files = getenv("SHIM_FILES");
    size_t length = strlen(path);
    for (const char *at = files; at && *at; at = strchr(at, ':') ? strchr(at, ':') + 1 : NULL)
        if (!strncmp(at, path, length) && at[length] == '=') {
            size_t size = strcspn(at + length + 1, ":");
            memcpy(kept, at + length + 1, size);
            kept[size] = 0;
            return kept;
        }
    return path;
}

#define OPEN(name)                                                                                        \
    int name(const char *path, int flags, ...) {                                                          \
        va_list rest;                                                                                     \
        va_start(rest, flags);                                                                            \
        int mode = va_arg(rest, int);                                                                     \
        va_end(rest);                                                                                     \
        return REAL(name)(instead(path), flags, mode);                                                    \
    }
OPEN(open)
OPEN(open64)
