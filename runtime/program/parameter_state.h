/* SPDX-License-Identifier: Apache-2.0 */
/* The training state of parameters in a program: its slots, and the transfers between the devices that hold it and those that use the
 * parameter. Under zero_stage 2 and 3 these transfers belong to the passes (specialise.c), otherwise to the step's end
 * (gradient_sync.c). */
#ifndef HSPMD_PROGRAM_PARAMETER_STATE_H
#define HSPMD_PROGRAM_PARAMETER_STATE_H

#include "runtime/program/joined.h"
#include "runtime/program/parameter_layout.h"
#include "runtime/program/pipelines.h"
#include "runtime/program/program.h"

/* Numbers of the transfers of a parameter's gradient, and back to those that use it. They are above those of all nodes of a pipeline. */
#define HSPMD_PARAMETER_TRANSFER(parameter, back) (HSPMD_PROGRAM_STEP_TRANSFERS + 2 * (uint64_t)(parameter) + (back))

/* Of the parameter in operators; of the master parameter, its gradient and its moments. */
enum hspmd_dtype hspmd_parameter_used_type(const struct hspmd_program *p, const struct hspmd_parameter_layout *l);
enum hspmd_dtype hspmd_parameter_kept_type(const struct hspmd_program *p, const struct hspmd_parameter_layout *l);

/* Returns true if this device's stage uses the parameter. */
bool hspmd_parameter_is_here(const struct hspmd_program *p, int number);

/* Adds a slot for a box of the parameter. -1 and err. */
int hspmd_parameter_slot(struct hspmd_program *p, const struct hspmd_parameter_layout *l, const struct hspmd_box *box,
                         enum hspmd_dtype dtype, enum hspmd_arena_kind memory, struct hspmd_error *err);

/* The annotation of the gradient before it is summed: partial over the holders. The caller destroys it. NULL and err. */
struct hspmd_annotation *hspmd_parameter_gradient(const struct hspmd_program *p, const struct hspmd_pipelines *pipelines,
                                                  const struct hspmd_parameter_layout *l, struct hspmd_error *err);

/* Gives the transfer to the program, and destroys it on failure. 0, or -1 and err. */
int hspmd_parameter_own_transfer(struct hspmd_program *p, struct hspmd_transfer *t, struct hspmd_error *err);
/* Resolves a transfer of the parameter, or of its gradient, which the program then owns. NULL and err. */
const struct hspmd_transfer *hspmd_parameter_resolve(struct hspmd_program *p, const struct hspmd_parameter_layout *l,
                                                     const struct hspmd_annotation *from, const struct hspmd_annotation *to,
                                                     enum hspmd_dtype dtype, const struct hspmd_link_cost *cost, struct hspmd_error *err);

/* Which transfer of a parameter: of its gradient to its state, or back to the devices that use it. */
struct hspmd_parameter_path {
	int number;
	bool back;
	const struct hspmd_pipelines *pipelines; /* of a gradient */
};
/* The transfer as it is probably done together with others, from which follows what can be joined; valid until hspmd_joined_forget. NULL
 * and err. */
const struct hspmd_transfer *hspmd_parameter_likely(const struct hspmd_program *p, const struct hspmd_parameter_path *path,
                                                    struct hspmd_joined_costs *costs, struct hspmd_error *err);
/* The transfer as it is done if so much travels together. The program owns it. NULL and err. */
const struct hspmd_transfer *hspmd_parameter_joined(struct hspmd_program *p, const struct hspmd_parameter_path *path,
                                                    const struct hspmd_joined_bytes *bytes, struct hspmd_joined_costs *costs,
                                                    struct hspmd_error *err);

/* Before the passes are specialised: makes p->states. Those that are kept in parts during the passes get their transfers and slots. 0, or
 * -1 and err. */
int hspmd_parameter_shard_states(struct hspmd_program *p, const struct hspmd_pipelines *pipelines, const struct hspmd_link_cost *cost,
                                 struct hspmd_error *err);
/* After that: determines this device's part of a parameter's state, and adds the slots that it still lacks. 0, or -1 and err. */
int hspmd_parameter_add_state(struct hspmd_program *p, int number, struct hspmd_error *err);

#endif
