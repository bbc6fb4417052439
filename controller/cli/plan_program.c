/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/cli/plan_program.h"

#include <stdio.h>
#include <stdlib.h>

#include "runtime/train/length.h"
#include "runtime/train/program.h"

/* Programs made to see whether a plan can be run. */
#define CHECKED 16

/* Workspaces are the kernels' to know; where this machine cannot open such a device they are left out of the sum. */
static struct hspmd_device *open_device(enum hspmd_device_kind kind)
{
	struct hspmd_error ignored;
	struct hspmd_device *dev = NULL;
	const struct hspmd_device_ops *ops = hspmd_device_find(hspmd_device_kind_words[kind], &ignored);
	return ops && !ops->open(&dev, 0, 1, &ignored) ? dev : NULL;
}

int hspmd_plan_print_program(const struct hspmd_cluster *cluster, const struct hspmd_model *model, const struct hspmd_plan *plan, const char *address,
			     bool explain, struct hspmd_error *err)
{
	int device = hspmd_cluster_device(cluster, address, err);
	if (device < 0)
		return -1;
	struct hspmd_graph_source source = hspmd_graph_source_model(model);
	struct hspmd_device *dev = open_device(cluster->types[cluster->devices[device].type].kind);
	struct hspmd_program *program = hspmd_program_build(&source, plan, cluster, device, dev, err);
	char *text = program ? hspmd_program_text(program, cluster) : NULL;
	char *why = text && explain ? hspmd_program_explain(program) : NULL;
	if (text)
		fputs(text, stdout);
	if (why)
		printf("\n%s", why);
	int status = text && (why || !explain) ? 0 : program ? hspmd_fail_memory(err, "printing the program") : -1;
	free(text);
	free(why);
	hspmd_program_destroy(program);
	if (dev)
		dev->ops->close(dev);
	return status;
}

static int check_program(const struct hspmd_graph_source *source, const struct hspmd_cluster *cluster, const struct hspmd_plan *plan, const struct hspmd_job *job,
			 int device, struct hspmd_error *err)
{
	struct hspmd_program *p = hspmd_program_build(source, plan, cluster, device, NULL, err);
	int status = p ? 0 : -1;
	for (int i = 0; !status && i < job->length_count; i++) {
		struct hspmd_program *shorter = hspmd_program_at_length(p, source, job->lengths[i], NULL, err);
		if (!shorter)
			status = hspmd_error_prefix(err, "%s: data.lengths[%d]", job->file, i);
		hspmd_program_destroy(shorter);
	}
	hspmd_program_destroy(p);
	return status;
}

int hspmd_plan_check_programs(const struct hspmd_cluster *cluster, const struct hspmd_model *model, const struct hspmd_plan *plan, const struct hspmd_job *job,
			      struct hspmd_error *err)
{
	struct hspmd_graph_source source = hspmd_graph_source_model(model);
	source.documents = job->documents;
	source.bf16 = job->precision == HSPMD_PRECISION_BF16;
	int checked = 0;
	for (int q = 0; q < plan->pipeline_count; q++)
		for (int s = 0; s < plan->pipelines[q].stage_count / plan->virtual_stages; s++)
			for (int d = 0; d < plan->pipelines[q].stages[s].device_count && checked < CHECKED; d++, checked++)
				if (check_program(&source, cluster, plan, job, plan->pipelines[q].stages[s].devices[d], err))
					return -1;
	return 0;
}
