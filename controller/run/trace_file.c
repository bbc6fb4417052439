/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/run/trace_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/durable.h"
#include "common/format/trace_spans.h"

static int failed(struct run_trace_file *t, struct hspmd_error *err)
{
	t->broken = 1;
	return hspmd_fail_errno(err, "%s", t->part);
}

int run_trace_file_text(struct run_trace_file *t, const char *folder, const json_t *text, struct hspmd_error *err)
{
	if (!t->part) {
		t->broken = 0;
		if (!(t->part = hspmd_asprintf("%s/trace.part", folder)))
			return hspmd_fail_memory(err, "writing a trace");
		t->fd = open(t->part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
		if (t->fd < 0)
			return failed(t, err);
	}
	if (t->broken || !hspmd_write_all(t->fd, json_string_value(text), json_string_length(text)))
		return 0;
	return failed(t, err);
}

static int append(void *file, const char *text, size_t size, struct hspmd_error *err)
{
	struct run_trace_file *t = file;
	return hspmd_write_all(t->fd, text, size) ? failed(t, err) : 0;
}

int run_trace_file_spans(struct run_trace_file *t, const json_t *part, struct hspmd_error *err)
{
	return !t->part || t->broken ? 0 : hspmd_trace_spans_write(part, append, t, err);
}

int run_trace_file_end(struct run_trace_file *t, const char *folder, const json_t *value, struct hspmd_error *err)
{
	if (!t->part || t->broken) {
		run_trace_file_close(t);
		return 0; /* told already */
	}
	json_t *about = json_object_get(value, "hspmd");
	char *said = json_dumps(about, JSON_COMPACT),
	     *path = hspmd_asprintf("%s/%s", folder, json_string_value(json_object_get(value, "name")));
	char *tail = said ? hspmd_asprintf("\n],\"otherData\":%s}\n", said) : NULL;
	int rc = tail && path ? 0 : hspmd_fail_memory(err, "writing a trace");
	if (!rc && (hspmd_write_all(t->fd, tail, strlen(tail)) || rename(t->part, path)))
		rc = failed(t, err);
	free(tail);
	free(path);
	free(said);
	run_trace_file_close(t);
	return rc;
}

void run_trace_file_close(struct run_trace_file *t)
{
	if (t->part && t->fd >= 0)
		close(t->fd);
	free(t->part);
	*t = (struct run_trace_file){ .fd = -1 };
}
