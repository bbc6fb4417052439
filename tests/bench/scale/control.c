/* SPDX-License-Identifier: Apache-2.0 */
/* What a new generation sends through the controller as jobs grow: bytes of the large messages to the agents and of the answers, and the
 * CPU seconds of making their frames (common/wire.h): of the compressed text that all agents share and of each node's own keys. Every
 * node's frame is made. Text is compressed once; addresses are random letters.
 *
 *     control [DEVICES...] */
#include <stdio.h>
#include <stdlib.h>

#include "common/address_tree.h"
#include "common/format/device_runs.h"
#include "common/wire.h"
#include "tests/bench/processor_time.h"
#include "tests/bench/scale/problem.h"

#define NODE_DEVICES 8
#define ADDRESS_CHARS 1200 /* base64 of what UCX, two sockets and NCCL take here, per member */

/* The members, in rank order. */
struct members {
	int devices, nodes;
	char (*name)[24];
	const char **names;
	struct hspmd_address_tree tree;
};

static int members_create(struct members *m, int devices, struct hspmd_error *err)
{
	*m = (struct members){ .devices = devices, .nodes = devices / NODE_DEVICES };
	m->name = calloc((size_t)devices, sizeof *m->name);
	m->names = calloc((size_t)devices, sizeof *m->names);
	for (int d = 0; m->name && m->names && d < devices; d++) {
		snprintf(m->name[d], sizeof *m->name, "n%d:%d", d / NODE_DEVICES, d % NODE_DEVICES);
		m->names[d] = m->name[d];
	}
	return m->name && m->names ? hspmd_address_tree_create(&m->tree, m->names, devices, err) : hspmd_fail(err, "out of memory");
}

static void members_clear(struct members *m)
{
	hspmd_address_tree_clear(&m->tree);
	free(m->names);
	free(m->name);
}

static void add_address(const struct members *m, int member, json_t *to)
{
	static unsigned seed = 1;
	char text[ADDRESS_CHARS + 1];
	for (int i = 0; i < ADDRESS_CHARS; i++)
		text[i] = (char)('A' + rand_r(&seed) % 26);
	text[ADDRESS_CHARS] = 0;
	json_object_set_new(to, m->name[member], json_string(text));
}

/* What one node's message has for itself. */
static json_t *own_keys(const struct members *m, int node, bool addresses)
{
	json_t *to = json_array(), *known = addresses ? json_object() : NULL;
	int near[1 + HSPMD_ADDRESS_TREE_FANOUT], count = hspmd_address_tree_neighbours(&m->tree, node, near);
	for (int i = m->tree.leader[node]; i >= 0; i = m->tree.next[i]) {
		json_array_append_new(to, json_string(m->name[i]));
		if (known)
			add_address(m, i, known);
	}
	for (int i = 0; known && i < count; i++)
		add_address(m, near[i], known);
	return json_pack("{s:o, s:o*}", "to", to, "addresses", known);
}

/* Print bytes and seconds for all agents, and return the bytes. */
static double report(const char *name, const json_t *message, const struct members *m, bool addresses)
{
	struct hspmd_error err = { "" };
	char *frame, *text;
	size_t size = 0, text_size, most = 0;
	double start = processor_time(), seconds = 0, bytes = 0;
	int rc = hspmd_wire_text_packed(message, &text, &text_size, &err);
	seconds += processor_time() - start;
	for (int k = 0; k < m->nodes && !rc; k++) {
		json_t *own = own_keys(m, k, addresses);
		start = processor_time();
		rc = hspmd_wire_encode_with(text, text_size, own, &frame, &size, &err);
		seconds += processor_time() - start;
		bytes += (double)size;
		most = size > most ? size : most;
		free(frame);
		json_decref(own);
	}
	if (rc)
		printf("    %-9s %s\n", name, err.text);
	else
		printf("    %-9s %9.3f MB to each of %d agents at most, %8.1f MB to all; frames made in %6.2f s\n", name,
		       (double)most / 1e6, m->nodes, bytes / 1e6, seconds);
	free(text);
	fflush(stdout);
	return bytes;
}

static int count(int devices)
{
	struct hspmd_error err;
	struct scale_problem p;
	struct members m;
	if (scale_problem_create(devices, SCALE_FOUR, &p, &err) || members_create(&m, devices, &err)) {
		printf("%d devices: %s\n", devices, err.text);
		return 1;
	}
	printf("%d devices\n", devices);
	json_t *cluster = hspmd_cluster_to_json(p.cluster), *plan = hspmd_plan_to_json(p.plan, p.cluster);
	json_t *members = hspmd_device_runs(m.names, devices);
	json_t *live = json_pack("[{s:O, s:O, s:O}]", "cluster", cluster, "plan", plan, "holders", members);
	json_t *prepare = json_pack("{s:s, s:i, s:O, s:O, s:O, s:i, s:i, s:O}", "type", "prepare", "generation", 2, "cluster", cluster,
	                            "plan", plan, "members", members, "replicas", 1, "keep", m.nodes, "live", live);
	json_t *start = json_pack("{s:s, s:i, s:i, s:{s:b}}", "type", "start", "generation", 2, "step", 1000, "state", "live", 1);
	json_t *stop = json_pack("{s:s, s:i}", "type", "stop", "generation", 1);
	double answers = (ADDRESS_CHARS + 150.0) * devices;
	double all = report("prepare", prepare, &m, false) + report("start", start, &m, true) + report("stop", stop, &m, false) + answers;
	printf("    prepared  %9.3f MB from each of %d workers, %8.1f MB; %.1f MB through the controller\n", answers / devices / 1e6,
	       devices, answers / 1e6, all / 1e6);
	json_t *const made[] = { cluster, plan, members, live, prepare, start, stop };
	for (size_t i = 0; i < sizeof made / sizeof *made; i++)
		json_decref(made[i]);
	members_clear(&m);
	scale_problem_clear(&p);
	return 0;
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
