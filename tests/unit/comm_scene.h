/* SPDX-License-Identifier: Apache-2.0 */
/* Random communication steps and their expected outputs: every member's output equals, to the bit, the result of copying and adding in
 * member order. Members are threads on the strict transport. */
#ifndef TESTS_COMM_SCENE_H
#define TESTS_COMM_SCENE_H

#include <stdbool.h>

#include "runtime/device/device.h"

#define SCENE_MEMBERS 20 /* maximum; of sums and gathers: so many that they pass along the members */
#define SCENE_FEW 6      /* of other steps, and of most of these */

/* The devices and transports that steps run on. */
struct scene_ground {
	struct hspmd_device *(*open)(int rank); /* open a member's device; NULL: not available */
	void (*close)(struct hspmd_device *dev);
	bool devcomm;    /* devices communicate without the transport (in some scenes all but one); sums are then of integers, for which the
	                    order does not matter */
	int64_t longest; /* rows and columns of the largest tensors */
	int directs;     /* counted: scenes in which a group used device-to-device communication */
};
void scene_use(struct scene_ground *ground);

/* dst += src on a part, on the host. */
void scene_add_box(float *dst, const struct hspmd_box *dst_box, const float *src, const struct hspmd_box *src_box,
                   const struct hspmd_box *part);

/* Run this many steps of a kind and check each. */
void scene_sums(int trials);
void scene_gathers(int trials);
void scene_batched(int trials);
void scene_local_and_pair(int trials);

#endif
