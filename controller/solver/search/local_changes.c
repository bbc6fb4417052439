/* SPDX-License-Identifier: Apache-2.0 */
/* Changes of single boundaries, stages and micro-batches. They are tried on copies of the plan, by as many threads as there are: each the
 * next change, as if none before it helped, which is mostly so. The first in order that helps is made, and those after it are tried
 * again. */
#include <math.h>
#include <string.h>

#include "common/fnv.h"
#include "controller/solver/search/local_search_internal.h"

#define CHANGE_NS 100e3 /* about what trying a change takes */

/* Move the boundary after stage s by `by` layers in pipeline i, and if `all`, also in all pipelines equal to it. */
static bool shift(struct local_search *r, int i, int s, int by, bool all)
{
	bool fits = true;
	for (int k = i; k < r->p->pipeline_count; k++) {
		if (k != i && (!all || r->group[k] != r->group[i]))
			continue;
		struct hspmd_stage *st = r->p->pipelines[k].stages;
		st[s].layers[1] += by;
		st[s + 1].layers[0] += by;
		if (k == i || !hspmd_local_fits_as(r, k, i)) {
			fits = fits && hspmd_stage_choose_way(r->s, r->p, k, s, false) &&
			       hspmd_stage_choose_way(r->s, r->p, k, s + 1, false);
			continue;
		}
		hspmd_stage_copy_way(&r->p->pipelines[i].stages[s], &st[s]);
		hspmd_stage_copy_way(&r->p->pipelines[i].stages[s + 1], &st[s + 1]);
	}
	return fits;
}

/* Swap the devices of neighbouring stages. */
static void swap_devices(struct local_search *r, int i, int s)
{
	for (int k = i; k < r->p->pipeline_count; k++) {
		if (r->group[k] != r->group[i])
			continue;
		struct hspmd_stage *a = &r->p->pipelines[k].stages[s], *b = a + 1, was = *a;
		a->device_count = b->device_count;
		a->devices = b->devices;
		a->shard_ratio = b->shard_ratio;
		a->sequence_parallel = b->sequence_parallel;
		b->device_count = was.device_count;
		b->devices = was.devices;
		b->shard_ratio = was.shard_ratio;
		b->sequence_parallel = was.sequence_parallel;
	}
}

/* Make a change. Returns false if one of the stages whose layers move fits in no way. */
static bool make(struct local_search *r, const struct change *x)
{
	if (x->what == MOVE_BORDER)
		return shift(r, x->pipeline, x->stage, x->by, x->all);
	if (x->what == SWAP_STAGES) {
		swap_devices(r, x->pipeline, x->stage);
	} else {
		r->p->pipelines[x->pipeline].micro_batches--;
		r->p->pipelines[x->to].micro_batches++;
	}
	return true;
}

static void copy_plan(const struct local_search *r, struct trial *t)
{
	struct hspmd_stage *stages = t->stages;
	t->plan = *r->p;
	t->plan.pipelines = t->pipelines;
	for (int i = 0; i < r->p->pipeline_count; i++) {
		t->pipelines[i] = r->p->pipelines[i];
		t->pipelines[i].stages = stages;
		memcpy(stages, r->p->pipelines[i].stages, (size_t)r->p->pipelines[i].stage_count * sizeof *stages);
		stages += r->p->pipelines[i].stage_count;
	}
	t->version = r->version;
}

/* Copy what a change may have changed. */
static void take_back(const struct local_search *r, struct trial *t, const struct change *x)
{
	for (int k = 0; k < r->p->pipeline_count; k++) {
		const struct hspmd_pipeline *from = &r->p->pipelines[k];
		t->pipelines[k].micro_batches = from->micro_batches;
		if (x->what != MOVE_MICRO_BATCH && r->group[k] == r->group[x->pipeline])
			memcpy(&t->pipelines[k].stages[x->stage], &from->stages[x->stage], 2 * sizeof *from->stages);
	}
}

/* Changes that are tried at the same time. */
struct attempt {
	const struct local_search *r;
	const struct change *changes;
	double seconds[HSPMD_SEARCH_THREADS_MAX];
	long work[HSPMD_SEARCH_THREADS_MAX]; /* number of stages timed */
};

static void try_one(void *context, struct hspmd_search *view, int64_t item)
{
	struct attempt *a = context;
	const struct change *x = &a->changes[item];
	struct trial *t = &a->r->trials[view->thread];
	struct local_search own = *a->r;
	own.s = view;
	own.p = &t->plan;
	own.ends = t->ends;
	if (t->version != a->r->version)
		copy_plan(a->r, t);
	/* A boundary changes two stages, and ways are chosen in which they fit. */
	bool fits = make(&own, x),
	     others_fit = x->what == MOVE_BORDER && !isinf(own.seconds) && !own.p->has_zero_shares && own.p->virtual_stages == 1;
	a->seconds[item] = !fits        ? INFINITY
	                   : others_fit ? hspmd_local_time_fitting(&own, own.seconds)
	                                : hspmd_local_time_below(&own, own.seconds);
	a->work[item] = a->r->budget - own.budget;
	take_back(a->r, t, x);
}

/* Returns true if the last change moved the same boundary: its changes are tried all or not at all. */
static bool is_begun(const struct local_search *r, const struct change *x)
{
	return x->what == MOVE_BORDER && r->begun.pipeline == x->pipeline && r->begun.stage == x->stage;
}

/* A number that differs if stages on both sides of the boundary keep what passes save in other ways. */
static uint64_t ways_at(const struct local_search *r, const struct change *x)
{
	uint64_t sum = 0;
	for (int k = 0; k < r->p->pipeline_count; k++)
		for (int s = x->stage; r->group[k] == r->group[x->pipeline] && s < x->stage + 2; s++) {
			const struct hspmd_stage *st = &r->p->pipelines[k].stages[s];
			const int way[] = { (int)st->recompute, st->offload_activations, st->sequence_parallel };
			sum = 31 * sum + hspmd_fnv1a(way, sizeof way);
		}
	return sum;
}

/* Stages whose boundary was moved in vain keep ways that are chosen anew for the layers that they have: the next changes build on them.
 * Returns true if these are other ways. */
static bool choose_ways_anew(struct local_search *r, const struct change *x)
{
	if (x->what != MOVE_BORDER || (is_begun(r, x) && (r->begun.all || !x->all)))
		return false;
	uint64_t before = ways_at(r, x);
	shift(r, x->pipeline, x->stage, 0, x->all);
	return ways_at(r, x) != before;
}

/* Try changes, at most one per thread, up to the first one that makes the step shorter, which is made, or after which the next ones must be
 * tried on another plan. Returns how many that are; -1 if the search has come to its end. */
static int try_changes(struct local_search *r, const struct change *changes, int count, bool *made)
{
	struct attempt a = { .r = r, .changes = changes };
	*made = false;
	if (!count || hspmd_search_share(r->s, count, CHANGE_NS, try_one, &a))
		return -1;
	for (int n = 0; n < count; n++) {
		if (!is_begun(r, &changes[n]) && !hspmd_local_go_on(r))
			return -1;
		r->budget -= a.work[n];
		*made = hspmd_local_better(r, a.seconds[n]);
		if (*made) {
			make(r, &changes[n]);
			r->seconds = a.seconds[n];
		}
		bool other = *made || choose_ways_anew(r, &changes[n]);
		r->begun = changes[n];
		if (other) {
			r->version++;
			return n + 1;
		}
	}
	return count;
}

/* The place of a change of a boundary. */
struct border {
	int pipeline, stage, step;
	bool one;     /* in this pipeline; before that comes the same in all equal ones */
	bool several; /* pipelines after this one are equal to it */
};

static const int border_steps[] = { 1, -1, 2, -2 };
#define BORDER_STEPS ((int)(sizeof border_steps / sizeof *border_steps))

static void move_on(struct border *at)
{
	if (at->one && ++at->step == BORDER_STEPS) {
		at->step = 0;
		at->stage++;
	}
	at->one = !at->one;
}

static struct border first_border(const struct local_search *r, int pipeline)
{
	struct border at = { .pipeline = pipeline };
	for (int k = pipeline + 1; k < r->p->pipeline_count; k++)
		at.several = at.several || r->group[k] == pipeline;
	return at;
}

/* The next change from this place on that leaves both stages layers. Returns false if there is none. */
static bool next_border(const struct local_search *r, struct border *at, struct change *x)
{
	while (at->pipeline < r->p->pipeline_count) {
		const struct hspmd_pipeline *pipe = &r->p->pipelines[at->pipeline];
		if (at->stage + 1 >= pipe->stage_count) {
			*at = first_border(r, at->pipeline + 1);
			continue;
		}
		*x = (struct change){ MOVE_BORDER, at->pipeline, at->stage, border_steps[at->step], !at->one, 0 };
		move_on(at);
		const struct hspmd_stage *st = &pipe->stages[x->stage];
		bool first = r->group[x->pipeline] == x->pipeline;
		bool useful = x->all ? first : r->p->pipeline_count <= 16 && (at->several || !first);
		if (useful && st[0].layers[1] + x->by > st[0].layers[0] && st[0].layers[1] + x->by < st[1].layers[1])
			return true;
	}
	return false;
}

bool hspmd_local_try_borders(struct local_search *r)
{
	struct change changes[HSPMD_SEARCH_THREADS_MAX];
	struct border at = first_border(r, 0), after[HSPMD_SEARCH_THREADS_MAX];
	bool any = false, made;
	r->version++;
	r->begun.pipeline = -1;
	for (int count = 0, tried;; count = 0) {
		while (count < r->threads && next_border(r, &at, &changes[count]))
			after[count++] = at;
		if ((tried = try_changes(r, changes, count, &made)) < 0)
			return any;
		at = after[tried - 1];
		any = any || made;
		if (made && changes[tried - 1].all)
			move_on(&at);
		else if (made)
			hspmd_local_find_groups(r);
	}
}

/* Move a micro-batch from the pipeline that ends last to one of those that end first. One pipeline of each partition is tried, because
 * the ends alone do not say how much longer a pipeline takes with one more. */
static bool move_micro_batch(struct local_search *r)
{
	struct change changes[HSPMD_SEARCH_THREADS_MAX];
	int n = r->p->pipeline_count, last = 0, count = 0;
	if (isinf(hspmd_local_time_below(r, INFINITY)))
		return false;
	for (int i = 1; i < n; i++)
		if (r->ends[i] > r->ends[last])
			last = i;
	if (r->p->pipelines[last].micro_batches < 2)
		return false;
	for (int i = 0; i < n; i++) {
		int first = -1;
		for (int k = i; k < n && r->group[i] == i; k++)
			if (k != last && r->group[k] == i && r->p->pipelines[k].micro_batch == r->p->pipelines[last].micro_batch &&
			    (first < 0 || r->p->pipelines[k].micro_batches < r->p->pipelines[first].micro_batches))
				first = k;
		if (first >= 0)
			changes[count++] = (struct change){ MOVE_MICRO_BATCH, last, 0, 0, false, first };
		if (count == r->threads || (count && i == n - 1)) {
			bool made;
			if (try_changes(r, changes, count, &made) < 0 || made)
				return made;
			count = 0;
		}
	}
	return false;
}

bool hspmd_local_try_micro_batches(struct local_search *r)
{
	bool any = false;
	r->version++;
	while (hspmd_local_go_on(r) && r->p->pipeline_count > 1 && move_micro_batch(r))
		any = true;
	return any;
}

/* The next two stages, from stage *s of pipeline *i on, whose devices differ. Returns false if there are none. */
static bool next_swap(const struct local_search *r, int *i, int *s, struct change *x)
{
	const int *class_of = r->s->device_classes->class_of_device;
	for (; *i < r->p->pipeline_count; (*i)++, *s = 0)
		while (r->group[*i] == *i && *s + 1 < r->p->pipelines[*i].stage_count) {
			const struct hspmd_stage *a = &r->p->pipelines[*i].stages[(*s)++], *b = a + 1;
			*x = (struct change){ SWAP_STAGES, *i, *s - 1, 0, true, 0 };
			if (a->device_count != b->device_count || class_of[a->devices[0]] != class_of[b->devices[0]])
				return true;
		}
	return false;
}

bool hspmd_local_try_swaps(struct local_search *r)
{
	struct change changes[HSPMD_SEARCH_THREADS_MAX];
	bool any = false, made;
	r->version++;
	/* A pipeline rank has the same devices in every chunk. */
	for (int i = 0, s = 0, count = 0, tried; r->p->virtual_stages == 1; count = 0) {
		while (count < r->threads && next_swap(r, &i, &s, &changes[count]))
			count++;
		if ((tried = try_changes(r, changes, count, &made)) < 0)
			break;
		if (!made)
			continue;
		any = true;
		i = changes[tried - 1].pipeline;
		s = changes[tried - 1].stage + 1;
	}
	return any;
}
