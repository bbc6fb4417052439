/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/solver/search/workers.h"

#include <stdlib.h>

#include "common/alloc.h"
#include "common/cores.h"
#include "common/thread_pool.h"
#include "controller/solver/search/search_internal.h"

#define THREADS_MOST 16 /* unless a number is requested */

struct hspmd_search_workers {
	struct hspmd_thread_pool *pool; /* NULL: there is one thread */
	int threads;
	struct hspmd_search *views; /* one per thread; all but their costs is the search's */
	/* of the current call */
	void (*work)(void *context, struct hspmd_search *view, int64_t item);
	void *context;
};

void hspmd_search_workers_destroy(struct hspmd_search_workers *w)
{
	if (!w)
		return;
	hspmd_thread_pool_destroy(w->pool);
	for (int i = 0; w->views && i < w->threads; i++)
		hspmd_costs_destroy(w->views[i].costs);
	free(w->views);
	free(w);
}

/* By the request, else by the environment, else one for each core that this process may use. */
static int threads_wanted(const struct hspmd_solve_request *r)
{
	const char *text = getenv("HSPMD_SEARCH_THREADS");
	long number = text ? strtol(text, NULL, 10) : 0;
	int cores = hspmd_usable_cores();
	if (r->threads > 0)
		return r->threads < HSPMD_SEARCH_THREADS_MAX ? r->threads : HSPMD_SEARCH_THREADS_MAX;
	if (number > 0)
		return number < HSPMD_SEARCH_THREADS_MAX ? (int)number : HSPMD_SEARCH_THREADS_MAX;
	return cores < THREADS_MOST ? cores : THREADS_MOST;
}

/* If threads cannot be started, there is one. Returns 0, or -1 if memory runs out. */
static int start(struct hspmd_search *s)
{
	struct hspmd_search_workers *w = hspmd_calloc(1, sizeof *w);
	int wanted = threads_wanted(s->request);
	if (!w)
		return -1;
	w->pool = wanted > 1 ? hspmd_thread_pool_create(wanted, NULL) : NULL;
	w->threads = w->pool ? wanted : 1;
	w->views = w->pool ? hspmd_calloc((size_t)w->threads, sizeof *w->views) : NULL;
	bool fine = !w->pool || w->views;
	for (int i = 0; w->views && i < w->threads; i++)
		fine = (w->views[i].costs = hspmd_costs_view(s->costs)) && fine;
	if (!fine) {
		hspmd_search_workers_destroy(w);
		return -1;
	}
	s->workers = w;
	return 0;
}

int hspmd_search_threads(struct hspmd_search *s)
{
	return !s->workers && start(s) ? 0 : s->workers->threads;
}

void hspmd_search_tables_views_destroy(const struct hspmd_search *s, struct hspmd_submesh_tables **views)
{
	for (int i = 0; views && i < s->workers->threads; i++)
		hspmd_submesh_tables_destroy(views[i]);
	free(views);
}

struct hspmd_submesh_tables **hspmd_search_tables_views(struct hspmd_search *s, const struct hspmd_submesh_tables *t)
{
	int threads = hspmd_search_threads(s);
	struct hspmd_submesh_tables **views = threads ? hspmd_calloc((size_t)threads, sizeof(struct hspmd_submesh_tables *)) : NULL;
	for (int i = 0; views && i < threads; i++) {
		views[i] = hspmd_submesh_tables_view(t, s->workers->pool ? s->workers->views[i].costs : s->costs);
		if (!views[i]) {
			hspmd_search_tables_views_destroy(s, views);
			return NULL;
		}
	}
	return views;
}

static void run_item(void *context, int64_t item, int thread)
{
	struct hspmd_search_workers *w = context;
	w->work(w->context, &w->views[thread], item);
}

int hspmd_search_share(struct hspmd_search *s, int64_t count, double item_ns,
                       void (*work)(void *context, struct hspmd_search *view, int64_t item), void *context)
{
	int threads = count < 2 ? 1 : hspmd_search_threads(s);
	struct hspmd_search_workers *w = s->workers;
	if (!threads)
		return -1;
	if (threads == 1) {
		for (int64_t i = 0; i < count; i++)
			work(context, s, i);
		return 0;
	}
	for (int i = 0; i < threads; i++) {
		struct hspmd_costs *own = w->views[i].costs;
		w->views[i] = *s;
		w->views[i].costs = own;
		w->views[i].thread = i;
		w->views[i].evaluated = 0;
	}
	w->work = work;
	w->context = context;
	hspmd_thread_pool_for(w->pool, count, item_ns, run_item, w);
	for (int i = 0; i < threads; i++) {
		s->evaluated += w->views[i].evaluated;
		s->timed_out = s->timed_out || w->views[i].timed_out;
		s->memory_bound = s->memory_bound || w->views[i].memory_bound;
	}
	return 0;
}
