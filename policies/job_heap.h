/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs in a binary heap, by number: the one that is ahead of all others comes first. */
#ifndef HSPMD_POLICIES_JOB_HEAP_H
#define HSPMD_POLICIES_JOB_HEAP_H

#include <stdbool.h>

struct job_heap {
	int count, *items;                                   /* items[0]: the first */
	int *place;                                          /* by job: where it is in `items`; -1: nowhere */
	bool (*is_ahead)(const void *context, int x, int y); /* a total order of jobs */
	const void *context;
};

/* An empty heap for jobs [0, jobs). -1: out of memory. The caller calls job_heap_close() in any case. */
int job_heap_open(struct job_heap *h, int jobs, bool (*is_ahead)(const void *context, int x, int y), const void *context);
void job_heap_close(struct job_heap *h);
void job_heap_clear(struct job_heap *h);
void job_heap_add(struct job_heap *h, int job);
/* To be called when a job's order has changed. Does nothing if it is not in the heap. */
void job_heap_sort(struct job_heap *h, int job);
void job_heap_drop_first(struct job_heap *h);

#endif
