/* SPDX-License-Identifier: Apache-2.0 */
/* For tests of the commands that ask a running job: a command as a process of its own, and a controller that the test plays. */
#ifndef HSPMD_TESTS_CONTROL_CASE_H
#define HSPMD_TESTS_CONTROL_CASE_H

#include <sys/types.h>

#include "common/error.h"
#include "tests/unit/fake_controller.h"

extern struct fake_controller control_controller;
extern struct hspmd_error control_err;
extern char control_folder[];
extern char control_out[65536], control_said[65536];
extern pid_t control_running;
const char *control_path_of(const char *name);
/* Writes the contact file of the job 7. */
void control_job_runs(void);
int control_fresh(void **state);
int control_stop(void **state);
/* Starts `hspmd` with these words, separated by spaces. */
void control_start(const char *words);
/* Waits for the command's end; the test fails unless it has this exit status. */
void control_ends_with(int expected);
void control_says(const char *where, const char *text);
/* Accepts the request; the test fails unless it has these fields. */
void control_asked(const char *fields);
void control_answer(const char *text);

#endif
