/* SPDX-License-Identifier: Apache-2.0 */
/* Segments, and the layouts of tensors under their shares. */
#include <ctype.h>
#include <math.h>
#include <string.h>

#include "runtime/synthesis/synthesis_internal.h"

/* ---- dimensions that are divided together */

struct joiner {
	struct hspmd_synthesis *s;
	int *parent; /* per dimension of every tensor */
	int64_t *steps;
};

static int root_of(struct joiner *j, int at)
{
	while (j->parent[at] != at)
		at = j->parent[at] = j->parent[j->parent[at]];
	return at;
}

static void join(struct joiner *j, int *first, int tensor, int dim, int64_t step)
{
	int at = root_of(j, tensor * HSPMD_MAX_RANK + dim);
	j->steps[at] = hspmd_common_divisor(j->steps[at], j->s->g->tensors[tensor].shape.dim[dim] / step);
	if (*first >= 0) {
		int to = root_of(j, *first);
		j->parent[at] = to;
		j->steps[to] = hspmd_common_divisor(j->steps[to], j->steps[at]);
	}
	*first = at;
}

static void join_pattern(struct joiner *j, int *first, int tensor, const char *pattern, int64_t in_step)
{
	int rank = tensor < 0 ? 0 : j->s->g->tensors[tensor].shape.rank;
	pattern += *pattern == '+';
	for (int d = 0; d < rank && pattern[d] && pattern[d] != '/'; d++)
		if (islower((unsigned char)pattern[d]))
			join(j, &first[pattern[d] - 'a'], tensor, d, pattern[d] == 'h' && in_step ? in_step : 1);
}

static void join_op(struct joiner *j, const struct hspmd_op *op)
{
	struct hspmd_op_view view;
	struct hspmd_op_rule rule;
	int first[26];
	hspmd_op_view_of(j->s->g, op, &view);
	hspmd_op_types[op->opcode]->rule(&view, &rule);
	memset(first, -1, sizeof first);
	for (int i = 0; i < op->input_count; i++)
		join_pattern(j, first, op->in[i], rule.in[i], rule.in_step[i]);
	for (int o = 0; o < op->output_count; o++)
		join_pattern(j, first, op->out[o], rule.out[o], rule.out_step[o]);
}

int hspmd_synthesis_expert_segment(const struct hspmd_synthesis *s, const struct hspmd_op *op)
{
	struct hspmd_op_view view;
	struct hspmd_op_rule rule;
	if (!hspmd_op_types[op->opcode]->rows.choice)
		return -1;
	hspmd_op_view_of(s->g, op, &view);
	hspmd_op_types[op->opcode]->rule(&view, &rule);
	for (int i = 0; i < op->input_count; i++)
		for (int d = 0; op->in[i] >= 0 && d < view.in[i].rank && rule.in[i][d]; d++)
			if (rule.in[i][d] == 'e')
				return s->tensors[op->in[i]].segment[d];
	return -1;
}

static void note_rows(struct hspmd_synthesis *s, int tensor, int op, bool *several)
{
	struct tensor_facts *t = &s->tensors[tensor];
	several[tensor] |= t->expert_op >= 0 && t->expert_op != op;
	t->expert_op = several[tensor] ? -1 : op;
	t->expert_segment = several[tensor] ? -1 : hspmd_synthesis_expert_segment(s, &s->g->ops[op]);
}

/* Finds the tensors of which operators of experts need, or make, rows of experts. */
static int find_rows(struct hspmd_synthesis *s)
{
	bool *several = hspmd_arena_alloc(s->arena, s->g->tensor_count, sizeof *several);
	for (size_t t = 0; several && t < s->g->tensor_count; t++)
		s->tensors[t].expert_op = s->tensors[t].expert_segment = -1;
	for (size_t i = 0; several && i < s->g->op_count; i++) {
		const struct hspmd_op *op = &s->g->ops[i];
		const struct hspmd_op_type *type = hspmd_op_types[op->opcode];
		for (int k = 0; !op->backward && type->rows.choice && k < HSPMD_OP_MAX_IO; k++) {
			if (k < op->input_count && op->in[k] >= 0 && (type->rows.in >> k & 1))
				note_rows(s, op->in[k], (int)i, several);
			if (k < op->output_count && op->out[k] >= 0 && (type->rows.out >> k & 1))
				note_rows(s, op->out[k], (int)i, several);
		}
	}
	return several ? 0 : -1;
}

int hspmd_synthesis_segments(struct hspmd_synthesis *s, struct hspmd_error *err)
{
	size_t tensors = s->g->tensor_count, dims = tensors * HSPMD_MAX_RANK, n = (size_t)s->stage.device_count;
	struct joiner j = { s, hspmd_arena_alloc(s->arena, dims, sizeof(int)), hspmd_arena_alloc(s->arena, dims, sizeof(int64_t)) };
	int *number = hspmd_arena_alloc(s->arena, dims, sizeof *number);
	s->segments = hspmd_arena_alloc(s->arena, dims, sizeof *s->segments);
	if (!j.parent || !j.steps || !number || !s->segments)
		return hspmd_fail_memory(err, "searching a program");
	for (size_t i = 0; i < dims; i++)
		j.parent[i] = (int)i;
	for (size_t i = 0; i < s->g->op_count; i++)
		if (!s->g->ops[i].backward)
			join_op(&j, &s->g->ops[i]);
	double fastest = 0;
	for (size_t d = 0; d < n; d++)
		fastest = fmax(fastest, s->rate[d]);
	for (size_t i = 0; i < dims; i++) {
		int root = root_of(&j, (int)i);
		if (number[root] == 0 && j.steps[root] > 1) {
			struct segment *segment = &s->segments[s->segment_count++];
			number[root] = s->segment_count;
			segment->steps = j.steps[root];
			segment->weights = hspmd_arena_alloc(s->arena, n, sizeof *segment->weights);
			if (!segment->weights)
				return hspmd_fail_memory(err, "searching a program");
			for (size_t d = 0; d < n; d++)
				segment->weights[d] = (int64_t)fmax(1, round(s->rate[d] / fastest * 1e6));
		}
		s->tensors[i / HSPMD_MAX_RANK].segment[i % HSPMD_MAX_RANK] = number[root] - 1;
	}
	return find_rows(s) ? hspmd_fail_memory(err, "searching a program") : 0;
}

/* ---- layouts */

/* Lets only the rows of each device's experts count. 0 or -1 (memory). */
static int limit_rows(const struct hspmd_synthesis *s, int tensor, struct hspmd_annotation *a)
{
	const struct tensor_facts *t = &s->tensors[tensor];
	const struct segment *segment = &s->segments[t->expert_segment];
	const struct hspmd_op *op = &s->g->ops[t->expert_op];
	const struct hspmd_shape *choice = &s->g->tensors[op->in[hspmd_op_types[op->opcode]->rows.choice - 1]].shape;
	struct hspmd_annotation *experts = hspmd_annotation_single(a->groups[0].devices, a->groups[0].device_count);
	if (!experts || hspmd_annotation_split(experts, 0, 0, s->stage.device_count, op->attr.experts / segment->steps, segment->weights)) {
		hspmd_annotation_destroy(experts);
		return -1;
	}
	return hspmd_annotation_set_rows(a, experts, op->attr.experts, (int)choice->dim[choice->rank - 1]);
}

static struct hspmd_annotation *make(const struct hspmd_synthesis *s, int tensor, int layout, const int *devices)
{
	int n = s->stage.device_count;
	struct hspmd_annotation *a = hspmd_annotation_single(devices, n);
	const int64_t *weights = NULL;
	bool rows = layout == LAYOUT_ROWS || layout == LAYOUT_ROW_SUM;
	int dim = layout == LAYOUT_WHOLE || layout == LAYOUT_ROWS ? HSPMD_DUPLICATE
	          : hspmd_synthesis_is_sum(layout)                ? HSPMD_PARTIAL
	                                                          : layout;
	int64_t unit = 1;
	if (dim >= 0) {
		const struct segment *segment = &s->segments[s->tensors[tensor].segment[dim]];
		weights = segment->weights;
		unit = s->g->tensors[tensor].shape.dim[dim] / segment->steps;
	}
	if (a && n > 1 && (hspmd_annotation_split(a, 0, dim, n, unit, weights) || (rows && limit_rows(s, tensor, a)))) {
		hspmd_annotation_destroy(a);
		return NULL;
	}
	return a;
}

const struct hspmd_annotation *hspmd_synthesis_layout(struct hspmd_synthesis *s, int tensor, int layout)
{
	struct tensor_facts *t = &s->tensors[tensor];
	const struct hspmd_shape *shape = &s->g->tensors[tensor].shape;
	if (t->layout[layout] || t->illegal[layout])
		return t->layout[layout];
	bool rows = layout == LAYOUT_ROWS || layout == LAYOUT_ROW_SUM;
	if ((layout < LAYOUT_WHOLE && (layout >= shape->rank || t->segment[layout] < 0)) || (rows && t->expert_segment < 0)) {
		t->illegal[layout] = true;
		return NULL;
	}
	struct hspmd_annotation *a = make(s, tensor, layout, s->stage.devices);
	if (!a || hspmd_annotation_check(a, shape, NULL)) {
		t->illegal[layout] = true;
		hspmd_annotation_destroy(a);
		return NULL;
	}
	return t->layout[layout] = a;
}

struct hspmd_annotation *hspmd_synthesis_numbered(const struct hspmd_synthesis *s, int tensor, int layout)
{
	return make(s, tensor, layout, s->order);
}

int hspmd_synthesis_layout_of(struct hspmd_synthesis *s, int tensor, const struct hspmd_annotation *a)
{
	static const int order[] = { LAYOUT_WHOLE, LAYOUT_SUM, 0, 1, 2, 3, 4, 5, LAYOUT_ROWS, LAYOUT_ROW_SUM };
	for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
		const struct hspmd_annotation *known = hspmd_synthesis_layout(s, tensor, order[i]);
		if (known && hspmd_annotation_equal(known, a, &s->g->tensors[tensor].shape))
			return order[i];
	}
	return LAYOUT_NONE;
}

int hspmd_synthesis_split_by(const struct hspmd_synthesis *s, int tensor, int segment)
{
	for (int d = 0; segment >= 0 && d < s->g->tensors[tensor].shape.rank; d++)
		if (s->tensors[tensor].segment[d] == segment)
			return d;
	return LAYOUT_WHOLE;
}

double hspmd_synthesis_transfer(struct hspmd_synthesis *s, const struct hspmd_shape *shape, size_t element_bytes,
                                const struct hspmd_annotation *from, const struct hspmd_annotation *to)
{
	struct hspmd_transfer *t = hspmd_resolve(shape, element_bytes, from, to, &s->cost, NULL);
	double seconds = t ? t->seconds : HUGE_VAL;
	hspmd_transfer_destroy(t);
	return seconds;
}

double hspmd_synthesis_reshard(struct hspmd_synthesis *s, int tensor, int from, int to)
{
	struct tensor_facts *t = &s->tensors[tensor];
	const struct hspmd_tensor *what = &s->g->tensors[tensor];
	if (from == to || (what->role == HSPMD_TENSOR_INPUT && to <= LAYOUT_WHOLE))
		return 0;
	if (!t->seconds) {
		t->seconds = hspmd_arena_alloc(s->arena, LAYOUT_COUNT * LAYOUT_COUNT, sizeof *t->seconds);
		for (int i = 0; t->seconds && i < LAYOUT_COUNT * LAYOUT_COUNT; i++)
			t->seconds[i] = -1;
	}
	if (!t->seconds)
		return HUGE_VAL;
	double *known = &t->seconds[from * LAYOUT_COUNT + to];
	const struct hspmd_annotation *a = hspmd_synthesis_layout(s, tensor, from), *b = hspmd_synthesis_layout(s, tensor, to);
	if (*known < 0)
		*known = a && b ? hspmd_synthesis_transfer(s, &what->shape, hspmd_dtype_bytes(what->dtype), a, b) : HUGE_VAL;
	return *known;
}

static bool has_segment(const struct tensor_facts *t, int rank, int segment)
{
	if (t->expert_segment == segment)
		return true;
	for (int d = 0; d < rank; d++)
		if (t->segment[d] == segment)
			return true;
	return false;
}

void hspmd_synthesis_forget(struct hspmd_synthesis *s, int segment)
{
	for (size_t t = 0; t < s->g->tensor_count; t++) {
		struct tensor_facts *f = &s->tensors[t];
		if (segment >= 0 && !has_segment(f, s->g->tensors[t].shape.rank, segment))
			continue;
		for (int l = 0; l < LAYOUT_COUNT; l++) {
			hspmd_annotation_destroy(f->layout[l]);
			f->layout[l] = NULL;
			f->illegal[l] = false;
			f->add_seconds[l] = -1;
		}
		for (int i = 0; f->seconds && i < LAYOUT_COUNT * LAYOUT_COUNT; i++)
			f->seconds[i] = -1;
	}
}

struct visit {
	const struct hspmd_synthesis *s;
	void (*use)(void *context, int segment);
	void *context;
};

static void visit_layout(const struct visit *v, int tensor, int layout)
{
	if (tensor >= 0 && layout < LAYOUT_WHOLE)
		v->use(v->context, v->s->tensors[tensor].segment[layout]);
}

void hspmd_synthesis_each_segment(const struct hspmd_synthesis *s, int number, const struct choice *c,
                                  void (*use)(void *context, int segment), void *context)
{
	const struct group *g = &s->groups[number];
	const struct hspmd_op *op = &s->g->ops[g->op];
	const struct visit v = { s, use, context };
	use(context, c->segment);
	use(context, c->backward);
	for (int i = 0; i < op->input_count; i++) {
		visit_layout(&v, op->in[i], c->take[i]);
		visit_layout(&v, op->in[i], c->kept[i]);
	}
	for (int o = 0; o < op->output_count; o++) {
		visit_layout(&v, op->out[o], c->out[o]);
		visit_layout(&v, op->out[o], c->gradient[o]);
	}
	for (int i = 0; i < c->need_count; i++)
		visit_layout(&v, c->need[i].tensor, c->need[i].layout);
	for (int i = 0; i < c->gives_count; i++)
		visit_layout(&v, g->contributions[i].of, c->gives[i]);
}
