/* SPDX-License-Identifier: Apache-2.0 */
/* Submeshes: the devices that may make up one stage, and all that a search asks about them, as tables for one micro-batch. Private to the
 * solver. */
#ifndef HSPMD_SEARCH_SUBMESH_H
#define HSPMD_SEARCH_SUBMESH_H

#include "controller/solver/cost/costs.h"
#include "controller/solver/search/device_classes.h"
#include "controller/solver/solver.h"

#define HSPMD_SUBMESHES_MAX 64
#define HSPMD_SIZES_MAX 8     /* different sizes of what layers hand on; others count as the next larger */
#define HSPMD_RANGE_LEVELS 12 /* powers of two of layers: models of up to 4095 layers */

/* tp devices of one device class in one node. Arrays are sums over layers, layer_count + 1 long: layers [a, b) have x[b] - x[a]. */
struct hspmd_submesh {
	int device_class, tp;
	double share;
	double usable_bytes;                 /* bytes of a device that weights and activations may fill */
	double *params;                      /* weights of a device */
	double *work[HSPMD_RECOMPUTE_KINDS]; /* seconds of a micro-batch, forward, backward and what is recomputed */
	double *forward;
	double *saved[HSPMD_RECOMPUTE_KINDS];     /* bytes of a micro-batch */
	double *resident;                         /* bytes, whatever is in flight */
	double *transient[HSPMD_RANGE_LEVELS];    /* working[j][a]: the most that one of the layers [a, a + 2^j) needs while it runs */
	double recomputed[HSPMD_RECOMPUTE_KINDS]; /* the most that one layer needs more when it is recomputed */
	double rate;                              /* no pipeline does more micro-batches a second than the sum of its submeshes' rates */
};

struct hspmd_submesh_tables {
	struct hspmd_costs *costs;
	const struct hspmd_device_classes *device_classes;
	const struct hspmd_runtime_caps *caps;
	int micro_batch, layers;
	enum hspmd_schedule schedule; /* of the plans to be drafted; the caller's to set, 1f1b at first */
	double alike;                 /* W of submesh.c: how alike the submeshes are in what each layer takes of their time, at most 1 */
	int submesh_count;
	struct hspmd_submesh submeshes[HSPMD_SUBMESHES_MAX];
	double *storage;
	int size_count;     /* different sizes of what a layer hands on */
	int *size_of;       /* per layer: which */
	double *size_bytes; /* of one micro-batch */
	double *boundaries; /* memory of hspmd_boundary_seconds */
	int boundary_classes;
};

/* Tables for one micro-batch. devices: how many the plan will use, about. NULL and err on failure. */
struct hspmd_submesh_tables *hspmd_submesh_tables_new(struct hspmd_costs *costs, const struct hspmd_device_classes *device_classes,
                                                      const struct hspmd_runtime_caps *caps, int micro_batch, struct hspmd_error *err);
void hspmd_submesh_tables_destroy(struct hspmd_submesh_tables *t);

/* Micro-batches a second that no plan of `available` devices of each device class can exceed whose devices wait for one another as all of
 * the cluster would. */
double hspmd_submesh_tables_rate(const struct hspmd_submesh_tables *t, const int *available);

/* Seconds of what a layer hands on (of size number `size`), there and back together, from submesh a's device to b's; in the same node or
 * not; with `queue` pipelines that send from the node at once. INFINITY: no link. */
double hspmd_boundary_seconds(struct hspmd_submesh_tables *t, int a, int b, bool same_node, int queue, int size);

#endif
