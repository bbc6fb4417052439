/* SPDX-License-Identifier: Apache-2.0 */
/* What one worker of a job with data.lengths takes to open its data: with an index of the documents (runtime/input/length_index.h) and
 * without; and what making the index takes; and what a worker takes at each step of a job with masks to count the tokens that are to be
 * predicted. CPU seconds, on random tokens of 2 bytes in documents of some hundreds.
 *
 *     documents FOLDER [MILLIONS-OF-TOKENS...] */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/alloc.h"
#include "runtime/input/data.h"
#include "tests/bench/processor_time.h"

#define MILLION 1000000
#define LONGEST 8192

/* Documents end with token 0, after 32 to 1055 others. */
static int write_tokens(const char *path, int64_t tokens)
{
	FILE *f = fopen(path, "wb");
	uint64_t seed = 1;
	int64_t left = 0;
	for (int64_t i = 0; f && i < tokens; i++) {
		seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407;
		uint16_t token = left-- > 0 ? (uint16_t)(1 + (seed >> 33) % 60000) : 0;
		if (!token)
			left = 32 + (int64_t)((seed >> 40) & 1023);
		if (fwrite(&token, sizeof token, 1, f) != 1)
			break;
	}
	return f && !fclose(f) ? 0 : -1;
}

static double open_in(const struct hspmd_job *job, const char *index, struct hspmd_error *err)
{
	double start = processor_time();
	struct hspmd_data *d = hspmd_data_open(job, 1 << 16, index, err);
	double seconds = d ? processor_time() - start : -1;
	hspmd_data_close(d);
	return seconds;
}

static int measure(const char *folder, int64_t tokens)
{
	static int64_t lengths[] = { 128, 512, 2048, LONGEST };
	struct hspmd_error err = { "" };
	char *file = hspmd_asprintf("%s/documents.bin", folder), *index = hspmd_asprintf("%s/documents.index", folder);
	struct hspmd_job job = { .file = "documents",
		                 .train = &file,
		                 .train_count = 1,
		                 .data_kind = HSPMD_DATA_UINT16,
		                 .seq_len = LONGEST,
		                 .seed = 3,
		                 .documents = true,
		                 .lengths = lengths,
		                 .length_count = 4,
		                 .global_batch = 64 };
	int status = file && index && !write_tokens(file, tokens) ? 0 : hspmd_fail_errno(&err, "%s", folder);
	double without = status ? 0 : open_in(&job, NULL, &err), start = processor_time(), made = 0, with = 0;
	if (!status && !(status = hspmd_data_make_index(&job, 1 << 16, index, &err))) {
		made = processor_time() - start;
		with = open_in(&job, index, &err);
	}
	if (status || without < 0 || with < 0)
		printf("%" PRId64 " tokens: %s\n", tokens, err.text);
	else
		printf("| %" PRId64 " M | %.3f s | %.3f s | %.4f s |\n", tokens / MILLION, without, made, with);
	fflush(stdout);
	if (file)
		unlink(file);
	if (index)
		unlink(index);
	free(file);
	free(index);
	return status;
}

/* What one worker takes to count the tokens of a step that its mask leaves, of which every worker needs the number. */
static int measure_masks(const char *folder, int64_t tokens)
{
	struct hspmd_error err = { "" };
	char *file = hspmd_asprintf("%s/masked.bin", folder), *mask = hspmd_asprintf("%s/masked.bin.mask", folder);
	struct hspmd_job job = { .file = "documents",
		                 .train = &file,
		                 .train_count = 1,
		                 .data_kind = HSPMD_DATA_UINT16,
		                 .seq_len = 4096,
		                 .mask = true,
		                 .document_end = -1,
		                 .global_batch = 10240 };
	FILE *f = file && mask && !write_tokens(file, tokens) ? fopen(mask, "wb") : NULL;
	for (int64_t i = 0; f && i < tokens; i++)
		putc(i % 7 > 2, f);
	int status = f && !fclose(f) ? 0 : hspmd_fail_errno(&err, "%s", folder);
	double start = processor_time();
	struct hspmd_data *d = status ? NULL : hspmd_data_open(&job, 1 << 16, NULL, &err);
	double opened = processor_time() - start, factor = d ? hspmd_data_loss_factor(d, 0) : 0;
	start = processor_time();
	for (int step = 1; d && step <= 2; step++)
		factor += hspmd_data_loss_factor(d, step);
	if (d)
		printf("masks opened in %.4f s; those of a step of 10,240 samples of 4,096 tokens counted in %.4f s (factor %.6f)\n",
		       opened, (processor_time() - start) / 2, factor / 3);
	else
		printf("masks: %s\n", err.text);
	hspmd_data_close(d);
	if (file)
		unlink(file);
	if (mask)
		unlink(mask);
	free(file);
	free(mask);
	return d ? 0 : -1;
}

int main(int argc, char **argv)
{
	static char *sizes[] = { "10", "100", "1000" };
	int failed = 0, count = argc > 2 ? argc - 2 : 3;
	char **size = argc > 2 ? argv + 2 : sizes;
	if (argc < 2) {
		fprintf(stderr, "usage: documents FOLDER [MILLIONS-OF-TOKENS...]\n");
		return 2;
	}
	printf("| tokens | opened without an index | index made | opened with it |\n| ---: | ---: | ---: | ---: |\n");
	for (int i = 0; i < count; i++)
		failed |= measure(argv[1], atoll(size[i]) * MILLION);
	return failed | measure_masks(argv[1], 50 * MILLION) ? 1 : 0;
}
