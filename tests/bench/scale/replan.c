/* SPDX-License-Identifier: Apache-2.0 */
/* CPU seconds and memory of choosing a job's plan (controller/run/choose_plan.h) as the job grows, in a process per size: at its start,
 * after the loss of one node (the repaired plan, with which the job goes on, and the search beside it), and when the node is back; with the
 * current plan, the limit on nodes and a known rate of losses, as the controller asks. From the cluster's JSON to the plan's.
 *
 *     replan [DEVICES [TYPES]] */
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "controller/run/choose_plan.h"
#include "runtime/facts/facts.h"
#include "tests/bench/scale/problem.h"

#define LAYERS 82
#define LIMIT_S 120.0 /* no search is cut short */

static double seconds_now(void)
{
	struct rusage u;
	getrusage(RUSAGE_SELF, &u);
	return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + 1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static long memory_mb(void)
{
	struct rusage u;
	getrusage(RUSAGE_SELF, &u);
	return u.ru_maxrss / 1024;
}

/* Choose a plan and print what that took. urgent: nothing trains until it is there. Returns { cluster, plan, ... }; NULL after a
 * message. */
static json_t *choose(const char *what, const struct hspmd_job *job, const struct hspmd_model_facts *facts, json_t *cluster,
                      json_t *current, bool urgent)
{
	struct hspmd_error err = { "" };
	json_t *input = json_pack("{s:O, s:o, s:b, s:i, s:f, s:f, s:{s:f, s:f}}", "cluster", cluster, "current",
	                          current ? json_incref(current) : json_null(), "urgent", urgent, "copies", 1, "every_s", 30.0,
	                          "shared_every_s", 600.0, "risk", "losses_per_node_s", 1e-7, "together", 0.1);
	double start = seconds_now();
	static struct run_comparison compared = { .lock = PTHREAD_MUTEX_INITIALIZER };
	const struct run_planning planning = {
		.job = job, .facts = facts, .layers = LAYERS, .limit_s = LIMIT_S, .compared = &compared, .repair_devices = 1
	};
	json_t *answer = run_choose_plan(&planning, input, &err);
	if (answer)
		printf("    %-22s %8.3f s, %ld MB; %zu pipelines, step %.4g s%s\n", what, seconds_now() - start, memory_mb(),
		       json_array_size(json_object_get(json_object_get(answer, "plan"), "pipelines")),
		       json_number_value(json_object_get(json_object_get(json_object_get(answer, "plan"), "predicted"), "step_s")),
		       json_object_get(answer, "behind") ? ", repaired" : "");
	else
		printf("    %-22s %s\n", what, err.text);
	fflush(stdout);
	json_decref(input);
	return answer;
}

static int replan(int devices, int types)
{
	struct hspmd_error err = { "" };
	struct hspmd_job job = { .global_batch = devices < 1024 ? 1024 : devices,
		                 .seq_len = 4096,
		                 .precision = HSPMD_PRECISION_BF16,
		                 .elastic = { .min_nodes = 1, .max_nodes = devices / 8 } };
	struct hspmd_model *model = scale_model(&err);
	struct hspmd_model_facts *facts = model ? hspmd_model_facts_of(model, (int)job.seq_len, &err) : NULL;
	json_t *whole = scale_cluster(devices, types, -1), *less = scale_cluster(devices, types, devices / 8 / types / 2);
	json_t *first = NULL, *repaired = NULL, *second = NULL, *third = NULL;
	printf("%d devices of %d type%s\n", devices, types, types == 1 ? "" : "s");
	if (!facts || !whole || !less)
		printf("    %s\n", err.text);
	else if ((first = choose("start", &job, facts, whole, NULL, false)) &&
	         (repaired = choose("one node lost", &job, facts, less, first, true)) &&
	         (second = choose("search beside it", &job, facts, less, repaired, false)))
		third = choose("the node is back", &job, facts, whole, second, false);
	int failed = !third;
	json_decref(first);
	json_decref(repaired);
	json_decref(second);
	json_decref(third);
	json_decref(whole);
	json_decref(less);
	hspmd_model_facts_destroy(facts);
	hspmd_model_destroy(model);
	return failed;
}

static int in_child(int devices, int types)
{
	pid_t child = fork();
	int status = 1;
	if (child == 0)
		_exit(replan(devices, types));
	if (child < 0 || waitpid(child, &status, 0) < 0)
		perror("replan");
	return status != 0;
}

int main(int argc, char **argv)
{
	static const int sizes[] = { 1024, 4096, 10240 };
	int failed = 0;
	if (argc > 1)
		return in_child(atoi(argv[1]), argc > 2 ? atoi(argv[2]) : 1);
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
		failed |= in_child(sizes[i], 1) | in_child(sizes[i], 4);
	return failed;
}
