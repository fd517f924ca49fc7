/*
 * LD_PRELOAD loads this library into an agent. The library counts steps: calls of the C library
 * functions below, in threads that work on a request, so that each run has the same count. At the
 * step `at` the library kills or stops the agent, or makes the call fail.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Content of the file that the test and this library share; native byte order. */
struct control {
	/* Whether the library counts steps. */
	_Atomic uint32_t armed;
	/* Steps so far. */
	_Atomic uint32_t count;
	/* The step of the fault, from 1; 0 for no fault. */
	_Atomic uint32_t at;
	/* The error of the call at that step, or one of the two values below. */
	_Atomic uint32_t error;
};

/* Kills the agent before the call. */
#define KILL 0
/* Stops the agent before the call, until it gets SIGCONT. */
#define STOP UINT32_MAX

static struct control *control;
static pid_t agent;
static int log_file = -1;

#define NEXT(name) ((__typeof__(&(name)))dlsym(RTLD_NEXT, #name))

__attribute__((constructor)) static void attach(void)
{
	const char *path = getenv("MYELIN_TEST_STEPS");
	const char *log = getenv("MYELIN_TEST_STEPS_LOG");
	/* Child processes of the agent must not count steps. */
	unsetenv("LD_PRELOAD");
	if (!path || !log) {
		return;
	}
	int file = NEXT(open)(path, O_RDWR | O_CLOEXEC);
	void *page = NEXT(mmap)(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED,
				file, 0);
	close(file);
	if (page == MAP_FAILED) {
		return;
	}
	log_file = NEXT(open)(log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
	agent = getpid();
	control = page;
}

/* Tokio names the threads that work on requests. Threads that these start inherit the name. */
static int works_on_request(void)
{
	char name[16] = "";
	prctl(PR_GET_NAME, name);
	return strcmp(name, "tokio-rt-worker") == 0;
}

/* Counts a step. Returns 1, with `errno` set, if the call must fail. `call` and `detail` go into
 * the log. */
static int step_fails(const char *call, const char *detail, long number)
{
	if (!control || !control->armed || getpid() != agent || !works_on_request()) {
		return 0;
	}
	uint32_t step = ++control->count;
	char line[256];
	int saved = errno;
	int length =
		snprintf(line, sizeof line, "%s %ld %.150s\n", call, number, detail ? detail : "");
	if (length > 0) {
		/* The `write` below would count this as a step. */
		(void)!NEXT(write)(log_file, line, (size_t)length);
	}
	errno = saved;
	if (step != control->at) {
		return 0;
	}
	if (control->error == STOP) {
		kill(agent, SIGSTOP);
		errno = saved;
		return 0;
	}
	if (control->error == KILL) {
		kill(agent, SIGKILL);
		for (;;) {
			pause();
		}
	}
	errno = (int)control->error;
	return 1;
}

#define STEP(type, name, parameters, arguments, detail, number)  \
	type name parameters                                     \
	{                                                        \
		if (step_fails(#name, detail, (long)(number))) { \
			return (type)-1;                         \
		}                                                \
		return NEXT(name) arguments;                     \
	}

/* Reads of /proc/PID are no steps, because their number depends on the machine's processes. */
static int is_of_process(const char *path)
{
	return strncmp(path, "/proc/", 6) == 0 && path[6] >= '0' && path[6] <= '9';
}

#define OPEN(name)                                                                      \
	int name(const char *path, int flags, ...)                                      \
	{                                                                               \
		va_list rest;                                                           \
		va_start(rest, flags);                                                  \
		mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
		va_end(rest);                                                           \
		if (!is_of_process(path) && step_fails(#name, path, flags)) {           \
			return -1;                                                      \
		}                                                                       \
		return NEXT(name)(path, flags, mode);                                   \
	}
OPEN(open)
OPEN(open64)

STEP(int, socket, (int domain, int type, int protocol), (domain, type, protocol), NULL, domain)
STEP(int, socketpair, (int domain, int type, int protocol, int ends[2]),
     (domain, type, protocol, ends), NULL, domain)
STEP(int, bind, (int file, const struct sockaddr *address, socklen_t length),
     (file, address, length), NULL, file)
STEP(int, setsockopt, (int file, int level, int name, const void *value, socklen_t length),
     (file, level, name, value, length), NULL, name)
STEP(ssize_t, send, (int file, const void *bytes, size_t length, int flags),
     (file, bytes, length, flags), NULL, length)
STEP(ssize_t, sendto,
     (int file, const void *bytes, size_t length, int flags, const struct sockaddr *to,
      socklen_t size),
     (file, bytes, length, flags, to, size), NULL, length)
STEP(ssize_t, sendmsg, (int file, const struct msghdr *message, int flags), (file, message, flags),
     NULL, flags)
STEP(ssize_t, recv, (int file, void *bytes, size_t length, int flags), (file, bytes, length, flags),
     NULL, length)
STEP(ssize_t, recvfrom,
     (int file, void *bytes, size_t length, int flags, struct sockaddr *from, socklen_t *size),
     (file, bytes, length, flags, from, size), NULL, length)
STEP(ssize_t, recvmsg, (int file, struct msghdr *message, int flags), (file, message, flags), NULL,
     flags)
STEP(int, mkdir, (const char *path, mode_t mode), (path, mode), path, mode)
STEP(int, unlink, (const char *path), (path), path, 0)
STEP(int, linkat, (int from, const char *old, int to, const char *path, int flags),
     (from, old, to, path, flags), path, flags)
STEP(int, mount,
     (const char *source, const char *target, const char *type, unsigned long flags,
      const void *data),
     (source, target, type, flags, data), target, flags)
STEP(int, umount2, (const char *target, int flags), (target, flags), target, flags)
STEP(int, setns, (int file, int type), (file, type), NULL, type)
STEP(int, unshare, (int flags), (flags), NULL, flags)
STEP(int, memfd_create, (const char *name, unsigned int flags), (name, flags), name, flags)
STEP(int, ftruncate64, (int file, off64_t length), (file, length), NULL, length)
STEP(pid_t, fork, (void), (), NULL, 0)

/* Messages to the log of the agent are no steps. Neither are writes of 8 bytes to an eventfd,
 * which wake another thread. */
ssize_t write(int file, const void *bytes, size_t length)
{
	if (file > STDERR_FILENO && length != 8 && step_fails("write", NULL, (long)length)) {
		return -1;
	}
	return NEXT(write)(file, bytes, length);
}

/* Anonymous memory is no step, because new threads map their stacks. */
#define MAP(name, offset_type)                                                        \
	void *name(void *address, size_t length, int protection, int flags, int file, \
		   offset_type offset)                                                \
	{                                                                             \
		if (file >= 0 && step_fails(#name, NULL, (long)length)) {             \
			return MAP_FAILED;                                            \
		}                                                                     \
		return NEXT(name)(address, length, protection, flags, file, offset);  \
	}
MAP(mmap, off_t)
MAP(mmap64, off64_t)

int ioctl(int file, unsigned long request, ...)
{
	va_list rest;
	va_start(rest, request);
	void *argument = va_arg(rest, void *);
	va_end(rest);
	if (step_fails("ioctl", NULL, (long)request)) {
		return -1;
	}
	return NEXT(ioctl)(file, request, argument);
}

/* The next two functions return the error instead of setting `errno`. */
int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *),
		   void *argument)
{
	return step_fails("pthread_create", NULL, 0)
		       ? errno
		       : NEXT(pthread_create)(thread, attributes, start, argument);
}

int posix_spawnp(pid_t *pid, const char *program, const posix_spawn_file_actions_t *actions,
		 const posix_spawnattr_t *attributes, char *const arguments[],
		 char *const environment[])
{
	return step_fails("posix_spawnp", program, 0)
		       ? errno
		       : NEXT(posix_spawnp)(pid, program, actions, attributes, arguments,
					    environment);
}

/* Of the other system calls only bpf and pidfd_open are steps; futex, for example, is not. */
long syscall(long number, ...)
{
	va_list rest;
	va_start(rest, number);
	long a = va_arg(rest, long), b = va_arg(rest, long), c = va_arg(rest, long);
	long d = va_arg(rest, long), e = va_arg(rest, long), f = va_arg(rest, long);
	va_end(rest);
	static long (*next)(long, ...);
	if (!next) {
		next = NEXT(syscall);
	}
	if ((number == SYS_bpf && step_fails("bpf", NULL, a)) ||
	    (number == SYS_pidfd_open && step_fails("pidfd_open", NULL, a))) {
		return -1;
	}
	return next(number, a, b, c, d, e, f);
}
