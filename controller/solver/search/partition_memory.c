/* SPDX-License-Identifier: Apache-2.0 */
/* Whether layers fit into the memory of a stage. A search asks that millions of times, of few stages: layers of which most are alike, on
 * few submeshes. So what was found is kept by all that it depends on, and holds for fewer or more layers, too. */
#include <limits.h>
#include <math.h>

#include "controller/solver/search/partition_internal.h"

/* The way of the least work in which layers [a, b) fit on stage s; -1: none. What they have to spare, and lack, is noted. */
static int least_fitting(const struct hspmd_partition_problem *p, const struct hspmd_submesh *u, int s, int a, int b,
                         struct hspmd_partition_slack *slack)
{
	int j = 31 - __builtin_clz((unsigned)(b - a));
	double transient = larger(u->transient[j][a], u->transient[j][b - (1 << j)]);
	double params = p->t->costs->tied_layer_count ? hspmd_device_params(p->t->costs, a, b, u->share) : u->params[b] - u->params[a];
	double more_state = (u->vectors[b] - u->vectors[a]) * p->vector_bytes[u - p->t->submeshes];
	double workspace = larger(u->workspace[j][a], u->workspace[j][b - (1 << j)]);
	double available = u->usable_bytes - params * p->state_bytes[u - p->t->submeshes] - more_state - workspace,
	       left = available - (u->resident[b] - u->resident[a]);
	double host_left = u->host_bytes - params * p->host_bytes[u - p->t->submeshes];
	double spare = available - params * p->end_bytes, lacking = INFINITY; /* least of what is left, and of what is missing */
	if (params * p->end_bytes > available || host_left < 0)
		return hspmd_partition_note(slack, -1, params, INFINITY, host_left < 0 ? 0 : -spare);
	double sent = b < p->t->layers ? p->t->size_bytes[p->t->size_of[b - 1]] : 0, in_flight = p->in_flight[s];
	bool in_turn = p->t->costs->facts && !(p->deferred[s] > 0); /* layers behind the one that runs have used what they saved */
	const double *least = u->saved[u->leanest];
	double of_leanest = in_flight * (least[b] - least[a] + sent);
	if (of_leanest > left)
		return hspmd_partition_note(slack, -1, params, spare, of_leanest - left);
	spare = smaller(spare, left - of_leanest);
	for (int i = 0; i < u->way_count; i++) {
		int way = u->ways[i];
		double saved = u->saved[way][b] - u->saved[way][a], more = u->deferred[way][b] - u->deferred[way][a] - saved;
		double *const *peak = u->peak[way], *offloaded = u->offloaded[way];
		double running = in_turn ? larger(saved + sent, larger(peak[j][a], peak[j][b - (1 << j)]) - u->saved[way][a])
		                         : saved + sent + larger(transient, u->recomputed[way]);
		bool in_host = !offloaded || in_flight * (offloaded[b] - offloaded[a]) <= host_left;
		running +=
		        offloaded ? offloaded[b] - offloaded[b - 1] : 0; /* of two micro-batches, between a forward and a backward pass */
		double all = (in_flight - 1) * (saved + sent) + running + p->deferred[s] * larger(more, 0);
		if (all <= left && in_host)
			return hspmd_partition_note(slack, way, params, smaller(spare, left - all), lacking);
		lacking = smaller(lacking, all > left ? all - left : 0);
	}
	return hspmd_partition_note(slack, -1, params, spare, lacking);
}

static void add_slack(struct hspmd_partition_slack *sum, const struct hspmd_partition_slack *slack)
{
	sum->more = smaller(sum->more, slack->more);
	sum->less = smaller(sum->less, slack->less);
}

/* The place of what is known of layers from a on, on stage s. */
static struct hspmd_room *room_of(const struct hspmd_partition_problem *p, int s, int a)
{
	struct hspmd_room *r = &p->t->rooms[(p->rooms[s] + (unsigned)a) % HSPMD_ROOMS];
	uint64_t key = p->keys[s] | (uint64_t)a;
	if (r->key != key || !r->unfit)
		*r = (struct hspmd_room){ .key = key, .unfit = SHRT_MAX };
	return r;
}

void hspmd_partition_find_rooms(struct hspmd_partition_problem *p, const struct hspmd_layer_copies *copies)
{
	for (int s = 0; s < p->sequence->stages; s++) {
		p->keys[s] = ((uint64_t)copies->pipelines << 2 | (uint64_t)copies->zero) << 41 | (uint64_t)p->sequence->submesh[s] << 35 |
		             (uint64_t)p->in_flight[s] << 19 | (uint64_t)p->deferred[s] << 12;
		p->rooms[s] = (unsigned)(p->keys[s] * UINT64_C(0x9e3779b97f4a7c15) >> 48);
	}
}

/* Note the first way in which layers with this end fit. */
static void note_fitting(const struct hspmd_submesh *u, struct hspmd_room *r, int b, int way, const struct hspmd_partition_slack *slack)
{
	int i = 0;
	if (way < 0) {
		r->unfit = (short)b;
		r->slack_unfit = *slack;
		return;
	}
	while (u->ways[i] != way)
		i++;
	if (i >= HSPMD_RECOMPUTE_KINDS)
		return;
	if (!r->from[i] || b < r->from[i]) {
		r->from[i] = (short)b;
		r->slack_from[i] = *slack;
	}
	if (b > r->to[i]) {
		r->to[i] = (short)b;
		r->slack_to[i] = *slack;
	}
}

/* The same from what is known. More layers need more memory, but for the model's last one, if the others are like one another. */
static int known_fitting(const struct hspmd_partition_problem *p, const struct hspmd_submesh *u, int s, int a, int b)
{
	if (b == p->t->layers || !p->t->steady)
		return least_fitting(p, u, s, a, b, p->slack);
	if (p->t->like_from[b - 1] <= a) { /* as many from the first layer on that is like them */
		b -= a - p->t->like_from[a];
		a = p->t->like_from[a];
	}
	struct hspmd_room *r = room_of(p, s, a);
	if (b >= r->unfit) {
		add_slack(p->slack, &r->slack_unfit);
		return -1;
	}
	int ways = u->way_count < HSPMD_RECOMPUTE_KINDS ? u->way_count : HSPMD_RECOMPUTE_KINDS, i = 0;
	while (i < ways && b > r->to[i])
		i++;
	if (i < ways && b >= r->from[i] && r->from[i]) {
		add_slack(p->slack, &r->slack_from[i]);
		add_slack(p->slack, &r->slack_to[i]);
		return u->ways[i];
	}
	struct hspmd_partition_slack slack = { false, INFINITY, INFINITY };
	int way = least_fitting(p, u, s, a, b, &slack);
	note_fitting(u, r, b, way, &slack);
	add_slack(p->slack, &slack);
	return way;
}

int hspmd_partition_fitting(const struct hspmd_partition_problem *p, int s, int a, int b)
{
	const struct hspmd_submesh *u = &p->t->submeshes[p->sequence->submesh[s]];
	int way = known_fitting(p, u, s, a, b);
	p->slack->limited = p->slack->limited || way != u->ways[0];
	return way;
}
