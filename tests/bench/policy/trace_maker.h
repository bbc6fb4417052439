/* SPDX-License-Identifier: Apache-2.0 */
/* Made-up traces of a cluster's queue, the same for the same arguments. Rigid jobs are a Poisson stream whose rate follows the hour of the
 * day (low at night). Their sizes are mostly powers of two, their run times log-normal, and a fifth of them is urgent; elastic jobs of low
 * priority fill the rest. */
#ifndef TESTS_BENCH_POLICY_TRACE_MAKER_H
#define TESTS_BENCH_POLICY_TRACE_MAKER_H

#include "common/error.h"
#include "common/format/trace.h"

struct trace_recipe {
	int nodes, rigid, elastic;
	double hours;
	double load;       /* node seconds of the rigid jobs divided by all node seconds */
	int elastic_nodes; /* max_nodes of an elastic job; min_nodes is a sixteenth */
	uint64_t seed;
};

/* Returns NULL with err if memory runs out. */
struct hspmd_trace *trace_make(const struct trace_recipe *recipe, struct hspmd_error *err);

#endif
