/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank writes: its log OUTPUT/logs/rank-N, of rank 0 also this process's own output, and the last lines for messages. */
#ifndef HSPMD_COMMAND_RANK_OUTPUT_H
#define HSPMD_COMMAND_RANK_OUTPUT_H

#include <jansson.h>

#define HSPMD_TAIL_BYTES 8192
#define HSPMD_TAIL_LINES 20

struct hspmd_rank_output {
	int log;  /* descriptor; -1: the log cannot be written here */
	int echo; /* descriptor to which all is written too; -1: none */
	char tail[HSPMD_TAIL_BYTES];
	size_t used; /* bytes of the tail */
};

/* Opens the log of the rank in `folder`/logs, and begins it with `title`, a line without its end. Without a log (the log says why) all
 * output goes to `echo`, or to standard output. */
void hspmd_rank_output_open(struct hspmd_rank_output *o, const char *folder, int rank, int echo, const char *title);
void hspmd_rank_output_write(struct hspmd_rank_output *o, const char *data, size_t size);
/* The last lines, as texts; bytes that are not UTF-8 are replaced. New reference; NULL: out of memory. */
json_t *hspmd_rank_output_tail(const struct hspmd_rank_output *o);
void hspmd_rank_output_close(struct hspmd_rank_output *o);

#endif
