/* SPDX-License-Identifier: Apache-2.0 */
#include "policies/job_heap.h"

#include <stdlib.h>

#include "common/alloc.h"

int job_heap_open(struct job_heap *h, int jobs, bool (*is_ahead)(const void *context, int x, int y), const void *context)
{
	*h = (struct job_heap){ .is_ahead = is_ahead, .context = context };
	h->items = hspmd_calloc((size_t)jobs, sizeof *h->items);
	h->place = hspmd_calloc((size_t)jobs, sizeof *h->place);
	if (!h->items || !h->place)
		return -1;
	for (int i = 0; i < jobs; i++)
		h->place[i] = -1;
	return 0;
}

void job_heap_close(struct job_heap *h)
{
	free(h->items);
	free(h->place);
}

void job_heap_clear(struct job_heap *h)
{
	while (h->count)
		h->place[h->items[--h->count]] = -1;
}

static void put(struct job_heap *h, int at, int job)
{
	h->items[at] = job;
	h->place[job] = at;
}

void job_heap_sort(struct job_heap *h, int job)
{
	int at = h->place[job];
	if (at < 0)
		return;
	for (int above; at && h->is_ahead(h->context, job, h->items[above = (at - 1) / 2]); at = above)
		put(h, at, h->items[above]);
	for (int below; (below = 2 * at + 1) < h->count; at = below) {
		below += below + 1 < h->count && h->is_ahead(h->context, h->items[below + 1], h->items[below]);
		if (!h->is_ahead(h->context, h->items[below], job))
			break;
		put(h, at, h->items[below]);
	}
	put(h, at, job);
}

void job_heap_add(struct job_heap *h, int job)
{
	put(h, h->count++, job);
	job_heap_sort(h, job);
}

void job_heap_drop_first(struct job_heap *h)
{
	h->place[h->items[0]] = -1;
	if (--h->count) {
		put(h, 0, h->items[h->count]);
		job_heap_sort(h, h->items[0]);
	}
}
