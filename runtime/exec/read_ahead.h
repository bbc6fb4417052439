/* SPDX-License-Identifier: Apache-2.0 */
/* The samples of the next step, read into host memory while the device still computes the present one, so that it does not wait for files.
 * What was read ahead counts only for the step, the program and the source that it was read for; whatever else a step asks for is read when
 * it asks, and so are samples that could not be read ahead. */
#ifndef HSPMD_EXEC_READ_AHEAD_H
#define HSPMD_EXEC_READ_AHEAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct hspmd_executor;
struct hspmd_instruction;
struct hspmd_program;
struct hspmd_error;

/* Zeroed: nothing was read. */
struct hspmd_read_ahead {
	const struct hspmd_program *program;
	int64_t step;
	bool whole;         /* all that the step's READ instructions read is in `bytes`, in their order */
	double loss_factor; /* of the step (sample_source.h) */
	char *bytes;
	size_t capacity, taken; /* taken: bytes that the step's instructions have taken so far */
};

/* Bytes that an instruction reads; 0: it is no READ. */
size_t hspmd_program_read_size(const struct hspmd_program *p, const struct hspmd_instruction *in);
/* Reads what instruction `in` of program p reads in a step; `to` has room for its slot. 0 or -1 and err. */
int hspmd_executor_read_input(const struct hspmd_executor *ex, const struct hspmd_program *p, const struct hspmd_instruction *in,
                              int64_t step, char *to, struct hspmd_error *err);

/* To be called when all of a step's passes have been asked of the device, before anything waits for it. Does nothing if the device computes
 * while it is asked, or if there is no next step. */
void hspmd_executor_read_ahead(struct hspmd_executor *ex);
/* Begins a step: sets the executor's loss_factor. */
void hspmd_executor_begin_reading(struct hspmd_executor *ex);
/* What the step's next READ instruction reads; NULL: it was not read ahead. */
const char *hspmd_executor_take_input(struct hspmd_executor *ex, size_t bytes);
/* The source is another: forgets what was read from it. */
void hspmd_executor_forget_samples(struct hspmd_executor *ex);

#endif
