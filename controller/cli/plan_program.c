/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/cli/plan_program.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/format/plan_lengths.h"
#include "common/format/plan_precision.h"
#include "common/log.h"
#include "runtime/program/program_set.h"

/* Only the kernels know their workspaces; if this machine cannot open such a device, they are missing from the sum. */
static struct hspmd_device *open_device(enum hspmd_device_kind kind)
{
	struct hspmd_error ignored;
	struct hspmd_device *dev = NULL;
	const struct hspmd_device_ops *ops = hspmd_device_find(hspmd_device_kind_names[kind], &ignored);
	return ops && !ops->open(&dev, 0, 1, &ignored) ? dev : NULL;
}

static struct hspmd_graph_source source_of(const struct hspmd_plan_task *task)
{
	if (task->job)
		return hspmd_graph_source_job(task->model, task->job);
	struct hspmd_graph_source source = hspmd_graph_source_model(task->model);
	source.precision = task->precision;
	return source;
}

static struct hspmd_step_lengths lengths_of(const struct hspmd_job *job)
{
	struct hspmd_step_lengths none = { 0 };
	return job ? (struct hspmd_step_lengths){ job->lengths, job->length_count, job->file, job->mix_lengths } : none;
}

int hspmd_plan_print_program(const struct hspmd_cluster *cluster, const struct hspmd_plan_task *task, const struct hspmd_plan *plan,
                             const char *address, int64_t length, bool explain, struct hspmd_error *err)
{
	struct hspmd_graph_source source = source_of(task);
	if (source.precision == HSPMD_PRECISION_FP16 || source.precision == HSPMD_PRECISION_FP64)
		return hspmd_fail(err, "there is no program in %s: hspmd computes in fp32, tf32, bf16 or fp8",
		                  hspmd_precision_names[source.precision]);
	int device = hspmd_cluster_find_device(cluster, address, err);
	if (device < 0)
		return -1;
	struct hspmd_device *dev = open_device(cluster->types[cluster->devices[device].type].kind);
	struct hspmd_step_lengths only = { .lengths = &length, .count = length > 0 };
	if (task->job && task->job->mix_lengths && length <= 0)
		only = lengths_of(task->job);
	struct hspmd_program_set *programs = hspmd_program_set_build(&source, plan, cluster, device, dev, &only, err);
	const struct hspmd_program *program = programs ? hspmd_program_set_at(programs, 0) : NULL;
	char *text = program ? hspmd_program_text(program, cluster) : NULL;
	char *why = text && explain ? hspmd_program_explain(programs->programs[program->which]) : NULL,
	     *least = why ? hspmd_program_roofline(program, cluster) : NULL;
	if (text)
		fputs(text, stdout);
	if (least)
		printf("\n%s\n%s", why, least);
	int status = text && (least || !explain) ? 0 : program ? hspmd_fail_memory(err, "printing the program") : -1;
	free(text);
	free(why);
	free(least);
	hspmd_program_set_destroy(programs);
	if (dev)
		dev->ops->close(dev);
	return status;
}

static int check_program(const struct hspmd_graph_source *source, const struct hspmd_cluster *cluster, const struct hspmd_plan *plan,
                         const struct hspmd_job *job, int device, struct hspmd_error *err)
{
	struct hspmd_step_lengths lengths = lengths_of(job);
	struct hspmd_program_set *p = hspmd_program_set_build(source, plan, cluster, device, NULL, &lengths, err);
	int status = p ? 0 : -1;
	hspmd_program_set_destroy(p);
	return status;
}

/* A program of a job of 10,240 devices takes 3 s and 0.14 GB. */
#define CHECKED_MOST 16384

static bool same_kind(const struct hspmd_cluster *c, int a, int b)
{
	return c->types[c->devices[a].type].kind == c->types[c->devices[b].type].kind;
}

static bool like_stage(const struct hspmd_cluster *c, const struct hspmd_stage *a, const struct hspmd_stage *b)
{
	if (a->layers[0] != b->layers[0] || a->layers[1] != b->layers[1] || a->recompute != b->recompute || a->offload != b->offload ||
	    a->offload_activations != b->offload_activations || !hspmd_stage_same_splits(a, b))
		return false;
	for (int d = 0; d < a->device_count; d++)
		if (!same_kind(c, a->devices[d], b->devices[d]))
			return false;
	return true;
}

/* Of identical pipelines all can run, or none. */
static bool like_one_before(const struct hspmd_cluster *c, const struct hspmd_plan *plan, int number)
{
	const struct hspmd_pipeline *p = &plan->pipelines[number];
	for (int q = 0; q < number; q++) {
		const struct hspmd_pipeline *other = &plan->pipelines[q];
		bool alike = other->stage_count == p->stage_count && other->micro_batch == p->micro_batch &&
		             other->micro_batches == p->micro_batches && hspmd_pipeline_same_lengths(other, p);
		for (int s = 0; alike && s < p->stage_count; s++)
			alike = like_stage(c, &p->stages[s], &other->stages[s]);
		if (alike)
			return true;
	}
	return false;
}

/* The devices at position `at` of every stage. *more: some stage has a further position. */
static int check_places(const struct hspmd_graph_source *source, const struct hspmd_cluster *cluster, const struct hspmd_plan *plan,
                        const struct hspmd_job *job, int at, double until, bool *more, struct hspmd_error *err)
{
	*more = false;
	for (int q = 0; q < plan->pipeline_count; q++) {
		if (like_one_before(cluster, plan, q))
			continue;
		for (int s = 0; s < plan->pipelines[q].stage_count / plan->virtual_stages; s++) {
			const struct hspmd_stage *stage = &plan->pipelines[q].stages[s];
			if (at < stage->device_count && hspmd_now() < until &&
			    check_program(source, cluster, plan, job, stage->devices[at], err))
				return -1;
			*more |= at + 1 < stage->device_count;
		}
	}
	return 0;
}

static int64_t devices_of(const struct hspmd_plan *plan)
{
	int64_t devices = 0;
	for (int q = 0; q < plan->pipeline_count; q++)
		for (int s = 0; s < plan->pipelines[q].stage_count / plan->virtual_stages; s++)
			devices += plan->pipelines[q].stages[s].device_count;
	return devices;
}

int hspmd_plan_check_programs(const struct hspmd_cluster *cluster, const struct hspmd_plan_task *task, const struct hspmd_plan *plan,
                              double limit_s, struct hspmd_error *err)
{
	struct hspmd_graph_source source = source_of(task);
	double until = hspmd_now() + limit_s;
	bool more = true;
	if (devices_of(plan) > CHECKED_MOST) {
		hspmd_warn("the plan's programs are not checked: it has more than %d devices", CHECKED_MOST);
		return 0;
	}
	for (int at = 0; more && hspmd_now() < until; at++)
		if (check_places(&source, cluster, plan, task->job, at, until, &more, err))
			return -1;
	return 0;
}

int hspmd_plan_check_job(const char *file, int64_t global_batch, int64_t seq_len, const struct hspmd_job *job, struct hspmd_error *err)
{
	if (global_batch != job->global_batch)
		return hspmd_fail(err, "%s: global_batch: expected %" PRId64 ", as %s says, got %" PRId64, file, job->global_batch,
		                  job->file, global_batch);
	if (seq_len != job->seq_len)
		return hspmd_fail(err, "%s: seq_len: expected %" PRId64 ", as %s says, got %" PRId64, file, job->seq_len, job->file,
		                  seq_len);
	return 0;
}
