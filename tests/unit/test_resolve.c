/* SPDX-License-Identifier: Apache-2.0 */
/* Resolution: random pairs of annotations are resolved, executed on simulated devices and compared with slices of the full tensor; and known cases
 * get the communication they should. HSPMD_LONG=1 runs the full number of cases; HSPMD_SEED=n one case. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/transfer_run.h"

#define MAX_DEVICES 16

struct tally {
	long cases, kinds[HSPMD_COMM_KIND_COUNT], identities, compositions;
};

static struct hspmd_shape random_shape(struct random *r)
{
	struct hspmd_shape shape = { .rank = (int)random_range(r, 0, 12) };
	shape.rank = shape.rank == 0 ? 0 : shape.rank > 9 ? shape.rank - 8 : 1 + shape.rank % 3;
	for (int d = 0; d < shape.rank; d++)
		shape.dim[d] = random_range(r, 1, shape.rank > 2 ? 7 : 24);
	return shape;
}

/* Nodes of 4: links within one are faster. */
static double node_seconds(const void *context, int from, int to, double bytes)
{
	(void)context;
	return from / 4 == to / 4 ? 2e-6 + bytes / 1e11 : 1e-5 + bytes / 1e10;
}

static void fail_case(uint64_t seed, const struct hspmd_annotation *a, const struct hspmd_annotation *b, const char *message)
{
	char *from = hspmd_annotation_text(a), *to = hspmd_annotation_text(b);
	print_error("%s\n  from %s\n  to   %s\n", message, from, to);
	free(from);
	free(to);
	fail_msg("HSPMD_SEED=%llu fails", (unsigned long long)seed);
}

static void count_kinds(const struct hspmd_transfer *t, struct tally *tally)
{
	tally->cases++;
	tally->identities += t->step_count == 0;
	tally->compositions += t->value_count > 2;
	for (int s = 0; s < t->step_count; s++)
		tally->kinds[t->steps[s].kind]++;
}

static void one_case(uint64_t seed, struct tally *tally)
{
	struct random r = { seed * 1000003 };
	struct hspmd_shape shape = random_shape(&r);
	int devices = (int)random_range(&r, 1, MAX_DEVICES);
	struct hspmd_annotation *a = random_annotation(&r, &shape, devices), *b = random_annotation(&r, &shape, devices);
	bool exact = random_range(&r, 0, 3) > 0;
	struct hspmd_link_cost cost = { .seconds = node_seconds };
	struct hspmd_error err = { "" };
	struct hspmd_transfer *t = hspmd_resolve(&shape, random_range(&r, 0, 1) ? 4 : 4000, a, b, random_range(&r, 0, 1) ? &cost : NULL, &err);
	if (!t)
		fail_case(seed, a, b, err.text);
	int64_t n = hspmd_shape_elements(&shape);
	double *full = malloc((size_t)n * sizeof *full);
	for (int64_t i = 0; i < n; i++)
		full[i] = exact ? (double)random_range(&r, -100000, 100000) : (double)random_next(&r) / 1e18 - 9;
	struct buffers source = buffers_source(&r, a, &shape, full, exact, MAX_DEVICES), result;
	char message[512];
	if (!transfer_run(t, &source, &result, message, sizeof message) ||
	    !buffers_check(&result, b, &shape, full, exact ? 0 : 1e-9, message, sizeof message))
		fail_case(seed, a, b, message);
	count_kinds(t, tally);
	buffers_destroy(&source);
	buffers_destroy(&result);
	free(full);
	hspmd_transfer_destroy(t);
	hspmd_annotation_destroy(a);
	hspmd_annotation_destroy(b);
}

static void random_pairs(void **state)
{
	(void)state;
	struct tally tally = { 0 };
	const char *seed = getenv("HSPMD_SEED"), *all = getenv("HSPMD_LONG");
	if (seed) {
		one_case(strtoull(seed, NULL, 10), &tally);
		return;
	}
	uint64_t cases = all && *all == '1' ? 200000 : 4000;
	for (uint64_t s = 1; s <= cases; s++)
		one_case(s, &tally);
	print_message("%ld cases, %ld with nothing to do, %ld compositions; steps:", tally.cases, tally.identities, tally.compositions);
	for (int k = 0; k < HSPMD_COMM_KIND_COUNT; k++) {
		print_message(" %s %ld", hspmd_comm_words[k], tally.kinds[k]);
		assert_true(tally.kinds[k] > 0);
	}
	print_message("\n");
	assert_true(tally.identities > 0 && tally.compositions > 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_pairs),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
