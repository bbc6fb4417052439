/* SPDX-License-Identifier: Apache-2.0 */
/* The executor, shared by execute.c (its life and its memory) and execute_step.c (its steps). */
#ifndef HSPMD_EXEC_EXECUTE_INTERNAL_H
#define HSPMD_EXEC_EXECUTE_INTERNAL_H

#include "runtime/exec/execute.h"
#include "runtime/exec/prepared_program.h"
#include "runtime/exec/read_ahead.h"
#include "runtime/exec/step_inputs.h"
#include "runtime/state/spill.h"

struct hspmd_executor {
	struct hspmd_executor_options o;
	const struct hspmd_program *p;
	struct hspmd_engine *flow;    /* communication that passes wait for; NULL: there is one device */
	struct hspmd_engine *overlap; /* sums of gradients, and gathering of parameters */
	bool threaded;                /* engines have threads */
	char *bases[HSPMD_ARENAS];    /* by arena, as the device addresses them */
	bool borrowed[HSPMD_ARENAS];  /* belongs to o.persistent, or is in one block with the fixed arena */
	struct hspmd_spill spilled;   /* the fixed arena while another plan uses the device memory; the device may be unable to access it */
	void *workspace;
	size_t workspace_bytes;
	struct hspmd_step_inputs inputs;
	double *scalar;                /* on the device: sum of squares */
	bool running;                  /* a step's passes were begun and not finished: the device may still run them */
	bool updating;                 /* the latest updates may still run beside what follows */
	bool torn;                     /* an update was asked for and may or may not have been done */
	int joined;                    /* groups of updates that this step's passes wait for so far */
	double loss_factor;            /* of this step (sample_source.h) */
	bool copied;                   /* copies of parameters in the operators' type are up to date */
	int gathered;                  /* `which` of the programs that parameters were last gathered for; -1: they have changed since */
	int64_t step;                  /* whose gradients were computed last */
	char *samples;                 /* in host memory, for one READ */
	struct hspmd_read_ahead ahead; /* the next step's samples */
	struct hspmd_op_attr *updates; /* one entry per parameter */
	struct hspmd_kernel_args
	        *all; /* the arguments of every parameter's update, if the device can run a batch of updates; otherwise NULL */
	struct hspmd_prepared_program **prepared; /* the programs that have run; NULL: none */
	size_t prepared_count, prepared_capacity;
	struct hspmd_prepared_program *now; /* that of p */
	struct hspmd_totals *votes;         /* room for those of all voters */
};

/* Instruction `in` of the program that runs; attr NULL: the instruction's own. 0 or -1 and err. */
int hspmd_executor_run_kernel(struct hspmd_executor *ex, const struct hspmd_instruction *in, const struct hspmd_op_attr *attr,
                              struct hspmd_error *err);
/* Bytes of a slot of the program that runs, and their address (NULL: no slot). */
static inline size_t hspmd_running_slot_bytes(const struct hspmd_executor *ex, int slot)
{
	return slot < 0 ? 0 : ex->p->slot_types[ex->p->slots[slot].slot_type].bytes;
}
static inline void *hspmd_running_slot(const struct hspmd_executor *ex, int slot)
{
	return slot < 0 ? NULL : ex->bases[ex->p->slots[slot].memory] + ex->p->slots[slot].offset;
}

/* What an engine needs to run a message's instruction by itself. */
struct hspmd_engine_job hspmd_executor_job(const struct hspmd_executor *ex, const struct hspmd_instruction *in);
/* If instructions are measured: records the time that instruction i took since *then. 0 or -1 and err. */
int hspmd_executor_record_time(struct hspmd_executor *ex, size_t i, double *then, struct hspmd_error *err);

/* Asks for the updates of all parameters, with the values that the device was given (step_inputs.h) or, if it takes none, with those of a
 * step whose gradients have this sum of squares. *beside: they run beside what follows. 0 or -1 and err. */
int hspmd_executor_update(struct hspmd_executor *ex, int64_t step, double square_sum, bool *beside, struct hspmd_error *err);

/* Waits until updates that run beside other work are done: before anything but the passes looks at the state. 0 or -1 and err. */
int hspmd_executor_finish_update(const struct hspmd_executor *ex, struct hspmd_error *err);

/* The kernel arguments of an instruction of the program that runs; attr NULL: the instruction's own. */
void hspmd_executor_set_args(const struct hspmd_executor *ex, const struct hspmd_instruction *in, const struct hspmd_op_attr *attr,
                             struct hspmd_kernel_args *args);

#endif
