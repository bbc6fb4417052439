/* SPDX-License-Identifier: Apache-2.0 */
/* What a job asks of a node, and whether the node has it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "controller/ctld/build.h"

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
	for (const char *h = p->has; *h;) {
		size_t len = strcspn(h, ",");
		if (len == n && !strncmp(h, from, n))
			return true;
		h += len + (h[len] == ',');
	}
	return false;
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

/* ---- GRES: "gpu:2", "gpu:H20:2", with "gres:" or "gres/" before, several with commas */

struct gres {
	char name[64], type[64];
	long count;
};

/* The next entry of a list; NULL at its end or when it is not understood (then *bad). */
static const char *next_gres(const char *at, struct gres *g, bool *bad)
{
	char item[64];
	while (*at == ',')
		at++;
	if (!*at)
		return NULL;
	/* A comma may stand inside parentheses: "gpu:2(S:0,1)". */
	size_t n = 0;
	for (int depth = 0; at[n] && (at[n] != ',' || depth); n++)
		depth += (at[n] == '(') - (at[n] == ')');
	size_t len = n;
	for (size_t i = 0; i < n; i++)
		if (at[i] == '(') {
			len = i;
			break;
		}
	*bad |= len >= sizeof item;
	if (*bad)
		return NULL;
	memcpy(item, at, len);
	item[len] = '\0';
	char *from = item;
	if (!strncmp(from, "gres:", 5) || !strncmp(from, "gres/", 5))
		from += 5;
	*g = (struct gres){ .count = 1 };
	char *parts[3] = { from, NULL, NULL };
	int count = 1;
	for (char *c = from; *c; c++)
		if (*c == ':') {
			*c = '\0';
			if (count == 3) {
				*bad = true;
				return NULL;
			}
			parts[count++] = c + 1;
		}
	char *end = NULL, *last = parts[count - 1];
	long number = count > 1 ? strtol(last, &end, 10) : 0;
	bool numbered = count > 1 && end != last && (!*end || !strcmp(end, "K"));
	if (numbered)
		g->count = number * (*end ? 1024 : 1);
	*bad |= count == 3 && !numbered;
	snprintf(g->name, sizeof g->name, "%s", parts[0]);
	if (count == 3 || (count == 2 && !numbered))
		snprintf(g->type, sizeof g->type, "%s", parts[1]);
	return at + n;
}

static long has_gres(const char *has, const struct gres *wanted)
{
	struct gres g;
	bool bad = false;
	long sum = 0;
	for (const char *at = has; (at = next_gres(at, &g, &bad));)
		if (!strcmp(g.name, wanted->name) && (!*wanted->type || !strcmp(g.type, wanted->type)))
			sum += g.count;
	return sum;
}

bool ctld_gres_fit(const char *wanted, const char *has)
{
	struct gres g;
	bool bad = false;
	for (const char *at = wanted; (at = next_gres(at, &g, &bad));)
		if (has_gres(has, &g) < g.count)
			return false;
	return !bad;
}

int ctld_devices(const char *gres, char *type, size_t size)
{
	struct gres g;
	bool bad = false;
	int sum = 0;
	snprintf(type, size, "cpu");
	for (const char *at = gres; (at = next_gres(at, &g, &bad));)
		if (!strcmp(g.name, "gpu")) {
			if (!sum)
				snprintf(type, size, "%s", *g.type ? g.type : "gpu");
			sum += (int)g.count;
		}
	return sum ? sum : 1;
}

/* ---- all of it */

/* A job may name several partitions, with commas. */
static bool in_partition(const struct hspmd_view *v, const char *list, int node)
{
	for (const char *at = list; *at;) {
		size_t n = strcspn(at, ",");
		for (int p = 0; p < v->partition_count; p++) {
			const struct hspmd_view_partition *part = &v->partitions[p];
			if (part->up && part->nodes[node] && strlen(part->name) == n && !strncmp(part->name, at, n))
				return true;
		}
		at += n + (at[n] == ',');
	}
	return false;
}

bool ctld_fits(const struct hspmd_view *view, const struct hspmd_view_job *job, int node)
{
	const struct hspmd_view_node *n = &view->nodes[node];
	return in_partition(view, job->partition, node) && job->node_cpus <= n->cpus && job->node_memory_mb <= n->memory_mb &&
	       ctld_features_fit(job->features, n->features) && ctld_gres_fit(job->tres_per_node, n->gres);
}
