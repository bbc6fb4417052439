/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/command/rank_output.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/durable.h"
#include "common/log.h"

void hspmd_rank_output_open(struct hspmd_rank_output *o, const char *folder, int rank, int echo, const char *title)
{
	struct hspmd_error err = { "" };
	char *logs = hspmd_asprintf("%s/logs", folder), *path = logs ? hspmd_asprintf("%s/rank-%d", logs, rank) : NULL;
	*o = (struct hspmd_rank_output){ .log = -1, .echo = echo };
	if (!path)
		hspmd_fail_memory(&err, "opening a log");
	else if (!hspmd_durable_mkdir(logs, 0755, &err) && (o->log = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644)) < 0)
		hspmd_fail_errno(&err, "%s", path);
	if (o->log < 0) {
		hspmd_warn("%s: the output of rank %d is written here", err.text, rank);
		o->echo = echo < 0 ? STDOUT_FILENO : echo;
	} else {
		dprintf(o->log, "%s\n", title);
	}
	free(logs);
	free(path);
}

void hspmd_rank_output_write(struct hspmd_rank_output *o, const char *data, size_t size)
{
	/* A full disk must not end the rank. */
	if (o->log >= 0)
		(void)hspmd_write_all(o->log, data, size);
	if (o->echo >= 0)
		(void)hspmd_write_all(o->echo, data, size);
	if (size >= sizeof o->tail) {
		memcpy(o->tail, data + size - sizeof o->tail, sizeof o->tail);
		o->used = sizeof o->tail;
		return;
	}
	size_t room = sizeof o->tail - o->used, gone = size > room ? size - room : 0;
	memmove(o->tail, o->tail + gone, o->used - gone);
	memcpy(o->tail + o->used - gone, data, size);
	o->used += size - gone;
}

/* A text of a line; what is no UTF-8 is replaced byte by byte. */
static json_t *line_text(const char *line, size_t size)
{
	json_t *v = json_stringn(line, size);
	char *copy = v ? NULL : malloc(size + 1);
	for (size_t i = 0; copy && i < size; i++)
		copy[i] = (unsigned char)line[i] < 0x80 && line[i] ? line[i] : '?';
	v = copy ? json_stringn(copy, size) : v;
	free(copy);
	return v;
}

json_t *hspmd_rank_output_tail(const struct hspmd_rank_output *o)
{
	json_t *list = json_array();
	size_t end = o->used;
	while (list && end > 0 && json_array_size(list) < HSPMD_TAIL_LINES) {
		if (o->tail[end - 1] == '\n' && --end == 0)
			break;
		size_t start = end;
		while (start > 0 && o->tail[start - 1] != '\n')
			start--;
		if (end > start && json_array_insert_new(list, 0, line_text(o->tail + start, end - start))) {
			json_decref(list);
			return NULL;
		}
		end = start;
	}
	return list;
}

void hspmd_rank_output_close(struct hspmd_rank_output *o)
{
	if (o->log >= 0)
		close(o->log);
	o->log = -1;
}
