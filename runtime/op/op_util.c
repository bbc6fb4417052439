/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/op/op_internal.h"

#include <inttypes.h>

#include "runtime/tensor/fp8.h"

int hspmd_op_expect(const struct hspmd_op_view *v, int i, int rank, bool integer, struct hspmd_error *err)
{
	if (v->in[i].rank < 0)
		return hspmd_fail(err, "input %d is missing", i);
	if (rank >= 0 && v->in[i].rank != rank)
		return hspmd_fail(err, "input %d has %d dimensions, expected %d", i, v->in[i].rank, rank);
	if ((v->in_dtype[i] == HSPMD_I32) != integer)
		return hspmd_fail(err, "input %d is %s, expected %s", i, hspmd_dtype_names[v->in_dtype[i]],
		                  integer ? "I32" : "a floating type");
	return 0;
}

int hspmd_op_expect_dim(const struct hspmd_op_view *v, int i, int d, int64_t size, const char *what, struct hspmd_error *err)
{
	if (v->in[i].dim[d] != size)
		return hspmd_fail(err, "dimension %d of input %d is %" PRId64 ", expected %" PRId64 " as %s", d, i, v->in[i].dim[d], size,
		                  what);
	return 0;
}

int hspmd_op_expect_history(const struct hspmd_op_view *v, int i, int64_t rows, struct hspmd_error *err)
{
	if (hspmd_op_expect(v, i, 2, false, err) || hspmd_op_expect_dim(v, i, 0, rows, "the number of tensors", err))
		return -1;
	return hspmd_op_expect_dim(v, i, 1, HSPMD_AMAX_BINS, "the bins of an amax history", err);
}

int hspmd_op_expect_same(const struct hspmd_op_view *v, int i, int j, struct hspmd_error *err)
{
	if (v->in[i].rank != v->in[j].rank)
		return hspmd_fail(err, "inputs %d and %d have %d and %d dimensions, expected the same", i, j, v->in[i].rank, v->in[j].rank);
	for (int d = 0; d < v->in[i].rank; d++)
		if (v->in[i].dim[d] != v->in[j].dim[d])
			return hspmd_fail(err, "inputs %d and %d differ in dimension %d: %" PRId64 " and %" PRId64, i, j, d,
			                  v->in[i].dim[d], v->in[j].dim[d]);
	return 0;
}

void hspmd_rule_repeated(char *pattern, const struct hspmd_shape *shape, const struct hspmd_shape *as)
{
	const char *letters = hspmd_rule_leading(as->rank) + as->rank - shape->rank;
	for (int d = 0; d < shape->rank; d++)
		*pattern++ = shape->dim[d] == as->dim[d + as->rank - shape->rank] ? letters[d] : '!';
	*pattern = '\0';
}

bool hspmd_op_depends_on_parameters(const struct hspmd_graph *g, int tensor)
{
	int producer = tensor < 0 ? -1 : g->tensors[tensor].producer;
	if (tensor >= 0 && g->tensors[tensor].role == HSPMD_TENSOR_PARAMETER)
		return true;
	for (int i = 0; producer >= 0 && i < g->ops[producer].input_count; i++)
		if (hspmd_op_depends_on_parameters(g, g->ops[producer].in[i]))
			return true;
	return false;
}

double hspmd_op_elements(const struct hspmd_shape *s)
{
	return s->rank < 0 ? 0 : (double)hspmd_shape_elements(s);
}

double hspmd_op_bytes(const struct hspmd_op_view *v)
{
	double bytes = 0;
	for (int i = 0; i < v->input_count; i++)
		bytes += hspmd_op_elements(&v->in[i]) * (double)hspmd_dtype_bytes(v->in_dtype[i]);
	for (int o = 0; o < v->output_count; o++)
		bytes += hspmd_op_elements(&v->out[o]) * (double)hspmd_dtype_bytes(v->out_dtype[o]);
	return bytes;
}

void hspmd_op_cost_per_element(const struct hspmd_op_view *v, double per_element, double *flops, double *bytes)
{
	*flops = per_element * hspmd_op_elements(&v->in[0]);
	*bytes = hspmd_op_bytes(v);
}
