/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/transfer_run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint64_t random_next(struct random *r)
{
	uint64_t z = r->state += UINT64_C(0x9e3779b97f4a7c15);
	z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
	return z ^ z >> 31;
}

int64_t random_range(struct random *r, int64_t low, int64_t high)
{
	return low + (int64_t)(random_next(r) % (uint64_t)(high - low + 1));
}

/* ---- random annotations */

static void random_weights(struct random *r, int count, int64_t *weights)
{
	for (int i = 0; i < count; i++)
		weights[i] = random_range(r, 1, 5);
}

/* Splits n devices into factors, outermost first, each with a random meaning. partial: may be partial. */
static void random_state(struct random *r, struct hspmd_annotation *a, int n, int rank, bool partial)
{
	while (n > 1) {
		int parts = (int)random_range(r, 2, n);
		while (n % parts != 0)
			parts--;
		if (parts == 1)
			continue;
		int64_t weights[64];
		int dim = (int)random_range(r, partial ? HSPMD_PARTIAL : HSPMD_DUPLICATE, rank - 1);
		bool weighted = dim >= 0 && random_range(r, 0, 2) == 0;
		if (weighted)
			random_weights(r, parts, weights);
		hspmd_annotation_split(a, 0, dim, parts, random_range(r, 0, 3) ? 1 : random_range(r, 2, 4), weighted ? weights : NULL);
		n /= parts;
	}
}

/* The union of parts, of which it takes ownership, with random weights. */
static struct hspmd_annotation *join(struct random *r, struct hspmd_annotation **part, int count, int hdim)
{
	int64_t weights[4];
	random_weights(r, count, weights);
	struct hspmd_annotation *a = hspmd_annotation_union((const struct hspmd_annotation *const *)part, count, hdim,
	                                                    random_range(r, 1, 2), hdim >= 0 && random_range(r, 0, 1) ? weights : NULL);
	for (int i = 0; i < count; i++)
		hspmd_annotation_destroy(part[i]);
	return a;
}

static struct hspmd_annotation *draw(struct random *r, const struct hspmd_shape *shape, int devices)
{
	int order[64], groups = random_range(r, 0, 1) ? 1 : (int)random_range(r, 1, 4), used = 0;
	for (int d = 0; d < devices; d++)
		order[d] = d;
	if (random_range(r, 0, 1))
		for (int d = devices - 1; d > 0; d--) {
			int other = (int)random_range(r, 0, d), swap = order[d];
			order[d] = order[other];
			order[other] = swap;
		}
	struct hspmd_annotation *part[4];
	bool partial = random_range(r, 0, 1), even = random_range(r, 0, 1);
	int each = (int)random_range(r, 1, devices), count = 0;
	for (; count < groups && used < devices; count++) {
		int n = even && groups > 1 ? each / groups + 1 : (int)random_range(r, 1, devices - used);
		n = n > devices - used ? devices - used : n;
		part[count] = hspmd_annotation_single(order + used, n);
		random_state(r, part[count], n, shape->rank, partial);
		used += n;
	}
	return join(r, part, count, (int)random_range(r, HSPMD_PARTIAL, shape->rank - 1));
}

struct hspmd_annotation *random_annotation(struct random *r, const struct hspmd_shape *shape, int devices)
{
	for (;;) {
		struct hspmd_annotation *a = draw(r, shape, devices);
		if (hspmd_annotation_check(a, shape, NULL) == 0)
			return a;
		hspmd_annotation_destroy(a);
	}
}

struct hspmd_annotation *random_relative(struct random *r, const struct hspmd_annotation *a, const struct hspmd_shape *shape)
{
	for (int tries = 0;; tries++) {
		struct hspmd_annotation *part[4];
		bool partial = random_range(r, 0, 1);
		for (int g = 0; g < a->hsize; g++) {
			part[g] = hspmd_annotation_single(a->groups[g].devices, a->groups[g].device_count);
			random_state(r, part[g], a->groups[g].device_count, shape->rank, partial && tries < 100);
		}
		int hdim = random_range(r, 0, 1) ? a->hdim : (int)random_range(r, HSPMD_PARTIAL, shape->rank - 1);
		struct hspmd_annotation *b = join(r, part, a->hsize, hdim);
		if (hspmd_annotation_check(b, shape, NULL) == 0)
			return b;
		hspmd_annotation_destroy(b);
	}
}

/* ---- buffers */

void buffers_destroy(struct buffers *b)
{
	for (int d = 0; d < b->devices; d++)
		free(b->data[d]);
	free(b->data);
	*b = (struct buffers){ 0 };
}

static struct buffers buffers_blank(int devices)
{
	return (struct buffers){ devices, calloc((size_t)devices, sizeof(double *)) };
}

static double *filled(const struct hspmd_box *box, double value)
{
	int64_t n = hspmd_box_elements(box);
	double *data = malloc((size_t)(n ? n : 1) * sizeof *data);
	for (int64_t i = 0; i < n; i++)
		data[i] = value;
	return data;
}

struct buffers buffers_source(struct random *r, const struct hspmd_annotation *a, const struct hspmd_shape *shape, const double *full,
                              bool exact, int devices)
{
	struct buffers b = buffers_blank(devices);
	struct hspmd_box whole = hspmd_box_full(shape);
	int64_t n = hspmd_box_elements(&whole);
	int count = hspmd_annotation_local_shards(a, shape, NULL, NULL), device[64];
	struct hspmd_local_shard shard[64];
	hspmd_annotation_local_shards(a, shape, device, shard);
	for (int first = 0, end; first < count; first = end) { /* devices whose addends make one sum */
		int addends = shard[first].partials;
		for (end = first; end < count && (a->hdim == HSPMD_PARTIAL || shard[end].group == shard[first].group);)
			end++;
		double *addend = malloc((size_t)(n * addends) * sizeof *addend);
		memcpy(addend, full, (size_t)n * sizeof *addend);
		for (int k = 1; k < addends; k++)
			for (int64_t i = 0; i < n; i++) {
				addend[k * n + i] = exact ? (double)random_range(r, -1000, 1000) : (double)random_next(r) / 1e18 - 9;
				addend[i] -= addend[k * n + i];
			}
		for (int i = first; i < end; i++) {
			b.data[device[i]] = filled(&shard[i].box, 0);
			hspmd_box_copy(b.data[device[i]], &shard[i].box, addend + shard[i].partial * n, &whole, &shard[i].box,
			               sizeof(double));
		}
		free(addend);
	}
	return b;
}

/* ---- interpreter */

struct machine {
	const struct hspmd_transfer *t;
	const struct chosen_experts *choice;
	struct buffers *value;
	int64_t sent;
	char *message;
	size_t size;
};

static bool wrong(struct machine *m, const char *what, int step, int device)
{
	snprintf(m->message, m->size, "step %d, device %d: %s", step, device, what);
	return false;
}

/* The box of a value on a device if it contains `box`; NULL: it does not. */
static const struct hspmd_box *held(struct machine *m, int value, int device, const struct hspmd_box *box)
{
	const struct hspmd_layout *l = &m->t->layout[value];
	int at = hspmd_layout_find(l, device);
	return at >= 0 && hspmd_box_contains(&l->box[at], box) ? &l->box[at] : NULL;
}

/* Writes (add 0: every element once) or adds packed data to a device's part of a value. */
static bool deposit(struct machine *m, int step, int value, int device, const struct hspmd_box *box, const double *data, int add)
{
	const struct hspmd_box *home = held(m, value, device, box);
	if (!home)
		return wrong(m, "writes what it does not hold", step, device);
	double *old = filled(box, 0), *buffer = m->value[value].data[device];
	hspmd_box_copy(old, box, buffer, home, box, sizeof *old);
	bool good = true;
	for (int64_t i = 0; i < hspmd_box_elements(box); i++) {
		good = good && isnan(old[i]) == (add == 0);
		old[i] = add ? old[i] + data[i] : data[i];
	}
	hspmd_box_copy(buffer, home, old, box, box, sizeof *old);
	free(old);
	return good || wrong(m, add ? "adds to nothing" : "writes an element twice", step, device);
}

/* Packed copy of a device's part of a value; NULL: the device does not hold it. */
static double *fetch(struct machine *m, int step, int value, int device, const struct hspmd_box *box)
{
	const struct hspmd_box *home = held(m, value, device, box);
	double *data = home ? filled(box, 0) : NULL;
	if (!home) {
		wrong(m, "reads what it does not hold", step, device);
		return NULL;
	}
	hspmd_box_copy(data, box, m->value[value].data[device], home, box, sizeof *data);
	for (int64_t i = 0; i < hspmd_box_elements(box); i++)
		if (isnan(data[i])) {
			wrong(m, "reads what nothing has written", step, device);
			free(data);
			return NULL;
		}
	return data;
}

static bool pass(struct machine *m, int s, int from, int to, const struct hspmd_box *box, int add)
{
	const struct hspmd_comm_step *step = &m->t->steps[s];
	double *data = fetch(m, s, step->input, from, box);
	bool good = data && deposit(m, s, step->output, to, box, data, add);
	free(data);
	return good;
}

/* First the moves that overwrite, then those that add, in the order of the list. */
static bool run_moves(struct machine *m, int s)
{
	const struct hspmd_comm_step *step = &m->t->steps[s];
	for (int add = 0; add < 2; add++)
		for (int i = 0; i < step->move_count; i++) {
			const struct hspmd_move *move = &step->moves[i], *last = &step->moves[i ? i - 1 : 0];
			if (move->from < last->from || (move->from == last->from && move->to < last->to))
				return wrong(m, "moves out of order", s, move->to);
			if (move->add == add && !pass(m, s, move->from, move->to, &move->box, add))
				return false;
		}
	return true;
}

bool row_chose(const struct chosen_experts *c, int64_t row, const struct hspmd_expert_range *experts)
{
	for (int k = 0; k < c->per_token; k++) {
		int32_t e = c->of_row[row * c->per_token + k];
		if (e >= experts->lo && e < experts->hi)
			return true;
	}
	return false;
}

static const struct hspmd_expert_range *experts_of(const struct hspmd_comm_step *step, int device)
{
	int m = 0;
	while (step->members[m] != device)
		m++;
	return &step->experts[m];
}

/* Moves one row of a move, or does not. */
static bool pass_row(struct machine *m, int s, const struct hspmd_move *move, const struct hspmd_box *row)
{
	const struct hspmd_comm_step *step = &m->t->steps[s];
	bool combine = step->kind == HSPMD_COMM_COMBINE;
	const struct hspmd_box *home = held(m, step->output, move->to, row);
	int64_t number = 0;
	for (int d = 0; d < row->rank - 1; d++)
		number = number * m->t->shape.dim[d] + row->lo[d];
	if (!home)
		return wrong(m, "writes what it does not hold", s, move->to);
	double first;
	struct hspmd_box corner = *row;
	corner.hi[row->rank - 1] = 1;
	hspmd_box_copy(&first, &corner, m->value[step->output].data[move->to], home, &corner, sizeof first);
	bool chosen = row_chose(m->choice, number, experts_of(step, combine ? move->from : move->to));
	m->sent += chosen && move->from != move->to;
	if (chosen)
		return pass(m, s, move->from, move->to, row, !isnan(first) && combine);
	double *zero = filled(row, 0);
	bool good = combine || deposit(m, s, step->output, move->to, row, zero, 0);
	free(zero);
	return good;
}

/* The rows of a box, one after another. */
static bool each_row(struct machine *m, int s, const struct hspmd_move *move, struct hspmd_box row, int dim)
{
	if (dim == row.rank - 1)
		return pass_row(m, s, move, &row);
	for (int64_t i = move->box.lo[dim]; i < move->box.hi[dim]; i++) {
		row.lo[dim] = i;
		row.hi[dim] = i + 1;
		if (!each_row(m, s, move, row, dim + 1))
			return false;
	}
	return true;
}

/* Moves rows in the order of the list; rows to which nothing is added become 0. */
static bool run_rows(struct machine *m, int s)
{
	const struct hspmd_comm_step *step = &m->t->steps[s];
	for (int i = 0; i < step->move_count; i++)
		if (!each_row(m, s, &step->moves[i], step->moves[i].box, 0))
			return false;
	for (int k = 0; k < step->member_count; k++) {
		double *data = m->value[step->output].data[step->members[k]];
		int64_t n = hspmd_box_elements(&step->out[k]);
		for (int64_t i = 0; data && step->kind == HSPMD_COMM_COMBINE && i < n; i++)
			data[i] = isnan(data[i]) ? 0 : data[i];
	}
	return true;
}

/* Sums in[0] in member order, then gives each member its part. */
static bool run_sum(struct machine *m, int s)
{
	const struct hspmd_comm_step *step = &m->t->steps[s];
	const struct hspmd_box *in = &step->in[0];
	double *sum = NULL;
	bool good = true;
	for (int i = 0; i < step->member_count && good; i++) {
		double *data = fetch(m, s, step->input, step->members[i], in);
		good = data && (hspmd_box_equal(&step->in[i], in) || wrong(m, "has another input box", s, step->members[i]));
		if (good && !sum) {
			sum = data;
			continue;
		}
		for (int64_t k = 0; good && k < hspmd_box_elements(in); k++)
			sum[k] += data[k];
		free(data);
	}
	for (int i = 0; i < step->member_count && good; i++) {
		const struct hspmd_box *out = &step->out[i];
		if (hspmd_box_empty(out))
			continue;
		double *part = filled(out, 0);
		good = hspmd_box_contains(in, out) || wrong(m, "gets more than was summed", s, step->members[i]);
		if (good)
			hspmd_box_copy(part, out, sum, in, out, sizeof *part);
		good = good && deposit(m, s, step->output, step->members[i], out, part, 0);
		free(part);
	}
	free(sum);
	return good;
}

/* Every member sends each other the intersection of that one's output box with its own input box. */
static bool run_exchange(struct machine *m, int s)
{
	const struct hspmd_comm_step *step = &m->t->steps[s];
	for (int i = 0; i < step->member_count; i++)
		for (int j = 0; j < step->member_count; j++) {
			struct hspmd_box common;
			if (!hspmd_box_empty(&step->in[i]) && !hspmd_box_empty(&step->out[j]) &&
			    hspmd_box_intersect(&step->in[i], &step->out[j], &common) &&
			    !pass(m, s, step->members[i], step->members[j], &common, 0))
				return false;
		}
	return true;
}

static bool run_step(struct machine *m, int s)
{
	const struct hspmd_comm_step *step = &m->t->steps[s];
	bool good = true;
	switch (step->kind) {
	case HSPMD_COMM_COPY:
		for (int i = 0; i < step->member_count && good; i++)
			good = hspmd_box_equal(&step->in[i], &step->out[i]) &&
			       pass(m, s, step->members[i], step->members[i], &step->out[i], 0);
		return good;
	case HSPMD_COMM_ZERO:
		for (int i = 0; i < step->member_count && good; i++) {
			double *zero = filled(&step->out[i], 0);
			good = deposit(m, s, step->output, step->members[i], &step->out[i], zero, 0);
			free(zero);
		}
		return good;
	case HSPMD_COMM_SEND_RECEIVE:
		return step->member_count == 2 && hspmd_box_equal(&step->in[0], &step->out[1]) && hspmd_box_empty(&step->out[0]) &&
		       hspmd_box_empty(&step->in[1]) && pass(m, s, step->members[0], step->members[1], &step->in[0], 0);
	case HSPMD_COMM_ALL_REDUCE:
	case HSPMD_COMM_REDUCE_SCATTER:
		return run_sum(m, s);
	case HSPMD_COMM_ALL_GATHER:
		for (int i = 1; i < step->member_count; i++)
			if (!hspmd_box_equal(&step->out[i], &step->out[0]))
				return wrong(m, "gathers another box", s, step->members[i]);
		return run_exchange(m, s);
	case HSPMD_COMM_ALL_TO_ALL:
		return run_exchange(m, s);
	case HSPMD_COMM_BATCHED:
		return run_moves(m, s);
	case HSPMD_COMM_DISPATCH:
	case HSPMD_COMM_COMBINE:
		return m->choice && run_rows(m, s);
	case HSPMD_COMM_KIND_COUNT:
		break;
	}
	return wrong(m, "of no known kind", s, -1);
}

static bool complete(struct machine *m, int value)
{
	const struct hspmd_layout *l = &m->t->layout[value];
	for (int i = 0; i < l->device_count; i++)
		for (int64_t k = 0; k < hspmd_box_elements(&l->box[i]); k++)
			if (isnan(m->value[value].data[l->devices[i]][k]))
				return wrong(m, "some of its value is never written", m->t->step_count, l->devices[i]);
	return true;
}

static struct buffers copy_source(const struct hspmd_transfer *t, const struct buffers *source)
{
	struct buffers b = buffers_blank(source->devices);
	const struct hspmd_layout *l = &t->layout[0];
	for (int i = 0; i < l->device_count; i++) {
		int d = l->devices[i];
		b.data[d] = filled(&l->box[i], 0);
		memcpy(b.data[d], source->data[d], (size_t)hspmd_box_elements(&l->box[i]) * sizeof(double));
	}
	return b;
}

bool transfer_run(const struct hspmd_transfer *t, const struct chosen_experts *choice, const struct buffers *source, struct buffers *result,
                  int64_t *sent, char *message, size_t size)
{
	struct machine m = { t, choice, calloc((size_t)t->value_count, sizeof *m.value), 0, message, size };
	message[0] = '\0';
	m.value[0] = copy_source(t, source);
	for (int v = 1; v < t->value_count; v++) {
		m.value[v] = buffers_blank(source->devices);
		for (int i = 0; i < t->layout[v].device_count; i++)
			m.value[v].data[t->layout[v].devices[i]] = filled(&t->layout[v].box[i], NAN);
	}
	bool good = true;
	for (int s = 0; s < t->step_count && good; s++) {
		good = run_step(&m, s);
		if (!good && !message[0])
			wrong(&m, "has the wrong form", s, -1);
	}
	good = good && complete(&m, t->value_count - 1);
	*result = m.value[t->value_count - 1];
	for (int v = 0; v < t->value_count - 1; v++)
		buffers_destroy(&m.value[v]);
	free(m.value);
	if (sent)
		*sent = m.sent;
	return good;
}

/* ---- comparison */

/* Adds a device's part to the running sum of its scope, and compares it with the first copy of the same addend. */
static bool account(const double *data, const struct hspmd_box *box, const struct hspmd_box *whole, double *sum, double *copy)
{
	int64_t n = hspmd_box_elements(box);
	double *old = malloc((size_t)n * sizeof *old), *total = malloc((size_t)n * sizeof *total);
	hspmd_box_copy(old, box, copy, whole, box, sizeof *old);
	hspmd_box_copy(total, box, sum, whole, box, sizeof *total);
	bool good = true;
	for (int64_t i = 0; i < n; i++) {
		if (isnan(old[i])) {
			old[i] = data[i];
			total[i] += data[i];
		}
		good = good && memcmp(&old[i], &data[i], sizeof old[i]) == 0;
	}
	hspmd_box_copy(copy, whole, old, box, box, sizeof *old);
	hspmd_box_copy(sum, whole, total, box, box, sizeof *total);
	free(old);
	free(total);
	return good;
}

/* One scope: devices [first, end) of the shards. region: what they hold together. */
static bool check_scope(const struct buffers *b, const int *device, const struct hspmd_local_shard *shard, int first, int end,
                        const struct hspmd_shape *shape, const double *full, double tolerance, char *message, size_t size)
{
	struct hspmd_box whole = hspmd_box_full(shape);
	int64_t n = hspmd_box_elements(&whole);
	double *sum = filled(&whole, 0), *covered = filled(&whole, NAN);
	bool good = true;
	for (int addend = 0; addend < shard[first].partials && good; addend++) {
		double *copy = filled(&whole, NAN);
		for (int i = first; i < end && good; i++) {
			if (shard[i].partial != addend)
				continue;
			good = b->data[device[i]] && account(b->data[device[i]], &shard[i].box, &whole, sum, copy);
			if (!good)
				snprintf(message, size, "device %d: nothing, or a duplicate that differs", device[i]);
		}
		if (addend == 0)
			memcpy(covered, copy, (size_t)n * sizeof *covered);
		free(copy);
	}
	for (int64_t i = 0; i < n && good; i++)
		if (!isnan(covered[i]) && !(fabs(sum[i] - full[i]) <= tolerance)) {
			snprintf(message, size, "element %lld: %.17g, expected %.17g", (long long)i, sum[i], full[i]);
			good = false;
		}
	free(sum);
	free(covered);
	return good;
}

bool buffers_check(const struct buffers *b, const struct hspmd_annotation *a, const struct hspmd_shape *shape, const double *full,
                   double tolerance, char *message, size_t size)
{
	int count = hspmd_annotation_local_shards(a, shape, NULL, NULL), device[64];
	struct hspmd_local_shard shard[64];
	hspmd_annotation_local_shards(a, shape, device, shard);
	bool whole = true; /* in that case copies in all subgroups must agree to the bit */
	for (int i = 0; i < count; i++)
		whole = whole && shard[i].partials == 1;
	for (int first = 0, end; first < count; first = end) {
		for (end = first; end < count && (whole || a->hdim == HSPMD_PARTIAL || shard[end].group == shard[first].group);)
			end++;
		if (!check_scope(b, device, shard, first, end, shape, full, tolerance, message, size))
			return false;
	}
	return true;
}
