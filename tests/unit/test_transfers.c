/* SPDX-License-Identifier: Apache-2.0 */
/* Resolved transfers on real executors: random pairs of annotations, one thread per device over the memory transport and CPU devices, must
 * give the same bits as the interpreter. Half of the cases have values whose sums depend on the order of additions. HSPMD_SEED=n runs one
 * case. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/comm/comm_internal.h"
#include "tests/unit/transfer_run.h"

#define DEVICES 7

struct scene {
	const struct hspmd_transfer *t;
	const struct chosen_experts *choice; /* of all rows; NULL: none */
	struct buffers source, result, want;
	atomic_long sent; /* bytes */
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

/* Runs a dispatch or combine with the choice of those rows alone that the device has on the side of the experts. */
static int run_rows(struct member *m, struct hspmd_comm *comm, const struct hspmd_comm_step *step, double **value, uint64_t tag)
{
	const struct hspmd_transfer *t = m->s->t;
	const struct hspmd_layout *l = &t->layout[step->kind == HSPMD_COMM_DISPATCH ? step->output : step->input];
	struct hspmd_box whole = hspmd_box_full(&t->shape);
	struct hspmd_row_choice known = { .box = l->box[hspmd_layout_find(l, m->device)] };
	int last = t->shape.rank - 1;
	whole.hi[last] = known.box.hi[last] = m->s->choice->per_token;
	int32_t *own = malloc((size_t)hspmd_box_elements(&known.box) * sizeof *own);
	hspmd_box_copy(own, &known.box, m->s->choice->of_row, &whole, &known.box, sizeof *own);
	known.data = own;
	int at = hspmd_layout_find(&t->layout[step->output], m->device);
	bool gets = false;
	for (int i = 0; i < step->move_count; i++)
		gets |= step->moves[i].to == m->device;
	for (int64_t i = 0; gets && step->kind == HSPMD_COMM_COMBINE && i < hspmd_box_elements(&t->layout[step->output].box[at]); i++)
		value[step->output][i] = NAN; /* all of it is written */
	int rc = hspmd_comm_run_rows(comm, t, step, HSPMD_F64, value[step->input], value[step->output], &known, tag, &m->err);
	free(own);
	return rc;
}

/* The buffers in use are at most those predicted. */
static int check_scratch(struct member *m, const struct hspmd_comm *comm, int64_t most)
{
	int64_t bytes = 0;
	for (const struct hspmd_scratch *s = comm->pool; s; s = s->next)
		bytes += (int64_t)s->size;
	return bytes <= most ? 0 : hspmd_fail(&m->err, "%lld bytes of buffers, but %lld were predicted", (long long)bytes, (long long)most);
}

static int run_steps(struct member *m, struct hspmd_comm *comm, double **value)
{
	const struct hspmd_transfer *t = m->s->t;
	for (int k = 0; k < t->step_count; k++) {
		const struct hspmd_comm_step *step = &t->steps[k];
		if (hspmd_comm_chooses_rows(step)) {
			bool member = false;
			for (int i = 0; i < step->member_count; i++)
				member |= step->members[i] == m->device;
			if (member &&
			    (run_rows(m, comm, step, value, (uint64_t)k << 8) ||
			     (t->step_count == 1 && check_scratch(m, comm, hspmd_comm_scratch_bytes(t, step, m->device, &m->err)))))
				return -1;
			continue;
		}
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
	atomic_fetch_add(&s->sent, (long)hspmd_comm_sent_bytes(comm));
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
	if (!transfer_run(s.t, NULL, &s.source, &s.want, NULL, message, sizeof message))
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
		assert_true(seed || kinds[k] > 0 || k == HSPMD_COMM_DISPATCH || k == HSPMD_COMM_COMBINE);
	}
	print_message("\n");
}

/* ---- rows of experts */

static double at_once(const void *context, int device)
{
	(void)context;
	(void)device;
	return 0;
}

/* `context` groups divide dimension 1, and the devices of each, which have parts of the experts, are of `dim`. */
static struct hspmd_annotation *divided(const int *devices, int context, int parts, int dim, const int64_t *weights)
{
	struct hspmd_annotation *a = hspmd_annotation_single(devices, context * parts);
	assert_int_equal(hspmd_annotation_split(a, 0, 1, context, 1, NULL), 0);
	assert_int_equal(hspmd_annotation_split(a, 0, dim, parts, 1, weights), 0);
	return a;
}

static void set_experts(struct hspmd_annotation *a, const int *devices, int context, int parts, int64_t count, int per_token,
                        const int64_t *weights)
{
	struct hspmd_annotation *experts = hspmd_annotation_single(devices, context * parts);
	assert_int_equal(hspmd_annotation_split(experts, 0, HSPMD_DUPLICATE, context, 1, NULL), 0);
	assert_int_equal(hspmd_annotation_split(experts, 0, 0, parts, 1, weights), 0);
	assert_int_equal(hspmd_annotation_set_rows(a, experts, count, per_token), 0);
}

static int64_t row_number(const struct hspmd_shape *shape, const struct hspmd_box *box, int64_t row)
{
	int64_t t = box->hi[1] - box->lo[1];
	return (box->lo[0] + row / t) * shape->dim[1] + box->lo[1] + row % t;
}

/* The experts of device number i of an annotation of rows of experts. */
static struct hspmd_expert_range own_experts(const struct hspmd_annotation *a, int device)
{
	struct hspmd_local_shard shard;
	assert_true(hspmd_annotation_local_shard(a->rows->experts, &(struct hspmd_shape){ 1, { a->rows->count } }, device, &shard));
	return (struct hspmd_expert_range){ shard.box.lo[0], shard.box.hi[0] };
}

/* Clears the rows of parts that did not choose the device's experts, so that they are addends of rows of experts. */
static void clear_others(struct buffers *b, const struct hspmd_annotation *a, const struct hspmd_shape *shape,
                         const struct chosen_experts *c)
{
	for (int d = 0; d < b->devices; d++) {
		struct hspmd_local_shard shard;
		if (!b->data[d] || !hspmd_annotation_local_shard(a, shape, d, &shard))
			continue;
		struct hspmd_expert_range own = own_experts(a, d);
		int64_t width = shape->dim[2], rows = hspmd_box_elements(&shard.box) / width;
		for (int64_t i = 0; i < rows; i++)
			if (!row_chose(c, row_number(shape, &shard.box, i), &own))
				memset(b->data[d] + i * width, 0, (size_t)width * sizeof(double));
	}
}

/* full: the sums of all parts. */
static void sum_addends(const struct buffers *b, const struct hspmd_annotation *a, const struct hspmd_shape *shape, double *full)
{
	int64_t width = shape->dim[2];
	memset(full, 0, (size_t)hspmd_shape_elements(shape) * sizeof *full);
	for (int d = 0; d < b->devices; d++) {
		struct hspmd_local_shard shard;
		if (!b->data[d] || !hspmd_annotation_local_shard(a, shape, d, &shard))
			continue;
		for (int64_t i = 0; i < hspmd_box_elements(&shard.box); i++)
			full[row_number(shape, &shard.box, i / width) * width + i % width] += b->data[d][i];
	}
}

/* Every copy of a row that chose an expert of its device must have the tensor's values. */
static void check_copies(const struct scene *s, const struct hspmd_annotation *b, const double *full, uint64_t seed)
{
	const struct hspmd_shape *shape = &s->t->shape;
	int64_t width = shape->dim[2];
	const struct hspmd_layout *l = &s->t->layout[s->t->value_count - 1];
	for (int i = 0; i < l->device_count; i++) {
		struct hspmd_expert_range own = own_experts(b, l->devices[i]);
		for (int64_t k = 0; k < hspmd_box_elements(&l->box[i]) / width; k++) {
			int64_t row = row_number(shape, &l->box[i], k);
			for (int64_t w = 0; row_chose(s->choice, row, &own) && w < width; w++)
				if (fabs(s->result.data[l->devices[i]][k * width + w] - full[row * width + w]) > 1e-9)
					fail_msg("seed %llu: a row that chose an expert of device %d differs", (unsigned long long)seed,
					         l->devices[i]);
		}
	}
}

static struct chosen_experts draw_choice(struct random *r, int64_t rows, int count, int per_token)
{
	struct chosen_experts c = { per_token, malloc((size_t)(rows * per_token) * sizeof(int32_t)) };
	int all = (int)random_range(r, 0, 5), some = (int)random_range(r, 0, 2); /* all 0: all rows choose the same ones; some 0: or none */
	for (int64_t i = 0; i < rows; i++)
		for (int k = 0; k < per_token; k++)
			for (bool again = true; again;) {
				int32_t e = all || !i ? (int32_t)random_range(r, 0, count - 1) : c.of_row[k];
				again = false;
				for (int j = 0; all && j < k; j++)
					again |= c.of_row[i * per_token + j] == e;
				c.of_row[i * per_token + k] = !some && i % 3 == 1 ? -1 : e;
			}
	return c;
}

static void one_case_of_rows(uint64_t seed, long *kinds)
{
	struct random r = { seed * 2147483659u + 5 };
	int context = (int)random_range(&r, 1, 3), parts = (int)random_range(&r, 2, DEVICES / context), devices[DEVICES];
	int count = (int)random_range(&r, parts, 12), per_token = (int)random_range(&r, 1, 3);
	per_token = per_token < count ? per_token : count;
	struct hspmd_shape shape = { 3, { random_range(&r, 1, 4), random_range(&r, context * parts, 30), random_range(&r, 1, 9) } };
	if (seed % 50 == 0)
		shape = (struct hspmd_shape){ 3, { 2, context * parts * 40, 2000 } }; /* several blocks */
	int64_t weights[DEVICES];
	bool combine = seed % 2, natural = random_range(&r, 0, 3) > 0;
	for (int i = 0; i < DEVICES; i++) {
		devices[i] = (i * 3 + 2) % DEVICES;
		weights[i] = 1;
	}
	for (int i = 0; i < 2 && count > 2 * parts; i++)
		weights[random_range(&r, 0, parts - 1)]++;
	struct hspmd_annotation *a = divided(devices, context, parts, combine ? HSPMD_PARTIAL : 1, NULL), *b;
	if (!combine && !natural) {
		hspmd_annotation_destroy(a);
		a = random_annotation(&r, &shape, DEVICES);
	}
	b = natural || !combine
	            ? divided(devices, context, parts, combine ? random_range(&r, 0, 1) ? 1 : HSPMD_DUPLICATE : HSPMD_DUPLICATE, NULL)
	            : random_annotation(&r, &shape, DEVICES);
	set_experts(combine ? a : b, devices, context, parts, count, per_token, weights);
	int64_t n = hspmd_shape_elements(&shape), sent = 0;
	struct chosen_experts choice = draw_choice(&r, n / shape.dim[2], count, per_token);
	struct hspmd_link_cost cost = { .choice_seconds = at_once };
	struct scene s = { .choice = &choice };
	struct hspmd_error err = { "" };
	s.t = hspmd_resolve(&shape, sizeof(double), a, b, &cost, &err);
	if (!s.t)
		fail_case(seed, a, b, err.text);
	bool only_rows = true;
	for (int k = 0; k < s.t->step_count; k++) {
		kinds[s.t->steps[k].kind]++;
		only_rows &= hspmd_comm_chooses_rows(&s.t->steps[k]);
	}
	double *full = malloc((size_t)n * sizeof *full);
	for (int64_t i = 0; i < n; i++)
		full[i] = (double)random_range(&r, -1000, 1000) / 7;
	s.source = buffers_source(&r, a, &shape, full, seed % 3 == 0, DEVICES);
	if (combine)
		clear_others(&s.source, a, &shape, &choice);
	s.result = (struct buffers){ DEVICES, calloc(DEVICES, sizeof(double *)) };
	char message[512];
	if (!transfer_run(s.t, &choice, &s.source, &s.want, &sent, message, sizeof message))
		fail_case(seed, a, b, message);
	if (s.t->step_count > 0) {
		run_scene(&s, seed, a, b);
		compare(&s, seed, a, b);
		if (!combine)
			check_copies(&s, b, full, seed);
		else
			sum_addends(&s.source, a, &shape, full);
		if (combine && !buffers_check(&s.result, b, &shape, full, 1e-9, message, sizeof message))
			fail_case(seed, a, b, message);
		if (only_rows && (int64_t)s.sent != sent * shape.dim[2] * (int64_t)sizeof(double))
			fail_case(seed, a, b, "other bytes were sent than those of the chosen rows");
	}
	buffers_destroy(&s.source);
	buffers_destroy(&s.result);
	buffers_destroy(&s.want);
	free(choice.of_row);
	free(full);
	hspmd_transfer_destroy((struct hspmd_transfer *)s.t);
	hspmd_annotation_destroy(a);
	hspmd_annotation_destroy(b);
}

static void random_rows(void **state)
{
	(void)state;
	const char *all = getenv("HSPMD_LONG"), *seed = getenv("HSPMD_SEED");
	uint64_t first = seed ? strtoull(seed, NULL, 10) : 1, last = seed ? first : all && *all == '1' ? 5000 : 200;
	long kinds[HSPMD_COMM_KIND_COUNT] = { 0 };
	for (uint64_t s = first; s <= last; s++)
		one_case_of_rows(s, kinds);
	print_message("of rows of experts: %ld times dispatch, %ld combine\n", kinds[HSPMD_COMM_DISPATCH], kinds[HSPMD_COMM_COMBINE]);
	assert_true(seed || (kinds[HSPMD_COMM_DISPATCH] > 20 && kinds[HSPMD_COMM_COMBINE] > 20));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_transfers),
		cmocka_unit_test(random_rows),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
