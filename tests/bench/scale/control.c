/* SPDX-License-Identifier: Apache-2.0 */
/* What a new generation sends through the controller as jobs grow: bytes of the large messages to the agents and of the answers, and the
 * CPU seconds of making their frames, once from the whole message per agent and once from a text that all agents share (common/wire.h).
 * Frames are made for some agents and multiplied.
 *
 *     control [DEVICES...] */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "common/wire.h"
#include "tests/bench/scale/problem.h"

#define NODE_DEVICES 8
#define ADDRESS_CHARS 1200 /* base64 of what UCX, two sockets and NCCL take here, per member */
#define WHOLE 2            /* agents for which frames are made from the message */
#define SHARED 32          /* and from the text */

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static json_t *node_members(int node)
{
	json_t *to = json_array();
	for (int d = 0; d < NODE_DEVICES; d++)
		json_array_append_new(to, json_sprintf("n%d:%d", node, d));
	return to;
}

static json_t *all_members(int devices)
{
	json_t *list = json_array();
	for (int d = 0; d < devices; d++)
		json_array_append_new(list, json_sprintf("n%d:%d", d / NODE_DEVICES, d % NODE_DEVICES));
	return list;
}

/* Addresses of equal length; their letters differ. */
static json_t *all_addresses(int devices)
{
	json_t *list = json_array();
	char text[ADDRESS_CHARS + 1];
	for (int d = 0; d < devices; d++) {
		for (int i = 0; i < ADDRESS_CHARS; i++)
			text[i] = (char)('A' + (d * 7 + i * i) % 26);
		text[ADDRESS_CHARS] = 0;
		json_array_append_new(list, json_string(text));
	}
	return list;
}

/* Print bytes and seconds for all agents. */
static int report(const char *name, const json_t *message, int nodes)
{
	struct hspmd_error err = { "" };
	char *frame, *text;
	size_t size = 0, text_size;
	json_t *to = node_members(nodes - 1);
	double start = now();
	for (int i = 0; i < WHOLE; i++) {
		json_t *copy = json_copy((json_t *)message);
		json_object_set(copy, "to", to);
		int rc = hspmd_wire_encode(copy, &frame, &size, &err);
		json_decref(copy);
		if (rc)
			break;
		free(frame);
	}
	double whole = (now() - start) / WHOLE * nodes;
	start = now();
	int rc = err.text[0] ? -1 : hspmd_wire_text(message, &text, &text_size, &err);
	double once = now() - start;
	start = now();
	for (int i = 0; i < SHARED && !rc; i++) {
		rc = hspmd_wire_encode_to(text, text_size, to, &frame, &size, &err);
		free(frame);
	}
	if (rc)
		printf("    %-9s %s\n", name, err.text);
	else {
		free(text);
		printf("    %-9s %9.3f MB to each of %d agents, %8.1f MB; frames made in %8.2f s, with one text in %6.2f s\n", name,
		       (double)size / 1e6, nodes, (double)size * nodes / 1e6, whole, once + (now() - start) / SHARED * nodes);
	}
	fflush(stdout);
	json_decref(to);
	return rc;
}

static int count(int devices)
{
	struct hspmd_error err;
	struct scale_problem p;
	int nodes = devices / NODE_DEVICES;
	if (scale_problem_create(devices, SCALE_FOUR, &p, &err)) {
		printf("%d devices: %s\n", devices, err.text);
		return 1;
	}
	printf("%d devices\n", devices);
	json_t *cluster = hspmd_cluster_to_json(p.cluster), *plan = hspmd_plan_to_json(p.plan, p.cluster);
	json_t *members = all_members(devices), *addresses = all_addresses(devices), *none = json_array();
	for (int d = 0; d < devices; d++)
		json_array_append_new(none, json_null());
	json_t *live = json_pack("[{s:O, s:O, s:O}]", "cluster", cluster, "plan", plan, "holders", members);
	json_t *prepare = json_pack("{s:s, s:i, s:O, s:O, s:O, s:i, s:i, s:O}", "type", "prepare", "generation", 2, "cluster", cluster,
	                            "plan", plan, "members", members, "replicas", 1, "keep", nodes, "live", live);
	json_t *start = json_pack("{s:s, s:i, s:O, s:O, s:i, s:{s:O}}", "type", "start", "generation", 2, "addresses", addresses, "copies",
	                          none, "step", 1000, "state", "live", live);
	json_t *stop = json_pack("{s:s, s:i}", "type", "stop", "generation", 1);
	int failed = report("prepare", prepare, nodes) | report("start", start, nodes) | report("stop", stop, nodes);
	printf("    prepared  %9.3f MB from each of %d workers, %8.1f MB\n", (ADDRESS_CHARS + 150) / 1e6, devices,
	       (ADDRESS_CHARS + 150) / 1e6 * devices);
	json_t *const all[] = { cluster, plan, members, addresses, none, live, prepare, start, stop };
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		json_decref(all[i]);
	scale_problem_clear(&p);
	return failed != 0;
}

int main(int argc, char **argv)
{
	static const int sizes[] = { 1024, 4096, 10240 };
	int failed = 0;
	for (int i = 1; i < argc; i++)
		failed |= count(atoi(argv[i]));
	for (size_t i = 0; argc < 2 && i < sizeof sizes / sizeof *sizes; i++)
		failed |= count(sizes[i]);
	return failed;
}
