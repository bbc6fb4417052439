/* SPDX-License-Identifier: Apache-2.0 */
/* All programs of one device under a plan: those of the plan itself and of its plans for shorter steps, at every length that steps have.
 * They work on one training state in one block of memory, which has room for the largest of them, so that an executor can change from one
 * to another between two steps (hspmd_executor_set_program). What changes is where parameters are used, and how the passes divide the
 * work; the state stays, which sets this apart from switching graphs at a change of plans (HSPMD, arXiv 2504.20490; HotSPa, SOSP'24). */
#ifndef HSPMD_PROGRAM_PROGRAM_SET_H
#define HSPMD_PROGRAM_PROGRAM_SET_H

#include "common/step_batches.h"
#include "runtime/program/program.h"
#include "runtime/program/step_program.h"

#define HSPMD_STEP_PROGRAMS_KEPT 3 /* a step's own, and those of the steps before and after it */

/* The program of one step that mixes lengths. */
struct hspmd_kept_program {
	int64_t step;
	struct hspmd_program *program; /* NULL: none */
};

struct hspmd_program_set {
	int count;                       /* 1 + the plan's shorter_count */
	struct hspmd_program **programs; /* by hspmd_plan_for_length; each at its plan's own length */
	/* If steps mix lengths: their programs, made as they are needed, of the only one in `programs`, which has room for each. */
	struct hspmd_step_programs *mixed; /* NULL: they do not, or the device is in no stage */
	struct hspmd_pipeline_rates *rates;
	int pipeline_count, global_batch, mixed_lengths;
	struct hspmd_kept_program kept[HSPMD_STEP_PROGRAMS_KEPT];
	int length_count;
	struct hspmd_program *
	        *at_length; /* by index of the lengths; NULL: all steps have the plan's length, or the device is in no stage */
};

/* The lengths that steps have, at most the plan's. */
struct hspmd_step_lengths {
	const int64_t *lengths;
	int count;
	const char *file; /* whose data.lengths they are, for errors; NULL: of no file */
	bool mixed;       /* a step has samples of several lengths */
};

/* lengths NULL, or of none: all steps have the plan's length. A length that a plan's parts do not allow is an error that names it. NULL and
 * err; the rest as in hspmd_program_build. */
struct hspmd_program_set *hspmd_program_set_build(const struct hspmd_graph_source *source, const struct hspmd_plan *plan,
                                                  const struct hspmd_cluster *cluster, int device, struct hspmd_device *dev,
                                                  const struct hspmd_step_lengths *lengths, struct hspmd_error *err);
void hspmd_program_set_destroy(struct hspmd_program_set *s);

/* Gives operators no more workspace than `most` bytes for what they can compute with less (`workspace_most` of struct hspmd_kernel_args).
 * No executor may use one of the programs yet. */
void hspmd_program_set_limit_workspace(struct hspmd_program_set *s, uint32_t most, struct hspmd_device *dev);

/* The program for steps of the length with this index; without lengths that of the plan. */
const struct hspmd_program *hspmd_program_set_at(const struct hspmd_program_set *s, int length);

/* If steps mix lengths: the program of step `step`. length_of(context, number): the index of the length of sample `number` (step * global
 * batch + index in the batch), the same on all devices; NULL: all samples have the longest, as validation samples have. It stays until
 * HSPMD_STEP_PROGRAMS_KEPT others have been asked for. NULL and err: memory, or the step's samples cannot be divided. */
const struct hspmd_program *hspmd_program_set_for_step(struct hspmd_program_set *s, int64_t step,
                                                       int (*length_of)(void *context, int64_t number), void *context,
                                                       struct hspmd_error *err);

/* The communication of all programs, as hspmd_program_devcomm_uses. The caller frees the array. NULL: memory. */
struct hspmd_devcomm_use *hspmd_program_set_devcomm_uses(const struct hspmd_program_set *s, int lane, size_t *count);

#endif
