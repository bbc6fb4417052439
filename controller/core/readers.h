/* SPDX-License-Identifier: Apache-2.0 */
/* Members of the next generation that the plan does not use: they read files of a checkpoint on their nodes, send the state, and quit. */
#ifndef HSPMD_CORE_READERS_H
#define HSPMD_CORE_READERS_H

#include "controller/core/controller_internal.h"

/* Starts those that have no process. */
void readers_spawn(struct hspmd_controller *m, const struct generation *g);
/* Returns true if all have one. */
bool readers_up(const struct hspmd_controller *m, const struct generation *g);
/* Adds those that have one to the members of g. -1: out of memory. */
int readers_join(struct hspmd_controller *m, struct generation *g);
/* Returns true if the next generation waits for this worker to read. */
bool reads_for_next(const struct hspmd_controller *m, const struct worker *w);
/* All have started: the next plan needs none. */
void readers_forget(struct hspmd_controller *m);

/* `readers` maps the nodes of the next generation's members to those who read there; with it the checkpoint of `step` (-1: none) can be
 * continued from. Returns true if nodes without a member have a newer one, or may have: the generation must be begun again (`again`), or
 * one of them was asked for a manifest. */
bool readers_beyond(struct hspmd_controller *m, const json_t *readers, int64_t step);

#endif
