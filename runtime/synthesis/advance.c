/* SPDX-License-Identifier: Apache-2.0 */
/* One step of a partial program: the state after a group from the state before it; and the bound of what is left. */
#include <math.h>

#include "runtime/synthesis/synthesis_internal.h"

static const struct live nothing = { .home = LAYOUT_NONE, .first = LAYOUT_NONE, .gradient = LAYOUT_NONE };

static bool is_there(const struct live *l, int layout)
{
	return l->home == layout || l->first == layout || l->made >> layout & 1;
}

/* Brings a tensor to a layout, unless it is there. Rows of experts are there if all rows are, and no other layout can be made of them;
 * where it takes as long to bring all rows, these are brought. */
static double bring(struct hspmd_synthesis *s, int tensor, struct live *l, int layout)
{
	if (is_there(l, layout) || (layout == LAYOUT_ROWS && is_there(l, LAYOUT_WHOLE)))
		return 0;
	int from = l->first == LAYOUT_NONE ? l->home : l->first;
	double seconds = hspmd_synthesis_reshard(s, tensor, from, layout);
	if (layout == LAYOUT_ROWS) {
		if (seconds < hspmd_synthesis_reshard(s, tensor, from, LAYOUT_WHOLE)) {
			l->made |= 1U << layout;
			return seconds;
		}
		layout = LAYOUT_WHOLE;
	}
	if (l->first == LAYOUT_NONE)
		l->first = (unsigned char)layout;
	else if (seconds > 0)
		l->made |= 1U << layout;
	return seconds;
}

/* A parameter that several groups read is kept as the first of them chose. */
static bool place(const struct hspmd_synthesis *s, const struct hspmd_op *op, const struct choice *choice, struct live *scratch)
{
	for (int i = 0; i < op->input_count; i++) {
		int t = op->in[i];
		if (t < 0 || s->g->tensors[t].role != HSPMD_TENSOR_PARAMETER || !s->tensors[t].shared)
			continue;
		if (scratch[t].home == LAYOUT_NONE)
			scratch[t].home = scratch[t].first = choice->kept[i];
		if (scratch[t].home != choice->kept[i])
			return false;
	}
	return true;
}

/* Adds a part of a tensor's gradient. */
static double contribute(struct hspmd_synthesis *s, const struct contribution *what, int layout, struct live *l)
{
	const struct tensor_facts *t = &s->tensors[what->of];
	int home = l->gradient;
	/* Nobody would bring the gradient from the one's layout to the other's. */
	if (what->leaf < 0 && t->contributions == 1 && !t->read_gradient && layout != home)
		return HUGE_VAL;
	if (t->contributions == 1)
		return hspmd_synthesis_reshard(s, what->of, layout, home);
	if (hspmd_synthesis_is_sum(layout))
		l->partial = 1;
	l->plain += hspmd_synthesis_reshard(s, what->of, layout, home);
	l->sum += hspmd_synthesis_reshard(s, what->of, layout, LAYOUT_SUM);
	return 0;
}

static double add_seconds(struct hspmd_synthesis *s, int tensor, int layout)
{
	struct tensor_facts *t = &s->tensors[tensor];
	if (t->add_seconds[layout] < 0) {
		const struct hspmd_op *op = &s->g->ops[t->adds[0]];
		const struct hspmd_annotation *a = hspmd_synthesis_layout(s, tensor, layout);
		struct hspmd_op_view view;
		hspmd_op_view_of(s->g, op, &view);
		t->add_seconds[layout] = hspmd_synthesis_op_seconds(&s->stage, s->rate, s->memory_rate, &view, hspmd_op_types[op->opcode],
		                                                    (const struct hspmd_annotation *const[]){ a, a },
		                                                    (const struct hspmd_annotation *const[]){ a }, NULL, NULL);
	}
	return t->add_seconds[layout];
}

/* Seconds to add up the parts of an activation's gradient. Of parts that are sums, either each is brought to the layout of the whole
 * gradient, or the others are made sums too and the total is brought there. */
static double add_parts(struct hspmd_synthesis *s, int tensor, const struct live *l, bool *as_sums)
{
	int adds = s->tensors[tensor].add_count;
	double plain = l->plain + adds * add_seconds(s, tensor, l->gradient), sums = HUGE_VAL;
	if (l->partial)
		sums = l->sum + hspmd_synthesis_reshard(s, tensor, LAYOUT_SUM, l->gradient) + adds * add_seconds(s, tensor, LAYOUT_SUM);
	*as_sums = sums < plain;
	return fmin(plain, sums);
}

bool hspmd_synthesis_adds_sums(struct hspmd_synthesis *s, int tensor, int gradient)
{
	const struct tensor_facts *t = &s->tensors[tensor];
	struct live l = nothing;
	bool as_sums;
	l.gradient = (unsigned char)gradient;
	for (int n = t->first_group; n <= t->last_group; n++)
		for (int k = 0; k < s->groups[n].contribution_count; k++)
			if (s->groups[n].contributions[k].of == tensor)
				contribute(s, &s->groups[n].contributions[k], s->groups[n].choices[s->chosen[n]].gives[k], &l);
	add_parts(s, tensor, &l, &as_sums);
	return as_sums;
}

/* All parts of a tensor's gradient are known, or all reads of a shared parameter. */
static double finish(struct hspmd_synthesis *s, int tensor, const struct live *l)
{
	const struct tensor_facts *t = &s->tensors[tensor];
	const struct hspmd_tensor *what = &s->g->tensors[tensor];
	if (what->role == HSPMD_TENSOR_PARAMETER) {
		if (!t->shared || !l->partial || l->partial - 1 == l->home)
			return 0;
		return hspmd_synthesis_transfer(s, &what->shape, hspmd_dtype_bytes(hspmd_dtype_master(what->dtype)),
		                                hspmd_synthesis_layout(s, tensor, l->partial - 1),
		                                hspmd_synthesis_layout(s, tensor, l->home)) /
		       s->stage.micro_batches;
	}
	bool as_sums;
	return t->contributions < 2 ? 0 : add_parts(s, tensor, l, &as_sums);
}

static double apply_choice(struct hspmd_synthesis *s, const struct group *g, const struct choice *choice, struct live *scratch)
{
	const struct hspmd_op *op = &s->g->ops[g->op];
	double seconds = choice->seconds;
	if (!place(s, op, choice, scratch))
		return HUGE_VAL;
	for (int o = 0; o < op->output_count; o++)
		if (op->out[o] >= 0 && choice->out[o] != LAYOUT_NONE) {
			struct live *l = &scratch[op->out[o]];
			l->home = choice->out[o];
			l->gradient = choice->gradient[o];
			l->first = hspmd_synthesis_is_sum(l->home) ? LAYOUT_NONE : l->home;
		}
	for (int n = 0; n < choice->need_count; n++)
		seconds += bring(s, choice->need[n].tensor, &scratch[choice->need[n].tensor], choice->need[n].layout);
	for (int k = 0; k < g->contribution_count; k++)
		seconds += contribute(s, &g->contributions[k], choice->gives[k], &scratch[g->contributions[k].of]);
	for (int k = 0; k < choice->sums_count; k++) {
		struct live *l = &scratch[choice->sums[k].tensor];
		if (l->partial && l->partial - 1 != choice->sums[k].layout)
			return HUGE_VAL; /* both add to one accumulator */
		l->partial = (unsigned char)(choice->sums[k].layout + 1);
	}
	return seconds;
}

double hspmd_synthesis_advance(struct hspmd_synthesis *s, int number, const struct choice *choice, const struct live *before,
                               struct live *after, struct live *scratch)
{
	const struct group *g = &s->groups[number];
	for (int i = 0; i < g->touched_count; i++)
		scratch[g->touched[i]] = nothing;
	for (int i = 0; i < s->live_count[number]; i++)
		scratch[s->live[number][i]] = before[i];
	double seconds = apply_choice(s, g, choice, scratch);
	for (int i = 0; i < g->touched_count; i++)
		if (s->tensors[g->touched[i]].last_group == number)
			seconds += finish(s, g->touched[i], &scratch[g->touched[i]]);
	for (int i = 0; i < s->live_count[number + 1]; i++)
		after[i] = scratch[s->live[number + 1][i]];
	return seconds;
}

/* ---- the bound */

/* What a choice costs at least if its group comes next to read the tensors of `reads`, of which `at` says how they lie. */
static double least_with(struct hspmd_synthesis *s, const struct group *g, const struct choice *choice, struct live *at, const bool *reads)
{
	const struct hspmd_op *op = &s->g->ops[g->op];
	double seconds = choice->seconds;
	for (int i = 0; i < op->input_count; i++)
		if (op->in[i] >= 0 && reads[op->in[i]] && s->g->tensors[op->in[i]].role == HSPMD_TENSOR_PARAMETER &&
		    at[op->in[i]].home != choice->kept[i])
			return HUGE_VAL;
	for (int k = 0; k < choice->sums_count; k++)
		if (reads[choice->sums[k].tensor] && at[choice->sums[k].tensor].partial &&
		    at[choice->sums[k].tensor].partial - 1 != choice->sums[k].layout)
			return HUGE_VAL;
	for (int n = 0; n < choice->need_count; n++)
		if (reads[choice->need[n].tensor])
			seconds += bring(s, choice->need[n].tensor, &at[choice->need[n].tensor], choice->need[n].layout);
	for (int k = 0; k < g->contribution_count; k++)
		if (reads[g->contributions[k].of] && s->tensors[g->contributions[k].of].contributions == 1)
			seconds += contribute(s, &g->contributions[k], choice->gives[k], &at[g->contributions[k].of]);
	return seconds;
}

double hspmd_synthesis_bound(struct hspmd_synthesis *s, int number, const struct live *state, struct live *scratch, bool *reads)
{
	double seconds = s->rest[number];
	int count = s->live_count[number];
	const int *next = s->live_next[number], *live = s->live[number];
	for (int i = 0; i < count && isfinite(seconds); i++) {
		const struct group *g = &s->groups[next[i]];
		bool counted = false;
		for (int j = 0; j < i; j++)
			counted |= next[j] == next[i];
		if (counted)
			continue;
		for (int j = i; j < count; j++)
			reads[live[j]] = next[j] == next[i];
		double least = HUGE_VAL;
		for (int k = 0; k < g->choice_count; k++) {
			if (g->choices[k].excluded || g->choices[k].seconds >= least)
				continue;
			for (int j = i; j < count; j++)
				scratch[live[j]] = state[j];
			least = fmin(least, least_with(s, g, &g->choices[k], scratch, reads));
		}
		for (int j = i; j < count; j++)
			reads[live[j]] = false;
		seconds += least - g->least;
	}
	return seconds;
}
