/* SPDX-License-Identifier: Apache-2.0 */
/* Speed of communication steps between processes of this machine: bench_comm TRANSPORT MEMBERS MEGABYTES. Prints one line per pattern:
 * seconds per step, bytes of the tensor per second, and bytes that a member sends and that its buffers hold (of the first and of the last
 * member). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "runtime/comm/comm.h"

#define MOST 64
#define BLOB 4096

struct shared {
	atomic_int ready;
	size_t size[MOST];
	char blob[MOST][BLOB];
};

struct bench {
	struct shared *s;
	const struct hspmd_transport_ops *ops;
	int rank, members;
	int64_t rows;
	struct hspmd_transport *t;
	struct hspmd_device *dev;
	struct hspmd_comm *comm;
};

static int fail(const struct hspmd_error *err)
{
	fprintf(stderr, "%s\n", err->text);
	return 1;
}

static int join(struct bench *b, struct hspmd_error *err)
{
	struct hspmd_transport_options o = { .rank = b->rank, .size = b->members, .timeout_s = 60 };
	struct hspmd_address own, all[MOST];
	if (b->ops->open(&o, &b->t, err) || b->ops->address(b->t, &own, err))
		return -1;
	memcpy(b->s->blob[b->rank], own.data, own.size);
	b->s->size[b->rank] = own.size;
	free(own.data);
	atomic_fetch_add(&b->s->ready, 1);
	while (atomic_load(&b->s->ready) < b->members)
		usleep(1000);
	for (int r = 0; r < b->members; r++)
		all[r] = (struct hspmd_address){ b->s->blob[r], b->s->size[r] };
	return b->ops->connect(b->t, all, err);
}

/* One kind of step on a tensor of rows x 1024 floats; every member holds all of it, or its rows, or (all-to-all) has its
 * columns and gets its rows. */
static int run(struct bench *b, enum hspmd_comm_kind kind, struct hspmd_error *err)
{
	int n = b->members, members[MOST], devices[MOST];
	struct hspmd_box whole = { 2, { 0, 0 }, { b->rows, 1024 } }, part[MOST], columns[MOST], all[MOST], *in = all, *out = all;
	for (int i = 0; i < n; i++) {
		members[i] = devices[i] = i;
		all[i] = part[i] = whole;
		part[i].lo[0] = b->rows * i / n;
		part[i].hi[0] = b->rows * (i + 1) / n;
		columns[i] = whole;
		columns[i].lo[1] = 1024 * i / n;
		columns[i].hi[1] = 1024 * (i + 1) / n;
	}
	if (kind == HSPMD_COMM_ALL_GATHER)
		in = part;
	if (kind == HSPMD_COMM_ALL_TO_ALL) {
		in = columns;
		out = part;
	}
	if (kind == HSPMD_COMM_REDUCE_SCATTER)
		out = part;
	struct hspmd_layout layout[2] = { { n, devices, in }, { n, devices, out } };
	struct hspmd_transfer t = { .element_bytes = 4, .value_count = 2, .layout = layout };
	struct hspmd_comm_step step = { .kind = kind,
		                        .input = 0,
		                        .output = 1,
		                        .member_count = kind == HSPMD_COMM_SEND_RECEIVE ? 2 : n,
		                        .members = members,
		                        .in = in,
		                        .out = out };
	size_t in_bytes = (size_t)hspmd_box_elements(&in[b->rank]) * 4, out_bytes = (size_t)hspmd_box_elements(&out[b->rank]) * 4;
	void *from = b->dev->ops->allocate(b->dev, in_bytes, err), *to = b->dev->ops->allocate(b->dev, out_bytes, err);
	if (!from || !to || b->dev->ops->zero(b->dev, from, in_bytes, err) || b->dev->ops->zero(b->dev, to, out_bytes, err))
		return -1;
	double best = 1e9, start = hspmd_now();
	uint64_t sent = hspmd_comm_sent_bytes(b->comm), steps = 0;
	for (uint64_t k = 1; k < 40; k++) {
		double one = 1, began;
		if (hspmd_transport_all_reduce_f64(b->t, 1 << 20, &one, 1, err))
			return -1;
		began = hspmd_now();
		if (hspmd_comm_run(b->comm, &t, &step, HSPMD_F32, from, to, k << 8, err) || hspmd_comm_flush(b->comm, NULL, 0, err))
			return -1;
		steps++;
		double took = hspmd_now() - began;
		double late = took;
		if (hspmd_transport_all_reduce_f64(b->t, 2 << 20, &late, 1, err))
			return -1;
		best = k > 1 && late / n < best ? late / n : best;
		/* All stop together: a member that is ahead in rounds would wait for ever. */
		double go = hspmd_now() - start < 1.0 || k < 6;
		if (hspmd_transport_all_reduce_f64(b->t, 3 << 20, &go, 1, err))
			return -1;
		if (go < n)
			break;
	}
	if (!b->rank || b->rank == n - 1)
		printf("%-15s %8.3f ms  %7.2f GB/s  member %d: %.1f MB sent, %.1f MB held\n", hspmd_comm_kind_names[kind], best * 1e3,
		       (double)b->rows * 4096 / best / 1e9, b->rank, (double)(hspmd_comm_sent_bytes(b->comm) - sent) / 1e6 / (double)steps,
		       (double)hspmd_comm_scratch_bytes(&t, &step, b->rank, err) / 1e6);
	b->dev->ops->release(b->dev, from);
	b->dev->ops->release(b->dev, to);
	return 0;
}

static int member(struct bench *b)
{
	static const enum hspmd_comm_kind kinds[] = { HSPMD_COMM_SEND_RECEIVE, HSPMD_COMM_ALL_GATHER, HSPMD_COMM_ALL_TO_ALL,
		                                      HSPMD_COMM_REDUCE_SCATTER, HSPMD_COMM_ALL_REDUCE };
	struct hspmd_error err = { "" };
	int rank_of[MOST];
	const struct hspmd_device_ops *cpu = hspmd_device_find("cpu", &err);
	for (int i = 0; i < MOST; i++)
		rank_of[i] = i;
	if (!cpu || cpu->open(&b->dev, 0, 1, &err) || join(b, &err))
		return fail(&err);
	b->comm = hspmd_comm_create(b->dev, b->t, rank_of, b->members, b->rank, &err);
	if (!b->comm)
		return fail(&err);
	double start = hspmd_now();
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
		if (run(b, kinds[i], &err))
			return fail(&err);
	struct rusage used;
	getrusage(RUSAGE_SELF, &used);
	if (!b->rank)
		printf("processor time of member 0: %.2f s user, %.2f s system of %.2f s\n",
		       (double)used.ru_utime.tv_sec + 1e-6 * (double)used.ru_utime.tv_usec,
		       (double)used.ru_stime.tv_sec + 1e-6 * (double)used.ru_stime.tv_usec, hspmd_now() - start);
	hspmd_comm_destroy(b->comm);
	b->ops->close(b->t);
	b->dev->ops->close(b->dev);
	return 0;
}

int main(int argc, char **argv)
{
	struct hspmd_error err;
	int members = argc == 4 ? atoi(argv[2]) : 0, failed = 0;
	long rows = argc == 4 ? (long)(atof(argv[3]) * 1e6 / 4096) : 0;
	const struct hspmd_transport_ops *ops = argc == 4 ? hspmd_transport_find(argv[1], &err) : NULL;
	struct shared *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (!ops || members < 2 || members > MOST || rows < 1 || s == MAP_FAILED) {
		fprintf(stderr, "usage: bench_comm ucx|socket MEMBERS MEGABYTES\n");
		return 2;
	}
	for (int r = 0; r < members; r++) {
		pid_t pid = fork();
		if (!pid) {
			struct bench b = { .s = s, .ops = ops, .rank = r, .members = members, .rows = rows };
			int rv = member(&b);
			fflush(stdout);
			_exit(rv);
		}
		failed += pid < 0;
	}
	for (int status; wait(&status) > 0;)
		failed += status != 0;
	return failed != 0;
}
