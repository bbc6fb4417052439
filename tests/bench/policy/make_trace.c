/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a made-up trace: make_trace NODES RIGID ELASTIC HOURS LOAD ELASTIC_NODES SEED > trace.json */
#include <stdio.h>
#include <stdlib.h>

#include "common/json.h"
#include "tests/bench/policy/trace_maker.h"

int main(int argc, char **argv)
{
	struct hspmd_error err = { "" };
	if (argc != 8) {
		fputs("Usage: make_trace NODES RIGID ELASTIC HOURS LOAD ELASTIC_NODES SEED\n", stderr);
		return 2;
	}
	struct trace_recipe r = { .nodes = atoi(argv[1]),
		                  .rigid = atoi(argv[2]),
		                  .elastic = atoi(argv[3]),
		                  .hours = atof(argv[4]),
		                  .load = atof(argv[5]),
		                  .elastic_nodes = atoi(argv[6]),
		                  .seed = strtoull(argv[7], NULL, 10) };
	if (r.nodes < 2 || r.rigid < 1 || r.elastic < 0 || r.hours <= 0 || r.elastic_nodes < 1) {
		fputs("make_trace: numbers out of range\n", stderr);
		return 2;
	}
	struct hspmd_trace *t = trace_make(&r, &err);
	json_t *out = t ? hspmd_trace_to_json(t) : NULL;
	int rc = out ? hspmd_json_save(out, "-", &err) : -1;
	json_decref(out);
	hspmd_trace_destroy(t);
	if (rc < 0)
		fprintf(stderr, "make_trace: %s\n", err.text);
	return rc < 0;
}
