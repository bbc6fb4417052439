/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/run/scaling.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/hostlist.h"
#include "controller/solver/solver.h"

#define LEAST_MAX 16 /* nodes */

/* Splits the entries, so that each has one node. */
static int unfold(const json_t *entry, json_t *out, int most, struct hspmd_error *err)
{
	char **names = NULL;
	const char *text = json_string_value(json_object_get(entry, "name"));
	int n = text ? hspmd_hostlist_expand(text, 1 << 20, &names, err) : hspmd_fail(err, "a node without a name"), rc = n < 0 ? -1 : 0;
	for (int i = 0; i < n && rc == 0 && (int)json_array_size(out) < most; i++) {
		json_t *copy = json_copy((json_t *)entry);
		if (!copy || json_object_set_new(copy, "name", json_string(names[i])) < 0 || json_array_append(out, copy) < 0)
			rc = hspmd_fail_memory(err, "computing the scaling curve");
		json_decref(copy);
	}
	if (n > 0)
		hspmd_hostlist_free(names, n);
	return rc;
}

json_t *run_scaling_cluster(const json_t *cluster, const json_t *devices, int n, struct hspmd_error *err)
{
	json_t *out = json_copy((json_t *)cluster), *nodes = json_array();
	const json_t *entry;
	size_t i;
	int rc = out && nodes && json_object_set(out, "nodes", nodes) == 0 ? 0 : hspmd_fail_memory(err, "computing the scaling curve");
	json_array_foreach(json_object_get(cluster, "nodes"), i, entry)
		if (rc == 0 && (int)json_array_size(nodes) < n && json_equal(json_object_get(entry, "devices"), devices))
			rc = unfold(entry, nodes, n, err);
	const json_t *last = json_array_get(nodes, json_array_size(nodes) - 1);
	if (rc == 0 && !last)
		rc = hspmd_fail(err, "a cluster without nodes");
	for (int k = (int)json_array_size(nodes); rc == 0 && k < n; k++) {
		char name[32];
		json_t *copy = json_copy((json_t *)last);
		snprintf(name, sizeof name, "further-%d", k);
		if (!copy || json_object_set_new(copy, "name", json_string(name)) < 0 || json_array_append(nodes, copy) < 0)
			rc = hspmd_fail_memory(err, "computing the scaling curve");
		json_decref(copy);
	}
	json_decref(nodes);
	if (rc == 0)
		return out;
	json_decref(out);
	return NULL;
}

static const json_t *first_class(const json_t *cluster)
{
	return json_object_get(json_array_get(json_object_get(cluster, "nodes"), 0), "devices");
}

/* Tokens per second on n nodes of one class; 0: there is no plan; -1 and err: the cluster is invalid. */
static double solve(const json_t *cluster, const json_t *devices, int n, const struct hspmd_model_facts *facts, const struct hspmd_job *job,
                    double limit_s, struct hspmd_error *err)
{
	json_t *part = run_scaling_cluster(cluster, devices, n, err);
	struct hspmd_cluster *c = part ? hspmd_cluster_from_json(part, "cluster", err) : NULL;
	struct hspmd_solve_request request = {
		.global_batch = (int)job->global_batch, .seq_len = (int)job->seq_len, .precision = job->precision, .time_limit_s = limit_s
	};
	struct hspmd_plan *plan = c ? hspmd_search_plan(c, facts, NULL, &request, NULL, NULL, err) : NULL;
	double rate = c ? 0 : -1;
	if (plan && plan->predicted.step_s > 0)
		rate = (double)job->global_batch * (double)job->seq_len / plan->predicted.step_s;
	hspmd_plan_destroy(plan);
	hspmd_cluster_destroy(c);
	json_decref(part);
	return rate;
}

int run_scaling_curve(const json_t *cluster, const struct hspmd_model_facts *facts, const struct hspmd_job *job, double limit_s,
                      double *curve, int max, struct hspmd_error *err)
{
	int done = 0;
	double before = 0;
	for (int n = 1; done < max;) {
		double rate = solve(cluster, first_class(cluster), n, facts, job, limit_s, err);
		if (rate < 0)
			return done ? done : -1;
		for (int k = done + 1; k <= n; k++)
			curve[k - 1] = before + (rate - before) * (k - done) / (n - done);
		done = n;
		before = rate;
		/* 1 2 3 4 6 8 12 16 24 ... */
		int step = 1;
		while (step * 4 <= n)
			step *= 2;
		n = n + step < max ? n + step : max;
	}
	return done;
}

/* The smallest power of two of nodes of the first class on which the model fits, and *rate of a plan on them; 0: more than LEAST_MAX. */
static int least_nodes(const json_t *cluster, const struct hspmd_model_facts *facts, const struct hspmd_job *job, double limit_s,
                       double *rate, struct hspmd_error *err)
{
	for (int n = 1; n <= LEAST_MAX; n *= 2) {
		*rate = solve(cluster, first_class(cluster), n, facts, job, limit_s, err);
		if (*rate != 0)
			return *rate < 0 ? -1 : n;
	}
	return 0;
}

static bool seen_before(const json_t *nodes, size_t at)
{
	const json_t *devices = json_object_get(json_array_get(nodes, at), "devices");
	for (size_t i = 0; i < at; i++)
		if (json_equal(json_object_get(json_array_get(nodes, i), "devices"), devices))
			return true;
	return false;
}

static int name_class(const json_t *entry, struct run_node_class *class, struct hspmd_error *err)
{
	char **names = NULL;
	const char *text = json_string_value(json_object_get(entry, "name"));
	int n = text ? hspmd_hostlist_expand(text, 1 << 20, &names, err) : hspmd_fail(err, "a node without a name");
	if (n <= 0)
		return -1;
	if (strlen(names[0]) < sizeof class->node)
		strcpy(class->node, names[0]);
	hspmd_hostlist_free(names, n);
	return 0;
}

int run_relative_speeds(const json_t *cluster, const struct hspmd_model_facts *facts, const struct hspmd_job *job, double limit_s,
                        struct run_node_class *classes, int max, struct hspmd_error *err)
{
	const json_t *nodes = json_object_get(cluster, "nodes"), *entry;
	double base = 0;
	int count = 0, n = least_nodes(cluster, facts, job, limit_s, &base, err);
	size_t i;
	if (n < 0)
		return -1;
	json_array_foreach(nodes, i, entry) {
		if (count == max || seen_before(nodes, i))
			continue;
		classes[count] = (struct run_node_class){ .relative_speed = 1 };
		double rate = count && n ? solve(cluster, json_object_get(entry, "devices"), n, facts, job, limit_s, err) : base;
		if (rate < 0 || name_class(entry, &classes[count], err) < 0)
			return -1;
		if (n)
			classes[count].relative_speed = rate / base;
		count++;
	}
	return count;
}

int run_scaling_size(int max_nodes, const struct run_node_class *classes, int count)
{
	double fastest = 1;
	for (int i = 0; i < count; i++)
		fastest = fmax(fastest, classes[i].relative_speed);
	return (int)fmin(ceil(max_nodes * fastest), RUN_SCALING_MAX);
}
