/* SPDX-License-Identifier: Apache-2.0 */
/* Lower bound on the bytes that move from one plan to the next: lower_bound config.json CLUSTER OLD-PLAN NEW-PLAN prints the bytes of state
 * that devices of the new plan need and do not have from the old one. Computed from the two plans alone, device by device, without any of
 * the code that plans and carries out the moves. */
#include <inttypes.h>
#include <stdio.h>

#include "runtime/model/build.h"
#include "runtime/state/manifest.h"
#include "runtime/program/parameter_layout.h"

static int64_t missing(const struct hspmd_parameter_layout *old, const struct hspmd_parameter_layout *new, int device)
{
	struct hspmd_local_shard have, need;
	struct hspmd_box both;
	if (!hspmd_annotation_local_shard(new->state, &new->shape, device, &need))
		return 0;
	int64_t all = hspmd_box_elements(&need.box);
	if (!hspmd_annotation_local_shard(old->state, &old->shape, device, &have) || !hspmd_box_intersect(&have.box, &need.box, &both))
		return all;
	return all - hspmd_box_elements(&both);
}

int main(int argc, char **argv)
{
	struct hspmd_error err = { "" };
	struct hspmd_model_build_options how = { .batch = 1, .seq_len = 1, .vocab_parts = 1, .loss_scale = 1, .forward_only = true };
	if (argc != 5) {
		fprintf(stderr, "usage: lower_bound config.json CLUSTER OLD-PLAN NEW-PLAN\n");
		return 2;
	}
	struct hspmd_model *m = hspmd_model_read(argv[1], &err);
	struct hspmd_cluster *c = m ? hspmd_cluster_read(argv[2], &err) : NULL;
	struct hspmd_graph *g = c ? hspmd_model_graph(m, &how, &err) : NULL;
	struct hspmd_plan *plan[2] = { NULL };
	struct hspmd_parameter_layouts *layouts[2] = { NULL };
	for (int i = 0; g && i < 2; i++) {
		plan[i] = hspmd_plan_read(argv[3 + i], c, hspmd_model_layers(m), &err);
		layouts[i] = plan[i] ? hspmd_parameter_layouts_build(g, plan[i], &err) : NULL;
	}
	int64_t elements = 0;
	for (int i = 0; layouts[0] && layouts[1] && i < layouts[0]->parameter_count; i++)
		for (int d = 0; d < c->device_count; d++)
			elements += missing(&layouts[0]->parameters[i], &layouts[1]->parameters[i], d);
	if (err.text[0])
		fprintf(stderr, "%s\n", err.text);
	else
		printf("%" PRId64 "\n", elements * (int64_t)sizeof(float) * HSPMD_STATE_KIND_COUNT);
	for (int i = 0; i < 2; i++) {
		hspmd_parameter_layouts_destroy(layouts[i]);
		hspmd_plan_destroy(plan[i]);
	}
	hspmd_graph_destroy(g);
	hspmd_cluster_destroy(c);
	hspmd_model_destroy(m);
	return err.text[0] != '\0';
}
