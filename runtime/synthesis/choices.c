/* SPDX-License-Identifier: Apache-2.0 */
/* The ways to divide each group: what its operators then read, make and cost. */
#include <ctype.h>
#include <math.h>
#include <string.h>

#include "common/alloc.h"
#include "runtime/synthesis/synthesis_internal.h"

#define MAX_LOCAL 24   /* gradients that a group's backward operators make */
#define MAX_ATTEMPTS 4 /* to find layouts that an operator takes as they are */

struct chooser {
	struct hspmd_synthesis *s;
	const struct group *group;
	const struct hspmd_op *op;
	struct choice *choice;
	double unequal; /* seconds that other shares of the devices may save of its operators */
	int local_count;
	struct {
		int tensor;
		struct hspmd_annotation *annotation;
	} local[MAX_LOCAL];
	uint32_t gradient_made[HSPMD_OP_MAX_IO];  /* per output: bits of the layouts in which its gradient exists */
	uint32_t parameter_made[HSPMD_OP_MAX_IO]; /* per input that is a parameter */
};

/* An operator with its inputs as layouts, while they are found. */
struct trial {
	const struct hspmd_op *op;
	struct hspmd_op_view view;
	unsigned char layout[HSPMD_OP_MAX_IO]; /* LAYOUT_NONE: a gradient of the group's own */
	const struct hspmd_annotation *in[HSPMD_OP_MAX_IO];
	struct hspmd_annotation *wanted[HSPMD_OP_MAX_IO]; /* of gradients of the group's own */
	int like[HSPMD_OP_MAX_IO];                        /* the forward tensor that has the input's layouts */
	struct hspmd_annotation *out[HSPMD_OP_MAX_IO];
};

static void end_trial(struct trial *t)
{
	for (int i = 0; i < HSPMD_OP_MAX_IO; i++) {
		hspmd_annotation_destroy(t->out[i]);
		hspmd_annotation_destroy(t->wanted[i]);
	}
}

static bool is_readable(int layout)
{
	return layout != LAYOUT_NONE && !hspmd_synthesis_is_sum(layout);
}

/* Takes what deduction wants of input i. Takes ownership. Returns 0, or 1 if that is impossible. */
static int adopt(struct chooser *c, struct trial *t, int i, struct hspmd_annotation *want)
{
	if (t->layout[i] == LAYOUT_NONE) {
		hspmd_annotation_destroy(t->wanted[i]);
		t->in[i] = t->wanted[i] = want;
		return 0;
	}
	int layout = hspmd_synthesis_layout_of(c->s, t->like[i], want);
	hspmd_annotation_destroy(want);
	t->layout[i] = (unsigned char)layout;
	t->in[i] = is_readable(layout) ? hspmd_synthesis_layout(c->s, t->like[i], layout) : NULL;
	return t->in[i] ? 0 : 1;
}

/* Finds layouts that the operator takes as they are, starting with those of the trial. Returns 0, or 1: there are none. */
static int settle(struct chooser *c, struct trial *t)
{
	for (int attempt = 0; attempt < MAX_ATTEMPTS; attempt++) {
		struct hspmd_annotation *want[HSPMD_OP_MAX_IO] = { NULL };
		memcpy(t->view.annotation, t->in, sizeof t->in);
		if (hspmd_op_deduce(hspmd_op_types[t->op->opcode], &t->view, want, t->out, NULL))
			return 1;
		int status = 0, wants = 0;
		for (int i = 0; i < t->op->input_count; i++) {
			if (!want[i])
				continue;
			wants++;
			status |= adopt(c, t, i, want[i]);
		}
		if (!wants)
			return 0;
		for (int o = 0; o < HSPMD_OP_MAX_IO; o++) {
			hspmd_annotation_destroy(t->out[o]);
			t->out[o] = NULL;
		}
		if (status)
			return 1;
	}
	return 1;
}

/* Adds the operator's seconds. Returns 0, or 1 if memory is short. */
static int add_operator(struct chooser *c, const struct trial *t)
{
	const struct hspmd_synthesis *s = c->s;
	struct op_record *r = s->record;
	size_t n = (size_t)s->stage.device_count;
	if (r && hspmd_array_grow(&r->seconds, &r->capacity, r->count, n * sizeof *r->seconds))
		return 1;
	double least, seconds = hspmd_synthesis_op_seconds(&s->stage, s->rate, s->memory_rate, &t->view, hspmd_op_types[t->op->opcode],
	                                                   t->in, (const struct hspmd_annotation *const *)t->out,
	                                                   r ? r->seconds + n * r->count++ : NULL, &least);
	c->choice->seconds += seconds;
	c->unequal += seconds - least;
	return 0;
}

static bool is_parameter(const struct chooser *c, int tensor)
{
	return tensor >= 0 && c->s->g->tensors[tensor].role == HSPMD_TENSOR_PARAMETER;
}

/* ---- parameters */

static int keep(struct chooser *c, int i)
{
	int tensor = c->op->in[i], layout = c->choice->take[i], longest = -1;
	const struct hspmd_shape *shape = &c->s->g->tensors[tensor].shape;
	if (c->choice->kept_how >= KEPT_LAYOUT && c->s->tensors[tensor].shared)
		layout = c->choice->kept_how - KEPT_LAYOUT;
	if (c->choice->kept_how == KEPT_IN_PARTS && layout == LAYOUT_WHOLE)
		for (int d = 0; d < shape->rank; d++)
			if (hspmd_synthesis_layout(c->s, tensor, d) && (longest < 0 || shape->dim[d] > shape->dim[longest]))
				longest = layout = d;
	c->choice->kept[i] = (unsigned char)layout;
	c->parameter_made[i] = 1U << layout;
	return hspmd_synthesis_layout(c->s, tensor, layout) ? 0 : 1;
}

static int input_of(const struct hspmd_op *op, int tensor)
{
	for (int i = 0; i < op->input_count; i++)
		if (op->in[i] == tensor)
			return i;
	return -1;
}

static int output_of(const struct hspmd_op *op, int tensor)
{
	for (int o = 0; o < op->output_count; o++)
		if (op->out[o] == tensor)
			return o;
	return -1;
}

/* Books that a forward tensor is read in a layout. */
static int need(struct chooser *c, int tensor, int layout)
{
	struct choice *choice = c->choice;
	int i = input_of(c->op, tensor);
	if (c->s->g->tensors[tensor].role == HSPMD_TENSOR_INPUT)
		return 0;
	if (is_parameter(c, tensor) && i >= 0 && !c->s->tensors[tensor].shared) {
		if (!(c->parameter_made[i] >> layout & 1))
			choice->seconds += hspmd_synthesis_reshard(c->s, tensor, choice->kept[i], layout);
		c->parameter_made[i] |= 1U << layout;
		return 0;
	}
	for (int n = 0; n < choice->need_count; n++)
		if (choice->need[n].tensor == tensor && choice->need[n].layout == layout)
			return 0;
	if (choice->need_count == (int)(sizeof choice->need / sizeof *choice->need))
		return 1;
	choice->need[choice->need_count++] = (struct layout_use){ tensor, (unsigned char)layout };
	return 0;
}

/* ---- the forward operator */

/* The layout in which the gradient of an output is brought here. One of which only rows of experts come is no part of a sum. */
static unsigned char gradient_layout(const struct chooser *c, int tensor, int out)
{
	if (c->choice->backward >= 0)
		return (unsigned char)hspmd_synthesis_split_by(c->s, tensor, c->choice->backward);
	if (!hspmd_synthesis_is_sum(out))
		return (unsigned char)out;
	return c->choice->rows && out == LAYOUT_ROW_SUM && c->s->tensors[tensor].contributions == 1 ? LAYOUT_ROWS : LAYOUT_WHOLE;
}

static int try_forward(struct chooser *c, struct trial *t)
{
	const struct hspmd_op *op = c->op;
	bool split = false, divided = false;
	t->op = op;
	hspmd_op_view_of(c->s->g, op, &t->view);
	for (int i = 0; i < op->input_count; i++) {
		c->choice->take[i] = c->choice->kept[i] = LAYOUT_NONE;
		if (op->in[i] < 0)
			continue;
		t->like[i] = op->in[i];
		bool rows = c->choice->rows && (hspmd_op_types[op->opcode]->rows.in >> i & 1);
		t->layout[i] = (unsigned char)(rows ? LAYOUT_ROWS : hspmd_synthesis_split_by(c->s, op->in[i], c->choice->segment));
		t->in[i] = hspmd_synthesis_layout(c->s, op->in[i], t->layout[i]);
		if (!t->in[i])
			return 1;
	}
	if (settle(c, t))
		return 1;
	for (int i = 0; i < op->input_count; i++) {
		if (op->in[i] < 0)
			continue;
		c->choice->take[i] = t->layout[i];
		split |= t->layout[i] != LAYOUT_WHOLE;
		if ((is_parameter(c, op->in[i]) && keep(c, i)) || need(c, op->in[i], t->layout[i]))
			return 1;
	}
	if (!split && c->choice->segment >= 0)
		return 1; /* nothing is divided: the same as without a segment */
	for (int o = 0; o < op->output_count; o++) {
		c->choice->out[o] = c->choice->gradient[o] = LAYOUT_NONE;
		if (op->out[o] < 0 || c->s->g->tensors[op->out[o]].role != HSPMD_TENSOR_ACTIVATION)
			continue;
		c->choice->out[o] = (unsigned char)hspmd_synthesis_layout_of(c->s, op->out[o], t->out[o]);
		if (c->choice->out[o] == LAYOUT_NONE)
			return 1;
		c->choice->gradient[o] = gradient_layout(c, op->out[o], c->choice->out[o]);
		if (!hspmd_synthesis_layout(c->s, op->out[o], c->choice->gradient[o]))
			return 1;
		divided |= c->choice->gradient[o] != LAYOUT_WHOLE;
	}
	if (!divided && c->choice->backward >= 0)
		return 1;
	return add_operator(c, t);
}

/* ---- backward operators */

static const struct hspmd_annotation *local_of(const struct chooser *c, int tensor)
{
	for (int l = 0; l < c->local_count; l++)
		if (c->local[l].tensor == tensor)
			return c->local[l].annotation;
	return NULL;
}

/* The output of the forward operator whose gradient this is, -1: none. */
static int gradient_of(const struct chooser *c, int tensor)
{
	for (int o = 0; o < c->op->output_count; o++)
		if (c->op->out[o] >= 0 && c->s->g->tensors[c->op->out[o]].grad == tensor)
			return o;
	return -1;
}

/* The layout in which input i of a backward operator is first tried. */
static int first_layout(const struct chooser *c, const struct trial *t, int i, bool factors)
{
	int tensor = t->op->in[i], as_input = input_of(c->op, tensor), as_output = output_of(c->op, tensor), o = gradient_of(c, tensor);
	if (as_input >= 0 && is_parameter(c, tensor))
		return t->op->opcode == HSPMD_OP_ACCUMULATE ? c->choice->kept[as_input] : c->choice->take[as_input];
	if (factors)
		return LAYOUT_WHOLE;
	if (o >= 0)
		return c->choice->gradient[o];
	if (c->choice->backward >= 0)
		return hspmd_synthesis_split_by(c->s, tensor, c->choice->backward);
	if (as_input >= 0)
		return c->choice->take[as_input];
	return as_output >= 0 ? c->choice->out[as_output] : hspmd_synthesis_split_by(c->s, tensor, c->choice->segment);
}

static int start_backward(struct chooser *c, struct trial *t, bool factors)
{
	for (int i = 0; i < t->op->input_count; i++) {
		int tensor = t->op->in[i], o = tensor < 0 ? -1 : gradient_of(c, tensor);
		t->layout[i] = LAYOUT_NONE;
		if (tensor < 0 || (t->in[i] = local_of(c, tensor)))
			continue;
		t->like[i] = o >= 0 ? c->op->out[o] : tensor;
		t->layout[i] = (unsigned char)first_layout(c, t, i, factors);
		t->in[i] = is_readable(t->layout[i]) ? hspmd_synthesis_layout(c->s, t->like[i], t->layout[i]) : NULL;
		if (!t->in[i])
			return 1;
	}
	return 0;
}

/* Books what the operator reads. */
static int book_inputs(struct chooser *c, const struct trial *t)
{
	for (int i = 0; i < t->op->input_count; i++) {
		int tensor = t->op->in[i], o = tensor < 0 ? -1 : gradient_of(c, tensor);
		if (tensor < 0)
			continue;
		if (t->layout[i] == LAYOUT_NONE) {
			if (t->wanted[i])
				c->choice->seconds += hspmd_synthesis_transfer(c->s, &t->view.in[i], hspmd_dtype_bytes(t->view.in_dtype[i]),
				                                               local_of(c, tensor), t->wanted[i]);
		} else if (o >= 0) {
			int home = c->choice->gradient[o];
			if (!(c->gradient_made[o] >> t->layout[i] & 1))
				c->choice->seconds += hspmd_synthesis_reshard(c->s, c->op->out[o], home, t->layout[i]);
			c->gradient_made[o] |= 1U << t->layout[i];
		} else if (need(c, tensor, t->layout[i])) {
			return 1;
		}
	}
	return 0;
}

static int book_outputs(struct chooser *c, struct trial *t)
{
	const struct hspmd_graph *g = c->s->g;
	for (int o = 0; o < t->op->output_count; o++) {
		int tensor = t->op->out[o];
		if (tensor < 0)
			continue;
		if (g->tensors[tensor].role != HSPMD_TENSOR_PARAMETER_GRADIENT) {
			if (c->local_count == MAX_LOCAL)
				return 1;
			c->local[c->local_count].tensor = tensor;
			c->local[c->local_count++].annotation = t->out[o];
			t->out[o] = NULL;
			continue;
		}
		for (int i = 0; i < c->op->input_count; i++) {
			if (!is_parameter(c, c->op->in[i]) || g->tensors[c->op->in[i]].grad != tensor)
				continue;
			int layout = hspmd_synthesis_layout_of(c->s, c->op->in[i], t->out[o]);
			if (layout == LAYOUT_NONE || (c->choice->sum[i] != LAYOUT_NONE && c->choice->sum[i] != layout))
				return 1;
			c->choice->sum[i] = (unsigned char)layout;
		}
	}
	return 0;
}

static int try_backward(struct chooser *c, int number)
{
	struct trial t = { .op = &c->s->g->ops[c->group->backward[number]] };
	bool factors = c->choice->factors && t.op->opcode == HSPMD_OP_LINEAR_GRAD_W;
	hspmd_op_view_of(c->s->g, t.op, &t.view);
	int status = start_backward(c, &t, factors) || settle(c, &t) || book_inputs(c, &t) ? 1 : 0;
	if (!status) {
		memcpy(c->choice->backward_take[number], t.layout, sizeof t.layout);
		status = add_operator(c, &t) || book_outputs(c, &t) ? 1 : 0;
	}
	end_trial(&t);
	return status;
}

/* ---- what the group gives to others */

static int give(struct chooser *c)
{
	struct choice *choice = c->choice;
	for (int k = 0; k < c->group->contribution_count; k++) {
		const struct contribution *what = &c->group->contributions[k];
		int layout;
		if (what->leaf < 0) {
			layout = choice->gradient[output_of(c->op, what->from)];
		} else {
			const struct hspmd_annotation *a = local_of(c, what->leaf);
			layout = a ? hspmd_synthesis_layout_of(c->s, what->of, a) : LAYOUT_NONE;
		}
		if (layout == LAYOUT_NONE)
			return 1;
		choice->gives[choice->gives_count++] = (unsigned char)layout;
	}
	return 0;
}

/* The step's sums of the gradients of parameters that this group alone reads; others are part of the state. */
static int sum_gradients(struct chooser *c)
{
	struct hspmd_synthesis *s = c->s;
	double once = 0; /* per step, divided by the number of micro-batches */
	for (int i = 0; i < c->op->input_count; i++) {
		int w = c->op->in[i];
		if (!is_parameter(c, w) || c->choice->sum[i] == LAYOUT_NONE || input_of(c->op, w) != i)
			continue;
		if (s->tensors[w].shared) {
			c->choice->sums[c->choice->sums_count++] = (struct layout_use){ w, c->choice->sum[i] };
			continue;
		}
		if (c->choice->sum[i] == c->choice->kept[i])
			continue;
		const struct hspmd_tensor *t = &s->g->tensors[w];
		double seconds = hspmd_synthesis_transfer(s, &t->shape, hspmd_dtype_bytes(hspmd_dtype_master(t->dtype)),
		                                          hspmd_synthesis_layout(s, w, c->choice->sum[i]),
		                                          hspmd_synthesis_layout(s, w, c->choice->kept[i]));
		once += seconds / s->stage.micro_batches;
	}
	c->choice->seconds += once;
	return isfinite(c->choice->seconds) ? 0 : 1;
}

static void add_bytes(const struct chooser *c, int tensor, int layout, double each)
{
	const struct hspmd_synthesis *s = c->s;
	const struct hspmd_annotation *a = s->tensors[tensor].layout[layout];
	for (int d = 0; d < s->stage.device_count; d++) {
		struct hspmd_local_shard shard;
		if (hspmd_annotation_local_shard(a, &s->g->tensors[tensor].shape, s->stage.devices[d], &shard))
			c->choice->bytes[d] += (double)hspmd_box_elements(&shard.box) * each;
	}
}

static int count_bytes(struct chooser *c)
{
	struct hspmd_synthesis *s = c->s;
	int group = (int)(c->group - s->groups);
	if (!s->limited)
		return 0;
	if (!c->choice->bytes)
		c->choice->bytes = hspmd_arena_alloc(s->arena, (size_t)s->stage.device_count, sizeof *c->choice->bytes);
	for (int i = 0; c->choice->bytes && i < c->op->input_count; i++)
		if (is_parameter(c, c->op->in[i]) && s->tensors[c->op->in[i]].first_group == group && input_of(c->op, c->op->in[i]) == i)
			add_bytes(c, c->op->in[i], c->choice->kept[i], s->stage.state_bytes);
	for (int o = 0; c->choice->bytes && o < c->op->output_count; o++)
		if (c->choice->out[o] != LAYOUT_NONE)
			add_bytes(c, c->op->out[o], c->choice->out[o], (double)hspmd_dtype_bytes(s->g->tensors[c->op->out[o]].dtype));
	return c->choice->bytes ? 0 : -1;
}

/* Returns 0, 1 if the group cannot be divided so, or -1: memory. */
static int evaluate(struct chooser *c)
{
	struct trial t = { 0 };
	c->local_count = 0;
	memset(c->choice->sum, LAYOUT_NONE, sizeof c->choice->sum);
	memset(c->gradient_made, 0, sizeof c->gradient_made);
	if (!c->choice->backward_take)
		c->choice->backward_take =
		        hspmd_arena_alloc(c->s->arena, (size_t)c->group->backward_count, sizeof *c->choice->backward_take);
	if (!c->choice->backward_take)
		return -1;
	int status = try_forward(c, &t);
	end_trial(&t);
	for (int o = 0; !status && o < c->op->output_count; o++)
		c->gradient_made[o] = 1U << (c->choice->gradient[o] & 15);
	for (int b = 0; !status && b < c->group->backward_count; b++)
		status = try_backward(c, b);
	if (!status && (give(c) || sum_gradients(c)))
		status = 1;
	c->choice->any_shares = c->choice->seconds - c->unequal;
	for (int l = 0; l < c->local_count; l++)
		hspmd_annotation_destroy(c->local[l].annotation);
	return status ? status : count_bytes(c);
}

/* ---- all choices of a group */

/* Returns true if other groups cannot tell two choices apart. */
static bool same_outside(const struct hspmd_synthesis *s, const struct group *g, const struct choice *a, const struct choice *b)
{
	const struct hspmd_op *op = &s->g->ops[g->op];
	for (int i = 0; i < op->input_count; i++)
		if (op->in[i] >= 0 && s->g->tensors[op->in[i]].role == HSPMD_TENSOR_PARAMETER && s->tensors[op->in[i]].shared &&
		    a->kept[i] != b->kept[i])
			return false;
	return !memcmp(a->out, b->out, (size_t)op->output_count) && !memcmp(a->gradient, b->gradient, (size_t)op->output_count) &&
	       a->gives_count == b->gives_count && !memcmp(a->gives, b->gives, (size_t)a->gives_count) && a->need_count == b->need_count &&
	       !memcmp(a->need, b->need, (size_t)a->need_count * sizeof *a->need) && a->sums_count == b->sums_count &&
	       !memcmp(a->sums, b->sums, (size_t)a->sums_count * sizeof *a->sums);
}

/* Adds a choice, or replaces a dearer one that is the same for others. */
static int add_choice(struct hspmd_synthesis *s, struct group *g, const struct choice *what, size_t *capacity)
{
	for (int k = 0; k < g->choice_count && !s->limited; k++)
		if (same_outside(s, g, &g->choices[k], what)) {
			double any_shares = fmin(what->any_shares, g->choices[k].any_shares);
			if (what->seconds < g->choices[k].seconds)
				g->choices[k] = *what;
			g->choices[k].any_shares = any_shares;
			return 0;
		}
	if (hspmd_arena_array_grow(s->arena, &g->choices, capacity, (size_t)g->choice_count, sizeof *what))
		return -1;
	g->choices[g->choice_count++] = *what;
	return 0;
}

static bool has_factors(const struct hspmd_synthesis *s, const struct group *g)
{
	for (int b = 0; b < g->backward_count; b++)
		if (s->g->ops[g->backward[b]].opcode == HSPMD_OP_LINEAR_GRAD_W)
			return true;
	return false;
}

/* The ways to keep its parameters. */
static int kept_ways(const struct hspmd_synthesis *s, const struct group *g)
{
	const struct hspmd_op *op = &s->g->ops[g->op];
	int ways = 1;
	for (int i = 0; i < op->input_count; i++)
		if (op->in[i] >= 0 && s->g->tensors[op->in[i]].role == HSPMD_TENSOR_PARAMETER)
			ways = s->tensors[op->in[i]].shared ? KEPT_LAYOUT + LAYOUT_SUM : ways < 2 ? 2 : ways;
	return ways;
}

static int choices_by_segment(struct hspmd_synthesis *s, struct group *g, int segment, int backward, size_t *capacity)
{
	int ways = kept_ways(s, g), factors = has_factors(s, g) ? 2 : 1;
	int rows = segment >= 0 && segment == hspmd_synthesis_expert_segment(s, &s->g->ops[g->op]) ? 2 : 1;
	for (int how = 0; how < ways; how++)
		for (int f = 0; f < factors * rows; f++) {
			struct choice choice = {
				.segment = segment, .backward = backward, .factors = f % factors == 1, .rows = f >= factors, .kept_how = how
			};
			struct chooser c = { .s = s, .group = g, .op = &s->g->ops[g->op], .choice = &choice };
			int status = evaluate(&c);
			if (status < 0 || (status == 0 && add_choice(s, g, &choice, capacity)))
				return -1;
		}
	return 0;
}

/* Segments that the operator's loops divide, without duplicates. */
static int segments_of(const struct hspmd_synthesis *s, const struct hspmd_op *op, int *list)
{
	struct hspmd_op_view view;
	struct hspmd_op_rule rule;
	int count = 0;
	hspmd_op_view_of(s->g, op, &view);
	hspmd_op_types[op->opcode]->rule(&view, &rule);
	for (int i = 0; i < op->input_count; i++) {
		const char *pattern = rule.in[i] + (rule.in[i][0] == '+');
		for (int d = 0; op->in[i] >= 0 && d < view.in[i].rank && pattern[d]; d++) {
			int segment = s->tensors[op->in[i]].segment[d], at = 0;
			while (at < count && list[at] != segment)
				at++;
			if (islower((unsigned char)pattern[d]) && segment >= 0 && at == count)
				list[count++] = segment;
		}
	}
	return count;
}

int hspmd_synthesis_revalue(struct hspmd_synthesis *s, int number, struct choice *choice)
{
	struct choice fresh = { .segment = choice->segment,
		                .backward = choice->backward,
		                .factors = choice->factors,
		                .rows = choice->rows,
		                .kept_how = choice->kept_how,
		                .bytes = choice->bytes,
		                .backward_take = choice->backward_take };
	struct chooser c = { .s = s, .group = &s->groups[number], .op = &s->g->ops[s->groups[number].op], .choice = &fresh };
	for (int d = 0; fresh.bytes && d < s->stage.device_count; d++)
		fresh.bytes[d] = 0;
	int status = evaluate(&c);
	*choice = fresh;
	return status;
}

int hspmd_synthesis_find_choice(const struct hspmd_synthesis *s, int number, const struct choice *choice)
{
	const struct group *g = &s->groups[number];
	for (int k = 0; k < g->choice_count; k++) {
		const struct choice *c = &g->choices[k];
		if (s->limited ? c->segment == choice->segment && c->backward == choice->backward && c->factors == choice->factors &&
		                         c->rows == choice->rows && c->kept_how == choice->kept_how
		               : same_outside(s, g, c, choice))
			return k;
	}
	return -1;
}

int hspmd_synthesis_choices(struct hspmd_synthesis *s, struct hspmd_error *err)
{
	for (int n = 0; n < s->group_count; n++) {
		struct group *g = &s->groups[n];
		const struct hspmd_op *op = &s->g->ops[g->op];
		int segments[HSPMD_OP_MAX_IO * HSPMD_MAX_RANK];
		size_t capacity = 0;
		g->choices = NULL;
		g->choice_count = 0;
		int count = segments_of(s, op, segments), status = choices_by_segment(s, g, -1, -1, &capacity);
		for (int k = 0; !status && s->stage.device_count > 1 && k < count; k++)
			status = choices_by_segment(s, g, segments[k], -1, &capacity) ||
			         (g->backward_count && choices_by_segment(s, g, -1, segments[k], &capacity));
		if (status)
			return hspmd_fail_memory(err, "searching a program");
		if (!s->found && hspmd_synthesis_timed_out(s))
			return hspmd_fail(err, "no program of the stage was found in time");
		if (g->choice_count == 0)
			return hspmd_fail(err, "operator %s (layer %d) cannot be divided, nor repeated by all devices",
			                  hspmd_opcode_names[op->opcode], op->layer);
	}
	hspmd_synthesis_watch(s);
	return 0;
}
