/* SPDX-License-Identifier: Apache-2.0 */
/* How the state lies under a plan other than the generation's own: the plan of a survivor, or of a checkpoint. */
#ifndef HSPMD_GENERATION_OLD_PLAN_H
#define HSPMD_GENERATION_OLD_PLAN_H

#include <jansson.h>

#include "common/format/cluster.h"
#include "runtime/program/parameter_layout.h"
#include "runtime/program/program.h"

struct hspmd_old_plan {
	struct hspmd_cluster *cluster;
	struct hspmd_plan *plan;
	struct hspmd_graph *graph; /* of that plan; NULL: `known` is used */
	struct hspmd_parameter_layouts *layouts;
};

/* known: a graph of the model that a search has not annotated, which must then outlive *old, and the plan for which it was built; NULL:
 * there is none. name: of the object in messages. 0; or -1 and err: clear it nevertheless. */
int hspmd_old_plan_read(const struct hspmd_graph_source *source, const struct hspmd_graph *known, const struct hspmd_plan *known_plan,
                        json_t *cluster, json_t *plan, const char *name, struct hspmd_old_plan *old, struct hspmd_error *err);
void hspmd_old_plan_clear(struct hspmd_old_plan *old);

#endif
