/* Records every call that changes a file below RECORD_ROOT, in order, into the file RECORD_LOG.
   Loaded before libc (LD_PRELOAD); `recording.py` reads the records and rebuilds what a disk may
   hold after a power cut at any of them. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

static int log_file = -2;
static const char *root;
static size_t root_length;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int is_recorded(const char *path) {
  if (log_file == -2) {
    const char *name = getenv("RECORD_LOG");
    root = getenv("RECORD_ROOT");
    log_file = name && root ? (int)syscall(SYS_openat, AT_FDCWD, name,
                                           O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600)
                            : -1;
    root_length = root ? strlen(root) : 0;
  }
  return log_file >= 0 && path && !strncmp(path, root, root_length);
}

static int path_of(int descriptor, char *path, size_t size) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  ssize_t length = readlink(link, path, size - 1);
  if (length <= 0) return 0;
  path[length] = 0;
  return is_recorded(path);
}

static void put(const void *bytes, size_t size) {
  const char *at = bytes;
  while (size) {
    ssize_t done = syscall(SYS_write, log_file, at, size);
    if (done <= 0) abort();
    at += done;
    size -= done;
  }
}

static void record(char kind, const char *path, const char *other, int64_t offset,
                   const void *bytes, int64_t size) {
  struct { int64_t kind, path, other, offset, size; } head = {
      kind, strlen(path), other ? strlen(other) : 0, offset, bytes ? size : 0};
  pthread_mutex_lock(&lock);
  put(&head, sizeof head);
  put(path, head.path);
  if (other) put(other, head.other);
  if (bytes) put(bytes, size);
  pthread_mutex_unlock(&lock);
}

ssize_t write(int descriptor, const void *bytes, size_t size) {
  char path[4096];
  int is_ours = path_of(descriptor, path, sizeof path);
  off_t at = is_ours ? lseek(descriptor, 0, SEEK_CUR) : 0;
  ssize_t done = REAL(write)(descriptor, bytes, size);
  if (is_ours && done > 0) record('w', path, 0, at, bytes, done);
  return done;
}

ssize_t pwrite64(int descriptor, const void *bytes, size_t size, off64_t at) {
  char path[4096];
  ssize_t done = REAL(pwrite64)(descriptor, bytes, size, at);
  if (done > 0 && path_of(descriptor, path, sizeof path)) record('w', path, 0, at, bytes, done);
  return done;
}

ssize_t pwrite(int descriptor, const void *bytes, size_t size, off_t at) {
  return pwrite64(descriptor, bytes, size, at);
}

int ftruncate64(int descriptor, off64_t size) {
  char path[4096];
  int result = REAL(ftruncate64)(descriptor, size);
  if (!result && path_of(descriptor, path, sizeof path)) record('t', path, 0, size, 0, 0);
  return result;
}

int ftruncate(int descriptor, off_t size) { return ftruncate64(descriptor, size); }

int fsync(int descriptor) {
  char path[4096];
  if (path_of(descriptor, path, sizeof path)) record('s', path, 0, 0, 0, 0);
  return 0;
}

int fdatasync(int descriptor) { return fsync(descriptor); }

int rename(const char *from, const char *to) {
  int result = REAL(rename)(from, to);
  if (!result && is_recorded(to)) record('r', from, to, 0, 0, 0);
  return result;
}

int unlink(const char *path) {
  int result = REAL(unlink)(path);
  if (!result && is_recorded(path)) record('u', path, 0, 0, 0, 0);
  return result;
}

int mkdir(const char *path, mode_t mode) {
  int result = REAL(mkdir)(path, mode);
  if (!result && is_recorded(path)) record('d', path, 0, 0, 0, 0);
  return result;
}

static int opened(int (*real)(const char *, int, ...), const char *path, int flags, mode_t mode) {
  int is_new = (flags & O_CREAT) && is_recorded(path) && access(path, F_OK);
  int descriptor = real(path, flags, mode);
  if (descriptor >= 0 && is_new) record('c', path, 0, 0, 0, 0);
  return descriptor;
}

int open(const char *path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  mode_t mode = va_arg(rest, mode_t);
  va_end(rest);
  return opened(REAL(open), path, flags, mode);
}

int open64(const char *path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  mode_t mode = va_arg(rest, mode_t);
  va_end(rest);
  return opened(REAL(open64), path, flags, mode);
}
