/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/ctld/snapshot.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/gres.h"
#include "common/name_list.h"
#include "policies/match.h"

struct building {
	struct ctld_snapshot *out;
	const struct hspmd_slurm_view *v;
	const struct hspmd_policy *policy;
	const struct ctld_peer *peers;
	int peer_count;
	const struct ctld_node_history *node_histories;
	double now_s;
	int *first;      /* per class: its first node */
	int *holder;     /* per node: elastic job */
	int *users;      /* per node: jobs on it */
	double *added_s; /* per node: when the member job that has it began; 0: no member has it */
	uint32_t *members; /* ids of all peers' member jobs, in order */
	size_t member_count;
	/* What Slurm could preempt of elastic jobs and their members: the lowest tier of such a partition (INT_MAX: none), or their
	 * different QOS. */
	int lowest_tier;
	size_t qos_count, qos_capacity;
	const char **qos;
};

/* ---- classes: nodes that no job can tell apart */

static bool alike(const struct building *b, int x, int y)
{
	const struct hspmd_slurm_view_node *m = &b->v->nodes[x], *n = &b->v->nodes[y];
	if (m->cpus != n->cpus || m->memory_mb != n->memory_mb || strcmp(m->features, n->features) != 0 || strcmp(m->gres, n->gres) != 0)
		return false;
	for (int p = 0; p < b->v->partition_count; p++)
		if (b->v->partitions[p].nodes[x] != b->v->partitions[p].nodes[y])
			return false;
	return true;
}

static int type_of(struct ctld_snapshot *s, const char *name)
{
	int t = 0;
	while (t < s->snapshot.type_count && strcmp(s->type_names[t], name) != 0)
		t++;
	if (t == s->snapshot.type_count) {
		snprintf(s->type_names[t], sizeof s->type_names[t], "%s", name);
		s->types[t] = s->type_names[t];
		s->snapshot.type_count++;
	}
	return t;
}

static void make_classes(struct building *b)
{
	struct ctld_snapshot *s = b->out;
	for (int i = 0; i < b->v->node_count; i++) {
		int c = 0;
		while (c < s->snapshot.class_count && !alike(b, b->first[c], i))
			c++;
		if (c == s->snapshot.class_count) {
			char type[32];
			int devices = hspmd_gres_devices(b->v->nodes[i].gres, type, sizeof type);
			s->classes[c] = (struct hspmd_snapshot_class){ .type = type_of(s, type),
				                                       .devices = devices,
				                                       .price_per_hour = ctld_price(b->v->nodes[i].features) };
			b->first[c] = i;
			s->snapshot.class_count++;
		}
		s->nodes[i].class = c;
	}
	for (int c = 0; c < s->snapshot.class_count; c++) {
		double up = 0;
		int losses = 0;
		for (int i = 0; i < b->v->node_count; i++)
			if (s->nodes[i].class == c) {
				up += b->node_histories[i].up_s;
				losses += b->node_histories[i].losses;
			}
		s->classes[c].losses_per_s = losses && up > 0 ? losses / up : 0;
	}
}

static void fill_usable(const struct building *b, const struct hspmd_slurm_view_job *j, unsigned char *usable)
{
	for (int c = 0; c < b->out->snapshot.class_count; c++)
		usable[c] = ctld_fits(b->v, j, b->first[c]);
}

/* Which nodes an elastic job can get. If the policy has another partition for members, only theirs; they ask for devices of any type. */
static void fill_growable(struct building *b, const struct hspmd_slurm_view_job *j, const char *partition, unsigned char *usable)
{
	struct hspmd_slurm_view_job member = *j;
	char gres[512], no_features[] = "";
	bool elsewhere = partition && strcmp(partition, j->partition) != 0;
	if (elsewhere && !hspmd_gres_request(j->tres_per_node, false, gres, sizeof gres)) {
		member.partition = (char *)partition;
		member.features = no_features;
		member.tres_per_node = gres;
	}
	for (int c = 0; c < b->out->snapshot.class_count; c++)
		usable[c] = ctld_fits(b->v, &member, b->first[c]);
}

/* ---- jobs */

/* Returns the highest tier of the partitions that a job names; *preemptable: whether one of them allows preemption. */
static int tier_of(const struct hspmd_slurm_view *v, const struct hspmd_slurm_view_job *j, bool *preemptable)
{
	int tier = 0;
	*preemptable = false;
	for (int p = 0; p < v->partition_count; p++) {
		const struct hspmd_slurm_view_partition *part = &v->partitions[p];
		if (!hspmd_name_list_has(j->partition, part->name, strlen(part->name)))
			continue;
		tier = part->tier > tier ? part->tier : tier;
		*preemptable |= part->preemptable;
	}
	return tier;
}

/* Returns one number for Slurm's order: by the partition's tier, then by who preempts whom, then by priority. */
static double rank(const struct hspmd_slurm_view *v, const struct hspmd_slurm_view_job *j)
{
	bool preemptable;
	const struct hspmd_slurm_qos *q = hspmd_slurm_qos_find(&v->qos, j->qos);
	return (tier_of(v, j, &preemptable) * 64.0 + (q ? q->level : 0)) * 4294967296.0 + j->priority;
}

/* A member of an elastic job, or NULL if there is none of its user with this id. */
static const struct hspmd_slurm_view_job *member_of(const struct building *b, const struct ctld_peer *p, int member)
{
	const struct hspmd_slurm_view_job *j = hspmd_slurm_view_find_job(b->v, p->members[member]);
	return j && j->uid == p->uid ? j : NULL;
}

/* Notes what Slurm may preempt: a job may be in another QOS and partition than its members. */
static int note_preemptable(struct building *b, const struct hspmd_slurm_view_job *j)
{
	bool preemptable;
	int tier = tier_of(b->v, j, &preemptable);
	if (preemptable && tier < b->lowest_tier)
		b->lowest_tier = tier;
	if (!b->v->qos.count)
		return 0;
	for (size_t i = 0; i < b->qos_count; i++)
		if (!strcmp(b->qos[i], j->qos))
			return 0;
	if (hspmd_array_grow(&b->qos, &b->qos_capacity, b->qos_count, sizeof *b->qos))
		return -1;
	b->qos[b->qos_count++] = j->qos;
	return 0;
}

/* Returns true if Slurm would preempt an elastic job, or a member of one, for this job. */
static bool would_preempt(const struct building *b, const struct hspmd_slurm_view_job *j)
{
	bool preemptable;
	if (!b->v->qos.count)
		return b->lowest_tier < tier_of(b->v, j, &preemptable);
	for (size_t i = 0; i < b->qos_count; i++)
		if (hspmd_slurm_qos_preempts(&b->v->qos, j->qos, b->qos[i]))
			return true;
	return false;
}

static void hold(struct building *b, const struct hspmd_slurm_view_job *j, int elastic)
{
	for (int i = 0; j && j->state == HSPMD_SLURM_VIEW_RUNNING && i < j->held_count; i++)
		b->holder[j->held[i]] = elastic;
}

/* What one node of a device type equals. The nodes of a type may be of several kinds, which their controller has measured and Slurm cannot
 * tell apart: their mean. */
static double speed_of_type(const struct hspmd_slurm_view *v, const struct ctld_peer *p, const char *type)
{
	char of_kind[32];
	double sum = 0;
	int count = 0;
	for (int k = 0; k < p->kind_count; k++) {
		int node = hspmd_slurm_view_find_node(v, p->kinds[k]);
		if (node < 0)
			continue;
		hspmd_gres_devices(v->nodes[node].gres, of_kind, sizeof of_kind);
		if (strcmp(of_kind, type) != 0)
			continue;
		sum += p->relative_speed[k];
		count++;
	}
	return count ? sum / count : 1;
}

static void set_relative_speed(struct building *b, int elastic, const struct ctld_peer *p)
{
	struct ctld_snapshot *s = b->out;
	double *relative_speed = s->relative_speed + (size_t)elastic * (size_t)s->snapshot.type_count;
	for (int t = 0; t < s->snapshot.type_count; t++)
		relative_speed[t] = speed_of_type(b->v, p, s->types[t]);
	s->elastic[elastic].relative_speed = relative_speed;
}

/* A job whose factor is not known counts as one that has used nothing; one that has used too much still counts. */
static double fairshare_weight(const struct hspmd_slurm_view *v, const struct hspmd_slurm_view_job *j)
{
	double factor = hspmd_slurm_share_of(v->accounts, j->account, j->user);
	return factor < 0 ? 1 : fmax(factor, HSPMD_FAIRSHARE_LEAST);
}

static int add_elastic(struct building *b, int peer, const struct hspmd_slurm_view_job *j)
{
	struct ctld_snapshot *s = b->out;
	const struct ctld_peer *p = &b->peers[peer];
	struct hspmd_policy_subject who = {
		j->user, j->account, j->partition, j->qos, *p->policy ? p->policy : NULL, hspmd_policy_when(b->now_s)
	};
	int rule = HSPMD_POLICY_NO_RULE, at = s->snapshot.elastic_count++;
	if (hspmd_policy_decide_rule(b->policy, &who, &rule, NULL) < 0)
		rule = HSPMD_POLICY_NO_RULE; /* the policy under which it was admitted no longer exists */
	s->elastic_peer[at] = peer;
	double resized = fmax(p->resized_s, j->resized ? (double)j->resized : -INFINITY);
	s->elastic[at] = (struct hspmd_snapshot_elastic){
		.id = p->job,
		.rule = rule,
		.terms = hspmd_policy_effective(b->policy, rule),
		.min_nodes = p->min_nodes,
		.max_nodes = p->max_nodes,
		.priority = rank(b->v, j),
		.curve_count = p->curve_count,
		.tokens_per_s = p->curve,
		.pause_s = p->pause_s,
		.lost_s = p->lost_s,
		.resized_s = resized,
		.remaining_s = j->ends && isfinite(j->limit_s) ? fmax(0, (double)j->ends - b->now_s) : INFINITY,
		.reachable = p->reachable,
		.request_pending = p->request_pending,
		.declined_grow_until_s = p->declined_grow_until_s,
		.declined_shrink_until_s = p->declined_shrink_until_s,
		.wait_until_s = p->wait_until_s,
		.usable = s->usable + (size_t)at * (size_t)s->snapshot.class_count,
	};
	s->elastic[at].fewest_nodes = p->fewest_nodes;
	if (s->elastic[at].terms.weight == HSPMD_POLICY_FAIRSHARE)
		s->elastic[at].terms.weight = fairshare_weight(b->v, j);
	/* The scale of a rate matters only if rates are compared absolutely, and then weight and rate are one factor. */
	if (s->elastic[at].terms.by == HSPMD_SHARE_TOKENS && p->overclaim_factor > 1)
		s->elastic[at].terms.weight /= p->overclaim_factor;
	set_relative_speed(b, at, p);
	fill_growable(b, j, s->elastic[at].terms.grow_partition, s->usable + (size_t)at * (size_t)s->snapshot.class_count);
	hold(b, j, at);
	int rc = note_preemptable(b, j);
	for (int m = 0; m < p->member_count && !rc; m++) {
		const struct hspmd_slurm_view_job *member = member_of(b, p, m);
		if (member) {
			hold(b, member, at);
			for (int h = 0; h < member->held_count; h++)
				b->added_s[member->held[h]] = (double)member->started;
			rc = note_preemptable(b, member);
		}
	}
	return rc;
}

struct owned {
	uid_t uid;
	uint32_t id;
	int elastic;
};

static int by_owner(const void *a, const void *b)
{
	const struct owned *x = a, *y = b;
	if (x->uid != y->uid)
		return x->uid < y->uid ? -1 : 1;
	return x->id < y->id ? -1 : x->id > y->id;
}

/* A user's jobs beyond max_jobs_per_user keep their nodes but do not grow; older jobs count first. */
static int limit_users(struct building *b)
{
	struct ctld_snapshot *s = b->out;
	size_t n = (size_t)s->snapshot.elastic_count;
	struct owned *order = hspmd_calloc(n, sizeof *order);
	if (!order)
		return -1;
	for (size_t e = 0; e < n; e++)
		order[e] = (struct owned){ b->peers[s->elastic_peer[e]].uid, s->elastic[e].id, (int)e };
	qsort(order, n, sizeof *order, by_owner);
	int before = 0; /* older jobs of the same user */
	for (size_t i = 0; i < n; i++) {
		struct hspmd_snapshot_elastic *x = &s->elastic[order[i].elastic];
		before = i && order[i - 1].uid == order[i].uid ? before + 1 : 0;
		if (before >= x->terms.max_jobs_per_user)
			x->terms.into_idle = false;
	}
	free(order);
	return 0;
}

static int add_all_elastic(struct building *b)
{
	for (int i = 0; i < b->peer_count; i++) {
		const struct hspmd_slurm_view_job *j = hspmd_slurm_view_find_job(b->v, b->peers[i].job);
		if (j && j->state == HSPMD_SLURM_VIEW_RUNNING && j->uid == b->peers[i].uid && add_elastic(b, i, j))
			return -1;
	}
	return limit_users(b);
}

static int compare_ids(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
	return x < y ? -1 : x > y;
}

static int list_members(struct building *b)
{
	size_t n = 0;
	for (int i = 0; i < b->peer_count; i++)
		n += (size_t)b->peers[i].member_count;
	b->members = hspmd_calloc(n, sizeof *b->members);
	if (!b->members)
		return -1;
	for (int i = 0; i < b->peer_count; i++)
		for (int m = 0; m < b->peers[i].member_count; m++)
			b->members[b->member_count++] = b->peers[i].members[m];
	qsort(b->members, n, sizeof *b->members, compare_ids);
	return 0;
}

/* Returns true if a pending job is a member job of an elastic job: no other job shrinks for it. */
static bool is_member(const struct building *b, uint32_t id)
{
	return bsearch(&id, b->members, b->member_count, sizeof id, compare_ids);
}

struct ranked {
	int job;
	double rank;
	time_t submitted;
	bool preempts;
};

static int by_rank(const void *a, const void *b)
{
	const struct ranked *x = a, *y = b;
	if (x->rank != y->rank)
		return x->rank > y->rank ? -1 : 1;
	return x->submitted < y->submitted ? -1 : x->submitted > y->submitted;
}

static int add_pending(struct building *b, ctld_eligible_since *eligible_since, void *context)
{
	struct ctld_snapshot *s = b->out;
	struct ranked *order = hspmd_calloc((size_t)b->v->job_count, sizeof *order);
	int n = 0;
	if (!order || list_members(b)) {
		free(order);
		return -1;
	}
	for (int i = 0; i < b->v->job_count; i++) {
		const struct hspmd_slurm_view_job *j = &b->v->jobs[i];
		if (j->state != HSPMD_SLURM_VIEW_PENDING || !j->ready || j->wants_named_nodes || is_member(b, j->id))
			continue;
		order[n] = (struct ranked){ .job = i, .submitted = j->submitted };
		order[n].rank = rank(b->v, j);
		order[n].preempts = would_preempt(b, j);
		n++;
	}
	qsort(order, (size_t)n, sizeof *order, by_rank);
	for (int i = 0; i < n; i++) {
		const struct hspmd_slurm_view_job *j = &b->v->jobs[order[i].job];
		unsigned char *usable = s->usable + (size_t)(s->snapshot.elastic_count + i) * (size_t)s->snapshot.class_count;
		fill_usable(b, j, usable);
		s->pending_job[i] = order[i].job;
		s->pending[i] = (struct hspmd_snapshot_pending){ .id = j->id,
			                                         .nodes = j->nodes > 0 ? j->nodes : 1,
			                                         .run_s = j->limit_s,
			                                         .priority = order[i].rank,
			                                         .preempts = order[i].preempts,
			                                         .eligible_since_s = eligible_since ? eligible_since(context, j->id) : NAN,
			                                         .usable = usable };
	}
	s->snapshot.pending_count = n;
	free(order);
	return 0;
}

/* ---- nodes */

static void fill_node(struct building *b, int i)
{
	const struct hspmd_slurm_view_node *from = &b->v->nodes[i];
	struct hspmd_snapshot_node *n = &b->out->nodes[i];
	n->name = from->name;
	n->holder = -1;
	n->free_s = INFINITY;
	n->since_s = (double)from->last_busy;
	if (b->node_histories[i].reserved_until_s > b->now_s)
		n->reserved_for = b->node_histories[i].reserved_for;
	if (b->holder[i] >= 0) {
		n->state = HSPMD_SNAPSHOT_HELD;
		n->holder = b->holder[i];
		n->fixed = b->users[i] > 1; /* other jobs use it too: returning it frees no whole node */
		n->held_since_s = b->added_s[i] > 0 ? b->added_s[i] : b->node_histories[i].held_since_s;
		n->leaving = b->node_histories[i].requested_from == b->out->elastic[n->holder].id &&
		             b->node_histories[i].requested_until_s > b->now_s;
		return;
	}
	static const enum hspmd_snapshot_state states[] = { HSPMD_SNAPSHOT_IDLE, HSPMD_SNAPSHOT_BUSY, HSPMD_SNAPSHOT_HELD,
		                                            HSPMD_SNAPSHOT_DOWN };
	n->state = states[from->state];
	n->leaving = from->state == HSPMD_SLURM_VIEW_LEAVING;
}

/* The controller's node is never returned: the batch host, or the first node of an allocation without a batch script. */
static void fix_first(struct building *b, const struct hspmd_slurm_view_job *j)
{
	int at = 0;
	for (int h = 0; j && h < j->held_count; h++)
		if (!strcmp(b->v->nodes[j->held[h]].name, j->batch_host))
			at = h;
	if (j && j->held_count)
		b->out->nodes[j->held[at]].fixed = true;
}

static void fill_nodes(struct building *b)
{
	for (int i = 0; i < b->v->node_count; i++)
		fill_node(b, i);
	for (int k = 0; k < b->v->job_count; k++) {
		const struct hspmd_slurm_view_job *j = &b->v->jobs[k];
		for (int h = 0; h < j->held_count; h++) {
			struct hspmd_snapshot_node *n = &b->out->nodes[j->held[h]];
			if (n->state != HSPMD_SNAPSHOT_BUSY)
				continue;
			double ends = j->ends && isfinite(j->limit_s) ? (double)j->ends : INFINITY;
			n->free_s = isinf(n->free_s) ? ends : fmax(n->free_s, ends);
		}
	}
	for (int e = 0; e < b->out->snapshot.elastic_count; e++)
		fix_first(b, hspmd_slurm_view_find_job(b->v, b->out->elastic[e].id));
}

static int allocate(struct ctld_snapshot *s, struct building *b)
{
	size_t nodes = (size_t)b->v->node_count, jobs = (size_t)b->v->job_count, peers = (size_t)b->peer_count;
	s->classes = hspmd_calloc(nodes, sizeof *s->classes);
	s->nodes = hspmd_calloc(nodes, sizeof *s->nodes);
	s->pending = hspmd_calloc(jobs, sizeof *s->pending);
	s->pending_job = hspmd_calloc(jobs, sizeof *s->pending_job);
	s->elastic = hspmd_calloc(peers, sizeof *s->elastic);
	s->elastic_peer = hspmd_calloc(peers, sizeof *s->elastic_peer);
	s->types = hspmd_calloc(nodes, sizeof *s->types);
	s->type_names = hspmd_calloc(nodes, sizeof *s->type_names);
	b->first = hspmd_calloc(nodes, sizeof *b->first);
	b->holder = hspmd_calloc(nodes, sizeof *b->holder);
	b->users = hspmd_calloc(nodes, sizeof *b->users);
	b->added_s = hspmd_calloc(nodes, sizeof *b->added_s);
	if (!s->classes || !s->nodes || !s->pending || !s->pending_job || !s->elastic || !s->elastic_peer || !s->types || !s->type_names ||
	    !b->first || !b->holder || !b->users || !b->added_s)
		return -1;
	for (size_t i = 0; i < nodes; i++)
		b->holder[i] = -1;
	for (int k = 0; k < b->v->job_count; k++)
		for (int h = 0; h < b->v->jobs[k].held_count; h++)
			b->users[b->v->jobs[k].held[h]]++;
	return 0;
}

static double size_of(const struct hspmd_slurm_view *v, const struct ctld_peer *p, const struct hspmd_slurm_view_job *j)
{
	char type[32], last[32] = "";
	double size = 0, speed = 0;
	for (int h = 0; h < j->held_count; h++) {
		hspmd_gres_devices(v->nodes[j->held[h]].gres, type, sizeof type);
		if (!h || strcmp(type, last) != 0) /* mostly it is the type of the node before */
			speed = speed_of_type(v, p, type);
		memcpy(last, type, sizeof last);
		size += speed;
	}
	return size;
}

double ctld_reference_nodes(const struct hspmd_slurm_view *view, const struct ctld_peer *p)
{
	const struct hspmd_slurm_view_job *j = hspmd_slurm_view_find_job(view, p->job);
	double size = j ? size_of(view, p, j) : 0;
	for (int m = 0; m < p->member_count && view; m++) {
		const struct hspmd_slurm_view_job *member = hspmd_slurm_view_find_job(view, p->members[m]);
		size += member && member->uid == p->uid ? size_of(view, p, member) : 0;
	}
	return size;
}

int ctld_nodes_held(const struct hspmd_slurm_view *view, const struct ctld_peer *p)
{
	const struct hspmd_slurm_view_job *j = hspmd_slurm_view_find_job(view, p->job);
	int n = j ? j->held_count : 0;
	for (int m = 0; m < p->member_count; m++) {
		const struct hspmd_slurm_view_job *member = hspmd_slurm_view_find_job(view, p->members[m]);
		n += member && member->uid == p->uid ? member->held_count : 0;
	}
	return n;
}

int ctld_snapshot_build(struct ctld_snapshot *out, const struct hspmd_slurm_view *view, const struct hspmd_policy *policy,
                        const struct ctld_peer *peers, int peer_count, const struct ctld_node_history *node_histories, double now_s,
                        ctld_eligible_since *eligible_since, void *context, struct hspmd_error *err)
{
	struct building b = { .out = out,
		              .v = view,
		              .policy = policy,
		              .peers = peers,
		              .peer_count = peer_count,
		              .node_histories = node_histories,
		              .now_s = now_s,
		              .lowest_tier = INT_MAX };
	memset(out, 0, sizeof *out);
	int rc = allocate(out, &b);
	if (rc == 0) {
		make_classes(&b);
		size_t classes = (size_t)out->snapshot.class_count, types = (size_t)out->snapshot.type_count;
		out->usable = hspmd_calloc((size_t)(peer_count + view->job_count) * classes, 1);
		out->relative_speed = hspmd_calloc((size_t)peer_count * types, sizeof *out->relative_speed);
		rc = out->usable && out->relative_speed ? 0 : -1;
	}
	if (rc == 0) {
		rc = add_all_elastic(&b);
		if (rc == 0)
			rc = add_pending(&b, eligible_since, context);
	}
	if (rc == 0 && view->accounts)
		rc = ctld_snapshot_add_limits(out, view, peers);
	if (rc == 0)
		fill_nodes(&b);
	free(b.first);
	free(b.holder);
	free(b.users);
	free(b.added_s);
	free(b.members);
	free(b.qos);
	out->snapshot.now_s = now_s;
	out->snapshot.node_count = view->node_count;
	out->snapshot.types = out->types;
	out->snapshot.classes = out->classes;
	out->snapshot.nodes = out->nodes;
	out->snapshot.pending = out->pending;
	out->snapshot.elastic = out->elastic;
	return rc < 0 ? hspmd_fail_memory(err, "building a snapshot of the cluster") : 0;
}

void ctld_snapshot_clear(struct ctld_snapshot *s)
{
	free(s->elastic_peer);
	free(s->pending_job);
	free(s->classes);
	free(s->nodes);
	free(s->pending);
	free(s->elastic);
	free(s->types);
	free(s->type_names);
	free(s->usable);
	free(s->relative_speed);
	free(s->limits);
	free(s->limit_names);
	free(s->limit_cost);
	memset(s, 0, sizeof *s);
}
