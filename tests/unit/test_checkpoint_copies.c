/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of shards on other nodes: who keeps which, that they are complete, and that failures are reported and do not harm the
 * checkpoint. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/durable.h"
#include "tests/unit/state_crew.h"

static const struct hspmd_device_ops near_ops = { .name = "near", .host_memory = true };

static int spread(const int *node, const int *bytes, int workers, int nodes, int copies, const int *elsewhere, int *to)
{
	struct hspmd_copy_worker w[8];
	struct hspmd_error err;
	int found = 0;
	struct hspmd_copies_part part[8];
	struct hspmd_node names[8] = { { 0 } };
	struct hspmd_cluster cluster = { .node_count = nodes, .nodes = names };
	struct hspmd_losses losses;
	int holds[8][2];
	for (int i = 0; i < workers; i++) {
		holds[i][0] = node[i];
		holds[i][1] = elsewhere ? elsewhere[i] : -1;
		part[i] = (struct hspmd_copies_part){ holds[i], elsewhere ? 2 : 1 };
		w[i] = (struct hspmd_copy_worker){
			.node = node[i], .bytes = bytes ? (uint64_t)bytes[i] : 1, .parts = &part[i], .part_count = 1
		};
	}
	must(hspmd_losses_make(&cluster, NULL, copies, nodes, &losses, &err), &err);
	must(hspmd_copies_assign(&losses, w, workers, 3, to, &err), &err);
	hspmd_losses_free(&losses);
	for (int i = 0; i < workers * 3; i++) {
		found += to[i] >= 0;
		assert_true(to[i] < 0 || node[to[i]] != node[i / 3]);
		for (int k = i / 3 * 3; k < i; k++)
			assert_true(to[i] < 0 || node[to[i]] != node[to[k]]);
	}
	return found;
}

static void test_copies_spread(void **state)
{
	(void)state;
	int to[24];
	assert_int_equal(spread(crew_node, NULL, CREW, 3, 1, NULL, to), 4);
	assert_int_equal(spread(crew_node, NULL, CREW, 3, 3, NULL, to), 8); /* each has two other nodes */
	/* Eight workers on two nodes: each keeps exactly one other's shard. */
	const int eight[8] = { 0, 0, 0, 0, 1, 1, 1, 1 };
	int kept[8] = { 0 };
	assert_int_equal(spread(eight, NULL, 8, 2, 3, NULL, to), 8);
	for (int i = 0; i < 8; i++)
		kept[to[3 * i]]++;
	for (int i = 0; i < 8; i++)
		assert_int_equal(kept[i], 1);
	assert_int_equal(spread(eight, NULL, 4, 1, 1, NULL, to), 0);
	/* Two keep the shards of six: three each. */
	const int six[8] = { 0, 0, 0, 0, 0, 0, 1, 1 };
	memset(kept, 0, sizeof kept);
	assert_int_equal(spread(six, NULL, 8, 2, 1, NULL, to), 8);
	for (int i = 0; i < 6; i++)
		kept[to[3 * i]]++;
	assert_true(kept[6] == 3 && kept[7] == 3);
	/* Unequal sizes: the worker that keeps the large one keeps nothing else. */
	const int four[4] = { 0, 1, 2, 3 }, sizes[4] = { 90, 30, 20, 20 };
	uint64_t load[4] = { 0 }, most = 0;
	assert_int_equal(spread(four, sizes, 4, 4, 1, NULL, to), 4);
	for (int i = 0; i < 4; i++)
		load[to[3 * i]] += (uint64_t)sizes[i];
	for (int i = 0; i < 4; i++)
		most = load[i] > most ? load[i] : most;
	assert_int_equal(most, 90);
	/* No copy goes to a node that has the shard anyway. */
	const int elsewhere[4] = { 1, 2, 3, 0 };
	assert_int_equal(spread(four, NULL, 4, 4, 3, elsewhere, to), 8);
	for (int i = 0; i < 12; i++)
		assert_true(to[i] < 0 || four[to[i]] != elsewhere[i / 3]);
}

static void test_copies(void **state)
{
	(void)state;
	struct crew *c = run_crew(70, 1, false, NULL);
	struct hspmd_error err = { "" };
	for (int i = 0; i < CREW; i++)
		assert_true(json_is_null(crew_copies(c, i, "error")));
	struct hspmd_manifest *m = crew_manifest(c, 70, &err);
	must(!m, &err);
	assert_int_equal(m->shard_count, CREW);
	for (int s = 0; s < CREW; s++)
		assert_int_equal(m->shards[s].node_count, 2);
	/* Any one node may be lost. */
	for (int gone = 0; gone < 3; gone++) {
		const char *folders[2];
		char nodes[2][16];
		for (int k = 0, i = 0; i < 3; i++)
			if (i != gone) {
				snprintf(nodes[k], sizeof nodes[k], "n%d", i);
				folders[k] = scene_folder(m, nodes[k]);
				k++;
			}
		assert_int_equal(scene_read_worker(m, folders, 2, 2, 0, 1), 0);
	}
	hspmd_manifest_destroy(m);
	end_crew(c);
}

/* A worker cannot write its shard, for a root: it says what would be in it, and another's copy of it is whole. */
static void test_copy_alone(void **state)
{
	(void)state;
	struct hspmd_error err = { "" };
	must(hspmd_durable_mkdir(scene_path("n1/step-0000000073-g1/w2.safetensors/in the way"), 0777, &err), &err);
	crew_set = "7";
	struct crew *c = run_crew(73, 1, false, NULL);
	const json_t *shard = json_object_get(c->report[2], "shard");
	assert_int_equal(json_array_size(json_object_get(shard, "nodes")), 0);
	assert_string_equal(json_string_value(json_object_get(shard, "set")), crew_set);
	assert_int_equal(json_array_size(json_object_get(c->report[2], "places")), 1);
	assert_int_equal(json_array_size(json_object_get(c->report[0], "places")), 0);
	struct hspmd_manifest *m = crew_manifest(c, 73, &err);
	must(!m, &err);
	assert_int_equal(m->shard_count, CREW);
	for (int s = 0; s < CREW; s++)
		assert_int_equal(m->shards[s].node_count, strcmp(m->shards[s].file, "w2.safetensors") ? 2 : 1);
	const char *folders[] = { scene_folder(m, "n0"), scene_folder(m, "n1"), scene_folder(m, "n2") };
	assert_int_equal(scene_read_worker(m, folders, 3, 2, 0, 1), 0);
	hspmd_manifest_destroy(m);
	end_crew(c);
	crew_set = NULL;
}

/* Images of several pieces, of unequal length. */
static void test_copies_large(void **state)
{
	(void)state;
	struct hspmd_error err = { "" };
	struct hspmd_device dev = { .ops = &near_ops };
	struct hspmd_transport *t[2];
	struct hspmd_writer *w[2];
	struct hspmd_address a[2];
	static const int other[] = { 1, 0 };
	static const char *const files[] = { "a.safetensors", "b.safetensors" }, *const nodes[] = { "n0", "n1" };
	const char *locations[2] = { scene_path("n0"), scene_path("n1") };
	struct hspmd_copy_routes copies[2];
	float *data[2];
	for (int i = 0; i < 2; i++) {
		struct hspmd_transport_options o = { .rank = i, .size = 2, .timeout_s = 60 };
		must(hspmd_transport_memory.open(&o, &t[i], &err), &err);
		must(hspmd_transport_memory.address(t[i], &a[i], &err), &err);
	}
	for (int i = 0; i < 2; i++) {
		must(hspmd_transport_memory.connect(t[i], a, &err), &err);
		struct hspmd_shape shape = { 2, { i ? 7 : 5, 1000003 } };
		size_t n = (size_t)hspmd_shape_elements(&shape);
		data[i] = malloc(n * sizeof *data[i]);
		for (size_t k = 0; k < n; k++)
			data[i][k] = (float)(k % 65521) + (float)i;
		struct hspmd_state_slice slice = { "big", HSPMD_STATE_PARAM, HSPMD_F32, shape, hspmd_box_full(&shape), data[i], false };
		copies[i] = (struct hspmd_copy_routes){ t[i], &other[i], &other[i], 1, 1, NULL, locations[i] };
		struct hspmd_writer_job job = { .step = 80,
			                        .generation = 1,
			                        .file = files[i],
			                        .node = nodes[i],
			                        .locations = &locations[i],
			                        .location_count = 1,
			                        .copies = &copies[i] };
		w[i] = hspmd_writer_create(&dev, &err);
		must(hspmd_writer_begin(w[i], &job, &slice, 1, &err), &err);
	}
	for (int i = 0; i < 2; i++) {
		json_t *report;
		assert_int_equal(hspmd_writer_result(w[i], 120, &report, &err), 1);
		assert_true(json_is_null(json_object_get(json_object_get(report, "copies"), "error")));
		json_decref(report);
	}
	for (int i = 0; i < 2; i++) {
		size_t bytes, copied;
		char *own = hspmd_read_file(scene_path("%s/step-0000000080-g1/%s", nodes[i], files[i]), 1 << 30, &bytes, &err);
		char *copy = hspmd_read_file(scene_path("%s/step-0000000080-g1/%s", nodes[1 - i], files[i]), 1 << 30, &copied, &err);
		assert_true(own && copy && bytes == copied && bytes > 20000000);
		assert_memory_equal(own, copy, bytes);
		free(own);
		free(copy);
		hspmd_writer_destroy(w[i]);
	}
	for (int i = 0; i < 2; i++) {
		hspmd_transport_memory.close(t[i]);
		free(a[i].data);
		free(data[i]);
	}
}

static int damaging_send(struct hspmd_transport *t, int to, uint64_t tag, const void *data, size_t bytes, struct hspmd_request **r,
                         struct hspmd_error *err)
{
	static char piece[16 << 20];
	if (bytes < 100000)
		return hspmd_transport_memory.send(t, to, tag, data, bytes, r, err);
	memcpy(piece, data, bytes);
	piece[bytes / 2] ^= 1;
	return hspmd_transport_memory.send(t, to, tag, piece, bytes, r, err);
}

/* Under a tag that no receive waits for. */
static int losing_send(struct hspmd_transport *t, int to, uint64_t tag, const void *data, size_t bytes, struct hspmd_request **r,
                       struct hspmd_error *err)
{
	return hspmd_transport_memory.send(t, to, tag + 1000, data, bytes, r, err);
}

/* Failures are reported, give no copy, and do not harm the checkpoint. */
static void test_copies_fail(void **state)
{
	(void)state;
	struct hspmd_transport_ops spoil = hspmd_transport_memory;
	spoil.send = losing_send;
	struct crew *c = run_crew(71, 1, true, &spoil);
	/* The worker that keeps worker 2's copy would wait for it; the others may have received theirs before they checked the flag. */
	int keeper = c->to[2][0];
	assert_true(json_array_size(crew_copies(c, keeper, "shards")) < (size_t)c->copies[keeper].from_count);
	assert_non_null(strstr(json_string_value(crew_copies(c, keeper, "error")), "aborted"));
	for (int i = 0; i < CREW; i++) {
		assert_non_null(json_object_get(c->report[i], "shard"));
		if (json_array_size(crew_copies(c, i, "shards")) < (size_t)c->copies[i].from_count)
			assert_non_null(strstr(json_string_value(crew_copies(c, i, "error")), "aborted"));
	}
	end_crew(c);
	spoil.send = damaging_send;
	c = run_crew(72, 1, false, &spoil);
	keeper = c->to[2][0];
	assert_int_equal(json_array_size(crew_copies(c, keeper, "shards")), c->copies[keeper].from_count - 1);
	assert_non_null(strstr(json_string_value(crew_copies(c, keeper, "error")), "w2.safetensors arrived damaged"));
	assert_int_equal(access(scene_path("n%d/step-0000000072-g1/w2.safetensors", crew_node[keeper]), F_OK), -1);
	for (int i = 0; i < CREW; i++)
		assert_int_equal(json_array_size(crew_copies(c, i, "shards")), c->copies[i].from_count - (i == keeper));
	end_crew(c);
}

int main(void)
{
	setenv("HSPMD_LOG", "error", 1);
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_copies_spread), IN_FOLDER(test_copy_alone),  IN_FOLDER(test_copies),
		IN_FOLDER(test_copies_large),         IN_FOLDER(test_copies_fail),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
