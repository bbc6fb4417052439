/* SPDX-License-Identifier: Apache-2.0 */
/* Communication steps made up at random, and what must come of them: every member's output is, to the bit, what copying and adding in
 * member order gives. Members are threads on the strict transport. */
#ifndef TESTS_COMM_SCENE_H
#define TESTS_COMM_SCENE_H

#include <stdbool.h>

#include "runtime/device/device.h"

#define SCENE_MEMBERS 6 /* at most */

/* On what the steps run. */
struct scene_ground {
	struct hspmd_device *(*open)(int rank); /* a member's device; NULL: none can be had */
	void (*close)(struct hspmd_device *dev);
	bool devcomm; /* devices communicate without the transport (all but one of some scenes); sums are then of whole numbers, whose order
	                 does not matter */
	int64_t longest; /* rows and columns of the largest tensors */
	int directs;     /* counted: scenes in which a group was direct */
};
void scene_use(struct scene_ground *ground);

/* dst += src on a part, on the host. */
void scene_add_box(float *dst, const struct hspmd_box *dst_box, const float *src, const struct hspmd_box *src_box,
                   const struct hspmd_box *part);

/* So many steps of a kind, each checked. */
void scene_sums(int trials);
void scene_gathers(int trials);
void scene_batched(int trials);
void scene_local_and_pair(int trials);

#endif
