/* SPDX-License-Identifier: Apache-2.0 */
/* hspmd policy record: the jobs that a cluster ran, from sacct's output to a trace for hspmd policy simulate. */
#ifndef HSPMD_CLI_POLICY_RECORD_H
#define HSPMD_CLI_POLICY_RECORD_H

#include <jansson.h>
#include <stdio.h>

#include "common/error.h"

struct policy_record_options {
	const char *nodes;        /* hostlist of all nodes of the cluster; NULL: those on which jobs ran */
	const char *elastic;      /* KEY=PATTERN: such jobs become elastic; KEY is partition, account, user, qos or name; NULL: those whose
	                             * comment is "hspmd" */
	int min_nodes, max_nodes; /* of elastic jobs; 0: half and four times the nodes that a job had */
};

/* What of the input became part of the trace. */
struct policy_record_counts {
	int jobs, elastic, never_started, unfinished, bad_lines;
	char first_bad[200]; /* why the first line was left out; "" if none was */
};

/* Reads the output of `sacct --parsable2` with a header; columns may be in any order. Needed: JobIDRaw (or JobID), Submit, Start, End,
 * NNodes (or AllocNodes). Used if present: User, Account, Partition, QOS, Priority, NodeList, Comment, JobName, State. Times are local.
 * Steps are ignored; members of an elastic job count as its work; several lines of a job (it was resized) become one job. The trace begins
 * at the first submission; a job that has not ended runs to the trace's end. An elastic job has 1000 n^0.95 tokens per second on n nodes
 * and ends after the work that it did. Returns hspmd-trace-1 as JSON, a new reference; NULL and err: a needed column is missing, nothing
 * was read, or memory. */
json_t *policy_record_read(FILE *in, const struct policy_record_options *o, struct policy_record_counts *counts, struct hspmd_error *err);

#endif
