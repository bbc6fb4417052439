/* SPDX-License-Identifier: Apache-2.0 */
/* How long a model's layers and messages between devices take here, measured by running them: layers by programs of made-up plans under the
 * executor that trains, with their tensor-parallel communication; messages by the steps that resolution makes, over the transport that
 * trains.
 *
 * Blocks of one model are alike: a few are measured and stand for all, so that models larger than the device can be measured. */
#ifndef HSPMD_MEASURE_MEASURE_H
#define HSPMD_MEASURE_MEASURE_H

#include <jansson.h>

#include "common/format/cluster.h"
#include "common/format/model.h"
#include "common/format/profile.h"
#include "runtime/comm/transport.h"
#include "runtime/device/device.h"
#include "runtime/topology/topology.h"

enum hspmd_layer_kind { HSPMD_LAYER_EMBEDDING, HSPMD_LAYER_BLOCK, HSPMD_LAYER_HEAD, HSPMD_LAYER_KIND_COUNT };

/* Seconds of one layer on one device: of a micro-batch (passes), of a step (optimizer). */
enum hspmd_layer_time { HSPMD_TIME_FORWARD, HSPMD_TIME_BACKWARD, HSPMD_TIME_OPTIMIZER, HSPMD_LAYER_TIME_COUNT };

/* Who measures. Borrowed, all of it. Ranks of the transport are the cluster's device numbers. */
struct hspmd_measure_context {
	const struct hspmd_model *model;
	const struct hspmd_cluster *cluster;
	int device; /* own number */
	struct hspmd_device *dev;
	struct hspmd_transport *transport; /* of all devices of the cluster; NULL where it has but this one */
	int seq_len;
	double began; /* hspmd_now() when the budget began to be spent */
};

/* ---- layers (layers.c) */

/* A made-up job of one stage on the devices `group` (tp of them, ascending, all of which make the same calls), two micro-batches a step. */
struct hspmd_trial;
/* NULL and err: the model cannot be split so, or its program needs more memory than the device has. */
struct hspmd_trial *hspmd_trial_create(const struct hspmd_measure_context *context, const int *group, int tp, int micro_batch,
                                       struct hspmd_error *err);
/* What creating it, and a step of it, should take at most by the rates that the cluster tells of the device. */
struct hspmd_trial_estimate {
	double start_s, step_s;
};
struct hspmd_trial_estimate hspmd_trial_estimate(const struct hspmd_measure_context *context, int tp, int micro_batch);
/* A step. *took: its seconds. */
int hspmd_trial_step(struct hspmd_trial *t, double *took, struct hspmd_error *err);

struct hspmd_trial_result {
	double seconds[HSPMD_LAYER_KIND_COUNT][HSPMD_LAYER_TIME_COUNT];
	double kept_bytes[HSPMD_LAYER_KIND_COUNT]; /* what this device keeps of one sample from the forward to the backward pass */
};
/* After at least one step; with more than one, the first has only warmed up. */
int hspmd_trial_result(const struct hspmd_trial *t, struct hspmd_trial_result *out, struct hspmd_error *err);
void hspmd_trial_destroy(struct hspmd_trial *t);

/* ---- which layers, and how often (trials.c) */

/* What measures: layers.c's trials of one device, or a test's. Functions return 0 or -1 (err). */
struct hspmd_trial_ops {
	void *context;
	double (*now)(void *context);
	/* The largest of what all who measure together say, each of whom calls this. */
	int (*agree)(void *context, double *value, struct hspmd_error *err);
	struct hspmd_trial_estimate (*estimate)(void *context, int tp, int micro_batch);
	int (*begin)(void *context, int tp, int micro_batch, bool *able, struct hspmd_error *err);
	int (*step)(void *context, double *took, struct hspmd_error *err);
	/* After every begin. keep: what was measured counts. */
	int (*end)(void *context, int tp, int micro_batch, bool keep, struct hspmd_error *err);
	void (*note)(void *context, int tp, int micro_batch, const char *why);
};

struct hspmd_measure_options;
/* Run as many of the wished trials as there is time for until `until` (of stand->now), among `peers` devices. */
int hspmd_measure_trials(const struct hspmd_trial_ops *ops, const struct hspmd_measure_options *options, int peers, double until,
                         struct hspmd_error *err);

/* ---- links (links.c) */

#define HSPMD_MEASURE_POINTS 8

struct hspmd_link_pair {
	int round;    /* pairs of a round have no node in common and are measured at the same time */
	int from, to; /* devices */
};

/* Whom to measure, by round: within every node its types with one another; between nodes all pairs where they are few, else neighbours, and
 * every pair of types at least once. *pairs malloc'd; count or -1 (memory). */
int hspmd_measure_pairs(const struct hspmd_cluster *c, struct hspmd_link_pair **pairs, struct hspmd_error *err);
/* One pair, called by its two devices: [bytes, seconds] of a message one way, into points (strictly growing bytes); their number, or -1. At
 * least two sizes, more as far as `seconds` (the first device's count) suffice. What the second device gets is nothing: 0. */
int hspmd_measure_pair(const struct hspmd_measure_context *context, const struct hspmd_link_pair *pair, double seconds,
                       double points[HSPMD_MEASURE_POINTS][2], struct hspmd_error *err);

/* ---- everything (device.c, node.c, result.c, result_links.c) */

#define HSPMD_MEASURE_MAX_VALUES 16

struct hspmd_measure_options {
	int tp_count, tps[HSPMD_MEASURE_MAX_VALUES]; /* ascending; those that a node has too few devices for are left out */
	int micro_batch_count, micro_batches[HSPMD_MEASURE_MAX_VALUES]; /* ascending; larger ones are left out when the time is over */
	int seq_len;
	double budget_s;       /* of measuring and what has to be done before it */
	const char *transport; /* name, NULL: the best there is */
};

/* All that one device measures, as JSON (device.c tells the keys). All devices of the cluster call it. NULL and err on failure. */
json_t *hspmd_measure_device(const struct hspmd_measure_context *context, const struct hspmd_measure_options *options,
                             struct hspmd_error *err);

/* This node's devices, each in a process of its own, and under srun those of all nodes together. On task 0 *cluster (the caller destroys
 * it) and *rows (a new reference: what each device measured, by its number) are set, elsewhere NULL. */
int hspmd_measure_cluster(const struct hspmd_topology_options *look, const struct hspmd_model *model,
                          const struct hspmd_measure_options *options, struct hspmd_cluster **cluster, json_t **rows,
                          struct hspmd_error *err);

/* What the rows say: a profile (the caller destroys it); and into the cluster go measured links, and the slowdown of nodes that were slower
 * than the fastest of their type. NULL and err on failure. */
struct hspmd_profile *hspmd_measure_profile(const struct hspmd_model *model, const json_t *rows, int seq_len, struct hspmd_cluster *cluster,
                                            struct hspmd_error *err);

/* The links' part of it: measured ones replace what was assumed. 0 or -1. */
int hspmd_measure_fill_links(const json_t *rows, struct hspmd_cluster *cluster, struct hspmd_error *err);

/* Mean of the middle half of the values (which are sorted): neither one that was disturbed counts, nor is what comes and goes lost, as in a
 * median. */
double hspmd_middle_mean(double *values, int count);

#endif
