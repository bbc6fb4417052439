/* SPDX-License-Identifier: Apache-2.0 */
/* The file of a trace, which is written as its parts come: trace.part, until it is complete. */
#ifndef HSPMD_RUN_TRACE_FILE_H
#define HSPMD_RUN_TRACE_FILE_H

#include <jansson.h>

#include "common/error.h"

struct run_trace_file {
	char *part; /* path; NULL: no trace is being written */
	int fd;
	int broken; /* something could not be written: the rest is dropped */
};

/* Append text, which may begin the file. -1: the file cannot be written; told once per trace. */
int run_trace_file_text(struct run_trace_file *t, const char *folder, const json_t *text, struct hspmd_error *err);
/* Append the spans of a part to a file that has begun. Errors as above, or the part is damaged. */
int run_trace_file_spans(struct run_trace_file *t, const json_t *part, struct hspmd_error *err);
/* End the events, add what is to be said about them (value: ACTION_TRACE_END's), and give the file its name. */
int run_trace_file_end(struct run_trace_file *t, const char *folder, const json_t *value, struct hspmd_error *err);
void run_trace_file_close(struct run_trace_file *t);

#endif
