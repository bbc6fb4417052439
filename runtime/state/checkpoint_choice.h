/* SPDX-License-Identifier: Apache-2.0 */
/* The job controller's judgements about checkpoints, on the messages of common/wire.h. Pure. */
#ifndef HSPMD_STATE_CHECKPOINT_CHOICE_H
#define HSPMD_STATE_CHECKPOINT_CHOICE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/error.h"

/* The manifest of what all workers wrote (their `written` answers, of which some may tell of errors): what one could not write a copy may
 * stand for. `job` is kept in it. New reference; NULL and err when something is missing. */
json_t *hspmd_manifest_from_reports(json_t *written, json_t *job, struct hspmd_error *err);

struct hspmd_checkpoint_choice {
	int64_t step;
	json_t *manifest, *files; /* as `start` wants them; new references */
	bool durable;             /* it is on some disk */
};

/* The newest checkpoint of which everything can be read. found: { node: `checkpoints` of its agent's `found`, or null }; readers: { node:
 * device address that reads its files }. 0; -1 and err: there is none (says what the newest lacks). */
int hspmd_checkpoint_choose(json_t *found, json_t *readers, struct hspmd_checkpoint_choice *choice, struct hspmd_error *err);

#endif
