/* SPDX-License-Identifier: Apache-2.0 */
/* Candidates have stages of one width per device class, and equal parts of the devices (candidates.c). A draft's successors differ from it
 * in one place: in all copies of a pipeline, or in one or some of them,
 *
 * - of a run of equal stages one, two, four and so on or all are divided into twice as many of half the width, or joined by twos into
 *   stages of twice the width; or the width of one or all is halved or doubled
 * - a stage is dropped or added, or goes to another pipeline, or half of its devices do
 * - two device classes that follow one another change places
 * - a pipeline is dropped or added, becomes two of half the width, or two become one
 * - stages are distributed among half as many pipelines, one less, one more or twice as many
 * - a pipeline is cut into two, or two different ones are joined
 *
 * so that stages of one class differ in width, and what does not divide evenly is used too. */
#include "controller/solver/search/beam_search_internal.h"

#include <string.h>

/* Number of stages from `at` on that are equal. */
static int run_length(const struct hspmd_stage_sequence *x, int at)
{
	int end = at + 1;
	while (end < x->stages && x->submesh[end] == x->submesh[at])
		end++;
	return end - at;
}

/* Replace `cut` stages from `at` on by `count` of a submesh. Returns false if that is no pipeline. */
static bool splice(const struct hspmd_stage_sequence *x, int at, int cut, int count, int submesh, struct hspmd_stage_sequence *out)
{
	int stages = x->stages - cut + count;
	if (stages < 1 || stages > HSPMD_STAGES_MAX || (count && submesh < 0))
		return false;
	*out = *x;
	out->stages = stages;
	memset(out->submesh + at, submesh, (size_t)count);
	memcpy(out->submesh + at + count, x->submesh + at + cut, (size_t)(x->stages - at - cut));
	return true;
}

/* All stages at `twice` or half their width. Returns false if one cannot be. */
static bool scale(const struct hspmd_submesh_tables *t, const struct hspmd_stage_sequence *x, bool twice, struct hspmd_stage_sequence *out)
{
	*out = *x;
	for (int s = 0; s < x->stages; s++) {
		const struct hspmd_submesh *u = &t->submeshes[x->submesh[s]];
		int to = !twice && u->tp % 2 ? -1 : hspmd_beam_submesh(t, u->device_class, twice ? 2 * u->tp : u->tp / 2);
		if (to < 0)
			return false;
		out->submesh[s] = (unsigned char)to;
	}
	return true;
}

/* Replace `from` copies of a group by `to` of another sequence. */
static void replace(struct beam *b, const struct beam_draft *base, int group, int from, int to, const struct hspmd_stage_sequence *x)
{
	struct beam_draft d = *base;
	hspmd_beam_remove_copies(&d, group, from);
	if (hspmd_beam_add_copies(&d, x, to))
		hspmd_beam_consider(b, &d);
}

/* Replace all copies of a group, one of them, and as many as spare devices are enough for. */
static void replace_some(struct beam *b, const struct beam_draft *base, int group, const struct hspmd_stage_sequence *x)
{
	int copies = base->copies[group], most = copies, left[HSPMD_DEVICE_CLASSES_MAX] = { 0 }, more[HSPMD_DEVICE_CLASSES_MAX] = { 0 };
	for (int g = 0; g < base->count; g++)
		hspmd_beam_add_use(b, &base->sequence[g], -base->copies[g], left);
	hspmd_beam_add_use(b, x, 1, more);
	hspmd_beam_add_use(b, &base->sequence[group], -1, more);
	for (int k = 0; k < b->t->device_classes->count; k++)
		if (more[k] > 0 && (left[k] + b->s->available[k]) / more[k] < most)
			most = (left[k] + b->s->available[k]) / more[k];
	if (most > 0)
		replace(b, base, group, most, most, x);
	if (most > 1)
		replace(b, base, group, 1, 1, x);
	if (most > 3)
		replace(b, base, group, most / 2, most / 2, x);
}

static void splice_some(struct beam *b, const struct beam_draft *base, int group, int at, int cut, int count, int submesh)
{
	struct hspmd_stage_sequence x;
	if (splice(&base->sequence[group], at, cut, count, submesh, &x))
		replace_some(b, base, group, &x);
}

/* Changes of a run of equal stages. */
static void change_run(struct beam *b, const struct beam_draft *base, int group, int at)
{
	const struct hspmd_stage_sequence *x = &base->sequence[group];
	int own = x->submesh[at], length = run_length(x, at), last = at + length - 1;
	const struct hspmd_submesh *u = &b->t->submeshes[own];
	int half = u->tp % 2 ? -1 : hspmd_beam_submesh(b->t, u->device_class, u->tp / 2),
	    twice = hspmd_beam_submesh(b->t, u->device_class, 2 * u->tp);
	splice_some(b, base, group, last, 1, 0, own);
	splice_some(b, base, group, at, 0, 1, own);
	splice_some(b, base, group, last, 1, 2, half);
	splice_some(b, base, group, at, length, 2 * length, half);
	splice_some(b, base, group, last, 1, 1, half);
	splice_some(b, base, group, at, length, length, half);
	splice_some(b, base, group, at + length, 0, 1, half);
	splice_some(b, base, group, at, 1, 1, twice);
	splice_some(b, base, group, at, length, length, twice);
	for (int part = 2; part < length; part *= 2)
		splice_some(b, base, group, last + 1 - part, part, 2 * part, half);
	for (int part = 1; 2 * part < length / 2 * 2; part *= 2)
		splice_some(b, base, group, at, 2 * part, part, twice);
	if (length > 1)
		splice_some(b, base, group, at, length / 2 * 2, length / 2, twice);
}

/* Two runs of equal stages that follow one another change places. */
static void swap_runs(struct beam *b, const struct beam_draft *base, int group, int at)
{
	struct hspmd_stage_sequence x = base->sequence[group];
	int first = run_length(&x, at), second = at + first < x.stages ? run_length(&x, at + first) : 0;
	if (!second)
		return;
	memset(x.submesh + at, base->sequence[group].submesh[at + first], (size_t)second);
	memset(x.submesh + at + second, base->sequence[group].submesh[at], (size_t)first);
	replace(b, base, group, base->copies[group], base->copies[group], &x);
}

/* Stages of device classes that the pipeline does not have, at both ends. */
static void add_classes(struct beam *b, const struct beam_draft *base, int group)
{
	const struct hspmd_stage_sequence *x = &base->sequence[group];
	int own[HSPMD_DEVICE_CLASSES_MAX] = { 0 };
	hspmd_beam_add_use(b, x, 1, own);
	for (int u = 0; u < b->t->submesh_count; u++)
		if (!own[b->t->submeshes[u].device_class]) {
			splice_some(b, base, group, 0, 0, 1, u);
			splice_some(b, base, group, x->stages, 0, 1, u);
		}
}

/* As many pipelines of two groups as there are of both, or one of each, are replaced. */
static void replace_two(struct beam *b, const struct beam_draft *base, int one, const struct hspmd_stage_sequence *x, int other,
                        const struct hspmd_stage_sequence *y)
{
	int both = base->copies[one] < base->copies[other] ? base->copies[one] : base->copies[other];
	for (int n = both; n > 0; n = n > 1 ? 1 : 0) {
		struct beam_draft d = *base;
		/* The group with the higher number first, as removal moves those after it. */
		hspmd_beam_remove_copies(&d, one > other ? one : other, n);
		hspmd_beam_remove_copies(&d, one > other ? other : one, n);
		if (hspmd_beam_add_copies(&d, x, n) && hspmd_beam_add_copies(&d, y, n))
			hspmd_beam_consider(b, &d);
	}
}

/* A stage, or half of its devices, goes from one pipeline to another: next to stages of its device class, or to the nearer end. */
static void move_stage(struct beam *b, const struct beam_draft *base, int from, int to, int at)
{
	const struct hspmd_stage_sequence *x = &base->sequence[from], *y = &base->sequence[to];
	int own = x->submesh[at], place = 2 * at < x->stages ? 0 : y->stages;
	const struct hspmd_submesh *u = &b->t->submeshes[own];
	int half = u->tp % 2 ? -1 : hspmd_beam_submesh(b->t, u->device_class, u->tp / 2);
	struct hspmd_stage_sequence less, more;
	for (int s = 0; s < y->stages; s++)
		if (b->t->submeshes[y->submesh[s]].device_class == u->device_class)
			place = s + 1;
	if (splice(x, at, 1, 0, own, &less) && splice(y, place, 0, 1, own, &more))
		replace_two(b, base, from, &less, to, &more);
	if (splice(x, at, 1, 1, half, &less) && splice(y, place, 0, 1, half, &more))
		replace_two(b, base, from, &less, to, &more);
}

/* The stages of `from` copies of a pipeline are distributed among `to` pipelines, those of each run evenly. */
static void distribute(struct beam *b, const struct beam_draft *base, int group, int from, int to)
{
	const struct hspmd_stage_sequence *own = &base->sequence[group];
	struct beam_draft d = *base;
	hspmd_beam_remove_copies(&d, group, from);
	for (int i = 0; i < to; i++) {
		struct hspmd_stage_sequence x = { 0 };
		for (int at = 0, next = 0, length; at < own->stages; at += length) {
			length = run_length(own, at);
			int more = length * from % to, stages = length * from / to + ((i - next + to) % to < more);
			if (x.stages + stages > HSPMD_STAGES_MAX)
				return;
			memset(x.submesh + x.stages, own->submesh[at], (size_t)stages);
			x.stages += stages;
			next = (next + more) % to; /* of the next run those get more that have fewer stages */
		}
		if (!x.stages || !hspmd_beam_add_copies(&d, &x, 1))
			return;
	}
	hspmd_beam_consider(b, &d);
}

/* Pipelines of two groups become longer ones: all that there are of both, or one. */
static void join(struct beam *b, const struct beam_draft *base, int first, int second)
{
	struct hspmd_stage_sequence x = base->sequence[first];
	const struct hspmd_stage_sequence *y = &base->sequence[second];
	int both = base->copies[first] < base->copies[second] ? base->copies[first] : base->copies[second];
	if (x.stages + y->stages > HSPMD_STAGES_MAX)
		return;
	memcpy(x.submesh + x.stages, y->submesh, (size_t)y->stages);
	x.stages += y->stages;
	for (int n = both; n > 0; n = n > 1 ? 1 : 0) {
		struct beam_draft d = *base;
		hspmd_beam_remove_copies(&d, first > second ? first : second, n);
		hspmd_beam_remove_copies(&d, first > second ? second : first, n);
		if (hspmd_beam_add_copies(&d, &x, n))
			hspmd_beam_consider(b, &d);
	}
}

/* The stages before this one become a pipeline, and the others another: in all copies or in one. */
static void cut(struct beam *b, const struct beam_draft *base, int group, int at)
{
	struct hspmd_stage_sequence x = base->sequence[group], y = x;
	x.stages = at;
	y.stages -= at;
	memmove(y.submesh, y.submesh + at, (size_t)y.stages);
	for (int n = base->copies[group]; at > 0 && n > 0; n = n > 1 ? 1 : 0) {
		struct beam_draft d = *base;
		hspmd_beam_remove_copies(&d, group, n);
		if (hspmd_beam_add_copies(&d, &x, n) && hspmd_beam_add_copies(&d, &y, n))
			hspmd_beam_consider(b, &d);
	}
}

static void change_pipelines(struct beam *b, const struct beam_draft *base, int group)
{
	struct hspmd_stage_sequence x;
	const struct hspmd_stage_sequence *own = &base->sequence[group];
	int copies = base->copies[group];
	replace(b, base, group, 1, 0, own);
	replace(b, base, group, 1, 2, own);
	if (scale(b->t, own, false, &x)) {
		replace(b, base, group, 1, 2, &x);
		replace(b, base, group, copies, 2 * copies, &x);
	}
	if (copies > 1 && scale(b->t, own, true, &x)) {
		replace(b, base, group, 2, 1, &x);
		replace(b, base, group, copies / 2 * 2, copies / 2, &x);
	}
	distribute(b, base, group, 1, 2);
	distribute(b, base, group, copies, 2 * copies);
	distribute(b, base, group, copies, copies + 1);
	if (copies < 2)
		return;
	distribute(b, base, group, 2, 1);
	distribute(b, base, group, copies, copies / 2);
	distribute(b, base, group, copies, copies - 1);
}

void hspmd_beam_expand(struct beam *b, const struct beam_draft *base)
{
	for (int g = 0; g < base->count && !b->short_of_memory && !hspmd_search_is_over(b->s); g++) {
		change_pipelines(b, base, g);
		add_classes(b, base, g);
		for (int other = 0; other < base->count; other++)
			if (other != g)
				join(b, base, g, other);
		for (int at = 0; at < base->sequence[g].stages; at += run_length(&base->sequence[g], at)) {
			change_run(b, base, g, at);
			swap_runs(b, base, g, at);
			cut(b, base, g, at);
			for (int other = 0; other < base->count; other++)
				if (other != g)
					move_stage(b, base, g, other, at);
		}
	}
}
