/* SPDX-License-Identifier: Apache-2.0 */
/* Who writes which state into checkpoints and who keeps copies: after the loss of any `replicas` nodes the rest must have everything,
 * written once more than that, and no more. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/generation/checkpoint_placement.h"

#define MOST 16 /* maximum number of devices, and of nodes */
#define PLANS 400

struct scene {
	struct hspmd_cluster cluster;
	struct hspmd_cluster_device devices[MOST];
	struct hspmd_node nodes[MOST];
	struct hspmd_parameter_layouts layouts;
	struct hspmd_parameter_layout parameters[8];
	int rank_of[MOST];
	struct hspmd_checkpoint_placement placement[MOST];
};

static void plan_all(struct scene *s, int replicas, int keep)
{
	struct hspmd_error err = { "" };
	for (int d = 0; d < s->cluster.device_count; d++)
		if (hspmd_checkpoint_placement_plan(&s->layouts, &s->cluster, s->rank_of, d, replicas, keep, &s->placement[d], &err))
			fail_msg("%s", err.text);
}

/* nodes: one digit per device. */
static void set_up(struct scene *s, const char *nodes, const char *const *annotations, int count, int replicas)
{
	struct hspmd_error err = { "" };
	memset(s, 0, sizeof *s);
	s->cluster.device_count = (int)strlen(nodes);
	s->cluster.devices = s->devices;
	s->cluster.nodes = s->nodes;
	s->layouts.parameters = s->parameters;
	s->layouts.parameter_count = count;
	for (int d = 0; d < s->cluster.device_count; d++) {
		s->devices[d].node = nodes[d] - '0';
		s->cluster.node_count = s->devices[d].node + 1;
		s->rank_of[d] = d;
	}
	for (int i = 0; i < count; i++) {
		s->parameters[i].shape = (struct hspmd_shape){ 1, { 120 } };
		s->parameters[i].state = hspmd_annotation_parse(annotations[i], &err);
		if (!s->parameters[i].state)
			fail_msg("%s", err.text);
	}
	plan_all(s, replicas, MOST);
}

static void tear_down(struct scene *s)
{
	for (int d = 0; d < s->cluster.device_count; d++)
		hspmd_checkpoint_placement_free(&s->placement[d]);
	for (int i = 0; i < s->layouts.parameter_count; i++)
		hspmd_annotation_destroy(s->parameters[i].state);
}

/* Returns the nodes that have the element `at` of the parameter. */
static void find_nodes_with(const struct scene *s, int parameter, int at, bool *there)
{
	memset(there, 0, MOST * sizeof *there);
	for (int d = 0; d < s->cluster.device_count; d++) {
		struct hspmd_local_shard shard;
		if (!s->placement[d].writes[parameter] ||
		    !hspmd_annotation_local_shard(s->parameters[parameter].state, &s->parameters[parameter].shape, d, &shard) ||
		    at < shard.box.lo[0] || at >= shard.box.hi[0])
			continue;
		there[s->devices[d].node] = true;
		for (int k = 0; k < s->placement[d].to_count; k++)
			there[s->devices[s->placement[d].to[k]].node] = true;
	}
}

static int nodes_with(const struct scene *s, int parameter, int at)
{
	bool there[MOST];
	int count = 0;
	find_nodes_with(s, parameter, at, there);
	for (int n = 0; n < MOST; n++)
		count += there[n];
	return count;
}

static void check(const struct scene *s, int wanted)
{
	for (int i = 0; i < s->layouts.parameter_count; i++)
		for (int at = 0; at < 120; at += 5)
			assert_int_equal(nodes_with(s, i, at), wanted);
	for (int d = 0; d < s->cluster.device_count; d++) /* keepers know of the shards that they keep, and the reverse */
		for (int k = 0; k < s->placement[d].to_count; k++) {
			const struct hspmd_checkpoint_placement *keeper = &s->placement[s->placement[d].to[k]];
			int seen = 0;
			for (int j = 0; j < keeper->from_count; j++)
				seen += keeper->from[j] == d;
			assert_int_equal(seen, 1);
		}
}

static int sent(const struct scene *s)
{
	int count = 0;
	for (int d = 0; d < s->cluster.device_count; d++)
		count += s->placement[d].to_count;
	return count;
}

static void test_pipeline(void **state)
{
	(void)state;
	static const char *const stages[] = { "{[0]:}", "{[1]:}", "{[2]:}" };
	struct scene s;
	set_up(&s, "012", stages, 3, 1);
	check(&s, 2);
	assert_int_equal(sent(&s), 3);
	tear_down(&s);
	set_up(&s, "012", stages, 3, 5); /* there are two other nodes */
	check(&s, 3);
	tear_down(&s);
	set_up(&s, "000", stages, 3, 1); /* there is none */
	assert_false(s.placement[0].any);
	tear_down(&s);
}

/* State that two pipelines hold on two nodes is written by both, and sent by neither. */
static void test_data_parallel(void **state)
{
	(void)state;
	static const char *const both[] = { "{[0]: | [1]:} h-1", "{[0]: | [1]:} h-1" };
	struct scene s;
	set_up(&s, "01", both, 2, 1);
	check(&s, 2);
	assert_int_equal(sent(&s), 0);
	tear_down(&s);
	set_up(&s, "00", both, 2, 1);
	assert_int_equal(s.placement[0].writes[0] + s.placement[1].writes[0], 1);
	tear_down(&s);
}

/* A second copy goes to a node of neither holder. */
static void test_one_more(void **state)
{
	(void)state;
	static const char *const both[] = { "{[0]: | [1]:} h-1", "{[0]: | [1]:} h-1" };
	struct scene s;
	set_up(&s, "012", both, 2, 2);
	check(&s, 3);
	assert_int_equal(sent(&s), 1);
	tear_down(&s);
}

/* Shards of tensor parallelism, and a pipeline that splits differently: its parts are no copies of the others'. */
static void test_unequal(void **state)
{
	(void)state;
	static const char *const cut[] = { "{[0-1]:0:2 | [2]:} h-1", "{[0-1]:0:2 | [2]:} h-1" };
	struct scene s;
	set_up(&s, "001", cut, 2, 1);
	for (int i = 0; i < 2; i++)
		for (int at = 0; at < 120; at += 5)
			assert_true(nodes_with(&s, i, at) >= 2);
	tear_down(&s);
}

/* ---- nodes that are lost together */

static uint64_t random_state;

static int pick(int n)
{
	random_state = random_state * 6364136223846793005u + 1442695040888963407u;
	return (int)((random_state >> 33) % (uint64_t)n);
}

/* Nodes with one to three devices, in racks or not, some of them of member jobs; the devices in any order. Returns how many. */
static int random_cluster(struct scene *s, int *order)
{
	static char racks[3][2] = { "a", "b", "c" };
	int nodes = 2 + pick(6), own = 1 + pick(nodes), rack_kinds = pick(4);
	for (int n = 0; n < nodes; n++) {
		s->nodes[n].rack = rack_kinds ? racks[pick(rack_kinds)] : NULL;
		s->nodes[n].member = n < own ? 0 : 100 + pick(3);
		for (int k = 1 + pick(3); k > 0 && s->cluster.device_count < MOST; k--)
			s->devices[s->cluster.device_count++].node = n;
	}
	for (int d = 0; d < s->cluster.device_count; d++) {
		int other = pick(d + 1);
		order[d] = order[other];
		order[other] = d;
		s->rank_of[d] = -1;
	}
	return nodes;
}

/* Pipelines of one to three stages with one to three devices, which may split layers and weights differently. Some devices may be left
 * over. */
static void random_plan(struct scene *s, const int *order, char text[8][512])
{
	int left = s->cluster.device_count, layers = s->layouts.parameter_count, pipelines = 0;
	for (int i = 0; i < layers; i++)
		strcpy(text[i], "{");
	do {
		int stages = 1 + pick(left < 3 ? left : 3), first = 0;
		for (int st = 0; st < stages; st++) {
			int end = st == stages - 1 ? layers : first + 1 + pick(layers - first - (stages - 1 - st)),
			    most = left - (stages - 1 - st), tp = 1 + pick(most < 3 ? most : 3);
			char group[64] = "";
			for (int k = 0; k < tp; k++) {
				int d = order[--left];
				s->rank_of[d] = d;
				sprintf(group + strlen(group), "%s%d", k ? "," : "", d);
			}
			for (int i = first; i < end; i++)
				sprintf(text[i] + strlen(text[i]), tp > 1 ? "%s[%s]:0:%d" : "%s[%s]:", pipelines ? " | " : "", group, tp);
			first = end;
		}
		pipelines++;
	} while (left > 0 && pipelines < 4 && pick(4));
	for (int i = 0; i < layers; i++)
		strcat(text[i], pipelines > 1 ? "} h-1" : "}");
}

/* Returns true if these nodes hold anything that is nowhere else. If no participating node remains, nothing is required. */
static bool survived(const struct scene *s, const bool *lost)
{
	bool any = false;
	for (int d = 0; d < s->cluster.device_count; d++)
		any |= s->rank_of[d] >= 0 && !lost[s->devices[d].node];
	for (int i = 0; any && i < s->layouts.parameter_count; i++)
		for (int at = 0; at < 120; at += 5) {
			bool there[MOST], left = false;
			find_nodes_with(s, i, at, there);
			for (int n = 0; n < s->cluster.node_count; n++)
				left |= there[n] && !lost[n];
			if (!left)
				return false;
		}
	return true;
}

/* Every number of nodes that Slurm may leave of the first job's, which go from the highest on, as long as `least` remain including the
 * members'. */
static void check_shrinks(const struct scene *s, int least, int plan)
{
	bool lost[MOST] = { false };
	int left = s->cluster.node_count, own = 0;
	for (int n = 0; n < s->cluster.node_count; n++)
		own += !s->nodes[n].member;
	for (int n = s->cluster.node_count - 1; n >= 0; n--) {
		if (s->nodes[n].member || own == 1 || left - 1 < least)
			continue;
		lost[n] = true;
		own--;
		left--;
		if (!survived(s, lost))
			fail_msg("plan %d: a shrink to %d nodes of its own takes the last copy", plan, own);
	}
}

static void check_groups(const struct scene *s, int plan)
{
	for (int n = 0; n < s->cluster.node_count; n++) {
		bool one[MOST] = { false }, rack[MOST] = { false }, member[MOST] = { false };
		for (int k = 0; k < s->cluster.node_count; k++) {
			one[k] = k == n;
			rack[k] = s->nodes[n].rack && s->nodes[n].rack == s->nodes[k].rack;
			member[k] = s->nodes[n].member && s->nodes[n].member == s->nodes[k].member;
		}
		if (!survived(s, one) || !survived(s, rack) || !survived(s, member))
			fail_msg("plan %d: node %d, its rack or its member job takes the last copy", plan, n);
	}
}

static void check_pairs(const struct scene *s, int plan)
{
	for (int a = 0; a < s->cluster.node_count; a++)
		for (int b = 0; b < a; b++) {
			bool lost[MOST] = { false };
			lost[a] = lost[b] = true;
			if (!survived(s, lost))
				fail_msg("plan %d: nodes %d and %d take the last copy", plan, a, b);
		}
}

/* After any such loss something is left of everything. */
static void test_goes_at_once(void **state)
{
	(void)state;
	for (int plan = 0; plan < PLANS; plan++) {
		struct scene s;
		struct hspmd_error err = { "" };
		char text[8][512];
		int order[MOST] = { 0 }, replicas = 1 + plan % 2;
		bool part[MOST] = { false };
		random_state = (uint64_t)plan + 1;
		memset(&s, 0, sizeof s);
		s.cluster.devices = s.devices;
		s.cluster.nodes = s.nodes;
		s.cluster.node_count = random_cluster(&s, order);
		s.cluster.node_count = s.devices[s.cluster.device_count - 1].node + 1;
		s.layouts.parameters = s.parameters;
		s.layouts.parameter_count = 3 + pick(6);
		int least = 1 + pick(s.cluster.node_count);
		random_plan(&s, order, text);
		for (int i = 0; i < s.layouts.parameter_count; i++) {
			s.parameters[i].shape = (struct hspmd_shape){ 1, { 120 } };
			s.parameters[i].state = hspmd_annotation_parse(text[i], &err);
			if (!s.parameters[i].state)
				fail_msg("%s: %s", text[i], err.text);
		}
		for (int d = 0; d < s.cluster.device_count; d++)
			part[s.devices[d].node] |= s.rank_of[d] >= 0;
		plan_all(&s, replicas, hspmd_losses_keep(&s.cluster, part, least));
		check_shrinks(&s, least, plan);
		check_groups(&s, plan);
		if (replicas > 1)
			check_pairs(&s, plan);
		tear_down(&s);
	}
}

/* Two pipelines whose upper halves are both on the nodes that go first: one of them is sent to a node that stays, and nothing else is. */
static void test_sent_once(void **state)
{
	(void)state;
	static const char *const halves[] = { "{[0]: | [1]:} h-1", "{[3]: | [2]:} h-1" };
	struct scene s;
	set_up(&s, "0123", halves, 2, 1);
	assert_int_equal(sent(&s), 0);
	tear_down(&s);
	for (int keep = 1; keep <= 4; keep++) {
		set_up(&s, "0123", halves, 2, 1);
		for (int d = 0; d < 4; d++)
			hspmd_checkpoint_placement_free(&s.placement[d]);
		plan_all(&s, 1, keep);
		assert_int_equal(sent(&s), keep < 3);
		tear_down(&s);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_pipeline), cmocka_unit_test(test_data_parallel), cmocka_unit_test(test_one_more),
		cmocka_unit_test(test_unequal),  cmocka_unit_test(test_goes_at_once),  cmocka_unit_test(test_sent_once),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
