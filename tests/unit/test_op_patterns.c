/* SPDX-License-Identifier: Apache-2.0 */
/* The choices of deduction among several correct ones: the divisions of a model that plans rely on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/op/op.h"
#include "runtime/sharding/spmd.h"

#define SHAPE(...)                                                                                                                         \
	{                                                                                                                                  \
		.rank = (int)(sizeof((int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t)), .dim = { __VA_ARGS__ }                                \
	}
#define NONE                                                                                                                               \
	{                                                                                                                                  \
		.rank = -1                                                                                                                 \
	}
#define X SHAPE(2, 8, 12) /* residual stream */

struct pattern {
	const char *what;
	enum hspmd_opcode opcode;
	struct hspmd_op_attr attr;
	bool sequence_parallel;
	int inputs, outputs;
	struct hspmd_shape in[7], out[5];
	const char *given[7]; /* the inputs' annotations */
	const char *expected; /* annotation that each input must get ("." unchanged), then " -> " and the outputs' */
};

static const struct pattern patterns[] = {
	{ "column-parallel, bias and all",
	  HSPMD_OP_LINEAR,
	  { .transposed = true },
	  false,
	  3,
	  1,
	  { X, SHAPE(12, 3, 12), SHAPE(3, 12) },
	  { SHAPE(2, 8, 3, 12) },
	  { "{[0,1]: -1:2}", "{[0,1]: 2:2/4(2:1)}", "{[0,1]: 1:2/4(2:1)}" },
	  ". . . -> {[0,1]: 3:2/4(2:1)}" },
	{ "row-parallel",
	  HSPMD_OP_LINEAR,
	  { 0 },
	  false,
	  2,
	  1,
	  { X, SHAPE(10, 12) },
	  { SHAPE(2, 8, 10) },
	  { "{[0,1]: 2:2/4(2:1)}", "{[0,1]: 1:2/4(2:1)}" },
	  ". . -> {[0,1]: -2:2}" },
	{ "row-parallel weight, duplicate input: the input is cut",
	  HSPMD_OP_LINEAR,
	  { 0 },
	  false,
	  2,
	  1,
	  { X, SHAPE(10, 12) },
	  { SHAPE(2, 8, 10) },
	  { "{[0,1]: -1:2}", "{[0,1]: 1:2}" },
	  "{[0,1]: 2:2} . -> {[0,1]: -2:2}" },
	{ "sequence parallel: gathered for a column-parallel weight",
	  HSPMD_OP_LINEAR,
	  { 0 },
	  true,
	  2,
	  1,
	  { X, SHAPE(10, 12) },
	  { SHAPE(2, 8, 10) },
	  { "{[0,1]: 1:2}", "{[0,1]: 0:2}" },
	  "{[0,1]: -1:2} . -> {[0,1]: 2:2}" },
	{ "context and tensor parallel",
	  HSPMD_OP_LINEAR,
	  { 0 },
	  false,
	  2,
	  1,
	  { X, SHAPE(10, 12) },
	  { SHAPE(2, 8, 10) },
	  { "{[0-3]: 1:2 -1:2}", "{[0-3]: -1:2 0:2}" },
	  ". . -> {[0-3]: 1:2 2:2}" },
	{ "batch split",
	  HSPMD_OP_LINEAR,
	  { 0 },
	  false,
	  2,
	  1,
	  { X, SHAPE(10, 12) },
	  { SHAPE(2, 8, 10) },
	  { "{[0,1]: 0:2}", "{[0,1]: -1:2}" },
	  ". . -> {[0,1]: 0:2}" },
	{ "its gradient of w is partial",
	  HSPMD_OP_LINEAR_GRAD_W,
	  { 0 },
	  false,
	  2,
	  2,
	  { SHAPE(2, 8, 10), X },
	  { SHAPE(10, 12), SHAPE(10) },
	  { "{[0,1]: 0:2}", "{[0,1]: 0:2}" },
	  ". . -> {[0,1]: -2:2} {[0,1]: -2:2}" },
	{ "column-parallel gradients",
	  HSPMD_OP_LINEAR_GRAD_W,
	  { 0 },
	  false,
	  2,
	  2,
	  { SHAPE(2, 8, 10), X },
	  { SHAPE(10, 12), SHAPE(10) },
	  { "{[0,1]: 2:2}", "{[0,1]: -1:2}" },
	  ". . -> {[0,1]: 0:2} {[0,1]: 0:2}" },
	{ "column-parallel, sequence parallel: x is gathered again",
	  HSPMD_OP_LINEAR_GRAD_W,
	  { 0 },
	  true,
	  2,
	  2,
	  { SHAPE(2, 8, 10), X },
	  { SHAPE(10, 12), SHAPE(10) },
	  { "{[0,1]: 2:2}", "{[0,1]: 1:2}" },
	  ". {[0,1]: -1:2} -> {[0,1]: 0:2} {[0,1]: 0:2}" },
	{ "row-parallel, sequence parallel: dy is gathered",
	  HSPMD_OP_LINEAR_GRAD_W,
	  { 0 },
	  true,
	  2,
	  2,
	  { SHAPE(2, 8, 10), X },
	  { SHAPE(10, 12), SHAPE(10) },
	  { "{[0,1]: 1:2}", "{[0,1]: 2:2}" },
	  "{[0,1]: -1:2} . -> {[0,1]: 1:2} {[0,1]: -1:2}" },
	{ "column-parallel: dx is partial",
	  HSPMD_OP_LINEAR_GRAD_X,
	  { 0 },
	  false,
	  2,
	  1,
	  { SHAPE(2, 8, 10), SHAPE(10, 12) },
	  { X },
	  { "{[0,1]: 2:2}", "{[0,1]: 0:2}" },
	  ". . -> {[0,1]: -2:2}" },
	{ "partial into the residual stream: as the other input",
	  HSPMD_OP_ADD,
	  { 0 },
	  false,
	  2,
	  1,
	  { X, X },
	  { X },
	  { "{[0,1]: -1:2}", "{[0,1]: -2:2}" },
	  ". {[0,1]: -1:2} -> {[0,1]: -1:2}" },
	{ "sequence parallel: reduce-scatter",
	  HSPMD_OP_ADD,
	  { 0 },
	  true,
	  2,
	  1,
	  { X, X },
	  { X },
	  { "{[0,1]: -2:2}", "{[0,1]: 1:2}" },
	  "{[0,1]: 1:2} . -> {[0,1]: 1:2}" },
	{ "two partial addends stay so",
	  HSPMD_OP_ADD,
	  { 0 },
	  false,
	  2,
	  1,
	  { X, X },
	  { X },
	  { "{[0,1]: -2:2}", "{[0,1]: -2:2}" },
	  ". . -> {[0,1]: -2:2}" },
	{ "norm of a partial value: summed",
	  HSPMD_OP_RMSNORM,
	  { 0 },
	  false,
	  2,
	  2,
	  { X, SHAPE(12) },
	  { X, SHAPE(2, 8, 1) },
	  { "{[0,1]: -2:2}", "{[0,1]: -1:2}" },
	  "{[0,1]: -1:2} . -> {[0,1]: -1:2} {[0,1]: -1:2}" },
	{ "norm of a partial value, sequence parallel: summed and scattered",
	  HSPMD_OP_RMSNORM,
	  { 0 },
	  true,
	  2,
	  2,
	  { X, SHAPE(12) },
	  { X, SHAPE(2, 8, 1) },
	  { "{[0-3]: 1:2 -2:2}", "{[0-3]: -1:4}" },
	  "{[0-3]: 1:2 1:2} . -> {[0-3]: 1:2 1:2} {[0-3]: 1:2 1:2}" },
	{ "norm's gradient is split like the forward",
	  HSPMD_OP_RMSNORM_GRAD,
	  { 0 },
	  true,
	  4,
	  2,
	  { X, X, SHAPE(12), SHAPE(2, 8, 1) },
	  { X, SHAPE(12) },
	  { "{[0,1]: -2:2}", "{[0,1]: -2:2}", "{[0,1]: -1:2}", "{[0,1]: 1:2}" },
	  "{[0,1]: 1:2} {[0,1]: 1:2} . . -> {[0,1]: 1:2} {[0,1]: -2:2}" },
	{ "vocabulary-parallel embedding",
	  HSPMD_OP_EMBED,
	  { 0 },
	  false,
	  2,
	  1,
	  { SHAPE(2, 8), SHAPE(31, 12) },
	  { X },
	  { "{[0,1]: -1:2}", "{[0,1]: 0:2}" },
	  ". . -> {[0,1]: -2:2}" },
	{ "its gradient",
	  HSPMD_OP_EMBED_GRAD,
	  { 0 },
	  true,
	  3,
	  1,
	  { SHAPE(2, 8), X, SHAPE(31, 12) },
	  { SHAPE(31, 12) },
	  { "{[0-3]: 1:2 -1:2}", "{[0-3]: 1:2 1:2}", "{[0-3]: -1:2 0:2}" },
	  ". {[0-3]: 1:2 -1:2} . -> {[0-3]: -2:2 0:2}" },
	{ "vocabulary-parallel statistics",
	  HSPMD_OP_VOCAB_STATS,
	  { .parts = 2 },
	  false,
	  2,
	  1,
	  { SHAPE(2, 8, 31), SHAPE(2, 8) },
	  { SHAPE(2, 2, 8, 3) },
	  { "{[0,1]: 2:2(3:1)}", "{[0,1]: -1:2}" },
	  ". . -> {[0,1]: 0:2}" },
	{ "statistics are gathered for the loss",
	  HSPMD_OP_LOSS,
	  { .parts = 2 },
	  false,
	  2,
	  1,
	  { SHAPE(2, 2, 8, 3), SHAPE(2, 8) },
	  { SHAPE(1) },
	  { "{[0-3]: 2:2 0:2}", "{[0-3]: 1:2 -1:2}" },
	  "{[0-3]: 2:2 -1:2} . -> {[0-3]: -2:2 -1:2}" },
	{ "and logits stay split",
	  HSPMD_OP_LOSS_GRAD,
	  { .parts = 2 },
	  false,
	  3,
	  1,
	  { SHAPE(2, 8, 31), SHAPE(2, 8), SHAPE(2, 2, 8, 3) },
	  { SHAPE(2, 8, 31) },
	  { "{[0,1]: 2:2(3:1)}", "{[0,1]: -1:2}", "{[0,1]: -1:2}" },
	  ". . . -> {[0,1]: 2:2(3:1)}" },
	{ "attention by the heads of the values, if only those are divided (heads that have a norm together)",
	  HSPMD_OP_ATTENTION,
	  { .head_dim = 4 },
	  false,
	  3,
	  2,
	  { SHAPE(2, 8, 24), SHAPE(2, 8, 12), SHAPE(2, 8, 12) },
	  { SHAPE(2, 8, 24), SHAPE(2, 6, 8) },
	  { "{[0,1]: -1:2}", "{[0,1]: -1:2}", "{[0,1]: 2:2/4(2:1)}" },
	  "{[0,1]: 2:2/8(2:1)} {[0,1]: 2:2/4(2:1)} . -> {[0,1]: 2:2/8(2:1)} {[0,1]: 1:2/2(2:1)}" },
	{ "attention by heads, 3 kv heads of 2 query heads",
	  HSPMD_OP_ATTENTION,
	  { .head_dim = 4 },
	  false,
	  3,
	  2,
	  { SHAPE(2, 8, 24), SHAPE(2, 8, 12), SHAPE(2, 8, 12) },
	  { SHAPE(2, 8, 24), SHAPE(2, 6, 8) },
	  { "{[0,1]: 2:2/8(2:1)}", "{[0,1]: 2:2/4(2:1)}", "{[0,1]: 2:2/4(2:1)}" },
	  ". . . -> {[0,1]: 2:2/8(2:1)} {[0,1]: 1:2/2(2:1)}" },
	{ "attention by sequence: keys and values are gathered",
	  HSPMD_OP_ATTENTION,
	  { .head_dim = 4 },
	  false,
	  3,
	  2,
	  { SHAPE(2, 8, 24), SHAPE(2, 8, 12), SHAPE(2, 8, 12) },
	  { SHAPE(2, 8, 24), SHAPE(2, 6, 8) },
	  { "{[0,1]: 1:2(5:3)}", "{[0,1]: 1:2(5:3)}", "{[0,1]: 1:2(5:3)}" },
	  ". {[0,1]: -1:2} {[0,1]: -1:2} -> {[0,1]: 1:2(5:3)} {[0,1]: 2:2(5:3)}" },
	{ "attention of packed heads by sequence: the work is split",
	  HSPMD_OP_ATTENTION,
	  { .head_dim = 4 },
	  false,
	  1,
	  2,
	  { SHAPE(2, 8, 3, 12) },
	  { X, SHAPE(2, 3, 8) },
	  { "{[0,1]: 1:2}" },
	  "{[0,1]: -1:2} -> {[0,1]: 1:2} {[0,1]: 2:2}" },
	{ "a split within heads cannot stay",
	  HSPMD_OP_ROPE,
	  { .head_dim = 4 },
	  false,
	  1,
	  1,
	  { X },
	  { X },
	  { "{[0,1]: 2:2/2}" },
	  "{[0,1]: -1:2} -> {[0,1]: -1:2}" },
	{ "a split at heads by chance can",
	  HSPMD_OP_ROPE,
	  { .head_dim = 4 },
	  false,
	  1,
	  1,
	  { X },
	  { X },
	  { "{[0-2]: 2:3}" },
	  ". -> {[0-2]: 2:3/4}" },
	{ "gradients of keys are partial by sequence",
	  HSPMD_OP_ATTENTION_GRAD,
	  { .head_dim = 4 },
	  false,
	  6,
	  3,
	  { X, X, X, X, X, SHAPE(2, 3, 8) },
	  { X, X, X },
	  { "{[0,1]: 1:2}", "{[0,1]: 1:2}", "{[0,1]: -1:2}", "{[0,1]: -1:2}", "{[0,1]: 1:2}", "{[0,1]: 2:2}" },
	  ". . . . . . -> {[0,1]: 1:2} {[0,1]: -2:2} {[0,1]: -2:2}" },
	{ "gradients of joined heads stay partial by sequence, and a rest that all heads share is a sum over them",
	  HSPMD_OP_JOIN_HEADS_GRAD,
	  { .head_dim = 4, .part = 3, .whole_kv = true },
	  false,
	  1,
	  2,
	  { X },
	  { SHAPE(2, 8, 9), SHAPE(2, 8, 1) },
	  { "{[0-3]: -2:2 2:2/4}" },
	  ". -> {[0-3]: -2:2 2:2/3} {[0-3]: -2:2 -2:2}" },
	{ "heads joined of partial parts are partial",
	  HSPMD_OP_JOIN_HEADS,
	  { .head_dim = 4, .part = 3 },
	  false,
	  2,
	  1,
	  { SHAPE(2, 8, 9), SHAPE(2, 8, 3) },
	  { X },
	  { "{[0,1]: -2:2}", "{[0,1]: -2:2}" },
	  ". . -> {[0,1]: -2:2}" },
	{ "heads joined of a partial part and another: the former is summed",
	  HSPMD_OP_JOIN_HEADS,
	  { .head_dim = 4, .part = 3 },
	  false,
	  2,
	  1,
	  { SHAPE(2, 8, 9), SHAPE(2, 8, 3) },
	  { X },
	  { "{[0,1]: -2:2}", "{[0,1]: -1:2}" },
	  "{[0,1]: -1:2} . -> {[0,1]: -1:2}" },
	{ "the first elements of partial heads are partial",
	  HSPMD_OP_TAKE_HEADS,
	  { .head_dim = 4, .part = 3 },
	  false,
	  1,
	  1,
	  { X },
	  { SHAPE(2, 8, 9) },
	  { "{[0,1]: -2:2}" },
	  ". -> {[0,1]: -2:2}" },
	{ "expert parallel",
	  HSPMD_OP_EXPERTS,
	  { .experts = 4 },
	  false,
	  6,
	  1,
	  { X, SHAPE(2, 8, 2), SHAPE(2, 8, 2), SHAPE(4, 5, 12), SHAPE(4, 5, 12), SHAPE(4, 12, 5) },
	  { X },
	  { "{[0,1]: 1:2}", "{[0,1]: -1:2}", "{[0,1]: -1:2}", "{[0,1]: 0:2(3:1)}", "{[0,1]: 0:2(3:1)}", "{[0,1]: 0:2(3:1)}" },
	  "{[0,1]: -1:2} rows of {[0,1]: 0:2(3:1)} of 4/2 . . . . . -> {[0,1]: -2:2} rows of {[0,1]: 0:2(3:1)} of 4/2" },
	{ "experts whose input is whole",
	  HSPMD_OP_EXPERTS,
	  { .experts = 4 },
	  false,
	  6,
	  1,
	  { X, SHAPE(2, 8, 2), SHAPE(2, 8, 2), SHAPE(4, 5, 12), SHAPE(4, 5, 12), SHAPE(4, 12, 5) },
	  { X },
	  { "{[0,1]: -1:2}", "{[0,1]: -1:2}", "{[0,1]: -1:2}", "{[0,1]: 0:2}", "{[0,1]: 0:2}", "{[0,1]: 0:2}" },
	  ". . . . . . -> {[0,1]: -2:2} rows of {[0,1]: 0:2} of 4/2" },
	{ "experts in groups that divide the sequence",
	  HSPMD_OP_EXPERTS,
	  { .experts = 4 },
	  false,
	  6,
	  1,
	  { X, SHAPE(2, 8, 2), SHAPE(2, 8, 2), SHAPE(4, 5, 12), SHAPE(4, 5, 12), SHAPE(4, 12, 5) },
	  { X },
	  { "{[0-3]: 1:2 1:2}", "{[0-3]: 1:2 -1:2}", "{[0-3]: 1:2 -1:2}", "{[0-3]: -1:2 0:2}", "{[0-3]: -1:2 0:2}", "{[0-3]: -1:2 0:2}" },
	  "{[0-3]: 1:2 -1:2} rows of {[0-3]: -1:2 0:2} of 4/2 . . . . . -> {[0-3]: 1:2 -2:2} rows of {[0-3]: -1:2 0:2} of 4/2" },
	{ "experts that are divided within",
	  HSPMD_OP_EXPERTS,
	  { .experts = 4 },
	  false,
	  6,
	  1,
	  { X, SHAPE(2, 8, 2), SHAPE(2, 8, 2), SHAPE(4, 6, 12), SHAPE(4, 6, 12), SHAPE(4, 12, 6) },
	  { X },
	  { "{[0,1]: 1:2}", "{[0,1]: -1:2}", "{[0,1]: -1:2}", "{[0,1]: 1:2}", "{[0,1]: 1:2}", "{[0,1]: 2:2}" },
	  "{[0,1]: -1:2} . . . . . -> {[0,1]: -2:2}" },
	{ "unequal subgroups along the batch, each split its own way",
	  HSPMD_OP_LINEAR,
	  { 0 },
	  false,
	  2,
	  1,
	  { SHAPE(5, 8, 12), SHAPE(10, 12) },
	  { SHAPE(5, 8, 10) },
	  { "{[0,1]: -1:2 | [2]} h0(3:2)", "{[0,1]: 0:2 | [2]}" },
	  ". . -> {[0,1]: 2:2 | [2]} h0(3:2)" },
	{ "and their gradient",
	  HSPMD_OP_LINEAR_GRAD_W,
	  { 0 },
	  false,
	  2,
	  2,
	  { SHAPE(5, 8, 10), SHAPE(5, 8, 12) },
	  { SHAPE(10, 12), NONE },
	  { "{[0,1]: 2:2 | [2]} h0(3:2)", "{[0,1]: -1:2 | [2]} h0(3:2)" },
	  ". . -> {[0,1]: 0:2 | [2]} h-2" },
};

static void print_all(FILE *f, const struct hspmd_op_view *v, struct hspmd_annotation *const *want, struct hspmd_annotation *const *out)
{
	for (int i = 0; i < v->input_count; i++) {
		char *text = want[i] ? hspmd_annotation_text(want[i]) : strdup(".");
		fprintf(f, "%s%s", i ? " " : "", text ? text : "?");
		free(text);
	}
	fputs(" ->", f);
	for (int o = 0; o < v->output_count; o++) {
		char *text = out[o] ? hspmd_annotation_text(out[o]) : NULL;
		fprintf(f, "%s%s", text ? " " : "", text ? text : "");
		free(text);
	}
}

static void check(const struct pattern *p)
{
	struct hspmd_op_view v = {
		.attr = &p->attr, .input_count = p->inputs, .output_count = p->outputs, .sequence_parallel = p->sequence_parallel
	};
	struct hspmd_annotation *given[7] = { NULL }, *want[7], *out[5];
	struct hspmd_error err;
	char *text = NULL;
	size_t size;
	for (int i = 0; i < p->inputs; i++) {
		given[i] = hspmd_annotation_parse(p->given[i], &err);
		v.in[i] = p->in[i];
		if (!given[i] || hspmd_annotation_check(given[i], &p->in[i], &err))
			fail_msg("%s: input %d: %s", p->what, i, err.text);
		v.annotation[i] = given[i];
	}
	memcpy(v.out, p->out, sizeof p->out);
	if (hspmd_op_deduce(hspmd_op_types[p->opcode], &v, want, out, &err))
		fail_msg("%s: %s", p->what, err.text);
	FILE *f = open_memstream(&text, &size);
	assert_non_null(f);
	print_all(f, &v, want, out);
	fclose(f);
	if (strcmp(text, p->expected) != 0)
		fail_msg("%s: expected %s, got %s", p->what, p->expected, text);
	free(text);
	for (int i = 0; i < p->inputs; i++) {
		hspmd_annotation_destroy(given[i]);
		hspmd_annotation_destroy(want[i]);
	}
	for (int o = 0; o < p->outputs; o++)
		hspmd_annotation_destroy(out[o]);
}

static void test_patterns(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++)
		check(&patterns[i]);
}

/* Parts of a vocabulary that no division among these devices can hold. */
static void test_impossible_parts(void **state)
{
	(void)state;
	struct hspmd_op_attr attr = { .parts = 2 };
	struct hspmd_op_view v = {
		.attr = &attr, .input_count = 2, .output_count = 1, .in = { SHAPE(2, 8, 31), SHAPE(2, 8) }, .out = { SHAPE(2, 2, 8, 3) }
	};
	struct hspmd_annotation *a = hspmd_annotation_parse("{[0-2]: -1:3}", NULL), *want[2], *out[1];
	struct hspmd_error err = { "" };
	assert_non_null(a);
	v.annotation[0] = v.annotation[1] = a;
	assert_int_equal(hspmd_op_deduce(hspmd_op_types[HSPMD_OP_VOCAB_STATS], &v, want, out, &err), -1);
	assert_string_equal(err.text, "3 devices cannot hold 2 parts of index 'v'");
	assert_null(want[0]);
	assert_null(out[0]);
	hspmd_annotation_destroy(a);
}

/* With sequence parallelism the embedding's sum is scattered once, and every operator that follows finds it split along the sequence. */
static void test_sequence_begins(void **state)
{
	(void)state;
	struct hspmd_error err = { "" };
	struct hspmd_graph *g = hspmd_graph_create(hspmd_op_types);
	assert_non_null(g);
	int tokens = hspmd_graph_input(g, "tokens", HSPMD_I32, (struct hspmd_shape)SHAPE(2, 8), 0);
	int table = hspmd_graph_parameter(g, "table", (struct hspmd_shape)SHAPE(10, 4), 0, 0, 1, true, 0, 1);
	int x = hspmd_graph_append(g, HSPMD_OP_EMBED, NULL, 0, (int[]){ tokens, table }, 2, NULL);
	assert_true(x >= 0);
	for (int parallel = 0; parallel < 2; parallel++) {
		const struct hspmd_spmd_stage stage = { 2, (int[]){ 0, 1 }, .context = 1, .sequence_parallel = parallel };
		struct hspmd_spmd *s = hspmd_spmd_build(g, &stage, (int[]){ 0 }, NULL, &err);
		if (!s)
			fail_msg("%s", err.text);
		char *text = hspmd_annotation_text(s->values[hspmd_spmd_value(s, x, 0)].annotation);
		assert_string_equal(text, parallel ? "{[0,1]: 1:2}" : "{[0,1]: -2:2}");
		free(text);
		hspmd_spmd_destroy(s);
	}
	hspmd_graph_destroy(g);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_patterns), cmocka_unit_test(test_impossible_parts),
		                            cmocka_unit_test(test_sequence_begins) };
	return cmocka_run_group_tests(tests, NULL, NULL);
}
