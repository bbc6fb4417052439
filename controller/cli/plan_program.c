/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/cli/plan_program.h"

#include <stdio.h>
#include <stdlib.h>

#include "runtime/train/program.h"

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
