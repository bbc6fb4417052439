/* SPDX-License-Identifier: Apache-2.0 */
/* Programs for steps that mix lengths: the number of micro-batches, and each one's samples and length, are symbols of one program, which
 * has as many and as large micro-batches as any step may have (hspmd_plan_for_any_step). A step's program is that one without the
 * micro-batches that the step does not have, with sizes bound for the others (after Hetu v2's symbolic shapes, arXiv 2504.20490, section
 * 5.5). What is left of a schedule without its last micro-batches is a schedule: no pass waits for anything that it has not. Memory and
 * state are the program's, so that an executor can change between steps' programs. */
#ifndef HSPMD_PROGRAM_STEP_PROGRAM_H
#define HSPMD_PROGRAM_STEP_PROGRAM_H

#include "common/step_batches.h"
#include "runtime/program/program.h"

struct hspmd_step_programs;

/* any: the program that has room for every step. lengths: `count` of them, ascending; copied. All others are borrowed. NULL and err:
 * memory, or a value of any's outlives its micro-batch and has its size. */
struct hspmd_step_programs *hspmd_step_programs_create(const struct hspmd_program *any, const struct hspmd_graph_source *source,
                                                       const int64_t *lengths, int count, struct hspmd_device *dev,
                                                       struct hspmd_error *err);
void hspmd_step_programs_destroy(struct hspmd_step_programs *s);

/* The program of a step, which the caller destroys before `s`. Losses are means over the step's tokens. NULL and err: memory; the parts on
 * the devices do not allow a length, or the micro-batch needs more memory than there is (err says of what). */
struct hspmd_program *hspmd_step_program_make(struct hspmd_step_programs *s, const struct hspmd_step_batches *batches,
                                              struct hspmd_error *err);

/* Checks that micro-batches of every length, with at most most[length] samples (0: none), can be bound: one sample can be divided if and
 * only if every number of them can, and the largest number needs the most memory. 0 or -1 and err. */
int hspmd_step_programs_check(struct hspmd_step_programs *s, const int *most, struct hspmd_error *err);

#endif
