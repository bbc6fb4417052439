/* SPDX-License-Identifier: Apache-2.0 */
/* Merging clusters: types with equal measurements become one, others are distinguished by name, and no index points to the wrong node or
 * type afterwards. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/format/cluster.h"

static struct hspmd_cluster *parse(const char *text)
{
	json_error_t where;
	struct hspmd_error err = { "" };
	json_t *v = json_loads(text, 0, &where);
	assert_non_null(v);
	struct hspmd_cluster *c = hspmd_cluster_from_json(v, "test", &err);
	if (!c)
		print_error("%s\n", err.text);
	assert_non_null(c);
	json_decref(v);
	return c;
}

/* One node with two devices of type "cpu" and one "slow" of a second type. */
static struct hspmd_cluster *part(const char *node, double tflops, long memory, double rate)
{
	char text[1024];
	snprintf(text, sizeof text,
	         "{\"format\": \"hspmd-cluster-1\", \"device_types\": {"
	         "\"cpu\": {\"kind\": \"cpu\", \"memory_bytes\": %ld, \"gbytes_per_s\": 20, \"tflops\": {\"fp32\": %g}},"
	         "\"gpu\": {\"kind\": \"cuda\", \"memory_bytes\": 1000, \"gbytes_per_s\": 20, \"peak_tflops\": {\"bf16\": 100}}},"
	         "\"nodes\": [{\"name\": \"%s\", \"devices\": [{\"type\": \"cpu\", \"count\": 2}, {\"type\": \"gpu\", \"count\": 1}], "
	         "\"rack\": \"r-%s\"}],"
	         "\"links\": [{\"scope\": \"node\", \"alpha_s\": 1e-5, \"gbytes_per_s\": 3},"
	         "{\"scope\": \"cluster\", \"types\": [\"cpu\", \"gpu\"], \"alpha_s\": 1e-5, \"gbytes_per_s\": %g}]}",
	         memory, tflops, node, node, rate);
	return parse(text);
}

static struct hspmd_cluster *merge(struct hspmd_cluster **parts, int count, struct hspmd_error *err)
{
	struct hspmd_cluster *c = hspmd_cluster_merge((const struct hspmd_cluster *const *)parts, count, 0.1, err);
	for (int i = 0; i < count; i++)
		hspmd_cluster_destroy(parts[i]);
	return c;
}

static void test_alike_and_unlike(void **state)
{
	(void)state;
	struct hspmd_error err;
	struct hspmd_cluster *parts[] = { part("a", 0.8, 1000, 2), part("b", 0.95, 1000, 1), part("c", 1.0, 950, 4),
		                          part("d", 0.4, 1000, 4) };
	/* b and c become one type; of the others' products nothing is known. */
	parts[1]->types[hspmd_cluster_find_type(parts[1], "cpu")].product_blocks = (struct hspmd_product_blocks){ 384, 1000, 200 };
	parts[2]->types[hspmd_cluster_find_type(parts[2], "cpu")].product_blocks = (struct hspmd_product_blocks){ 768, 900, 300 };
	parts[1]->types[hspmd_cluster_find_type(parts[1], "cpu")].operator_s = 2e-6;
	parts[2]->types[hspmd_cluster_find_type(parts[2], "cpu")].operator_s = 4e-6;
	for (int i = 0; i < 4; i++)
		parts[i]->types[hspmd_cluster_find_type(parts[i], "gpu")].host = (struct hspmd_host_memory){ 500 - 100 * (i == 2), 20 + i };
	struct hspmd_cluster *c = merge(parts, 4, &err);
	assert_non_null(c);
	assert_int_equal(c->node_count, 4);
	assert_int_equal(c->device_count, 12);
	assert_int_equal(c->type_count, 4);
	int cpu = hspmd_cluster_find_type(c, "cpu"), mid = hspmd_cluster_find_type(c, "cpu@80%"),
	    slow = hspmd_cluster_find_type(c, "cpu@40%");
	int gpu = hspmd_cluster_find_type(c, "gpu");
	assert_true(cpu >= 0 && mid >= 0 && slow >= 0 && gpu >= 0);
	assert_true(c->types[cpu].memory_bytes == 950 && fabs(c->types[cpu].tflops[HSPMD_PRECISION_FP32] - 0.975) < 1e-12);
	const struct hspmd_product_blocks *blocks = &c->types[cpu].product_blocks;
	assert_true(blocks->depth == 768 && blocks->columns == 1000 && blocks->rows == 300 && c->types[mid].product_blocks.depth == 0);
	assert_true(fabs(c->types[cpu].operator_s - 3e-6) < 1e-12 && c->types[mid].operator_s == 0);
	assert_true(c->types[gpu].host.memory_bytes == 400 && fabs(c->types[gpu].host.gbytes_per_s - 21.5) < 1e-12);
	static const char *const nodes[] = { "a", "b", "c", "d" };
	int types[] = { mid, cpu, cpu, slow };
	for (int i = 0; i < 4; i++) {
		char address[16], rack[8];
		assert_int_equal(hspmd_cluster_find_node(c, nodes[i]), i);
		snprintf(rack, sizeof rack, "r-%s", nodes[i]);
		assert_string_equal(c->nodes[i].rack, rack);
		snprintf(address, sizeof address, "%s:1", nodes[i]);
		assert_int_equal(c->devices[hspmd_cluster_find_device(c, address, &err)].type, types[i]);
		snprintf(address, sizeof address, "%s:2", nodes[i]);
		assert_int_equal(c->devices[hspmd_cluster_find_device(c, address, &err)].type, gpu);
	}
	/* One node link; a cluster link of cpu and gpu for each cpu type, with the values of the slower of b and c. */
	assert_int_equal(c->link_count, 4);
	const struct hspmd_link *l =
	        hspmd_cluster_find_link(c, hspmd_cluster_find_device(c, "b:0", &err), hspmd_cluster_find_device(c, "c:2", &err), 1, 1);
	assert_non_null(l);
	assert_true(l->gbytes_per_s == 1);
	/* The merged cluster can be read again. */
	json_t *v = hspmd_cluster_to_json(c);
	struct hspmd_cluster *again = hspmd_cluster_from_json(v, "again", &err);
	assert_non_null(again);
	assert_memory_equal(&again->types[hspmd_cluster_find_type(again, "cpu")].product_blocks, blocks, sizeof *blocks);
	assert_true(fabs(again->types[hspmd_cluster_find_type(again, "cpu")].operator_s - 3e-6) < 1e-12);
	hspmd_cluster_destroy(again);
	json_decref(v);
	hspmd_cluster_destroy(c);
}

/* Devices offload only if all of their type can; a link that differs much makes another type. */
static void test_host_memory(void **state)
{
	(void)state;
	struct hspmd_error err;
	for (int missing = 0; missing < 3; missing++) {
		struct hspmd_cluster *parts[] = { part("a", 1, 1000, 2), part("b", 1, 1000, 2), part("c", 1, 1000, 2) };
		for (int i = 0; i < 3; i++)
			if (i != missing)
				parts[i]->types[hspmd_cluster_find_type(parts[i], "gpu")].host = (struct hspmd_host_memory){ 500, 20 };
		struct hspmd_cluster *c = merge(parts, 3, &err);
		assert_non_null(c);
		const struct hspmd_device_type *gpu = &c->types[hspmd_cluster_find_type(c, "gpu")];
		assert_true(c->type_count == 2 && gpu->host.memory_bytes == 0 && gpu->host.gbytes_per_s == 0);
		hspmd_cluster_destroy(c);
	}
	struct hspmd_cluster *parts[] = { part("a", 1, 1000, 2), part("b", 1, 1000, 2) };
	for (int i = 0; i < 2; i++)
		parts[i]->types[hspmd_cluster_find_type(parts[i], "gpu")].host = (struct hspmd_host_memory){ 500, 20 * (1 + i) };
	struct hspmd_cluster *c = merge(parts, 2, &err);
	assert_non_null(c);
	assert_int_equal(c->type_count, 3);
	hspmd_cluster_destroy(c);
}

/* Equal in speed but not in memory: the types have two names nevertheless; and merging again keeps them apart. */
static void test_names_stay_apart(void **state)
{
	(void)state;
	struct hspmd_error err;
	struct hspmd_cluster *parts[] = { part("a", 1, 1000, 2), part("b", 1, 500, 2), part("c", 1, 250, 2) };
	struct hspmd_cluster *c = merge(parts, 3, &err);
	assert_non_null(c);
	assert_true(hspmd_cluster_find_type(c, "cpu@100%") >= 0 && hspmd_cluster_find_type(c, "cpu@100%-2") >= 0);
	struct hspmd_cluster *more[] = { c, part("d", 1, 125, 2) };
	c = merge(more, 2, &err);
	assert_non_null(c);
	assert_int_equal(c->type_count, 5);
	for (int i = 0; i < c->type_count; i++)
		assert_int_equal(hspmd_cluster_find_type(c, c->types[i].name), i);
	hspmd_cluster_destroy(c);
}

static void test_node_twice(void **state)
{
	(void)state;
	struct hspmd_error err;
	struct hspmd_cluster *parts[] = { part("a", 1, 1000, 2), part("b", 1, 1000, 2), part("a", 1, 1000, 2) };
	assert_null(merge(parts, 3, &err));
	assert_string_equal(err.text, "node a is there twice");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_alike_and_unlike),
		cmocka_unit_test(test_host_memory),
		cmocka_unit_test(test_names_stay_apart),
		cmocka_unit_test(test_node_twice),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
