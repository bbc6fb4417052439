/* SPDX-License-Identifier: Apache-2.0 */
/* The events of a run: its checkpoints, its faults, and all of them. */
#ifndef HSPMD_CONTROLLER_REPORT_EVENT_TABLE_H
#define HSPMD_CONTROLLER_REPORT_EVENT_TABLE_H

#include <stdbool.h>
#include <stdio.h>

#include "controller/report/report_run.h"

#define REPORT_EVENTS_MAX 1000 /* rows of a table; of more events the first and the last are shown */

bool report_event_is_checkpoint(const struct report_event *e); /* complete, failed or damaged */
bool report_event_is_fault(const struct report_event *e);
/* Writes nothing for a run without events. */
void report_events_write(FILE *out, const struct report_run *r);
/* The lines of events.jsonl that the table of all events has; NULL: out of memory. */
json_t *report_events_json(const struct report_run *r);

#endif
