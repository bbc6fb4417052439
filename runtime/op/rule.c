/* SPDX-License-Identifier: Apache-2.0 */
/* Deduction from a rule: the devices of every subgroup divide the operator's loops. Each input, most important first, proposes a division
 * (its splits, at the same digits of the device numbering); each proposal that is compatible with those accepted before is accepted. The
 * annotations of every input and output then follow from the loops. */
#include "runtime/op/rule.h"

#include <ctype.h>
#include <string.h>

#include "common/alloc.h"
#include "runtime/op/op_internal.h"

#define FREE '\0'     /* devices that differ in this digit do the same work */
#define PARTIAL '+'   /* devices that differ in this digit have addends of linear inputs */
#define MAX_PIECES 20 /* HSPMD_ANNOTATION_MAX_DEVICES is 2^16 */

/* A digit of the device numbering, outermost first: `parts` values, and the index that they cut. */
struct piece {
	char index;
	int parts;
	int64_t unit;           /* in steps of the index */
	const int64_t *weights; /* borrowed */
};

struct division {
	int count;
	struct piece piece[MAX_PIECES];
};

struct deduction {
	const struct hspmd_op_type *type;
	const struct hspmd_op_view *v;
	struct hspmd_op_rule rule;
	const struct hspmd_annotation *base; /* gives the subgroups */
	struct division *groups;
	struct piece across; /* how subgroups relate; parts is the number of subgroups */
	struct hspmd_error *err;
};

const char *hspmd_rule_leading(int rank)
{
	static const char *const leading[] = { "", "b", "bt", "bth", "bthc", "bthcd", "bthcde" };
	return leading[rank];
}

static bool may_be_partial(const struct deduction *d, int input)
{
	return d->rule.in[input][0] == '+';
}

/* Pattern characters of an input's dimensions. */
static const char *pattern(const struct deduction *d, int input)
{
	return d->rule.in[input] + may_be_partial(d, input);
}

static bool usable(const struct deduction *d, int input)
{
	return input < d->v->input_count && d->v->annotation[input];
}

static bool same_groups(const struct hspmd_annotation *a, const struct hspmd_annotation *b)
{
	if (a->hsize != b->hsize)
		return false;
	for (int g = 0; g < a->hsize; g++)
		if (a->groups[g].device_count != b->groups[g].device_count ||
		    memcmp(a->groups[g].devices, b->groups[g].devices, (size_t)a->groups[g].device_count * sizeof(int)) != 0)
			return false;
	return true;
}

/* ---- from an input's dimension to an index */

/* Expresses a cut of `size` elements into parts in steps of `step` elements: *unit becomes the granularity in steps. Returns false if a
 * bound is inside a step. */
static bool in_steps(int64_t size, int64_t step, int parts, const int64_t *weights, int64_t *unit)
{
	if (*unit % step == 0) {
		*unit /= step;
		return true;
	}
	for (int k = 0; k < parts; k++) {
		int64_t lo, hi, step_lo, step_hi;
		hspmd_split_range(size, *unit, parts, weights, k, &lo, &hi);
		hspmd_split_range(size, step, parts, weights, k, &step_lo, &step_hi);
		if (lo != step_lo || hi != step_hi)
			return false;
	}
	*unit = 1;
	return true;
}

/* The index that dimension `dim` of an input names; FREE: none. *step receives the elements per step of the index. */
static char index_of(const struct deduction *d, int input, int dim, int64_t *step)
{
	char c = dim >= 0 ? pattern(d, input)[dim] : '!';
	*step = c == 'h' && d->rule.in_step[input] ? d->rule.in_step[input] : 1;
	return isalpha((unsigned char)c) ? (char)tolower((unsigned char)c) : FREE;
}

/* ---- dividing the loops */

/* Puts `piece` at the digit where the outer digits of the device numbering have `outer` values in total. Returns false if that digit is not
 * free. */
static bool place_piece(struct division *s, int outer, const struct piece *piece)
{
	int before = 1, i = 0;
	for (; i < s->count; before *= s->piece[i++].parts) {
		int end = before * s->piece[i].parts;
		if (s->piece[i].index == FREE && outer % before == 0 && end % (outer * piece->parts) == 0)
			break;
	}
	if (i == s->count || s->count + 2 > MAX_PIECES)
		return false;
	int lead = outer / before, rest = s->piece[i].parts / lead / piece->parts;
	struct piece put[3], spare = { .index = FREE };
	int n = 0;
	if (lead > 1)
		put[n++] = (struct piece){ .index = spare.index, .parts = lead };
	put[n++] = *piece;
	if (rest > 1)
		put[n++] = (struct piece){ .index = spare.index, .parts = rest };
	memmove(s->piece + i + n, s->piece + i + 1, (size_t)(s->count - i - 1) * sizeof *s->piece);
	memcpy(s->piece + i, put, (size_t)n * sizeof *put);
	s->count += n - 1;
	return true;
}

/* ---- from indices to tensors */

struct lookup {
	const char *dims;
	int64_t step;
	bool linear;     /* may be partial: pieces of index PARTIAL give HSPMD_PARTIAL */
	const char *sum; /* outputs: indices summed over */
};

/* How a piece appears in a tensor: its dimension, HSPMD_DUPLICATE or HSPMD_PARTIAL. *one: the dimension has one element per part. */
static int dim_of(const struct lookup *l, char index, bool *one)
{
	*one = false;
	if (index == PARTIAL)
		return l->linear ? HSPMD_PARTIAL : HSPMD_DUPLICATE;
	if (index == FREE)
		return HSPMD_DUPLICATE;
	for (int dim = 0; l->dims[dim] && l->dims[dim] != '/'; dim++) {
		if (l->dims[dim] == index)
			return dim;
		if (l->sum && l->dims[dim] == toupper((unsigned char)index)) {
			*one = true;
			return dim;
		}
	}
	return l->sum && strchr(l->sum, index) ? HSPMD_PARTIAL : HSPMD_DUPLICATE;
}

static int64_t elements_per_step(const struct lookup *l, int dim)
{
	return dim >= 0 && l->dims[dim] == 'h' && l->step ? l->step : 1;
}

static struct hspmd_annotation *one_group(const struct deduction *d, int g, const struct lookup *l)
{
	const struct hspmd_subgroup *group = &d->base->groups[g];
	struct hspmd_annotation *a = hspmd_annotation_single(group->devices, group->device_count);
	for (int i = 0; a && i < d->groups[g].count; i++) {
		const struct piece *p = &d->groups[g].piece[i];
		bool one;
		int dim = dim_of(l, p->index, &one);
		if (hspmd_annotation_split(a, 0, dim, p->parts, dim < 0 || one ? 1 : p->unit * elements_per_step(l, dim),
		                           dim < 0 || one ? NULL : p->weights)) {
			hspmd_annotation_destroy(a);
			return NULL;
		}
	}
	return a;
}

static struct hspmd_annotation *whole_union(const struct deduction *d, const struct lookup *l)
{
	int hsize = d->base->hsize;
	struct hspmd_annotation **groups = hspmd_calloc((size_t)hsize, sizeof(*groups)), *a = NULL;
	int made = 0;
	while (groups && made < hsize && (groups[made] = one_group(d, made, l)))
		made++;
	if (groups && made == hsize) {
		bool one;
		int dim = dim_of(l, d->across.index, &one);
		a = hspmd_annotation_union((const struct hspmd_annotation *const *)groups, hsize, dim,
		                           dim < 0 || one ? 1 : d->across.unit * elements_per_step(l, dim),
		                           dim < 0 || one ? NULL : d->across.weights);
	}
	for (int g = 0; g < made; g++)
		hspmd_annotation_destroy(groups[g]);
	free(groups);
	return a;
}

static struct hspmd_annotation *input_annotation(const struct deduction *d, int input)
{
	struct lookup l = { .dims = pattern(d, input), .step = d->rule.in_step[input], .linear = may_be_partial(d, input) };
	struct hspmd_annotation *a = whole_union(d, &l);
	if (!a)
		hspmd_fail_memory(d->err, "deducing annotations");
	return a;
}

static struct hspmd_annotation *output_annotation(const struct deduction *d, int output)
{
	const char *slash = strchr(d->rule.out[output], '/');
	struct lookup l = { .dims = d->rule.out[output], .step = d->rule.out_step[output], .linear = true, .sum = slash ? slash + 1 : "" };
	struct hspmd_annotation *a = whole_union(d, &l);
	if (!a)
		hspmd_fail_memory(d->err, "deducing annotations");
	return a;
}

/* Lets only the rows of a device's experts count, if the experts are divided. 0, or -1 (memory). */
static int limit_rows(const struct deduction *d, struct hspmd_annotation *a)
{
	struct lookup l = { .dims = "e" };
	int per_token = (int)hspmd_op_last_dim(&d->v->in[d->type->rows.choice - 1]);
	bool divided = d->across.index == 'e';
	for (int g = 0; g < d->base->hsize; g++)
		for (int i = 0; i < d->groups[g].count; i++)
			divided |= d->groups[g].piece[i].index == 'e' && d->groups[g].piece[i].parts > 1;
	if (!divided)
		return 0;
	struct hspmd_annotation *experts = whole_union(d, &l);
	if (!experts || hspmd_annotation_set_rows(a, experts, d->v->attr->experts, per_token))
		return hspmd_fail_memory(d->err, "deducing annotations");
	return 0;
}

/* Returns true if the division leaves every device a part of input `input`. */
static bool leaves_all_some(const struct deduction *d, int input)
{
	struct hspmd_annotation *a = input_annotation(d, input);
	bool fine = a && hspmd_annotation_check(a, &d->v->in[input], NULL) == 0;
	hspmd_annotation_destroy(a);
	return fine;
}

/* ---- proposals */

/* Places a cut of `input`, unless the cuts of one index by two inputs together leave a device without elements. */
static bool try_place(struct deduction *d, int g, int outer, const struct piece *piece, int input)
{
	struct division before = d->groups[g];
	if (!place_piece(&d->groups[g], outer, piece))
		return false;
	if (leaves_all_some(d, input))
		return true;
	d->groups[g] = before;
	return false;
}

/* Proposes an input's split across subgroups. `only`: the indices that the input may decide; "": all. */
static void propose_across(struct deduction *d, int input, const char *only)
{
	const struct hspmd_annotation *a = d->v->annotation[input];
	int64_t step;
	char index = a->hsize > 1 ? index_of(d, input, a->hdim, &step) : FREE;
	if (index == FREE || d->across.index != FREE || (*only && !strchr(only, index)))
		return;
	struct piece across = { .index = index, .parts = a->hsize, .unit = a->hunit, .weights = a->hweights }, before = d->across;
	if (!in_steps(d->v->in[input].dim[a->hdim], step, a->hsize, a->hweights, &across.unit))
		return;
	d->across = across;
	if (!leaves_all_some(d, input))
		d->across = before;
}

static void propose_within(struct deduction *d, int input, int g, const char *only)
{
	const struct hspmd_annotation *a = d->v->annotation[input];
	const struct hspmd_subgroup *group = &a->groups[g];
	int outer = 1;
	for (int i = 0; i < group->split_count; outer *= group->splits[i++].parts) {
		const struct hspmd_split *s = &group->splits[i];
		int64_t step, size = s->dim >= 0 ? d->v->in[input].dim[s->dim] : 0;
		char index = index_of(d, input, s->dim, &step);
		struct piece piece = { .index = index, .parts = s->parts, .unit = s->unit, .weights = s->weights };
		if (index == FREE || s->parts == 1 || (*only && !strchr(only, index)))
			continue;
		/* bounds that are multiples of the step by chance are known only for the whole dimension */
		bool cut_before = a->hdim == s->dim;
		for (int j = 0; j < i; j++)
			cut_before |= group->splits[j].dim == s->dim;
		if (cut_before && s->unit % step)
			continue;
		if (in_steps(size, step, s->parts, s->weights, &piece.unit))
			try_place(d, g, outer, &piece, input);
	}
}

static void propose(struct deduction *d, int input, const char *only)
{
	if (!usable(d, input) || !same_groups(d->base, d->v->annotation[input]))
		return;
	propose_across(d, input, only);
	for (int g = 0; g < d->base->hsize; g++)
		propose_within(d, input, g, only);
}

/* Iterates over the rule's priority, one input per call. Returns the rest, NULL at the end. */
static const char *next_by_priority(const char *priority, int *input, char *only)
{
	if (!*priority)
		return NULL;
	*input = *priority++ - '0';
	while (isalpha((unsigned char)*priority))
		*only++ = *priority++;
	*only = '\0';
	return priority;
}

static void propose_all(struct deduction *d)
{
	char only[sizeof d->rule.priority];
	int input;
	for (const char *at = next_by_priority(d->rule.priority, &input, only); at; at = next_by_priority(at, &input, only))
		propose(d, input, only);
}

/* ---- partial inputs */

static bool partial_at(const struct hspmd_subgroup *group, int outer, int parts)
{
	int before = 1;
	for (int i = 0; i < group->split_count; before *= group->splits[i++].parts)
		if (group->splits[i].dim == HSPMD_PARTIAL && before == outer && group->splits[i].parts == parts)
			return true;
	return false;
}

/* Returns true if all inputs that may be partial are partial: at a digit of group g, or (g < 0) across groups. */
static bool all_partial(const struct deduction *d, int g, int outer, int parts)
{
	for (int i = 0; i < d->v->input_count; i++) {
		if (!usable(d, i) || !may_be_partial(d, i))
			continue;
		const struct hspmd_annotation *a = d->v->annotation[i];
		if (!same_groups(d->base, a) || !(g < 0 ? a->hdim == HSPMD_PARTIAL : partial_at(&a->groups[g], outer, parts)))
			return false;
	}
	return true;
}

/* Addends stay addends if the operator is linear; else, with sequence parallelism, their sum is preferably left split along dimension 1. */
static void propose_partial(struct deduction *d, int input, int g)
{
	const struct hspmd_subgroup *group = &d->v->annotation[input]->groups[g];
	int outer = 1;
	for (int i = 0; i < group->split_count; outer *= group->splits[i++].parts) {
		int parts = group->splits[i].parts;
		if (group->splits[i].dim != HSPMD_PARTIAL || parts == 1)
			continue;
		struct piece piece = { .index = PARTIAL, .parts = parts, .unit = 1 };
		if (may_be_partial(d, input) && all_partial(d, g, outer, parts) && place_piece(&d->groups[g], outer, &piece))
			continue;
		piece.index = 't';
		if (d->v->sequence_parallel && d->v->in[input].rank > 1 && pattern(d, input)[1] == 't')
			try_place(d, g, outer, &piece, input);
	}
}

static void propose_partials(struct deduction *d)
{
	bool linear = false;
	for (int i = 0; i < d->v->input_count; i++) {
		if (!usable(d, i) || !same_groups(d->base, d->v->annotation[i]))
			continue;
		linear |= may_be_partial(d, i);
		for (int g = 0; g < d->base->hsize; g++)
			propose_partial(d, i, g);
	}
	if (linear && d->across.index == FREE && d->base->hsize > 1 && all_partial(d, -1, 1, 1))
		d->across = (struct piece){ .index = PARTIAL, .parts = d->base->hsize, .unit = 1 };
}

/* ---- outputs with one element per part */

/* Cuts an index into exactly `parts` in every group: unchanged if it is so already, else the index's cuts are dropped and a new one is
 * placed anywhere. */
static int cut_exactly(struct deduction *d, char index, int64_t parts)
{
	if (d->across.index == index)
		d->across = (struct piece){ .index = FREE, .parts = d->across.parts };
	for (int g = 0; g < d->base->hsize; g++) {
		struct division *s = &d->groups[g];
		int64_t now = 1;
		for (int i = 0; i < s->count; i++)
			now *= s->piece[i].index == index ? s->piece[i].parts : 1;
		if (now == parts)
			continue;
		for (int i = 0; i < s->count; i++)
			if (s->piece[i].index == index)
				s->piece[i] = (struct piece){ .index = FREE, .parts = s->piece[i].parts };
		struct piece piece = { .index = index, .parts = (int)parts, .unit = 1 };
		bool placed = parts == 1;
		for (int outer = 1; !placed && outer <= d->base->groups[g].device_count; outer++)
			placed = place_piece(s, outer, &piece);
		if (!placed)
			return hspmd_fail(d->err, "%d devices cannot hold %d parts of index '%c'", d->base->groups[g].device_count,
			                  (int)parts, index);
	}
	return 0;
}

static int cut_for_outputs(struct deduction *d)
{
	for (int o = 0; o < d->v->output_count; o++)
		for (int dim = 0; dim < d->v->out[o].rank; dim++)
			if (isupper((unsigned char)d->rule.out[o][dim]) &&
			    cut_exactly(d, (char)tolower((unsigned char)d->rule.out[o][dim]), d->v->out[o].dim[dim]))
				return -1;
	return 0;
}

/* ---- all together */

/* The base is the input with the most subgroups; among equals, the first by the rule's priority. */
static int choose_base(struct deduction *d)
{
	char only[sizeof d->rule.priority];
	int input;
	bool given = d->rule.priority[0] != '\0';
	for (int i = 0; !given && i < d->v->input_count; i++)
		memcpy(d->rule.priority + i, (char[]){ (char)('0' + i), '\0' }, 2);
	for (const char *at = next_by_priority(d->rule.priority, &input, only); at; at = next_by_priority(at, &input, only))
		if (usable(d, input) && (!d->base || d->v->annotation[input]->hsize > d->base->hsize))
			d->base = d->v->annotation[input];
	if (!d->base)
		return hspmd_fail(d->err, "no input has an annotation");
	d->groups = hspmd_calloc((size_t)d->base->hsize, sizeof *d->groups);
	if (!d->groups)
		return hspmd_fail_memory(d->err, "deducing annotations");
	for (int g = 0; g < d->base->hsize; g++)
		if (d->base->groups[g].device_count > 1)
			d->groups[g] =
			        (struct division){ .count = 1, .piece = { { .index = FREE, .parts = d->base->groups[g].device_count } } };
	d->across = (struct piece){ .index = FREE, .parts = d->base->hsize };
	return 0;
}

static int fill_annotations(struct deduction *d, struct hspmd_annotation **want, struct hspmd_annotation **out)
{
	for (int i = 0; i < d->v->input_count; i++) {
		if (!usable(d, i))
			continue;
		want[i] = input_annotation(d, i);
		if (!want[i])
			return -1;
		if (hspmd_annotation_check(want[i], &d->v->in[i], d->err))
			return hspmd_error_prefix(d->err, "input %d", i);
		if (d->type->rows.choice && (d->type->rows.in >> i & 1) && !hspmd_annotation_is_partial(want[i]) && limit_rows(d, want[i]))
			return -1;
		if (hspmd_annotation_serves(d->v->annotation[i], want[i], &d->v->in[i])) {
			hspmd_annotation_destroy(want[i]);
			want[i] = NULL;
		}
	}
	for (int o = 0; o < d->v->output_count; o++) {
		if (d->v->out[o].rank < 0)
			continue;
		out[o] = output_annotation(d, o);
		if (!out[o])
			return -1;
		if (d->type->rows.choice && (d->type->rows.out >> o & 1) && limit_rows(d, out[o]))
			return -1;
		if (hspmd_annotation_check(out[o], &d->v->out[o], d->err))
			return hspmd_error_prefix(d->err, "output %d", o);
	}
	return 0;
}

static void destroy_all(struct hspmd_annotation **list, int count)
{
	for (int i = 0; i < count; i++) {
		hspmd_annotation_destroy(list[i]);
		list[i] = NULL;
	}
}

int hspmd_op_deduce(const struct hspmd_op_type *type, const struct hspmd_op_view *v, struct hspmd_annotation **want,
                    struct hspmd_annotation **out, struct hspmd_error *err)
{
	struct deduction d = { .type = type, .v = v, .err = err };
	memset(want, 0, (size_t)v->input_count * sizeof *want);
	memset(out, 0, (size_t)v->output_count * sizeof *out);
	if (!type->rule)
		return hspmd_fail(err, "it is never part of a graph");
	type->rule(v, &d.rule);
	int rc = choose_base(&d);
	if (!rc) {
		propose_all(&d);
		propose_partials(&d);
		rc = cut_for_outputs(&d) || fill_annotations(&d, want, out) ? -1 : 0;
	}
	if (rc) {
		destroy_all(want, v->input_count);
		destroy_all(out, v->output_count);
	}
	free(d.groups);
	return rc;
}
