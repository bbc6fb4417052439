/* SPDX-License-Identifier: Apache-2.0 */
/* E4M3 and E5M2: every code against the formats' definition, rounding by a search among all numbers, the scales from amax histories,
 * and which operands the CPU device rounds anew. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/device/random.h"
#include "runtime/tensor/fp8.h"
#include "tests/unit/repeated_operand.h"

struct format {
	const char *name;
	int fraction, bias, least;
	uint8_t most; /* code of the largest finite number */
	float (*value)(uint8_t bits);
	uint8_t (*bits)(float x);
	float (*round)(float x);
};

static const struct format formats[] = {
	{ "E4M3", 3, 7, -6, 0x7e, hspmd_e4m3_value, hspmd_e4m3_bits, hspmd_e4m3_round },
	{ "E5M2", 2, 15, -14, 0x7b, hspmd_e5m2_value, hspmd_e5m2_bits, hspmd_e5m2_round },
};

/* The value of a finite code by the definition. */
static double defined(const struct format *f, uint8_t code)
{
	int size = code & 0x7f, exponent = size >> f->fraction, rest = size & ((1 << f->fraction) - 1);
	double value = exponent ? ldexp(1 + ldexp(rest, -f->fraction), exponent - f->bias) : ldexp(rest, f->least - f->fraction);
	return code & 0x80 ? -value : value;
}

static bool same_bits(float a, float b)
{
	return !memcmp(&a, &b, sizeof a);
}

static void test_codes(void **state)
{
	(void)state;
	for (size_t k = 0; k < 2; k++)
		for (int code = 0; code < 256; code++) {
			const struct format *f = &formats[k];
			float value = f->value((uint8_t)code);
			if ((code & 0x7f) <= f->most) {
				if (!same_bits(value, (float)defined(f, (uint8_t)code)))
					fail_msg("%s %02x is %a", f->name, (unsigned)code, (double)value);
				assert_int_equal(f->bits(value), code);
				assert_true(same_bits(f->round(value), value));
			} else if (k && (code & 0x7f) == 0x7c) {
				assert_true(isinf(value) && !!signbit(value) == code >> 7);
				assert_int_equal(f->bits(value), (code & 0x80) | f->most); /* saturates */
			} else {
				assert_true(isnan(value));
				assert_int_equal(f->bits(value), (code & 0x80) | 0x7f);
				assert_true(isnan(f->round(value)));
			}
		}
	assert_float_equal(hspmd_e4m3_value(0x7e), HSPMD_E4M3_MOST, 0);
	assert_float_equal(hspmd_e5m2_value(0x7b), HSPMD_E5M2_MOST, 0);
}

/* The nearest code, of two equally near ones the even one, found by looking at all. */
static uint8_t nearest(const struct format *f, float x)
{
	int best = 0;
	for (int code = 1; code <= f->most; code++) {
		double was = fabs(defined(f, (uint8_t)best) - fabs((double)x)), is = fabs(defined(f, (uint8_t)code) - fabs((double)x));
		if (is < was || (is == was && code % 2 == 0))
			best = code;
	}
	return (uint8_t)(best | (signbit(x) ? 0x80 : 0));
}

static void check(const struct format *f, float x)
{
	for (int sign = 0; sign < 2; sign++, x = -x) {
		uint8_t code = f->bits(x), want = nearest(f, x);
		if (code != want)
			fail_msg("%s: %a becomes %02x, not %02x", f->name, (double)x, code, want);
		if (!same_bits(f->round(x), f->value(want)))
			fail_msg("%s: %a becomes %a, not %a", f->name, (double)x, (double)f->round(x), (double)f->value(want));
	}
}

/* Every number, the middle between it and the next, and the floats on both sides of each; and numbers of all sizes. */
static void test_rounding(void **state)
{
	(void)state;
	for (size_t k = 0; k < 2; k++) {
		const struct format *f = &formats[k];
		for (int code = 0; code <= f->most; code++) {
			double value = defined(f, (uint8_t)code);
			float at[] = { (float)value, (float)((value + defined(f, (uint8_t)(code + 1))) / 2) };
			for (int i = 0; i < 2; i++) {
				check(f, at[i]);
				check(f, nextafterf(at[i], INFINITY));
				check(f, nextafterf(at[i], 0));
			}
		}
		const float large[] = { 1e30f, INFINITY, 3.4e38f }, small[] = { 1e-44f, 1e-38f, 1.2e-38f, 1e-30f };
		for (size_t i = 0; i < sizeof large / sizeof *large; i++)
			assert_int_equal(f->bits(large[i]), f->most);
		for (size_t i = 0; i < sizeof small / sizeof *small; i++)
			check(f, small[i]);
		for (uint64_t i = 0; i < 20000; i++) {
			uint32_t w[4];
			hspmd_random_words(5, k, i, w);
			check(f, ldexpf(1 + (float)(w[0] & 0x7fffff) / 8388608, (int)(w[1] % 40) - 24));
		}
	}
}

/* A tensor with this amax, as its thermometer. */
static void add_thermometer(float amax, int unit, float *sum)
{
	for (int b = 0; b < hspmd_amax_level(amax, unit); b++)
		sum[b]++;
}

static int level_of(const float *history)
{
	int level = 0;
	for (int b = 0; b < HSPMD_AMAX_BINS; b++)
		level += history[b] > 0;
	return level;
}

/* The level is that of the largest of all parts, in any order; the scale puts it below the largest number, and not far below it. */
static void test_levels(void **state)
{
	(void)state;
	for (uint64_t trial = 0; trial < 2000; trial++) {
		float forward[HSPMD_AMAX_BINS] = { 0 }, parts[5], most = 0;
		int unit = -(int)(trial % 25);
		for (int p = 0; p < 5; p++) {
			uint32_t w[4];
			hspmd_random_words(9, trial, (uint64_t)p, w);
			parts[p] = w[0] % 7 ? ldexpf(1 + (float)(w[1] % 1000) / 1000, (int)(w[2] % 40) - 25 + unit) : 0;
			most = fmaxf(most, parts[p]);
			add_thermometer(parts[p], unit, forward);
		}
		assert_int_equal(level_of(forward), hspmd_amax_level(most, unit));
		if (!(most > 0))
			continue;
		float scale = hspmd_power_of_two(hspmd_fp8_scale(level_of(forward), unit, HSPMD_FP8_ACTIVATION));
		assert_true(most * scale * 1.75f <= HSPMD_E4M3_MOST && most * scale * 3.5f >= HSPMD_E4M3_MOST);
		scale = hspmd_power_of_two(hspmd_fp8_scale(level_of(forward), unit, HSPMD_FP8_GRADIENT));
		assert_true(most * scale * 1.75f <= HSPMD_E5M2_MOST && most * scale * 3.5f >= HSPMD_E5M2_MOST);
	}
	assert_int_equal(hspmd_amax_level(0, 0), 0);
	assert_int_equal(hspmd_amax_level(NAN, 0), 0);
	assert_int_equal(hspmd_amax_level(INFINITY, 0), HSPMD_AMAX_BINS);
	assert_int_equal(hspmd_amax_level(1e-40f, 0), 1);
	assert_int_equal(hspmd_amax_unit(1.0 / 4096), -12);
}

/* A large value counts for as many steps as the window has; then what came meanwhile counts. */
static void test_window(void **state)
{
	(void)state;
	float history[HSPMD_AMAX_BINS] = { 0 };
	for (int step = 0; step < 3 * HSPMD_AMAX_WINDOW; step++) {
		float sum[HSPMD_AMAX_BINS] = { 0 };
		add_thermometer(step == 3 ? 100 : 1.5f, 0, sum);
		for (int b = 0; b < HSPMD_AMAX_BINS; b++)
			history[b] = hspmd_amax_next(history[b], sum[b]);
		bool large = step >= 3 && step < 3 + HSPMD_AMAX_WINDOW;
		assert_int_equal(level_of(history), hspmd_amax_level(large ? 100 : 1.5f, 0));
	}
	for (int step = 0; step < HSPMD_AMAX_WINDOW; step++)
		for (int b = 0; b < HSPMD_AMAX_BINS; b++)
			history[b] = hspmd_amax_next(history[b], 0);
	assert_int_equal(level_of(history), 0);
}

static void repeated_operands(void **state)
{
	(void)state;
	struct hspmd_error err;
	struct hspmd_device *dev;
	assert_int_equal(hspmd_device_find("cpu", &err)->open(&dev, 0, 1, &err), 0);
	for (int transposed = 0; transposed < 2; transposed++)
		check_repeated_operand(dev, HSPMD_F32, transposed, true);
	dev->ops->close(dev);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_codes),  cmocka_unit_test(test_rounding),     cmocka_unit_test(test_levels),
		cmocka_unit_test(test_window), cmocka_unit_test(repeated_operands),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
