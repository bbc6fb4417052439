/* SPDX-License-Identifier: Apache-2.0 */
/* Initial values of parameters, and the copies of parameters in the type that operators use. Random numbers are a function of the job's
 * seed, the parameter's name, the element's index in the full tensor and, for a copy, the number of updates that the original has had.
 * So they are the same under any plan and after any restart or switch (doc/design.md, law 1). */
#ifndef HSPMD_EXEC_PARAMETERS_H
#define HSPMD_EXEC_PARAMETERS_H

#include "common/format/job.h"
#include "runtime/program/program.h"

/* Fill all state on this device: parameters at random by the job's seed, moments with 0. bases: as in hspmd_program_slot_view. 0 or -1. */
int hspmd_parameters_initialise(const struct hspmd_program *p, struct hspmd_device *dev, char *const *bases, const struct hspmd_job *job,
                                struct hspmd_error *err);

/* Set in attr how one parameter's copy is rounded (stochastic, random). updates: number of updates that its state has had; 0 at the
 * beginning, step + 1 after the update of a step. */
void hspmd_parameters_rounding(const struct hspmd_program_state *s, const struct hspmd_job *job, int64_t updates,
                               struct hspmd_op_attr *attr);

/* Compute all copies from a state that has had `updates` updates: with the same bits as the update itself would have written. 0 or -1. */
int hspmd_parameters_copy(const struct hspmd_program *p, struct hspmd_device *dev, char *const *bases, const struct hspmd_job *job,
                          int64_t updates, struct hspmd_error *err);

#endif
