/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/state_crew.h"

const int crew_node[CREW] = { 0, 0, 1, 2 };
const char *crew_set;

static const struct hspmd_device_ops near_ops = { .name = "near", .host_memory = true };

static void spread_crew(struct crew *c, int replicas)
{
	struct hspmd_copy_worker w[CREW];
	struct hspmd_error err;
	int to[CREW * CREW];
	struct hspmd_copies_part part[CREW];
	int own[CREW];
	struct hspmd_node nodes[3] = { { 0 } };
	struct hspmd_cluster cluster = { .node_count = 3, .nodes = nodes };
	struct hspmd_losses losses;
	for (int i = 0; i < CREW; i++) {
		own[i] = crew_node[i];
		part[i] = (struct hspmd_copies_part){ &own[i], 1 };
		w[i] = (struct hspmd_copy_worker){ .node = crew_node[i], .bytes = 10, .parts = &part[i], .part_count = 1 };
	}
	must(hspmd_losses_make(&cluster, NULL, replicas, 3, &losses, &err), &err);
	must(hspmd_copies_assign(&losses, w, CREW, CREW, to, &err), &err);
	hspmd_losses_free(&losses);
	for (int i = 0; i < CREW; i++)
		for (int k = 0; k < CREW && to[i * CREW + k] >= 0; k++)
			c->to[i][c->copies[i].to_count++] = to[i * CREW + k];
}

struct crew *run_crew(int64_t step, int replicas, bool call_off, const struct hspmd_transport_ops *spoil)
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
		c->copies[i] =
		        (struct hspmd_copy_routes){ .transport = c->t[i], .to = c->to[i], .from = c->from[i], .location = c->location[i] };
	}
	spread_crew(c, replicas);
	for (int i = 0; i < CREW; i++) {
		free(a[i].data);
		for (int k = 0; k < c->copies[i].to_count; k++) {
			struct hspmd_copy_routes *peer = &c->copies[c->to[i][k]];
			c->from[c->to[i][k]][peer->from_count++] = i;
		}
	}
	if (spoil)
		c->t[2]->ops = spoil;
	if (call_off)
		atomic_store(&c->abort, 1);
	for (int i = 0; i < CREW; i++) {
		snprintf(c->node[i], sizeof c->node[i], "n%d", crew_node[i]);
		snprintf(c->location[i], sizeof c->location[i], "%.50s/n%d", scene_root, crew_node[i]);
		snprintf(c->file[i], sizeof c->file[i], "w%d.safetensors", i);
		c->locations[i][0] = c->location[i];
		c->slice_count[i] = scene_slices(0, i, CREW, step, c->slices[i]);
		struct hspmd_writer_job job = { .step = step,
			                        .generation = 1,
			                        .file = c->file[i],
			                        .node = c->node[i],
			                        .locations = c->locations[i],
			                        .location_count = 1,
			                        .copies = &c->copies[i],
			                        .set = crew_set };
		c->w[i] = hspmd_writer_create(&c->dev, &err);
		must(hspmd_writer_begin(c->w[i], &job, c->slices[i], c->slice_count[i], &err), &err);
	}
	for (int i = 0; i < CREW; i++) {
		assert_int_equal(hspmd_writer_result(c->w[i], 60, &c->report[i], &err), 1);
		hspmd_writer_detach(c->w[i]);
	}
	return c;
}

void end_crew(struct crew *c)
{
	for (int i = 0; i < CREW; i++) {
		hspmd_writer_destroy(c->w[i]);
		hspmd_transport_memory.close(c->t[i]);
		scene_free(c->slices[i], c->slice_count[i]);
		json_decref(c->report[i]);
	}
	free(c);
}

json_t *crew_copies(const struct crew *c, int worker, const char *key)
{
	return json_object_get(json_object_get(c->report[worker], "copies"), key);
}

/* Each has what no other has. */
static int all_there(void *context, const struct hspmd_manifest *root, const bool *there, struct hspmd_error *err)
{
	(void)context;
	for (int i = 0; i < root->shard_count; i++)
		if (!there[i])
			return hspmd_fail(err, "%s is missing", root->shards[i].file);
	return root->shard_count == CREW ? 0 : hspmd_fail(err, "a shard is missing");
}

struct hspmd_manifest *crew_manifest(const struct crew *c, int64_t step, struct hspmd_error *err)
{
	json_t *shards[CREW + CREW * CREW], *job = json_object();
	size_t n = 0;
	for (int i = 0; i < CREW; i++) {
		json_t *own = json_object_get(c->report[i], "shard"), *kept = crew_copies(c, i, "shards");
		if (json_is_object(own))
			shards[n++] = own;
		for (size_t k = 0; k < json_array_size(kept); k++)
			shards[n++] = json_array_get(kept, k);
	}
	const struct hspmd_root_check check = { all_there, NULL };
	struct hspmd_manifest *m = crew_set ? hspmd_root_assemble(step, 1, job, shards, n, &check, err)
	                                    : hspmd_manifest_assemble(step, 1, job, shards, n, err);
	json_decref(job);
	return m;
}
