/* SPDX-License-Identifier: Apache-2.0 */
/* Who writes what into checkpoints and who keeps copies: what any `replicas` nodes less leave must be everything, written once more than they are, and no more. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/train/spread.h"

#define MOST 8

struct scene {
	struct hspmd_cluster cluster;
	struct hspmd_device_at devices[MOST];
	struct hspmd_node nodes[MOST];
	struct hspmd_layouts layouts;
	struct hspmd_layout_parameter parameters[4];
	int rank_of[MOST];
	struct hspmd_spread spread[MOST];
};

/* nodes: of each device, as digits. */
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
	for (int d = 0; d < s->cluster.device_count; d++)
		if (hspmd_spread_plan(&s->layouts, &s->cluster, s->rank_of, d, replicas, &s->spread[d], &err))
			fail_msg("%s", err.text);
}

static void tear_down(struct scene *s)
{
	for (int d = 0; d < s->cluster.device_count; d++)
		hspmd_spread_free(&s->spread[d]);
	for (int i = 0; i < s->layouts.parameter_count; i++)
		hspmd_annotation_destroy(s->parameters[i].state);
}

/* On how many nodes does the element lie that is `at` of the parameter? */
static int nodes_with(const struct scene *s, int parameter, int at)
{
	bool there[MOST] = { false };
	int count = 0;
	for (int d = 0; d < s->cluster.device_count; d++) {
		struct hspmd_share share;
		if (!s->spread[d].writes[parameter] || !hspmd_annotation_share(s->parameters[parameter].state, &s->parameters[parameter].shape, d, &share) ||
		    at < share.box.lo[0] || at >= share.box.hi[0])
			continue;
		there[s->devices[d].node] = true;
		for (int k = 0; k < s->spread[d].to_count; k++)
			there[s->devices[s->spread[d].to[k]].node] = true;
	}
	for (int n = 0; n < MOST; n++)
		count += there[n];
	return count;
}

static void check(const struct scene *s, int wanted)
{
	for (int i = 0; i < s->layouts.parameter_count; i++)
		for (int at = 0; at < 120; at += 5)
			assert_int_equal(nodes_with(s, i, at), wanted);
	for (int d = 0; d < s->cluster.device_count; d++) /* whoever keeps knows of it, and the other way round */
		for (int k = 0; k < s->spread[d].to_count; k++) {
			const struct hspmd_spread *keeper = &s->spread[s->spread[d].to[k]];
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
		count += s->spread[d].to_count;
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
	assert_false(s.spread[0].any);
	tear_down(&s);
}

/* What two pipelines hold on two nodes is written by both, and sent by nobody. */
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
	assert_int_equal(s.spread[0].writes[0] + s.spread[1].writes[0], 1);
	tear_down(&s);
}

/* A second copy goes where neither of the two holders is. */
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

/* Shards of tensor parallelism, and a pipeline that cuts otherwise: its parts are no copies of the others'. */
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_pipeline),
		cmocka_unit_test(test_data_parallel),
		cmocka_unit_test(test_one_more),
		cmocka_unit_test(test_unequal),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
