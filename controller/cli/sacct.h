/* SPDX-License-Identifier: Apache-2.0 */
/* Lines of `sacct --parsable2` with a header, columns in any order. */
#ifndef HSPMD_CLI_SACCT_H
#define HSPMD_CLI_SACCT_H

#include <stdbool.h>
#include <stdint.h>

#include "common/error.h"

#define SACCT_COLUMNS_MAX 128

enum sacct_column {
	SACCT_ID,
	SACCT_SUBMIT,
	SACCT_START,
	SACCT_END,
	SACCT_NODES,
	SACCT_USER, /* from here on they may be absent */
	SACCT_ACCOUNT,
	SACCT_PARTITION,
	SACCT_QOS,
	SACCT_PRIORITY,
	SACCT_NODE_LIST,
	SACCT_COMMENT,
	SACCT_NAME,
	SACCT_STATE,
	SACCT_TRES,
	SACCT_COLUMNS
};

struct sacct {
	int column[SACCT_COLUMNS]; /* position in a line; -1: absent */
	int widest;                /* the last of them */
};

/* A line, cut in place. */
struct sacct_line {
	char *field[SACCT_COLUMNS_MAX];
	uint32_t id;
	double submit, start, end; /* NAN: not yet */
	int nodes;
};

/* -1 and err: it lacks a needed column. */
int sacct_header(struct sacct *s, char *line, struct hspmd_error *err);
enum sacct_kind { SACCT_JOB, SACCT_STEP, SACCT_BAD };
/* SACCT_BAD: *why says why it cannot be read. Times are local or seconds (SLURM_TIME_FORMAT=%s). */
enum sacct_kind sacct_read(const struct sacct *s, char *line, struct sacct_line *l, const char **why);
/* "" if the column is absent. */
const char *sacct_get(const struct sacct *s, const struct sacct_line *l, enum sacct_column c);
/* Whether the job brought a node to an elastic job; *anchor: that one. */
bool sacct_is_member(const struct sacct *s, const struct sacct_line *l, uint32_t *anchor);

#endif
