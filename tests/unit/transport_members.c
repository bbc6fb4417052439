/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/transport_members.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"
#include "runtime/comm/transport.h"

uint64_t mix(uint64_t x)
{
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

bool within(double until)
{
	struct timespec nap = { .tv_nsec = 200000 };
	nanosleep(&nap, NULL);
	return hspmd_now() < until;
}

int members_wait_for(atomic_int *what, int value, struct hspmd_error *err)
{
	double until = hspmd_now() + LIMIT_S;
	while (atomic_load(what) < value)
		if (!within(until))
			return hspmd_fail(err, "the other members of the test did not come");
	return 0;
}

struct hspmd_transport *members_join(struct shared *s, const struct hspmd_transport_ops *ops, int rank, int size, double timeout_s)
{
	static char names[MEMBERS][64] = { "a:0", "b:0", "c:0", "d:0", "e:0" };
	struct hspmd_error *err = &s->err[rank];
	struct hspmd_transport_options o = { .rank = rank, .size = size, .abort = &s->abort, .timeout_s = timeout_s, .names = names };
	struct hspmd_transport *t;
	struct hspmd_address own, all[MEMBERS];
	if (ops->open(&o, &t, err))
		return NULL;
	if (ops->address(t, &own, err))
		return NULL;
	if (own.size > BLOB_MAX) {
		hspmd_fail(err, "an address of %zu bytes", own.size);
		return NULL;
	}
	memcpy(s->blob[rank].data, own.data, own.size);
	s->blob[rank].size = own.size;
	free(own.data);
	atomic_fetch_add(&s->ready, 1);
	if (members_wait_for(&s->ready, size, err))
		return NULL;
	for (int r = 0; r < size; r++)
		all[r] = (struct hspmd_address){ s->blob[r].data, s->blob[r].size };
	return ops->connect(t, all, err) ? NULL : t;
}

/* ---- running members */

struct runner {
	struct shared *s;
	const struct hspmd_transport_ops *ops;
	member_function *f;
	int rank, rv;
	pthread_t thread;
};

static void *run_thread(void *arg)
{
	struct runner *r = arg;
	r->rv = r->f(r->s, r->ops, r->rank);
	return NULL;
}

struct shared *members_share(void)
{
	struct shared *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_true(s != MAP_FAILED);
	return s;
}

pid_t members_run_process(struct shared *s, const struct hspmd_transport_ops *ops, member_function *f, int rank)
{
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		alarm(120);
		_exit(f(s, ops, rank) ? 1 : 0);
	}
	return pid;
}

void run_members(struct shared *s, const struct hspmd_transport_ops *ops, int count, member_function *f)
{
	bool threads = !strcmp(ops->name, "memory");
	struct runner runners[MEMBERS];
	pid_t pids[MEMBERS];
	for (int r = 0; r < count; r++) {
		runners[r] = (struct runner){ .s = s, .ops = ops, .f = f, .rank = r };
		if (threads)
			assert_int_equal(pthread_create(&runners[r].thread, NULL, run_thread, &runners[r]), 0);
		else
			pids[r] = members_run_process(s, ops, f, r);
	}
	int failed = 0;
	for (int r = 0; r < count; r++) {
		int status = 0;
		if (threads)
			pthread_join(runners[r].thread, NULL);
		else
			assert_int_equal(waitpid(pids[r], &status, 0), pids[r]);
		if (threads ? runners[r].rv : status) {
			print_error("%s: member %d: %s (status %#x)\n", ops->name, r, s->err[r].text, status);
			failed++;
		}
	}
	assert_int_equal(failed, 0);
}

const char *const names[] = { "memory", "socket", "ucx" };

void each_transport(int members, member_function *f, void (*check)(struct shared *s))
{
	for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
		const struct hspmd_transport_ops *ops = hspmd_transport_find(names[i], NULL);
		if (!ops)
			continue;
		struct shared *s = members_share();
		run_members(s, ops, members, f);
		if (check)
			check(s);
		munmap(s, sizeof *s);
	}
}
