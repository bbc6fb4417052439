/* SPDX-License-Identifier: Apache-2.0 */
/* For tests of checkpoints: shards that workers of different plans write, from devices whose memory is the host's or their own. Include
 * after cmocka.h. */
#ifndef HSPMD_TESTS_STATE_SHARDS_H
#define HSPMD_TESTS_STATE_SHARDS_H

#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>

#include "runtime/state/state_internal.h"
#include "tests/unit/state_folder.h"

/* Pointers into memory that is not the host's are this much higher than where the data are. */
#define SCENE_FAR ((uintptr_t)1 << 56)
extern const struct hspmd_device_ops scene_near_ops;

/* Of a device that can be read concurrently with its kernels: by the writer's thread, after all enqueued work is done, and in order with
 * the kernels by a caller that delays training. */
extern const struct hspmd_device_ops scene_lane_ops;
extern struct scene_lane {
	pthread_t trains;
	atomic_int synchronised, beside, fails; /* fails: reads that fail */
} scene_lane;

/* Writes one worker's shard into its node's location (and `more`, if not NULL), from a device with its own memory if `far`; returns the
 * report's shard. */
json_t *scene_write_shard(int along, int worker, int workers, int64_t step, bool far, const char *more);

/* Writes the shards of all workers and commits the checkpoint in their locations, with a manifest that is a root if scene_with_roots. */
extern bool scene_with_roots;
struct hspmd_manifest *scene_write_all(int along, int workers, int64_t step, const char *more);

#endif
