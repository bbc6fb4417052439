/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/unit/data_files.h"

/* Every epoch has every sample once; another seed gives another order; samples continue across the border between files. */
static void epochs(void **state)
{
	(void)state;
	char *files[] = { data_first, data_second };
	struct hspmd_job job = data_job(files, 2, HSPMD_DATA_BYTES, 16);
	struct hspmd_error err;
	struct hspmd_data *d = hspmd_data_open(&job, 256, NULL, &err);
	assert_non_null(d);
	assert_int_equal(hspmd_data_samples(d), 10); /* 161 tokens */
	int order[2][10];
	for (int epoch = 0; epoch < 2; epoch++) {
		int seen[10] = { 0 };
		for (int i = 0; i < 10; i++) {
			int32_t tokens[17];
			assert_int_equal(hspmd_data_read(d, epoch * 10 + i, 0, 17, tokens, &err), 0);
			assert_int_equal(tokens[0] % 16, 0);
			for (int k = 1; k < 17; k++)
				assert_int_equal(tokens[k], tokens[0] + k);
			order[epoch][i] = tokens[0] / 16;
			seen[tokens[0] / 16]++;
		}
		for (int i = 0; i < 10; i++)
			assert_int_equal(seen[i], 1);
	}
	assert_memory_not_equal(order[0], order[1], sizeof order[0]);
	hspmd_data_close(d);
}

static void parts_of_a_sample(void **state)
{
	(void)state;
	char *files[] = { data_first, data_second };
	struct hspmd_job job = data_job(files, 2, HSPMD_DATA_BYTES, 16);
	struct hspmd_error err;
	struct hspmd_data *d = hspmd_data_open(&job, 256, NULL, &err);
	assert_non_null(d);
	int32_t whole[17], part[5];
	assert_int_equal(hspmd_data_read(d, 4, 0, 17, whole, &err), 0);
	assert_int_equal(hspmd_data_read(d, 4, 12, 5, part, &err), 0);
	assert_memory_equal(part, whole + 12, sizeof part);
	hspmd_data_close(d);
}

/* The document number increases after a document's end, and parts of a sample agree with the full sample. */
static void documents(void **state)
{
	(void)state;
	char *files[] = { data_first, data_second };
	struct hspmd_job job = data_job(files, 2, HSPMD_DATA_BYTES, 160);
	struct hspmd_error err;
	job.documents = true;
	for (int end = 0; end < 3; end++) {
		job.document_end = (int[]){ 7, 0, 200 }[end];
		struct hspmd_data *d = hspmd_data_open(&job, 256, NULL, &err);
		struct hspmd_sample_source source = hspmd_data_source(d);
		int32_t all[160], part[13];
		assert_int_equal(source.read(source.context, "segments", 0, 0, 160, all, &err), 0);
		for (int i = 0; i < 160; i++) /* token i is i */
			assert_int_equal(all[i], i > job.document_end);
		assert_int_equal(source.read(source.context, "segments", 0, 3, 13, part, &err), 0);
		assert_memory_equal(part, all + 3, sizeof part);
		hspmd_data_close(d);
	}
}

static void what_is_wrong_is_told(void **state)
{
	(void)state;
	struct hspmd_error err;
	char *files[] = { data_first }, *none[] = { "/nonexistent/x" };
	struct hspmd_job job = data_job(files, 1, HSPMD_DATA_BYTES, 100);
	assert_null(hspmd_data_open(&job, 256, NULL, &err)); /* one sample takes 101 tokens */
	assert_non_null(strstr(err.text, data_first));
	job = data_job(none, 1, HSPMD_DATA_BYTES, 10);
	assert_null(hspmd_data_open(&job, 256, NULL, &err));
	assert_non_null(strstr(err.text, "/nonexistent/x"));
	job = data_job(files, 1, HSPMD_DATA_MEGATRON, 10);
	assert_null(hspmd_data_open(&job, 256, NULL, &err));
	assert_non_null(strstr(err.text, ".idx"));
	job = data_job(files, 1, HSPMD_DATA_BYTES, 10);
	struct hspmd_data *d = hspmd_data_open(&job, 50, NULL, &err);
	int32_t tokens[11];
	int bad = 0;
	for (int i = 0; i < 9; i++)
		bad += hspmd_data_read(d, i, 0, 11, tokens, &err) != 0;
	assert_int_equal(bad, 5); /* samples with a byte of 50 or more */
	assert_non_null(strstr(err.text, "vocabulary of 50"));
	hspmd_data_close(d);
}

/* Either file of a pair may be named, or only their common prefix. */
static void megatron_names(void **state)
{
	(void)state;
	static const unsigned char index[34] = "MMIDIDX\0\0\1\0\0\0\0\0\0\0\x08";
	const unsigned char tokens[] = { 7, 0, 8, 0, 9, 0 };
	char bin[sizeof data_first + 4], idx[sizeof data_first + 4], *names[] = { data_first, bin, idx };
	struct hspmd_error err;
	snprintf(bin, sizeof bin, "%s.bin", data_first);
	snprintf(idx, sizeof idx, "%s.idx", data_first);
	data_write_file(bin, tokens, sizeof tokens);
	data_write_file(idx, index, sizeof index);
	for (int i = 0; i < 3; i++) {
		int32_t read[3];
		struct hspmd_job job = data_job(&names[i], 1, HSPMD_DATA_MEGATRON, 2);
		struct hspmd_data *d = hspmd_data_open(&job, 256, NULL, &err);
		if (!d)
			fail_msg("%s", err.text);
		assert_int_equal(hspmd_data_read(d, 0, 0, 3, read, &err), 0);
		assert_int_equal(read[2], 9);
		hspmd_data_close(d);
	}
	/* Floating-point types, and codes that there are not. */
	static const unsigned char codes[] = { 0, 6, 7, 10, 255 };
	for (size_t i = 0; i < sizeof codes; i++) {
		unsigned char wrong[sizeof index];
		memcpy(wrong, index, sizeof wrong);
		wrong[17] = codes[i];
		data_write_file(idx, wrong, sizeof wrong);
		struct hspmd_job job = data_job(names, 1, HSPMD_DATA_MEGATRON, 2);
		assert_null(hspmd_data_open(&job, 256, NULL, &err));
		assert_non_null(strstr(err.text, "expected an integer type"));
	}
	unlink(bin);
	unlink(idx);
}

static void widths(void **state)
{
	(void)state;
	struct hspmd_error err;
	char *files[] = { data_first };
	int32_t tokens[3];
	struct hspmd_job job = data_job(files, 1, HSPMD_DATA_UINT16, 2);
	struct hspmd_data *d = hspmd_data_open(&job, 65536, NULL, &err);
	assert_non_null(d);
	assert_int_equal(hspmd_data_samples(d), 24); /* 50 tokens */
	assert_int_equal(hspmd_data_read(d, 0, 0, 3, tokens, &err), 0);
	assert_int_equal(tokens[1] - tokens[0], 0x0202);
	hspmd_data_close(d);
	job = data_job(files, 1, HSPMD_DATA_UINT32, 2);
	d = hspmd_data_open(&job, INT64_C(1) << 31, NULL, &err);
	assert_non_null(d);
	assert_int_equal(hspmd_data_samples(d), 12);
	hspmd_data_close(d);
}

/* Writes a pair of Megatron's with tokens 0, 1, ... of type uint32 (code 9), one sequence per document. */
static void write_indexed(const char *base, const int32_t *length, int count, const int64_t *documents, int64_t entries)
{
	char path[80];
	snprintf(path, sizeof path, "%s.bin", base);
	FILE *bin = fopen(path, "wb");
	snprintf(path, sizeof path, "%s.idx", base);
	FILE *idx = fopen(path, "wb");
	int64_t sequences = count, pointer = 0;
	assert_true(bin && idx);
	fwrite("MMIDIDX\0\0\1\0\0\0\0\0\0\0\x09", 1, 18, idx);
	fwrite(&sequences, sizeof sequences, 1, idx);
	fwrite(&entries, sizeof entries, 1, idx);
	fwrite(length, sizeof *length, (size_t)count, idx);
	for (int i = 0; i < count; i++) {
		fwrite(&pointer, sizeof pointer, 1, idx);
		pointer += 4 * length[i];
	}
	fwrite(documents, sizeof *documents, (size_t)entries, idx);
	for (uint32_t t = 0; t < pointer / 4; t++)
		fwrite(&t, sizeof t, 1, bin);
	assert_false(fclose(bin) || fclose(idx));
}

static void remove_indexed(const char *base)
{
	static const char *const ends[] = { "bin", "idx", "mask" };
	char path[160];
	for (int i = 0; i < 3; i++) {
		snprintf(path, sizeof path, "%s.%s", base, ends[i]);
		unlink(path);
	}
}

/* Documents of several sequences, of one, and of none, in two files: their beginnings come from the index. */
static void documents_of_an_index(void **state)
{
	(void)state;
	static const int32_t lengths[] = { 3, 4, 5, 2, 6 };
	static const int64_t documents[] = { 0, 2, 3, 3, 5 }; /* 7 tokens, 5, none, 8 */
	static const int begins[] = { 0, 7, 12, 20, 27, 32 };
	char base[2][64], *files[] = { base[0], base[1] };
	struct hspmd_error err;
	for (int i = 0; i < 2; i++) {
		snprintf(base[i], sizeof base[i], "%s/indexed%d", data_folder, i);
		write_indexed(base[i], lengths, 5, documents, 5);
	}
	struct hspmd_job job = data_job(files, 2, HSPMD_DATA_MEGATRON, 39);
	job.documents = true;
	job.document_end = -1;
	struct hspmd_data *d = hspmd_data_open(&job, 256, NULL, &err);
	if (!d)
		fail_msg("%s", err.text);
	struct hspmd_sample_source source = hspmd_data_source(d);
	int32_t all[2][39], part[11], tokens[40];
	static const char *const names[] = { "segments", "positions" };
	for (int k = 0; k < 2; k++) {
		assert_int_equal(source.read(source.context, names[k], 0, 0, 39, all[k], &err), 0);
		assert_int_equal(source.read(source.context, names[k], 0, 17, 11, part, &err), 0);
		assert_memory_equal(part, all[k] + 17, sizeof part);
	}
	for (int i = 0, n = 0; i < 39; i++) {
		n += n < 5 && i == begins[n + 1];
		assert_int_equal(all[0][i], n);
		assert_int_equal(all[1][i], i - begins[n]);
	}
	assert_int_equal(hspmd_data_read(d, 0, 0, 40, tokens, &err), 0);
	assert_true(tokens[19] == 19 && tokens[20] == 0);
	hspmd_data_close(d);
	/* Grouped by length: those of 5 tokens, and those of 7 and 8. */
	job.seq_len = 8;
	job.lengths = (int64_t[]){ 5, 8 };
	job.length_count = 2;
	job.global_batch = 1;
	assert_non_null(d = hspmd_data_open(&job, 256, NULL, &err));
	for (int step = 0; step < 4; step++) {
		int which = hspmd_data_length_of_step(d, step);
		assert_int_equal(hspmd_data_read(d, step, 0, 6, tokens, &err), 0);
		if (which == 0)
			assert_true(tokens[0] >= 7 && tokens[0] < 12);
	}
	hspmd_data_close(d);
	/* An index of other data. */
	char bin[90];
	snprintf(bin, sizeof bin, "%s.bin", base[1]);
	assert_int_equal(truncate(bin, 76), 0);
	job.length_count = 0;
	assert_null(hspmd_data_open(&job, 256, NULL, &err));
	assert_non_null(strstr(err.text, "+ 6 tokens of 4 bytes, but the tokens beside it have 76 bytes"));
	write_indexed(base[1], lengths, 5, (int64_t[]){ 0, 2, 3, 3, 4 }, 5);
	assert_null(hspmd_data_open(&job, 256, NULL, &err));
	assert_non_null(strstr(err.text, "its documents are not those of its 5 sequences"));
	for (int i = 0; i < 2; i++)
		remove_indexed(base[i]);
}

/* Reads all samples. Returns how many cannot be read, or -1 if the data cannot be opened; err: of the last. */
static int unreadable(const struct hspmd_job *job, struct hspmd_error *err)
{
	struct hspmd_data *d = hspmd_data_open(job, 256, NULL, err);
	int32_t segments[19];
	int count = d ? 0 : -1;
	for (int64_t n = 0; d && n < hspmd_data_samples(d); n++)
		count += hspmd_data_segments(d, n, 0, job->seq_len, segments, err) != 0;
	hspmd_data_close(d);
	return count;
}

/* What lies within an index is checked where it is read: the first sequences of documents, and the offsets of these. */
static void an_index_that_contradicts_itself(void **state)
{
	(void)state;
	enum { OFFSETS = 34 + 4 * 5, DOCUMENTS = OFFSETS + 8 * 5 };
	static const int32_t lengths[] = { 3, 4, 5, 2, 6 };
	static const int64_t documents[] = { 0, 2, 3, 5 }; /* tokens 0 to 6, 7 to 11, 12 to 19 */
	static const struct {
		long at;
		int64_t value;
		int samples; /* of tokens 0 to 4, 5 to 9 and 10 to 14: how many reach a document that it is wrong about */
		const char *error;
	} lies[] = {
		{ DOCUMENTS + 8 * 2, 1, 2, "and there are 5 sequences" },
		{ DOCUMENTS + 8 * 2, INT64_MAX, 2, "and there are 5 sequences" },
		{ DOCUMENTS + 8 * 2, -1, 2, "and there are 5 sequences" },
		{ OFFSETS + 8 * 2, 0, 3, "its sequence 2 begins at byte 0, but the one before at byte 12 with 4 tokens of 4 bytes" },
		{ OFFSETS + 8 * 2, 32, 2, "its sequence 2 begins at byte 32, but" },
		{ OFFSETS + 8 * 2, INT64_MIN, 3, "its sequence 2 begins at byte -9223372036854775808, but" },
		{ OFFSETS + 8, INT64_MIN, 2, "its sequence 2 begins at byte 28, but the one before at byte -9223372036854775808" },
		{ OFFSETS + 8 * 2, 28, 0, NULL },
	};
	char base[64], idx[70], *files[] = { base };
	struct hspmd_error err;
	snprintf(base, sizeof base, "%s/lies", data_folder);
	snprintf(idx, sizeof idx, "%s.idx", base);
	struct hspmd_job job = data_job(files, 1, HSPMD_DATA_MEGATRON, 5);
	job.documents = true;
	job.document_end = -1;
	job.global_batch = 1;
	for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
		write_indexed(base, lengths, 5, documents, 4);
		FILE *f = fopen(idx, "r+b");
		assert_true(f && !fseek(f, lies[i].at, SEEK_SET));
		fwrite(&lies[i].value, sizeof lies[i].value, 1, f);
		assert_int_equal(fclose(f), 0);
		/* Samples of 5 tokens, one of 19, and grouped by length. */
		for (int k = 0; k < 3; k++) {
			job.seq_len = k == 1 ? 19 : 5;
			job.lengths = (int64_t[]){ 3, 5 };
			job.length_count = k == 2 ? 2 : 0;
			err.text[0] = '\0';
			int got = unreadable(&job, &err), want = !k || !lies[i].error ? lies[i].samples : k == 1 ? 1 : -1;
			if (got != want || (want && (!strstr(err.text, idx) || !strstr(err.text, lies[i].error))))
				fail_msg("lie %zu, reading %d: got %d, \"%s\"", i, k, got, err.text);
			/* As validation data they are told before the training. */
			job.valid = files;
			job.valid_count = 1;
			job.valid_batches = -1;
			err.text[0] = '\0';
			if (k < 2 && (!hspmd_data_check_valid(&job, 256, &err) != !lies[i].samples ||
			              (lies[i].samples && !strstr(err.text, lies[i].error))))
				fail_msg("lie %zu, reading %d: \"%s\" before training", i, k, err.text);
		}
	}
	remove_indexed(base);
}

/* Shares of every block are those of the weights, spread evenly; each file's samples come in epochs of its own. */
static void weights(void **state)
{
	(void)state;
	enum { STEPS = 65536 + 1000 };
	char *files[] = { data_first, data_second, data_first };
	struct hspmd_job job = data_job(files, 3, HSPMD_DATA_BYTES, 10);
	struct hspmd_error err;
	job.train_weights = (double[]){ 7, 3, 1e-6 }; /* the last gets one sample per block */
	struct hspmd_data *d = hspmd_data_open(&job, 256, NULL, &err);
	assert_non_null(d);
	int of_second = 0, seen[6] = { 0 }; /* 61 tokens: 6 samples, which begin at 100 */
	for (int i = 0; i < STEPS; i++) {
		int32_t tokens[11];
		assert_int_equal(hspmd_data_read(d, i, 0, 11, tokens, &err), 0);
		assert_int_equal(tokens[10], tokens[0] + 10);
		if (tokens[0] >= 100) {
			int sample = (tokens[0] - 100) / 10;
			assert_int_equal(seen[sample]++, of_second++ / 6); /* no sample twice before all were there once */
		}
		assert_true(of_second >= 0.3 * i - 2 && of_second <= 0.3 * i + 3);
	}
	hspmd_data_close(d);
	job.seq_len = 61;
	assert_null(hspmd_data_open(&job, 256, NULL, &err));
	assert_non_null(strstr(err.text, "61 tokens in a file with a weight, one sample takes seq_len + 1 = 62"));
}

static void write_mask(const char *of, int count)
{
	char path[80];
	unsigned char mask[256];
	for (int i = 0; i < count; i++)
		mask[i] = i % 3 != 0;
	snprintf(path, sizeof path, "%s.mask", of);
	data_write_file(path, mask, (size_t)count);
}

/* Targets that the mask excludes are -1, and the loss is the mean over the others; inputs stay. */
static void masks(void **state)
{
	(void)state;
	char *files[] = { data_first, data_second };
	struct hspmd_job job = data_job(files, 2, HSPMD_DATA_BYTES, 16);
	struct hspmd_error err;
	job.mask = true;
	job.global_batch = 4;
	write_mask(data_first, 100);
	write_mask(data_second, 61);
	struct hspmd_data *d = hspmd_data_open(&job, 256, NULL, &err);
	if (!d)
		fail_msg("%s", err.text);
	struct hspmd_sample_source source = hspmd_data_source(d);
	for (int step = 0; step < 5; step++) {
		int counted = 0;
		for (int b = 0; b < 4; b++) {
			int32_t tokens[17], targets[16];
			assert_int_equal(hspmd_data_read(d, 4 * step + b, 0, 17, tokens, &err), 0);
			assert_int_equal(source.read(source.context, "targets", 4 * step + b, 0, 16, targets, &err), 0);
			for (int i = 0; i < 16; i++) {
				int at = tokens[i + 1], in_file = at < 100 ? at : at - 100;
				assert_int_equal(targets[i], in_file % 3 ? at : -1);
				counted += in_file % 3 != 0;
			}
		}
		assert_true(source.loss_factor(source.context, step) == 64.0 / counted);
	}
	hspmd_data_close(d);
	write_mask(data_second, 60);
	assert_null(hspmd_data_open(&job, 256, NULL, &err));
	assert_non_null(strstr(err.text, ".mask: 60 bytes, expected one for each of the 61 tokens of"));
	remove_indexed(data_first);
	remove_indexed(data_second);
}

/* The factor of a step's loss is what its targets say: with masks of any length, samples over several files, and documents by length. */
static void factors(void **state)
{
	(void)state;
	static int64_t lengths[] = { 64, 700 };
	enum { TOKENS = 5000 };
	static unsigned char tokens[TOKENS], mask[TOKENS];
	char name[2][140], *files[] = { name[0], name[1] }, path[160];
	struct hspmd_error err = { "" };
	for (int f = 0; f < 2; f++) {
		snprintf(name[f], sizeof name[f], "%s.factors%d", data_first, f);
		for (int i = 0; i < TOKENS - 1000 * f; i++) {
			uint32_t drawn = (uint32_t)(i * 2654435761u + (unsigned)f) * 2246822519u;
			tokens[i] = drawn >> 24 < 2 || i % 900 == 899 ? 0 : 1 + (drawn >> 16) % 255;
			mask[i] = i / 600 % 2 ? 1 : (unsigned char)((drawn >> 12) % 3);
		}
		data_write_file(files[f], tokens, (size_t)(TOKENS - 1000 * f));
		snprintf(path, sizeof path, "%s.mask", files[f]);
		data_write_file(path, mask, (size_t)(TOKENS - 1000 * f));
	}
	for (int by_length = 0; by_length < 2; by_length++) {
		struct hspmd_job job = data_job(files, 2, HSPMD_DATA_BYTES, 700);
		job.mask = true;
		job.global_batch = 3;
		if (by_length) {
			job.documents = true;
			job.document_end = 0;
			job.lengths = lengths;
			job.length_count = 2;
		}
		struct hspmd_data *d = hspmd_data_open(&job, 256, NULL, &err);
		if (!d)
			fail_msg("%s", err.text);
		struct hspmd_sample_source source = hspmd_data_source(d);
		for (int step = 0; step < 12; step++) {
			int64_t length = by_length ? lengths[hspmd_data_length_of_step(d, step)] : 700, counted = 0;
			for (int b = 0; b < 3; b++) {
				int32_t targets[700];
				assert_int_equal(source.read(source.context, "targets", 3 * step + b, 0, length, targets, &err), 0);
				for (int i = 0; i < length; i++)
					counted += targets[i] >= 0;
			}
			assert_true(counted > 0 && source.loss_factor(source.context, step) == (double)(3 * length) / (double)counted);
		}
		hspmd_data_close(d);
	}
	for (int f = 0; f < 2; f++) {
		unlink(files[f]);
		remove_indexed(files[f]);
	}
}

/* Every token of the validation files but the first is predicted once, however they fill samples and batches. */
static void all_for_validation(void **state)
{
	(void)state;
	char *files[] = { data_first, data_second };
	struct hspmd_job job = data_job(NULL, 0, HSPMD_DATA_BYTES, 12); /* 160 = 13 * 12 + 4 */
	struct hspmd_error err;
	job.valid = files;
	job.valid_count = 2;
	job.valid_batches = -1;
	job.global_batch = 4;
	struct hspmd_data *d = hspmd_data_open_valid(&job, 256, &err);
	if (!d)
		fail_msg("%s", err.text);
	struct hspmd_sample_source source = hspmd_data_source(d);
	assert_int_equal(hspmd_data_samples(d), 14);
	int seen[161] = { 0 };
	for (int step = 0; step < 5; step++) {
		int counted = 0;
		for (int b = 0; b < 4; b++) {
			int32_t targets[12];
			assert_int_equal(source.read(source.context, "targets", 4 * step + b, 0, 12, targets, &err), 0);
			for (int i = 0; i < 12; i++)
				if (targets[i] >= 0) {
					seen[targets[i]]++;
					counted++;
				}
		}
		assert_true(source.loss_factor(source.context, step) == (counted ? 48.0 / counted : 0));
	}
	assert_int_equal(seen[0], 0);
	for (int t = 1; t < 161; t++)
		assert_int_equal(seen[t], 1);
	hspmd_data_close(d);
	job.valid_batches = 4;
	assert_non_null(d = hspmd_data_open_valid(&job, 256, &err));
	assert_int_equal(hspmd_data_samples(d), 13);
	assert_true(hspmd_data_loss_factor(d, 9) == 1);
	hspmd_data_close(d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(epochs),
		cmocka_unit_test(parts_of_a_sample),
		cmocka_unit_test(documents),
		cmocka_unit_test(what_is_wrong_is_told),
		cmocka_unit_test(megatron_names),
		cmocka_unit_test(widths),
		cmocka_unit_test(documents_of_an_index),
		cmocka_unit_test(an_index_that_contradicts_itself),
		cmocka_unit_test(weights),
		cmocka_unit_test(masks),
		cmocka_unit_test(factors),
		cmocka_unit_test(all_for_validation),
	};
	return cmocka_run_group_tests(tests, data_files_set_up, data_files_tear_down);
}
