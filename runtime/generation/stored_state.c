/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/generation/stored_state.h"

#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "runtime/generation/generation_connect.h"

static int out_of_memory(struct hspmd_error *err)
{
	return hspmd_fail_memory(err, "planning state moves");
}

static int rank_of(const struct hspmd_generation *g, const char *address)
{
	struct hspmd_error not_there; /* a member that only hands over state may be on a node that has left the cluster */
	int device = address ? hspmd_cluster_find_device(g->cluster, address, &not_there) : -1;
	return device < 0 ? hspmd_generation_rank(g, address) : g->rank_of[device];
}

int hspmd_stored_state_check(const struct hspmd_generation *g, const struct hspmd_extent *e, struct hspmd_error *err)
{
	int p = 0;
	while (p < g->layouts->parameter_count && strcmp(g->layouts->parameters[p].name, e->tensor))
		p++;
	bool found = p < g->layouts->parameter_count;
	return hspmd_extent_check(e, found ? &g->layouts->parameters[p].shape : NULL, err) ? -1 : p;
}

/* ---- a manifest that lists extents */

static int add_part(struct hspmd_stored_state *s, int tensor, int rank, const struct hspmd_box *box, struct hspmd_error *err)
{
	if (hspmd_array_grow(&s->part, &s->capacity, s->count, sizeof *s->part))
		return out_of_memory(err);
	s->part[s->count++] = (struct hspmd_holding){ tensor, rank, *box };
	return 0;
}

/* At first all amax histories are absent. */
static int expect_histories(struct hspmd_stored_state *s, struct hspmd_error *err)
{
	const struct hspmd_parameter_layouts *l = s->g->layouts;
	s->absent = hspmd_calloc((size_t)l->parameter_count, sizeof *s->absent);
	for (int p = 0; s->absent && p < l->parameter_count; p++)
		s->absent[p] = s->g->program->graph->tensors[l->parameters[p].tensor].history;
	return s->absent ? 0 : out_of_memory(err);
}

static int read_extents(struct hspmd_stored_state *s, json_t *files, struct hspmd_error *err)
{
	const struct hspmd_generation *g = s->g;
	const struct hspmd_manifest *m = s->manifest;
	for (int x = 0; x < m->extent_count; x++) {
		const struct hspmd_extent *e = &m->extents[x];
		json_t *readers = json_object_get(files, m->shards[e->shard].file);
		int p = hspmd_stored_state_check(g, e, err);
		if (p < 0)
			return -1;
		s->absent[p] = false;
		for (size_t r = 0; r < json_array_size(readers); r++) {
			int rank = rank_of(g, json_string_value(json_array_get(readers, r)));
			if (rank >= 0 && add_part(s, p * HSPMD_STATE_KIND_COUNT + (int)e->kind, rank, &e->box, err))
				return -1;
		}
	}
	return hspmd_manifest_check_kinds(m, g->program->optimizer, err);
}

/* ---- a root */

static bool file_has(const void *context, int device, int parameter)
{
	const struct hspmd_stored_state *s = context;
	return hspmd_root_files_has(&s->root, device, parameter);
}

/* The members that can read each device's file. */
static int list_readers(struct hspmd_stored_state *s, json_t *files, struct hspmd_error *err)
{
	const struct hspmd_cluster *c = s->under.cluster;
	size_t count = 0, capacity = 0;
	if (hspmd_array_grow(&s->readers, &capacity, 0, sizeof *s->readers))
		return out_of_memory(err);
	for (int d = 0; d < c->device_count; d++) {
		json_t *readers = s->root.shard_of[d] < 0 ? NULL : json_object_get(files, s->manifest->shards[s->root.shard_of[d]].file);
		s->everybody[d] = json_is_true(readers);
		s->first_reader[d] = (int)count;
		for (size_t r = 0; r < json_array_size(readers); r++) {
			int rank = rank_of(s->g, json_string_value(json_array_get(readers, r)));
			if (rank >= 0 && hspmd_array_grow(&s->readers, &capacity, count, sizeof *s->readers))
				return out_of_memory(err);
			if (rank >= 0)
				s->readers[count++] = rank;
		}
	}
	s->first_reader[c->device_count] = (int)count;
	return 0;
}

static int read_root(struct hspmd_stored_state *s, json_t *files, struct hspmd_error *err)
{
	const struct hspmd_manifest *m = s->manifest;
	const struct hspmd_generation *g = s->g;
	if (hspmd_old_plan_read(&g->setup->source, hspmd_generation_plain_graph(g), g->plan, json_object_get(m->job, "cluster"),
	                        json_object_get(m->job, "plan"), "manifest.job", &s->under, err) ||
	    hspmd_root_files_find(m, &s->under, &s->root, err))
		return -1;
	for (int p = 0; p < g->layouts->parameter_count; p++)
		s->absent[p] &= s->root.bit_of[p] < 0;
	size_t devices = (size_t)s->under.cluster->device_count;
	s->first_reader = hspmd_calloc(devices + 1, sizeof *s->first_reader);
	s->everybody = hspmd_calloc(devices, sizeof *s->everybody);
	if (!s->first_reader || !s->everybody)
		return out_of_memory(err);
	if (list_readers(s, files, err))
		return -1;
	s->files = (struct hspmd_file_side){ .layouts = s->under.layouts,
		                             .device_count = (int)devices,
		                             .first_reader = s->first_reader,
		                             .readers = s->readers,
		                             .everybody = s->everybody,
		                             .has = file_has,
		                             .context = s };
	return 0;
}

/* ---- both */

int hspmd_stored_state_read(const struct hspmd_generation *g, const struct hspmd_manifest *m, json_t *files, struct hspmd_stored_state *s,
                            struct hspmd_error *err)
{
	*s = (struct hspmd_stored_state){ .g = g, .manifest = m };
	if (expect_histories(s, err))
		return -1;
	return m->root ? read_root(s, files, err) : read_extents(s, files, err);
}

void hspmd_stored_state_clear(struct hspmd_stored_state *s)
{
	hspmd_old_plan_clear(&s->under);
	hspmd_root_files_clear(&s->root);
	free(s->absent);
	free(s->part);
	free(s->first_reader);
	free(s->readers);
	free(s->everybody);
	*s = (struct hspmd_stored_state){ 0 };
}

const struct hspmd_file_side *hspmd_stored_state_files(const struct hspmd_stored_state *s)
{
	return s->manifest->root ? &s->files : NULL;
}

/* Whether this member was said to be able to read the file of a device. */
static bool reads(const struct hspmd_stored_state *s, int device)
{
	for (int i = s->first_reader[device]; i < s->first_reader[device + 1]; i++)
		if (s->readers[i] == s->g->rank)
			return true;
	return s->everybody[device];
}

static void find_in_root(const struct hspmd_stored_state *s, int parameter, const struct hspmd_box *box, bool *shards)
{
	const struct hspmd_parameter_layout *l = &s->under.layouts->parameters[parameter];
	int count = hspmd_annotation_local_shards(l->state, &l->shape, s->root.device, s->root.local);
	struct hspmd_box part;
	for (int i = 0; i < count; i++)
		if (file_has(s, s->root.device[i], parameter) && reads(s, s->root.device[i]) &&
		    hspmd_box_intersect(&s->root.local[i].box, box, &part))
			shards[s->root.shard_of[s->root.device[i]]] = true;
}

void hspmd_stored_state_find(const struct hspmd_stored_state *s, int tensor, const struct hspmd_box *box, bool *shards)
{
	const struct hspmd_manifest *m = s->manifest;
	int parameter = tensor / HSPMD_STATE_KIND_COUNT, kind = tensor % HSPMD_STATE_KIND_COUNT;
	const char *name = s->g->layouts->parameters[parameter].name;
	struct hspmd_box part;
	if (m->root)
		find_in_root(s, parameter, box, shards);
	for (int x = 0; x < m->extent_count; x++)
		if ((int)m->extents[x].kind == kind && !strcmp(m->extents[x].tensor, name) &&
		    hspmd_box_intersect(&m->extents[x].box, box, &part))
			shards[m->extents[x].shard] = true;
}
