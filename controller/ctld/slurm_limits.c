/* SPDX-License-Identifier: Apache-2.0 */
/* How far the limits of Slurm's accounting let elastic jobs grow: for the engine, what is left of each limit, and what a node of each job
 * takes of it. As Slurm does, a limit that a QOS sets stands in place of the same limit of the associations; the Grp limits of an account
 * hold for all accounts below it. QOS of partitions are not looked at. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "controller/ctld/snapshot.h"

#define DEPTH_MAX 64 /* of accounts; a circle of parents ends there */

struct use {
	int elastic, limit;
	double cost;
};

struct limiting {
	struct ctld_snapshot *out;
	const struct hspmd_slurm_view *v;
	const struct hspmd_slurm_accounts *a;
	size_t limit_capacity, name_capacity, use_capacity;
	int use_count;
	struct use *uses;
};

/* What a further node of an elastic job would count as. */
struct further_node {
	int elastic;
	const struct hspmd_slurm_view_job *job;
	const char *qos, *partition;
	bool is_job; /* it comes as a member job */
};

static const struct hspmd_slurm_limits *account_of(const struct hspmd_slurm_accounts *a, const char *account)
{
	for (int i = 0; i < a->limit_count; i++)
		if (!a->limits[i].qos && !*a->limits[i].user && !strcmp(a->limits[i].account, account))
			return &a->limits[i];
	return NULL;
}

static bool is_below(const struct hspmd_slurm_accounts *a, const char *account, const char *above)
{
	for (int depth = 0; depth < DEPTH_MAX; depth++) {
		if (!strcmp(account, above))
			return true;
		const struct hspmd_slurm_limits *l = account_of(a, account);
		if (!l || !*l->parent)
			return false;
		account = l->parent;
	}
	return false;
}

/* Returns true if a job in this place counts against a record's limits; those of a QOS are for all its jobs, or for those of one user or
 * one account. */
static bool counts(const struct limiting *g, const struct hspmd_slurm_limits *l, int kind, const struct further_node *f,
                   const struct hspmd_slurm_view_job *j)
{
	if (l->qos)
		return !strcmp(j->qos, l->qos) && (kind != HSPMD_SLURM_USER_TRES || !strcmp(j->user, f->job->user)) &&
		       (kind != HSPMD_SLURM_ACCOUNT_TRES || !strcmp(j->account, f->job->account));
	if (*l->user)
		return !strcmp(j->account, l->account) && !strcmp(j->user, l->user) &&
		       (!*l->partition || !strcmp(j->partition, l->partition));
	return is_below(g->a, j->account, l->account);
}

_Static_assert((int)HSPMD_SLURM_USER_TRES == (int)HSPMD_SLURM_USER_JOBS && (int)HSPMD_SLURM_ACCOUNT_TRES == (int)HSPMD_SLURM_ACCOUNT_JOBS,
               "limits of TRES and of jobs are of the same kinds");

/* What running jobs take of a TRES, or how many there are (NULL). */
static double used_of(const struct limiting *g, const struct hspmd_slurm_limits *l, int kind, const struct further_node *f,
                      const char *tres)
{
	double sum = 0;
	for (int i = 0; i < g->v->job_count; i++) {
		const struct hspmd_slurm_view_job *j = &g->v->jobs[i];
		if (j->state != HSPMD_SLURM_VIEW_RUNNING || !counts(g, l, kind, f, j))
			continue;
		double n = tres ? hspmd_slurm_tres_of(j->tres, tres) : 1;
		sum += n > 0 ? n : 0;
	}
	return sum;
}

static void name_limit(char *name, size_t size, const struct hspmd_slurm_limits *l, int kind, const struct further_node *f,
                       const char *tres)
{
	const char *what = tres ? hspmd_slurm_tres_limit_names[kind] : hspmd_slurm_job_limit_names[kind];
	size_t n = (size_t)snprintf(name, size, "%s%s%s of ", what, tres ? " " : "", tres ? tres : "");
	if (l->qos && kind)
		snprintf(name + n, size - n, "QOS %s for %s", l->qos, kind == HSPMD_SLURM_USER_TRES ? f->job->user : f->job->account);
	else if (l->qos)
		snprintf(name + n, size - n, "QOS %s", l->qos);
	else if (*l->user)
		snprintf(name + n, size - n, "user %s in account %s", l->user, l->account);
	else
		snprintf(name + n, size - n, "account %s", l->account);
}

static int add_use(struct limiting *g, const struct hspmd_slurm_limits *l, int kind, const struct further_node *f, const char *tres,
                   double most, double cost)
{
	struct ctld_snapshot *s = g->out;
	char name[sizeof *s->limit_names];
	int at = 0;
	name_limit(name, sizeof name, l, kind, f, tres);
	while (at < s->snapshot.limit_count && strcmp(s->limit_names[at], name) != 0)
		at++;
	if (at == s->snapshot.limit_count) {
		if (hspmd_array_grow(&s->limits, &g->limit_capacity, (size_t)at, sizeof *s->limits) ||
		    hspmd_array_grow(&s->limit_names, &g->name_capacity, (size_t)at, sizeof *s->limit_names))
			return -1;
		strcpy(s->limit_names[at], name);
		s->limits[at].left = most - used_of(g, l, kind, f, tres);
		s->snapshot.limit_count++;
	}
	if (hspmd_array_grow(&g->uses, &g->use_capacity, (size_t)g->use_count, sizeof *g->uses))
		return -1;
	g->uses[g->use_count++] = (struct use){ f->elastic, at, cost };
	return 0;
}

/* Adds the limits of one record; those that `instead` (a QOS, or NULL) sets too are left out. */
static int add_record(struct limiting *g, const struct hspmd_slurm_limits *l, const struct hspmd_slurm_limits *instead,
                      const struct further_node *f)
{
	for (int kind = 0; kind < HSPMD_SLURM_TRES_LIMITS; kind++) {
		char tres[64];
		double most;
		for (const char *at = l->tres[kind]; (at = hspmd_slurm_tres_next(at, tres, &most));) {
			double all = hspmd_slurm_tres_of(f->job->tres, tres);
			double cost = !strcmp(tres, "node") ? 1 : all > 0 && f->job->held_count ? all / f->job->held_count : 0;
			bool replaced = instead && hspmd_slurm_tres_of(instead->tres[kind], tres) >= 0;
			if (cost > 0 && !replaced && add_use(g, l, kind, f, tres, most, cost))
				return -1;
		}
	}
	for (int kind = 0; kind < HSPMD_SLURM_JOB_LIMITS && f->is_job; kind++)
		if (l->jobs[kind] >= 0 && !(instead && instead->jobs[kind] >= 0) && add_use(g, l, kind, f, NULL, l->jobs[kind], 1))
			return -1;
	return 0;
}

static int add_of(struct limiting *g, const struct further_node *f)
{
	const struct hspmd_slurm_limits *qos = NULL;
	for (int i = 0; i < g->a->limit_count && !qos; i++)
		if (g->a->limits[i].qos && !strcmp(g->a->limits[i].qos, f->qos))
			qos = &g->a->limits[i];
	if (qos && add_record(g, qos, NULL, f))
		return -1;
	for (int i = 0; i < g->a->limit_count; i++) {
		const struct hspmd_slurm_limits *l = &g->a->limits[i];
		bool own = !l->qos && *l->user && !strcmp(l->user, f->job->user) && !strcmp(l->account, f->job->account) &&
		           (!*l->partition || !strcmp(l->partition, f->partition));
		bool above = !l->qos && !*l->user && is_below(g->a, f->job->account, l->account);
		if ((own || above) && add_record(g, l, qos, f))
			return -1;
	}
	return 0;
}

static int fill_costs(struct limiting *g)
{
	struct ctld_snapshot *s = g->out;
	size_t limits = (size_t)s->snapshot.limit_count;
	s->limit_cost = hspmd_calloc((size_t)s->snapshot.elastic_count * limits, sizeof *s->limit_cost);
	if (!s->limit_cost)
		return -1;
	for (int i = 0; i < g->use_count; i++)
		s->limit_cost[(size_t)g->uses[i].elastic * limits + (size_t)g->uses[i].limit] += g->uses[i].cost;
	for (int e = 0; e < s->snapshot.elastic_count; e++)
		s->elastic[e].limit_cost = s->limit_cost + (size_t)e * limits;
	for (size_t l = 0; l < limits; l++)
		s->limits[l].name = s->limit_names[l];
	s->snapshot.limits = s->limits;
	return 0;
}

int ctld_snapshot_add_limits(struct ctld_snapshot *s, const struct hspmd_slurm_view *view, const struct ctld_peer *peers)
{
	struct limiting g = { .out = s, .v = view, .a = view->accounts };
	int rc = 0;
	for (int e = 0; e < s->snapshot.elastic_count && !rc; e++) {
		const struct hspmd_policy_terms *t = &s->elastic[e].terms;
		const struct hspmd_slurm_view_job *j = hspmd_slurm_view_find_job(view, s->elastic[e].id);
		struct further_node f = { .elastic = e,
			                  .job = j,
			                  .qos = t->grow_qos ? t->grow_qos : j->qos,
			                  .partition = t->grow_partition ? t->grow_partition : j->partition,
			                  .is_job = t->grow_qos || t->grow_partition || peers[s->elastic_peer[e]].member_count ||
			                            *j->tres_per_node };
		rc = add_of(&g, &f);
	}
	if (!rc && s->snapshot.limit_count)
		rc = fill_costs(&g);
	free(g.uses);
	return rc;
}
