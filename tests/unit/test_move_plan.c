/* SPDX-License-Identifier: Apache-2.0 */
/* Planned moves: random holdings and needs, checked element by element; the busiest sender against the optimum of the linear program
 * (GLPK). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>
#include <glpk.h>

#include "tests/unit/transfer_run.h"

#define PLACES 12
#define TENSORS 6
#define MAX_ENTRIES 128

struct instance {
	struct hspmd_shape shape[TENSORS];
	size_t element_bytes[TENSORS];
	struct hspmd_holding have[MAX_ENTRIES];
	struct hspmd_need need[MAX_ENTRIES];
	size_t have_count, need_count;
	struct hspmd_link_cost cost; /* seconds NULL: all links alike */
};

/* Nodes of 3, with faster links inside; links between two nodes of one half are faster than across. */
static double tiered_seconds(const void *context, int from, int to, double bytes)
{
	(void)context;
	return from / 3 == to / 3 ? 1e-6 + bytes / 1e11 : from / 6 == to / 6 ? 1e-5 + bytes / 1e10 : 2e-5 + bytes / 1e9;
}

static struct hspmd_box random_box(struct random *r, const struct hspmd_shape *shape)
{
	struct hspmd_box box = hspmd_box_full(shape);
	for (int d = 0; d < shape->rank; d++) {
		if (random_range(r, 0, 2) == 0)
			continue;
		box.lo[d] = random_range(r, 0, shape->dim[d] - 1);
		box.hi[d] = random_range(r, box.lo[d] + 1, shape->dim[d]);
	}
	return box;
}

static void draw_instance(struct random *r, struct instance *in)
{
	memset(in, 0, sizeof *in);
	in->cost.seconds = random_range(r, 0, 1) ? tiered_seconds : NULL;
	int tensors = (int)random_range(r, 1, TENSORS);
	for (int t = 0; t < tensors; t++) {
		in->shape[t].rank = (int)random_range(r, 0, 3);
		for (int d = 0; d < in->shape[t].rank; d++)
			in->shape[t].dim[d] = random_range(r, 1, 12);
		in->element_bytes[t] = random_range(r, 0, 1) ? 4 : 2;
		struct hspmd_box whole = hspmd_box_full(&in->shape[t]);
		in->have[in->have_count++] = (struct hspmd_holding){ t, (int)random_range(r, 0, PLACES - 1), whole };
		for (int64_t k = random_range(r, 0, 12); k > 0; k--)
			in->have[in->have_count++] =
			        (struct hspmd_holding){ t, (int)random_range(r, 0, PLACES - 1), random_box(r, &in->shape[t]) };
		for (int64_t k = random_range(r, 0, 12); k > 0; k--)
			in->need[in->need_count++] =
			        (struct hspmd_need){ t, (int)random_range(r, 0, PLACES - 1), random_box(r, &in->shape[t]) };
	}
}

static bool inside(const struct hspmd_box *box, const int64_t *at)
{
	for (int d = 0; d < box->rank; d++)
		if (at[d] < box->lo[d] || at[d] >= box->hi[d])
			return false;
	return true;
}

/* Advances a multi-index over the shape; false at the end. */
static bool next_element(const struct hspmd_shape *shape, int64_t *at)
{
	for (int d = shape->rank - 1; d >= 0; d--) {
		if (++at[d] < shape->dim[d])
			return true;
		at[d] = 0;
	}
	return false;
}

static unsigned holders_of(const struct instance *in, int tensor, const int64_t *at)
{
	unsigned mask = 0;
	for (size_t i = 0; i < in->have_count; i++)
		if (in->have[i].tensor == tensor && inside(&in->have[i].box, at))
			mask |= 1u << in->have[i].holder;
	return mask;
}

static unsigned needers_of(const struct instance *in, int tensor, const int64_t *at)
{
	unsigned mask = 0;
	for (size_t i = 0; i < in->need_count; i++)
		if (in->need[i].tensor == tensor && inside(&in->need[i].box, at))
			mask |= 1u << in->need[i].device;
	return mask;
}

/* The holders that may send to `to`: the tiers differ by far more than the latency of these sizes. */
static unsigned fastest(const struct instance *in, unsigned holders, int to)
{
	for (int tier = 0; in->cost.seconds && tier < 2; tier++) {
		unsigned near = 0;
		for (int h = 0; h < PLACES; h++)
			near |= h / (tier ? 6 : 3) == to / (tier ? 6 : 3) ? 1u << h : 0;
		if (holders & near)
			return holders & near;
	}
	return holders;
}

/* bytes[mask]: bytes that are missing and that exactly these senders can send. */
static int64_t count_lacking(const struct instance *in, int64_t *bytes)
{
	int64_t total = 0;
	memset(bytes, 0, sizeof *bytes << PLACES);
	for (int t = 0; t < TENSORS; t++) {
		int64_t at[HSPMD_MAX_RANK] = { 0 };
		do {
			unsigned have = holders_of(in, t, at), need = needers_of(in, t, at) & ~have;
			for (int to = 0; to < PLACES; to++)
				if (need & 1u << to) {
					bytes[fastest(in, have, to)] += (int64_t)in->element_bytes[t];
					total += (int64_t)in->element_bytes[t];
				}
		} while (next_element(&in->shape[t], at));
	}
	return total;
}

/* Minimises the largest load: columns are x[mask][sender] and T, rows are masks (all bytes sent) and senders (load - T <= 0). */
static double optimum(const int64_t *bytes)
{
	glp_prob *lp = glp_create_prob();
	int row[3], masks = 0;
	double value[3];
	glp_add_rows(lp, PLACES);
	glp_add_cols(lp, 1);
	glp_set_obj_coef(lp, 1, 1);
	glp_set_col_bnds(lp, 1, GLP_LO, 0, 0);
	int all[PLACES + 1];
	double minus[PLACES + 1];
	for (int s = 1; s <= PLACES; s++) {
		glp_set_row_bnds(lp, s, GLP_UP, 0, 0);
		all[s] = s;
		minus[s] = -1;
	}
	glp_set_mat_col(lp, 1, PLACES, all, minus);
	for (unsigned mask = 1; mask < 1u << PLACES; mask++) {
		if (bytes[mask] == 0)
			continue;
		int r = glp_add_rows(lp, 1);
		glp_set_row_bnds(lp, r, GLP_FX, (double)bytes[mask], (double)bytes[mask]);
		masks++;
		for (int s = 0; s < PLACES; s++) {
			if (!(mask & 1u << s))
				continue;
			int c = glp_add_cols(lp, 1);
			glp_set_col_bnds(lp, c, GLP_LO, 0, 0);
			row[1] = s + 1;
			row[2] = r;
			value[1] = value[2] = 1;
			glp_set_mat_col(lp, c, 2, row, value);
		}
	}
	glp_smcp how;
	glp_init_smcp(&how);
	how.msg_lev = GLP_MSG_OFF;
	assert_int_equal(glp_simplex(lp, &how), 0);
	double best = glp_get_obj_val(lp);
	glp_delete_prob(lp);
	return masks ? best : 0;
}

/* Each needed element arrives once, from a holder over a fastest link, and from the device itself if it is a holder. */
static void check_elements(const struct instance *in, const struct hspmd_planned_move *moves, size_t count)
{
	for (int t = 0; t < TENSORS; t++) {
		int64_t at[HSPMD_MAX_RANK] = { 0 };
		do {
			unsigned have = holders_of(in, t, at), need = needers_of(in, t, at), got = 0;
			for (size_t i = 0; i < count; i++) {
				if (moves[i].tensor != t || !inside(&moves[i].box, at))
					continue;
				unsigned to = 1u << moves[i].to, from = 1u << moves[i].from;
				assert_true(have & from);
				assert_false(got & to);
				assert_true(have & to ? from == to : fastest(in, have, moves[i].to) & from);
				got |= to;
			}
			assert_int_equal(got, need);
		} while (next_element(&in->shape[t], at));
	}
}

static void check_order(const struct hspmd_planned_move *moves, size_t count)
{
	for (size_t i = 1; i < count; i++) {
		const struct hspmd_planned_move *x = &moves[i - 1], *y = &moves[i];
		assert_true(x->from < y->from || (x->from == y->from && (x->to < y->to || (x->to == y->to && x->tensor <= y->tensor))));
	}
}

static int64_t move_bytes(const struct hspmd_planned_move *m, const size_t *element_bytes)
{
	return hspmd_box_elements(&m->box) * (int64_t)element_bytes[m->tensor];
}

static void random_instances(void **state)
{
	(void)state;
	static int64_t lacking[1 << PLACES];
	const char *all = getenv("HSPMD_LONG"), *seed = getenv("HSPMD_SEED");
	uint64_t first = seed ? strtoull(seed, NULL, 10) : 1, last = seed ? first : all && *all == '1' ? 20000 : 400;
	double worst = 1;
	for (uint64_t s = first; s <= last; s++) {
		struct random r = { s * 7919 };
		struct instance in;
		draw_instance(&r, &in);
		struct hspmd_planned_move *moves;
		size_t count;
		struct hspmd_error err = { "" };
		if (hspmd_plan_moves(in.have, in.have_count, in.need, in.need_count, in.element_bytes, in.cost.seconds ? &in.cost : NULL,
		                     &moves, &count, &err) != 0)
			fail_msg("HSPMD_SEED=%llu: %s", (unsigned long long)s, err.text);
		int64_t load[PLACES] = { 0 }, total = 0, most = 0;
		for (size_t i = 0; i < count; i++)
			if (moves[i].from != moves[i].to) {
				load[moves[i].from] += move_bytes(&moves[i], in.element_bytes);
				total += move_bytes(&moves[i], in.element_bytes);
			}
		for (int h = 0; h < PLACES; h++)
			most = load[h] > most ? load[h] : most;
		if (total != count_lacking(&in, lacking))
			fail_msg("HSPMD_SEED=%llu: %lld bytes moved", (unsigned long long)s, (long long)total);
		double best = optimum(lacking), ratio = best > 0 ? (double)most / best : 1;
		/* An element cannot be cut. */
		if ((double)most > best * 1.05 + PLACES * 4)
			fail_msg("HSPMD_SEED=%llu: largest sender %lld, optimum %g", (unsigned long long)s, (long long)most, best);
		worst = best > 1000 && ratio > worst ? ratio : worst;
		check_elements(&in, moves, count);
		check_order(moves, count);
		free(moves);
	}
	print_message("%llu instances; largest sender at most %.3f of the optimum\n", (unsigned long long)(last - first + 1), worst);
}

static void no_copy_left(void **state)
{
	(void)state;
	struct hspmd_holding have[] = { { 3, 0, { 2, { 0, 0 }, { 4, 4 } } }, { 3, 1, { 2, { 4, 0 }, { 8, 3 } } } };
	struct hspmd_need need[] = { { 3, 2, { 2, { 0, 0 }, { 8, 4 } } } };
	size_t element_bytes[] = { 0, 0, 0, 4 }, count;
	struct hspmd_planned_move *moves;
	struct hspmd_error err = { "" };
	assert_int_equal(hspmd_plan_moves(have, 2, need, 1, element_bytes, NULL, &moves, &count, &err), -1);
	assert_string_equal(err.text, "tensor 3: no copy of [4:8, 3:4] is left");
	assert_int_equal(hspmd_plan_moves(have, 2, need, 0, element_bytes, NULL, &moves, &count, &err), 0);
	assert_int_equal(count, 0);
	free(moves);
}

/* One of 8 copies each: a new device receives from all in equal parts. */
static void one_receiver(void **state)
{
	(void)state;
	struct hspmd_box whole = { 2, { 0, 0 }, { 1000, 64 } };
	struct hspmd_holding have[8];
	for (int h = 0; h < 8; h++)
		have[h] = (struct hspmd_holding){ 0, h, whole };
	struct hspmd_need need = { 0, 9, whole };
	size_t element_bytes = 4, count;
	struct hspmd_planned_move *moves;
	assert_int_equal(hspmd_plan_moves(have, 8, &need, 1, &element_bytes, NULL, &moves, &count, NULL), 0);
	assert_int_equal(count, 8);
	for (size_t i = 0; i < count; i++) {
		assert_int_equal(moves[i].from, i);
		assert_int_equal(hspmd_box_elements(&moves[i].box), 8000);
	}
	free(moves);
}

/* Holder 0 answers at once, and is slow; holder 1 answers after 6 ms, and sends any number of bytes at once. */
static double late_or_slow(const void *context, int from, int to, double bytes)
{
	(void)context;
	(void)to;
	return from == 0 ? bytes * 1e-6 : 6e-3;
}

/* Who sends is decided by the bytes of a message, not by its elements. */
static void bytes_decide(void **state)
{
	(void)state;
	static const struct {
		size_t element_bytes;
		int from;
	} cases[] = { { 1, 0 }, { 8, 1 } };
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct hspmd_box whole = { 1, { 0 }, { 3000 } };
		struct hspmd_holding have[] = { { 0, 0, whole }, { 0, 1, whole } };
		struct hspmd_need need = { 0, 2, whole };
		struct hspmd_link_cost cost = { .seconds = late_or_slow };
		struct hspmd_planned_move *moves;
		size_t count;
		assert_int_equal(hspmd_plan_moves(have, 2, &need, 1, &cases[i].element_bytes, &cost, &moves, &count, NULL), 0);
		assert_int_equal(count, 1);
		assert_int_equal(moves[0].from, cases[i].from);
		free(moves);
	}
}

/* 1,024 devices in 128 copies of 8 parts become 256 of 4 (and half of the devices change their positions): 100 tensors. */
static void large_plan(void **state)
{
	(void)state;
	enum { DEVICES = 1024, COUNT = 100 };
	struct hspmd_holding *have = calloc(DEVICES * COUNT, sizeof *have);
	struct hspmd_need *need = calloc(DEVICES * COUNT, sizeof *need);
	size_t element_bytes[COUNT], count, n = 0;
	for (int t = 0; t < COUNT; t++) {
		element_bytes[t] = 4;
		for (int d = 0; d < DEVICES; d++, n++) {
			have[n] = (struct hspmd_holding){ t, d, { 2, { d % 8 * 512, 0 }, { d % 8 * 512 + 512, 4096 } } };
			int at = d < DEVICES / 2 ? d : DEVICES + 511 - d;
			need[n] = (struct hspmd_need){ t, d, { 2, { at % 4 * 1024, 0 }, { at % 4 * 1024 + 1024, 4096 } } };
		}
	}
	struct timespec start, end;
	struct hspmd_link_cost cost = { .seconds = tiered_seconds };
	struct hspmd_planned_move *moves;
	clock_gettime(CLOCK_MONOTONIC, &start);
	assert_int_equal(hspmd_plan_moves(have, n, need, n, element_bytes, &cost, &moves, &count, NULL), 0);
	clock_gettime(CLOCK_MONOTONIC, &end);
	int64_t arrived = 0, lacking = 0;
	for (size_t i = 0; i < count; i++)
		arrived += moves[i].from != moves[i].to ? hspmd_box_elements(&moves[i].box) : 0;
	for (size_t i = 0; i < n; i++) {
		struct hspmd_box common;
		lacking += hspmd_box_elements(&need[i].box);
		if (hspmd_box_intersect(&need[i].box, &have[i].box, &common))
			lacking -= hspmd_box_elements(&common);
	}
	assert_int_equal(arrived, lacking);
	print_message("%d devices, %d tensors: %zu moves planned in %.2f s\n", DEVICES, COUNT, count,
	              (double)(end.tv_sec - start.tv_sec) + (double)(end.tv_nsec - start.tv_nsec) / 1e9);
	free(moves);
	free(have);
	free(need);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_instances), cmocka_unit_test(no_copy_left), cmocka_unit_test(one_receiver),
		cmocka_unit_test(bytes_decide),     cmocka_unit_test(large_plan),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
