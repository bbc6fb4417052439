/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of the runtime that the job controller calls through its config: which checkpoints are complete, and belong to this run. */
#ifndef HSPMD_CONTROLLER_CLI_RUN_STATE_H
#define HSPMD_CONTROLLER_CLI_RUN_STATE_H

#include "controller/core/controller.h"
#include "runtime/generation/root_files.h"

/* The config's `state` is a struct hspmd_root_checker. */

json_t *run_state_manifest(const struct run_config *c, const char *id, json_t *cluster, json_t *plan, json_t *written,
                           struct hspmd_error *err);
int run_state_choose(const struct run_config *c, json_t *found, json_t *readers, struct run_checkpoint_choice *choice,
                     struct hspmd_error *err);

#endif
