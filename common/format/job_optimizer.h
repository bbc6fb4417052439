/* SPDX-License-Identifier: Apache-2.0 */
/* The section "optimizer" of hspmd-job-1, for common/format/job.c. hspmd_job_lr and hspmd_job_decays are declared in job.h. */
#ifndef HSPMD_FORMAT_JOB_OPTIMIZER_H
#define HSPMD_FORMAT_JOB_OPTIMIZER_H

#include "common/format/job.h"
#include "common/json.h"

/* Reads the section; `steps` must have been read. 0 or -1, noted in the document. */
int hspmd_job_optimizer_read(struct hspmd_job *j, struct hspmd_json *root);
json_t *hspmd_job_optimizer_json(const struct hspmd_job *j); /* NULL: out of memory */
void hspmd_job_optimizer_clear(struct hspmd_job *j);

#endif
