/* SPDX-License-Identifier: Apache-2.0 */
/* Communication that overlaps computation: gives the same bits as sequential communication, and every wait ends. Members are threads on
 * the strict transport. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "runtime/comm/engine.h"
#include "tests/unit/transfer_run.h"

#define MEMBERS 3
#define BUFFERS 4
#define ROUNDS 300
#define LIMIT_S 60.0

static const int64_t sizes[BUFFERS] = { 40, 5000, 5000, 300000 }; /* all-gathered at once, in one message, in several messages */

struct scene {
	struct hspmd_transport *transport[MEMBERS];
	atomic_int abort, told;
	bool threaded;
	uint64_t seed;
	float *data[MEMBERS][BUFFERS];
	struct hspmd_error err[MEMBERS];
	int rv[MEMBERS];
};

struct member {
	struct scene *s;
	int rank;
	int (*run)(struct scene *s, int rank, struct hspmd_engine *e, struct hspmd_error *err);
};

/* ---- transfers of a row that all members hold */

struct pattern {
	struct hspmd_transfer transfer;
	struct hspmd_comm_step step;
	struct hspmd_layout layout[2];
	int members[MEMBERS];
	struct hspmd_box box[MEMBERS];
	struct hspmd_move moves[MEMBERS];
};

static void lay_out(struct pattern *p, enum hspmd_comm_kind kind, int64_t elements)
{
	*p = (struct pattern){ .step = { .kind = kind, .output = 1, .member_count = MEMBERS } };
	for (int m = 0; m < MEMBERS; m++) {
		p->members[m] = m;
		p->box[m] = (struct hspmd_box){ .rank = 1, .hi = { elements } };
	}
	p->step.members = p->members;
	p->step.in = p->step.out = p->box;
	for (int v = 0; v < 2; v++)
		p->layout[v] = (struct hspmd_layout){ .device_count = MEMBERS, .devices = p->members, .box = p->box };
	p->transfer = (struct hspmd_transfer){ .shape = { 1, { elements } },
		                               .element_bytes = sizeof(float),
		                               .value_count = 2,
		                               .layout = p->layout,
		                               .step_count = 1,
		                               .steps = &p->step };
}

static void lay_ring(struct pattern *p, int64_t elements)
{
	lay_out(p, HSPMD_COMM_BATCHED, elements);
	for (int m = 0; m < MEMBERS; m++)
		p->moves[m] = (struct hspmd_move){ .from = m, .to = (m + 1) % MEMBERS, .box = p->box[0] };
	p->step.moves = p->moves;
	p->step.move_count = MEMBERS;
}

static struct hspmd_engine_job job_of(const struct pattern *p, const float *in, float *out, uint64_t number)
{
	size_t bytes = (size_t)p->box[0].hi[0] * sizeof(float);
	return (struct hspmd_engine_job){ .transfer = &p->transfer,
		                          .step = &p->step,
		                          .dtype = HSPMD_F32,
		                          .in = in,
		                          .out = out,
		                          .in_bytes = in ? bytes : 0,
		                          .out_bytes = out ? bytes : 0,
		                          .tag = number << 8,
		                          .tensor = "row",
		                          .micro_batch = 3 };
}

/* ---- members */

static void *run_member(void *argument)
{
	static const int rank_of[MEMBERS] = { 0, 1, 2 };
	struct member *m = argument;
	struct scene *s = m->s;
	struct hspmd_error *err = &s->err[m->rank];
	struct hspmd_device *dev = NULL;
	struct hspmd_engine *e = NULL;
	s->rv[m->rank] = -1;
	if (!hspmd_device_find("cpu", err)->open(&dev, 0, 1, err)) {
		struct hspmd_engine_options o = { .device = dev,
			                          .transport = s->transport[m->rank],
			                          .rank_of = rank_of,
			                          .count = MEMBERS,
			                          .self = m->rank,
			                          .threaded = s->threaded };
		e = hspmd_engine_create(&o, err);
	}
	if (e)
		s->rv[m->rank] = m->run(s, m->rank, e, err);
	hspmd_engine_destroy(e);
	s->transport[m->rank]->ops->close(s->transport[m->rank]);
	if (dev)
		dev->ops->close(dev);
	return NULL;
}

static void run_all(struct scene *s, double timeout_s,
                    int (*run)(struct scene *s, int rank, struct hspmd_engine *e, struct hspmd_error *err))
{
	struct hspmd_address addresses[MEMBERS];
	struct hspmd_error err;
	pthread_t threads[MEMBERS];
	struct member members[MEMBERS];
	for (int m = 0; m < MEMBERS; m++) {
		struct hspmd_transport_options o = { .rank = m, .size = MEMBERS, .abort = &s->abort, .timeout_s = timeout_s };
		assert_int_equal(hspmd_transport_memory.open(&o, &s->transport[m], &err), 0);
		assert_int_equal(s->transport[m]->ops->address(s->transport[m], &addresses[m], &err), 0);
	}
	for (int m = 0; m < MEMBERS; m++)
		assert_int_equal(s->transport[m]->ops->connect(s->transport[m], addresses, &err), 0);
	for (int m = 0; m < MEMBERS; m++) {
		members[m] = (struct member){ s, m, run };
		assert_int_equal(pthread_create(&threads[m], NULL, run_member, &members[m]), 0);
	}
	for (int m = 0; m < MEMBERS; m++) {
		pthread_join(threads[m], NULL);
		free(addresses[m].data);
	}
}

/* ---- the same bits */

static int compute(struct hspmd_engine *e, float *data, int64_t elements, float by, struct hspmd_error *err)
{
	if (hspmd_engine_wait_range(e, data, (size_t)elements * sizeof *data, true, err))
		return -1;
	for (int64_t i = 0; i < elements; i++)
		data[i] = data[i] * 0.25f + by * (float)(i % 17);
	return 0;
}

/* All members draw the same sequence: sums, steps of a ring with or without early receives, and computation between them. */
static int mixture(struct scene *s, int rank, struct hspmd_engine *e, struct hspmd_error *err)
{
	struct random r = { s->seed };
	struct pattern sum[BUFFERS], ring[BUFFERS];
	for (int b = 0; b < BUFFERS; b++) {
		lay_out(&sum[b], HSPMD_COMM_ALL_REDUCE, sizes[b]);
		lay_ring(&ring[b], sizes[b]);
	}
	int status = 0;
	for (uint64_t round = 1; !status && round <= ROUNDS; round++) {
		int b = (int)random_range(&r, 0, BUFFERS - 1), what = (int)random_range(&r, 0, 3);
		bool early = random_range(&r, 0, 1), wait = random_range(&r, 0, 3) == 0;
		float *data = s->data[rank][b];
		if (what == 0) {
			status = compute(e, data, sizes[b], (float)(rank + 1) * 1e-3f, err);
		} else if (what == 1) {
			struct hspmd_engine_job j = job_of(&sum[b], data, data, round);
			status = wait ? hspmd_engine_run(e, &j, err) : hspmd_engine_issue(e, &j, err);
		} else {
			struct hspmd_engine_job j = job_of(&ring[1], s->data[rank][1], s->data[rank][2], round);
			if (early && hspmd_engine_post_receives(e, &j, err) != 1)
				return -1;
			if (early)
				status = compute(e, s->data[rank][3], sizes[3], (float)rank, err);
			if (!status)
				status = wait ? hspmd_engine_run(e, &j, err) : hspmd_engine_issue(e, &j, err);
		}
	}
	return status ? status : hspmd_engine_drain(e, err);
}

static float value_of(int member, int buffer, int64_t i)
{
	return (float)((i * 7 + member * 3 + buffer) % 101) * 0.01f;
}

static void fill(struct scene *s)
{
	for (int m = 0; m < MEMBERS; m++)
		for (int b = 0; b < BUFFERS; b++) {
			s->data[m][b] = malloc((size_t)sizes[b] * sizeof(float));
			assert_non_null(s->data[m][b]);
			for (int64_t i = 0; i < sizes[b]; i++)
				s->data[m][b][i] = value_of(m, b, i);
		}
}

static void same_bits(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 5; seed++) {
		struct scene alone = { .seed = seed }, beside = { .seed = seed, .threaded = true };
		struct scene *both[] = { &alone, &beside };
		for (int k = 0; k < 2; k++) {
			fill(both[k]);
			run_all(both[k], LIMIT_S, mixture);
			for (int m = 0; m < MEMBERS; m++)
				if (both[k]->rv[m])
					fail_msg("seed %d, member %d: %s", (int)seed, m, both[k]->err[m].text);
		}
		for (int m = 0; m < MEMBERS; m++)
			for (int b = 0; b < BUFFERS; b++) {
				if (memcmp(alone.data[m][b], beside.data[m][b], (size_t)sizes[b] * sizeof(float)))
					fail_msg("seed %d: member %d has other bits in buffer %d", (int)seed, m, b);
				free(alone.data[m][b]);
				free(beside.data[m][b]);
			}
	}
}

/* ---- the caller continues */

/* Member 0 issues everything that waits for the others, and only then lets them start. */
static int late_peers(struct scene *s, int rank, struct hspmd_engine *e, struct hspmd_error *err)
{
	struct pattern sum, ring;
	lay_out(&sum, HSPMD_COMM_ALL_REDUCE, sizes[3]);
	lay_ring(&ring, sizes[1]);
	double until = hspmd_now() + LIMIT_S;
	while (rank && !atomic_load(&s->told) && hspmd_now() < until)
		sched_yield();
	if (rank && !atomic_load(&s->told))
		return hspmd_fail(err, "member 0 does not go on");
	struct hspmd_engine_job a = job_of(&sum, s->data[rank][3], s->data[rank][3], 1),
	                        b = job_of(&ring, s->data[rank][1], s->data[rank][2], 2);
	if (hspmd_engine_issue(e, &a, err) || hspmd_engine_issue(e, &b, err))
		return -1;
	/* The computation neither reads nor writes their buffers. */
	if (compute(e, s->data[rank][0], sizes[0], 1, err))
		return -1;
	atomic_store(&s->told, 1);
	if (hspmd_engine_wait_range(e, s->data[rank][2], 4, false, err))
		return -1;
	float got = s->data[rank][2][10], want = value_of((rank + 2) % MEMBERS, 1, 10);
	if (memcmp(&got, &want, sizeof got))
		return hspmd_fail(err, "%g came, not %g", (double)got, (double)want);
	return hspmd_engine_drain(e, err);
}

static void does_not_wait(void **state)
{
	(void)state;
	struct scene s = { .threaded = true };
	fill(&s);
	run_all(&s, LIMIT_S, late_peers);
	for (int m = 0; m < MEMBERS; m++) {
		if (s.rv[m])
			fail_msg("member %d: %s", m, s.err[m].text);
		for (int b = 0; b < BUFFERS; b++)
			free(s.data[m][b]);
	}
}

/* One step twice, with one tag: receives of both are posted before the first runs, which sends other values than the second. */
static int posted_twice(struct scene *s, int rank, struct hspmd_engine *e, struct hspmd_error *err)
{
	struct pattern ring;
	lay_ring(&ring, sizes[1]);
	struct hspmd_engine_job first = job_of(&ring, s->data[rank][1], s->data[rank][2], 1),
	                        second = job_of(&ring, s->data[rank][3], s->data[rank][3] + sizes[1], 1);
	if (hspmd_engine_post_receives(e, &first, err) != 1 || hspmd_engine_post_receives(e, &second, err) != 1 ||
	    hspmd_engine_run(e, &first, err) || hspmd_engine_run(e, &second, err) || hspmd_engine_drain(e, err))
		return -1;
	int from = (rank + MEMBERS - 1) % MEMBERS;
	for (int64_t i = 0; i < sizes[1]; i++)
		if (s->data[rank][2][i] != value_of(from, 1, i) || s->data[rank][3][sizes[1] + i] != value_of(from, 3, i))
			return hspmd_fail(err, "element %d is of another step", (int)i);
	return 0;
}

static void runs_in_the_order_posted(void **state)
{
	(void)state;
	struct scene s = { .threaded = true };
	fill(&s);
	run_all(&s, 5, posted_twice);
	for (int m = 0; m < MEMBERS; m++) {
		if (s.rv[m])
			fail_msg("member %d: %s", m, s.err[m].text);
		for (int b = 0; b < BUFFERS; b++)
			free(s.data[m][b]);
	}
}

/* ---- failures */

/* Members 1 and 2 leave at once, or stay silent until member 0 has failed. */
static int deserted(struct scene *s, int rank, struct hspmd_engine *e, struct hspmd_error *err)
{
	struct pattern ring;
	lay_ring(&ring, sizes[1]);
	struct hspmd_engine_job j = job_of(&ring, s->data[rank][1], s->data[rank][2], 1);
	struct hspmd_error again;
	double until = hspmd_now() + LIMIT_S;
	while (rank && s->seed && !atomic_load(&s->told) && hspmd_now() < until)
		sched_yield();
	if (rank)
		return 0;
	int status = hspmd_engine_issue(e, &j, err);
	if (!status && s->seed == 2)
		atomic_store(&s->abort, 1);
	if (!status)
		status = hspmd_engine_wait_range(e, s->data[rank][2], 4, false, err);
	atomic_store(&s->told, 1);
	if (!status)
		return 0;
	if (!hspmd_engine_issue(e, &j, &again) || strcmp(again.text, err->text) != 0)
		return hspmd_fail(err, "another error the second time: %s", again.text);
	return 7;
}

static void ends(void **state)
{
	(void)state;
	static const char *const said[] = { "it has closed its connections", "waited 0.2 s", "aborted" };
	for (uint64_t k = 0; k < 3; k++) {
		struct scene s = { .threaded = true, .seed = k };
		fill(&s);
		run_all(&s, k == 1 ? 0.2 : LIMIT_S, deserted);
		if (s.rv[0] != 7 || !strstr(s.err[0].text, said[k]) || !strstr(s.err[0].text, "batched of row, micro-batch 3: "))
			fail_msg("%d: %s", s.rv[0], s.err[0].text);
		for (int m = 0; m < MEMBERS; m++)
			for (int b = 0; b < BUFFERS; b++)
				free(s.data[m][b]);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(same_bits), cmocka_unit_test(does_not_wait),
		                            cmocka_unit_test(runs_in_the_order_posted), cmocka_unit_test(ends) };
	return cmocka_run_group_tests(tests, NULL, NULL);
}
