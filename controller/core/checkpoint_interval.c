/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/core/checkpoint_interval.h"

#include <math.h>

#define NODE_FAILURE_S (30 * 86400.0)

double hspmd_checkpoint_interval(double cost_s, double failure_s)
{
	if (cost_s >= 2 * failure_s)
		return failure_s;
	double x = cost_s / (2 * failure_s);
	return sqrt(2 * cost_s * failure_s) * (1 + sqrt(x) / 3 + x / 9) - cost_s;
}

double hspmd_mean_time_between_failures(int nodes, double run_s, int failures, double losses_per_node_s)
{
	double node_s = losses_per_node_s > 0 ? 1 / losses_per_node_s : NODE_FAILURE_S;
	if (nodes < 1)
		nodes = 1;
	return (node_s / nodes + run_s) / (1 + failures);
}
