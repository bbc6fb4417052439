/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that share the work of one search. Private to the search.
 *
 * What a search finds does not depend on how many there are. So an item of shared work reads the search, but writes only what belongs to
 * the item, or to its thread: each thread has a view of the search with costs of its own (hspmd_costs_view), whose caches change the time
 * that an answer takes and never the answer. All else is written by the search's own thread between calls, in the order of the items.
 *
 * The threads start when there is work to share for the first time: small searches have one thread. */
#ifndef HSPMD_SEARCH_WORKERS_H
#define HSPMD_SEARCH_WORKERS_H

#include <stdint.h>

struct hspmd_search;
struct hspmd_submesh_tables;
struct hspmd_search_workers;

/* How many threads share the work, this one included. 0: memory ran out. */
int hspmd_search_threads(struct hspmd_search *s);
/* Run work(context, view, item) for every item of [0, count), in any order on any thread; view->thread is the thread's number. Returns when
 * all are done: 0, or -1 if memory runs out. item_ns: approximate nanoseconds per item. An item must not share work. */
int hspmd_search_share(struct hspmd_search *s, int64_t count, double item_ns,
                       void (*work)(void *context, struct hspmd_search *view, int64_t item), void *context);
/* Views of tables (submesh.h), by the thread that may use them. The array has one per thread. NULL: memory. */
struct hspmd_submesh_tables **hspmd_search_tables_views(struct hspmd_search *s, const struct hspmd_submesh_tables *t);
void hspmd_search_tables_views_destroy(const struct hspmd_search *s, struct hspmd_submesh_tables **views);
void hspmd_search_workers_destroy(struct hspmd_search_workers *w);

#endif
