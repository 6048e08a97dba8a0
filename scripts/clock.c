// The wall clock of a program that has this preloaded: the real one and as many seconds as stand in the file that
// LOCKGATE_TEST_CLOCK names, at each reading. It allocates nothing, because allocators read clocks.
//
// While there is a file of that name and .hold, InnoDB's flushes of its log wait.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long step(void) {
    char text[32] = "";
    int before = errno;
    const char *path = getenv("LOCKGATE_TEST_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file >= 0) {
        if (read(file, text, sizeof text - 1) < 0) text[0] = 0;
        close(file);
    }
    errno = before;
    return atol(text);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += step();
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec precise;
    (void)zone;
    int failed = clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return failed;
}

time_t time(time_t *now) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (now) *now = precise.tv_sec;
    return precise.tv_sec;
}

// Who waits until a time that it has read here waits by the real clock.
int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until) {
    struct timespec real = *until;
    real.tv_sec -= step();
    return pthread_cond_clockwait(condition, mutex, CLOCK_REALTIME, &real);
}

static void wait_if_held(int file) {
    char name[512], link[64], path[512];
    const char *clock = getenv("LOCKGATE_TEST_CLOCK");
    if (!clock || snprintf(name, sizeof name, "%s.hold", clock) >= (int)sizeof name || access(name, F_OK)) return;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    path[length < 0 ? 0 : length] = 0;
    if (!strstr(path, "ib_logfile")) return;
    while (!access(name, F_OK)) usleep(1000);
}

static int flush(int file, long call) {
    int before = errno;
    wait_if_held(file);
    errno = before;
    return syscall(call, file);
}

int fsync(int file) { return flush(file, SYS_fsync); }

int fdatasync(int file) { return flush(file, SYS_fdatasync); }
