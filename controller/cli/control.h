/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HSPMD_CONTROLLER_CLI_CONTROL_H
#define HSPMD_CONTROLLER_CLI_CONTROL_H

#include <jansson.h>
#include <stdbool.h>

#include "common/error.h"

/* Returns true if the arguments, apart from options, are one word that is none of `verbs` (NULL-terminated). The word then names a running
 * job: a number, "local", or an output folder. Inside a Slurm job the word may be missing: it is that job. */
bool hspmd_control_names_job(int argc, char **argv, const char *const *verbs);
/* `hspmd checkpoint JOB`: make a running job write a checkpoint now. (`hspmd checkpoint list` and the like read folders.) */
int hspmd_control_checkpoint(int argc, char **argv);

/* Sends one request to the controller that `contact` names, and returns its answer; waits up to greet_s for the connection and as long for
 * the handshake, then up to answer_s. New reference; NULL and err. */
json_t *hspmd_control_call(const json_t *contact, json_t *hello, double greet_s, double answer_s, struct hspmd_error *err);
/* What Slurm says of a job whose controller has not answered: { job, phase: "pending", "suspended" or, unless has_controller, "starting",
 * reason: in words, "" if there is none }. New reference; NULL: nothing that explains it, or no Slurm. */
json_t *hspmd_control_ask_slurm(const char *job, bool has_controller);
/* The elastic jobs of this user, also those that wait: a list of what their controllers or Slurm say of them. New reference. */
json_t *hspmd_control_jobs(void);
/* `hspmd status` without a job: a line per elastic job of this user, also of those that wait. Returns the exit status. */
int hspmd_control_list(bool json);

#endif
