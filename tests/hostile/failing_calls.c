/* A disk that fails below every library: the n-th write, sync, rename, link or removal under a
   folder is refused or torn. Loaded before libc (LD_PRELOAD) and armed from Python by ctypes. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static char root[4096];
static size_t root_length;
static atomic_long calls, fails_at;
static int number, is_torn;

/* Count from 0 again below `folder`; the `at`-th call fails with `error`. at 0: none does. */
void fault_arm(const char *folder, long at, int error, int torn) {
  fails_at = 0;
  strncpy(root, folder, sizeof root - 1);
  root_length = strlen(root);
  number = error;
  is_torn = torn;
  calls = 0;
  fails_at = at ? at : -1;
}

long fault_disarm(void) {
  fails_at = 0;
  return calls;
}

static int path_fails(const char *path) {
  if (!fails_at || !path || strncmp(path, root, root_length)) return 0;
  return ++calls == fails_at;
}

static int file_fails(int descriptor) {
  char link[64], path[4096];
  if (!fails_at) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length <= 0) return 0;
  path[length] = 0;
  return path_fails(path);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define FAIL return errno = number, -1

ssize_t write(int descriptor, const void *bytes, size_t size) {
  if (file_fails(descriptor)) {
    if (is_torn) REAL(write)(descriptor, bytes, size / 2);
    FAIL;
  }
  return REAL(write)(descriptor, bytes, size);
}

ssize_t pwrite(int descriptor, const void *bytes, size_t size, off_t at) {
  if (file_fails(descriptor)) {
    if (is_torn) REAL(pwrite)(descriptor, bytes, size / 2, at);
    FAIL;
  }
  return REAL(pwrite)(descriptor, bytes, size, at);
}

ssize_t pwrite64(int descriptor, const void *bytes, size_t size, off64_t at) {
  if (file_fails(descriptor)) {
    if (is_torn) REAL(pwrite64)(descriptor, bytes, size / 2, at);
    FAIL;
  }
  return REAL(pwrite64)(descriptor, bytes, size, at);
}

ssize_t writev(int descriptor, const struct iovec *parts, int count) {
  if (file_fails(descriptor)) {
    if (is_torn) REAL(writev)(descriptor, parts, count / 2);
    FAIL;
  }
  return REAL(writev)(descriptor, parts, count);
}

int fsync(int descriptor) {
  if (file_fails(descriptor)) FAIL;
  return REAL(fsync)(descriptor);
}

int fdatasync(int descriptor) {
  if (file_fails(descriptor)) FAIL;
  return REAL(fdatasync)(descriptor);
}

int rename(const char *from, const char *to) {
  if (path_fails(to)) FAIL;
  return REAL(rename)(from, to);
}

int renameat(int from_folder, const char *from, int to_folder, const char *to) {
  if (path_fails(to)) FAIL;
  return REAL(renameat)(from_folder, from, to_folder, to);
}

int linkat(int from_folder, const char *from, int to_folder, const char *to, int flags) {
  if (path_fails(to)) FAIL;
  return REAL(linkat)(from_folder, from, to_folder, to, flags);
}

int link(const char *from, const char *to) {
  if (path_fails(to)) FAIL;
  return REAL(link)(from, to);
}

int unlink(const char *path) {
  if (path_fails(path)) FAIL;
  return REAL(unlink)(path);
}

int unlinkat(int folder, const char *path, int flags) {
  if (path_fails(path)) FAIL;
  return REAL(unlinkat)(folder, path, flags);
}

int mkdir(const char *path, mode_t mode) {
  if (path_fails(path)) FAIL;
  return REAL(mkdir)(path, mode);
}

int open(const char *path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  mode_t mode = va_arg(rest, mode_t);
  va_end(rest);
  /* O_CREAT: a new name in a folder. */
  if ((flags & O_CREAT) && path_fails(path)) FAIL;
  return REAL(open)(path, flags, mode);
}

int open64(const char *path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  mode_t mode = va_arg(rest, mode_t);
  va_end(rest);
  if ((flags & O_CREAT) && path_fails(path)) FAIL;
  return REAL(open64)(path, flags, mode);
}
