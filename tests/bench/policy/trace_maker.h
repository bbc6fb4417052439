/* SPDX-License-Identifier: Apache-2.0 */
/* Made-up traces of a cluster's queue, the same for the same numbers. Rigid jobs come as a Poisson stream whose rate follows the hour of
 * the day (quiet at night), of sizes that are mostly powers of two and of log-normal run times, a fifth of them urgent; elastic jobs of low
 * priority fill up. */
#ifndef TESTS_BENCH_POLICY_TRACE_MAKER_H
#define TESTS_BENCH_POLICY_TRACE_MAKER_H

#include "common/error.h"
#include "common/format/trace.h"

struct trace_recipe {
	int nodes, rigid, elastic;
	double hours;
	double load;       /* node seconds of the rigid jobs over those there are */
	int elastic_nodes; /* max_nodes of an elastic job; min_nodes is a sixteenth */
	uint64_t seed;
};

/* NULL and err: out of memory. */
struct hspmd_trace *trace_make(const struct trace_recipe *recipe, struct hspmd_error *err);

#endif
