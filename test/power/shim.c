// Writes down everything a process does to the files of one folder, in the order in which it happened, with the data and with the
// beginning and the end of each sync. Loaded with LD_PRELOAD; journal.ts reads what it writes.
//
//   POWER_ROOT       the folder
//   POWER_JOURNAL    the file to append to, outside of it
//   POWER_SYNC_US    a sync takes up to so much longer, so that whoever does not wait for it is seen
//   POWER_DIE_AT     the process kills itself after so many records: between two of them, so that none is missing
//
// Changes are made and written down under one lock: the order of the records is the order of the changes. A sync is not, so that
// other threads go on meanwhile, as they would. Names that contain "/derived" are left out: those files may be lost.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum {
  op_create = 1,
  op_write = 2,
  op_truncate = 3,
  op_link = 4,
  op_rename = 5,
  op_unlink = 6,
  op_mkdir = 7,
  op_sync_begin = 8,
  op_sync_end = 9,
  op_unknown = 10,
  op_start = 11,
};

struct record {
  uint32_t total;
  uint32_t op;
  uint64_t ns;
  uint64_t inode;
  uint64_t position;
  uint64_t length;
  uint32_t pid;
  uint32_t zeroes; /* the data are so many zeroes, and not stored */
  uint32_t path1;
  uint32_t path2;
  uint64_t sync;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const char *root;
static size_t root_length;
static int journal = -1;
static uint64_t records, die_at, syncs;
static uint32_t sync_us;

#define tracked_max 65536
static uint64_t tracked[tracked_max];

#define real(result, name, ...) \
  static result (*real_##name)(__VA_ARGS__); \
  __attribute__((constructor(101))) static void find_##name(void) { \
    real_##name = (result(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name); \
  }

real(int, open64, const char *, int, ...)
real(ssize_t, pwrite64, int, const void *, size_t, off64_t)
real(ssize_t, pwritev64, int, const struct iovec *, int, off64_t)
real(ssize_t, write, int, const void *, size_t)
real(ssize_t, writev, int, const struct iovec *, int)
real(int, ftruncate64, int, off64_t)
real(int, fsync, int)
real(int, fdatasync, int)
real(int, rename, const char *, const char *)
real(int, unlink, const char *)
real(int, link, const char *, const char *)
real(int, mkdir, const char *, mode_t)
real(int, rmdir, const char *)
real(int, truncate64, const char *, off64_t)
real(int, posix_fallocate64, int, off64_t, off64_t)
real(int, fallocate64, int, int, off64_t, off64_t)
real(ssize_t, sendfile64, int, int, off64_t *, size_t)
real(ssize_t, copy_file_range, int, off64_t *, int, off64_t *, size_t, unsigned)

static uint64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void fatal(const char *what) {
  dprintf(2, "power shim: %s: %s\n", what, strerror(errno));
  _exit(99);
}

static int ours(const char *path) {
  return root && path && strncmp(path, root, root_length) == 0 && (path[root_length] == '/' || path[root_length] == 0) &&
         !strstr(path + root_length, "/derived");
}

static void track(uint64_t inode) {
  for (uint64_t i = inode % tracked_max;; i = (i + 1) % tracked_max) {
    if (tracked[i] == inode) return;
    if (tracked[i] == 0) {
      __atomic_store_n(&tracked[i], inode, __ATOMIC_RELEASE);
      return;
    }
  }
}

static int is_tracked(uint64_t inode) {
  for (uint64_t i = inode % tracked_max;; i = (i + 1) % tracked_max) {
    uint64_t found = __atomic_load_n(&tracked[i], __ATOMIC_ACQUIRE);
    if (found == inode) return 1;
    if (found == 0) return 0;
  }
}

static dev_t root_device;

/* The number of the file behind a descriptor, 0 unless it is one of the folder. */
static uint64_t inode_of(int fd) {
  struct stat st;
  int before = errno;
  uint64_t inode = 0;
  if (root && fstat(fd, &st) == 0 && st.st_dev == root_device && (S_ISREG(st.st_mode) || S_ISDIR(st.st_mode)) &&
      is_tracked(st.st_ino))
    inode = st.st_ino;
  errno = before;
  return inode;
}

static uint64_t inode_at(const char *path) {
  struct stat st;
  int before = errno;
  uint64_t inode = stat(path, &st) == 0 ? st.st_ino : 0;
  errno = before;
  return inode;
}

static void all_of(struct iovec *parts, int count) {
  while (count > 0) {
    ssize_t done = real_writev(journal, parts, count);
    if (done < 0) fatal("journal");
    while (count > 0 && (size_t)done >= parts->iov_len) {
      done -= parts->iov_len;
      parts++;
      count--;
    }
    if (count > 0) {
      parts->iov_base = (char *)parts->iov_base + done;
      parts->iov_len -= done;
    }
  }
}

static int is_zero(const char *bytes, size_t length) {
  return length == 0 || (bytes[0] == 0 && memcmp(bytes, bytes + 1, length - 1) == 0);
}

/* Under the lock. `data` are the first `length` bytes of the parts. */
static void put(struct record r, const char *path1, const char *path2, const struct iovec *data, int parts) {
  int before = errno;
  struct iovec all[40];
  int count = 3;
  size_t left = r.op == op_write ? r.length : 0;
  if (parts > 36) fatal("too many parts");
  r.zeroes = 1;
  for (int i = 0; i < parts && left > 0; i++) {
    size_t some = data[i].iov_len < left ? data[i].iov_len : left;
    if (some == 0) continue;
    all[count].iov_base = data[i].iov_base;
    all[count++].iov_len = some;
    if (!is_zero(data[i].iov_base, some)) r.zeroes = 0;
    left -= some;
  }
  if (r.op != op_write || r.zeroes) count = 3;
  if (r.op != op_write) r.zeroes = 0;
  r.pid = (uint32_t)getpid();
  r.path1 = path1 ? strlen(path1) : 0;
  r.path2 = path2 ? strlen(path2) : 0;
  r.total = sizeof r + r.path1 + r.path2 + (count > 3 ? r.length : 0);
  all[0] = (struct iovec){&r, sizeof r};
  all[1] = (struct iovec){(void *)path1, r.path1};
  all[2] = (struct iovec){(void *)path2, r.path2};
  all_of(all, count);
  records++;
  if (die_at && records >= die_at) kill(getpid(), SIGKILL);
  errno = before;
}

__attribute__((constructor(102))) static void begin(void) {
  const char *path = getenv("POWER_JOURNAL");
  struct stat st;
  root = getenv("POWER_ROOT");
  if (!root || !path) {
    root = NULL;
    return;
  }
  root_length = strlen(root);
  if (stat(root, &st) != 0) fatal("root");
  root_device = st.st_dev;
  track(st.st_ino);
  int fd = real_open64(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  journal = fcntl(fd, F_DUPFD_CLOEXEC, 900);
  if (fd < 0 || journal < 0) fatal("journal");
  close(fd);
  const char *at = getenv("POWER_DIE_AT");
  const char *us = getenv("POWER_SYNC_US");
  die_at = at ? strtoull(at, NULL, 10) : 0;
  sync_us = us ? (uint32_t)strtoul(us, NULL, 10) : 0;
  pthread_mutex_lock(&lock);
  put((struct record){.op = op_start, .ns = now(), .inode = st.st_ino}, NULL, NULL, NULL, 0);
  pthread_mutex_unlock(&lock);
}

int open64(const char *path, int flags, ...) {
  va_list args;
  va_start(args, flags);
  mode_t mode = va_arg(args, mode_t);
  va_end(args);
  if (!ours(path)) return real_open64(path, flags, mode);
  pthread_mutex_lock(&lock);
  uint64_t ns = now();
  uint64_t had = inode_at(path);
  int fd = real_open64(path, flags, mode);
  struct stat st;
  if (fd >= 0 && fstat(fd, &st) == 0) {
    track(st.st_ino);
    if (!had) put((struct record){.op = op_create, .ns = ns, .inode = st.st_ino}, path, NULL, NULL, 0);
    else if (flags & O_TRUNC) put((struct record){.op = op_truncate, .ns = ns, .inode = st.st_ino}, NULL, NULL, NULL, 0);
  }
  pthread_mutex_unlock(&lock);
  return fd;
}

int open(const char *path, int flags, ...) {
  va_list args;
  va_start(args, flags);
  mode_t mode = va_arg(args, mode_t);
  va_end(args);
  return open64(path, flags, mode);
}

static ssize_t written(int fd, const struct iovec *parts, int count, off64_t position, int here) {
  uint64_t inode = inode_of(fd);
  if (!inode) {
    if (here) return count == 1 ? real_write(fd, parts[0].iov_base, parts[0].iov_len) : real_writev(fd, parts, count);
    return count == 1 ? real_pwrite64(fd, parts[0].iov_base, parts[0].iov_len, position)
                      : real_pwritev64(fd, parts, count, position);
  }
  pthread_mutex_lock(&lock);
  uint64_t ns = now();
  if (here) position = lseek64(fd, 0, fcntl(fd, F_GETFL) & O_APPEND ? SEEK_END : SEEK_CUR);
  ssize_t done = here ? real_writev(fd, parts, count) : real_pwritev64(fd, parts, count, position);
  if (done > 0) {
    struct record r = {.op = op_write, .ns = ns, .inode = inode, .position = position, .length = done};
    put(r, NULL, NULL, parts, count);
  }
  pthread_mutex_unlock(&lock);
  return done;
}

ssize_t write(int fd, const void *bytes, size_t length) {
  struct iovec part = {(void *)bytes, length};
  return written(fd, &part, 1, 0, 1);
}

ssize_t writev(int fd, const struct iovec *parts, int count) { return written(fd, parts, count, 0, 1); }

ssize_t pwrite64(int fd, const void *bytes, size_t length, off64_t position) {
  struct iovec part = {(void *)bytes, length};
  return written(fd, &part, 1, position, 0);
}

ssize_t pwrite(int fd, const void *bytes, size_t length, off_t position) { return pwrite64(fd, bytes, length, position); }

ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t position) {
  return written(fd, parts, count, position, 0);
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t position) {
  return written(fd, parts, count, position, 0);
}

int ftruncate64(int fd, off64_t length) {
  uint64_t inode = inode_of(fd);
  if (!inode) return real_ftruncate64(fd, length);
  pthread_mutex_lock(&lock);
  uint64_t ns = now();
  int result = real_ftruncate64(fd, length);
  struct record r = {.op = op_truncate, .ns = ns, .inode = inode, .position = length};
  if (result == 0) put(r, NULL, NULL, NULL, 0);
  pthread_mutex_unlock(&lock);
  return result;
}

int ftruncate(int fd, off_t length) { return ftruncate64(fd, length); }

static int synced(int fd, int (*call)(int)) {
  uint64_t inode = inode_of(fd);
  if (!inode) return call(fd);
  pthread_mutex_lock(&lock);
  uint64_t sync = ++syncs;
  put((struct record){.op = op_sync_begin, .ns = now(), .inode = inode, .sync = sync}, NULL, NULL, NULL, 0);
  pthread_mutex_unlock(&lock);
  if (sync_us) usleep((useconds_t)(now() / 1000 * 2654435761u % sync_us));
  int result = call(fd);
  pthread_mutex_lock(&lock);
  struct record r = {.op = op_sync_end, .ns = now(), .inode = inode, .sync = sync, .length = result != 0};
  put(r, NULL, NULL, NULL, 0);
  pthread_mutex_unlock(&lock);
  return result;
}

int fsync(int fd) { return synced(fd, real_fsync); }
int fdatasync(int fd) { return synced(fd, real_fdatasync); }

int rename(const char *from, const char *to) {
  if (!ours(from) && !ours(to)) return real_rename(from, to);
  pthread_mutex_lock(&lock);
  struct record r = {.op = op_rename, .ns = now(), .inode = inode_at(from)};
  int result = real_rename(from, to);
  if (result == 0) put(r, from, to, NULL, 0);
  pthread_mutex_unlock(&lock);
  return result;
}

int link(const char *from, const char *to) {
  if (!ours(from) && !ours(to)) return real_link(from, to);
  pthread_mutex_lock(&lock);
  struct record r = {.op = op_link, .ns = now(), .inode = inode_at(from)};
  int result = real_link(from, to);
  if (result == 0) put(r, to, NULL, NULL, 0);
  pthread_mutex_unlock(&lock);
  return result;
}

static int removed(const char *path, int (*call)(const char *)) {
  if (!ours(path)) return call(path);
  pthread_mutex_lock(&lock);
  struct record r = {.op = op_unlink, .ns = now(), .inode = inode_at(path)};
  int result = call(path);
  if (result == 0) put(r, path, NULL, NULL, 0);
  pthread_mutex_unlock(&lock);
  return result;
}

int unlink(const char *path) { return removed(path, real_unlink); }
int rmdir(const char *path) { return removed(path, real_rmdir); }

int mkdir(const char *path, mode_t mode) {
  if (!ours(path)) return real_mkdir(path, mode);
  pthread_mutex_lock(&lock);
  uint64_t ns = now();
  int result = real_mkdir(path, mode);
  uint64_t inode = result == 0 ? inode_at(path) : 0;
  if (inode) {
    track(inode);
    put((struct record){.op = op_mkdir, .ns = ns, .inode = inode}, path, NULL, NULL, 0);
  }
  pthread_mutex_unlock(&lock);
  return result;
}

/* Nothing here replays these: should the node begin to use one, the run fails and says so. */
static void unknown(uint64_t inode, const char *what) {
  if (!inode) return;
  pthread_mutex_lock(&lock);
  put((struct record){.op = op_unknown, .ns = now(), .inode = inode}, what, NULL, NULL, 0);
  pthread_mutex_unlock(&lock);
}

int truncate64(const char *path, off64_t length) {
  if (ours(path)) unknown(inode_at(path), "truncate");
  return real_truncate64(path, length);
}

int posix_fallocate64(int fd, off64_t position, off64_t length) {
  unknown(inode_of(fd), "posix_fallocate");
  return real_posix_fallocate64(fd, position, length);
}

int fallocate64(int fd, int mode, off64_t position, off64_t length) {
  unknown(inode_of(fd), "fallocate");
  return real_fallocate64(fd, mode, position, length);
}

ssize_t sendfile64(int to, int from, off64_t *position, size_t length) {
  unknown(inode_of(to), "sendfile");
  return real_sendfile64(to, from, position, length);
}

ssize_t copy_file_range(int from, off64_t *at, int to, off64_t *position, size_t length, unsigned flags) {
  unknown(inode_of(to), "copy_file_range");
  return real_copy_file_range(from, at, to, position, length, flags);
}
