/* SPDX-License-Identifier: Apache-2.0 */
/* The threads of `hspmd top` that wait for controllers, so that keys never do. */
#ifndef HSPMD_CONTROLLER_CLI_TOP_ASK_H
#define HSPMD_CONTROLLER_CLI_TOP_ASK_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "common/error.h"

struct top_ask;

/* Returns false and err if neither a contact file nor Slurm knows the job. Blocks while it asks Slurm. */
bool top_ask_knows(const char *job, struct hspmd_error *err);
/* Asks at once, and again every `every_s` seconds: about this job, or, job "", for the list of the user's jobs. NULL and err. There is one
 * per process; it lives until the process ends. */
struct top_ask *top_ask_start(const char *job, double every_s, struct hspmd_error *err);
/* Readable if there is something to take. */
int top_ask_fd(const struct top_ask *a);
/* From now on asks about this job ("": the list). An answer about another is dropped. */
void top_ask_about(struct top_ask *a, const char *job);
/* Takes the newest answer. Returns false if there is none since the last call. *answer: the job's status with detail, or the list of jobs
 * (new reference; NULL: there was no answer, and `why` says the reason). */
bool top_ask_take(struct top_ask *a, json_t **answer, char *why, size_t size);
/* Sends a request such as { command: "grow", nodes: 4 } to the job's controller, which may take minutes. Steals it. false: another one is
 * still under way. */
bool top_ask_request(struct top_ask *a, json_t *request);
/* Takes the answer to the last request, in words. Returns false if there is none yet. */
bool top_ask_take_notice(struct top_ask *a, char *text, size_t size);

#endif
