/* SPDX-License-Identifier: Apache-2.0 */
/* A manifest that is a small root: what its shards contain comes from their headers, and from them only if they are those that the root
 * names. test_checkpoint.c reads and damages such checkpoints as it does the others. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <unistd.h>

#include "common/durable.h"
#include "runtime/state/checkpoint_choice.h"
#include "runtime/state/checkpoint_index.h"
#include "runtime/state/state_internal.h"
#include "runtime/state/export.h"
#include "tests/unit/state_folder.h"

#define STEP 70

/* Write worker's part of all tensors as shard n<number>-0 in the location of that node. */
static json_t *write_shard(int number, int worker, int workers)
{
	struct hspmd_state_slice slices[SCENE_SLICES];
	struct hspmd_image im = { 0 };
	struct hspmd_error err = { "" };
	char node[16], file[40];
	json_t *shard;
	size_t n = scene_slices(0, worker, workers, STEP, slices);
	snprintf(node, sizeof node, "n%d", number);
	snprintf(file, sizeof file, "n%d-0.safetensors", number);
	must(hspmd_image_layout(&im, slices, n, &err), &err);
	for (size_t i = 0; i < n; i++)
		memcpy(im.data + im.extents[i].offset, slices[i].data, im.extents[i].bytes);
	must(hspmd_image_seal(&im, &err), &err);
	must(hspmd_shard_store(scene_path("%s", node), node, STEP, 1, file, im.data, im.bytes, &shard, &err), &err);
	hspmd_image_free(&im);
	scene_free(slices, n);
	return shard;
}

/* Halves in n0 and n1, the last third once more in n2. */
static struct hspmd_manifest *write_all(void)
{
	json_t *shards[] = { write_shard(0, 0, 2), write_shard(1, 1, 2), write_shard(2, 2, 3) }, *job = json_object();
	struct hspmd_error err = { "" };
	struct hspmd_manifest *m = hspmd_manifest_assemble(STEP, 1, job, shards, 3, &err);
	must(!m, &err);
	for (int i = 0; i < 3; i++)
		json_decref(shards[i]);
	json_decref(job);
	m = scene_as_root(m, 3);
	for (int i = 0; i < 3; i++)
		must(hspmd_checkpoint_commit(scene_path("n%d", i), m, &err), &err);
	return m;
}

static json_t *shard_of(json_t *root, size_t i)
{
	return json_array_get(json_object_get(root, "shards"), i);
}

static void test_round_trip(void **state)
{
	(void)state;
	struct hspmd_error err = { "" };
	struct hspmd_manifest *m = write_all(), *again = hspmd_manifest_read(scene_path("n1/step-0000000070-g1/manifest.json"), &err);
	must(!again, &err);
	json_t *one = hspmd_manifest_to_json(m), *two = hspmd_manifest_to_json(again);
	assert_true(again->root && again->shard_count == 3 && again->set_count == 3 && json_equal(one, two));
	for (int p = 0; p < 9; p++)
		assert_int_equal(hspmd_manifest_set_has(m, 0, p), p < SCENE_TENSORS);
	assert_false(hspmd_manifest_set_has(m, 0, -1));
	json_decref(one);
	json_decref(two);
	hspmd_manifest_destroy(again);
	hspmd_manifest_destroy(m);
}

static void test_lies(void **state)
{
	(void)state;
	static const struct {
		const char *key, *value, *says;
	} lies[] = {
		{ "list", "\"00\"", "16 hexadecimal digits" },
		{ "list", "12", "list" },
		{ "set", "3", "set" },
		{ "set", "-1", "set" },
		{ "file", "\"n1-0.safetensors\"", "n1-0.safetensors is there twice" },
		{ "extents", "[]", "extents" },
		{ "sets", "[]", "sets" },
		{ "sets", "[\"7\", \"77\", \"7\"]", "as many as in the other sets" },
		{ "sets", "[\"7\", \"G\", \"7\"]", "hexadecimal digits" },
		{ "sets", "[\"7\", 7, \"7\"]", "sets[1]" },
		{ "format", "\"hspmd-checkpoint-1\"", "" },
		{ "format", "\"hspmd-checkpoint-3\"", "hspmd-checkpoint-2" },
	};
	struct hspmd_manifest *m = write_all();
	json_t *root = hspmd_manifest_to_json(m);
	for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
		struct hspmd_error err = { "" };
		json_t *copy = json_deep_copy(root), *value = json_loads(lies[i].value, JSON_DECODE_ANY, NULL);
		bool above = !strcmp(lies[i].key, "sets") || !strcmp(lies[i].key, "format");
		json_object_set_new(above ? copy : shard_of(copy, 0), lies[i].key, value);
		assert_null(hspmd_manifest_from_json(copy, "lie", &err));
		if (!strstr(err.text, lies[i].says))
			print_error("%s: %s: %s\n", lies[i].key, lies[i].value, err.text);
		assert_non_null(strstr(err.text, lies[i].says));
		json_decref(copy);
	}
	json_decref(root);
	hspmd_manifest_destroy(m);
}

/* Counts the extents of the shards that the reader believes to be those of the root. */
static int believed(json_t *root, const bool *wanted)
{
	struct hspmd_error err = { "" };
	const char *folders[3];
	const struct hspmd_extent *extents;
	struct hspmd_manifest *m = hspmd_manifest_from_json(root, "root", &err);
	must(!m, &err);
	for (int i = 0; i < 3; i++)
		folders[i] = scene_folder(m, i == 0 ? "n0" : i == 1 ? "n1" : "n2");
	struct hspmd_reader *r = hspmd_reader_create(m, wanted, folders, 3, &err);
	assert_non_null(r);
	int count = hspmd_reader_extents(r, &extents);
	for (int i = 0; i < count; i++)
		assert_true(extents[i].tensor && extents[i].bytes > 0 && extents[i].shard < 3);
	hspmd_reader_destroy(r);
	hspmd_manifest_destroy(m);
	return count;
}

/* A header of another file, and one with other parameters than the root says, are not used; nor is a file that is not wanted. */
static void test_wrong_headers(void **state)
{
	(void)state;
	struct hspmd_manifest *m = write_all();
	json_t *root = hspmd_manifest_to_json(m);
	const bool second[] = { false, true, false };
	int each = SCENE_SLICES;
	assert_int_equal(believed(root, NULL), 3 * each);
	assert_int_equal(believed(root, second), each);
	json_t *other = json_deep_copy(root);
	json_object_set(shard_of(other, 1), "list", json_object_get(shard_of(other, 0), "list"));
	assert_int_equal(believed(other, NULL), 2 * each);
	json_decref(other);
	other = json_deep_copy(root);
	json_array_set_new(json_object_get(other, "sets"), 2, json_string("3"));
	assert_int_equal(believed(other, NULL), 2 * each);
	json_decref(other);
	json_decref(root);
	hspmd_manifest_destroy(m);
}

static void expect_group(bool whole, const char *says)
{
	struct hspmd_checkpoint_index index;
	struct hspmd_error err = { "" };
	must(hspmd_checkpoint_index_open(&index, scene_root, &err), &err);
	assert_int_equal(index.count, 1);
	if (whole ? index.groups[0].lacks.text[0] != '\0' : !strstr(index.groups[0].lacks.text, says))
		fail_msg("%s", index.groups[0].lacks.text);
	assert_int_equal(hspmd_checkpoint_index_choose(&index, -1, scene_root, &err) != NULL, whole);
	hspmd_checkpoint_index_close(&index);
}

/* A checkpoint without some of its shards is whole if the others have everything. */
static void test_missing_shards(void **state)
{
	(void)state;
	struct hspmd_manifest *m = write_all();
	struct hspmd_error err = { "" };
	const char *folders[] = { scene_folder(m, "n0"), scene_folder(m, "n1"), scene_folder(m, "n2") };
	expect_group(true, "");
	must(unlink(scene_path("n2/step-0000000070-g1/n2-0.safetensors")), &err);
	expect_group(true, "");
	assert_int_equal(scene_read_worker(m, folders, 3, 0, 0, 1), 0);
	must(unlink(scene_path("n1/step-0000000070-g1/n1-0.safetensors")), &err);
	expect_group(false, "is in no shard; 2 of 3 shards cannot be read, such as n1-0.safetensors");
	assert_true(scene_read_worker(m, folders, 3, 0, 0, 1) > 0);
	must(unlink(scene_path("n0/step-0000000070-g1/n0-0.safetensors")), &err);
	expect_group(false, "parameter 0 of the model is in n0-0.safetensors, which cannot be read");
	/* Who sees no headers takes a root only if every shard is there. */
	assert_int_equal(hspmd_manifest_covered(m, NULL, NULL, NULL, &err), 0);
	hspmd_manifest_destroy(m);
}

static bool not_n2(void *context, const struct hspmd_shard *s)
{
	(void)context;
	return strcmp(s->file, "n2-0.safetensors");
}

static void test_covered(void **state)
{
	(void)state;
	struct hspmd_manifest *m = write_all();
	struct hspmd_error err = { "" };
	assert_int_equal(hspmd_manifest_covered(m, NULL, NULL, NULL, &err), 0);
	assert_int_equal(hspmd_manifest_covered(m, not_n2, NULL, NULL, &err), -1);
	assert_string_equal(err.text, "shard n2-0.safetensors cannot be read");
	hspmd_manifest_destroy(m);
}

/* ---- the choice, by what agents have named */

static const char *sum_of(const json_t *manifest)
{
	static char sum[4][HSPMD_MANIFEST_SUM];
	static int next;
	struct hspmd_error err;
	char *its = sum[next++ % 4];
	must(hspmd_manifest_sum(manifest, its, &err), &err);
	return its;
}

/* An entry of an agent's list. Takes over `shards`. */
static json_t *entry(const char *place, const json_t *manifest, json_t *shards)
{
	return json_pack("{s:s, s:O, s:O, s:s, s:o}", "place", place, "step", json_object_get(manifest, "step"), "generation",
	                 json_object_get(manifest, "generation"), "sum", sum_of(manifest), "shards", shards);
}

/* The step of the checkpoint that is chosen, if it depends on no other manifest; its manifest is *of. 0: there is none. */
static int64_t chosen(json_t *found, json_t *manifests, json_t *readers, const json_t *of)
{
	struct hspmd_error err = { "" };
	struct hspmd_checkpoint_choice c;
	int rc = hspmd_checkpoint_choose(found, manifests, readers, NULL, &c, &err);
	if (rc < 0)
		return 0;
	assert_int_equal(rc, 0);
	assert_ptr_equal(c.manifest, of);
	json_decref(c.manifest);
	json_decref(c.files);
	return c.step;
}

/* The choice asks for manifests one by one, the newest first and of one step that which most have, until it knows the one that can be
 * read. */
static void test_wanted(void **state)
{
	(void)state;
	struct hspmd_manifest *m = write_all();
	struct hspmd_error err = { "" };
	struct hspmd_checkpoint_choice c;
	json_t *root = hspmd_manifest_to_json(m), *again = json_copy(root), *older = json_copy(root), *manifests = json_object();
	json_object_set_new(again, "time", json_real(17)); /* committed once more, by another controller */
	json_object_set_new(older, "step", json_integer(STEP - 10));
	assert_string_not_equal(sum_of(root), sum_of(again));
	char *text = json_dumps(root, JSON_INDENT(3) | JSON_SORT_KEYS);
	json_t *reordered = json_loads(text, 0, NULL);
	assert_string_equal(sum_of(root), sum_of(reordered));
	json_decref(reordered);
	free(text);
	json_t *readers = json_pack("{s:s, s:s, s:s}", "n0", "n0:0", "n1", "n1:0", "n2", "n2:0"),
	       *found = json_pack("{s:[o, o], s:[o], s:[o]}", "n0", entry("local", older, json_true()),
	                          entry("local", again, json_pack("[s]", "n0-0.safetensors")), "n1",
	                          entry("local", root, json_pack("[s]", "n1-0.safetensors")), "n2",
	                          entry("local", root, json_pack("[s]", "n2-0.safetensors")));
	assert_int_equal(hspmd_checkpoint_choose(found, manifests, readers, NULL, &c, &err), 1);
	assert_true(c.step == STEP && !c.manifest && !c.files);
	assert_string_equal(c.sum, sum_of(root)); /* two have it */
	/* Shards count by step, whichever manifest their node has: together they are whole. */
	json_object_set(manifests, sum_of(root), root);
	assert_int_equal(chosen(found, manifests, readers, root), STEP);
	/* Nobody can send it: the other of the same step is asked for, then the older one. */
	json_object_set_new(manifests, sum_of(root), json_null());
	assert_int_equal(hspmd_checkpoint_choose(found, manifests, readers, NULL, &c, &err), 1);
	assert_string_equal(c.sum, sum_of(again));
	json_object_set(manifests, sum_of(again), again);
	assert_int_equal(chosen(found, manifests, readers, again), STEP);
	/* A shard that could not be read by one manifest may be what another one means. */
	json_object_set_new(json_array_get(json_object_get(found, "n1"), 0), "unreadable",
	                    json_pack("[[s, s]]", "n1-0.safetensors", sum_of(root)));
	assert_int_equal(chosen(found, manifests, readers, again), STEP);
	json_object_set_new(json_array_get(json_object_get(found, "n1"), 0), "unreadable",
	                    json_pack("[[s, s]]", "n1-0.safetensors", sum_of(again)));
	assert_int_equal(hspmd_checkpoint_choose(found, manifests, readers, NULL, &c, &err), 1);
	assert_string_equal(c.sum, sum_of(older));
	json_object_set(manifests, sum_of(older), older);
	assert_int_equal(chosen(found, manifests, readers, older), STEP - 10);
	json_object_set_new(manifests, sum_of(older), json_null());
	assert_int_equal(chosen(found, manifests, readers, NULL), 0);
	/* Its sender lies about the step. */
	json_object_set(manifests, sum_of(older), root);
	assert_int_equal(chosen(found, manifests, readers, NULL), 0);
	/* What was sent is checked. */
	assert_int_equal(hspmd_manifest_is(root, sum_of(root), &err), 0);
	assert_int_equal(hspmd_manifest_is(again, sum_of(root), &err), -1);
	assert_non_null(strstr(err.text, "another manifest"));
	json_object_del(again, "shards");
	assert_int_equal(hspmd_manifest_is(again, sum_of(again), &err), -1);
	assert_non_null(strstr(err.text, "shards"));
	json_decref(found);
	json_decref(readers);
	json_decref(manifests);
	json_decref(root);
	json_decref(again);
	json_decref(older);
	hspmd_manifest_destroy(m);
}

/* What agents found: the shards of a root that every node sees in the shared folder need no list of readers. */
static void test_readers(void **state)
{
	(void)state;
	static const char *const nodes[] = { "n0", "n1" };
	struct hspmd_manifest *m = write_all();
	struct hspmd_error err = { "" };
	struct hspmd_checkpoint_choice c;
	json_t *root = hspmd_manifest_to_json(m), *found = json_object(), *readers = json_pack("{s:s, s:s}", "n0", "n0:0", "n1", "n1:3");
	json_t *manifests = json_pack("{s:O}", sum_of(root), root);
	for (int i = 0; i < 2; i++)
		json_object_set_new(found, nodes[i],
		                    json_pack("[o, o]", entry("local", root, json_pack("[s]", "n0-0.safetensors")),
		                              entry("shared", root, json_pack("[s, s]", "n1-0.safetensors", "n2-0.safetensors"))));
	must(hspmd_checkpoint_choose(found, manifests, readers, NULL, &c, &err), &err);
	json_t *all =
	        json_loads("{\"n0-0.safetensors\": [\"n0:0\", \"n1:3\"], \"n1-0.safetensors\": true, \"n2-0.safetensors\": true}", 0, NULL);
	assert_true(c.step == STEP && c.durable && json_equal(c.files, all) && json_equal(c.manifest, root));
	json_decref(all);
	json_decref(c.files);
	json_decref(c.manifest);
	/* One of them cannot: those that can are named. */
	json_array_remove(json_object_get(json_array_get(json_object_get(found, "n1"), 1), "shards"), 0);
	must(hspmd_checkpoint_choose(found, manifests, readers, NULL, &c, &err), &err);
	all = json_loads("{\"n0-0.safetensors\": [\"n0:0\", \"n1:3\"], \"n1-0.safetensors\": [\"n0:0\"], \"n2-0.safetensors\": true}", 0,
	                 NULL);
	assert_true(json_equal(c.files, all));
	json_decref(all);
	json_decref(c.files);
	json_decref(c.manifest);
	json_decref(manifests);
	json_decref(found);
	json_decref(readers);
	json_decref(root);
	hspmd_manifest_destroy(m);
}

/* Counts its calls, and refuses a root without this file. */
struct needed {
	const char *file;
	int calls;
};

static int needs(void *context, const struct hspmd_manifest *root, const bool *there, struct hspmd_error *err)
{
	struct needed *n = context;
	n->calls++;
	for (int i = 0; i < root->shard_count; i++)
		if (there[i] && !strcmp(root->shards[i].file, n->file))
			return 0;
	return hspmd_fail(err, "%s is missing", n->file);
}

#define SHARD(file, bytes, nodes) "{\"file\": \"" file "\", \"bytes\": " bytes ", \"nodes\": [" nodes "], \"list\": \"0123456789abcdef\""
#define WRITTEN(shard, copies) "{\"step\": 70, \"generation\": 1, \"shard\": " shard ", \"copies\": {\"shards\": [" copies "]}}"

/* What workers report for a root. A shard that its writer could not write is that which others keep. */
static void test_reports(void **state)
{
	(void)state;
	static const struct {
		const char *written, *lacks; /* lacks NULL: it is a root */
		int shards, sets, nodes;     /* nodes: of the first shard */
	} cases[] = {
		{ WRITTEN(SHARD("a", "9", "\"n0\"") ",\"set\":\"7\"}", SHARD("b", "9", "\"n0\"") "}") "," WRITTEN(
		          SHARD("b", "9", "\"n1\"") ",\"set\":\"3\"}", SHARD("a", "9", "\"n1\"") "}"),
		  NULL, 2, 2, 2 },
		{ WRITTEN(SHARD("a", "9", "") ",\"set\":\"7\"}", "") "," WRITTEN(SHARD("b", "9", "\"n1\"") ",\"set\":\"7\"}",
		                                                                 SHARD("a", "9", "\"n1\"") "}"),
		  NULL, 2, 1, 1 },
		{ WRITTEN(SHARD("b", "9", "") ",\"set\":\"7\"}", "") "," WRITTEN(SHARD("a", "9", "\"n1\"") ",\"set\":\"7\"}", ""), NULL, 1,
		  1, 1 },
		{ WRITTEN(SHARD("a", "9", "") ",\"set\":\"7\"}", "") "," WRITTEN(SHARD("b", "9", "\"n1\"") ",\"set\":\"7\"}", ""),
		  "step 70: a is missing", 0, 0, 0 },
		{ WRITTEN(SHARD("b", "9", "\"n1\"") ",\"set\":\"7\"}", SHARD("a", "9", "\"n1\"") "}"), "nobody reported what is in shard a",
		  0, 0, 0 },
		{ WRITTEN(SHARD("a", "9", "\"n0\"") ",\"set\":\"7\"}", "") "," WRITTEN(SHARD("b", "9", "\"n1\"") ",\"set\":\"7\"}",
		                                                                       SHARD("a", "8", "\"n1\"") "}"),
		  "a is not the same on two nodes", 0, 0, 0 },
		{ WRITTEN(SHARD("a", "9", "\"n0\"") ",\"set\":\"7\"}", "") "," WRITTEN(SHARD("b", "9", "\"n1\"") ",\"set\":\"17\"}", ""),
		  "as many as in the other sets", 0, 0, 0 },
		{ WRITTEN(SHARD("a", "9", "") ",\"set\":\"7\"}", ""), "no shard was written", 0, 0, 0 },
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct hspmd_error err = { "" };
		struct needed needed = { "a", 0 };
		const struct hspmd_root_check check = { needs, &needed };
		char text[2000];
		snprintf(text, sizeof text, "[%s]", cases[i].written);
		json_t *written = json_loads(text, 0, NULL), *job = json_object();
		assert_non_null(written);
		json_t *m = hspmd_manifest_from_reports(written, job, &check, &err);
		if (cases[i].lacks ? m || !strstr(err.text, cases[i].lacks) : !m)
			fail_msg("%zu: %s", i, err.text);
		if (m) {
			assert_string_equal(json_string_value(json_object_get(m, "format")), HSPMD_CHECKPOINT_ROOT_FORMAT);
			assert_int_equal(json_array_size(json_object_get(m, "shards")), cases[i].shards);
			assert_int_equal(json_array_size(json_object_get(m, "sets")), cases[i].sets);
			assert_int_equal(json_array_size(json_object_get(shard_of(m, 0), "nodes")), cases[i].nodes);
			assert_int_equal(needed.calls, 1);
		}
		json_decref(m);
		json_decref(written);
		json_decref(job);
	}
}

/* A root some of whose shards cannot be read is taken if those who know the model say that the others are enough. */
static void test_enough(void **state)
{
	(void)state;
	struct hspmd_manifest *m = write_all();
	struct hspmd_error err = { "" };
	struct needed needed = { "n1-0.safetensors", 0 };
	const struct hspmd_root_check check = { needs, &needed };
	struct hspmd_checkpoint_choice c;
	json_t *root = hspmd_manifest_to_json(m), *readers = json_pack("{s:s, s:s}", "n0", "n0:0", "n1", "n1:3");
	json_t *manifests = json_pack("{s:O}", sum_of(root), root);
	json_t *found = json_pack("{s:[o], s:[{s:s, s:i, s:i, s:[s]}]}", "n0", entry("shared", root, json_true()), "n1", "place", "local",
	                          "step", STEP, "generation", 1, "shards", "n1-0.safetensors");
	json_t *all = json_loads("{\"n0-0.safetensors\": [\"n0:0\"], \"n1-0.safetensors\": [\"n1:3\"], \"n2-0.safetensors\": [\"n0:0\"]}",
	                         0, NULL);
	must(hspmd_checkpoint_choose(found, manifests, readers, &check, &c, &err), &err);
	assert_true(json_equal(c.files, all) && needed.calls == 0);
	json_decref(c.files);
	json_decref(c.manifest);
	/* n0 could not read one of them. */
	json_object_set_new(json_array_get(json_object_get(found, "n0"), 0), "unreadable",
	                    json_pack("[[s, s]]", "n2-0.safetensors", sum_of(root)));
	json_object_del(all, "n2-0.safetensors");
	must(hspmd_checkpoint_choose(found, manifests, readers, &check, &c, &err), &err);
	assert_true(json_equal(c.files, all) && needed.calls == 1);
	json_decref(c.files);
	json_decref(c.manifest);
	json_object_del(found, "n1");
	json_object_set_new(json_array_get(json_object_get(found, "n0"), 0), "unreadable",
	                    json_pack("[[s, s]]", "n1-0.safetensors", sum_of(root)));
	assert_int_equal(hspmd_checkpoint_choose(found, manifests, readers, &check, &c, &err), -1);
	assert_string_equal(err.text, "step 70: n1-0.safetensors is missing");
	/* In the shared folder that all nodes see there is everything. */
	json_object_del(json_array_get(json_object_get(found, "n0"), 0), "unreadable");
	json_object_set_new(found, "n1", json_deep_copy(json_object_get(found, "n0")));
	must(hspmd_checkpoint_choose(found, manifests, readers, &check, &c, &err), &err);
	json_decref(all);
	all = json_pack("{s:b, s:b, s:b}", "n0-0.safetensors", 1, "n1-0.safetensors", 1, "n2-0.safetensors", 1);
	assert_true(json_equal(c.files, all));
	json_decref(c.files);
	json_decref(c.manifest);
	json_decref(all);
	json_decref(manifests);
	json_decref(found);
	json_decref(readers);
	json_decref(root);
	hspmd_manifest_destroy(m);
}

/* Tools: the parameters as a model folder, from a root's shards. */
static void test_export(void **state)
{
	(void)state;
	struct hspmd_manifest *m = write_all();
	struct hspmd_error err = { "" };
	const char *folders[] = { scene_folder(m, "n0"), scene_folder(m, "n1") };
	struct hspmd_reader *r = hspmd_reader_create(m, NULL, folders, 2, &err);
	struct hspmd_export_options how = { .folder = scene_path("out") };
	must(hspmd_weights_export(r, &how, &err), &err);
	hspmd_reader_destroy(r);
	struct hspmd_weights *w = hspmd_weights_open(scene_path("out"), &err);
	must(!w, &err);
	for (int t = 0; t < SCENE_TENSORS; t++) {
		struct hspmd_box all = hspmd_box_full(&scene_tensors[t].shape);
		float *data = calloc((size_t)hspmd_box_elements(&all), sizeof *data);
		must(hspmd_weights_read(w, NULL, scene_tensors[t].name, &scene_tensors[t].shape, &all, data, &err), &err);
		assert_int_equal(scene_visit(t, HSPMD_STATE_PARAM, STEP, &all, data, false), 0);
		free(data);
	}
	hspmd_weights_destroy(w);
	hspmd_manifest_destroy(m);
}

int main(void)
{
	setenv("HSPMD_LOG", "error", 1);
	const struct CMUnitTest tests[] = {
		IN_FOLDER(test_round_trip), IN_FOLDER(test_lies),    IN_FOLDER(test_wrong_headers), IN_FOLDER(test_missing_shards),
		IN_FOLDER(test_covered),    IN_FOLDER(test_readers), IN_FOLDER(test_wanted),        IN_FOLDER(test_export),
		IN_FOLDER(test_reports),    IN_FOLDER(test_enough),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
