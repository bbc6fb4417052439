/* SPDX-License-Identifier: Apache-2.0 */
/* Checks whether a node satisfies the requirements of a job. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/gres.h"
#include "common/name_list.h"
#include "controller/ctld/snapshot.h"

/* ---- features: names, "&" and "," for and, "|" for or, parentheses */

struct parser {
	const char *at, *has;
	bool bad;
	int depth;
};

static bool any_of(struct parser *p);

static bool name(struct parser *p)
{
	size_t n = strcspn(p->at, "&,|()[]*");
	const char *from = p->at;
	p->at += n;
	if (!n) {
		p->bad = true;
		return false;
	}
	return hspmd_name_list_has(p->has, from, n);
}

static bool term(struct parser *p)
{
	if (*p->at != '(')
		return name(p);
	if (++p->depth > 16) {
		p->bad = true;
		return false;
	}
	p->at++;
	bool v = any_of(p);
	p->bad |= *p->at != ')';
	p->at += *p->at == ')';
	p->depth--;
	return v;
}

static bool all_of(struct parser *p)
{
	bool v = term(p);
	while (!p->bad && (*p->at == '&' || *p->at == ',')) {
		p->at++;
		v = term(p) && v;
	}
	return v;
}

static bool any_of(struct parser *p)
{
	bool v = all_of(p);
	while (!p->bad && *p->at == '|') {
		p->at++;
		v = all_of(p) || v;
	}
	return v;
}

bool ctld_features_fit(const char *wanted, const char *has)
{
	struct parser p = { .at = wanted, .has = has };
	if (!*wanted)
		return true;
	bool v = any_of(&p);
	return v && !p.bad && !*p.at;
}

double ctld_price(const char *features)
{
	for (const char *at = features; *at;) {
		size_t n = strcspn(at, ",");
		if (!strncmp(at, "price:", 6)) {
			char *end;
			double price = strtod(at + 6, &end);
			return end == at + n && price >= 0 && price < 1e9 ? price : 0;
		}
		at += n + (at[n] == ',');
	}
	return 0;
}

/* ---- all requirements */

/* A job may name several partitions, with commas. */
static bool in_partition(const struct hspmd_slurm_view *v, const char *list, int node)
{
	for (int p = 0; p < v->partition_count; p++) {
		const struct hspmd_slurm_view_partition *part = &v->partitions[p];
		if (part->up && part->nodes[node] && hspmd_name_list_has(list, part->name, strlen(part->name)))
			return true;
	}
	return false;
}

bool ctld_request_fits(const struct hspmd_slurm_view_job *job, const struct hspmd_slurm_view_node *n)
{
	return job->node_cpus <= n->cpus && job->node_memory_mb <= n->memory_mb && ctld_features_fit(job->features, n->features) &&
	       hspmd_gres_fit(job->tres_per_node, n->gres);
}

bool ctld_fits(const struct hspmd_slurm_view *view, const struct hspmd_slurm_view_job *job, int node)
{
	return in_partition(view, job->partition, node) && ctld_request_fits(job, &view->nodes[node]);
}
