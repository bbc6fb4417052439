/* SPDX-License-Identifier: Apache-2.0 */
/* The keys of hspmd-job-1 that name another trainer: "command", "per_node", "notice", "folder". For common/format/job.c, and for a command
 * that is given on the command line. */
#ifndef HSPMD_FORMAT_JOB_COMMAND_H
#define HSPMD_FORMAT_JOB_COMMAND_H

#include "common/format/job.h"
#include "common/json.h"

#define HSPMD_COMMAND_ARGUMENTS_MAX 4096
#define HSPMD_NOTICE_DEFAULT "TERM:60"

/* "SIGNAL:SECONDS" or "SIGNAL"; SIGNAL is TERM, USR1, SIGUSR1 or the like. 0, or -1 and err; the values are then unchanged. */
int hspmd_job_notice_parse(const char *text, int *signal, double *seconds, struct hspmd_error *err);
char *hspmd_job_notice_text(int signal, double seconds); /* malloc'd; NULL: out of memory */

/* Reads the keys from the job file. 0 or -1, noted in the document. */
int hspmd_job_command_read(struct hspmd_job *j, struct hspmd_json *root);
/* Adds the keys to the job's JSON. Nonzero: out of memory. */
int hspmd_job_command_write(const struct hspmd_job *j, json_t *job);
void hspmd_job_command_clear(struct hspmd_job *j);

/* Checks the {...} of all arguments (common/template.h), whatever the world size. */
int hspmd_job_command_check(const struct hspmd_job *j, struct hspmd_error *err);

/* A job without a file, all else as in a job file that has only the command: `count` arguments, none if the script names them. `name`
 * takes the place of the file's name in messages. */
struct hspmd_job *hspmd_job_from_command(char *const *argv, int count, const char *name, struct hspmd_error *err);

#endif
