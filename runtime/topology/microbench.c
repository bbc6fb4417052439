/* SPDX-License-Identifier: Apache-2.0 */
/* Measures a device's speed: a matrix product with the kernel that training uses, and for cores also a small product and a memory
 * stream; the best of several short windows, so that brief disturbances have no effect. And asks what such a product packs. Runs in its own
 * process, so that the caller keeps its affinity and gets no threads from libraries; and only one measurement at a time per user and
 * machine, so that agents that share a machine (a test cluster) do not disturb each other. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/format/device_traits.h"
#include "common/clock.h"
#include "common/shm_dir.h"
#include "runtime/device/device.h"
#include "runtime/topology/topology_internal.h"

#define WINDOWS 3
#define WINDOW_S 0.08
#define LIMIT_S 30.0
#define SMALL 8 /* rows and columns of a product that has next to no work */
#define LOCK_NAMES 8

/* Number of floats in each of a thread's three streams: all together exceed the caches. */
static size_t stream_size(int threads)
{
	return threads <= 8 ? 1u << 22 : 1u << 20;
}

static double seconds_of(clockid_t clock)
{
	struct timespec t;
	clock_gettime(clock, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int multiply(struct hspmd_device *dev, const struct hspmd_kernel_args *args)
{
	return dev->ops->run(dev, HSPMD_OP_LINEAR, args, NULL) || dev->ops->synchronise(dev, NULL) ? -1 : 0;
}

/* y = x w with `size` rows and columns on an open device: the best rate in Tflop/s, 0 if it fails. threads 0: the CPU does not do the
 * work. */
static double repeat_product(struct hspmd_device *dev, enum hspmd_dtype dtype, int size, int threads)
{
	struct hspmd_op_attr attr = { .transposed = true };
	struct hspmd_kernel_args args = { .attr = &attr, .input_count = 2, .output_count = 1 };
	struct hspmd_view view = { .dtype = dtype, .rank = 2, .shape = { size, size }, .full = { size, size } };
	size_t bytes = (size_t)size * (size_t)size * hspmd_dtype_bytes(dtype);
	struct hspmd_error err;
	double best = 0;
	args.in[0] = args.in[1] = args.out[0] = view;
	struct hspmd_view *views[] = { &args.in[0], &args.in[1], &args.out[0] };
	for (int i = 0; i < 3; i++) {
		views[i]->data = dev->ops->allocate(dev, bytes, &err);
		if (!views[i]->data || dev->ops->zero(dev, views[i]->data, bytes, &err))
			return 0; /* memory is freed when the process ends */
	}
	args.workspace_bytes = dev->ops->workspace(dev, HSPMD_OP_LINEAR, &args);
	args.workspace = args.workspace_bytes ? dev->ops->allocate(dev, args.workspace_bytes, &err) : NULL;
	if (args.workspace_bytes && !args.workspace)
		return 0;
	if (multiply(dev, &args)) /* warm-up */
		return 0;
	double flop = 2.0 * size * size * size;
	for (int window = 0; window < WINDOWS; window++) {
		double start = hspmd_now(), worked = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
		int runs = 0;
		do {
			double run = hspmd_now();
			if (multiply(dev, &args))
				return 0;
			best = fmax(best, flop / (hspmd_now() - run) / 1e12);
			runs++;
		} while (hspmd_now() - start < WINDOW_S);
		/* Time that other processes took from the cores does not count: only the time that these threads worked. */
		worked = threads ? (seconds_of(CLOCK_PROCESS_CPUTIME_ID) - worked) / threads : 0;
		if (worked > 0)
			best = fmax(best, runs * flop / worked / 1e12);
	}
	return best;
}

/* Number of rows and columns: large enough to keep all threads busy, small enough that some run is undisturbed. */
static int product_size(const struct hspmd_microbench_options *of)
{
	if (!of->threads)
		return 4096;
	return of->threads <= 4 ? 512 : of->threads <= 16 ? 1024 : 2048;
}

static void measure_products(const struct hspmd_microbench_options *of, struct hspmd_microbench_result *m)
{
	static const struct {
		enum hspmd_dtype dtype;
		enum hspmd_precision precision;
	} types[] = { { HSPMD_F32, HSPMD_PRECISION_FP32 }, { HSPMD_BF16, HSPMD_PRECISION_BF16 } };
	struct hspmd_error err;
	struct hspmd_device *dev;
	const struct hspmd_device_ops *ops = hspmd_device_find(hspmd_device_kind_names[of->kind], &err);
	if (!ops || ops->open(&dev, 0, of->threads, &err))
		return;
	for (size_t i = 0; i < sizeof types / sizeof *types; i++)
		if (hspmd_device_kind_computes(of->kind, types[i].precision))
			m->tflops[types[i].precision] = repeat_product(dev, types[i].dtype, product_size(of), of->threads);
	/* Helpers do not take part in a product that is as small as this. */
	double small = of->threads ? repeat_product(dev, HSPMD_F32, SMALL, 1) : 0;
	m->operator_s = small > 0 ? 2.0 * SMALL * SMALL * SMALL / (small * 1e12) : 0;
	hspmd_device_product_blocks(dev, &m->product_blocks);
	ops->close(dev);
}

struct stream {
	pthread_t thread;
	pthread_barrier_t *together;
	size_t size;
	int runs;
	double worked; /* seconds of this thread's processor time for all runs; 0: no memory */
};

static void *run_stream(void *arg)
{
	struct stream *s = arg;
	float *a = malloc(s->size * sizeof *a), *b = malloc(s->size * sizeof *b), *c = malloc(s->size * sizeof *c);
	bool have = a && b && c;
	for (size_t i = 0; have && i < s->size; i++) {
		a[i] = 0;
		b[i] = c[i] = (float)i;
	}
	pthread_barrier_wait(s->together);
	double start = seconds_of(CLOCK_THREAD_CPUTIME_ID);
	for (int run = 0; have && run < s->runs; run++) {
		for (size_t i = 0; i < s->size; i++)
			a[i] = b[i] + 0.5f * c[i];
		__asm__ volatile("" : : "r"(a) : "memory"); /* a is never read */
	}
	s->worked = have ? seconds_of(CLOCK_THREAD_CPUTIME_ID) - start : 0;
	free(a);
	free(b);
	free(c);
	return NULL;
}

static double measure_stream(int threads)
{
	struct stream *s = calloc((size_t)threads, sizeof *s);
	pthread_barrier_t together;
	double rate = 0;
	if (!s || pthread_barrier_init(&together, NULL, (unsigned)threads)) {
		free(s);
		return 0;
	}
	for (int i = 0; i < threads; i++) {
		s[i].together = &together;
		s[i].runs = 6;
		s[i].size = stream_size(threads);
		/* The barrier opens only with all threads. */
		if (pthread_create(&s[i].thread, NULL, run_stream, &s[i]))
			_exit(1);
	}
	for (int i = 0; i < threads; i++)
		pthread_join(s[i].thread, NULL);
	for (int i = 0; i < threads; i++)
		rate += s[i].worked > 0 ? 3.0 * sizeof(float) * (double)s[i].size * s[i].runs / s[i].worked / 1e9 : 0;
	pthread_barrier_destroy(&together);
	free(s);
	return rate;
}

/* Anybody may make a folder of this name first; then the next name is tried. */
static int open_lock(const char *folder)
{
	for (int i = 0; i < LOCK_NAMES; i++) {
		char path[300];
		struct hspmd_error err;
		size_t n = (size_t)snprintf(path, sizeof path, "%s/.hspmd-measure-%u.%d", folder, (unsigned)geteuid(), i);
		if (n + sizeof "/lock" > sizeof path || hspmd_shm_dir_create(path, &err))
			continue;
		strcpy(path + n, "/lock");
		return open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
	}
	return -1;
}

int topology_lock_machine(const char *folder, double limit_s)
{
	int fd = open_lock(folder);
	double until = hspmd_now() + limit_s;
	while (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB)) {
		if (hspmd_now() >= until) {
			close(fd);
			return -1;
		}
		nanosleep(&(struct timespec){ .tv_nsec = 5000000 }, NULL);
	}
	return fd;
}

static void child(const struct hspmd_microbench_options *of, int to)
{
	struct hspmd_microbench_result m = { .gbytes_per_s = 0 };
	alarm((unsigned)LIMIT_S);
	if (of->cpus)
		sched_setaffinity(0, sizeof *of->cpus, of->cpus);
	if (of->uuid)
		setenv("CUDA_VISIBLE_DEVICES", of->uuid, 1);
	measure_products(of, &m);
	if (hspmd_device_traits(of->kind)->host_memory)
		m.gbytes_per_s = measure_stream(of->threads);
	_exit(write(to, &m, sizeof m) == (ssize_t)sizeof m ? 0 : 1);
}

int hspmd_microbench(const struct hspmd_microbench_options *of, struct hspmd_microbench_result *out, struct hspmd_error *err)
{
	int ends[2];
	if (pipe2(ends, O_CLOEXEC))
		return hspmd_fail_errno(err, "measuring");
	int lock = topology_lock_machine("/dev/shm", LIMIT_S);
	pid_t pid = fork();
	if (!pid)
		child(of, ends[1]);
	int failed = errno;
	close(ends[1]);
	struct pollfd come = { .fd = ends[0], .events = POLLIN };
	double until = hspmd_now() + LIMIT_S;
	int n = 0;
	while (pid > 0 && (n = poll(&come, 1, (int)((until - hspmd_now()) * 1000) + 1)) < 0 && errno == EINTR && hspmd_now() < until)
		;
	bool whole = pid > 0 && n > 0 && read(ends[0], out, sizeof *out) == (ssize_t)sizeof *out && out->tflops[HSPMD_PRECISION_FP32] > 0;
	close(ends[0]);
	if (pid > 0) {
		if (!whole)
			kill(pid, SIGKILL);
		while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
			;
	}
	if (lock >= 0)
		close(lock);
	errno = failed;
	if (pid < 0)
		return hspmd_fail_errno(err, "measuring");
	return whole ? 0 : hspmd_fail(err, "measuring %s failed or took longer than %g s", of->uuid ? of->uuid : "the cores", LIMIT_S);
}
