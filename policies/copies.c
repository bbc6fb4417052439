/* SPDX-License-Identifier: Apache-2.0 */
#include "policies/copies.h"

#include <math.h>
#include <stdlib.h>

#include "common/alloc.h"

/* Returns the fraction of time left for training if every node sends its share of the state once per copy. */
static double training_fraction(const struct hspmd_copies_problem *c, int copies)
{
	double each_s = c->bytes_per_s > 0 ? c->state_bytes / c->nodes / c->bytes_per_s : 0;
	return c->every_s > 0 ? 1 / (1 + copies * each_s / c->every_s) : 1;
}

static double liveput_with(const struct hspmd_copies_problem *c, const struct hspmd_risk *risk, double horizon_s, int copies, double *rates)
{
	int nodes = c->nodes < HSPMD_COPIES_NODES ? c->nodes : HSPMD_COPIES_NODES;
	for (int i = 0; i < nodes; i++)
		rates[i] = (i + 1) * training_fraction(c, copies);
	struct hspmd_liveput_plan plan = {
		.nodes = nodes, .tokens_per_s = rates, .replicas = copies, .pause_s = c->pause_s, .rollback_s = c->rollback_s
	};
	return hspmd_liveput(&plan, risk, horizon_s);
}

int hspmd_copies_choose(const struct hspmd_copies_problem *c, const struct hspmd_risk *risk, double horizon_s)
{
	int most = c->most < c->nodes - 1 ? c->most : c->nodes - 1, best = c->least < most ? c->least : most;
	if (best < 0)
		best = 0;
	if (!(risk->losses_per_s > 0))
		return best;
	double *rates = hspmd_calloc((size_t)c->nodes, sizeof *rates), greatest = -INFINITY;
	if (!rates)
		return -1;
	for (int copies = best; copies <= most; copies++) {
		double value = liveput_with(c, risk, horizon_s, copies, rates);
		if (value <= greatest)
			continue;
		greatest = value;
		best = copies;
	}
	free(rates);
	return best;
}
