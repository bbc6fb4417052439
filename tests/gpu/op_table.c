/* SPDX-License-Identifier: Apache-2.0 */
/* Every case of every operator on a GPU as a row of a table: its error, the bound for it, and whether the second run had the same bits.
 *
 * op_table families: the families, a line each: the first operators of the cases.
 *
 * op_table FAMILY fp32|bf16 FIRST: runs the cases of a family from number FIRST (of that family) on. Prints a line of JSON before each
 * case, so that whoever runs the program knows where it ended if a case ends it, and one per result. Exit status 1 if a result is wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/op/op.h"
#include "tests/gpu/gpu.h"
#include "tests/gpu/mirror.h"
#include "tests/gpu/wide_case.h"

static size_t case_count(void)
{
	return op_case_count() + wide_case_count + tiled_case_count + document_case_count + (gpu_is_emulated() ? 0 : long_case_count);
}

static const struct op_case *case_at(size_t i)
{
	if (i < op_case_count())
		return op_case_at(i);
	i -= op_case_count();
	if (i < wide_case_count)
		return &wide_cases[i];
	i -= wide_case_count;
	if (i < tiled_case_count)
		return &tiled_cases[i];
	i -= tiled_case_count;
	return i < document_case_count ? &document_cases[i] : &long_cases[i - document_case_count];
}

static const char *family_of(const struct op_case *c)
{
	struct hspmd_graph *g = op_case_graph(c, HSPMD_F64);
	const char *name = hspmd_opcode_names[g->ops[0].opcode];
	hspmd_graph_destroy(g);
	return name;
}

static int print_families(void)
{
	for (size_t i = 0; i < case_count(); i++) {
		const char *family = family_of(case_at(i));
		size_t earlier = 0;
		while (earlier < i && family_of(case_at(earlier)) != family)
			earlier++;
		if (earlier == i)
			puts(family);
	}
	return 0;
}

static void print_result(const struct mirror_result *r, void *failed)
{
	double bound = r->type == HSPMD_F32 ? F32_BOUND : BF16_BOUND;
	bool good = r->error < bound && r->same_bits;
	/* %.6g may print nan, which is no JSON. */
	printf("{\"case\": \"%s\", \"type\": \"%s\", \"tensor\": \"%s\", \"error\": ", r->name, r->type == HSPMD_F32 ? "fp32" : "bf16",
	       r->tensor);
	if (r->error < 1e300)
		printf("%.6g", r->error);
	else
		printf("null");
	printf(", \"bound\": %g, \"same_bits\": %s, \"good\": %s}\n", bound, r->same_bits ? "true" : "false", good ? "true" : "false");
	*(bool *)failed |= !good;
}

static int run_family(const char *family, enum hspmd_dtype type, long first)
{
	bool failed = false;
	long number = 0;
	gpu = gpu_open();
	for (size_t i = 0; i < case_count(); i++) {
		if (strcmp(family_of(case_at(i)), family) != 0 || number++ < first)
			continue;
		printf("{\"begins\": %ld, \"case\": \"%s\"}\n", number - 1, case_at(i)->name);
		fflush(stdout);
		mirror_measure_case(case_at(i), type, print_result, &failed);
		fflush(stdout);
	}
	gpu->ops->close(gpu);
	return failed;
}

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "families"))
		return print_families();
	if (argc == 4 && (!strcmp(argv[2], "fp32") || !strcmp(argv[2], "bf16")))
		return run_family(argv[1], !strcmp(argv[2], "fp32") ? HSPMD_F32 : HSPMD_BF16, atol(argv[3]));
	fprintf(stderr, "usage: op_table families\n       op_table FAMILY fp32|bf16 FIRST\n");
	return 2;
}
