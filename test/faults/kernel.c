// Stands between a node and the kernel: calls fail, come back short or take long, and the wall clock is somewhere else, as a page
// of shared memory says at that moment. A test writes the page while the node runs (test/support/faulty-kernel.ts has its layout).
//
// What a failed fdatasync does on Linux is done here too: the pages written since the last good one are gone (they are zeroes), and
// the next fdatasync of the same file succeeds. So a program that only tries it again loses data and is found out.
//
// Each change of a file below FAULT_ROOT is a line of the journal: what, the file, its inode, the result, where and how much.

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { OPEN = 1, WRITE = 2, READ = 4, DATASYNC = 8, SYNC = 16, RENAME = 32, UNLINK = 64, TRUNCATE = 128, LINK = 256,
  LIST = 512, MKDIR = 1024, ACCEPT = 2048, POLL = 4096, CREATE = 8192 };
enum { FAIL, SHORT, DROP, SLOW };

struct rule {
  uint32_t active, calls, error, mode, after, times, delay_ms, main_only;
  uint32_t seen, hits, at_start;
  char pattern[148];
};

#define RULES 16
struct page {
  int64_t wall_ms;
  struct rule rules[RULES];
};

static struct page *page;
static const char *root;
static int journal = -1;

__attribute__((constructor)) static void begin(void) {
  const char *path = getenv("FAULT_PAGE");
  const char *lines = getenv("FAULT_JOURNAL");
  root = getenv("FAULT_ROOT");
  if (path != NULL) {
    int fd = syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0);
    if (fd >= 0) {
      void *map = mmap(NULL, sizeof(struct page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
      if (map != MAP_FAILED) page = map;
      syscall(SYS_close, fd);
    }
  }
  if (lines != NULL) journal = syscall(SYS_openat, AT_FDCWD, lines, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
}

#define REAL(name) \
  static __typeof__(name) *real; \
  if (real == NULL) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

static int below_root(const char *path) {
  return root != NULL && strncmp(path, root, strlen(root)) == 0;
}

static void path_of(int fd, char *path, size_t size) {
  char name[40];
  snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
  long got = syscall(SYS_readlinkat, AT_FDCWD, name, path, size - 1);
  path[got > 0 ? got : 0] = 0;
}

static int matches(const struct rule *rule, const char *path) {
  size_t length = strnlen(rule->pattern, sizeof rule->pattern);
  if (length > 0 && rule->pattern[length - 1] == '$') {
    size_t have = strlen(path);
    return have >= length - 1 && strncmp(path + have - (length - 1), rule->pattern, length - 1) == 0;
  }
  return strstr(path, rule->pattern) != NULL;
}

static int any_active(uint32_t calls) {
  if (page == NULL) return 0;
  for (int i = 0; i < RULES; i++)
    if (__atomic_load_n(&page->rules[i].active, __ATOMIC_ACQUIRE) && (page->rules[i].calls & calls)) return 1;
  return 0;
}

/** The rule that this call meets, after its delay. */
static const struct rule *meet_at(uint32_t call, const char *path, long offset) {
  if (page == NULL) return NULL;
  for (int i = 0; i < RULES; i++) {
    struct rule *rule = &page->rules[i];
    if (!__atomic_load_n(&rule->active, __ATOMIC_ACQUIRE) || !(rule->calls & call) || !matches(rule, path)) continue;
    if (rule->at_start && offset != 0) continue;
    if (rule->main_only && syscall(SYS_gettid) != syscall(SYS_getpid)) continue;
    uint32_t seen = __atomic_fetch_add(&rule->seen, 1, __ATOMIC_ACQ_REL);
    if (seen < rule->after || seen - rule->after >= rule->times) continue;
    __atomic_fetch_add(&rule->hits, 1, __ATOMIC_ACQ_REL);
    if (rule->delay_ms > 0) {
      struct timespec left = { rule->delay_ms / 1000, (rule->delay_ms % 1000) * 1000000L };
      while (syscall(SYS_nanosleep, &left, &left) != 0 && errno == EINTR) continue;
    }
    return rule->mode == SLOW ? NULL : rule;
  }
  return NULL;
}

static const struct rule *meet(uint32_t call, const char *path) {
  return meet_at(call, path, -1);
}

static void note(const char *call, const char *path, int fd, long result, long offset, long bytes) {
  if (journal < 0 || !below_root(path)) return;
  int saved = errno;
  struct stat found = { 0 };
  if (fd >= 0) fstat(fd, &found);
  char line[600];
  int length = snprintf(line, sizeof line, "%s %s %lu %ld %ld %ld\n", call, path, (unsigned long)found.st_ino,
    result < 0 ? (long)-saved : result, offset, bytes);
  if (syscall(SYS_write, journal, line, length) != length) abort();
  errno = saved;
}

// ------------------------------------------------------------------------------- what was written since the last good sync

#define RANGES 4096
static struct { dev_t dev; ino_t ino; long offset, bytes; } unsynced[RANGES];
static int ranges;
static pthread_mutex_t ranges_lock = PTHREAD_MUTEX_INITIALIZER;

static void remember(int fd, const char *path, long offset, long bytes) {
  struct stat found;
  // The derived index is never synced while it is in use.
  if (bytes <= 0 || !below_root(path) || strstr(path, "/derived/") || fstat(fd, &found) != 0) return;
  pthread_mutex_lock(&ranges_lock);
  if (ranges == RANGES) abort();
  unsynced[ranges].dev = found.st_dev;
  unsynced[ranges].ino = found.st_ino;
  unsynced[ranges].offset = offset;
  unsynced[ranges++].bytes = bytes;
  pthread_mutex_unlock(&ranges_lock);
}

static void forget(int fd, int drop) {
  static const char zeroes[65536];
  struct stat found;
  if (fstat(fd, &found) != 0) return;
  pthread_mutex_lock(&ranges_lock);
  int kept = 0;
  for (int i = 0; i < ranges; i++) {
    if (unsynced[i].dev != found.st_dev || unsynced[i].ino != found.st_ino) {
      unsynced[kept++] = unsynced[i];
      continue;
    }
    for (long done = 0; drop && done < unsynced[i].bytes;) {
      long part = unsynced[i].bytes - done < (long)sizeof zeroes ? unsynced[i].bytes - done : (long)sizeof zeroes;
      long put = syscall(SYS_pwrite64, fd, zeroes, part, unsynced[i].offset + done);
      if (put <= 0) abort();
      done += put;
    }
  }
  ranges = kept;
  pthread_mutex_unlock(&ranges_lock);
}

// --------------------------------------------------------------------------------------------------------------- the calls

#define FAIL_WITH(rule) do { errno = (rule)->error; return -1; } while (0)

int open64(const char *path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  mode_t mode = va_arg(rest, mode_t);
  va_end(rest);
  const struct rule *rule = meet(flags & O_CREAT ? CREATE | OPEN : OPEN, path);
  if (rule != NULL) FAIL_WITH(rule);
  return syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

int open(const char *path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  mode_t mode = va_arg(rest, mode_t);
  va_end(rest);
  return open64(path, flags, mode);
}

ssize_t pwrite64(int fd, const void *bytes, size_t count, off64_t offset) {
  char path[512] = "";
  path_of(fd, path, sizeof path);
  const struct rule *rule = meet_at(WRITE, path, offset);
  long done = -1;
  if (rule != NULL && rule->mode == FAIL) errno = rule->error;
  else done = syscall(SYS_pwrite64, fd, bytes, rule != NULL && count > 1 ? count / 2 : count, offset);
  remember(fd, path, offset, done);
  note("write", path, fd, done, offset, count);
  return done;
}

ssize_t write(int fd, const void *bytes, size_t count) {
  char path[512] = "";
  if (journal >= 0 || any_active(WRITE)) path_of(fd, path, sizeof path);
  const struct rule *rule = path[0] == '/' ? meet(WRITE, path) : NULL;
  long done = -1;
  if (rule != NULL && rule->mode == FAIL) errno = rule->error;
  else done = syscall(SYS_write, fd, bytes, rule != NULL && count > 1 ? count / 2 : count);
  note("write", path, fd, done, -1, count);
  return done;
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
  if (any_active(WRITE)) {
    char path[512] = "";
    path_of(fd, path, sizeof path);
    const struct rule *rule = path[0] == '/' ? meet(WRITE, path) : NULL;
    if (rule != NULL && rule->mode == FAIL) FAIL_WITH(rule);
  }
  return syscall(SYS_writev, fd, parts, count);
}

ssize_t pread64(int fd, void *bytes, size_t count, off64_t offset) {
  if (any_active(READ)) {
    char path[512] = "";
    path_of(fd, path, sizeof path);
    const struct rule *rule = meet(READ, path);
    if (rule != NULL && rule->mode == FAIL) FAIL_WITH(rule);
    if (rule != NULL && count > 1) count /= 2;
  }
  return syscall(SYS_pread64, fd, bytes, count, offset);
}

ssize_t read(int fd, void *bytes, size_t count) {
  if (any_active(READ)) {
    char path[512] = "";
    path_of(fd, path, sizeof path);
    const struct rule *rule = path[0] == '/' ? meet(READ, path) : NULL;
    if (rule != NULL && rule->mode == FAIL) FAIL_WITH(rule);
  }
  return syscall(SYS_read, fd, bytes, count);
}

static int sync_file(int fd, uint32_t call, const char *name, long number) {
  char path[512] = "";
  path_of(fd, path, sizeof path);
  const struct rule *rule = meet(call, path);
  int result = -1;
  if (rule == NULL) result = syscall(number, fd);
  if (result == 0) forget(fd, 0);
  else if (rule != NULL && rule->mode == DROP) forget(fd, 1);
  if (rule != NULL) errno = rule->error;
  note(name, path, fd, result, 0, 0);
  return result;
}

int fdatasync(int fd) { return sync_file(fd, DATASYNC, "datasync", SYS_fdatasync); }
int fsync(int fd) { return sync_file(fd, SYNC, "sync", SYS_fsync); }

int ftruncate64(int fd, off64_t length) {
  char path[512] = "";
  path_of(fd, path, sizeof path);
  const struct rule *rule = meet(TRUNCATE, path);
  if (rule != NULL) FAIL_WITH(rule);
  int result = syscall(SYS_ftruncate, fd, length);
  note("truncate", path, fd, result, length, 0);
  return result;
}

int rename(const char *from, const char *to) {
  const struct rule *rule = meet(RENAME, to);
  if (rule != NULL) FAIL_WITH(rule);
  int result = syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
  note("rename", to, -1, result, 0, 0);
  return result;
}

int unlink(const char *path) {
  const struct rule *rule = meet(UNLINK, path);
  if (rule != NULL) FAIL_WITH(rule);
  int result = syscall(SYS_unlinkat, AT_FDCWD, path, 0);
  note("unlink", path, -1, result, 0, 0);
  return result;
}

int link(const char *from, const char *to) {
  const struct rule *rule = meet(LINK, to);
  if (rule != NULL) FAIL_WITH(rule);
  return syscall(SYS_linkat, AT_FDCWD, from, AT_FDCWD, to, 0);
}

int mkdir(const char *path, mode_t mode) {
  const struct rule *rule = meet(MKDIR, path);
  if (rule != NULL) FAIL_WITH(rule);
  return syscall(SYS_mkdirat, AT_FDCWD, path, mode);
}

int scandir64(const char *path, struct dirent64 ***names, int (*wanted)(const struct dirent64 *),
  int (*order)(const struct dirent64 **, const struct dirent64 **)) {
  REAL(scandir64);
  const struct rule *rule = meet(LIST, path);
  if (rule != NULL) FAIL_WITH(rule);
  return real(path, names, wanted, order);
}

int accept4(int fd, struct sockaddr *address, socklen_t *length, int flags) {
  REAL(accept4);
  const struct rule *rule = meet(ACCEPT, "");
  if (rule != NULL) FAIL_WITH(rule);
  return real(fd, address, length, flags);
}

int epoll_wait(int fd, struct epoll_event *events, int max, int timeout) {
  REAL(epoll_wait);
  meet(POLL, "");
  return real(fd, events, max, timeout);
}

int epoll_pwait(int fd, struct epoll_event *events, int max, int timeout, const sigset_t *signals) {
  REAL(epoll_pwait);
  meet(POLL, "");
  return real(fd, events, max, timeout, signals);
}

// --------------------------------------------------------------------------------------------------------------- the clock

int clock_gettime(clockid_t clock, struct timespec *now) {
  REAL(clock_gettime);
  int result = real(clock, now);
  if (result == 0 && page != NULL && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
    now->tv_sec += __atomic_load_n(&page->wall_ms, __ATOMIC_ACQUIRE) / 1000;
  return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  struct timespec exact;
  if (clock_gettime(CLOCK_REALTIME, &exact) != 0) return -1;
  now->tv_sec = exact.tv_sec;
  now->tv_usec = exact.tv_nsec / 1000;
  (void)zone;
  return 0;
}

time_t time(time_t *into) {
  struct timespec exact;
  clock_gettime(CLOCK_REALTIME, &exact);
  if (into != NULL) *into = exact.tv_sec;
  return exact.tv_sec;
}
