/* SPDX-License-Identifier: Apache-2.0 */
/* Attention as a graph of cuDNN's operators. Tensors are [batch, head, row, column]; keys (in the backward pass also values) are described
 * as transposed, which costs nothing. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "runtime/device/cuda/dnn_internal.h"

#define DESCRIPTORS 160
#define OPERATORS 48
#define ENGINES 16

/* Ids of the buffers and scalars that are passed to a plan when it runs. */
enum { Q = 1, K, V, O, LSE, DQ, DK, DV, DOUT, DELTA, SUMS, SCALE, HIDDEN, ONE, SHIFT, WINDOW };
#define FIRST_VIRTUAL 100

struct scalars {
	float scale, hidden, one, window;
	int32_t shift;
};

struct hspmd_dnn_plan {
	const struct hspmd_dnn *dnn;
	struct hspmd_dnn_attention about;
	cudnnBackendDescriptor_t plan;
	size_t workspace, delta, sums; /* bytes of cuDNN's own; before it, of the gradient's row sums, and of dq's sums in any order */
	struct scalars scalars;
};

typedef cudnnBackendDescriptor_t descriptor;

/* A graph under construction. After the first failure, all further calls do nothing. */
struct graph {
	const struct hspmd_dnn *dnn;
	const struct hspmd_dnn_calls *call;
	const struct hspmd_dnn_attention *a;
	cudnnStatus_t status;
	int made, operators;
	int64_t next; /* id of the next virtual tensor */
	descriptor all[DESCRIPTORS], operator[OPERATORS];
};

struct shape {
	int64_t dim[4], stride[4];
};

/* ---- descriptors */

static descriptor begin(struct graph *g, cudnnBackendDescriptorType_t type)
{
	descriptor d = NULL;
	if (!g->status && g->made == DESCRIPTORS)
		g->status = CUDNN_STATUS_ALLOC_FAILED;
	if (!g->status)
		g->status = g->call->describe(type, &d);
	if (!g->status)
		g->all[g->made++] = d;
	return d;
}

static void set(struct graph *g, descriptor d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
                const void *values)
{
	if (!g->status)
		g->status = g->call->set(d, name, type, count, values);
}

static void set_descriptor(struct graph *g, descriptor d, cudnnBackendAttributeName_t name, descriptor value)
{
	set(g, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

static void finish(struct graph *g, descriptor d)
{
	if (!g->status)
		g->status = g->call->finalize(d);
}

static void finish_operator(struct graph *g, descriptor d)
{
	finish(g, d);
	if (!g->status && g->operators == OPERATORS)
		g->status = CUDNN_STATUS_ALLOC_FAILED;
	if (!g->status)
		g->operator[g->operators++] = d;
}

/* ---- tensors */

static descriptor tensor(struct graph *g, int64_t name, cudnnDataType_t type, struct shape s, bool is_virtual, bool by_value,
                         cudnnBackendTensorReordering_t order)
{
	descriptor d = begin(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
	int64_t alignment = by_value ? 4 : 16;
	set(g, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &name);
	set(g, d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
	set(g, d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, s.dim);
	set(g, d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, s.stride);
	set(g, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
	set(g, d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
	set(g, d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value);
	if (order != CUDNN_TENSOR_REORDERING_NONE)
		set(g, d, CUDNN_ATTR_TENSOR_REORDERING_MODE, CUDNN_TYPE_TENSOR_REORDERING_MODE, 1, &order);
	finish(g, d);
	return d;
}

static descriptor in_memory(struct graph *g, int64_t name, cudnnDataType_t type, struct shape s)
{
	return tensor(g, name, type, s, false, false, CUDNN_TENSOR_REORDERING_NONE);
}

static descriptor between(struct graph *g, cudnnDataType_t type, struct shape s)
{
	return tensor(g, g->next++, type, s, true, false, CUDNN_TENSOR_REORDERING_NONE);
}

static descriptor scalar(struct graph *g, int64_t name, cudnnDataType_t type)
{
	return tensor(g, name, type, (struct shape){ { 1, 1, 1, 1 }, { 1, 1, 1, 1 } }, false, true, CUDNN_TENSOR_REORDERING_NONE);
}

static struct shape packed(int64_t batches, int64_t heads, int64_t rows, int64_t columns)
{
	return (struct shape){ { batches, heads, rows, columns }, { heads * rows * columns, rows * columns, columns, 1 } };
}

/* Rows of heads in the form that the operators take. */
static struct shape rows_of(const struct hspmd_dnn_attention *a, int64_t heads, int64_t count, struct hspmd_dnn_rows rows)
{
	return (struct shape){ { a->batches, heads, count, a->head_dim }, { rows.batch, a->head_dim, rows.row, 1 } };
}

static struct shape transposed(struct shape s)
{
	return (struct shape){ { s.dim[0], s.dim[1], s.dim[3], s.dim[2] }, { s.stride[0], s.stride[1], s.stride[3], s.stride[2] } };
}

static struct shape scores_shape(const struct hspmd_dnn_attention *a)
{
	return packed(a->batches, a->heads, a->queries, a->keys);
}

static struct shape sums_shape(const struct hspmd_dnn_attention *a)
{
	return packed(a->batches, a->heads, a->queries, 1);
}

/* ---- operators */

static void multiply(struct graph *g, descriptor a, descriptor b, descriptor c)
{
	cudnnDataType_t type = CUDNN_DATA_FLOAT;
	descriptor how = begin(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
	set(g, how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
	finish(g, how);
	descriptor d = begin(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
	set_descriptor(g, d, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
	set_descriptor(g, d, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
	set_descriptor(g, d, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
	set_descriptor(g, d, CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
	finish_operator(g, d);
}

/* y = mode(x), mode(x, b), or if t is given: t ? x : b. axis < 0: none. */
static void point(struct graph *g, cudnnPointwiseMode_t mode, cudnnDataType_t type, int64_t axis, descriptor x, descriptor b, descriptor t,
                  descriptor y)
{
	descriptor how = begin(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
	set(g, how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
	set(g, how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &type);
	if (axis >= 0)
		set(g, how, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis);
	finish(g, how);
	descriptor d = begin(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
	set_descriptor(g, d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
	set_descriptor(g, d, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
	if (b)
		set_descriptor(g, d, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
	if (t)
		set_descriptor(g, d, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t);
	set_descriptor(g, d, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
	finish_operator(g, d);
}

/* In F32, with a virtual tensor as the result. */
static descriptor compute(struct graph *g, cudnnPointwiseMode_t mode, descriptor x, descriptor b, struct shape s)
{
	descriptor y = between(g, CUDNN_DATA_FLOAT, s);
	point(g, mode, CUDNN_DATA_FLOAT, -1, x, b, NULL, y);
	return y;
}

static void reduce(struct graph *g, cudnnReduceTensorOp_t operator, descriptor x, descriptor y)
{
	cudnnDataType_t type = CUDNN_DATA_FLOAT;
	descriptor how = begin(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
	set(g, how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &operator);
	set(g, how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
	finish(g, how);
	descriptor d = begin(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
	set_descriptor(g, d, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
	set_descriptor(g, d, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
	set_descriptor(g, d, CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
	finish_operator(g, d);
}

/* x as a BF16 tensor with rows and columns exchanged. */
static descriptor transpose(struct graph *g, descriptor x, struct shape s)
{
	descriptor d = begin(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR), y = between(g, CUDNN_DATA_BFLOAT16, s);
	set_descriptor(g, d, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
	set_descriptor(g, d, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
	finish_operator(g, d);
	return y;
}

/* ---- attention */

/* Returns the scores, with `hidden` in place of each score for which `more(first, second)` is false, that is, whose query does not see the
 * key. */
static descriptor hide(struct graph *g, descriptor scores, descriptor hidden, cudnnPointwiseMode_t more, descriptor first,
                       descriptor second)
{
	struct shape s = scores_shape(g->a);
	descriptor seen = between(g, CUDNN_DATA_BOOLEAN, s), result = between(g, CUDNN_DATA_FLOAT, s);
	point(g, more, CUDNN_DATA_BOOLEAN, -1, first, second, NULL, seen);
	point(g, CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, -1, scores, hidden, seen, result);
	return result;
}

static descriptor index_of(struct graph *g, descriptor scores, int64_t axis)
{
	descriptor index = between(g, CUDNN_DATA_INT32, scores_shape(g->a));
	point(g, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_INT32, axis, scores, NULL, NULL, index);
	return index;
}

static descriptor moved_index(struct graph *g, descriptor index, int64_t by, cudnnDataType_t type)
{
	descriptor sum = between(g, type, scores_shape(g->a));
	point(g, CUDNN_POINTWISE_ADD, type, 3, index, scalar(g, by, type), NULL, sum);
	return sum;
}

static descriptor hide_unseen(struct graph *g, descriptor scores)
{
	descriptor row = index_of(g, scores, 2), column = index_of(g, scores, 3), hidden = scalar(g, HIDDEN, CUDNN_DATA_FLOAT);
	if (g->a->shift)
		row = moved_index(g, row, SHIFT, CUDNN_DATA_INT32);
	scores = hide(g, scores, hidden, CUDNN_POINTWISE_CMP_GE, row, column);
	if (!g->a->window)
		return scores;
	row = index_of(g, scores, 2);
	column = index_of(g, scores, 3);
	return hide(g, scores, hidden, CUDNN_POINTWISE_CMP_GT, moved_index(g, column, WINDOW, CUDNN_DATA_FLOAT), row);
}

static void forward(struct graph *g)
{
	const struct hspmd_dnn_attention *a = g->a;
	struct shape scores = scores_shape(a), sums = sums_shape(a);
	descriptor q = in_memory(g, Q, CUDNN_DATA_BFLOAT16, rows_of(a, a->heads, a->queries, a->q));
	descriptor k = in_memory(g, K, CUDNN_DATA_BFLOAT16, transposed(rows_of(a, a->kv_heads, a->keys, a->k)));
	descriptor v = in_memory(g, V, CUDNN_DATA_BFLOAT16, rows_of(a, a->kv_heads, a->keys, a->v));
	descriptor o = in_memory(g, O, CUDNN_DATA_BFLOAT16, rows_of(a, a->heads, a->queries, a->o));
	descriptor lse = in_memory(g, LSE, CUDNN_DATA_FLOAT, sums), s = between(g, CUDNN_DATA_FLOAT, scores);
	multiply(g, q, k, s);
	s = hide_unseen(g, compute(g, CUDNN_POINTWISE_MUL, s, scalar(g, SCALE, CUDNN_DATA_FLOAT), scores));
	descriptor high = between(g, CUDNN_DATA_FLOAT, sums), sum = between(g, CUDNN_DATA_FLOAT, sums),
	           p = between(g, CUDNN_DATA_BFLOAT16, scores);
	reduce(g, CUDNN_REDUCE_TENSOR_MAX, s, high);
	s = compute(g, CUDNN_POINTWISE_EXP, compute(g, CUDNN_POINTWISE_SUB, s, high, scores), NULL, scores);
	reduce(g, CUDNN_REDUCE_TENSOR_ADD, s, sum);
	point(g, CUDNN_POINTWISE_ADD, CUDNN_DATA_FLOAT, -1, high, compute(g, CUDNN_POINTWISE_LOG, sum, NULL, sums), NULL, lse);
	point(g, CUDNN_POINTWISE_DIV, CUDNN_DATA_FLOAT, -1, s, sum, NULL, p);
	multiply(g, p, v, o);
}

/* to = left right, summed over the query heads that share a kv head. */
static void multiply_to_kv(struct graph *g, descriptor left, descriptor right, descriptor to)
{
	const struct hspmd_dnn_attention *a = g->a;
	if (a->heads == a->kv_heads) {
		multiply(g, left, right, to);
		return;
	}
	descriptor each = between(g, CUDNN_DATA_BFLOAT16, packed(a->batches, a->heads, a->keys, a->head_dim));
	multiply(g, left, right, each);
	reduce(g, CUDNN_REDUCE_TENSOR_ADD, each, to);
}

/* dq = ds k. In one order, this is a product of its own. If the order need not be the same each time, blocks add to a sum in memory, in
 * the order of tensor cores' registers, which is then copied; so the gradients of scores need not be in memory, and less is computed. */
static void multiply_to_q(struct graph *g, descriptor ds, descriptor k, descriptor dq)
{
	const struct hspmd_dnn_attention *a = g->a;
	descriptor sums;
	if (!a->any_order) {
		multiply(g, ds, k, dq);
		return;
	}
	sums = tensor(g, SUMS, CUDNN_DATA_FLOAT, packed(a->batches, a->heads, a->queries, a->head_dim), false, false,
	              CUDNN_TENSOR_REORDERING_F16x16);
	multiply(g, ds, k, sums);
	point(g, CUDNN_POINTWISE_IDENTITY, CUDNN_DATA_FLOAT, -1, sums, NULL, NULL, dq);
}

static void backward(struct graph *g)
{
	const struct hspmd_dnn_attention *a = g->a;
	struct shape scores = scores_shape(a), sums = sums_shape(a), kv_k = rows_of(a, a->kv_heads, a->keys, a->k),
	             kv_v = rows_of(a, a->kv_heads, a->keys, a->v);
	struct shape of_q = rows_of(a, a->heads, a->queries, a->q), of_o = rows_of(a, a->heads, a->queries, a->o),
	             by_key = transposed(scores);
	descriptor q = in_memory(g, Q, CUDNN_DATA_BFLOAT16, of_q), k = in_memory(g, K, CUDNN_DATA_BFLOAT16, transposed(kv_k));
	descriptor v = in_memory(g, V, CUDNN_DATA_BFLOAT16, transposed(kv_v)), o = in_memory(g, O, CUDNN_DATA_BFLOAT16, of_o);
	descriptor dq = in_memory(g, DQ, CUDNN_DATA_BFLOAT16, of_q), dk = in_memory(g, DK, CUDNN_DATA_BFLOAT16, kv_k);
	descriptor dv = in_memory(g, DV, CUDNN_DATA_BFLOAT16, kv_v), dout = in_memory(g, DOUT, CUDNN_DATA_BFLOAT16, of_o);
	descriptor lse = in_memory(g, LSE, CUDNN_DATA_FLOAT, sums), delta = in_memory(g, DELTA, CUDNN_DATA_FLOAT, sums),
	           scale = scalar(g, SCALE, CUDNN_DATA_FLOAT);
	descriptor total = between(g, CUDNN_DATA_FLOAT, sums), s = between(g, CUDNN_DATA_FLOAT, scores),
	           dp = between(g, CUDNN_DATA_FLOAT, scores);
	reduce(g, CUDNN_REDUCE_TENSOR_ADD, compute(g, CUDNN_POINTWISE_MUL, dout, o, packed(a->batches, a->heads, a->queries, a->head_dim)),
	       total);
	point(g, CUDNN_POINTWISE_MUL, CUDNN_DATA_FLOAT, -1, total, scalar(g, ONE, CUDNN_DATA_FLOAT), NULL, delta);
	multiply(g, q, k, s);
	s = compute(g, CUDNN_POINTWISE_SUB, compute(g, CUDNN_POINTWISE_MUL, s, scale, scores), lse, scores);
	descriptor p = compute(g, CUDNN_POINTWISE_EXP, hide_unseen(g, s), NULL, scores);
	multiply_to_kv(g, transpose(g, p, by_key), dout, dv);
	multiply(g, dout, v, dp);
	descriptor ds = compute(g, CUDNN_POINTWISE_MUL, compute(g, CUDNN_POINTWISE_SUB, dp, delta, scores), p, scores);
	ds = compute(g, CUDNN_POINTWISE_MUL, ds, scale, scores);
	multiply_to_kv(g, transpose(g, ds, by_key), q, dk);
	multiply_to_q(g, ds, transpose(g, k, kv_k), dq);
}

static descriptor describe_attention(struct graph *g)
{
	if (g->a->backward)
		backward(g);
	else
		forward(g);
	descriptor d = begin(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
	set(g, d, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g->operators, g->operator);
	if (g->dnn->handle)
		set(g, d, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &g->dnn->handle);
	finish(g, d);
	return d;
}

/* ---- plans */

/* Returns true if the engine of a configuration is deterministic. */
static bool is_deterministic(const struct graph *g, descriptor configuration)
{
	cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
	descriptor engine = NULL;
	int64_t count = 0;
	bool same = !g->call->describe(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine) &&
	            !g->call->get(configuration, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &engine) &&
	            !g->call->get(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, CUDNN_NUMERICAL_NOTE_TYPE_COUNT,
	                          &count, notes);
	for (int64_t i = 0; same && i < count; i++)
		same = notes[i] != CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
	if (engine)
		g->call->forget(engine);
	return same;
}

static size_t delta_bytes(const struct hspmd_dnn_attention *a)
{
	return a->backward ? (size_t)(a->batches * a->heads * a->queries * 4 + 255) / 256 * 256 : 0;
}

static size_t sums_bytes(const struct hspmd_dnn_attention *a)
{
	return a->backward && a->any_order ? (size_t)(a->batches * a->heads * a->queries * a->head_dim * 4 + 255) / 256 * 256 : 0;
}

static struct scalars scalars_of(const struct hspmd_dnn *dnn, const struct hspmd_dnn_attention *a)
{
	return (struct scalars){ .scale = (float)a->scale,
		                 .hidden = dnn->call->get_version() < 91000 ? -FLT_MAX : -INFINITY,
		                 .one = 1,
		                 .window = (float)(a->window - a->shift),
		                 .shift = (int32_t)a->shift };
}

/* Makes a plan from a configuration. Returns NULL if there is none that needs at most `most` bytes of workspace. */
static struct hspmd_dnn_plan *make_plan(const struct graph *g, descriptor configuration, size_t most)
{
	struct hspmd_dnn_plan *p = calloc(1, sizeof *p);
	int64_t bytes = 0, count = 0;
	if (!p)
		return NULL;
	*p = (struct hspmd_dnn_plan){
		.dnn = g->dnn, .about = *g->a, .delta = delta_bytes(g->a), .sums = sums_bytes(g->a), .scalars = scalars_of(g->dnn, g->a)
	};
	cudnnStatus_t status = g->call->describe(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &p->plan);
	if (!status)
		status = g->call->set(p->plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &configuration);
	if (!status && g->dnn->handle)
		status = g->call->set(p->plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &g->dnn->handle);
	if (!status && g->dnn->properties)
		status = g->call->set(p->plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &g->dnn->properties);
	if (!status)
		status = g->call->finalize(p->plan);
	if (!status)
		status = g->call->get(p->plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &count, &bytes);
	p->workspace = (size_t)bytes;
	if (!status && hspmd_dnn_plan_workspace(p) <= most)
		return p;
	hspmd_dnn_plan_destroy(p);
	return NULL;
}

/* Gets cuDNN's proposals, best first: *count entries of g->all from the returned index on. */
static int propose(struct graph *g, descriptor graph, int64_t *count)
{
	cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
	descriptor heuristics = begin(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
	set_descriptor(g, heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
	set(g, heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
	if (g->dnn->properties)
		set_descriptor(g, heuristics, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, g->dnn->properties);
	finish(g, heuristics);
	int first = g->made;
	for (int i = 0; i < ENGINES; i++)
		begin(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
	if (!g->status)
		g->status = g->call->get(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, ENGINES, count,
		                         &g->all[first]);
	return first;
}

int hspmd_dnn_find_plans(struct hspmd_dnn *dnn, const struct hspmd_dnn_attention *a, size_t workspace_most, struct hspmd_dnn_plan **plans,
                         int most, struct hspmd_error *err)
{
	struct graph *g = calloc(1, sizeof *g);
	int64_t proposed = 0;
	int found = 0;
	if (!g) {
		hspmd_fail_memory(err, "making a plan of attention");
		return 0;
	}
	g->dnn = dnn;
	g->call = dnn->call;
	g->a = a;
	g->next = FIRST_VIRTUAL;
	int first = propose(g, describe_attention(g), &proposed);
	for (int64_t i = 0; !g->status && i < proposed && found < most; i++)
		if ((a->any_order || is_deterministic(g, g->all[first + i])) &&
		    (plans[found] = make_plan(g, g->all[first + i], workspace_most)))
			found++;
	if (g->status)
		hspmd_dnn_failed(dnn, g->status, "cuDNN does not take this attention", err);
	else if (!found)
		hspmd_fail(err, "none of cuDNN's %d engines for this attention has %slittle workspace", (int)proposed,
		           a->any_order ? "" : "always the same bits and ");
	/* A plan keeps what it needs of these descriptors. */
	while (g->made)
		g->call->forget(g->all[--g->made]);
	free(g);
	return found;
}

void hspmd_dnn_plan_destroy(struct hspmd_dnn_plan *plan)
{
	if (!plan)
		return;
	if (plan->plan)
		plan->dnn->call->forget(plan->plan);
	free(plan);
}

size_t hspmd_dnn_plan_workspace(const struct hspmd_dnn_plan *plan)
{
	return plan->delta + plan->sums + plan->workspace;
}

int hspmd_dnn_run(struct hspmd_dnn *dnn, const struct hspmd_dnn_plan *plan, const struct hspmd_dnn_buffers *b, struct hspmd_error *err)
{
	const struct hspmd_dnn_calls *call = dnn->call;
	struct scalars s = plan->scalars;
	void *sums = (char *)b->workspace + plan->delta, *workspace = (char *)sums + plan->sums;
	struct {
		int64_t name;
		void *at;
		bool used;
	} each[] = {
		{ Q, b->q, true },
		{ K, b->k, true },
		{ V, b->v, true },
		{ O, b->o, true },
		{ LSE, b->lse, true },
		{ SCALE, &s.scale, true },
		{ HIDDEN, &s.hidden, true },
		{ SHIFT, &s.shift, plan->about.shift != 0 },
		{ WINDOW, &s.window, plan->about.window != 0 },
		{ DQ, b->dq, plan->about.backward },
		{ DK, b->dk, plan->about.backward },
		{ DV, b->dv, plan->about.backward },
		{ DOUT, b->dout, plan->about.backward },
		{ DELTA, b->workspace, plan->about.backward },
		{ SUMS, sums, plan->sums > 0 },
		{ ONE, &s.one, plan->about.backward },
	};
	int64_t names[sizeof each / sizeof *each], count = 0;
	void *at[sizeof each / sizeof *each];
	for (size_t i = 0; i < sizeof each / sizeof *each; i++)
		if (each[i].used) {
			names[count] = each[i].name;
			at[count++] = each[i].at;
		}
	descriptor pack = NULL;
	cudnnStatus_t status = call->describe(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack);
	if (!status)
		status = call->set(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, names);
	if (!status)
		status = call->set(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, at);
	if (!status)
		status = call->set(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
	if (!status)
		status = call->finalize(pack);
	if (!status)
		status = call->execute(dnn->handle, plan->plan, pack);
	if (pack)
		call->forget(pack);
	return status ? hspmd_dnn_failed(dnn, status, "attention by cuDNN", err) : 0;
}
