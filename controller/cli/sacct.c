/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/cli/sacct.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/format/trace.h"

/* Names of each column, the preferred one first. */
static const char *const column_names[SACCT_COLUMNS][2] = {
	[SACCT_ID] = { "JobIDRaw", "JobID" },
	[SACCT_SUBMIT] = { "Submit" },
	[SACCT_START] = { "Start" },
	[SACCT_END] = { "End" },
	[SACCT_NODES] = { "NNodes", "AllocNodes" },
	[SACCT_USER] = { "User" },
	[SACCT_ACCOUNT] = { "Account" },
	[SACCT_PARTITION] = { "Partition" },
	[SACCT_QOS] = { "QOS" },
	[SACCT_PRIORITY] = { "Priority" },
	[SACCT_NODE_LIST] = { "NodeList" },
	[SACCT_COMMENT] = { "Comment" },
	[SACCT_NAME] = { "JobName" },
	[SACCT_STATE] = { "State" },
	[SACCT_TRES] = { "AllocTRES" },
};

/* Cuts a line at '|'. Returns the number of fields. */
static int cut(char *line, char *field[SACCT_COLUMNS_MAX])
{
	int n = 0;
	line[strcspn(line, "\r\n")] = '\0';
	for (char *at = line; at && n < SACCT_COLUMNS_MAX; n++) {
		field[n] = at;
		if ((at = strchr(at, '|')))
			*at++ = '\0';
	}
	return n;
}

int sacct_header(struct sacct *s, char *line, struct hspmd_error *err)
{
	char *field[SACCT_COLUMNS_MAX];
	int n = cut(line, field);
	s->widest = 0;
	for (int c = 0; c < SACCT_COLUMNS; c++) {
		s->column[c] = -1;
		for (int k = 0; k < 2 && s->column[c] < 0 && column_names[c][k]; k++)
			for (int i = 0; i < n; i++)
				if (!strcmp(field[i], column_names[c][k]))
					s->column[c] = i;
		if (c <= SACCT_NODES && s->column[c] < 0)
			return hspmd_fail(err, "the first line is no header of sacct --parsable2 with a column %s", column_names[c][0]);
		s->widest = s->column[c] > s->widest ? s->column[c] : s->widest;
	}
	return 0;
}

/* NAN: "Unknown", "None". */
static double time_of(const char *text, bool *bad)
{
	struct tm tm = { .tm_isdst = -1 };
	char *end;
	if (!*text || !strcmp(text, "Unknown") || !strcmp(text, "None") || !strcmp(text, "None assigned"))
		return NAN;
	double seconds = strtod(text, &end);
	if (!*end)
		return seconds;
	end = strptime(text, "%Y-%m-%dT%H:%M:%S", &tm);
	*bad |= !end || *end;
	return *bad ? NAN : (double)mktime(&tm);
}

enum sacct_kind sacct_read(const struct sacct *s, char *line, struct sacct_line *l, const char **why)
{
	char *end;
	bool bad = false;
	*why = "fewer fields than the header has";
	if (cut(line, l->field) <= s->widest)
		return SACCT_BAD;
	const char *name = sacct_get(s, l, SACCT_ID);
	unsigned long id = strtoul(name, &end, 10);
	if (*end == '.')
		return SACCT_STEP;
	*why = "the id is no number; ask sacct for JobIDRaw";
	if (end == name || *end || !id || id > UINT32_MAX)
		return SACCT_BAD;
	long nodes = strtol(sacct_get(s, l, SACCT_NODES), &end, 10);
	*why = "a time or the number of nodes cannot be read";
	l->id = (uint32_t)id;
	l->submit = time_of(sacct_get(s, l, SACCT_SUBMIT), &bad);
	l->start = time_of(sacct_get(s, l, SACCT_START), &bad);
	l->end = time_of(sacct_get(s, l, SACCT_END), &bad);
	if (bad || isnan(l->submit) || *end || nodes < 0 || nodes > HSPMD_TRACE_MAX_NODES)
		return SACCT_BAD;
	l->nodes = (int)nodes;
	*why = "it ends before it starts, or starts before it was submitted";
	return l->nodes && (l->start < l->submit || l->end < l->start) ? SACCT_BAD : SACCT_JOB;
}

const char *sacct_get(const struct sacct *s, const struct sacct_line *l, enum sacct_column c)
{
	return s->column[c] < 0 ? "" : l->field[s->column[c]];
}

bool sacct_is_member(const struct sacct *s, const struct sacct_line *l, uint32_t *anchor)
{
	return sscanf(sacct_get(s, l, SACCT_NAME), "hspmd-member-%u", anchor) == 1;
}
