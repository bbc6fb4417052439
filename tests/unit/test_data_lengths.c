/* SPDX-License-Identifier: Apache-2.0 */
/* Data whose samples have several lengths: documents in the buckets of the lengths that hold them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <math.h>

#include "tests/unit/data_files.h"

/* Byte streams of documents of known lengths: the first byte of a document is its number, the end is 255, and the bytes between count
 * positions. */
static void write_documents(const int *length, int count)
{
	FILE *f = fopen(data_second, "wb");
	assert_non_null(f);
	for (int d = 0; d < count; d++)
		for (int i = 0; i < length[d]; i++)
			fputc(i == length[d] - 1 ? 255 : i ? 100 + i : d, f);
	assert_int_equal(fclose(f), 0);
}

static void restore_second(void)
{
	unsigned char bytes[61];
	for (int i = 0; i < 61; i++)
		bytes[i] = (unsigned char)(i + 100);
	data_write_file(data_second, bytes, sizeof bytes);
}

/* Documents end with 255, and are grouped by these three lengths. */
static void group(struct hspmd_job *job, int64_t *lengths, int global_batch)
{
	job->documents = true;
	job->document_end = 255;
	job->lengths = lengths;
	job->length_count = 3;
	job->global_batch = global_batch;
}

/* Steps have samples of one length; a document is in the bucket of the shortest length that holds it, complete and in order; an epoch has
 * every batch of every bucket once. */
static void grouped_by_length(void **state)
{
	(void)state;
	static const int length[] = { 4, 30, 4, 8, 8, 3, 12, 16, 4, 16, 8, 8, 4, 2, 16, 8, 4, 4, 9, 16 };
	enum { COUNT = sizeof length / sizeof *length };
	int64_t lengths[] = { 4, 8, 16 }, tokens_of[3] = { 0 };
	char *files[] = { data_second };
	struct hspmd_job job = data_job(files, 1, HSPMD_DATA_BYTES, 16);
	struct hspmd_error err;
	write_documents(length, COUNT);
	group(&job, lengths, 2);
	struct hspmd_data *d = hspmd_data_open(&job, 256, NULL, &err);
	assert_non_null(d);
	for (int i = 0; i < COUNT; i++)
		tokens_of[length[i] <= 4 ? 0 : length[i] <= 8 ? 1 : 2] += length[i];
	int batches[3], all = 0, order[2][64];
	for (int g = 0; g < 3; g++)
		all += batches[g] = (int)((tokens_of[g] - 1) / lengths[g] / 2);
	assert_true(all >= 5 && all < 64);
	for (int epoch = 0; epoch < 2; epoch++) {
		int seen[3] = { 0 };
		for (int s = 0; s < all; s++) {
			int which = order[epoch][s] = hspmd_data_length_of_step(d, epoch * all + s);
			seen[which]++;
			for (int b = 0; b < 2; b++) {
				int64_t number = 2 * (epoch * all + s) + b, n = lengths[which];
				int32_t t[17], part[3], segments[16], segment = 0;
				assert_int_equal(hspmd_data_read(d, number, 0, n + 1, t, &err), 0);
				assert_int_equal(hspmd_data_read(d, number, n - 2, 3, part, &err), 0);
				assert_memory_equal(part, t + n - 2, sizeof part);
				assert_int_equal(hspmd_data_segments(d, number, 0, n, segments, &err), 0);
				for (int i = 0; i <= n; i++) {
					if (t[i] < COUNT) /* a document begins: it belongs to this bucket */
						assert_true((length[t[i]] <= n || which == 2) &&
						            (which == 0 || length[t[i]] > lengths[which - 1]));
					if (i && t[i] > 100 && t[i] != 255 && t[i - 1] != 255) /* and continues */
						assert_int_equal(t[i], t[i - 1] < COUNT ? 101 : t[i - 1] + 1);
					if (i < n)
						assert_int_equal(segments[i], segment);
					segment += t[i] == 255;
				}
			}
		}
		for (int g = 0; g < 3; g++)
			assert_int_equal(seen[g], batches[g]);
	}
	assert_memory_not_equal(order[0], order[1], sizeof(int) * (size_t)all);
	hspmd_data_close(d);
	job.global_batch = 1000;
	assert_null(hspmd_data_open(&job, 256, NULL, &err));
	assert_string_equal(err.text, "job.json: data.lengths: documents of no length fill a global batch of 1000 samples");
	restore_second();
}

/* Steps mix lengths: an epoch has every sample once, whatever its length, in an order of its own. */
static void mixed_in_steps(void **state)
{
	(void)state;
	static const int length[] = { 4, 30, 4, 8, 8, 3, 12, 16, 4, 16, 8, 8, 4, 2, 16, 8, 4, 4, 9, 16 };
	enum { COUNT = sizeof length / sizeof *length, BATCH = 3 };
	int64_t lengths[] = { 4, 8, 16 };
	char *files[] = { data_second };
	struct hspmd_job job = data_job(files, 1, HSPMD_DATA_BYTES, 16);
	struct hspmd_error err;
	write_documents(length, COUNT);
	group(&job, lengths, BATCH);
	job.mix_lengths = true;
	struct hspmd_data *d = hspmd_data_open(&job, 256, NULL, &err);
	assert_non_null(d);
	int tokens_of[3] = { 0 }, samples[3], all = 0, mixed = 0;
	for (int i = 0; i < COUNT; i++)
		tokens_of[length[i] <= 4 ? 0 : length[i] <= 8 ? 1 : 2] += length[i];
	for (int g = 0; g < 3; g++)
		all += samples[g] = (tokens_of[g] - 1) / (int)lengths[g];
	int steps = all / BATCH, order[2][64];
	assert_true(steps >= 5 && all < 64);
	for (int epoch = 0; epoch < 2; epoch++) {
		int seen[3] = { 0 }, count = 0;
		for (int s = 0; s < steps; s++) {
			int64_t step = epoch * steps + s, tokens = 0;
			bool several = false;
			for (int b = 0; b < BATCH; b++, count++) {
				int64_t number = step * BATCH + b;
				int which = hspmd_data_length_of_sample(d, number);
				int64_t n = lengths[which];
				int32_t t[17];
				assert_int_equal(hspmd_data_read(d, number, 0, n + 1, t, &err), 0);
				for (int i = 0; i <= n; i++) {
					if (t[i] < COUNT)
						assert_true((length[t[i]] <= n || which == 2) &&
						            (which == 0 || length[t[i]] > lengths[which - 1]));
					if (i && t[i] > 100 && t[i] != 255 && t[i - 1] != 255)
						assert_int_equal(t[i], t[i - 1] < COUNT ? 101 : t[i - 1] + 1);
				}
				order[epoch][count] = which << 16 | t[0] << 8 | t[1]; /* what it begins with */
				several |= which != hspmd_data_length_of_sample(d, step * BATCH);
				tokens += n;
				seen[which]++;
			}
			mixed += several;
			assert_int_equal(hspmd_data_step_tokens(d, step), tokens);
			assert_true(hspmd_data_loss_factor(d, step) == 1);
		}
		int left = 0;
		for (int g = 0; g < 3; g++) {
			assert_true(seen[g] <= samples[g]);
			left += samples[g] - seen[g];
		}
		assert_int_equal(left, all % BATCH);
	}
	assert_true(mixed > 0);
	assert_memory_not_equal(order[0], order[1], sizeof(int) * (size_t)(steps * BATCH));
	/* One that counts nothing. */
	struct hspmd_sample_source source = hspmd_data_source(d);
	int32_t none[4] = { 7, 7, 7, 7 };
	assert_int_equal(source.read(source.context, "targets", -1, 0, 4, none, &err), 0);
	assert_memory_equal(none, ((int32_t[]){ -1, -1, -1, -1 }), sizeof none);
	assert_int_equal(source.read(source.context, "tokens", -1, 0, 4, none, &err), 0);
	assert_memory_equal(none, ((int32_t[]){ 0, 0, 0, 0 }), sizeof none);
	hspmd_data_close(d);
	job.global_batch = 1000;
	assert_null(hspmd_data_open(&job, 256, NULL, &err));
	assert_string_equal(err.text,
	                    "job.json: data.lengths: documents of all lengths together do not fill a global batch of 1000 samples");
	restore_second();
}

/* "auto": halves of halves of seq_len, of which those remain that have enough tokens; the others' documents are trained at a longer one. */
static void chosen_lengths(void **state)
{
	(void)state;
	enum { SHORT = 60, FEW = 6, MIDDLE = 12, COUNT = SHORT + FEW + MIDDLE };
	int length[COUNT];
	for (int i = 0; i < COUNT; i++)
		length[i] = i < SHORT ? 10 : i < SHORT + FEW ? 20 : 50;
	int64_t chosen[HSPMD_DATA_LENGTHS_MOST];
	static const int64_t expected[] = { 16, 64, 128 };
	char *files[] = { data_second };
	struct hspmd_job job = data_job(files, 1, HSPMD_DATA_BYTES, 128);
	struct hspmd_error err;
	write_documents(length, COUNT);
	group(&job, NULL, 2);
	job.length_count = 0;
	job.lengths_auto = true;
	assert_null(hspmd_data_open(&job, 256, NULL, &err));
	assert_string_equal(err.text, "job.json: data.lengths: nothing has been chosen for \"auto\"");
	assert_int_equal(hspmd_data_choose_lengths(&job, 256, NULL, chosen, &err), 3);
	assert_memory_equal(chosen, expected, sizeof expected);
	job.global_batch = 100; /* no length has enough but seq_len */
	assert_int_equal(hspmd_data_choose_lengths(&job, 256, NULL, chosen, &err), 1);
	assert_int_equal(chosen[0], 128);
	restore_second();
}

/* Each file has its part of all tokens, at the lengths of its own documents, which come in epochs of their own. */
static void weights_by_length(void **state)
{
	(void)state;
	enum { STEPS = 5000, COUNT = 9 };
	static const int length[COUNT] = { 4, 4, 8, 4, 8, 8, 4, 8, 4 };
	int64_t lengths[] = { 4, 8, 16 };
	char *files[] = { data_first, data_second, data_second };
	struct hspmd_job job = data_job(files, 3, HSPMD_DATA_BYTES, 16);
	struct hspmd_error err;
	write_documents(length, COUNT);
	group(&job, lengths, 3);
	job.train_weights = (double[]){ 1, 1, 3 };
	struct hspmd_data *d = hspmd_data_open(&job, 256, NULL, &err); /* the first file is one long document: samples of 16 */
	if (!d)
		fail_msg("%s", err.text);
	double tokens[2] = { 0 }, of_length[3] = { 0 };
	int seen[2][4] = { 0 };
	for (int s = 0; s < STEPS; s++) {
		int which = hspmd_data_length_of_step(d, s);
		int64_t n = lengths[which];
		for (int b = 0; b < 3; b++) {
			int32_t t[17];
			assert_int_equal(hspmd_data_read(d, 3 * s + b, 0, n + 1, t, &err), 0);
			tokens[which < 2] += (double)n;
			of_length[which] += (double)n;
			if (which == 2)
				continue;
			assert_true(t[0] < COUNT && length[t[0]] == n); /* documents fill samples exactly */
			int at = 0;
			for (int k = 0; k < t[0]; k++)
				at += length[k] == n;
			seen[which][at]++;
		}
	}
	assert_true(fabs(tokens[1] / (tokens[0] + tokens[1]) - 0.8) < 1e-3);
	assert_true(fabs(of_length[1] / of_length[0] - 24.0 / 16) < 5e-3); /* samples: 4 of 4 tokens, 3 of 8 */
	for (int i = 0; i < 4; i++) /* each of the two sets has been through its samples equally often, to one epoch */
		assert_true(abs(seen[0][i] - seen[0][0]) <= 2 && (i > 2 ? !seen[1][i] : abs(seen[1][i] - seen[1][0]) <= 2));
	hspmd_data_close(d);
	job.length_count = 2;
	job.seq_len = 8;
	write_documents((const int[]){ 4, 4, 4, 4, 4, 3 }, 6); /* enough for a sample of 8, but in documents of 4 */
	assert_non_null(d = hspmd_data_open(&job, 256, NULL, &err));
	hspmd_data_close(d);
	write_documents((const int[]){ 4, 5 }, 2);
	assert_null(hspmd_data_open(&job, 256, NULL, &err));
	assert_non_null(strstr(err.text, "job.json: data.train[1], "));
	assert_non_null(strstr(err.text, "its documents of no length fill a sample"));
	restore_second();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(grouped_by_length),
		cmocka_unit_test(mixed_in_steps),
		cmocka_unit_test(chosen_lengths),
		cmocka_unit_test(weights_by_length),
	};
	return cmocka_run_group_tests(tests, data_files_set_up, data_files_tear_down);
}
