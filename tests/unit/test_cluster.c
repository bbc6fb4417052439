/* SPDX-License-Identifier: Apache-2.0 */
/* hspmd-cluster-1: which files are read, which are refused, addresses, and which link two devices use. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/durable.h"
#include "common/format/cluster.h"
#include "common/format/device_runs.h"
#include "common/json.h"
#include "edit.h"

#define DATA HSPMD_SRCDIR "/tests/data/cluster/"

static struct hspmd_error err;

static struct hspmd_cluster *from_text(const char *text)
{
	struct hspmd_json_doc doc;
	err.text[0] = '\0';
	if (hspmd_json_parse(&doc, "c.json", text, strlen(text), &err))
		return NULL;
	struct hspmd_cluster *c = hspmd_cluster_from_json(doc.root, "c.json", &err);
	hspmd_json_close(&doc);
	return c;
}

static struct hspmd_cluster *mixed(void)
{
	struct hspmd_cluster *c = hspmd_cluster_read(DATA "mixed.json", &err);
	if (!c)
		fail_msg("%s", err.text);
	return c;
}

static void reads_everything(void **state)
{
	(void)state;
	struct hspmd_cluster *c = mixed();
	assert_int_equal(c->type_count, 3);
	assert_int_equal(c->node_count, 6);
	assert_int_equal(c->device_count, 8 + 3 * 6);
	assert_int_equal(c->link_count, 9);
	const struct hspmd_device_type *h20 = &c->types[hspmd_cluster_find_type(c, "H20")];
	assert_int_equal(h20->kind, HSPMD_DEVICE_CUDA);
	assert_int_equal(h20->memory_bytes, 103079215104);
	assert_true(h20->gbytes_per_s == 4000 && h20->peak_tflops[HSPMD_PRECISION_BF16] == 148);
	assert_true(h20->tflops[HSPMD_PRECISION_BF16] == 131.5 && h20->tflops[HSPMD_PRECISION_FP32] == 0);
	assert_int_equal(h20->compute_capability, 90);
	const struct hspmd_node *a = &c->nodes[hspmd_cluster_find_node(c, "a")], *b = &c->nodes[hspmd_cluster_find_node(c, "b-09")];
	assert_true(a->network_gbytes_per_s == 50 && a->price_per_hour == 12.5 && a->slowdown == 1);
	assert_string_equal(a->rack, "r1");
	assert_true(b->network_gbytes_per_s == 0 && b->slowdown == 1.4 && !b->rack);
	assert_int_equal(b->first_device, 8 + 6);
	assert_int_equal(b->device_count, 6);
	assert_int_equal(c->devices[b->first_device + 4].type, hspmd_cluster_find_type(c, "cpu-core"));
	assert_int_equal(c->devices[4].numa, 1);
	assert_int_equal(c->devices[7].numa, -1);
	assert_string_equal(c->devices[1].pci, "0000:2a:00.0");
	assert_null(c->devices[5].pci);
	assert_int_equal(c->nodes[hspmd_cluster_find_node(c, "login")].device_count, 0);
	assert_int_equal(hspmd_cluster_find_node(c, "b-11"), -1);
	assert_int_equal(hspmd_cluster_find_type(c, "A100"), -1);
	hspmd_cluster_destroy(c);
	hspmd_cluster_destroy(NULL);
}

static void expect_round_trip(const char *path)
{
	struct hspmd_cluster *c = hspmd_cluster_read(path, &err);
	json_t *once = hspmd_cluster_to_json(c);
	hspmd_cluster_destroy(c);
	char *text = hspmd_json_text(once);
	c = from_text(text);
	json_t *twice = hspmd_cluster_to_json(c);
	assert_true(json_equal(once, twice));
	hspmd_cluster_destroy(c);
	json_t *file = json_load_file(path, 0, NULL);
	json_object_set_new(file, "nodes", json_incref(json_object_get(once, "nodes"))); /* nodes may be folded anew */
	assert_true(json_equal(once, file));
	json_decref(file);
	json_decref(once);
	json_decref(twice);
	free(text);
}

static void round_trips(void **state)
{
	(void)state;
	expect_round_trip(DATA "mixed.json");
	expect_round_trip(DATA "small.json");
}

static void folds_like_nodes(void **state)
{
	(void)state;
	struct hspmd_cluster *c = mixed();
	json_t *o = hspmd_cluster_to_json(c), *nodes = json_object_get(o, "nodes");
	assert_int_equal(json_array_size(nodes), 3);
	assert_string_equal(json_string_value(json_object_get(json_array_get(nodes, 1), "name")), "b-[08-10]");
	assert_string_equal(json_string_value(json_object_get(json_array_get(nodes, 2), "name")), "login,c");
	json_decref(o);
	c->nodes[2].slowdown = 2;
	o = hspmd_cluster_to_json(c);
	assert_int_equal(json_array_size(json_object_get(o, "nodes")), 5);
	json_decref(o);
	hspmd_cluster_destroy(c);
}

static const char good[] =
        "{\"format\": \"hspmd-cluster-1\", \"device_types\": {\"X\": {\"kind\": \"cpu\", \"memory_bytes\": 1000, \"gbytes_per_s\": 20,"
        " \"peak_tflops\": {\"fp32\": 0.05}}, \"Y\": {\"kind\": \"cuda\", \"memory_bytes\": 4e9, \"gbytes_per_s\": 2, \"tflops\": "
        "{\"bf16\": 1}}},"
        " \"nodes\": [{\"name\": \"n[0-1]\", \"devices\": [{\"type\": \"X\", \"count\": 2}]}, {\"name\": \"m\", \"devices\": [{\"type\": "
        "\"Y\","
        " \"count\": 1}]}], \"links\": [{\"scope\": \"node\", \"alpha_s\": 0, \"gbytes_per_s\": 1},"
        " {\"scope\": \"cluster\", \"types\": [\"X\", \"Y\"], \"points\": [[0, 1e-6], [10, 1]]}]}";

static const struct edit edits[] = {
	{ "hspmd-cluster-1", "hspmd-cluster-2", "c.json: format: expected \"hspmd-cluster-1\", got \"hspmd-cluster-2\"" },
	{ "\"format\"", "\"fromat\"", "c.json: format: expected \"hspmd-cluster-1\", but it is missing" },
	{ "\"links\"", "\"lniks\"", "c.json: lniks: unknown key; did you mean \"links\"?" },
	{ "\"cpu\"", "\"gpu\"", "c.json: device_types.X.kind: expected \"cpu\" or \"cuda\", got \"gpu\"" },
	{ "1000,", "0,", "c.json: device_types.X.memory_bytes: expected 1..1125899906842624, got 0" },
	{ "\"memory_bytes\": 1000,", "",
	  "c.json: device_types.X.memory_bytes: expected an integer in 1..1125899906842624, but it is missing" },
	{ "\"gbytes_per_s\": 20", "\"gbytes_per_s\": 0",
	  "c.json: device_types.X.gbytes_per_s: expected a number above 0 and at most 1e+09, got 0" },
	{ "\"gbytes_per_s\": 20", "\"gbytes_per_s\": -5", "device_types.X.gbytes_per_s: expected a number above 0" },
	{ "\"gbytes_per_s\": 20", "\"gbytes_per_s\": NaN", "c.json: line 1, column" },
	{ "{\"fp32\": 0.05}", "{}", "c.json: device_types.X: expected a rate of at least one precision in peak_tflops or tflops" },
	{ "\"fp32\": 0.05", "\"fp32\": -1",
	  "c.json: device_types.X.peak_tflops.fp32: expected a number above 0 and at most 1e+09, got -1" },
	{ "\"fp32\": 0.05", "\"pf32\": 1", "c.json: device_types.X.peak_tflops.pf32: unknown key; did you mean \"fp32\"?" },
	{ "1000,", "1000, \"product_blocks\": {\"depth\": 384, \"columns\": 2048},",
	  "c.json: device_types.X.product_blocks.rows: expected an integer in 1..16777216, but it is missing" },
	{ "1000,", "1000, \"product_blocks\": {\"depth\": 0, \"columns\": 2048, \"rows\": 9},",
	  "c.json: device_types.X.product_blocks.depth: expected 1..16777216, got 0" },
	{ "1000,", "1000, \"product_blocks\": {\"depth\": 384, \"columns\": 2048, \"rows\": 9, \"more\": 1},",
	  "c.json: device_types.X.product_blocks.more: unknown key" },
	{ "1000,", "1000, \"product_blocks\": {\"depth\": 384, \"columns\": 2048, \"rows\": 9},", "" },
	{ "1000,", "1000, \"operator_s\": 1e-6,", "" },
	{ "1000,", "1000, \"operator_s\": 2,", "c.json: device_types.X.operator_s: expected a number above 0 and at most 1, got 2" },
	{ "4e9,", "4e9, \"host\": {\"memory_bytes\": 5, \"gbytes_per_s\": 2},", "" },
	{ "4e9,", "4e9, \"host\": {\"memory_bytes\": 5},",
	  "c.json: device_types.Y.host.gbytes_per_s: expected a number above 0 and at most 1e+09, but it is missing" },
	{ "4e9,", "4e9, \"host\": {\"memory_bytes\": 0, \"gbytes_per_s\": 2},", "c.json: device_types.Y.host.memory_bytes: expected 1.." },
	{ "1000,", "1000, \"host\": {\"memory_bytes\": 5, \"gbytes_per_s\": 2},",
	  "c.json: device_types.X.host: devices of kind \"cpu\" compute in the host's memory; they have no other" },
	{ "\"X\": {", "\"\": {", "a device type needs a name" },
	{ "\"type\": \"X\"", "\"type\": \"Z\"", "c.json: nodes[0].devices[0].type: \"Z\" is not among device_types" },
	{ "\"count\": 2", "\"count\": 0", "c.json: nodes[0].devices[0].count: expected 1..1024, got 0" },
	{ "\"count\": 2", "\"count\": 1025", "c.json: nodes[0].devices[0].count: expected 1..1024, got 1025" },
	{ "\"count\": 2", "\"cuont\": 2", "c.json: nodes[0].devices[0].count: expected an integer in 1..1024, but it is missing" },
	{ "\"count\": 2", "\"count\": 2, \"colour\": 3", "c.json: nodes[0].devices[0].colour: unknown key; known here: type, count" },
	{ "\"m\"", "\"n0\"", "c.json: nodes: node n0 is there twice" },
	{ "\"m\"", "\"n[\"", "c.json: nodes[1].name: host list \"n[\": a number is missing inside brackets" },
	{ "\"m\"", "\"n[0-999999]\"", "c.json: nodes[1].name: host list \"n[0-999999]\": more than 131072 names" },
	{ "\"m\"", "\"m[0-131071]\"", "c.json: nodes[1]: makes 131076 devices on 131074 nodes; at most 131072 of each can be handled" },
	{ "\"name\": \"m\",", "\"name\": \"m\", \"slowdown\": 0,", "c.json: nodes[1].slowdown: expected a number above 0" },
	{ "\"name\": \"m\",", "\"name\": \"m\", \"numa\": [0, 1],",
	  "c.json: nodes[1].numa: expected an array of 1 element, got an array of 2" },
	{ "\"name\": \"m\",", "\"name\": \"m\", \"numa\": [-1],", "c.json: nodes[1].numa[0]: expected 0..65535, got -1" },
	{ "\"name\": \"m\",", "\"name\": \"m\", \"network_gbytes_per_s\": 0,", "nodes[1].network_gbytes_per_s: expected a number above 0" },
	{ "\"node\", \"alpha_s\"", "\"rack\", \"alpha_s\"", "c.json: links[0].scope: expected \"node\" or \"cluster\", got \"rack\"" },
	{ "\"gbytes_per_s\": 1}", "\"gbytes_per_s\": 0}",
	  "c.json: links[0].gbytes_per_s: expected a number above 0 and at most 1e+09, got 0" },
	{ "\"alpha_s\": 0", "\"alpha_s\": -1", "c.json: links[0].alpha_s: expected a number of at least 0 and at most 1e+09, got -1" },
	{ "\"alpha_s\": 0,", "", "c.json: links[0].alpha_s: expected a number of at least 0 and at most 1e+09, but it is missing" },
	{ "[\"X\", \"Y\"]", "[\"X\", \"Z\"]", "" }, /* left out */
	{ "[\"X\", \"Y\"]", "[\"X\", 3]", "c.json: links[1].types[1]: expected a string that is not empty, got 3" },
	{ "[\"X\", \"Y\"]", "[\"X\"]", "c.json: links[1].types: expected an array of 2 elements, got an array of 1" },
	{ "\"types\": [\"X\", \"Y\"]", "\"nodes\": [\"n0\", \"z\"]", "c.json: links[1].nodes[1]: \"z\" is not among the nodes" },
	{ "\"types\": [\"X\", \"Y\"]", "\"nodes\": [\"n0\", \"n0\"]", "c.json: links[1]: scope \"cluster\" is between two nodes" },
	{ "\"scope\": \"node\"", "\"scope\": \"node\", \"nodes\": [\"n0\", \"n1\"]",
	  "c.json: links[0]: scope \"node\" is within one node" },
	{ "\"scope\": \"node\"", "\"scope\": \"node\", \"nodes\": [\"n0\", \"n0\"], \"types\": [\"X\", \"X\"]",
	  "c.json: links[0]: expected types or nodes, not both" },
	{ "\"scope\": \"node\"", "\"scope\": \"node\", \"gpus\": [0, 1]", "c.json: links[0].gpus[0]: expected 1..131072, got 0" },
	{ "[[0, 1e-6], [10, 1]]", "[[0, 1]]", "c.json: links[1].points: expected an array of 2..4096 elements, got an array of 1" },
	{ "[10, 1]", "[0, 1]", "c.json: links[1].points[1][0]: expected more bytes than at the point before" },
	{ "[10, 1]", "[10, -1]", "c.json: links[1].points[1][1]: expected a number above 0" },
	{ "[10, 1]", "[10, 1e-7]", "c.json: links[1].points: the last point takes less time than the one before it" },
	{ "\"points\"", "\"alpha_s\": 0, \"points\"", "c.json: links[1]: expected points, or alpha_s and gbytes_per_s, not both" },
	{ "{\"scope\": \"node\",", "{\"scope\": \"cluster\", \"types\": [\"Y\", \"X\"],",
	  "c.json: links[1]: says how fast the same devices talk as links[0] does" },
	{ "{\"scope\": \"node\",",
	  "{\"scope\": \"node\", \"types\": [\"Z\", \"X\"], \"alpha_s\": 0, \"gbytes_per_s\": 1}, {\"scope\": \"cluster\", \"types\": "
	  "[\"Y\", \"X\"],",
	  "c.json: links[2]: says how fast the same devices talk as links[1] does" },
	{ "[{\"type\": \"X\", \"count\": 2}]", "[]", "" },
	{ ", \"links\"", ", \"links\": null, \"links\"", "c.json: line 1" },
	{ "\"count\": 2", "\"count\": 2.0", "" },
};

static void refuses(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
		char *text = edited(good, edits[i].find, edits[i].replace);
		assert_non_null(text);
		struct hspmd_cluster *c = from_text(text);
		if (*edits[i].error ? c != NULL || !strstr(err.text, edits[i].error) : !c)
			fail_msg("%s -> %s: expected \"%s\", got \"%s\"", edits[i].find, edits[i].replace, edits[i].error, err.text);
		hspmd_cluster_destroy(c);
		free(text);
	}
	assert_null(from_text("{\"format\": \"hspmd-cluster-1\", \"device_types\": {\"X\": {\"kind\": \"cpu\", \"memory_bytes\": 1,"
	                      " \"gbytes_per_s\": 1, \"tflops\": {\"fp32\": 1}}}, \"nodes\": [{\"name\": \"n\", \"devices\": []}]}"));
	assert_string_equal(err.text, "c.json: nodes: there is no device on any node");
}

/* Entries for types that the cluster does not have cover nothing, and those after them are found. */
static void leaves_out_links_of_types_that_are_not_there(void **state)
{
	(void)state;
	char *text = edited(good, "\"links\": [",
	                    "\"links\": [{\"scope\": \"cluster\", \"types\": [\"X\", \"Z\"], \"points\": [[1, 1], [2, 2]]},"
	                    " {\"scope\": \"cluster\", \"types\": [\"Z\", \"Z\"], \"alpha_s\": 9, \"gbytes_per_s\": 1}, ");
	struct hspmd_cluster *c = from_text(text);
	assert_non_null(c);
	assert_int_equal(c->link_count, 2);
	assert_null(hspmd_cluster_find_link(c, 0, 2, 1, 1));
	assert_ptr_equal(hspmd_cluster_find_link(c, 0, 4, 1, 1), &c->links[1]);
	hspmd_cluster_destroy(c);
	free(text);
}

/* A million devices in few bytes: refused before they are made. */
static void refuses_a_million_devices(void **state)
{
	(void)state;
	char *text = edited(good, "\"name\": \"m\", \"devices\": [{\"type\": \"Y\", \"count\": 1}]",
	                    "\"name\": \"m[0-99]\", \"devices\": [{\"type\": \"Y\", \"count\": 1000}, {\"type\": \"Y\", \"count\": 1000},"
	                    " {\"type\": \"Y\", \"count\": 1000}, {\"type\": \"Y\", \"count\": 1000}, {\"type\": \"X\", \"count\": 1000},"
	                    " {\"type\": \"X\", \"count\": 1000}, {\"type\": \"X\", \"count\": 1000}, {\"type\": \"X\", \"count\": 1000},"
	                    " {\"type\": \"X\", \"count\": 1000}, {\"type\": \"X\", \"count\": 1000}]");
	assert_null(from_text(text));
	assert_string_equal(err.text, "c.json: nodes[1]: makes 1000004 devices on 102 nodes; at most 131072 of each can be handled");
	free(text);
}

static void addresses(void **state)
{
	(void)state;
	struct hspmd_cluster *c = mixed();
	char buf[64];
	int run[8];
	assert_int_equal(hspmd_cluster_find_device(c, "a:7", &err), 7);
	assert_int_equal(hspmd_cluster_find_device(c, "b-10:5", &err), 8 + 17);
	assert_string_equal(hspmd_cluster_device_address(c, 8 + 17, buf, sizeof buf), "b-10:5");
	assert_int_equal(hspmd_cluster_expand_devices(c, "b-08:2-4", run, 8, &err), 3);
	assert_int_equal(run[0], 10);
	assert_int_equal(run[2], 12);
	assert_int_equal(hspmd_cluster_expand_devices(c, "a:0-7", run, 7, &err), -1);
	static const struct edit wrong[] = {
		{ "x:0", "", "x:0: there is no node \"x\"; nodes are a,b-[08-10],login,c" },
		{ "a:8", "", "a:8: node a has devices 0..7 only" },
		{ "login:0", "", "login:0: node login has no devices" },
		{ "a:3-2", "", "a:3-2: the run goes backwards" },
		{ "a", "", "\"a\": expected a device as node:index or node:first-last" },
		{ ":1", "", "\":1\": expected a device" },
		{ "a:", "", "\"a:\": expected a device" },
		{ "a:-1", "", "\"a:-1\": expected a device" },
		{ "a:1x", "", "\"a:1x\": expected a device" },
		{ "a:99999999999", "", "\"a:99999999999\": expected a device" },
		{ "b-[08-09]:1", "", "there is no node \"b-[08-09]\"" },
	};
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		assert_int_equal(hspmd_cluster_expand_devices(c, wrong[i].find, run, 8, &err), -1);
		if (!strstr(err.text, wrong[i].error))
			fail_msg("%s: got \"%s\"", wrong[i].find, err.text);
	}
	assert_int_equal(hspmd_cluster_find_device(c, "a:0-1", &err), -1);
	hspmd_cluster_destroy(c);
}

static double rate(const struct hspmd_cluster *c, const char *a, const char *b, int n, int m)
{
	int x = hspmd_cluster_find_device(c, a, &err), y = hspmd_cluster_find_device(c, b, &err);
	const struct hspmd_link *l = hspmd_cluster_find_link(c, x, y, n, m);
	return !l ? 0 : l->point_count ? -1 : l->gbytes_per_s;
}

static void most_specific_link(void **state)
{
	(void)state;
	struct hspmd_cluster *c = mixed();
	for (int with_index = 1; with_index >= 0; with_index--) {
		assert_true(rate(c, "a:0", "a:1", 1, 1) == 450);
		assert_true(rate(c, "b-08:0", "b-08:1", 1, 1) == 10);
		assert_true(rate(c, "b-10:0", "b-10:5", 3, 3) == 7);
		assert_true(rate(c, "a:0", "b-08:0", 1, 1) == 25);
		assert_true(rate(c, "a:0", "b-08:0", 4, 2) == 60);
		assert_true(rate(c, "b-08:0", "a:0", 2, 4) == 60);
		assert_true(rate(c, "b-08:0", "a:0", 4, 2) == 25);
		assert_true(rate(c, "a:0", "b-08:5", 4, 2) == 1.25);
		assert_true(rate(c, "b-08:0", "b-10:0", 1, 4) == 40);
		assert_true(rate(c, "b-08:0", "b-10:0", 4, 1) == 40);
		assert_true(rate(c, "b-08:0", "b-10:0", 4, 4) == 1.25);
		assert_true(rate(c, "b-08:0", "b-09:0", 1, 4) == -1);
		assert_true(rate(c, "b-09:0", "b-08:5", 2, 1) == 80);
		assert_true(rate(c, "b-08:0", "b-09:3", 1, 2) == 80);
		assert_null(hspmd_cluster_find_link(c, 3, 3, 1, 1));
		free(c->index);
		c->index = NULL;
	}
	hspmd_cluster_destroy(c);
}

static int below(unsigned *seed, int n)
{
	return (int)(rand_r(seed) % (unsigned)n);
}

static struct hspmd_link random_link(unsigned *seed)
{
	struct hspmd_link l = { .scope = (enum hspmd_link_scope)below(seed, 2), .types = { -1, -1 }, .nodes = { -1, -1 } };
	int kind = below(seed, 3), gpus = below(seed, 2);
	for (int k = 0; k < 2; k++) {
		if (kind == 0)
			l.types[k] = below(seed, 3);
		if (kind == 1)
			l.nodes[k] = k && l.scope == HSPMD_LINK_NODE ? l.nodes[0] : below(seed, 4);
		if (gpus)
			l.gpus[k] = 1 + below(seed, 2);
	}
	return l;
}

/* The properties by which a link is chosen: links with equal ones are equal here. */
static int strength(const struct hspmd_link *l)
{
	return !l ? 0 : 1 + (l->nodes[0] >= 0 ? 4 : l->types[0] >= 0 ? 2 : 0) + (l->gpus[0] > 0);
}

/* On random links the index gives the same as the search without it. */
static void index_agrees_with_search(void **state)
{
	(void)state;
	struct hspmd_cluster *c = mixed();
	unsigned seed = 3;
	int found = 0;
	for (int round = 0; round < 300; round++) {
		for (int i = 0; i < c->link_count; i++) {
			free(c->links[i].points);
			c->links[i] = random_link(&seed);
		}
		for (int i = 0; i < 200; i++) {
			int a = below(&seed, 26), b = below(&seed, 26), n = 1 + below(&seed, 2), m = 1 + below(&seed, 2);
			assert_int_equal(hspmd_cluster_reindex(c), 0);
			const struct hspmd_link *indexed = hspmd_cluster_find_link(c, a, b, n, m);
			free(c->index);
			c->index = NULL;
			assert_int_equal(strength(indexed), strength(hspmd_cluster_find_link(c, a, b, n, m)));
			found += indexed != NULL;
		}
	}
	assert_true(found > 10000);
	hspmd_cluster_destroy(c);
}

static void seconds(void **state)
{
	(void)state;
	struct hspmd_link plain = { .alpha_s = 1e-5, .gbytes_per_s = 25 };
	assert_true(fabs(hspmd_link_seconds(&plain, 25e9) - 1.00001) < 1e-12);
	assert_true(hspmd_link_seconds(&plain, 0) == 1e-5);
	double points[3][2] = { { 100, 2 }, { 200, 3 }, { 400, 7 } };
	struct hspmd_link measured = { .point_count = 3, .points = points };
	assert_true(hspmd_link_seconds(&measured, 100) == 2);
	assert_true(hspmd_link_seconds(&measured, 150) == 2.5);
	assert_true(hspmd_link_seconds(&measured, 300) == 5);
	assert_true(hspmd_link_seconds(&measured, 400) == 7);
	assert_true(hspmd_link_seconds(&measured, 600) == 11);
	assert_true(hspmd_link_seconds(&measured, 50) == 1.5);
	points[0][1] = 0.5;
	assert_true(hspmd_link_seconds(&measured, 0) == 0);
	/* Any number of points: each size is on the line between its neighbours. */
	double squares[20][2];
	for (int i = 0; i < 20; i++) {
		squares[i][0] = 10 * i;
		squares[i][1] = i * i;
	}
	for (int count = 2; count <= 20; count++)
		for (int i = 0; i < count - 1; i++) {
			struct hspmd_link many = { .point_count = count, .points = squares };
			assert_true(hspmd_link_seconds(&many, 10 * i) == i * i);
			assert_true(fabs(hspmd_link_seconds(&many, 10 * i + 4) - (i * i + 0.4 * (2 * i + 1))) < 1e-9);
		}
}

/* Lists of addresses, as runs and back. */
static void test_device_runs(void **state)
{
	(void)state;
	static const char *const address[] = { "n0:0", "n0:1", "n0:2", "n0:4", "n1:5", "n0:5", "n10:6", "n10:7",
		                               "a:b:1", "a:b:2", "n1:1", "n1:0" };
	static const char *const bad[] = { "n0", ":1", "n0:", "n0:x", "n0:1x", "n0:1-", "n0:2-1", "n0:0-2000000", "n0:1234567890", "n0:-1",
		                           "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghij:0" };
	enum { COUNT = sizeof address / sizeof *address };
	char(*back)[HSPMD_DEVICE_RUNS_ADDRESS];
	json_t *runs = hspmd_device_runs(address, COUNT),
	       *wanted = json_pack("[sssssssss]", "n0:0-2", "n0:4", "n1:5", "n0:5", "n10:6-7", "a:b:1-2", "n1:1", "n1:0", "-");
	json_array_remove(wanted, 8);
	assert_true(json_equal(runs, wanted));
	assert_int_equal(hspmd_device_runs_expand(runs, &back, &err), COUNT);
	for (int i = 0; i < COUNT; i++)
		assert_string_equal(back[i], address[i]);
	free(back);
	json_decref(runs);
	json_decref(wanted);
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		runs = json_pack("[ss]", "n0:0-3", bad[i]);
		assert_int_equal(hspmd_device_runs_expand(runs, &back, &err), -1);
		assert_null(back);
		json_decref(runs);
	}
	runs = json_pack("[i]", 1);
	assert_int_equal(hspmd_device_runs_expand(runs, &back, &err), -1);
	json_decref(runs);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_device_runs),
		cmocka_unit_test(reads_everything),
		cmocka_unit_test(round_trips),
		cmocka_unit_test(folds_like_nodes),
		cmocka_unit_test(refuses),
		cmocka_unit_test(leaves_out_links_of_types_that_are_not_there),
		cmocka_unit_test(refuses_a_million_devices),
		cmocka_unit_test(addresses),
		cmocka_unit_test(most_specific_link),
		cmocka_unit_test(index_agrees_with_search),
		cmocka_unit_test(seconds),
	};
	return cmocka_run_group_tests_name("cluster", tests, NULL, NULL);
}
