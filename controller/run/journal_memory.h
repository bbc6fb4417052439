/* SPDX-License-Identifier: Apache-2.0 */
/* The journal for the next incarnation of the controller, in memory that all its incarnations share: the process that starts them makes
 * it. It outlives an incarnation that is killed at any instant, and keeping something in it waits for no disk and no folder. When that
 * process ends, too, so do the agents, and nobody reads it. */
#ifndef HSPMD_CONTROLLER_RUN_JOURNAL_MEMORY_H
#define HSPMD_CONTROLLER_RUN_JOURNAL_MEMORY_H

#include <jansson.h>
#include <stdint.h>

#include "common/error.h"

struct run_journal_memory;

/* Before the first incarnation is forked. NULL and err. */
struct run_journal_memory *run_journal_memory_create(struct hspmd_error *err);
void run_journal_memory_destroy(struct run_journal_memory *j);
/* Replace the journal. The earlier one stays if this fails, or if the process is killed meanwhile. 0, or -1 and err. */
int run_journal_memory_save(struct run_journal_memory *j, const json_t *journal, struct hspmd_error *err);
/* A new reference; NULL: nothing has been saved. */
json_t *run_journal_memory_load(const struct run_journal_memory *j);
/* The last generation that was begun; 0: none. Its number must not be given to another one. */
void run_journal_memory_begin(struct run_journal_memory *j, int64_t generation);
int64_t run_journal_memory_generation(const struct run_journal_memory *j);
/* How many lines and files wait for the output folder; they end with the incarnation. */
void run_journal_memory_set_waiting(struct run_journal_memory *j, long count);
long run_journal_memory_waiting(const struct run_journal_memory *j);

#endif
