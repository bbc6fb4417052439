/* SPDX-License-Identifier: Apache-2.0 */
/* Stochastic rounding to BF16: which values change, how often and by how much, and that a part of a tensor is rounded like those elements
 * of the full tensor. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>

#include <cmocka.h>

#include "common/half.h"
#include "runtime/device/rounding.h"

static float of_bits(uint32_t bits)
{
	float x;
	memcpy(&x, &bits, sizeof x);
	return x;
}

static const uint32_t randoms[] = { 0, 1, 0x7fff, 0x8000, 0xfffe, 0xffff };
#define RANDOMS (sizeof randoms / sizeof *randoms)

static void test_exact(void **state)
{
	(void)state;
	for (uint32_t bits = 0; bits < 65536; bits++)
		for (size_t r = 0; r < RANDOMS; r++) {
			uint16_t got = hspmd_round_bf16(of_bits(bits << 16), randoms[r]);
			if (isnan(of_bits(bits << 16)))
				assert_true(isnan(hspmd_bf16_to_float(got)) && got >> 15 == bits >> 15);
			else
				assert_int_equal(got, bits);
		}
	for (uint32_t low = 1; low < 65536; low++) /* NaN whose upper half alone would be infinity */
		assert_true(isnan(hspmd_bf16_to_float(hspmd_round_bf16(of_bits(0x7f800000u + low), 0xffff))));
}

/* The number of random values that lead away from 0 equals the units in the value's last 16 bits: normal, denormal, of either sign, and at
 * the border of a binade. */
static void test_chance(void **state)
{
	(void)state;
	static const uint32_t values[] = { 0x3f800001u, 0x3f808000u, 0x3f80ffffu, 0xbf803039u, 0x00000001u,
		                           0x80007fffu, 0x007fc000u, 0x3fffabcdu, 0x7f7effffu, 0xff7e1234u };
	for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
		uint32_t away = 0, low = values[i] & 0xffff;
		for (uint32_t r = 0; r < 65536; r++) {
			uint16_t got = hspmd_round_bf16(of_bits(values[i]), r);
			assert_true(got == values[i] >> 16 || got == (values[i] >> 16) + 1);
			away += got != values[i] >> 16;
		}
		assert_int_equal(away, low);
		double down = hspmd_bf16_to_float((uint16_t)(values[i] >> 16)), up = hspmd_bf16_to_float((uint16_t)((values[i] >> 16) + 1));
		assert_true(down + (up - down) * low / 65536 == (double)of_bits(values[i])); /* the mean, exactly */
	}
}

static void test_overflow(void **state)
{
	(void)state;
	static const float beyond[] = { FLT_MAX, 0x1.fe0002p127f, 0x1.ffp127f };
	for (size_t r = 0; r < RANDOMS; r++) {
		for (size_t i = 0; i < sizeof beyond / sizeof *beyond; i++) {
			assert_int_equal(hspmd_round_bf16(beyond[i], randoms[r]), 0x7f7f);
			assert_int_equal(hspmd_round_bf16(-beyond[i], randoms[r]), 0xff7f);
		}
		assert_int_equal(hspmd_round_bf16(INFINITY, randoms[r]), 0x7f80);
		assert_int_equal(hspmd_round_bf16(-INFINITY, randoms[r]), 0xff80);
	}
}

/* One value under many keys, steps and indices: the mean is the value, within five standard deviations of the mean; and the draws are
 * independent of one another. */
static void test_unbiased(void **state)
{
	(void)state;
	enum { COUNT = 1 << 16 };
	static float x[COUNT];
	static uint16_t got[3][COUNT];
	static const struct hspmd_index_map map = { 1, 0, { COUNT }, { 1 } };
	for (uint32_t low = 0x100; low < 0x10000; low += 0x2233) {
		float value = of_bits(0xc0490000u | low);
		double p = low / 65536., deviation = sqrt(p * (1 - p) / COUNT);
		for (int i = 0; i < COUNT; i++)
			x[i] = value;
		hspmd_round_elements(7, 11, &map, 0, COUNT, x, got[0]); /* over indices */
		hspmd_round_elements(8, 11, &map, 0, COUNT, x, got[1]); /* another seed's */
		for (int i = 0; i < COUNT; i++) {                       /* over streams, at one index */
			const struct hspmd_index_map one = { 1, 5, { 1 }, { 1 } };
			hspmd_round_elements(7, (uint64_t)i, &one, 0, 1, x, &got[2][i]);
		}
		for (int k = 0; k < 3; k++) {
			int64_t away = 0, both = 0, alike = 0;
			for (int i = 0; i < COUNT; i++) {
				bool own = got[k][i] != 0xc049;
				away += own;
				both += own && got[k][(i + 1) % COUNT] != 0xc049;
				alike += own && got[(k + 1) % 3][i] != 0xc049;
			}
			assert_true(fabs((double)away / COUNT - p) < 5 * deviation);
			assert_true(fabs((double)both / COUNT - p * p) < 5 * sqrt(3. / COUNT) * p);
			assert_true(fabs((double)alike / COUNT - p * p) < 5 * sqrt(3. / COUNT) * p);
		}
	}
}

/* A checkpoint of one release continues under another, so the random numbers never change. Philox's known answers are from its authors'
 * Random123. */
static void test_pinned(void **state)
{
	(void)state;
	static const uint32_t zero[4] = { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 },
	                      ones[4] = { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd };
	uint32_t word[4];
	hspmd_random_words(0, 0, 0, word);
	assert_memory_equal(word, zero, sizeof word);
	hspmd_random_words(UINT64_MAX, UINT64_MAX, UINT64_MAX, word);
	assert_memory_equal(word, ones, sizeof word);
	/* The upper half of word i % 4 of block i / 4 decides element i. */
	const struct hspmd_index_map map = { 1, 0, { 64 }, { 1 } };
	for (int i = 0; i < 64; i++) {
		hspmd_random_words(3, 4, (uint64_t)i / 4, word);
		uint32_t low = 65536 - (word[i % 4] >> 16);
		float just = of_bits(0x3f800000u | (low & 0xffff)), less = of_bits(0x3f800000u | (low - 1));
		uint16_t got;
		hspmd_round_elements(3, 4, &map, i, 1, &less, &got);
		assert_int_equal(got, 0x3f80);
		hspmd_round_elements(3, 4, &map, i, 1, &just, &got);
		assert_int_equal(got, low < 65536 ? 0x3f81 : 0x3f80);
	}
}

/* A random view with that many dimensions and parts, some of them the full dimension, from the draws of block `number`. */
static struct hspmd_view draw_view(int rank, uint64_t number)
{
	struct hspmd_view v = { .rank = rank };
	for (int d = 0; d < rank; d++) {
		uint32_t w[4];
		hspmd_random_words(5, (uint64_t)d, number, w);
		v.full[d] = 1 + w[0] % 5;
		v.start[d] = w[1] % 2 ? 0 : (int64_t)(w[2] % (uint64_t)v.full[d]);
		v.shape[d] = w[1] % 2 ? v.full[d] : 1 + (int64_t)(w[3] % (uint64_t)(v.full[d] - v.start[d]));
	}
	return v;
}

static int64_t index_in_full(const struct hspmd_view *v, int64_t i)
{
	int64_t at[HSPMD_MAX_RANK], index = 0;
	for (int d = v->rank - 1; d >= 0; d--) {
		at[d] = v->start[d] + i % v->shape[d];
		i /= v->shape[d];
	}
	for (int d = 0; d < v->rank; d++)
		index = index * v->full[d] + at[d];
	return index;
}

static void test_indices(void **state)
{
	(void)state;
	int64_t tried = 0;
	for (int rank = 0; rank <= HSPMD_MAX_RANK; rank++)
		for (uint64_t number = 0; number < 200; number++) {
			struct hspmd_view v = draw_view(rank, number);
			struct hspmd_index_map map = hspmd_index_map_of(&v);
			int64_t count = 1;
			for (int d = 0; d < rank; d++)
				count *= v.shape[d];
			for (int64_t i = 0; i < count; i++, tried++) {
				int64_t run, index = hspmd_index_at(&map, i, &run);
				assert_int_equal(index, index_in_full(&v, i));
				assert_true(run >= 1 && i + run <= count);
				assert_int_equal(index_in_full(&v, i + run - 1), index + run - 1);
			}
		}
	assert_true(tried > 20000);
	/* The full tensor, or cut along the first dimension: one run. */
	struct hspmd_view rows = { .rank = 3, .shape = { 2, 5, 7 }, .start = { 3, 0, 0 }, .full = { 9, 5, 7 } };
	struct hspmd_index_map map = hspmd_index_map_of(&rows);
	assert_true(map.rank == 1 && map.first == 3 * 35 && map.shape[0] == 70);
}

/* For every cut of a tensor, and from every start inside a part: the same bits as in the full tensor. */
static void test_parts(void **state)
{
	(void)state;
	enum { MOST = 3125 };
	static float x[MOST], part[MOST];
	static uint16_t whole[MOST], got[MOST];
	for (int i = 0; i < MOST; i++)
		x[i] = (float)hspmd_random_normal(1, 2, (uint64_t)i);
	for (uint64_t number = 0; number < 300; number++) {
		struct hspmd_view v = draw_view(1 + (int)(number % 5), number), all = v;
		int64_t count = 1, full = 1;
		for (int d = 0; d < v.rank; d++) {
			all.start[d] = 0;
			all.shape[d] = v.full[d];
			count *= v.shape[d];
			full *= v.full[d];
		}
		struct hspmd_index_map map = hspmd_index_map_of(&v), whole_map = hspmd_index_map_of(&all);
		hspmd_round_elements(9, number, &whole_map, 0, (int)full, x, whole);
		for (int64_t i = 0; i < count; i++)
			part[i] = x[index_in_full(&v, i)];
		for (int64_t i = 0; i < count; i += 3) /* in pieces, as a device's threads process them */
			hspmd_round_elements(9, number, &map, i, (int)(count - i < 3 ? count - i : 3), part + i, got + i);
		for (int64_t i = 0; i < count; i++)
			assert_int_equal(got[i], whole[index_in_full(&v, i)]);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_exact),    cmocka_unit_test(test_chance), cmocka_unit_test(test_overflow),
		cmocka_unit_test(test_unbiased), cmocka_unit_test(test_pinned), cmocka_unit_test(test_indices),
		cmocka_unit_test(test_parts),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
