/* SPDX-License-Identifier: Apache-2.0 */
/* Resolved transfers on real executors: random pairs of annotations, one thread per device over the memory transport and CPU devices, must
 * give the same bits as the interpreter. Half of the cases have values whose sums depend on the order of additions. HSPMD_SEED=n runs one
 * case. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/comm/comm.h"
#include "tests/unit/transfer_run.h"

#define DEVICES 7

struct scene {
	const struct hspmd_transfer *t;
	struct buffers source, result, want;
	struct hspmd_address address[DEVICES];
	pthread_barrier_t opened;
	atomic_int failed;
};

struct member {
	struct scene *s;
	int device;
	struct hspmd_error err;
	pthread_t thread;
};

static int rank_of_device(int device)
{
	return DEVICES - 1 - device; /* device numbers are not ranks */
}

/* This device's buffer of every value; NULL if it holds nothing of the value. The first is the source's. */
static double **values_open(const struct scene *s, int device)
{
	double **value = calloc((size_t)s->t->value_count, sizeof *value);
	value[0] = s->source.data[device];
	for (int v = 1; v < s->t->value_count; v++) {
		int at = hspmd_layout_find(&s->t->layout[v], device);
		if (at >= 0)
			value[v] = calloc((size_t)hspmd_box_elements(&s->t->layout[v].box[at]), sizeof **value);
	}
	return value;
}

static int run_steps(struct member *m, struct hspmd_comm *comm, double **value)
{
	const struct hspmd_transfer *t = m->s->t;
	for (int k = 0; k < t->step_count; k++) {
		const struct hspmd_comm_step *step = &t->steps[k];
		if (hspmd_comm_run(comm, t, step, HSPMD_F64, value[step->input], value[step->output], (uint64_t)k << 8, &m->err))
			return -1;
	}
	return hspmd_comm_flush(comm, NULL, 0, &m->err);
}

/* Stores the last value in the scene. */
static int communicate(struct member *m, struct hspmd_device *dev, struct hspmd_transport *transport)
{
	struct scene *s = m->s;
	int rank_of[DEVICES], last = s->t->value_count - 1;
	for (int d = 0; d < DEVICES; d++)
		rank_of[d] = rank_of_device(d);
	int rc = transport->ops->connect(transport, s->address, &m->err);
	pthread_barrier_wait(&s->opened); /* no device closes before all are connected */
	if (rc)
		return -1;
	struct hspmd_comm *comm = hspmd_comm_create(dev, transport, rank_of, DEVICES, m->device, &m->err);
	if (!comm)
		return -1;
	double **value = values_open(s, m->device);
	rc = run_steps(m, comm, value);
	hspmd_comm_destroy(comm);
	transport->ops->close(transport);
	for (int v = 1; v < last; v++)
		free(value[v]);
	if (last > 0)
		s->result.data[m->device] = value[last];
	free(value);
	return rc;
}

static void *run_member(void *argument)
{
	struct member *m = argument;
	struct scene *s = m->s;
	struct hspmd_device *dev = NULL;
	struct hspmd_transport *transport = NULL;
	struct hspmd_transport_options o = { .rank = rank_of_device(m->device), .size = DEVICES, .abort = &s->failed, .timeout_s = 60 };
	const struct hspmd_device_ops *ops = hspmd_device_find("cpu", &m->err);
	int rc = !ops || ops->open(&dev, m->device, 1, &m->err) || hspmd_transport_memory.open(&o, &transport, &m->err) ||
	         hspmd_transport_memory.address(transport, &s->address[o.rank], &m->err);
	if (rc)
		atomic_store(&s->failed, 1);
	pthread_barrier_wait(&s->opened);
	if (!atomic_load(&s->failed) && communicate(m, dev, transport))
		atomic_store(&s->failed, 1);
	if (dev)
		ops->close(dev);
	return NULL;
}

static void fail_case(uint64_t seed, const struct hspmd_annotation *a, const struct hspmd_annotation *b, const char *message)
{
	char *from = hspmd_annotation_text(a), *to = hspmd_annotation_text(b);
	print_error("%s\n  from %s\n  to   %s\n", message, from, to);
	free(from);
	free(to);
	fail_msg("HSPMD_SEED=%llu fails", (unsigned long long)seed);
}

static void run_scene(struct scene *s, uint64_t seed, const struct hspmd_annotation *a, const struct hspmd_annotation *b)
{
	struct member member[DEVICES];
	memset(member, 0, sizeof member);
	pthread_barrier_init(&s->opened, NULL, DEVICES);
	for (int d = 0; d < DEVICES; d++) {
		member[d].s = s;
		member[d].device = d;
		assert_int_equal(pthread_create(&member[d].thread, NULL, run_member, &member[d]), 0);
	}
	for (int d = 0; d < DEVICES; d++)
		pthread_join(member[d].thread, NULL);
	for (int d = 0; d < DEVICES; d++) {
		if (member[d].err.text[0])
			fail_case(seed, a, b, member[d].err.text);
		free(s->address[d].data);
	}
	pthread_barrier_destroy(&s->opened);
}

/* Compares the destination, to the bit. */
static void compare(const struct scene *s, uint64_t seed, const struct hspmd_annotation *a, const struct hspmd_annotation *b)
{
	const struct hspmd_layout *l = &s->t->layout[s->t->value_count - 1];
	for (int i = 0; i < l->device_count; i++) {
		size_t bytes = (size_t)hspmd_box_elements(&l->box[i]) * sizeof(double);
		if (memcmp(s->result.data[l->devices[i]], s->want.data[l->devices[i]], bytes) != 0)
			fail_case(seed, a, b, "differs from the interpreter's");
	}
}

static void one_case(uint64_t seed, long *kinds)
{
	struct random r = { seed * 2147483659u };
	struct hspmd_shape shape = { .rank = (int)random_range(&r, 1, 3) };
	for (int d = 0; d < shape.rank; d++)
		shape.dim[d] = random_range(&r, 1, seed % 10 == 0 ? 90 : 15);
	struct hspmd_annotation *a = random_annotation(&r, &shape, DEVICES);
	struct hspmd_annotation *b = random_range(&r, 0, 1) ? random_annotation(&r, &shape, DEVICES) : random_relative(&r, a, &shape);
	struct scene s = { 0 };
	struct hspmd_error err = { "" };
	s.t = hspmd_resolve(&shape, sizeof(double), a, b, NULL, &err);
	if (!s.t)
		fail_case(seed, a, b, err.text);
	for (int k = 0; k < s.t->step_count; k++)
		kinds[s.t->steps[k].kind]++;
	int64_t n = hspmd_shape_elements(&shape);
	double *full = malloc((size_t)n * sizeof *full);
	for (int64_t i = 0; i < n; i++)
		full[i] = (double)random_range(&r, -1000, 1000) / 7;
	s.source = buffers_source(&r, a, &shape, full, seed % 2, DEVICES);
	s.result = (struct buffers){ DEVICES, calloc(DEVICES, sizeof(double *)) };
	char message[512];
	if (!transfer_run(s.t, &s.source, &s.want, message, sizeof message))
		fail_case(seed, a, b, message);
	if (s.t->step_count > 0) {
		run_scene(&s, seed, a, b);
		compare(&s, seed, a, b);
	}
	buffers_destroy(&s.source);
	buffers_destroy(&s.result);
	buffers_destroy(&s.want);
	free(full);
	hspmd_transfer_destroy((struct hspmd_transfer *)s.t);
	hspmd_annotation_destroy(a);
	hspmd_annotation_destroy(b);
}

static void random_transfers(void **state)
{
	(void)state;
	const char *all = getenv("HSPMD_LONG"), *seed = getenv("HSPMD_SEED");
	uint64_t first = seed ? strtoull(seed, NULL, 10) : 1, last = seed ? first : all && *all == '1' ? 20000 : 400;
	long kinds[HSPMD_COMM_KIND_COUNT] = { 0 };
	for (uint64_t s = first; s <= last; s++)
		one_case(s, kinds);
	print_message("%llu transfers; steps:", (unsigned long long)(last - first + 1));
	for (int k = 0; k < HSPMD_COMM_KIND_COUNT; k++) {
		print_message(" %s %ld", hspmd_comm_kind_names[k], kinds[k]);
		assert_true(seed || kinds[k] > 0);
	}
	print_message("\n");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_transfers),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
