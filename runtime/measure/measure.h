/* SPDX-License-Identifier: Apache-2.0 */
/* Measures how long a model's layers, and messages between devices, take here, by running them: layers by programs of made-up plans in
 * the executor that trains, with their tensor-parallel communication; messages by the steps that resolution makes, over the transport
 * that trains.
 *
 * Layers of one kind (common/format/model_facts.h) are alike: a few are measured and represent all, so that models larger than the device
 * can be measured. */
#ifndef HSPMD_MEASURE_MEASURE_H
#define HSPMD_MEASURE_MEASURE_H

#include <jansson.h>

#include "common/format/cluster.h"
#include "common/format/model.h"
#include "common/format/profile.h"
#include "runtime/comm/transport.h"
#include "runtime/device/device.h"
#include "runtime/topology/topology.h"
#include "runtime/facts/facts.h"

/* Seconds of one layer on one device: per micro-batch (passes), per step (optimizer). */
enum hspmd_layer_time { HSPMD_TIME_FORWARD, HSPMD_TIME_BACKWARD, HSPMD_TIME_OPTIMIZER, HSPMD_LAYER_TIME_COUNT };

/* The measuring device's context. All pointers are borrowed. Transport ranks are the cluster's device numbers. */
struct hspmd_measure_context {
	const struct hspmd_model *model;
	const struct hspmd_model_facts *facts; /* of the model, for samples of seq_len tokens */
	const struct hspmd_cluster *cluster;
	int device; /* own number */
	struct hspmd_device *dev;
	struct hspmd_transport *transport; /* between all devices of the cluster; NULL if the cluster has one device */
	int seq_len;
	double began; /* hspmd_now() when the time budget started */
};

/* ---- layers (layers.c) */

/* A trial: a made-up job with one stage on the devices `group` (tp of them, ascending; all of them make the same calls) and two
 * micro-batches per step. */
struct hspmd_trial;
/* NULL and err: the model cannot be split this way, or its program needs more memory than the device has. */
struct hspmd_trial *hspmd_trial_create(const struct hspmd_measure_context *context, const int *group, int tp, int micro_batch,
                                       struct hspmd_error *err);
/* Upper estimates of the seconds to create a trial and to run one of its steps, from the cluster's rates of the device. */
struct hspmd_trial_estimate {
	double start_s, step_s;
};
struct hspmd_trial_estimate hspmd_trial_estimate(const struct hspmd_measure_context *context, int tp, int micro_batch);
/* Run a step. *took: its seconds. */
int hspmd_trial_step(struct hspmd_trial *t, double *took, struct hspmd_error *err);

/* One layer of a kind. */
struct hspmd_trial_result {
	double seconds[HSPMD_LAYER_TIME_COUNT];
	double kept_bytes; /* bytes per sample that this device keeps from the forward to the backward pass */
};
/* Fills out[kind] for each of the facts' kinds. Call it after at least one step. The first step is only a warm-up if there are more. */
int hspmd_trial_result(const struct hspmd_trial *t, struct hspmd_trial_result *out, struct hspmd_error *err);
void hspmd_trial_destroy(struct hspmd_trial *t);

/* ---- samples (samples.c) */

/* Random samples for the inputs of a graph, different for each sample: integers that its operators take, and floats from 0 to 1. A device's
 * times do not depend on more. */
struct hspmd_random_samples;
/* NULL: memory. hspmd_random_samples_destroy frees it; it needs the graph no more. */
struct hspmd_random_samples *hspmd_random_samples_create(const struct hspmd_graph *g, struct hspmd_error *err);
void hspmd_random_samples_destroy(struct hspmd_random_samples *s);
/* As `read` of struct hspmd_sample_source. */
int hspmd_random_samples_read(void *samples, const char *name, int64_t number, int64_t start, int64_t count, void *to,
                              struct hspmd_error *err);

/* ---- which trials run, and how often (trials.c) */

/* Who runs the trials: layers.c on a device, or a test. Functions return 0 or -1 (err). */
struct hspmd_trial_ops {
	void *context;
	double (*now)(void *context);
	/* Replace *value by the largest value of all measuring devices. All of them call this. */
	int (*agree)(void *context, double *value, struct hspmd_error *err);
	struct hspmd_trial_estimate (*estimate)(void *context, int tp, int micro_batch);
	int (*begin)(void *context, int tp, int micro_batch, bool *able, struct hspmd_error *err);
	int (*step)(void *context, double *took, struct hspmd_error *err);
	/* Called after every begin. keep: the results are valid. */
	int (*end)(void *context, int tp, int micro_batch, bool keep, struct hspmd_error *err);
	void (*note)(void *context, int tp, int micro_batch, const char *why);
};

struct hspmd_measure_options;
/* Run as many of the requested trials as fit before `until` (of ops->now), with `peers` devices. */
int hspmd_measure_trials(const struct hspmd_trial_ops *ops, const struct hspmd_measure_options *options, int peers, double until,
                         struct hspmd_error *err);

/* ---- links (links.c) */

#define HSPMD_MEASURE_POINTS 8

struct hspmd_link_pair {
	int round;    /* pairs of a round have no node in common and are measured concurrently */
	int from, to; /* devices */
};

/* The pairs to measure, by round: within every node all pairs of its types; between nodes all pairs if they are few, otherwise
 * neighbours, and every pair of types at least once. *pairs: the caller frees it. Returns the count or -1 (memory). */
int hspmd_measure_pairs(const struct hspmd_cluster *c, struct hspmd_link_pair **pairs, struct hspmd_error *err);
/* Measure one pair; called by its two devices. points: [bytes, seconds] of a message in one direction, with strictly growing bytes.
 * Returns the number of points, or -1: at least two sizes, more if they fit in `seconds` (the first device's value counts). The second
 * device gets 0 points. */
int hspmd_measure_pair(const struct hspmd_measure_context *context, const struct hspmd_link_pair *pair, double seconds,
                       double points[HSPMD_MEASURE_POINTS][2], struct hspmd_error *err);

/* ---- everything (device.c, node.c, result.c, result_links.c) */

#define HSPMD_MEASURE_MAX_VALUES 16

struct hspmd_measure_options {
	int tp_count, tps[HSPMD_MEASURE_MAX_VALUES]; /* ascending; sizes that exceed a node's number of devices are left out */
	int micro_batch_count, micro_batches[HSPMD_MEASURE_MAX_VALUES]; /* ascending; larger ones are left out when the time is over */
	int seq_len;
	double budget_s;       /* for measuring and its preparation */
	const char *transport; /* name; NULL: the best that is available */
};

/* All measurements of one device, as JSON (device.c lists the keys). All devices of the cluster call it. NULL and err on failure. */
json_t *hspmd_measure_device(const struct hspmd_measure_context *context, const struct hspmd_measure_options *options,
                             struct hspmd_error *err);

/* Measure this node's devices, each in its own process, and under srun those of all nodes together. On task 0 sets *cluster (the caller
 * destroys it) and *rows (a new reference: the measurements by device number); elsewhere NULL. */
int hspmd_measure_cluster(const struct hspmd_topology_options *look, const struct hspmd_model *model,
                          const struct hspmd_measure_options *options, struct hspmd_cluster **cluster, json_t **rows,
                          struct hspmd_error *err);

/* Evaluate the rows: returns a profile (the caller destroys it), and writes measured links into the cluster, and the slowdown of nodes
 * that were slower than the fastest of their type. NULL and err on failure. */
struct hspmd_profile *hspmd_measure_profile(const struct hspmd_model *model, const json_t *rows, int seq_len, struct hspmd_cluster *cluster,
                                            struct hspmd_error *err);

/* The part of this for links: measured values replace assumed ones. 0 or -1. */
int hspmd_measure_fill_links(const json_t *rows, struct hspmd_cluster *cluster, struct hspmd_error *err);

/* Mean of the middle half of the values, which it sorts: robust against outliers, yet reflects recurring disturbances, which a
 * median would hide. */
double hspmd_middle_mean(double *values, int count);

#endif
