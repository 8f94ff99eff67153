/* Makes calls of the system fail, or the clock differ, in the processes that have this preloaded.
 *
 * $ODD is a folder. A link in it named as an operation (open, read, write, rename, stat, list, close,
 * make, remove, flock) leads to ERRNO:PREFIX, and fails it on files whose path begins with PREFIX;
 * one named clock leads to the seconds by which the clock is ahead. Links may come and go at any time.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define REAL(type, name, ...) ((type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name))

static int told(const char *what, char *text, size_t size) {
  const char *folder = getenv("ODD");
  char link[PATH_MAX];
  if (!folder) return 0;
  snprintf(link, sizeof link, "%s/%s", folder, what);
  long got = syscall(SYS_readlink, link, text, size - 1);
  if (got <= 0) return 0;
  text[got] = 0;
  return 1;
}

/* Whether this is to fail; errno says how. */
static int fails(const char *what, int at, const char *path) {
  char text[PATH_MAX], whole[2 * PATH_MAX], folder[PATH_MAX], link[64];
  int before = errno;
  if (!told(what, text, sizeof text)) { errno = before; return 0; }
  char *prefix = strchr(text, ':');
  if (!prefix) { errno = before; return 0; }
  *prefix++ = 0;
  if (path && path[0] == '/') {
    snprintf(whole, sizeof whole, "%s", path);
  } else {
    if (at == AT_FDCWD) snprintf(link, sizeof link, "/proc/self/cwd");
    else snprintf(link, sizeof link, "/proc/self/fd/%d", at);
    long got = syscall(SYS_readlink, link, folder, sizeof folder - 1);
    if (got < 0) { errno = before; return 0; }
    folder[got] = 0;
    if (path) snprintf(whole, sizeof whole, "%s/%s", folder, path);
    else snprintf(whole, sizeof whole, "%s", folder);
  }
  if (strncmp(whole, prefix, strlen(prefix))) { errno = before; return 0; }
  errno = atoi(text);
  return 1;
}

static int opening(int at, const char *path, int flags) {
  if (flags & O_DIRECTORY) return fails("list", at, path);
  return fails(flags & (O_WRONLY | O_RDWR | O_CREAT) ? "make" : "open", at, path);
}

#define MODE \
  mode_t mode = 0; \
  if (flags & (O_CREAT | __O_TMPFILE)) { va_list more; va_start(more, flags); mode = va_arg(more, mode_t); va_end(more); }
#define OPEN(name) \
  int name(const char *path, int flags, ...) { MODE \
    return opening(AT_FDCWD, path, flags) ? -1 : REAL(int, name, const char *, int, mode_t)(path, flags, mode); }
#define OPENAT(name) \
  int name(int at, const char *path, int flags, ...) { MODE \
    return opening(at, path, flags) ? -1 : REAL(int, name, int, const char *, int, mode_t)(at, path, flags, mode); }
OPEN(open) OPEN(open64) OPENAT(openat) OPENAT(openat64)

ssize_t read(int fd, void *to, size_t size) {
  return fails("read", fd, 0) ? -1 : REAL(ssize_t, read, int, void *, size_t)(fd, to, size);
}
ssize_t write(int fd, const void *from, size_t size) {
  return fails("write", fd, 0) ? -1 : REAL(ssize_t, write, int, const void *, size_t)(fd, from, size);
}
#define PREAD(name) \
  ssize_t name(int fd, void *to, size_t size, off_t at) { \
    return fails("read", fd, 0) ? -1 : REAL(ssize_t, name, int, void *, size_t, off_t)(fd, to, size, at); }
#define PWRITE(name) \
  ssize_t name(int fd, const void *from, size_t size, off_t at) { \
    return fails("write", fd, 0) ? -1 : REAL(ssize_t, name, int, const void *, size_t, off_t)(fd, from, size, at); }
PREAD(pread) PREAD(pread64) PWRITE(pwrite) PWRITE(pwrite64)

/* A quota is told of when a file is closed; it is closed all the same. */
int close(int fd) {
  struct stat about;
  int failed = !syscall(SYS_fstat, fd, &about) && S_ISREG(about.st_mode) && fails("close", fd, 0);
  int how = errno;
  int done = syscall(SYS_close, fd);
  if (failed) { errno = how; return -1; }
  return done;
}
int rename(const char *from, const char *to) {
  return fails("rename", AT_FDCWD, to) ? -1 : syscall(SYS_rename, from, to);
}
int mkdir(const char *path, mode_t mode) {
  return fails("make", AT_FDCWD, path) ? -1 : syscall(SYS_mkdir, path, mode);
}
int unlink(const char *path) {
  return fails("remove", AT_FDCWD, path) ? -1 : syscall(SYS_unlink, path);
}
int rmdir(const char *path) {
  return fails("remove", AT_FDCWD, path) ? -1 : syscall(SYS_rmdir, path);
}
#define STAT(name, kind) \
  int name(const char *path, struct kind *to) { \
    return fails("stat", AT_FDCWD, path) ? -1 : REAL(int, name, const char *, struct kind *)(path, to); }
STAT(stat, stat) STAT(lstat, stat) STAT(stat64, stat64) STAT(lstat64, stat64)
DIR *opendir(const char *path) {
  return fails("list", AT_FDCWD, path) ? 0 : REAL(DIR *, opendir, const char *)(path);
}
int flock(int fd, int how) {
  return fails("flock", fd, 0) ? -1 : REAL(int, flock, int, int)(fd, how);
}

static long ahead(void) {
  char text[64];
  int before = errno;
  long found = told("clock", text, sizeof text) ? atol(text) : 0;
  errno = before;
  return found;
}
int clock_gettime(clockid_t clock, struct timespec *to) {
  int done = syscall(SYS_clock_gettime, clock, to);
  if (clock == CLOCK_REALTIME && !done) to->tv_sec += ahead();
  return done;
}
int gettimeofday(struct timeval *restrict to, void *restrict zone) {
  int done = syscall(SYS_gettimeofday, to, zone);
  if (to && !done) to->tv_sec += ahead();
  return done;
}
time_t time(time_t *to) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (to) *to = now.tv_sec;
  return now.tv_sec;
}
