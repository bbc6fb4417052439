/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/state_shards.h"

static int far_to_host(struct hspmd_device *d, void *host, const void *src, size_t bytes, struct hspmd_error *err)
{
	(void)d;
	(void)err;
	memcpy(host, (const void *)((uintptr_t)src - SCENE_FAR), bytes);
	return 0;
}

const struct hspmd_device_ops scene_near_ops = { .name = "near", .host_memory = true };
static const struct hspmd_device_ops far_ops = { .name = "far", .to_host = far_to_host };

struct scene_lane scene_lane;

static int lane_synchronise(struct hspmd_device *d, struct hspmd_error *err)
{
	(void)d;
	(void)err;
	scene_lane.synchronised++;
	return 0;
}

static int lane_to_host(struct hspmd_device *d, void *host, const void *src, size_t bytes, struct hspmd_error *err)
{
	if (!pthread_equal(pthread_self(), scene_lane.trains))
		return hspmd_fail(err, "the device's own stream was used by another thread");
	return scene_lane.fails ? hspmd_fail(err, "the device is gone") : far_to_host(d, host, src, bytes, err);
}

static int lane_to_host_concurrent(struct hspmd_device *d, void *host, const void *src, size_t bytes, struct hspmd_error *err)
{
	if (pthread_equal(pthread_self(), scene_lane.trains) || !scene_lane.synchronised)
		return hspmd_fail(err, "read in the wrong thread, or too early");
	scene_lane.beside++;
	return scene_lane.fails ? hspmd_fail(err, "the device is gone") : far_to_host(d, host, src, bytes, err);
}

const struct hspmd_device_ops scene_lane_ops = {
	.name = "far, with a lane",
	.to_host = lane_to_host,
	.to_host_concurrent = lane_to_host_concurrent,
	.synchronise = lane_synchronise,
};

json_t *scene_write_shard(int along, int worker, int workers, int64_t step, bool far, const char *more)
{
	struct hspmd_device dev = { .ops = !far ? &scene_near_ops : step % 2 ? &scene_lane_ops : &far_ops };
	struct hspmd_state_slice slices[SCENE_SLICES];
	struct hspmd_error err = { "" };
	char file[40], node[16];
	size_t n = scene_slices(along, worker, workers, step, slices);
	snprintf(node, sizeof node, "n%d", worker);
	snprintf(file, sizeof file, "n%d-0.safetensors", worker);
	const char *locations[] = { scene_path("%s", node), more };
	struct hspmd_writer_job job = {
		.step = step, .generation = 1, .file = file, .node = node, .locations = locations, .location_count = more ? 2 : 1
	};
	for (size_t i = 0; far && i < n; i++)
		slices[i].data = (const char *)slices[i].data + SCENE_FAR;
	struct hspmd_writer *w = hspmd_writer_create(&dev, &err);
	assert_non_null(w);
	scene_lane.trains = pthread_self();
	scene_lane.synchronised = 0;
	must(hspmd_writer_begin(w, &job, slices, n, &err), &err);
	must(hspmd_writer_wait_copied(w, &err), &err);
	/* From here on training may change the state. */
	for (size_t i = 0; i < n; i++) {
		slices[i].data = (const void *)((uintptr_t)slices[i].data - (far ? SCENE_FAR : 0));
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

bool scene_with_roots;

struct hspmd_manifest *scene_write_all(int along, int workers, int64_t step, const char *more)
{
	json_t *shards[8], *job = json_pack("{s:i}", "seed", 7);
	struct hspmd_error err = { "" };
	for (int i = 0; i < workers; i++)
		shards[i] = scene_write_shard(along, i, workers, step, i % 2, more);
	struct hspmd_manifest *m = hspmd_manifest_assemble(step, 1, job, shards, (size_t)workers, &err);
	must(!m, &err);
	if (scene_with_roots)
		m = scene_as_root(m, workers);
	for (int i = 0; i < workers; i++) {
		json_decref(shards[i]);
		must(hspmd_checkpoint_commit(scene_path("n%d", i), m, &err), &err);
	}
	json_decref(job);
	return m;
}
