/* SPDX-License-Identifier: Apache-2.0 */
/* The job controller's decisions about checkpoints, on the messages of common/wire.h. Pure functions. */
#ifndef HSPMD_STATE_CHECKPOINT_CHOICE_H
#define HSPMD_STATE_CHECKPOINT_CHOICE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/error.h"
#include "runtime/state/manifest.h"

/* The manifest of the shards that all workers wrote (their `checkpoint_written` messages, some of which may report errors). If a worker
 * could not write its shard, a copy replaces it. It is a root if the workers report for a root: then `check` tells whether anything is
 * missing. `job` is stored in the manifest. New reference; NULL and err if something is missing. */
json_t *hspmd_manifest_from_reports(json_t *written, json_t *job, const struct hspmd_root_check *check, struct hspmd_error *err);

struct hspmd_checkpoint_choice {
	int64_t step;
	char sum[HSPMD_MANIFEST_SUM]; /* of its manifest */
	json_t *manifest, *files;     /* in the form that `start` has them; new references */
	bool durable;                 /* it is on at least one disk */
};

/* The newest checkpoint of which everything can be read. found: { node: `checkpoints` of its agent's `checkpoint_list`, or null }; those
 * may have `unreadable`: [[shard that the node has but cannot read, sum of the manifest by which it should have been read]]. manifests:
 * { sum: manifest, or null if nobody could send it }, those that are known. readers: { node: address of the device that reads its files }.
 * check: of roots some of whose shards are missing. 0: it is chosen. 1: that depends on the manifest that choice->sum names, which is not
 * known; choice->manifest and files are NULL. -1 and err: there is none (says what the newest lacks). */
int hspmd_checkpoint_choose(json_t *found, json_t *manifests, json_t *readers, const struct hspmd_root_check *check,
                            struct hspmd_checkpoint_choice *choice, struct hspmd_error *err);

/* Whether what a node has sent is a manifest, and of this sum. 0; -1 and err: what is wrong with it. */
int hspmd_manifest_is(const json_t *manifest, const char *sum, struct hspmd_error *err);

#endif
