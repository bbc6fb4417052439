/* SPDX-License-Identifier: Apache-2.0 */
/* Samples of several lengths divided among pipelines and micro-batches: every sample once, by every caller alike, within what each pipeline
 * takes, and not much later done than by the best of all divisions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/step_batches.h"
#include "tests/unit/draw.h"

#define PIPELINES 4
#define LENGTHS 4
#define SAMPLES 40
#define SMALL 9         /* samples of cases that are solved by trying all divisions */
#define BOUND 1.3       /* of the best time, for any of those cases */
#define BOUND_MEAN 1.01 /* on average */

static uint64_t state;

static int draw(int n)
{
	uint64_t z = (state += UINT64_C(0x9e3779b97f4a7c15));
	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return (int)((z ^ (z >> 31)) >> 33) % n;
}

struct problem {
	int pipelines, lengths, samples;
	struct hspmd_length_rate rates[PIPELINES][LENGTHS];
	struct hspmd_pipeline_rates of[PIPELINES];
	int length_of[SAMPLES];
};

/* Pipelines of unlike speeds; some do not take the longest samples. Long samples take more time, and short ones fit more at a time. */
static void draw_problem(struct problem *p, int pipelines, int lengths, int samples)
{
	p->pipelines = 1 + draw(pipelines);
	p->lengths = 1 + draw(lengths);
	p->samples = 1 + draw(samples);
	for (int i = 0; i < p->pipelines; i++) {
		int takes = i ? 1 + draw(p->lengths) : p->lengths, most = 1 + draw(2);
		int64_t speed = 50 + draw(100);
		memset(p->rates[i], 0, sizeof p->rates[i]);
		for (int l = takes - 1; l >= 0; l--) {
			p->rates[i][l] = (struct hspmd_length_rate){ .most = most, .sample = speed << 2 * l };
			most *= 1 + draw(4);
			p->rates[i][l].sample += draw(50) << 2 * l;
		}
		p->of[i] = (struct hspmd_pipeline_rates){ .depth = 1 + draw(4), .length = p->rates[i] };
	}
	for (int s = 0; s < p->samples; s++) {
		int length = draw(p->lengths), other = draw(p->lengths);
		p->length_of[s] = length < other ? length : other;
	}
}

static void make(const struct problem *p, struct hspmd_step_batches *b)
{
	struct hspmd_error err;
	if (hspmd_step_batches_make(p->of, p->pipelines, p->lengths, p->length_of, p->samples, b, &err))
		fail_msg("%s", err.text);
}

static void check_pipeline(const struct problem *p, const struct hspmd_step_batches *b, int pipeline, int *times_seen)
{
	int first = b->begin[pipeline], count = b->begin[pipeline + 1] - first;
	assert_true(count >= 1);
	assert_true(count <= hspmd_step_batches_most(&p->of[pipeline], p->lengths, p->samples));
	for (int i = first; i < first + count; i++) {
		const struct hspmd_micro_batch *m = &b->batches[i];
		assert_in_range(m->length, 0, p->lengths - 1);
		assert_in_range(m->samples, 1, p->rates[pipeline][m->length].most); /* at most 0 of a length that it does not take */
		if (m->first < 0) {
			assert_int_equal(count, 1);
			assert_int_equal(m->samples, 1);
		}
		for (int k = 0; m->first >= 0 && k < m->samples; k++) {
			int sample = b->order[m->first + k];
			assert_in_range(sample, 0, p->samples - 1);
			assert_int_equal(p->length_of[sample], m->length);
			times_seen[sample]++;
		}
	}
}

static void every_sample_once(void **unused)
{
	(void)unused;
	int count = (int)draw_count(2000, 200000), first = (int)draw_first((unsigned)count, 200000);
	for (int i = 0; i < count; i++) {
		struct problem p;
		struct hspmd_step_batches b, again;
		int times_seen[SAMPLES] = { 0 };
		state = (uint64_t)(first + i);
		draw_problem(&p, PIPELINES, LENGTHS, SAMPLES);
		make(&p, &b);
		make(&p, &again);
		assert_int_equal(b.pipeline_count, p.pipelines);
		for (int k = 0; k < p.pipelines; k++)
			check_pipeline(&p, &b, k, times_seen);
		for (int s = 0; s < p.samples; s++)
			assert_int_equal(times_seen[s], 1);
		assert_int_equal(b.batch_count, again.batch_count);
		assert_memory_equal(b.begin, again.begin, ((size_t)p.pipelines + 1) * sizeof *b.begin);
		assert_memory_equal(b.batches, again.batches, (size_t)b.batch_count * sizeof *b.batches);
		assert_memory_equal(b.order, again.order, (size_t)p.samples * sizeof *b.order);
		hspmd_step_batches_clear(&b);
		hspmd_step_batches_clear(&again);
	}
}

/* ---- against all divisions */

static int64_t later(const struct problem *p, int counts[PIPELINES][LENGTHS])
{
	int64_t last = 0;
	for (int i = 0; i < p->pipelines; i++) {
		int64_t time = hspmd_step_batches_time(&p->of[i], p->lengths, counts[i]);
		last = time > last ? time : last;
	}
	return last;
}

/* Tries all ways to divide what is left[length...] from pipeline `i` on. */
static int64_t try_all(const struct problem *p, int counts[PIPELINES][LENGTHS], int *left, int i, int length)
{
	int64_t best = INT64_MAX;
	if (length == p->lengths)
		return later(p, counts);
	bool last = i == p->pipelines - 1;
	int most = p->rates[i][length].most ? left[length] : 0;
	for (int n = last ? left[length] : 0; n <= most; n++) {
		counts[i][length] = n;
		left[length] -= n;
		int64_t time = last ? try_all(p, counts, left, 0, length + 1) : try_all(p, counts, left, i + 1, length);
		best = time < best ? time : best;
		left[length] += n;
	}
	counts[i][length] = 0;
	return best;
}

static void near_the_best(void **unused)
{
	(void)unused;
	int count = (int)draw_count(500, 20000), first = (int)draw_first((unsigned)count, 20000);
	double worst = 0, sum = 0;
	for (int i = 0; i < count; i++) {
		struct problem p;
		struct hspmd_step_batches b;
		int got[PIPELINES][LENGTHS] = { 0 }, counts[PIPELINES][LENGTHS] = { 0 }, left[LENGTHS] = { 0 };
		state = (uint64_t)(first + i) * 7919;
		draw_problem(&p, 3, 3, SMALL);
		make(&p, &b);
		for (int k = 0; k < p.pipelines; k++)
			for (int m = b.begin[k]; m < b.begin[k + 1]; m++)
				got[k][b.batches[m].length] += b.batches[m].first < 0 ? 0 : b.batches[m].samples;
		for (int s = 0; s < p.samples; s++)
			left[p.length_of[s]]++;
		double ratio = (double)later(&p, got) / (double)try_all(&p, counts, left, 0, 0);
		if (!(ratio <= BOUND))
			fail_msg("case %d: %g times the best of all divisions", first + i, ratio);
		worst = ratio > worst ? ratio : worst;
		sum += ratio;
		hspmd_step_batches_clear(&b);
	}
	print_message("%d small cases: at most %.3f times the best of all divisions, %.4f on average\n", count, worst, sum / count);
	assert_true(sum / count <= BOUND_MEAN);
}

static void a_length_that_nobody_takes_is_refused(void **unused)
{
	(void)unused;
	struct hspmd_length_rate rates[] = { { 1, 5 }, { 0, 0 } };
	struct hspmd_pipeline_rates one = { 1, rates };
	struct hspmd_step_batches b;
	struct hspmd_error err = { "" };
	assert_int_equal(hspmd_step_batches_make(&one, 1, 2, (int[]){ 0, 1 }, 2, &b, &err), -1);
	assert_string_equal(err.text, "no pipeline takes samples of length number 1");
}

static void a_pipeline_without_samples_computes_one_that_counts_nothing(void **unused)
{
	(void)unused;
	struct hspmd_length_rate fast[] = { { 4, 1 } }, slow[] = { { 4, 1000 } };
	struct hspmd_pipeline_rates two[] = { { 1, fast }, { 1, slow } };
	struct hspmd_step_batches b;
	struct hspmd_error err;
	assert_int_equal(hspmd_step_batches_make(two, 2, 1, (int[]){ 0, 0, 0, 0, 0 }, 5, &b, &err), 0);
	assert_int_equal(b.batch_count, 3);
	assert_int_equal(b.batches[0].samples + b.batches[1].samples, 5); /* evenly: 2 and 3 */
	assert_int_equal(abs(b.batches[0].samples - b.batches[1].samples), 1);
	assert_int_equal(b.batches[2].first, -1);
	hspmd_step_batches_clear(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_sample_once),
		cmocka_unit_test(near_the_best),
		cmocka_unit_test(a_length_that_nobody_takes_is_refused),
		cmocka_unit_test(a_pipeline_without_samples_computes_one_that_counts_nothing),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
