/* SPDX-License-Identifier: Apache-2.0 */
/* {"steps": [..]}: what was appended, in order: {"input": name, "dtype": .., "shape": [..], "layer": ..}, {"parameter": ..} or
 * {"operator": opcode, "in": [..], "words": [index, word, ..]}. */
#include "runtime/graph/graph_json.h"

#include <string.h>

#include "common/json.h"
#include "runtime/graph/op_type.h"

#define WORDS (sizeof(struct hspmd_op_attr) / sizeof(uint64_t))

union attr_words {
	struct hspmd_op_attr attr;
	uint64_t words[WORDS];
};

_Static_assert(sizeof(union attr_words) == sizeof(struct hspmd_op_attr), "attributes are whole words");

/* ---- writing */

static json_t *integers(const int64_t *values, int count)
{
	json_t *a = json_array();
	int bad = !a;
	for (int i = 0; i < count; i++)
		bad |= json_array_append_new(a, json_integer(values[i]));
	return hspmd_json_unless_failed(bad, a);
}

static int add_annotation(json_t *o, const struct hspmd_tensor *t)
{
	char *text = t->annotation ? hspmd_annotation_text(t->annotation) : NULL;
	int bad = t->annotation && json_object_set_new(o, "annotation", text ? json_string(text) : NULL);
	free(text);
	return bad;
}

static json_t *input_json(const struct hspmd_tensor *t)
{
	json_t *o = json_pack("{s:s, s:i, s:o, s:i}", "input", t->name, "dtype", (int)t->dtype, "shape",
	                      integers(t->shape.dim, t->shape.rank), "layer", t->layer);
	return hspmd_json_unless_failed(!o || add_annotation(o, t), o);
}

static json_t *parameter_json(const struct hspmd_tensor *t)
{
	json_t *o = json_pack("{s:s, s:o, s:i, s:f, s:f, s:b, s:i, s:I}", "parameter", t->name, "shape",
	                      integers(t->shape.dim, t->shape.rank), "layer", t->layer, "mean", t->init_mean, "deviation", t->init_std,
	                      "decay", (int)t->decay, "split_dim", t->split_dim, "split_unit", (json_int_t)t->split_unit);
	return hspmd_json_unless_failed(!o || add_annotation(o, t), o);
}

/* Number of frequencies that an operator reads. */
static int64_t frequency_count(const struct hspmd_op_attr *a)
{
	return a->frequencies ? (a->rotary ? a->rotary : a->head_dim) / 2 : 0;
}

/* Of an annotation only that of the first output is written. */
static json_t *operator_json(const struct hspmd_graph *g, const struct hspmd_op *op)
{
	union attr_words words = { .attr = op->attr };
	json_t *in = json_array(), *set = json_array(), *frequencies = json_array();
	int bad = !in || !set || !frequencies;
	for (int i = 0; i < op->input_count; i++)
		bad |= json_array_append_new(in, json_integer(op->in[i]));
	for (int64_t i = 0; i < frequency_count(&op->attr); i++)
		bad |= json_array_append_new(frequencies, json_real(op->attr.frequencies[i]));
	words.attr.frequencies = NULL;
	for (size_t i = 0; i < WORDS; i++)
		if (words.words[i]) {
			bad |= json_array_append_new(set, json_integer((json_int_t)i));
			bad |= json_array_append_new(set, json_integer((json_int_t)words.words[i]));
		}
	json_t *o = json_pack("{s:i, s:o, s:i, s:o, s:o}", "operator", (int)op->opcode, "in", in, "layer", op->layer, "words", set,
	                      "frequencies", frequencies);
	return hspmd_json_unless_failed(bad || !o || add_annotation(o, &g->tensors[op->out[0]]), o);
}

json_t *hspmd_graph_to_json(const struct hspmd_graph *g)
{
	json_t *steps = json_array();
	int bad = !steps;
	for (size_t t = 0; !bad && t < g->tensor_count; t++) {
		const struct hspmd_tensor *at = &g->tensors[t];
		const struct hspmd_op *op = at->producer >= 0 ? &g->ops[at->producer] : NULL;
		if (at->role == HSPMD_TENSOR_INPUT)
			bad |= json_array_append_new(steps, input_json(at));
		else if (at->role == HSPMD_TENSOR_PARAMETER)
			bad |= json_array_append_new(steps, parameter_json(at));
		else if (op && !op->backward && op->out[0] == (int)t)
			bad |= json_array_append_new(steps, operator_json(g, op));
	}
	json_t *o = bad ? NULL : json_pack("{s:O}", "steps", steps);
	json_decref(steps);
	return o;
}

/* ---- reading */

struct reading {
	struct hspmd_graph *g;
	int layers;
};

static struct hspmd_shape shape_of(struct hspmd_json *step)
{
	struct hspmd_json dims = hspmd_json_array(step, "shape", 0, HSPMD_MAX_RANK);
	struct hspmd_shape shape = { .rank = (int)hspmd_json_length(&dims) };
	for (int d = 0; d < shape.rank; d++) {
		struct hspmd_json at = hspmd_json_at(&dims, (size_t)d);
		shape.dim[d] = hspmd_json_int_value(&at, 1, INT64_MAX);
	}
	return shape;
}

static int annotate(struct reading *r, struct hspmd_json *step, int tensor)
{
	const char *text = hspmd_json_string_or(step, "annotation", NULL);
	if (!text || tensor < 0)
		return tensor;
	struct hspmd_annotation *a = hspmd_annotation_parse(text, &r->g->error);
	if (!a)
		r->g->failed = true;
	return a && !hspmd_graph_annotate(r->g, tensor, a) ? tensor : -1;
}

static int read_input(struct reading *r, struct hspmd_json *step)
{
	enum hspmd_dtype dtype = (enum hspmd_dtype)hspmd_json_int(step, "dtype", 0, HSPMD_DTYPE_COUNT - 1);
	struct hspmd_shape shape = shape_of(step);
	int layer = (int)hspmd_json_int(step, "layer", 0, r->layers - 1);
	const char *name = hspmd_json_string(step, "input");
	return hspmd_json_failed(step) ? -1 : annotate(r, step, hspmd_graph_input(r->g, name, dtype, shape, layer));
}

static int read_parameter(struct reading *r, struct hspmd_json *step)
{
	struct hspmd_shape shape = shape_of(step);
	int layer = (int)hspmd_json_int(step, "layer", 0, r->layers - 1);
	double mean = hspmd_json_number(step, "mean", -DBL_MAX, DBL_MAX), deviation = hspmd_json_number(step, "deviation", 0, DBL_MAX);
	int split = (int)hspmd_json_int(step, "split_dim", -1, shape.rank - 1);
	int64_t unit = hspmd_json_int(step, "split_unit", 1, INT64_MAX);
	bool decay = hspmd_json_bool_or(step, "decay", true);
	const char *name = hspmd_json_string(step, "parameter");
	if (hspmd_json_failed(step))
		return -1;
	return annotate(r, step, hspmd_graph_parameter(r->g, name, shape, layer, mean, deviation, decay, split, unit));
}

/* The attributes of an operator; the graph keeps what they point to. */
static int read_attr(struct reading *r, struct hspmd_json *step, union attr_words *out)
{
	struct hspmd_json set = hspmd_json_array(step, "words", 0, 2 * WORDS), all = hspmd_json_array(step, "frequencies", 0, 1 << 20);
	size_t count = hspmd_json_length(&all);
	memset(out, 0, sizeof *out);
	for (size_t i = 0; i + 1 < hspmd_json_length(&set); i += 2) {
		struct hspmd_json index = hspmd_json_at(&set, i), word = hspmd_json_at(&set, i + 1);
		size_t at = (size_t)hspmd_json_int_value(&index, 0, WORDS - 1);
		out->words[at] = (uint64_t)hspmd_json_int_value(&word, INT64_MIN, INT64_MAX);
	}
	out->attr.frequencies = NULL;
	double *values = count ? malloc(count * sizeof *values) : NULL;
	if (count && !values)
		return hspmd_json_fail_memory(step);
	for (size_t i = 0; i < count; i++) {
		struct hspmd_json at = hspmd_json_at(&all, i);
		values[i] = hspmd_json_number_value(&at, -DBL_MAX, DBL_MAX);
	}
	if (count)
		out->attr.frequencies = hspmd_graph_constant(r->g, values, count);
	free(values);
	return hspmd_json_failed(step) || r->g->failed ? -1 : 0;
}

static int read_operator(struct reading *r, struct hspmd_json *step)
{
	int in[HSPMD_OP_MAX_IO], out[HSPMD_OP_MAX_IO];
	union attr_words words;
	int opcode = (int)hspmd_json_int(step, "operator", 0, HSPMD_OP_COUNT - 1);
	int layer = (int)hspmd_json_int(step, "layer", 0, r->layers - 1);
	struct hspmd_json all = hspmd_json_array(step, "in", 0, HSPMD_OP_MAX_IO);
	int count = (int)hspmd_json_length(&all);
	for (int i = 0; i < count; i++) {
		struct hspmd_json at = hspmd_json_at(&all, (size_t)i);
		in[i] = (int)hspmd_json_int_value(&at, -1, (int64_t)r->g->tensor_count - 1);
	}
	if (read_attr(r, step, &words) || hspmd_json_failed(step))
		return -1;
	if (!r->g->types[opcode] || !r->g->types[opcode]->shape)
		return hspmd_json_fail(step, "operator %d is not one of a net's", opcode);
	int first = hspmd_graph_append(r->g, (enum hspmd_opcode)opcode, &words.attr, layer, in, count, out);
	return annotate(r, step, first);
}

static int read_step(struct reading *r, struct hspmd_json *step)
{
	if (!hspmd_json_expect_object(step))
		return -1;
	int made = hspmd_json_has(step, "input")       ? read_input(r, step)
	           : hspmd_json_has(step, "parameter") ? read_parameter(r, step)
	                                               : read_operator(r, step);
	if (!hspmd_json_failed(step) && r->g->failed)
		hspmd_json_fail(step, "%s", r->g->error.text);
	return made < 0 ? -1 : 0;
}

struct hspmd_graph *hspmd_graph_from_json(const json_t *value, const struct hspmd_op_type *const *types, enum hspmd_dtype compute_dtype,
                                          int layers, struct hspmd_error *err)
{
	struct hspmd_json_doc doc;
	struct reading r = { hspmd_graph_create(types), layers };
	if (!r.g) {
		hspmd_fail_memory(err, "reading a graph");
		return NULL;
	}
	r.g->compute_dtype = compute_dtype;
	hspmd_json_wrap(&doc, "graph", (json_t *)value, err);
	struct hspmd_json root = hspmd_json_root(&doc), steps = hspmd_json_array(&root, "steps", 1, SIZE_MAX);
	bool failed = hspmd_json_failed(&root);
	for (size_t i = 0; !failed && i < hspmd_json_length(&steps); i++) {
		struct hspmd_json at = hspmd_json_at(&steps, i);
		failed = read_step(&r, &at) < 0;
	}
	hspmd_json_close(&doc);
	if (!failed)
		return r.g;
	hspmd_graph_destroy(r.g);
	return NULL;
}
