/* SPDX-License-Identifier: Apache-2.0 */
/* How the state lies under a plan other than the generation's own: the plan of a survivor, or of a checkpoint. */
#ifndef HSPMD_GENERATION_OLD_PLAN_H
#define HSPMD_GENERATION_OLD_PLAN_H

#include "runtime/generation/generation.h"

struct hspmd_old_plan {
	struct hspmd_cluster *cluster;
	struct hspmd_plan *plan;
	struct hspmd_graph *graph; /* of that plan, if its parameters may lie otherwise than in the graph of the new one; NULL: the same */
	struct hspmd_parameter_layouts *layouts;
};

/* name: of the object in messages. Borrows from g. 0; or -1 and err: clear it nevertheless. */
int hspmd_old_plan_read(const struct hspmd_generation *g, json_t *cluster, json_t *plan, const char *name, struct hspmd_old_plan *old,
                        struct hspmd_error *err);
void hspmd_old_plan_clear(struct hspmd_old_plan *old);

#endif
