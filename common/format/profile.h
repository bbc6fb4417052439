/* SPDX-License-Identifier: Apache-2.0 */
/* hspmd-profile-1: measured layer times. Plain data. NaN stands for null (not measured). */
#ifndef HSPMD_FORMAT_PROFILE_H
#define HSPMD_FORMAT_PROFILE_H

#include <jansson.h>
#include <stdint.h>

#include "common/error.h"

#define HSPMD_PROFILE_FORMAT "hspmd-profile-1"

struct hspmd_profile_layer {
	char *name;
	double params;           /* of the whole layer */
	double output_elems;     /* per sample */
	double activation_bytes; /* per sample; NaN: null */
};

struct hspmd_profile_times {
	char *device_type;
	int tp, micro_batch;
	double *forward_s;   /* one per layer */
	double *backward_s;  /* one per layer, entries may be NaN; NULL: null */
	double *optimizer_s; /* likewise */
};

struct hspmd_profile {
	char *model;
	int64_t seq_len;
	double params_bytes, grads_bytes, activation_bytes; /* per element (dtype_bytes) */
	int layer_count, times_count, tied_count;
	struct hspmd_profile_layer *layers;
	struct hspmd_profile_times *times; /* no two with the same type, tp, micro-batch */
	int (*tied)[2];                    /* pairs of layers that share their weights */
};

struct hspmd_profile *hspmd_profile_read(const char *path, struct hspmd_error *err);
struct hspmd_profile *hspmd_profile_from_json(const json_t *value, const char *name, struct hspmd_error *err);
json_t *hspmd_profile_to_json(const struct hspmd_profile *p);
void hspmd_profile_destroy(struct hspmd_profile *p);

#endif
