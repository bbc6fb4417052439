/* SPDX-License-Identifier: Apache-2.0 */
/* The ways in which the CUDA device computes attention, each compared with the CPU device in double precision: our kernels of both kinds,
 * with the gradient in parts and whole, in all orders of threads and blocks; cuDNN's plans, emulated on the emulated device
 * (tests/gpu/emulate/dnn.cc); and the choice among them. */
#include <dlfcn.h>
#include <glob.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define HSPMD_ORDER_FUNCTION static
#include "runtime/device/cuda/attention_order.h"
#include "tests/gpu/gpu.h"
#include "tests/gpu/mirror.h"
#include "tests/gpu/wide_case.h"
#include "tests/unit/draw.h"
#include "tests/unit/only.h"
#include "tests/unit/op_case.h"

static void reopen_with(const char *library, const char *tune, const char *workspace)
{
	gpu->ops->close(gpu);
	if (gpu_is_emulated())
		setenv("HSPMD_CUDNN", library, 1);
	setenv("HSPMD_CUDA_TUNE", tune, 1);
	setenv("HSPMD_CUDNN_WORKSPACE", workspace, 1);
	gpu = gpu_open();
}

static void restore_gpu(void)
{
	unsetenv("HSPMD_CUDA_WGMMA");
	unsetenv("HSPMD_CUDNN");
	unsetenv("HSPMD_CUDNN_WORKSPACE");
	unsetenv("HSPMD_CUDA_TUNE");
	gpu->ops->close(gpu);
	gpu = gpu_open();
}

static void check_named_attention(const struct op_case *cases, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (strstr(cases[i].name, "attention"))
			mirror_check_case(&cases[i], HSPMD_BF16, BF16_BOUND);
}

/* Checks cases of attention; runs[] gets how often the emulated cuDNN ran each of its plans. */
static void check_attention(const struct op_case *cases, size_t cases_count, long runs[2])
{
	void *module = gpu_is_emulated() ? dlopen(getenv("HSPMD_CUDA_MODULE"), RTLD_NOW | RTLD_NOLOAD) : NULL;
	long *count = module ? dlsym(module, "emulate_dnn_runs") : NULL, before[2] = { 0 };
	assert_true(count || !gpu_is_emulated());
	for (int i = 0; count && i < 2; i++)
		before[i] = count[i];
	check_named_attention(cases, cases_count);
	for (int i = 0; i < 2; i++)
		runs[i] = count ? count[i] - before[i] : 0;
	if (module)
		dlclose(module);
}

/* Returns true if cuDNN's library can be loaded. */
static bool has_dnn(void)
{
	const char *named = getenv("HSPMD_CUDNN");
	void *library = dlopen(named ? named : "libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);
	if (library)
		dlclose(library);
	return library != NULL;
}

/* On a GPU also sequences that span several tiles of its kernels. cuDNN's plan is used wherever it has one and is trusted. */
static void attention_by_dnn(void **state)
{
	(void)state;
	long all[2], parts[2], none[2], odd[2], old[2];
	if (!gpu_is_emulated() && !has_dnn())
		skip();
	reopen_with("played", "0", "268435456");
	check_attention(tiled_cases, tiled_case_count, all);
	check_attention(wide_cases, wide_case_count, odd);
	for (size_t i = 0; i < long_case_count && (!gpu_is_emulated() || getenv("HSPMD_LONG")); i++)
		mirror_check_case(&long_cases[i], HSPMD_BF16, BF16_BOUND);
	/* The gradients of some cases are computed in parts (samples, kv heads), of others not by cuDNN at all. */
	reopen_with("played", "0", "90000");
	check_attention(tiled_cases, tiled_case_count, parts);
	reopen_with("refusing", "0", "268435456");
	check_attention(tiled_cases, tiled_case_count, none);
	setenv("HSPMD_EMULATE_DNN_VERSION", "91500", 1);
	reopen_with("played", "0", "268435456");
	check_attention(tiled_cases, 1, old);
	unsetenv("HSPMD_EMULATE_DNN_VERSION");
	if (gpu_is_emulated()) {
		assert_true(odd[0] == 0 && odd[1] == 0 && old[0] == 0 && old[1] == 0);
		assert_true(all[0] > 0 && parts[0] > 0 && parts[0] != all[0]);
		assert_true(all[1] == 0 && parts[1] == 0 && none[0] == 0 && none[1] == 0);
	}
	restore_gpu();
}

/* Returns how many lines of the files in the folder have another choice than `word` in their fifth word; *lines: the number of all. */
static int other_choices(const char *folder, unsigned word, int *lines)
{
	char pattern[4096], line[512], have[32], want[32];
	glob_t found;
	int others = 0;
	*lines = 0;
	snprintf(pattern, sizeof pattern, "%s/cudnn-*", folder);
	snprintf(want, sizeof want, "%x", word);
	if (glob(pattern, 0, NULL, &found))
		return 0;
	for (size_t i = 0; i < found.gl_pathc; i++) {
		FILE *f = fopen(found.gl_pathv[i], "r");
		while (f && fgets(line, sizeof line, f))
			if (sscanf(line, "%*s %*s %*s %*s %31s", have) == 1) {
				++*lines;
				others += strcmp(have, want) != 0;
			}
		if (f)
			fclose(f);
	}
	globfree(&found);
	return others;
}

/* Replaces every choice in the files with another. */
static void rewrite_choices(const char *folder, int word)
{
	char command[8192];
	snprintf(command, sizeof command, "sed -i -E 's/^(([^ ]+ ){4})[^ ]+/\\1%x/' '%s'/cudnn-*", (unsigned)word, folder);
	assert_int_equal(system(command), 0);
}

/* Choices are kept in a new folder, which end_choices removes. */
static char *begin_choices(char *folder)
{
	const char *cache = getenv("HSPMD_CUDA_CACHE");
	char *old = cache ? strdup(cache) : NULL;
	assert_non_null(mkdtemp(folder));
	setenv("HSPMD_CUDA_CACHE", folder, 1);
	return old;
}

static void end_choices(const char *folder, char *old)
{
	char command[64];
	restore_gpu();
	if (old)
		setenv("HSPMD_CUDA_CACHE", old, 1);
	free(old);
	snprintf(command, sizeof command, "rm -r %s", folder);
	assert_int_equal(system(command), 0);
}

/* A measured choice is used from then on; a plan that does not run is not chosen. */
static void attention_is_chosen(void **state)
{
	(void)state;
	char folder[] = "/tmp/hspmd-choices-XXXXXX", *old;
	long runs[2];
	int lines;
	if (!gpu_is_emulated())
		skip();
	old = begin_choices(folder);
	setenv("HSPMD_CUDA_WGMMA", "0", 1); /* so that one of ours is left */
	reopen_with("failing", "1", "268435456");
	check_attention(tiled_cases, tiled_case_count, runs);
	assert_true(runs[0] == 0 && runs[1] == 0);
	assert_int_equal(other_choices(folder, 1, &lines), 0);
	assert_true(lines >= 2 * (int)tiled_case_count);
	reopen_with("played", "1", "268435456");
	check_attention(tiled_cases, tiled_case_count, runs);
	assert_true(runs[0] == 0 && runs[1] == 0); /* the file says: our kernels */
	rewrite_choices(folder, 3);
	reopen_with("played", "1", "268435456");
	check_attention(tiled_cases, tiled_case_count, runs);
	assert_true(runs[0] == 0 && runs[1] > 0); /* the file says: the second plan */
	end_choices(folder, old);
}

/* On the emulated device threads and blocks run in one of three orders, drawn (HSPMD_LONG: in each), in which a missing wait changes the
 * result. */
static void our_kernels(void **state)
{
	(void)state;
	static const char *const orders[] = { "0", "1", "7" };
	const unsigned count = gpu_is_emulated() ? draw_count(1, 3) : 1, first = gpu_is_emulated() ? draw_first(count, 3) : 0;
	for (int way = 0; way < 2; way++) {
		setenv("HSPMD_CUDA_WGMMA", way ? "0" : "1", 1);
		reopen_with("", "0", "0");
		gpu_wgmma_runs();
		for (unsigned o = first; o < first + count; o++) {
			setenv("HSPMD_EMULATE_ORDER", orders[o], 1);
			check_named_attention(wide_cases, wide_case_count);
			check_named_attention(tiled_cases, tiled_case_count);
		}
		setenv("HSPMD_EMULATE_ORDER", "0", 1);
		assert_true(!gpu_is_emulated() || (gpu_wgmma_runs() > 0) == !way);
	}
	restore_gpu();
}

/* In whatever order blocks run (the first, and one or all of three others), and whether or not the gradient is computed in parts. */
static void always_the_same_bits(void **state)
{
	(void)state;
	static const char *const orders[] = { "0", "1", "7", "12" };
	if (!gpu_is_emulated())
		skip();
	const unsigned others = draw_count(1, 3), second = draw_first(others, 3);
	for (size_t c = 0; c < tiled_case_count; c++) {
		uint64_t first = 0;
		for (unsigned i = 0; i < 2 * (1 + others); i++) {
			struct mirror_sum sum = { .bound = BF16_BOUND };
			const char *order = orders[i % (1 + others) ? second + i % (1 + others) : 0];
			setenv("HSPMD_EMULATE_ORDER", order, 1);
			if (i / (1 + others))
				setenv("HSPMD_CUDA_ATTENTION_WORKSPACE", "70000", 1);
			reopen_with("", "0", "0");
			mirror_measure_case(&tiled_cases[c], HSPMD_BF16, mirror_add_result, &sum);
			if (i == 0)
				first = sum.bits;
			if (sum.bits != first)
				fail_msg("%s has other bits in order %s", tiled_cases[c].name, order);
		}
		unsetenv("HSPMD_CUDA_ATTENTION_WORKSPACE");
	}
	setenv("HSPMD_EMULATE_ORDER", "0", 1);
	restore_gpu();
}

/* A launch's blocks are all tiles of all heads, once: heads in sets, one after the other, and of a set the tiles with most to do first. */
static void tiles_with_most_to_do_begin_first(void **state)
{
	(void)state;
	static const struct {
		int tiles, heads, batches, together;
	} cases[] = { { 5, 3, 4, 1 }, { 5, 3, 4, 5 }, { 5, 3, 4, 6 }, { 1, 8, 2, 3 }, { 7, 1, 1, 9 }, { 4, 2, 6, 12 }, { 3, 11, 1, 1024 } };
	for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
		int tiles = cases[c].tiles, heads = cases[c].heads, pairs = heads * cases[c].batches, together = cases[c].together;
		int *seen = calloc((size_t)(tiles * pairs), sizeof *seen), set = 0, rank = 0;
		assert_non_null(seen);
		for (int block = 0; block < tiles * pairs; block++) {
			struct place p = place_of(block, tiles, heads, cases[c].batches, together);
			assert_in_range(p.rank, 0, tiles - 1);
			assert_in_range(p.head, 0, heads - 1);
			assert_in_range(p.batch, 0, cases[c].batches - 1);
			int pair = p.batch * heads + p.head, own = pair / together;
			assert_true(own == set ? p.rank >= rank : own == set + 1 && p.rank == 0);
			assert_int_equal(seen[pair * tiles + p.rank]++, 0);
			set = own;
			rank = p.rank;
		}
		free(seen);
	}
}

/* Of both kinds every block has its turn once, in order; those that lead come first, and from there on both are begun at one pace. */
static void kinds_of_blocks_alternate(void **state)
{
	(void)state;
	static const struct alternation cases[] = { { 0, 1, 0 },  { 0, 0, 7 },       { 3, 10, 40 }, { 10, 10, 4 },
		                                    { 2, 50, 3 }, { 99, 256, 1024 }, { 1, 2, 1 } };
	for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
		struct alternation o = cases[c];
		int ones = 0, others = 0;
		for (int block = 0; block < o.ones + o.others; block++) {
			struct turn t = turn_of(o, block);
			assert_int_equal(t.number, t.other ? others : ones);
			*(t.other ? &others : &ones) += 1;
			assert_true(!t.other || ones >= o.lead);
			/* Of the rest: (ones - lead) / (all ones - lead) and others / all others differ by less than a block. */
			int64_t apart = (int64_t)(ones - o.lead) * o.others - (int64_t)others * (o.ones - o.lead);
			int64_t rest = o.ones - o.lead + o.others;
			assert_true(ones < o.lead || (apart < rest && apart > -rest));
		}
		assert_true(ones == o.ones && others == o.others);
	}
}

/* Heads in several sets, of which the last is not whole, in both passes: alone, in pairs, in threes; and the gradient whole, in parts that
 * have one buffer of dS, and in parts whose queries are computed beside the next one's keys. */
static void heads_in_several_sets(void **state)
{
	(void)state;
	static const char *const cached[] = { "1", "153600", "230400", "33554432" }, *const workspace[] = { "", "270000", "530000" };
	const struct op_case *several = NULL;
	uint64_t first = 0;
	long runs = 0;
	if (!gpu_is_emulated())
		skip();
	for (size_t i = 0; i < wide_case_count; i++)
		several = strcmp(wide_cases[i].name, "attention, heads of 64, window and segments") ? several : &wide_cases[i];
	assert_non_null(several);
	for (size_t w = 0; w < sizeof workspace / sizeof *workspace; w++)
		for (size_t i = 0; i < sizeof cached / sizeof *cached; i++) {
			struct mirror_sum sum = { .bound = BF16_BOUND };
			setenv("HSPMD_CUDA_ATTENTION_CACHED", cached[i], 1);
			setenv("HSPMD_CUDA_ATTENTION_WORKSPACE", workspace[w], 1);
			if (!*workspace[w])
				unsetenv("HSPMD_CUDA_ATTENTION_WORKSPACE");
			reopen_with("", "0", "0");
			gpu_wgmma_runs();
			mirror_measure_case(several, HSPMD_BF16, mirror_add_result, &sum);
			runs = gpu_wgmma_runs();
			first = w || i ? first : sum.bits;
			assert_true(runs > 0 && sum.bits == first);
		}
	unsetenv("HSPMD_CUDA_ATTENTION_CACHED");
	unsetenv("HSPMD_CUDA_ATTENTION_WORKSPACE");
	restore_gpu();
}

/* Pairs of tiles of 128 queries and keys in which some query sees some key by causality, and of these those without a common document. */
static void count_tile_pairs(int positions, int *all, int *apart)
{
	int begin = 0, tiles = (positions + 127) / 128;
	bool meet[8][8] = { 0 };
	assert_true(tiles <= 8);
	for (size_t d = 0; d <= op_case_document_count; d++) {
		int end = d < op_case_document_count ? (int)op_case_documents[d] : positions;
		for (int q = begin / 128; q <= (end - 1) / 128; q++)
			for (int k = begin / 128; k <= q; k++)
				meet[q][k] = true;
		begin = end;
	}
	*all = *apart = 0;
	for (int q = 0; q < tiles; q++)
		for (int k = 0; k <= q; k++) {
			++*all;
			*apart += !meet[q][k];
		}
}

static long boxes_copied(void)
{
	long counts[EMULATE_COUNTS];
	gpu_counts(counts);
	return counts[EMULATE_BOXES];
}

/* Tiles that are entirely in other documents are skipped in both passes, which changes no bit: where numbers descend nothing is skipped. */
static void other_documents_are_skipped(void **state)
{
	(void)state;
	/* Of a pair of tiles, a head of 64 and a sample: keys and values; two steps of queries and their gradients; two of keys, and of dS
	 * for each group. A case runs twice. */
	const int boxes_per_pair = 2 + 4 + 2 * 3, heads = 2, samples = 2, runs = 2;
	for (int way = 0; way < (gpu_is_emulated() && !getenv("HSPMD_LONG") ? 2 : 3); way++) {
		struct mirror_sum sum[3];
		long boxes[4];
		int all, apart;
		setenv("HSPMD_CUDA_WGMMA", way ? "0" : "1", 1);
		reopen_with("", "0", "0");
		for (int i = 0; i < 3; i++) {
			sum[i] = (struct mirror_sum){ .bound = way < 2 ? BF16_BOUND : F32_BOUND };
			boxes[i] = boxes_copied();
			mirror_measure_case(&document_cases[i], way < 2 ? HSPMD_BF16 : HSPMD_F32, mirror_add_result, &sum[i]);
			boxes[i + 1] = boxes_copied();
		}
		count_tile_pairs(600, &all, &apart);
		assert_true(apart >= all / 3);
		if (gpu_is_emulated()) {
			assert_true(sum[0].bits == sum[1].bits);
			assert_int_equal(boxes[2] - boxes[1] - (boxes[1] - boxes[0]),
			                 way ? 0 : apart * boxes_per_pair * heads * samples * runs);
		}
	}
	restore_gpu();
}

/* Both kinds of our kernels are measured, and the choice between them counts. */
static void our_kernels_are_chosen(void **state)
{
	(void)state;
	static const struct {
		int word;
		bool wgmma;
	} choices[] = { { 0x100, true }, { 1, false } };
	char folder[] = "/tmp/hspmd-choices-XXXXXX", *old;
	long runs[2];
	if (!gpu_is_emulated())
		skip();
	old = begin_choices(folder);
	reopen_with("failing", "1", "268435456");
	gpu_wgmma_runs();
	check_attention(tiled_cases, tiled_case_count, runs);
	assert_true(gpu_wgmma_runs() > 0); /* measured */
	for (int i = 0; i < 2; i++) {
		rewrite_choices(folder, choices[i].word);
		reopen_with("played", "1", "268435456");
		gpu_wgmma_runs();
		check_attention(tiled_cases, tiled_case_count, runs);
		assert_true(runs[0] == 0 && runs[1] == 0 && (gpu_wgmma_runs() > 0) == choices[i].wgmma);
	}
	end_choices(folder, old);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(our_kernels),
		cmocka_unit_test(always_the_same_bits),
		cmocka_unit_test(tiles_with_most_to_do_begin_first),
		cmocka_unit_test(kinds_of_blocks_alternate),
		cmocka_unit_test(heads_in_several_sets),
		cmocka_unit_test(attention_by_dnn),
		cmocka_unit_test(attention_is_chosen),
		cmocka_unit_test(our_kernels_are_chosen),
		cmocka_unit_test(other_documents_are_skipped),
	};
	only_chosen_tests(tests, sizeof tests / sizeof *tests);
	gpu = gpu_open();
	int status = cmocka_run_group_tests(tests, NULL, NULL);
	gpu->ops->close(gpu);
	return status;
}
