/* SPDX-License-Identifier: Apache-2.0 */
/* The section "samples" of a job file: texts that the model continues now and then while it trains. */
#ifndef HSPMD_FORMAT_JOB_SAMPLES_H
#define HSPMD_FORMAT_JOB_SAMPLES_H

#include "common/format/job.h"
#include "common/json.h"

/* Reads the section; `checkpoint` must have been read. Mistakes are noted in the document. */
void hspmd_job_samples_read(struct hspmd_job *j, struct hspmd_json *root);
/* Checks the tokenizer against the model. 0, or -1 and err. */
int hspmd_job_samples_check(const struct hspmd_job *j, const struct hspmd_model *m, struct hspmd_error *err);
json_t *hspmd_job_samples_json(const struct hspmd_job *j); /* NULL: out of memory */
void hspmd_job_samples_clear(struct hspmd_job *j);

#endif
