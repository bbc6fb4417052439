/* SPDX-License-Identifier: Apache-2.0 */
/* Memory is placed without overlaps, and closely. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdint.h>
#include <stdlib.h>

#include "runtime/program/place_blocks.h"

#define BLOCKS_MAX 4096

static struct hspmd_memory_block blocks[BLOCKS_MAX];
static size_t count;
static uint64_t state_of_draw;

static size_t draw(size_t below)
{
	state_of_draw = state_of_draw * 6364136223846793005u + 1442695040888963407u;
	return (size_t)(state_of_draw >> 33) % below;
}

static int by_first(const void *a, const void *b)
{
	const struct hspmd_memory_block *x = a, *y = b;
	return x->first < y->first ? -1 : x->first > y->first;
}

static void add(size_t first, size_t last, size_t bytes)
{
	assert_true(count < BLOCKS_MAX);
	blocks[count++] = (struct hspmd_memory_block){ .first = first, .last = last, .bytes = bytes };
}

/* Places the blocks, and returns how many times the memory that lives at one time they take. */
static double place(void)
{
	struct hspmd_error err = { "" };
	size_t bytes = 0, end = 0, live;
	qsort(blocks, count, sizeof *blocks, by_first);
	assert_int_equal(hspmd_place_blocks(blocks, count, 0, &bytes, &err), 0);
	live = hspmd_live_bytes(blocks, count);
	for (size_t i = 0; i < count; i++) {
		const struct hspmd_memory_block *a = &blocks[i];
		end = a->offset + a->bytes > end ? a->offset + a->bytes : end;
		for (size_t k = 0; k < i; k++) {
			const struct hspmd_memory_block *b = &blocks[k];
			if (a->first <= b->last && b->first <= a->last && a->offset < b->offset + b->bytes &&
			    b->offset < a->offset + a->bytes)
				fail_msg("blocks %zu and %zu overlap", i, k);
		}
	}
	assert_int_equal(bytes, end);
	assert_true(bytes >= live);
	return live ? (double)bytes / (double)live : 1;
}

static void no_blocks_take_nothing(void **state)
{
	struct hspmd_error err = { "" };
	size_t bytes = 1;
	(void)state;
	assert_int_equal(hspmd_place_blocks(blocks, 0, 0, &bytes, &err), 0);
	assert_int_equal(bytes, 0);
	assert_int_equal(hspmd_live_bytes(blocks, 0), 0);
}

static void live_bytes_count_both_ends(void **state)
{
	(void)state;
	count = 0;
	add(0, 2, 5);
	add(2, 4, 7); /* the instruction that reads the first writes this one */
	add(5, 5, 11);
	assert_int_equal(hspmd_live_bytes(blocks, count), 12);
	assert_true(place() == 1);
}

static void any_blocks_are_placed_apart(void **state)
{
	double worst = 1;
	(void)state;
	for (unsigned seed = 0; seed < 200; seed++) {
		state_of_draw = seed;
		count = 0;
		size_t n = 1 + draw(120), span = 1 + draw(60), sizes = 1 + draw(2000);
		for (size_t i = 0; i < n; i++) {
			size_t first = draw(span);
			add(first, first + draw(span - first), 1 + draw(sizes));
		}
		double times = place();
		worst = times > worst ? times : worst;
	}
	print_message("%.3f times what lives at one time, at most\n", worst);
	assert_true(worst < 1.03);
}

/* The slots of a stage under 1F1B with several micro-batches in flight: activations from a forward to a backward pass, of four sizes,
 * gradients and workspaces in between. What lives at one time hardly varies, so nearly all of it must fit without a gap. */
static void activations_in_flight_are_placed_closely(void **state)
{
	enum { LAYERS = 6, BATCHES = 10, PASS = 3 * LAYERS };
	static const size_t sizes[] = { 4, 16, 12, 4 };
	(void)state;
	for (size_t in_flight = 1; in_flight < 6; in_flight++) {
		count = 0;
		for (size_t m = 0; m < BATCHES; m++)
			for (size_t l = 0; l < LAYERS; l++) {
				size_t forward = (2 * m + 1) * PASS + 3 * l, backward = (2 * (m + in_flight) + 2) * PASS - 3 * l;
				for (size_t k = 0; k < 4; k++)
					add(forward + k % 3, backward - k % 3, sizes[k] << 20);
				add(forward, forward + 2, 12u << 20);
				add(backward - 3, backward, 16u << 20);
				add(backward - 1, backward + 1, 4u << 20);
			}
		double times = place();
		print_message("%zu in flight: %.3f\n", in_flight, times);
		if (times > 1.02)
			fail_msg("%zu micro-batches in flight: %.3f times what lives at one time", in_flight, times);
	}
}

/* A rectangle of bytes and instructions, cut into blocks: they fit without any gap. */
static void cut(size_t first, size_t last, size_t bytes, int depth)
{
	if (!depth || bytes < 2) {
		add(first, last, bytes);
	} else if (draw(2) && last > first) {
		size_t at = first + draw(last - first);
		cut(first, at, bytes, depth - 1);
		cut(at + 1, last, bytes, depth - 1);
	} else {
		size_t part = 1 + draw(bytes - 1);
		cut(first, last, part, depth - 1);
		cut(first, last, bytes - part, depth - 1);
	}
}

static void cut_blocks_fit_again(void **state)
{
	double sum = 0;
	(void)state;
	for (unsigned seed = 0; seed < 40; seed++) {
		state_of_draw = seed;
		count = 0;
		cut(0, 999, 1u << 30, 6);
		sum += place();
	}
	print_message("%.4f on average\n", sum / 40);
	assert_true(sum / 40 < 1.01);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(no_blocks_take_nothing), cmocka_unit_test(live_bytes_count_both_ends),
		                            cmocka_unit_test(any_blocks_are_placed_apart),
		                            cmocka_unit_test(activations_in_flight_are_placed_closely),
		                            cmocka_unit_test(cut_blocks_fit_again) };
	return cmocka_run_group_tests(tests, NULL, NULL);
}
