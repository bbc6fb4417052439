/* SPDX-License-Identifier: Apache-2.0 */
/* A program made ready for steps: its operators' calls are prepared (runtime/device/device.h), and what can be captured of it is
 * (replay.h). An executor keeps one for each program that it has run, so that steps of every length find theirs. */
#ifndef HSPMD_EXEC_PREPARED_PROGRAM_H
#define HSPMD_EXEC_PREPARED_PROGRAM_H

#include "runtime/comm/engine.h"
#include "runtime/exec/replay.h"
#include "runtime/exec/update_groups.h"

struct hspmd_executor;

struct hspmd_prepared_program {
	const struct hspmd_program *program;
	struct hspmd_prepared **calls;   /* [instruction_count]; NULL: those that run no kernel, or the device prepares nothing */
	struct hspmd_engine_job *joined; /* of all instructions that run with one before them, in order; NULL: none */
	size_t *joined_at;               /* [instruction_count]: where those of an instruction begin; NULL: there are none */
	struct hspmd_replay *replay;   /* NULL: every instruction is run on its own */
	size_t *input_at;              /* [vote + 1] where a READ finds its samples (step_inputs.h); NULL: it reads them itself */
	struct hspmd_update_groups *updates; /* NULL: nothing is updated beside the next step */
};

/* Makes the executor's program ready, unless that has been done; its memory and workspace must be there. 0 or -1 and err. */
int hspmd_executor_prepare(struct hspmd_executor *ex, struct hspmd_error *err);
/* Memory that calls use has moved: whatever was captured is captured anew. */
void hspmd_executor_forget_captured(struct hspmd_executor *ex);
/* This program will not run again. */
void hspmd_executor_forget_program(struct hspmd_executor *ex, const struct hspmd_program *p);
void hspmd_executor_forget_prepared(struct hspmd_executor *ex);

#endif
