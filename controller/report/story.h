/* SPDX-License-Identifier: Apache-2.0 */
/* A run for somebody who has never seen one: what happened when, in sentences, and what it cost. */
#ifndef HSPMD_CONTROLLER_REPORT_STORY_H
#define HSPMD_CONTROLLER_REPORT_STORY_H

#include <stdio.h>

#include "controller/report/device_time.h"
#include "controller/report/summary.h"

#define REPORT_STORY_MAX 8 /* changes that it tells; of more the first and the last */

void report_story_write(FILE *out, const struct report_run *r, const struct report_summary *s, const struct report_device_time *t);

#endif
