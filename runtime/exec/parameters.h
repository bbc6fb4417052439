/* SPDX-License-Identifier: Apache-2.0 */
/* What parameters begin with, and the copies of them in the type that operators use. Whatever is drawn at random follows from the job's
 * seed, the parameter's name, the element's index in the full tensor and, for a copy, how many updates have made what is copied: the same
 * numbers under any plan, after any restart or switch (DESIGN law 1). */
#ifndef HSPMD_EXEC_PARAMETERS_H
#define HSPMD_EXEC_PARAMETERS_H

#include "common/format/job.h"
#include "runtime/program/program.h"

/* Fill all state that is here: parameters at random as the job's seed says, moments with 0. bases: as in hspmd_program_slot_view. 0 or
 * -1. */
int hspmd_parameters_initialise(const struct hspmd_program *p, struct hspmd_device *dev, char *const *bases, const struct hspmd_job *job,
                                struct hspmd_error *err);

/* How one parameter's copy is rounded, into attr (stochastic, random). updates: how many its state has had; 0 at the beginning, step + 1
 * after the update of a step. */
void hspmd_parameters_rounding(const struct hspmd_program_state *s, const struct hspmd_job *job, int64_t updates,
                               struct hspmd_op_attr *attr);

/* Make all copies anew from a state that has had so many updates: the bits that the update itself would have left. 0 or -1. */
int hspmd_parameters_copy(const struct hspmd_program *p, struct hspmd_device *dev, char *const *bases, const struct hspmd_job *job,
                          int64_t updates, struct hspmd_error *err);

#endif
