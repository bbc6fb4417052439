/* SPDX-License-Identifier: Apache-2.0 */
/* What a step takes from the host: its samples, and the numbers that differ from step to step (runtime/device/step_values.h). On a device
 * that reads memory of the host, both are in places that stay, so that all of a step's passes can be captured, and so can the updates. The
 * passes have values of their own, for the updates may still run beside the next step's passes. */
#ifndef HSPMD_EXEC_STEP_INPUTS_H
#define HSPMD_EXEC_STEP_INPUTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/error.h"
#include "runtime/device/step_values.h"

struct hspmd_executor;
struct hspmd_prepared_program;
struct hspmd_program;

struct hspmd_step_inputs {
	struct hspmd_step_values *host; /* of the step, which the device reads; NULL: it takes them from arguments, and samples when it is
	                                   asked to read them */
	struct hspmd_step_values *passes, *update; /* on the device */
	size_t bytes;                              /* of each */
	char *samples;                             /* of the step, in the order of the READ instructions; the device reads them */
	size_t capacity;
};

/* Most bytes of each of `passes` and `update`. */
size_t hspmd_executor_input_bytes(const struct hspmd_program *p);

/* 0 or -1 and err. The executor's `scalar` is then on the device. */
int hspmd_executor_open_inputs(struct hspmd_executor *ex, struct hspmd_error *err);
void hspmd_executor_close_inputs(struct hspmd_executor *ex);

/* Makes room for the samples of a program that is made ready. *moved: their place is another than before. 0 or -1 and err. */
int hspmd_executor_make_input_room(struct hspmd_executor *ex, struct hspmd_prepared_program *of, bool *moved, struct hspmd_error *err);
/* Puts samples and values of step `ex->step` where the device reads them. The passes before must be done. 0 or -1 and err. */
int hspmd_executor_stage_inputs(struct hspmd_executor *ex, struct hspmd_error *err);
/* Asks the device to take the values for the passes, with no square added yet; and, behind the passes, to hand them over to the update.
 * Both can be captured. 0 or -1 and err. */
int hspmd_executor_take_values(struct hspmd_executor *ex, struct hspmd_error *err);
int hspmd_executor_hand_over_values(struct hspmd_executor *ex, struct hspmd_error *err);
/* Gives the update the values of a step whose gradients have this sum of squares over all devices. 0 or -1 and err. */
int hspmd_executor_set_update_values(struct hspmd_executor *ex, int64_t step, double square_sum, struct hspmd_error *err);

#endif
