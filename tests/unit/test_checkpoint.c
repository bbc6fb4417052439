/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints: shards that some workers wrote are read by others, slice by slice, to the bit; damage is detected and the next copy is
 * used; a partial checkpoint is never taken for a complete one; old ones are removed only when that is safe. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/durable.h"
#include "runtime/state/checkpoint_choice.h"
#include "tests/unit/state_shards.h"

static void test_round_trip(void **state)
{
	(void)state;
	for (int along = 0; along < 3; along++) {
		int64_t step = 10 + along;
		struct hspmd_manifest *m = scene_write_all(along, 3, step, NULL);
		struct hspmd_error err;
		struct hspmd_manifest *again = hspmd_manifest_read(scene_path("n1/step-%010d-g1/manifest.json", (int)step), &err);
		assert_non_null(again);
		assert_int_equal(again->extent_count, m->extent_count);
		assert_int_equal(json_integer_value(json_object_get(again->job, "seed")), 7);
		const char *folders[] = { scene_folder(m, "n0"), scene_folder(m, "n1"), scene_folder(m, "n2") };
		for (int other = 0; other < 3; other++)
			for (int workers = 1; workers < 5; workers++)
				for (int w = 0; w < workers; w++)
					assert_int_equal(scene_read_worker(again, folders, 3, other, w, workers), 0);
		/* Without one node's folder exactly its parts are missing. */
		assert_true(scene_read_worker(again, folders, 2, along, 2, 3) > 0);
		assert_int_equal(scene_read_worker(again, folders, 2, along, 0, 3), 0);
		hspmd_manifest_destroy(again);
		hspmd_manifest_destroy(m);
	}
}

/* Reads run concurrently with kernels without delaying training; and a device that can no longer be read makes the checkpoint fail, not
 * the writer. */
static void test_read_beside(void **state)
{
	(void)state;
	struct hspmd_device dev = { .ops = &scene_lane_ops };
	struct hspmd_state_slice slices[SCENE_SLICES];
	struct hspmd_error err;
	json_t *report;
	const char *locations[] = { scene_path("beside") };
	size_t n = scene_slices(0, 0, 1, 5, slices);
	for (size_t i = 0; i < n; i++)
		slices[i].data = (const char *)slices[i].data + SCENE_FAR;
	scene_lane.trains = pthread_self();
	struct hspmd_writer *w = hspmd_writer_create(&dev, &err);
	assert_non_null(w);
	for (int fails = 0; fails < 2; fails++) {
		struct hspmd_writer_job job = { .step = 5 + fails,
			                        .generation = 1,
			                        .file = "n0-0.safetensors",
			                        .node = "n0",
			                        .locations = locations,
			                        .location_count = 1 };
		scene_lane.synchronised = scene_lane.beside = 0;
		scene_lane.fails = fails;
		must(hspmd_writer_begin(w, &job, slices, n, &err), &err);
		assert_int_equal(hspmd_writer_result(w, 60, &report, &err), fails ? -1 : 1);
		assert_true(scene_lane.synchronised == 1 && scene_lane.beside > 0);
		if (fails)
			assert_string_equal(err.text, "the device is gone");
		json_decref(report);
		must(hspmd_writer_wait_copied(w, &err), &err);
	}
	/* State that was spilled to host memory is not read from the device. */
	for (size_t i = 0; i < n; i++)
		slices[i].data = (const char *)slices[i].data - SCENE_FAR;
	struct hspmd_writer_job spilled = { .step = 7,
		                            .generation = 1,
		                            .file = "n0-0.safetensors",
		                            .node = "n0",
		                            .locations = locations,
		                            .location_count = 1,
		                            .host = true };
	must(hspmd_writer_begin(w, &spilled, slices, n, &err), &err);
	must(hspmd_writer_wait_copied(w, &err), &err);
	assert_int_equal(hspmd_writer_result(w, 60, &report, &err), 1);
	json_decref(report);
	hspmd_writer_destroy(w);
	scene_lane.fails = 0;
	scene_free(slices, n);
}

/* Only the blocks that are needed are read. */
static void test_reads_little(void **state)
{
	(void)state;
	struct hspmd_manifest *m = scene_write_all(0, 1, 5, NULL);
	const char *folders[] = { scene_folder(m, "n0") };
	struct hspmd_error err;
	struct hspmd_reader *r = hspmd_reader_create(m, NULL, folders, 1, &err);
	struct hspmd_box box = { 3, { 3, 0, 0 }, { 4, 2, 211 } };
	float data[2 * 211];
	uint64_t bytes;
	struct hspmd_state_need need = { "h.0.w", HSPMD_STATE_ADAM_V, HSPMD_F32, box, data };
	must(hspmd_reader_load(r, &need, 1, NULL, NULL, &bytes, &err), &err);
	assert_int_equal(scene_visit(2, HSPMD_STATE_ADAM_V, 5, &box, data, false), 0);
	assert_true(bytes <= HSPMD_BLOCK_BYTES);
	hspmd_reader_destroy(r);
	hspmd_manifest_destroy(m);
}

static void flip(const char *file, off_t at)
{
	char c;
	int fd = open(file, O_RDWR);
	assert_true(fd >= 0);
	assert_int_equal(pread(fd, &c, 1, at), 1);
	c ^= 4;
	assert_int_equal(pwrite(fd, &c, 1, at), 1);
	close(fd);
}

static void test_damage(void **state)
{
	(void)state;
	struct hspmd_manifest *m = scene_write_all(0, 2, 20, scene_path("shared"));
	const char *shared = scene_folder(m, "shared"), *own = scene_folder(m, "n0");
	const char *both[] = { own, shared }, *one[] = { own };
	char file[512];
	struct hspmd_error err;
	int bad;
	snprintf(file, sizeof file, "%s/n0-0.safetensors", own);
	/* A digit of a checksum in the header. */
	size_t bytes;
	char *content = hspmd_read_file(file, 1 << 30, &bytes, &err);
	off_t sum_at = strstr(content + 8, "blocks") - content + 12, data_at = 0;
	for (int i = 8; i-- > 0;)
		data_at = data_at << 8 | (unsigned char)content[i];
	free(content);
	for (int kind = 0; kind < 4; kind++) {
		struct hspmd_reader *r = hspmd_reader_create(m, NULL, both, 2, &err);
		must(hspmd_reader_verify(r, &bad, &err), &err);
		hspmd_reader_destroy(r);
		off_t at = kind == 0 ? data_at + 8 + 3 : kind == 1 ? (off_t)bytes - 1 : sum_at;
		if (kind < 3)
			flip(file, at);
		else
			assert_int_equal(truncate(file, 5000), 0);
		/* The other copy is used, and without it the damage is reported as a gap, never returned as a value. */
		assert_int_equal(scene_read_worker(m, both, 2, 0, 0, 2), 0);
		assert_true(scene_read_worker(m, one, 1, 0, 0, 2) > 0);
		r = hspmd_reader_create(m, NULL, both, 2, &err);
		int rv = hspmd_reader_verify(r, &bad, &err);
		/* A file of the wrong length is not a copy at all. */
		assert_true(kind < 3 ? rv && bad == 1 && strstr(err.text, "n0-0.safetensors") : !rv);
		hspmd_reader_destroy(r);
		if (kind < 3)
			flip(file, at);
	}
	hspmd_manifest_destroy(m);
}

/* A copy of another worker's shard, from its image in memory. */
static void test_peer_copy(void **state)
{
	(void)state;
	struct hspmd_manifest *m = scene_write_all(0, 2, 30, NULL);
	struct hspmd_error err = { "" };
	size_t bytes;
	char source[512];
	snprintf(source, sizeof source, "%s/n1-0.safetensors", scene_folder(m, "n1"));
	char *image = hspmd_read_file(source, 1 << 30, &bytes, &err);
	assert_non_null(image);
	json_t *shard, *none;
	must(hspmd_shard_store(scene_path("n0"), "n0", 30, 1, "n1-0.safetensors", image, bytes, &shard, &err), &err);
	const char *folders[] = { scene_folder(m, "n0") };
	assert_int_equal(scene_read_worker(m, folders, 1, 1, 0, 1), 0);
	/* The report joins the writer's: one shard on two nodes. */
	json_t *own = hspmd_manifest_to_json(m), *shards[3];
	for (int i = 0; i < 2; i++)
		shards[i] = json_array_get(json_object_get(own, "shards"), (size_t)i);
	shards[2] = shard;
	struct hspmd_manifest *both = hspmd_manifest_assemble(30, 1, m->job, shards, 3, &err);
	must(!both, &err);
	assert_int_equal(both->shard_count, 2);
	assert_int_equal(both->shards[1].node_count, 2);
	hspmd_manifest_destroy(both);
	image[bytes - 7] ^= 1;
	assert_int_equal(hspmd_shard_store(scene_path("n0"), "n0", 30, 1, "x.safetensors", image, bytes, &none, &err), -1);
	assert_non_null(strstr(err.text, "checksum"));
	for (size_t cut = 0; cut < bytes; cut += 1 + bytes / 50)
		assert_int_equal(hspmd_shard_store(scene_path("n0"), "n0", 30, 1, "x.safetensors", image, cut, &none, &err), -1);
	assert_int_equal(access(scene_path("n0/step-0000000030-g1/x.safetensors"), F_OK), -1);
	json_decref(own);
	json_decref(shard);
	free(image);
	hspmd_manifest_destroy(m);
}

static int found_steps(const char *where, char *text, size_t size)
{
	struct hspmd_listed_checkpoint *found;
	struct hspmd_error err;
	int n = hspmd_checkpoint_list(where, HSPMD_LOCATION_DEPTH, &found, &err);
	size_t used = 0;
	text[0] = '\0';
	for (int i = 0; i < n; i++)
		used += (size_t)snprintf(text + used, size - used, "%lld%s ", found[i].manifest ? (long long)found[i].manifest->step : -1LL,
		                         found[i].error ? "!" : "");
	hspmd_checkpoint_list_free(found, n > 0 ? n : 0);
	return n;
}

/* Two generations whose plans split the state differently, both stopped in the middle of their first checkpoint, in the folder of a
 * complete one. */
static void test_half_started(void **state)
{
	(void)state;
	char text[256];
	struct hspmd_error err = { "" };
	struct hspmd_manifest *old = scene_write_all(0, 2, 60, NULL);
	const char *folders[] = { scene_folder(old, "n0"), scene_folder(old, "n1") };
	json_decref(scene_write_shard(0, 0, 2, 61, false, NULL));
	json_decref(scene_write_shard(1, 1, 3, 62, false, NULL));
	found_steps(scene_root, text, sizeof text);
	assert_string_equal(text, "60 60 -1! -1! ");
	assert_int_equal(scene_read_worker(old, folders, 2, 1, 0, 1), 0);
	/* A shard of the other layout with the name of a listed one: a gap, never a mixture. */
	struct hspmd_manifest *m = scene_write_all(0, 2, 63, NULL);
	json_decref(scene_write_shard(1, 0, 2, 63, false, NULL));
	const char *mixed[] = { scene_folder(m, "n0"), scene_folder(m, "n1") };
	assert_true(scene_read_worker(m, mixed, 2, 0, 0, 2) > 0);
	assert_int_equal(scene_read_worker(m, mixed, 2, 0, 1, 2), 0);
	/* Uncommitted checkpoints are removed after a newer one is committed. */
	must(hspmd_checkpoint_prune(scene_path("n0"), 1, &err), &err);
	must(hspmd_checkpoint_prune(scene_path("n1"), 1, &err), &err);
	found_steps(scene_root, text, sizeof text);
	assert_string_equal(text, "63 63 ");
	hspmd_manifest_destroy(old);
	hspmd_manifest_destroy(m);
}

static bool not_n1(void *context, const struct hspmd_shard *s)
{
	(void)context;
	return strcmp(s->file, "n1-0.safetensors");
}

static void test_covered(void **state)
{
	(void)state;
	struct hspmd_manifest *m = scene_write_all(0, 2, 40, NULL);
	struct hspmd_error err = { "" };
	assert_int_equal(hspmd_manifest_covered(m, NULL, NULL, NULL, &err), 0);
	assert_int_equal(hspmd_manifest_covered(m, not_n1, NULL, NULL, &err), -1);
	assert_string_equal(err.text, "param of b [2:5] is in n1-0.safetensors, which cannot be read");
	/* A manifest is never assembled from less than everything. */
	json_t *whole = hspmd_manifest_to_json(m), *one = json_array_get(json_object_get(whole, "shards"), 0);
	assert_null(hspmd_manifest_assemble(40, 1, m->job, &one, 1, &err));
	assert_non_null(strstr(err.text, "is in no shard"));
	json_decref(whole);
	hspmd_manifest_destroy(m);
}

/* What an agent says of a checkpoint whose manifest it has. */
static json_t *named(json_t *manifest, const char *shard)
{
	char sum[HSPMD_MANIFEST_SUM];
	struct hspmd_error err;
	must(hspmd_manifest_sum(manifest, sum, &err), &err);
	return json_pack("{s:s, s:O, s:O, s:s, s:[s]}", "place", "local", "step", json_object_get(manifest, "step"), "generation",
	                 json_object_get(manifest, "generation"), "sum", sum, "shards", shard);
}

/* A restart from manifests that list their extents: the newest of which everything can be read, and why it is not the newest of all. */
static void test_choose(void **state)
{
	(void)state;
	static const int steps[] = { 40, 42, 41 };
	struct hspmd_error err = { "" };
	struct hspmd_checkpoint_choice c;
	json_t *found = json_pack("{s:[], s:[]}", "n0", "n1"), *readers = json_pack("{s:s, s:s}", "n0", "n0:0", "n1", "n1:0"),
	       *manifests = json_object();
	for (size_t i = 0; i < 3; i++) {
		struct hspmd_manifest *m = scene_write_all(0, 2, steps[i], NULL);
		json_t *text = hspmd_manifest_to_json(m), *on[] = { named(text, "n0-0.safetensors"), named(text, "n1-0.safetensors") };
		assert_string_equal(json_string_value(json_object_get(text, "format")), HSPMD_CHECKPOINT_FORMAT);
		json_object_set_new(manifests, json_string_value(json_object_get(on[0], "sum")), text);
		json_array_append_new(json_object_get(found, "n0"), on[0]);
		json_array_append_new(json_object_get(found, "n1"), on[1]);
		hspmd_manifest_destroy(m);
	}
	for (int gone = 0; gone < 3; gone++) { /* n1 loses its part of the newest, then of the next */
		must(hspmd_checkpoint_choose(found, manifests, readers, NULL, &c, &err), &err);
		assert_int_equal(c.step, 42 - gone);
		assert_int_equal(json_integer_value(json_object_get(c.manifest, "step")), 42 - gone);
		json_t *all = json_pack("{s:[s], s:[s]}", "n0-0.safetensors", "n0:0", "n1-0.safetensors", "n1:0");
		assert_true(json_equal(c.files, all));
		json_decref(all);
		json_decref(c.files);
		json_decref(c.manifest);
		json_array_clear(json_object_get(json_array_get(json_object_get(found, "n1"), (size_t[]){ 1, 2, 0 }[gone]), "shards"));
	}
	assert_int_equal(hspmd_checkpoint_choose(found, manifests, readers, NULL, &c, &err), -1);
	assert_string_equal(err.text, "step 42: param of b [2:5] is in n1-0.safetensors, which cannot be read");
	json_decref(found);
	json_decref(readers);
	json_decref(manifests);
}

static void test_list_and_prune(void **state)
{
	(void)state;
	char text[256];
	struct hspmd_error err;
	for (int step = 50; step < 55; step++)
		hspmd_manifest_destroy(scene_write_all(0, 2, step, NULL));
	json_decref(scene_write_shard(0, 0, 2, 52, false, NULL)); /* once more, over the existing one */
	json_decref(scene_write_shard(0, 0, 2, 1, false, NULL));  /* begun long ago and never committed */
	json_decref(scene_write_shard(0, 0, 2, 99, false, NULL)); /* being written now */
	assert_int_equal(found_steps(scene_path("n0"), text, sizeof text), 7);
	assert_string_equal(text, "-1! 50 51 52 53 54 -1! ");
	assert_int_equal(found_steps(scene_root, text, sizeof text), 12);
	must(hspmd_checkpoint_prune(scene_path("n0"), 2, &err), &err);
	found_steps(scene_path("n0"), text, sizeof text);
	assert_string_equal(text, "53 54 -1! ");
	found_steps(scene_path("n1"), text, sizeof text);
	assert_string_equal(text, "50 51 52 53 54 ");
	/* keep 0 still keeps the last one, and nothing is removed from a location without any manifest. */
	must(hspmd_checkpoint_prune(scene_path("n0"), 0, &err), &err);
	found_steps(scene_path("n0"), text, sizeof text);
	assert_string_equal(text, "54 -1! ");
	/* A location without manifests is told what stands: what was written before the newest of it, by generation and then by step. */
	static const struct hspmd_checkpoint_id stand[] = { { 53, 1 }, { 51, 1 } }, later[] = { { 52, 2 } };
	must(hspmd_checkpoint_keep(scene_path("n1"), stand, 0, &err), &err);
	must(hspmd_checkpoint_keep(scene_path("n1"), stand, 2, &err), &err);
	found_steps(scene_path("n1"), text, sizeof text);
	assert_string_equal(text, "51 53 54 ");
	must(hspmd_checkpoint_keep(scene_path("n1"), later, 1, &err), &err);
	assert_int_equal(found_steps(scene_path("n1"), text, sizeof text), 0);
	must(hspmd_checkpoint_keep(scene_path("nowhere"), later, 1, &err), &err);
	json_decref(scene_write_shard(0, 5, 6, 1, false, NULL));
	must(hspmd_checkpoint_prune(scene_path("n5"), 1, &err), &err);
	assert_int_equal(found_steps(scene_path("n5"), text, sizeof text), 1);
	assert_int_equal(found_steps(scene_path("nowhere"), text, sizeof text), 0);
	char *run = hspmd_checkpoint_run_folder(scene_root, "0123456789abcdef");
	assert_string_equal(run, scene_path("run-0123456789ab"));
	free(run);
	assert_true(hspmd_checkpoint_same_run("/c/run-ab/n0/step", "/c/run-ab/n1/step"));
	assert_true(hspmd_checkpoint_same_run("/c/n0/step", "/c/n1/step"));
	assert_false(hspmd_checkpoint_same_run("/c/run-ab/n0/step", "/c/run-abc/n0/step"));
	assert_false(hspmd_checkpoint_same_run("/c/run-ab/n0/step", "/c/n0/step"));
}

/* Locations that cannot be written are reported; one good location is sufficient. */
static void test_bad_places(void **state)
{
	(void)state;
	struct hspmd_device dev = { .ops = &scene_near_ops };
	struct hspmd_state_slice slices[SCENE_SLICES];
	struct hspmd_error err = { "" };
	size_t n = scene_slices(0, 0, 1, 3, slices);
	hspmd_remove_tree(scene_path("good"), NULL);
	int fd = open(scene_path("file"), O_CREAT | O_WRONLY, 0600);
	close(fd);
	const char *locations[] = { scene_path("file/sub"), scene_path("good") };
	struct hspmd_writer_job job = {
		.step = 3, .generation = 2, .file = "n0-0.safetensors", .node = "n0", .locations = locations, .location_count = 2
	};
	struct hspmd_writer *w = hspmd_writer_create(&dev, &err);
	json_t *report;
	assert_int_equal(hspmd_writer_result(w, 0, &report, &err), 0);
	must(hspmd_writer_begin(w, &job, slices, n, &err), &err);
	assert_int_equal(hspmd_writer_begin(w, &job, slices, n, &err), -1); /* still running: the copy is not done before release */
	assert_int_equal(hspmd_writer_result(w, 60, &report, &err), 1);
	assert_non_null(strstr(json_string_value(json_object_get(json_array_get(json_object_get(report, "places"), 0), "error")), "file"));
	assert_true(json_is_null(json_object_get(json_array_get(json_object_get(report, "places"), 1), "error")));
	json_decref(report);
	size_t bytes;
	assert_non_null(hspmd_writer_image(w, &bytes));
	job.location_count = 1;
	must(hspmd_writer_begin(w, &job, slices, n, &err), &err);
	assert_int_equal(hspmd_writer_result(w, 60, &report, &err), -1);
	assert_non_null(strstr(err.text, "file"));
	assert_null(hspmd_writer_image(w, &bytes));
	assert_int_equal(hspmd_writer_result(w, 0, &report, &err), 0);
	hspmd_writer_destroy(w);
	scene_free(slices, n);
}

/* Parts of many blocks and of odd lengths, copied by the thread alone and by the caller too: checks the image's contents and checksums. */
static void test_large_parts(void **state)
{
	(void)state;
	static const int64_t lengths[] = { (5 << 18) + 3, 7, (9 << 18) + 1, 1 << 18 };
	enum { PARTS = 4 };
	struct hspmd_device dev = { .ops = &scene_near_ops };
	struct hspmd_error err = { "" };
	struct hspmd_state_slice slices[PARTS];
	const char *locations[] = { scene_path("large") };
	struct hspmd_writer_job job = {
		.step = 3, .generation = 2, .file = "n0-0.safetensors", .node = "n0", .locations = locations, .location_count = 1
	};
	for (int i = 0; i < PARTS; i++) {
		float *data = malloc((size_t)lengths[i] * sizeof *data);
		assert_non_null(data);
		for (int64_t k = 0; k < lengths[i]; k++)
			data[k] = (float)(i + k);
		slices[i] = (struct hspmd_state_slice){ .tensor = (const char *[]){ "a", "b", "c", "d" }[i],
			                                .dtype = HSPMD_F32,
			                                .shape = { .rank = 1, .dim = { lengths[i] } },
			                                .box = { .rank = 1, .hi = { lengths[i] } },
			                                .data = data };
	}
	struct hspmd_writer *w = hspmd_writer_create(&dev, &err);
	for (int helped = 0; helped < 2; helped++) {
		json_t *report;
		size_t bytes, count;
		struct hspmd_extent *extents;
		must(hspmd_writer_begin(w, &job, slices, PARTS, &err), &err);
		if (helped)
			must(hspmd_writer_wait_copied(w, &err), &err);
		assert_int_equal(hspmd_writer_result(w, 60, &report, &err), 1);
		json_decref(report);
		const char *image = hspmd_writer_image(w, &bytes);
		assert_non_null(image);
		must(hspmd_image_check(image, bytes, &extents, &count, &err), &err);
		assert_int_equal(count, PARTS);
		for (int i = 0; i < PARTS; i++)
			assert_memory_equal(image + extents[i].offset, slices[i].data, (size_t)lengths[i] * sizeof(float));
		hspmd_extents_free(extents, count);
	}
	hspmd_writer_destroy(w);
	for (int i = 0; i < PARTS; i++)
		free((void *)(uintptr_t)slices[i].data);
}

/* Wrong manifests. */
static void test_manifest_checks(void **state)
{
	(void)state;
	struct hspmd_manifest *m = scene_write_all(0, 1, 60, NULL);
	static const struct {
		const char *key, *value, *says;
	} lies[] = {
		{ "lo", "[0, 0]", "differ in length" },
		{ "lo", "[5]", "empty or outside" },
		{ "hi", "[6]", "empty or outside" },
		{ "bytes", "24", "expected 20 bytes" },
		{ "offset", "99999999999", "outside of the file" },
		{ "offset", "4117", "overlap" },
		{ "xxh3", "\"00\"", "16 hexadecimal digits" },
		{ "xxh3", "\"000000000000000G\"", "16 hexadecimal digits" },
		{ "kind", "\"soul\"", "kind" },
		{ "dtype", "\"F12\"", "dtype" },
		{ "more", "1", "more" },
	};
	json_t *whole = hspmd_manifest_to_json(m);
	for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
		struct hspmd_error err = { "" };
		json_t *copy = json_deep_copy(whole);
		json_t *extent = json_array_get(json_object_get(json_array_get(json_object_get(copy, "shards"), 0), "extents"), 0);
		json_object_set_new(extent, lies[i].key, json_loads(lies[i].value, JSON_DECODE_ANY, NULL));
		assert_null(hspmd_manifest_from_json(copy, "lie", &err));
		if (!strstr(err.text, lies[i].says))
			print_error("%s\n", err.text);
		assert_non_null(strstr(err.text, lies[i].says));
		json_decref(copy);
	}
	static const char *const large[][2] = { { "shape", "[33554432, 16777216]" }, { "lo", "[0, 0]" }, { "hi", "[16777217, 16777216]" } };
	json_t *huge = json_deep_copy(whole),
	       *part = json_array_get(json_object_get(json_array_get(json_object_get(huge, "shards"), 0), "extents"), 0);
	struct hspmd_error err = { "" };
	for (int i = 0; i < 3; i++)
		json_object_set_new(part, large[i][0], json_loads(large[i][1], 0, NULL));
	assert_null(hspmd_manifest_from_json(huge, "lie", &err));
	assert_non_null(strstr(err.text, "too many elements"));
	json_decref(huge);
	static const char *const files[] = { "../x", "", ".", "a/b", "manifest.json" };
	for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
		json_t *copy = json_deep_copy(whole);
		json_object_set_new(json_array_get(json_object_get(copy, "shards"), 0), "file", json_string(files[i]));
		assert_null(hspmd_manifest_from_json(copy, "lie", NULL));
		json_decref(copy);
	}
	json_decref(whole);
	hspmd_manifest_destroy(m);
}

static void test_names(void **state)
{
	(void)state;
	int64_t step, generation;
	char name[64];
	assert_string_equal(hspmd_checkpoint_name(120, 3, name, sizeof name), "step-0000000120-g3");
	assert_true(hspmd_checkpoint_parse(name, &step, &generation) && step == 120 && generation == 3);
	static const char *const wrong[] = { "step-120-g3",        "step-0000000120-g3x", "step-0000000120",
		                             "step--000000120-g3", "manifest.json",       "" };
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
		assert_false(hspmd_checkpoint_parse(wrong[i], &step, &generation));
}

/* The tests marked below run with both formats of manifests. */
static int root_setup(void **state)
{
	scene_with_roots = true;
	return scene_setup(state);
}

static int root_teardown(void **state)
{
	scene_with_roots = false;
	return scene_teardown(state);
}
#define WITH_ROOTS(f)                                                                                                                      \
	{                                                                                                                                  \
#f " with roots", f, root_setup, root_teardown, NULL                                                                       \
	}

int main(void)
{
	setenv("HSPMD_LOG", "error", 1);
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_names),    IN_FOLDER(test_round_trip),      IN_FOLDER(test_read_beside),
		IN_FOLDER(test_reads_little),    IN_FOLDER(test_damage),          IN_FOLDER(test_peer_copy),
		IN_FOLDER(test_half_started),    IN_FOLDER(test_covered),         IN_FOLDER(test_choose),
		IN_FOLDER(test_list_and_prune),  IN_FOLDER(test_bad_places),      IN_FOLDER(test_large_parts),
		IN_FOLDER(test_manifest_checks), WITH_ROOTS(test_round_trip),     WITH_ROOTS(test_reads_little),
		WITH_ROOTS(test_damage),         WITH_ROOTS(test_list_and_prune),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
