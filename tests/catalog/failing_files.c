/* Calls on the files of a catalog that fail when they are told to: put before the C library with LD_PRELOAD.

   `fail_at(kinds, calls, error, times)`: of the calls of some kinds (bits: 1 reads, 2 writes, 4 flushes, 8 changes
   of length) the one after so many fails with an errno, and so do as many after it as make `times`. A write that
   fails for want of room writes the first half, as the system does. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static int armed, before, wanted, left, met;

void fail_at(int kinds, int calls, int error, int times) {
    armed = kinds, before = calls, wanted = error, left = times, met = 0;
}

int failures(void) { return met; }

static int fails(int kind, int file) {
    char link[32], path[4096];
    if (!(armed & kind) || left <= 0) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0) return 0;
    path[length] = 0;
    if (!strstr(path, "/catalog.db") || before-- > 0) return 0;
    left--, met++;
    return 1;
}

#define REAL(type, name, ...) ((type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name))
#define AT(type, name, kind, buffer)                                                                    \
    ssize_t name(int file, buffer data, size_t length, type offset) {                                   \
        if (fails(kind, file)) {                                                                        \
            if (wanted == ENOSPC && kind == 2 && length > 1)                                            \
                return REAL(ssize_t, name, int, buffer, size_t, type)(file, data, length / 2, offset);  \
            errno = wanted;                                                                             \
            return -1;                                                                                  \
        }                                                                                               \
        return REAL(ssize_t, name, int, buffer, size_t, type)(file, data, length, offset);              \
    }
#define PLAIN(name, kind, parameters, arguments, ...)                                                   \
    int name parameters {                                                                               \
        if (fails(kind, file)) {                                                                        \
            errno = wanted;                                                                             \
            return -1;                                                                                  \
        }                                                                                               \
        return REAL(int, name, __VA_ARGS__) arguments;                                                  \
    }

AT(off_t, pread, 1, void *)
AT(off64_t, pread64, 1, void *)
AT(off_t, pwrite, 2, const void *)
AT(off64_t, pwrite64, 2, const void *)
PLAIN(fsync, 4, (int file), (file), int)
PLAIN(fdatasync, 4, (int file), (file), int)
PLAIN(ftruncate, 8, (int file, off_t length), (file, length), int, off_t)
PLAIN(ftruncate64, 8, (int file, off64_t length), (file, length), int, off64_t)
