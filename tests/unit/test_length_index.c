/* SPDX-License-Identifier: Apache-2.0 */
/* The index of documents by length: with it, data give the same samples as without, and no document is read to open them; an index of
 * other files, or a damaged one, is not used; one that cannot be written leaves nothing behind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/input/data.h"

#define END 255
#define LONGEST 16
#define STEPS 40

static char folder[] = "/tmp/hspmd-lengths-XXXXXX";
static char file[2][64], where[64];
static int64_t lengths[] = { 4, 8, LONGEST };
static double weights[] = { 1, 3 };

/* Documents of many lengths, and one at the border of the files that both have a part of. */
static void write_documents(const char *path, unsigned seed, int count)
{
	FILE *f = fopen(path, "wb");
	assert_non_null(f);
	for (int k = 0; k < count; k++) {
		seed = seed * 1664525 + 1013904223;
		for (unsigned i = 0, n = (seed >> 16) % 21; i < n; i++)
			fputc((int)((unsigned)k + i) % 250, f);
		if (k < count - 1 || path == file[1])
			fputc(END, f);
	}
	assert_int_equal(fclose(f), 0);
}

static int set_up(void **state)
{
	(void)state;
	if (!mkdtemp(folder))
		return -1;
	for (int i = 0; i < 2; i++)
		snprintf(file[i], sizeof file[i], "%s/%d", folder, i);
	snprintf(where, sizeof where, "%s/lengths", folder);
	return 0;
}

static int renew(void **state)
{
	(void)state;
	unlink(where);
	write_documents(file[0], 1, 200);
	write_documents(file[1], 2, 300);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	unlink(where);
	unlink(file[0]);
	unlink(file[1]);
	return rmdir(folder); /* fails if something else was left */
}

static struct hspmd_job job_of(bool weighted)
{
	static char *files[] = { file[0], file[1] };
	return (struct hspmd_job){ .file = "job.json",
		                   .train = files,
		                   .train_count = 2,
		                   .train_weights = weighted ? weights : NULL,
		                   .data_kind = HSPMD_DATA_BYTES,
		                   .seq_len = LONGEST,
		                   .seed = 3,
		                   .documents = true,
		                   .document_end = END,
		                   .lengths = lengths,
		                   .length_count = 3,
		                   .global_batch = 2 };
}

/* What STEPS steps are given. */
struct samples {
	int length[STEPS];
	int32_t tokens[STEPS][2][LONGEST + 1];
};

static void take(const struct hspmd_job *job, const char *index, struct samples *s)
{
	struct hspmd_error err;
	struct hspmd_data *d = hspmd_data_open(job, 256, index, &err);
	memset(s, 0, sizeof *s);
	if (!d)
		fail_msg("%s", err.text);
	for (int i = 0; i < STEPS; i++) {
		s->length[i] = hspmd_data_length_of_step(d, i);
		for (int b = 0; b < 2; b++)
			assert_int_equal(hspmd_data_read(d, 2 * i + b, 0, lengths[s->length[i]] + 1, s->tokens[i][b], &err), 0);
	}
	hspmd_data_close(d);
}

static void make(const struct hspmd_job *job)
{
	struct hspmd_error err;
	if (hspmd_data_make_index(job, 256, where, &err))
		fail_msg("%s", err.text);
}

/* Removes all ends of documents so that the file seems to be what it was. */
static void hide_ends(const char *path)
{
	struct stat st;
	char bytes[1 << 14];
	int fd = open(path, O_RDWR);
	assert_true(fd >= 0 && !fstat(fd, &st) && st.st_size < (off_t)sizeof bytes);
	assert_int_equal(pread(fd, bytes, sizeof bytes, 0), st.st_size);
	for (off_t i = 0; i < st.st_size; i++)
		bytes[i] = (unsigned char)bytes[i] == END ? 0 : bytes[i];
	assert_int_equal(pwrite(fd, bytes, (size_t)st.st_size, 0), st.st_size);
	assert_int_equal(futimens(fd, (const struct timespec[]){ st.st_atim, st.st_mtim }), 0);
	close(fd);
}

static void same_samples_without_reading(void **state)
{
	(void)state;
	static struct samples without, with;
	for (int weighted = 0; weighted < 2; weighted++) {
		struct hspmd_job job = job_of(weighted);
		renew(NULL);
		take(&job, NULL, &without);
		make(&job);
		take(&job, where, &with);
		assert_memory_equal(&without, &with, sizeof with);
		hide_ends(file[0]);
		hide_ends(file[1]);
		take(&job, where, &with);
		assert_memory_equal(without.length, with.length, sizeof with.length);
		for (int i = 0; i < STEPS; i++)
			for (int k = 0; k < lengths[with.length[i]]; k++)
				assert_true(with.tokens[i][0][k] == (without.tokens[i][0][k] == END ? 0 : without.tokens[i][0][k]));
		make(&job); /* it is there: nothing is read, so nothing changes */
		take(&job, where, &with);
		assert_memory_equal(without.length, with.length, sizeof with.length);
	}
}

static void chosen_lengths_are_kept(void **state)
{
	(void)state;
	struct hspmd_error err;
	int64_t chosen[2][HSPMD_DATA_LENGTHS_MOST];
	struct hspmd_job job = job_of(false);
	job.lengths_auto = true;
	job.length_count = 0;
	job.seq_len = 128;
	int count = hspmd_data_choose_lengths(&job, 256, where, chosen[0], &err);
	assert_true(count > 1);
	job.lengths = chosen[0];
	job.length_count = count;
	make(&job);
	hide_ends(file[0]);
	hide_ends(file[1]);
	job.lengths_auto = false; /* as workers are told */
	struct hspmd_data *d = hspmd_data_open(&job, 256, where, &err);
	int short_steps = 0;
	assert_non_null(d);
	for (int i = 0; i < STEPS; i++)
		short_steps += hspmd_data_length_of_step(d, i) < count - 1;
	assert_true(short_steps > 0);
	hspmd_data_close(d);
	job.lengths_auto = true;
	job.length_count = 0;
	assert_int_equal(hspmd_data_choose_lengths(&job, 256, where, chosen[1], &err), count);
	assert_memory_equal(chosen[0], chosen[1], (size_t)count * sizeof **chosen);
	job.global_batch = 3; /* another job: the documents are read, and there are none */
	assert_int_equal(hspmd_data_choose_lengths(&job, 256, where, chosen[1], &err), 1);
}

static void flip(int64_t at)
{
	unsigned char byte;
	int fd = open(where, O_RDWR);
	assert_true(fd >= 0 && pread(fd, &byte, 1, at) == 1);
	byte ^= 0x40;
	assert_int_equal(pwrite(fd, &byte, 1, at), 1);
	close(fd);
}

static void another_index_is_not_used(void **state)
{
	(void)state;
	static struct samples without, with;
	struct hspmd_job job = job_of(false), other = job_of(false);
	take(&job, where, &with); /* there is none */
	take(&job, NULL, &without);
	assert_memory_equal(&without, &with, sizeof with);
	other.global_batch = 3;
	make(&other);
	take(&job, where, &with);
	assert_memory_equal(&without, &with, sizeof with);
	make(&job); /* replaces it */
	write_documents(file[0], 7, 200);
	take(&job, NULL, &without);
	take(&job, where, &with);
	assert_memory_equal(&without, &with, sizeof with);
	make(&job);
	struct stat st;
	for (int at = 0; at < 400; at += 7) { /* damaged at its head */
		flip(at);
		take(&job, where, &with);
		assert_memory_equal(&without, &with, sizeof with);
		flip(at);
	}
	assert_int_equal(stat(where, &st), 0);
	assert_int_equal(truncate(where, st.st_size - 8), 0);
	take(&job, where, &with);
	assert_memory_equal(&without, &with, sizeof with);
}

static void places_outside_are_told(void **state)
{
	(void)state;
	struct hspmd_error err;
	struct hspmd_job job = job_of(false);
	struct stat st;
	make(&job);
	assert_int_equal(stat(where, &st), 0);
	for (int64_t at = 4096 + 6; at < st.st_size; at += 16) /* starts of all runs: far behind the data */
		flip(at);
	struct hspmd_data *d = hspmd_data_open(&job, 256, where, &err);
	int32_t tokens[5];
	assert_non_null(d);
	assert_int_equal(hspmd_data_read(d, 0, 0, 5, tokens, &err), -1);
	assert_non_null(strstr(err.text, "index of lengths is damaged"));
	hspmd_data_close(d);
}

static int make_within(const struct hspmd_job *job, rlim_t limit, struct hspmd_error *err)
{
	struct rlimit was;
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &(struct rlimit){ limit, was.rlim_max }), 0);
	int status = hspmd_data_make_index(job, 256, where, err);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
	return status;
}

static void what_cannot_be_written_leaves_nothing(void **state)
{
	(void)state;
	struct hspmd_error err;
	struct hspmd_job job = job_of(false);
	struct stat st;
	char made[80];
	assert_int_equal(hspmd_data_make_index(&job, 256, "/nonexistent/lengths", &err), -1);
	assert_non_null(strstr(err.text, "/nonexistent/lengths"));
	make(&job);
	assert_int_equal(stat(where, &st), 0);
	unlink(where);
	signal(SIGXFSZ, SIG_IGN);
	for (int whole = 0; whole < 2; whole++) { /* no room for the runs; no room for the whole file */
		assert_int_equal(make_within(&job, whole ? (rlim_t)st.st_size - 1 : 3000, &err), -1);
		assert_non_null(strstr(err.text, whole ? "lengths.new: File too large" : "lengths.runs: File too large"));
		snprintf(made, sizeof made, "%s.new", where);
		assert_int_equal(access(made, F_OK), -1);
		snprintf(made, sizeof made, "%s.runs", where);
		assert_int_equal(access(made, F_OK), -1);
		assert_int_equal(access(where, F_OK), -1);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(same_samples_without_reading, renew),
		cmocka_unit_test_setup(chosen_lengths_are_kept, renew),
		cmocka_unit_test_setup(another_index_is_not_used, renew),
		cmocka_unit_test_setup(places_outside_are_told, renew),
		cmocka_unit_test_setup(what_cannot_be_written_leaves_nothing, renew),
	};
	return cmocka_run_group_tests(tests, set_up, tear_down);
}
