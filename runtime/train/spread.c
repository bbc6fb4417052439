/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/train/spread.h"

#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "runtime/state/checkpoint.h"

/* Shares of one parameter, and which of them count. */
struct shares {
	int *device;
	struct hspmd_share *share;
	int count;
};

/* What is known of one device's shard. */
struct shard {
	uint64_t elements;
	int copies;     /* that must be made of it by sending */
	int *elsewhere; /* nodes that hold all of it, too */
	int elsewhere_count;
	bool seen;
};

struct run {
	const struct hspmd_layouts *layouts;
	const struct hspmd_cluster *cluster;
	const int *rank_of;
	int replicas; /* that there are nodes for */
	struct shares s;
	struct shard *shard;   /* by device */
	int *twin;             /* room for `replicas` */
};

static int node_of(const struct run *r, int share)
{
	return r->cluster->devices[r->s.device[share]].node;
}

static int room(struct run *r, struct hspmd_error *err)
{
	int most = 0, devices = r->cluster->device_count;
	for (int i = 0; i < r->layouts->parameter_count; i++) {
		int n = hspmd_annotation_shares(r->layouts->parameters[i].state, &r->layouts->parameters[i].shape, NULL, NULL);
		most = n > most ? n : most;
	}
	r->s.device = hspmd_calloc((size_t)most, sizeof *r->s.device);
	r->s.share = hspmd_calloc((size_t)most, sizeof *r->s.share);
	r->shard = hspmd_calloc((size_t)devices, sizeof *r->shard);
	r->twin = hspmd_calloc((size_t)r->replicas, sizeof *r->twin);
	bool whole = r->s.device && r->s.share && r->shard && r->twin;
	for (int d = 0; whole && d < devices; d++)
		whole = (r->shard[d].elsewhere = hspmd_calloc((size_t)r->replicas, sizeof(int))) != NULL;
	return whole ? 0 : hspmd_fail_memory(err, "spreading a checkpoint");
}

static void end(struct run *r)
{
	for (int d = 0; r->shard && d < r->cluster->device_count; d++)
		free(r->shard[d].elsewhere);
	free(r->s.device);
	free(r->s.share);
	free(r->shard);
	free(r->twin);
}

/* More than one node takes part: how many can be lost at most. */
static int spare_nodes(const struct hspmd_cluster *c, const int *rank_of)
{
	int nodes = 0, last = -1;
	for (int d = 0; d < c->device_count; d++) { /* devices are listed node by node */
		if (rank_of[d] < 0 || c->devices[d].node == last)
			continue;
		last = c->devices[d].node;
		nodes++;
	}
	return nodes - 1;
}

static void list_shares(struct run *r, int parameter)
{
	const struct hspmd_layout_parameter *p = &r->layouts->parameters[parameter];
	r->s.count = hspmd_annotation_shares(p->state, &p->shape, r->s.device, r->s.share);
}

/* Others that hold the very same on nodes of their own, as many as are wanted: into r->twin. */
static int find_twins(struct run *r, int share)
{
	int found = 0;
	for (int step = 1; step < r->s.count && found < r->replicas; step++) {
		int k = (share + step) % r->s.count;
		bool other = node_of(r, k) != node_of(r, share) && hspmd_box_equal(&r->s.share[k].box, &r->s.share[share].box);
		for (int i = 0; i < found && other; i++)
			other = node_of(r, r->twin[i]) != node_of(r, k);
		if (other)
			r->twin[found++] = k;
	}
	return found;
}

/* Nodes that hold this share as well as all before it. */
static void keep_common(struct run *r, struct shard *shard, int twins)
{
	int left = 0;
	for (int i = 0; i < (shard->seen ? shard->elsewhere_count : twins); i++) {
		int node = shard->seen ? shard->elsewhere[i] : node_of(r, r->twin[i]);
		for (int k = 0; k < twins; k++)
			if (node_of(r, r->twin[k]) == node) {
				shard->elsewhere[left++] = node;
				break;
			}
	}
	shard->elsewhere_count = left;
	shard->seen = true;
}

static void survey(struct run *r)
{
	for (int i = 0; i < r->layouts->parameter_count; i++) {
		list_shares(r, i);
		for (int a = 0; a < r->s.count; a++) {
			if (r->s.share[a].replica)
				continue;
			struct shard *shard = &r->shard[r->s.device[a]];
			int twins = find_twins(r, a);
			shard->elements += (uint64_t)hspmd_box_elements(&r->s.share[a].box) * HSPMD_STATE_KIND_COUNT;
			if (r->replicas - twins > shard->copies)
				shard->copies = r->replicas - twins;
			keep_common(r, shard, twins);
		}
	}
}

/* A twin writes where the first holder's shard is not sent often enough without it. */
static bool writes(struct run *r, int parameter, int self)
{
	list_shares(r, parameter);
	for (int a = 0; a < r->s.count; a++) {
		if (r->s.share[a].replica)
			continue;
		if (r->rank_of[r->s.device[a]] == self)
			return true;
		int twins = find_twins(r, a), wanted = r->replicas - r->shard[r->s.device[a]].copies;
		for (int i = 0; i < twins && i < wanted; i++)
			if (r->rank_of[r->s.device[r->twin[i]]] == self)
				return true;
	}
	return false;
}

static int take_keepers(const struct run *r, const int *device, const int *to, int workers, int self, struct hspmd_spread *out, struct hspmd_error *err)
{
	out->to = hspmd_calloc((size_t)r->replicas, sizeof *out->to);
	out->from = hspmd_calloc((size_t)workers, sizeof *out->from);
	if (!out->to || !out->from)
		return hspmd_fail_memory(err, "spreading a checkpoint");
	for (int w = 0; w < workers; w++)
		for (int k = 0; k < r->replicas && to[w * r->replicas + k] >= 0; k++) {
			int from = r->rank_of[device[w]], keeper = r->rank_of[device[to[w * r->replicas + k]]];
			if (from == self)
				out->to[out->to_count++] = keeper;
			if (keeper == self) {
				out->from[out->from_count++] = from;
				out->kept_elements += r->shard[device[w]].elements;
			}
			out->any = true;
		}
	return 0;
}

static int find_keepers(const struct run *r, int self, struct hspmd_spread *out, struct hspmd_error *err)
{
	size_t devices = (size_t)r->cluster->device_count;
	struct hspmd_copies_worker *w = hspmd_calloc(devices, sizeof *w);
	int *device = hspmd_calloc(devices, sizeof *device), *to = hspmd_calloc(devices * (size_t)r->replicas, sizeof *to), workers = 0;
	int status = w && device && to ? 0 : hspmd_fail_memory(err, "spreading a checkpoint");
	for (int d = 0; !status && d < r->cluster->device_count; d++)
		if (r->rank_of[d] >= 0) {
			const struct shard *s = &r->shard[d];
			device[workers] = d;
			w[workers++] = (struct hspmd_copies_worker){ r->cluster->devices[d].node, s->elements, s->copies, s->elsewhere, s->elsewhere_count };
		}
	if (!status)
		status = hspmd_copies_spread(w, workers, r->cluster->node_count, r->replicas, to, err);
	if (!status)
		status = take_keepers(r, device, to, workers, self, out, err);
	free(w);
	free(device);
	free(to);
	return status;
}

int hspmd_spread_plan(const struct hspmd_layouts *layouts, const struct hspmd_cluster *cluster, const int *rank_of, int self, int replicas,
		      struct hspmd_spread *out, struct hspmd_error *err)
{
	int spare = spare_nodes(cluster, rank_of);
	struct run r = { .layouts = layouts, .cluster = cluster, .rank_of = rank_of, .replicas = replicas < spare ? replicas : spare };
	memset(out, 0, sizeof *out);
	out->writes = hspmd_calloc((size_t)layouts->parameter_count, sizeof *out->writes);
	int status = out->writes ? room(&r, err) : hspmd_fail_memory(err, "spreading a checkpoint");
	if (!status)
		survey(&r);
	for (int i = 0; !status && i < layouts->parameter_count; i++)
		out->writes[i] = writes(&r, i, self);
	if (!status)
		status = find_keepers(&r, self, out, err);
	end(&r);
	if (status)
		hspmd_spread_free(out);
	return status;
}

void hspmd_spread_free(struct hspmd_spread *s)
{
	free(s->writes);
	free(s->to);
	free(s->from);
	memset(s, 0, sizeof *s);
}
