/* SPDX-License-Identifier: Apache-2.0 */
/* What the model of a run said while it trained: the lines of samples.jsonl. */
#ifndef HSPMD_CONTROLLER_REPORT_SAMPLE_TABLE_H
#define HSPMD_CONTROLLER_REPORT_SAMPLE_TABLE_H

#include <stdio.h>

#include "controller/report/report_run.h"

#define REPORT_SAMPLES_MAX 200 /* the newest are shown */

/* The newest lines { step, prompt, text, ... }, the oldest first; of a step that was sampled again only the last. Lines that are no samples
 * are left out. NULL: out of memory. */
json_t *report_samples_read(const struct report_run *r);
/* Writes nothing if the list is empty. */
void report_samples_write(FILE *out, const struct report_run *r, const json_t *samples);

#endif
