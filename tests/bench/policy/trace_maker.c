/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/bench/policy/trace_maker.h"

#include <math.h>
#include <stdlib.h>

#include "common/json.h"

static double uniform(uint64_t *state) /* (0, 1] */
{
	*state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return ((double)(*state >> 11) + 1) / 9007199254740992.0;
}

static double normal(uint64_t *state)
{
	double u = uniform(state), v = uniform(state);
	return sqrt(-2 * log(u)) * cos(2 * M_PI * v);
}

struct made {
	double time_s;
	json_t *job;
};

static int by_time(const void *a, const void *b)
{
	double x = ((const struct made *)a)->time_s, y = ((const struct made *)b)->time_s;
	return x < y ? -1 : x > y;
}

/* Draws an hour of the day by the weight of its submissions: 0.25 at night, 1.75 at noon. */
static double day_time(uint64_t *state, double seconds)
{
	for (;;) {
		double t = uniform(state) * seconds;
		if (uniform(state) * 1.75 <= 1 - 0.75 * cos(2 * M_PI * t / 86400))
			return t;
	}
}

static json_t *rigid_job(const struct trace_recipe *r, int id, double mean_work, uint64_t *state, double *work)
{
	int size = 1 << (int)(uniform(state) * (log2(r->nodes) - 1));
	if (uniform(state) < 0.2)
		size += (int)(uniform(state) * size);
	double run = fmin(fmax(exp(normal(state)) * mean_work / size / 2.2, 30), 12 * 3600);
	bool urgent = uniform(state) < 0.2;
	*work += run * size;
	return json_pack("{s:i, s:i, s:f, s:i, s:s}", "id", id, "nodes", size, "run_s", run, "priority", urgent ? 2000 : 1000, "partition",
	                 "main");
}

static json_t *elastic_job(const struct trace_recipe *r, int id, uint64_t *state)
{
	json_t *curve = json_array();
	double rate = 2000 * exp(0.7 * normal(state)), power = 0.7 + 0.28 * uniform(state);
	int most = r->elastic_nodes, least = most / 16 > 1 ? most / 16 : 1;
	for (int n = 1; curve && n <= most; n++)
		json_array_append_new(curve, json_real(rate * pow(n, power)));
	return json_pack("{s:i, s:b, s:i, s:i, s:i, s:s, s:f, s:o}", "id", id, "elastic", 1, "min_nodes", least, "max_nodes", most,
	                 "priority", 100, "partition", "main", "pause_s", 1 + 4 * uniform(state), "tokens_per_s", curve);
}

static int by_submission(json_t *events, const struct made *jobs, int n)
{
	for (int i = 0; i < n; i++)
		if (json_array_append_new(
		            events, json_pack("{s:f, s:s, s:O}", "time_s", jobs[i].time_s, "event", "submit", "job", jobs[i].job)) < 0)
			return -1;
	return 0;
}

struct hspmd_trace *trace_make(const struct trace_recipe *r, struct hspmd_error *err)
{
	uint64_t state = r->seed * 2 + 1;
	double seconds = r->hours * 3600, work = 0, wanted = r->load * r->nodes * seconds;
	struct made *jobs = calloc((size_t)(r->rigid + r->elastic), sizeof *jobs);
	json_t *events = json_array();
	struct hspmd_trace *t = NULL;
	if (!jobs || !events)
		goto done;
	for (int i = 0; i < r->rigid; i++)
		jobs[i] = (struct made){ day_time(&state, seconds), rigid_job(r, i + 1, wanted / r->rigid, &state, &work) };
	/* Scale the run times so that the load is the requested one. */
	for (int i = 0; i < r->rigid; i++) {
		json_t *run = json_object_get(jobs[i].job, "run_s");
		json_real_set(run, json_real_value(run) * wanted / work);
	}
	for (int i = 0; i < r->elastic; i++)
		jobs[r->rigid + i] = (struct made){ uniform(&state) * seconds / 8, elastic_job(r, r->rigid + i + 1, &state) };
	qsort(jobs, (size_t)(r->rigid + r->elastic), sizeof *jobs, by_time);
	char nodes[32];
	snprintf(nodes, sizeof nodes, "n[0-%d]", r->nodes - 1);
	json_array_append_new(events, json_pack("{s:f, s:s, s:[s]}", "time_s", 0.0, "event", "add", "nodes", nodes));
	if (by_submission(events, jobs, r->rigid + r->elastic) == 0) {
		json_t *all = json_pack("{s:s, s:s, s:f, s:O}", "format", HSPMD_TRACE_FORMAT, "name", "made up", "end_s", seconds, "events",
		                        events);
		t = all ? hspmd_trace_from_json(all, "made-up trace", err) : NULL;
		json_decref(all);
	}
done:
	for (int i = 0; jobs && i < r->rigid + r->elastic; i++)
		json_decref(jobs[i].job);
	free(jobs);
	json_decref(events);
	if (!t && err && !*err->text)
		hspmd_fail_memory(err, "making a trace");
	return t;
}
