/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/generation/checkpoint_placement.h"

#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "runtime/state/checkpoint.h"

/* The local shards of one parameter. */
struct local_shards {
	int *device;
	struct hspmd_local_shard *share;
	int count;
};

/* The state that one device writes and no device before it, as parts that are on different sets of nodes. */
struct shard {
	uint64_t elements;
	struct hspmd_copies_part *parts;
	size_t part_count, part_capacity;
	int *keepers; /* the nodes that keep copies of it, and their number */
	int keeper_count;
};

struct run {
	const struct hspmd_parameter_layouts *layouts;
	const struct hspmd_cluster *cluster;
	const int *rank_of;
	struct hspmd_losses losses;
	int most; /* upper bound for the keepers of one shard: one per node that is missing, and one for each other kind of loss */
	struct local_shards s;
	struct shard *shard;   /* by device */
	uint64_t *written;     /* elements by device */
	int *duplicate, *node; /* duplicate: devices that hold the same local shard and write it too; node: the nodes that have it */
};

static int node_of(const struct run *r, int share)
{
	return r->cluster->devices[r->s.device[share]].node;
}

static int allocate(struct run *r, struct hspmd_error *err)
{
	int most = 0, devices = r->cluster->device_count;
	for (int i = 0; i < r->layouts->parameter_count; i++) {
		int n = hspmd_annotation_local_shards(r->layouts->parameters[i].state, &r->layouts->parameters[i].shape, NULL, NULL);
		most = n > most ? n : most;
	}
	r->s.device = hspmd_calloc((size_t)most, sizeof *r->s.device);
	r->s.share = hspmd_calloc((size_t)most, sizeof *r->s.share);
	r->shard = hspmd_calloc((size_t)devices, sizeof *r->shard);
	r->duplicate = hspmd_calloc((size_t)most, sizeof *r->duplicate);
	r->written = hspmd_calloc((size_t)devices, sizeof *r->written);
	r->node = hspmd_calloc((size_t)r->cluster->node_count + 1, sizeof *r->node);
	bool whole = r->s.device && r->s.share && r->shard && r->duplicate && r->written && r->node;
	for (int d = 0; whole && d < devices; d++)
		whole = (r->shard[d].keepers = hspmd_calloc((size_t)r->most, sizeof(int))) != NULL;
	return whole ? 0 : hspmd_fail_memory(err, "placing a checkpoint");
}

static void end(struct run *r)
{
	for (int d = 0; r->shard && d < r->cluster->device_count; d++) {
		for (size_t p = 0; p < r->shard[d].part_count; p++)
			free(r->shard[d].parts[p].nodes);
		free(r->shard[d].parts);
		free(r->shard[d].keepers);
	}
	free(r->s.device);
	free(r->s.share);
	free(r->shard);
	free(r->written);
	free(r->duplicate);
	free(r->node);
	hspmd_losses_free(&r->losses);
}

/* Determine the losses to survive, from the nodes with participating devices. */
static int find_losses(struct run *r, int replicas, int keep, struct hspmd_error *err)
{
	bool *part = hspmd_calloc((size_t)r->cluster->node_count, sizeof *part);
	int status = part ? 0 : hspmd_fail_memory(err, "placing a checkpoint");
	for (int d = 0; !status && d < r->cluster->device_count; d++)
		part[r->cluster->devices[d].node] |= r->rank_of[d] >= 0;
	if (!status)
		status = hspmd_losses_make(r->cluster, part, replicas, keep, &r->losses, err);
	r->most = replicas < r->losses.present ? replicas + 3 : r->losses.present + 3;
	free(part);
	return status;
}

static void list_local_shards(struct run *r, int parameter)
{
	const struct hspmd_parameter_layout *p = &r->layouts->parameters[parameter];
	r->s.count = hspmd_annotation_local_shards(p->state, &p->shape, r->s.device, r->s.share);
}

static bool is_on(const struct run *r, int node, int nodes)
{
	for (int i = 0; i < nodes; i++)
		if (r->node[i] == node)
			return true;
	return false;
}

/* Find other devices that hold the same local shard and should write it too: as few as necessary, and only if they help. Stores them in
 * r->duplicate, and their nodes in r->node after the first `nodes`, which have the shard anyway. Returns how many. */
static int find_duplicates(struct run *r, int share, int nodes)
{
	int found = 0;
	long now = hspmd_losses_lack(&r->losses, r->node, nodes);
	while (now > 0) {
		long least = now;
		int best = -1;
		for (int step = 1; step < r->s.count; step++) {
			int k = (share + step) % r->s.count;
			if (!hspmd_box_equal(&r->s.share[k].box, &r->s.share[share].box) || is_on(r, node_of(r, k), nodes))
				continue;
			r->node[nodes] = node_of(r, k);
			long then = hspmd_losses_lack(&r->losses, r->node, nodes + 1);
			best = then < least ? k : best;
			least = then < least ? then : least;
		}
		if (best < 0)
			break;
		r->node[nodes++] = node_of(r, best);
		r->duplicate[found++] = best;
		now = least;
	}
	return found;
}

/* Note that a part of this device's shard is on the first `nodes` of r->node. */
static int add_part(struct run *r, struct shard *shard, int nodes, struct hspmd_error *err)
{
	for (size_t p = 0; p < shard->part_count; p++)
		if (shard->parts[p].count == nodes && !memcmp(shard->parts[p].nodes, r->node, (size_t)nodes * sizeof *r->node))
			return 0;
	int *copy = hspmd_calloc((size_t)nodes, sizeof *copy);
	if (!copy || hspmd_array_grow(&shard->parts, &shard->part_capacity, shard->part_count, sizeof *shard->parts)) {
		free(copy);
		return hspmd_fail_memory(err, "placing a checkpoint");
	}
	memcpy(copy, r->node, (size_t)nodes * sizeof *copy);
	shard->parts[shard->part_count++] = (struct hspmd_copies_part){ copy, nodes };
	return 0;
}

static uint64_t elements(const struct run *r, int share)
{
	return (uint64_t)hspmd_box_elements(&r->s.share[share].box) * HSPMD_STATE_KIND_COUNT;
}

static int survey(struct run *r, struct hspmd_error *err)
{
	int status = 0;
	for (int i = 0; i < r->layouts->parameter_count; i++) {
		list_local_shards(r, i);
		for (int a = 0; a < r->s.count && !status; a++) {
			if (r->s.share[a].replica)
				continue;
			struct shard *shard = &r->shard[r->s.device[a]];
			r->node[0] = node_of(r, a);
			shard->elements += elements(r, a);
			status = add_part(r, shard, 1 + find_duplicates(r, a, 1), err);
		}
	}
	return status;
}

/* To be called when the keepers of copies are known: a duplicate holder writes its local shard if the copies of the first holder's shard do
 * not help enough without it. */
static bool writes(struct run *r, int parameter, int self)
{
	bool yes = false;
	list_local_shards(r, parameter);
	for (int a = 0; a < r->s.count; a++) {
		if (r->s.share[a].replica)
			continue;
		const struct shard *shard = &r->shard[r->s.device[a]];
		r->node[0] = node_of(r, a);
		memcpy(r->node + 1, shard->keepers, (size_t)shard->keeper_count * sizeof *r->node);
		int duplicates = find_duplicates(r, a, 1 + shard->keeper_count);
		r->written[r->s.device[a]] += elements(r, a);
		yes |= r->rank_of[r->s.device[a]] == self;
		for (int i = 0; i < duplicates; i++) {
			r->written[r->s.device[r->duplicate[i]]] += elements(r, a);
			yes |= r->rank_of[r->s.device[r->duplicate[i]]] == self;
		}
	}
	return yes;
}

/* The keepers of copies: to[w * most ...] are indices of workers, which are devices. Also stores the keepers in the shards. */
struct workers_of_plan {
	struct hspmd_copy_worker *w;
	int *device, *to, workers;
};

static int find_keepers(struct run *r, struct workers_of_plan *c, struct hspmd_error *err)
{
	size_t devices = (size_t)r->cluster->device_count;
	c->w = hspmd_calloc(devices, sizeof *c->w);
	c->device = hspmd_calloc(devices, sizeof *c->device);
	c->to = hspmd_calloc(devices * (size_t)r->most, sizeof *c->to);
	if (!c->w || !c->device || !c->to)
		return hspmd_fail_memory(err, "placing a checkpoint");
	for (int d = 0; d < r->cluster->device_count; d++)
		if (r->rank_of[d] >= 0) {
			const struct shard *s = &r->shard[d];
			c->device[c->workers] = d;
			c->w[c->workers++] =
			        (struct hspmd_copy_worker){ r->cluster->devices[d].node, s->elements, s->parts, (int)s->part_count };
		}
	if (hspmd_copies_assign(&r->losses, c->w, c->workers, r->most, c->to, err))
		return -1;
	for (int w = 0; w < c->workers; w++) {
		struct shard *s = &r->shard[c->device[w]];
		for (int k = 0; k < r->most && c->to[w * r->most + k] >= 0; k++)
			s->keepers[s->keeper_count++] = c->w[c->to[w * r->most + k]].node;
	}
	return 0;
}

static int fill_keepers(const struct run *r, const struct workers_of_plan *c, int self, struct hspmd_checkpoint_placement *out,
                        struct hspmd_error *err)
{
	out->to = hspmd_calloc((size_t)r->most, sizeof *out->to);
	out->from = hspmd_calloc((size_t)c->workers, sizeof *out->from);
	out->from_elements = hspmd_calloc((size_t)c->workers, sizeof *out->from_elements);
	if (!out->to || !out->from || !out->from_elements)
		return hspmd_fail_memory(err, "placing a checkpoint");
	for (int w = 0; w < c->workers; w++)
		for (int k = 0; k < r->most && c->to[w * r->most + k] >= 0; k++) {
			int from = r->rank_of[c->device[w]], keeper = r->rank_of[c->device[c->to[w * r->most + k]]];
			if (from == self)
				out->to[out->to_count++] = keeper;
			if (keeper == self) {
				out->from_elements[out->from_count] = r->written[c->device[w]];
				out->from[out->from_count++] = from;
			}
			out->any = true;
		}
	return 0;
}

int hspmd_checkpoint_placement_plan(const struct hspmd_parameter_layouts *layouts, const struct hspmd_cluster *cluster, const int *rank_of,
                                    int self, int replicas, int keep, struct hspmd_checkpoint_placement *out, struct hspmd_error *err)
{
	struct run r = { .layouts = layouts, .cluster = cluster, .rank_of = rank_of };
	struct workers_of_plan workers = { 0 };
	memset(out, 0, sizeof *out);
	out->writes = hspmd_calloc((size_t)layouts->parameter_count, sizeof *out->writes);
	int status = out->writes ? find_losses(&r, replicas, keep, err) : hspmd_fail_memory(err, "placing a checkpoint");
	if (!status)
		status = allocate(&r, err);
	if (!status)
		status = survey(&r, err);
	if (!status)
		status = find_keepers(&r, &workers, err);
	for (int i = 0; !status && i < layouts->parameter_count; i++)
		out->writes[i] = writes(&r, i, self);
	if (!status)
		status = fill_keepers(&r, &workers, self, out, err);
	free(workers.w);
	free(workers.device);
	free(workers.to);
	end(&r);
	if (status)
		hspmd_checkpoint_placement_free(out);
	return status;
}

void hspmd_checkpoint_placement_free(struct hspmd_checkpoint_placement *s)
{
	free(s->writes);
	free(s->to);
	free(s->from);
	free(s->from_elements);
	memset(s, 0, sizeof *s);
}
