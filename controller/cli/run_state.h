/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of the runtime that the job controller calls through its config: which checkpoints are complete, and belong to this run. */
#ifndef HSPMD_CONTROLLER_CLI_RUN_STATE_H
#define HSPMD_CONTROLLER_CLI_RUN_STATE_H

#include "controller/core/controller.h"
#include "runtime/generation/root_files.h"

/* Sets them in the config. `roots` is borrowed for its lifetime. */
void run_state_bind(struct run_config *c, struct hspmd_root_checker *roots);

#endif
