/* SPDX-License-Identifier: Apache-2.0 */
/* The changes of a run's allocation in words. */
#ifndef HSPMD_CONTROLLER_REPORT_CHANGE_TABLE_H
#define HSPMD_CONTROLLER_REPORT_CHANGE_TABLE_H

#include <stdio.h>

#include "controller/report/report_run.h"

/* What to call the source of a generation's state: the line's word, or plainer ones. */
const char *report_state_words(const char *state);
/* In at most size - 1 bytes. */
void report_change_label(const struct report_change *c, char *text, size_t size); /* "4→2" */
void report_change_title(const struct report_change *c, char *text, size_t size);
/* "20.6 MB from own memory, ..."; nothing if nothing moved. */
void report_change_bytes(FILE *out, const struct report_change *c);
/* Why there was a change, for a sentence: "because a node was lost". "" for a cause that says nothing. */
const char *report_cause_words(const char *cause);
/* Writes nothing for a run without changes. */
void report_changes_write(FILE *out, const struct report_run *r);

#endif
