/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints: what was written by some workers is read by others, slice by slice, to the bit; damage is found and the next copy used; nothing partial is ever
 * taken for whole; old ones go only when they may. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/durable.h"
#include "tests/unit/state_scene.h"

/* ---- a device, near or far */

#define FAR ((uintptr_t)1 << 56)

static int far_to_host(struct hspmd_device *d, void *host, const void *src, size_t bytes, struct hspmd_error *err)
{
	(void)d;
	(void)err;
	memcpy(host, (const void *)((uintptr_t)src - FAR), bytes);
	return 0;
}

static const struct hspmd_device_ops near_ops = { .name = "near", .host_memory = true };
static const struct hspmd_device_ops far_ops = { .name = "far", .to_host = far_to_host };

static char root[64];

static int setup(void **state)
{
	(void)state;
	snprintf(root, sizeof root, "/tmp/hspmd-checkpoint-XXXXXX");
	return mkdtemp(root) ? 0 : -1;
}

static int teardown(void **state)
{
	(void)state;
	return hspmd_remove_tree(root, NULL);
}

static const char *path(const char *fmt, ...)
{
	static char texts[8][256];
	static int next;
	char rest[128], *buf = texts[next++ % 8];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(rest, sizeof rest, fmt, ap);
	va_end(ap);
	snprintf(buf, sizeof texts[0], "%s/%s", root, rest);
	return buf;
}

static void must(int rv, const struct hspmd_error *err)
{
	if (rv)
		print_error("%s\n", err->text);
	assert_int_equal(rv, 0);
}

/* One worker's shard, into its node's place (and `more`, when not NULL); the report's shard. */
static json_t *write_shard(int along, int worker, int workers, int64_t step, bool far, const char *more)
{
	struct hspmd_device dev = { .ops = far ? &far_ops : &near_ops };
	struct hspmd_state_slice slices[SCENE_SLICES];
	struct hspmd_error err = { "" };
	char file[40], node[16];
	size_t n = scene_slices(along, worker, workers, step, slices);
	snprintf(node, sizeof node, "n%d", worker);
	snprintf(file, sizeof file, "n%d-0.safetensors", worker);
	const char *places[] = { path("%s", node), more };
	struct hspmd_writer_job job = { .step = step, .generation = 1, .file = file, .node = node, .places = places, .place_count = more ? 2 : 1 };
	for (size_t i = 0; far && i < n; i++)
		slices[i].data = (const char *)slices[i].data + FAR;
	struct hspmd_writer *w = hspmd_writer_create(&dev, &err);
	assert_non_null(w);
	must(hspmd_writer_begin(w, &job, slices, n, &err), &err);
	must(hspmd_writer_release(w, &err), &err);
	/* From here on training may change the state. */
	for (size_t i = 0; i < n; i++) {
		slices[i].data = (const void *)((uintptr_t)slices[i].data - (far ? FAR : 0));
		memset((void *)(uintptr_t)slices[i].data, 0xee, (size_t)hspmd_box_elements(&slices[i].box) * 4);
	}
	json_t *report;
	int rv = hspmd_writer_result(w, 60, &report, &err);
	assert_int_equal(rv, 1);
	json_t *shard = json_incref(json_object_get(report, "shard"));
	json_decref(report);
	hspmd_writer_destroy(w);
	scene_free(slices, n);
	return shard;
}

static struct hspmd_manifest *write_all(int along, int workers, int64_t step, const char *more)
{
	json_t *shards[8], *job = json_pack("{s:i}", "seed", 7);
	struct hspmd_error err = { "" };
	for (int i = 0; i < workers; i++)
		shards[i] = write_shard(along, i, workers, step, i % 2, more);
	struct hspmd_manifest *m = hspmd_manifest_assemble(step, 1, job, shards, (size_t)workers, &err);
	must(!m, &err);
	for (int i = 0; i < workers; i++) {
		json_decref(shards[i]);
		must(hspmd_checkpoint_commit(path("n%d", i), m, &err), &err);
	}
	json_decref(job);
	return m;
}

/* Needs of a worker under a plan, filled from these folders, must be what they were; the number of gaps. */
static size_t read_worker(const struct hspmd_manifest *m, const char *const *folders, int count, int along, int worker, int workers)
{
	struct hspmd_state_need needs[SCENE_SLICES];
	struct hspmd_state_gap *gaps;
	struct hspmd_error err = { "" };
	uint64_t bytes[8];
	size_t n = 0, gap_count;
	struct hspmd_reader *r = hspmd_reader_create(m, folders, count, &err);
	assert_non_null(r);
	for (int t = 0; t < SCENE_TENSORS; t++)
		for (int k = 0; k < HSPMD_STATE_KIND_COUNT; k++) {
			struct hspmd_box box;
			if (!scene_box(t, along, worker, workers, &box))
				continue;
			void *data = calloc((size_t)hspmd_box_elements(&box), 4);
			needs[n++] = (struct hspmd_state_need){ scene_tensors[t].name, (enum hspmd_state_kind)k, HSPMD_F32, box, data };
		}
	must(hspmd_reader_load(r, needs, n, &gaps, &gap_count, bytes, &err), &err);
	n = 0;
	for (int t = 0; t < SCENE_TENSORS; t++)
		for (int k = 0; k < HSPMD_STATE_KIND_COUNT; k++) {
			struct hspmd_box box;
			if (!scene_box(t, along, worker, workers, &box))
				continue;
			if (!gap_count)
				assert_int_equal(scene_visit(t, k, m->step, &box, needs[n].data, false), 0);
			free(needs[n++].data);
		}
	free(gaps);
	hspmd_reader_destroy(r);
	return gap_count;
}

static const char *folder(const struct hspmd_manifest *m, const char *node)
{
	char name[64];
	return path("%s/%s", node, hspmd_checkpoint_name(m->step, m->generation, name, sizeof name));
}

static void test_round_trip(void **state)
{
	(void)state;
	for (int along = 0; along < 3; along++) {
		int64_t step = 10 + along;
		struct hspmd_manifest *m = write_all(along, 3, step, NULL);
		struct hspmd_error err;
		struct hspmd_manifest *again = hspmd_manifest_read(path("n1/step-%010d-g1/manifest.json", (int)step), &err);
		assert_non_null(again);
		assert_int_equal(again->extent_count, m->extent_count);
		assert_int_equal(json_integer_value(json_object_get(again->job, "seed")), 7);
		const char *folders[] = { folder(m, "n0"), folder(m, "n1"), folder(m, "n2") };
		for (int other = 0; other < 3; other++)
			for (int workers = 1; workers < 5; workers++)
				for (int w = 0; w < workers; w++)
					assert_int_equal(read_worker(again, folders, 3, other, w, workers), 0);
		/* With one node's folder gone, exactly its parts are missing. */
		assert_true(read_worker(again, folders, 2, along, 2, 3) > 0);
		assert_int_equal(read_worker(again, folders, 2, along, 0, 3), 0);
		hspmd_manifest_destroy(again);
		hspmd_manifest_destroy(m);
	}
}

/* Only the blocks that are needed are read. */
static void test_reads_little(void **state)
{
	(void)state;
	struct hspmd_manifest *m = write_all(0, 1, 5, NULL);
	const char *folders[] = { folder(m, "n0") };
	struct hspmd_error err;
	struct hspmd_reader *r = hspmd_reader_create(m, folders, 1, &err);
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
	struct hspmd_manifest *m = write_all(0, 2, 20, path("shared"));
	const char *shared = folder(m, "shared"), *own = folder(m, "n0");
	const char *both[] = { own, shared }, *one[] = { own };
	char file[512];
	struct hspmd_error err;
	int bad;
	snprintf(file, sizeof file, "%s/n0-0.safetensors", own);
	/* A digit of a sum in the header. */
	size_t bytes;
	char *content = hspmd_read_file(file, 1 << 30, &bytes, &err);
	off_t sum_at = strstr(content + 8, "blocks") - content + 12;
	free(content);
	for (int kind = 0; kind < 4; kind++) {
		struct hspmd_reader *r = hspmd_reader_create(m, both, 2, &err);
		must(hspmd_reader_verify(r, &bad, &err), &err);
		hspmd_reader_destroy(r);
		const struct hspmd_extent *e = &m->extents[kind == 1 ? m->shards[0].extent_count - 1 : 0];
		off_t at = kind == 0 ? (off_t)e->offset + 3 : kind == 1 ? (off_t)(e->offset + e->bytes - 1) : sum_at;
		if (kind < 3)
			flip(file, at);
		else
			assert_int_equal(truncate(file, 5000), 0);
		/* The other copy is used, and without it the damage shows as a gap, never as a value. */
		assert_int_equal(read_worker(m, both, 2, 0, 0, 2), 0);
		assert_true(read_worker(m, one, 1, 0, 0, 2) > 0);
		r = hspmd_reader_create(m, both, 2, &err);
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
	struct hspmd_manifest *m = write_all(0, 2, 30, NULL);
	struct hspmd_error err = { "" };
	size_t bytes;
	char source[512];
	snprintf(source, sizeof source, "%s/n1-0.safetensors", folder(m, "n1"));
	char *image = hspmd_read_file(source, 1 << 30, &bytes, &err);
	assert_non_null(image);
	json_t *shard, *none;
	must(hspmd_shard_store(path("n0"), "n0", 30, 1, "n1-0.safetensors", image, bytes, &shard, &err), &err);
	const char *folders[] = { folder(m, "n0") };
	assert_int_equal(read_worker(m, folders, 1, 1, 0, 1), 0);
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
	assert_int_equal(hspmd_shard_store(path("n0"), "n0", 30, 1, "x.safetensors", image, bytes, &none, &err), -1);
	assert_non_null(strstr(err.text, "checksum"));
	for (size_t cut = 0; cut < bytes; cut += 1 + bytes / 50)
		assert_int_equal(hspmd_shard_store(path("n0"), "n0", 30, 1, "x.safetensors", image, cut, &none, &err), -1);
	assert_int_equal(access(path("n0/step-0000000030-g1/x.safetensors"), F_OK), -1);
	json_decref(own);
	json_decref(shard);
	free(image);
	hspmd_manifest_destroy(m);
}

/* ---- copies over a transport: workers 0 and 1 on node 0, 2 on node 1, 3 on node 2 */

enum { CREW = 4 };
static const int crew_node[CREW] = { 0, 0, 1, 2 };

struct crew {
	atomic_int abort;
	struct hspmd_transport *t[CREW];
	struct hspmd_writer *w[CREW];
	struct hspmd_copies copies[CREW];
	int to[CREW][CREW], from[CREW][CREW];
	struct hspmd_state_slice slices[CREW][SCENE_SLICES];
	size_t slice_count[CREW];
	json_t *report[CREW];
	char place[CREW][64], file[CREW][40], node[CREW][8];
	const char *places[CREW][1];
	struct hspmd_device dev;
};

static void spread_crew(struct crew *c, int replicas)
{
	struct hspmd_copies_worker w[CREW];
	struct hspmd_error err;
	int to[CREW * CREW];
	for (int i = 0; i < CREW; i++)
		w[i] = (struct hspmd_copies_worker){ .node = crew_node[i], .bytes = 10, .copies = replicas };
	must(hspmd_copies_spread(w, CREW, 3, CREW, to, &err), &err);
	for (int i = 0; i < CREW; i++)
		for (int k = 0; k < CREW && to[i * CREW + k] >= 0; k++)
			c->to[i][c->copies[i].to_count++] = to[i * CREW + k];
}

/* Everybody writes and copies; `spoil` (may be NULL) changes the transport of worker 2 first. */
static struct crew *run_crew(int64_t step, int replicas, bool call_off, const struct hspmd_transport_ops *spoil)
{
	struct crew *c = calloc(1, sizeof *c);
	struct hspmd_error err = { "" };
	struct hspmd_address a[CREW];
	c->dev.ops = &near_ops;
	for (int i = 0; i < CREW; i++) {
		struct hspmd_transport_options o = { .rank = i, .size = CREW, .timeout_s = 60, .abort = &c->abort };
		must(hspmd_transport_memory.open(&o, &c->t[i], &err), &err);
		must(hspmd_transport_memory.address(c->t[i], &a[i], &err), &err);
	}
	for (int i = 0; i < CREW; i++) {
		must(hspmd_transport_memory.connect(c->t[i], a, &err), &err);
		c->copies[i] = (struct hspmd_copies){ .transport = c->t[i], .to = c->to[i], .from = c->from[i], .place = c->place[i] };
	}
	spread_crew(c, replicas);
	for (int i = 0; i < CREW; i++) {
		free(a[i].data);
		for (int k = 0; k < c->copies[i].to_count; k++) {
			struct hspmd_copies *peer = &c->copies[c->to[i][k]];
			c->from[c->to[i][k]][peer->from_count++] = i;
		}
	}
	if (spoil)
		c->t[2]->ops = spoil;
	if (call_off)
		atomic_store(&c->abort, 1);
	for (int i = 0; i < CREW; i++) {
		snprintf(c->node[i], sizeof c->node[i], "n%d", crew_node[i]);
		snprintf(c->place[i], sizeof c->place[i], "%.50s/%s", root, c->node[i]);
		snprintf(c->file[i], sizeof c->file[i], "w%d.safetensors", i);
		c->places[i][0] = c->place[i];
		c->slice_count[i] = scene_slices(0, i, CREW, step, c->slices[i]);
		struct hspmd_writer_job job = { .step = step, .generation = 1, .file = c->file[i], .node = c->node[i], .places = c->places[i], .place_count = 1,
						.copies = &c->copies[i] };
		c->w[i] = hspmd_writer_create(&c->dev, &err);
		must(hspmd_writer_begin(c->w[i], &job, c->slices[i], c->slice_count[i], &err), &err);
	}
	for (int i = 0; i < CREW; i++) {
		assert_int_equal(hspmd_writer_result(c->w[i], 60, &c->report[i], &err), 1);
		hspmd_writer_detach(c->w[i]);
	}
	return c;
}

static void end_crew(struct crew *c)
{
	for (int i = 0; i < CREW; i++) {
		hspmd_writer_destroy(c->w[i]);
		hspmd_transport_memory.close(c->t[i]);
		scene_free(c->slices[i], c->slice_count[i]);
		json_decref(c->report[i]);
	}
	free(c);
}

static json_t *crew_copies(const struct crew *c, int worker, const char *key)
{
	return json_object_get(json_object_get(c->report[worker], "copies"), key);
}

static int spread(const int *node, const int *bytes, int workers, int nodes, int copies, const int *elsewhere, int *to)
{
	struct hspmd_copies_worker w[8];
	struct hspmd_error err;
	int found = 0;
	for (int i = 0; i < workers; i++)
		w[i] = (struct hspmd_copies_worker){ .node = node[i], .bytes = bytes ? (uint64_t)bytes[i] : 1, .copies = copies,
						     .elsewhere = elsewhere ? &elsewhere[i] : NULL, .elsewhere_count = elsewhere ? 1 : 0 };
	must(hspmd_copies_spread(w, workers, nodes, 3, to, &err), &err);
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
	assert_int_equal(spread(crew_node, NULL, CREW, 3, 3, NULL, to), 8); /* there are two other nodes for each */
	/* Eight workers on two nodes: each keeps exactly one other's. */
	const int eight[8] = { 0, 0, 0, 0, 1, 1, 1, 1 };
	int kept[8] = { 0 };
	assert_int_equal(spread(eight, NULL, 8, 2, 3, NULL, to), 8);
	for (int i = 0; i < 8; i++)
		kept[to[3 * i]]++;
	for (int i = 0; i < 8; i++)
		assert_int_equal(kept[i], 1);
	assert_int_equal(spread(eight, NULL, 4, 1, 1, NULL, to), 0);
	/* Unequal sizes: whoever keeps the large one keeps nothing else. */
	const int four[4] = { 0, 1, 2, 3 }, sizes[4] = { 90, 30, 20, 20 };
	uint64_t load[4] = { 0 }, most = 0;
	assert_int_equal(spread(four, sizes, 4, 4, 1, NULL, to), 4);
	for (int i = 0; i < 4; i++)
		load[to[3 * i]] += (uint64_t)sizes[i];
	for (int i = 0; i < 4; i++)
		most = load[i] > most ? load[i] : most;
	assert_int_equal(most, 90);
	/* Where it lies anyway no copy goes. */
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
	json_t *shards[2 * CREW], *job = json_object();
	size_t n = 0;
	for (int i = 0; i < CREW; i++) {
		assert_true(json_is_null(crew_copies(c, i, "error")));
		shards[n++] = json_object_get(c->report[i], "shard");
		for (size_t k = 0; k < json_array_size(crew_copies(c, i, "shards")); k++)
			shards[n++] = json_array_get(crew_copies(c, i, "shards"), k);
	}
	assert_int_equal(n, 2 * CREW);
	struct hspmd_manifest *m = hspmd_manifest_assemble(70, 1, job, shards, n, &err);
	must(!m, &err);
	assert_int_equal(m->shard_count, CREW);
	for (int s = 0; s < CREW; s++)
		assert_int_equal(m->shards[s].node_count, 2);
	/* Any one node may go. */
	for (int gone = 0; gone < 3; gone++) {
		const char *folders[2];
		char nodes[2][8];
		for (int k = 0, i = 0; i < 3; i++)
			if (i != gone) {
				snprintf(nodes[k], sizeof nodes[k], "n%d", i);
				folders[k] = folder(m, nodes[k]);
				k++;
			}
		assert_int_equal(read_worker(m, folders, 2, 2, 0, 1), 0);
	}
	hspmd_manifest_destroy(m);
	json_decref(job);
	end_crew(c);
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
	const char *places[2] = { path("n0"), path("n1") };
	struct hspmd_copies copies[2];
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
		struct hspmd_state_slice slice = { "big", HSPMD_STATE_PARAM, HSPMD_F32, shape, hspmd_box_whole(&shape), data[i] };
		copies[i] = (struct hspmd_copies){ t[i], &other[i], &other[i], 1, 1, places[i] };
		struct hspmd_writer_job job = { .step = 80, .generation = 1, .file = files[i], .node = nodes[i], .places = &places[i], .place_count = 1,
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
		char *own = hspmd_read_file(path("%s/step-0000000080-g1/%s", nodes[i], files[i]), 1 << 30, &bytes, &err);
		char *copy = hspmd_read_file(path("%s/step-0000000080-g1/%s", nodes[1 - i], files[i]), 1 << 30, &copied, &err);
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

static int damaging_send(struct hspmd_transport *t, int to, uint64_t tag, const void *data, size_t bytes, struct hspmd_request **r, struct hspmd_error *err)
{
	static char piece[16 << 20];
	if (bytes < 100000)
		return hspmd_transport_memory.send(t, to, tag, data, bytes, r, err);
	memcpy(piece, data, bytes);
	piece[bytes / 2] ^= 1;
	return hspmd_transport_memory.send(t, to, tag, piece, bytes, r, err);
}

/* Under a tag that nobody waits for. */
static int losing_send(struct hspmd_transport *t, int to, uint64_t tag, const void *data, size_t bytes, struct hspmd_request **r, struct hspmd_error *err)
{
	return hspmd_transport_memory.send(t, to, tag + 1000, data, bytes, r, err);
}

/* What fails is told, is no copy, and costs the checkpoint nothing. */
static void test_copies_fail(void **state)
{
	(void)state;
	struct hspmd_transport_ops spoil = hspmd_transport_memory;
	spoil.send = losing_send;
	struct crew *c = run_crew(71, 1, true, &spoil);
	/* Who keeps worker 2's copy would wait for it; the others may have had theirs before they looked at the flag. */
	int keeper = c->to[2][0];
	assert_true(json_array_size(crew_copies(c, keeper, "shards")) < (size_t)c->copies[keeper].from_count);
	assert_non_null(strstr(json_string_value(crew_copies(c, keeper, "error")), "called off"));
	for (int i = 0; i < CREW; i++) {
		assert_non_null(json_object_get(c->report[i], "shard"));
		if (json_array_size(crew_copies(c, i, "shards")) < (size_t)c->copies[i].from_count)
			assert_non_null(strstr(json_string_value(crew_copies(c, i, "error")), "called off"));
	}
	end_crew(c);
	spoil.send = damaging_send;
	c = run_crew(72, 1, false, &spoil);
	keeper = c->to[2][0];
	assert_int_equal(json_array_size(crew_copies(c, keeper, "shards")), c->copies[keeper].from_count - 1);
	assert_non_null(strstr(json_string_value(crew_copies(c, keeper, "error")), "w2.safetensors arrived damaged"));
	assert_int_equal(access(path("n%d/step-0000000072-g1/w2.safetensors", crew_node[keeper]), F_OK), -1);
	for (int i = 0; i < CREW; i++)
		assert_int_equal(json_array_size(crew_copies(c, i, "shards")), c->copies[i].from_count - (i == keeper));
	end_crew(c);
}

static bool not_n1(void *context, int number, const struct hspmd_shard *s)
{
	(void)context;
	return number != 1 || strcmp(s->file, "n1-0.safetensors");
}

static void test_choose(void **state)
{
	(void)state;
	struct hspmd_manifest *m[] = { write_all(0, 2, 40, NULL), write_all(0, 2, 42, NULL), write_all(0, 2, 41, NULL) };
	const struct hspmd_manifest *const list[] = { m[0], m[1], m[2] };
	struct hspmd_error err = { "" };
	assert_int_equal(hspmd_manifest_choose(list, 3, NULL, NULL, &err), 1);
	assert_int_equal(hspmd_manifest_choose(list, 3, not_n1, NULL, &err), 2);
	assert_int_equal(hspmd_manifest_choose(list, 0, NULL, NULL, &err), -1);
	assert_int_equal(hspmd_manifest_covered(m[1], 1, not_n1, NULL, &err), -1);
	assert_string_equal(err.text, "step 42: param of b [2:5] is in n1-0.safetensors, which cannot be read");
	/* A manifest is never made of less than all. */
	json_t *whole = hspmd_manifest_to_json(m[0]), *one = json_array_get(json_object_get(whole, "shards"), 0);
	assert_null(hspmd_manifest_assemble(40, 1, m[0]->job, &one, 1, &err));
	assert_non_null(strstr(err.text, "is in no shard"));
	json_decref(whole);
	for (int i = 0; i < 3; i++)
		hspmd_manifest_destroy(m[i]);
}

static int found_steps(const char *where, char *text, size_t size)
{
	struct hspmd_found *found;
	struct hspmd_error err;
	int n = hspmd_checkpoint_list(where, &found, &err);
	size_t used = 0;
	text[0] = '\0';
	for (int i = 0; i < n; i++)
		used += (size_t)snprintf(text + used, size - used, "%lld%s ", found[i].manifest ? (long long)found[i].manifest->step : -1LL,
					 found[i].error ? "!" : "");
	hspmd_found_free(found, n > 0 ? n : 0);
	return n;
}

static void test_list_and_prune(void **state)
{
	(void)state;
	char text[256];
	struct hspmd_error err;
	for (int step = 50; step < 55; step++)
		hspmd_manifest_destroy(write_all(0, 2, step, NULL));
	json_decref(write_shard(0, 0, 2, 52, false, NULL)); /* once more, over what is there */
	json_decref(write_shard(0, 0, 2, 1, false, NULL));  /* begun and never committed, long ago */
	json_decref(write_shard(0, 0, 2, 99, false, NULL)); /* being written now */
	assert_int_equal(found_steps(path("n0"), text, sizeof text), 7);
	assert_string_equal(text, "-1! 50 51 52 53 54 -1! ");
	assert_int_equal(found_steps(root, text, sizeof text), 12);
	must(hspmd_checkpoint_prune(path("n0"), 2, &err), &err);
	found_steps(path("n0"), text, sizeof text);
	assert_string_equal(text, "53 54 -1! ");
	found_steps(path("n1"), text, sizeof text);
	assert_string_equal(text, "50 51 52 53 54 ");
	/* keep 0 keeps the last all the same, and a place without any manifest loses nothing. */
	must(hspmd_checkpoint_prune(path("n0"), 0, &err), &err);
	found_steps(path("n0"), text, sizeof text);
	assert_string_equal(text, "54 -1! ");
	json_decref(write_shard(0, 5, 6, 1, false, NULL));
	must(hspmd_checkpoint_prune(path("n5"), 1, &err), &err);
	assert_int_equal(found_steps(path("n5"), text, sizeof text), 1);
	assert_int_equal(found_steps(path("nowhere"), text, sizeof text), 0);
	char *run = hspmd_checkpoint_run_folder(root, "0123456789abcdef");
	assert_string_equal(run, path("run-0123456789ab"));
	free(run);
	assert_true(hspmd_checkpoint_same_run("/c/run-ab/n0/step", "/c/run-ab/n1/step"));
	assert_true(hspmd_checkpoint_same_run("/c/n0/step", "/c/n1/step"));
	assert_false(hspmd_checkpoint_same_run("/c/run-ab/n0/step", "/c/run-abc/n0/step"));
	assert_false(hspmd_checkpoint_same_run("/c/run-ab/n0/step", "/c/n0/step"));
}

/* Places that cannot be written are told; one good place is enough. */
static void test_bad_places(void **state)
{
	(void)state;
	struct hspmd_device dev = { .ops = &near_ops };
	struct hspmd_state_slice slices[SCENE_SLICES];
	struct hspmd_error err = { "" };
	size_t n = scene_slices(0, 0, 1, 3, slices);
	hspmd_remove_tree(path("good"), NULL);
	int fd = open(path("file"), O_CREAT | O_WRONLY, 0600);
	close(fd);
	const char *places[] = { path("file/sub"), path("good") };
	struct hspmd_writer_job job = { .step = 3, .generation = 2, .file = "n0-0.safetensors", .node = "n0", .places = places, .place_count = 2 };
	struct hspmd_writer *w = hspmd_writer_create(&dev, &err);
	json_t *report;
	assert_int_equal(hspmd_writer_result(w, 0, &report, &err), 0);
	must(hspmd_writer_begin(w, &job, slices, n, &err), &err);
	assert_int_equal(hspmd_writer_begin(w, &job, slices, n, &err), -1); /* still under way: the copy is not done before release */
	assert_int_equal(hspmd_writer_result(w, 60, &report, &err), 1);
	assert_non_null(strstr(json_string_value(json_object_get(json_array_get(json_object_get(report, "places"), 0), "error")), "file"));
	assert_true(json_is_null(json_object_get(json_array_get(json_object_get(report, "places"), 1), "error")));
	json_decref(report);
	size_t bytes;
	assert_non_null(hspmd_writer_image(w, &bytes));
	job.place_count = 1;
	must(hspmd_writer_begin(w, &job, slices, n, &err), &err);
	assert_int_equal(hspmd_writer_result(w, 60, &report, &err), -1);
	assert_non_null(strstr(err.text, "file"));
	assert_null(hspmd_writer_image(w, &bytes));
	assert_int_equal(hspmd_writer_result(w, 0, &report, &err), 0);
	hspmd_writer_destroy(w);
	scene_free(slices, n);
}

/* Manifests that lie. */
static void test_manifest_checks(void **state)
{
	(void)state;
	struct hspmd_manifest *m = write_all(0, 1, 60, NULL);
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
	static const char *const wrong[] = { "step-120-g3", "step-0000000120-g3x", "step-0000000120", "step--000000120-g3", "manifest.json", "" };
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
		assert_false(hspmd_checkpoint_parse(wrong[i], &step, &generation));
}

int main(void)
{
	setenv("HSPMD_LOG", "error", 1);
#define IN_FOLDER(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_names),
		IN_FOLDER(test_round_trip),
		IN_FOLDER(test_reads_little),
		IN_FOLDER(test_damage),
		IN_FOLDER(test_peer_copy),
		IN_FOLDER(test_choose),
		cmocka_unit_test(test_copies_spread),
		IN_FOLDER(test_copies),
		IN_FOLDER(test_copies_large),
		IN_FOLDER(test_copies_fail),
		IN_FOLDER(test_list_and_prune),
		IN_FOLDER(test_bad_places),
		IN_FOLDER(test_manifest_checks),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
