/* SPDX-License-Identifier: Apache-2.0 */
/* Budgets of node hours: what jobs have used, across restarts of the daemon. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/durable.h"
#include "common/log.h"
#include "controller/ctld/daemon_internal.h"
#include "policies/match.h"

#define FILE_MAX (64 << 20)
#define SAVE_EVERY_S 60.0
#define CHARGE_MOST_S 600.0 /* at once: what a daemon that was stopped for longer has not seen is not charged */

static bool any_budget(const struct hspmd_policy *p)
{
	for (int r = HSPMD_POLICY_NO_RULE; r < p->rule_count; r++)
		if (isfinite(hspmd_policy_effective(p, r).budget_node_hours))
			return true;
	return false;
}

int budgets_load(struct ctld *d, struct hspmd_error *err)
{
	const char *path = d->options->budget_file;
	if (!path) {
		if (any_budget(d->policy))
			hspmd_warn("budgets of node hours count from now: there is no --budget-file");
		return 0;
	}
	if (access(path, F_OK) && errno == ENOENT)
		return 0;
	size_t size;
	char *text = hspmd_read_file(path, FILE_MAX, &size, err);
	json_t *doc = text ? json_loadb(text, size, JSON_REJECT_DUPLICATES, NULL) : NULL;
	int rc = !text ? -1 : doc ? hspmd_budget_from_json(&d->budget, doc, err) : hspmd_fail(err, "it is not JSON");
	if (!rc)
		d->saved_jobs = json_incref(json_object_get(doc, "jobs"));
	json_decref(doc);
	free(text);
	return rc ? hspmd_error_prefix(err, "%s", path) : 0;
}

void budgets_save(struct ctld *d, bool now)
{
	struct hspmd_error err;
	if (!d->options->budget_file || !(d->charged_s > 0) || (!now && hspmd_now() - d->budget_saved_s < SAVE_EVERY_S))
		return;
	d->budget_saved_s = hspmd_now();
	json_t *doc = hspmd_budget_to_json(&d->budget), *jobs = json_object();
	for (int i = 0; i < d->peers.count; i++) {
		char id[16];
		snprintf(id, sizeof id, "%u", d->peers.peers[i].job);
		json_object_set_new(jobs, id, json_integer(d->peers.peers[i].fewest_nodes));
	}
	char *text = doc && jobs && !json_object_set(doc, "jobs", jobs) ? json_dumps(doc, JSON_INDENT(1)) : NULL;
	int rc = text ? hspmd_durable_write(d->options->budget_file, text, strlen(text), &err) : hspmd_fail_memory(&err, "saving budgets");
	if (rc)
		hspmd_warn("budgets of node hours are not saved: %s", err.text);
	free(text);
	json_decref(doc);
	json_decref(jobs);
}

/* Of a job that was seen before the daemon's restart: the fewest nodes that it held then; 0: not known. */
static int saved_fewest(const struct ctld *d, uint32_t job)
{
	char id[16];
	snprintf(id, sizeof id, "%u", job);
	json_int_t n = json_integer_value(json_object_get(d->saved_jobs, id));
	return n > 0 && n < INT_MAX ? (int)n : 0;
}

void budgets_note_nodes(struct ctld *d)
{
	for (int i = 0; i < d->peers.count; i++) {
		struct ctld_peer *p = &d->peers.peers[i];
		int held = ctld_nodes_held(d->view, p);
		if (!p->fewest_nodes)
			p->fewest_nodes = saved_fewest(d, p->job);
		if (held && (!p->fewest_nodes || held < p->fewest_nodes))
			p->fewest_nodes = held;
	}
}

void budgets_charge(struct ctld *d, struct ctld_snapshot *s)
{
	double now = hspmd_unix_time(), dt = d->charged_s > 0 ? fmin(fmax(now - d->charged_s, 0), CHARGE_MOST_S) : 0;
	d->charged_s = now;
	for (int i = 0; i < s->snapshot.elastic_count; i++) {
		struct hspmd_snapshot_elastic *e = &s->elastic[i];
		const char *rule = e->rule < 0 ? NULL : d->policy->rules[e->rule].name;
		int held = ctld_nodes_held(d->view, &d->peers.peers[s->elastic_peer[i]]);
		if (!isfinite(e->terms.budget_node_hours))
			continue;
		if (hspmd_budget_add(&d->budget, rule, now, dt * (held - e->fewest_nodes)))
			log_event(d, "trouble", e->id, "out of memory: its node hours are not counted", NULL);
		e->spent_node_hours = hspmd_budget_spent_hours(&d->budget, rule, now, e->terms.budget_days);
	}
}
