/* SPDX-License-Identifier: Apache-2.0 */
/* The exchange between the tasks of a Slurm step over PMIx. If a client dies before it has finalised, Slurm ends the whole step. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/alloc.h"
#include "runtime/topology/topology.h"

/* Measurements of equal nodes differ a little; a plan should not treat such nodes as different. */
#define TOLERANCE 0.1
#define LEAVE_S 10.0 /* for all tasks to have what they have exchanged */

struct hspmd_cluster *hspmd_topology_merge(char *const *texts, int count, struct hspmd_error *err)
{
	struct hspmd_cluster **part = hspmd_calloc((size_t)count, sizeof *part), *all = NULL;
	int found = 0, rv = part ? 0 : hspmd_fail_memory(err, "putting the cluster together");
	for (int i = 0; i < count && !rv; i++) {
		if (!texts[i])
			continue;
		json_error_t where;
		json_t *value = json_loads(texts[i], 0, &where);
		char name[32];
		snprintf(name, sizeof name, "task %d", i);
		part[found] = value ? hspmd_cluster_from_json(value, name, err) : NULL;
		if (!value)
			hspmd_fail(err, "%s: %s", name, where.text);
		rv = part[found] ? 0 : -1;
		found += !rv;
		json_decref(value);
	}
	if (!rv && !found)
		rv = hspmd_fail(err, "no node of the step has a usable device");
	if (!rv)
		all = hspmd_cluster_merge((const struct hspmd_cluster *const *)part, found, TOLERANCE, err);
	for (int i = 0; i < found; i++)
		hspmd_cluster_destroy(part[i]);
	free(part);
	return all;
}

/* Number of tasks in the step of this process; 1 outside of a step. */
static int step_tasks(void)
{
	const char *tasks = getenv("SLURM_STEP_NUM_TASKS");
	return getenv("SLURM_PROCID") && tasks ? atoi(tasks) : 1;
}

#ifdef HAVE_PMIX
#include <pmix.h>

struct hspmd_pmix {
	pmix_proc_t self;
	bool alone; /* no PMIx: this is the only task */
	int rank, size, local_rank;
	unsigned gathered; /* number of exchanges so far; each has its own key */
	bool broken;       /* others would not come to another one either */
};

static int fail_pmix(struct hspmd_error *err, const char *what, pmix_status_t status)
{
	return hspmd_fail(err, "PMIx: %s: %s", what, PMIx_Error_string(status));
}

static int fail_timeout(struct hspmd_error *err, const char *what, double wait_s)
{
	return hspmd_fail(err,
	                  "PMIx: waited %.3g s for %s, in vain: a task has not started, hangs, or is of another program. See which node is "
	                  "silent (srun --label; slurmd's log there), and start the step again, without that node if need be",
	                  wait_s, what);
}

/* ---- waiting
 *
 * PMIx's blocking calls wait for ever, or as long as Slurm does (300 s). Its attribute PMIX_TIMEOUT does not help: PMIx's server obeys it
 * only until all tasks of the node have called, and Slurm's plugin does not look at it. So the calls that do not block are used, and
 * PMIx_Init, which has none, is called by a thread. (PMIx_Finalize gives up after 2 s.) */

/* An answer that comes from another thread, and may come when nobody waits any more. The last of the two frees it. */
struct answer {
	pthread_mutex_t lock;
	pthread_cond_t came;
	bool done, abandoned;
	pmix_status_t status;
	pmix_proc_t self; /* of PMIx_Init */
	uint32_t number;  /* of PMIx_Get: a number, or a text (malloc'd; NULL: none, or an empty one) */
	char *text;
};

static void answer_free(struct answer *a)
{
	if (!a)
		return;
	pthread_cond_destroy(&a->came);
	pthread_mutex_destroy(&a->lock);
	free(a->text);
	free(a);
}

static struct answer *answer_create(void)
{
	struct answer *a = hspmd_calloc(1, sizeof *a);
	pthread_condattr_t clock;
	if (!a)
		return NULL;
	pthread_mutex_init(&a->lock, NULL);
	pthread_condattr_init(&clock);
	pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
	pthread_cond_init(&a->came, &clock);
	pthread_condattr_destroy(&clock);
	return a;
}

static void answer_comes(pmix_status_t status, void *context)
{
	struct answer *a = context;
	pthread_mutex_lock(&a->lock);
	a->status = status;
	a->done = true;
	bool abandoned = a->abandoned;
	pthread_cond_signal(&a->came);
	pthread_mutex_unlock(&a->lock);
	if (abandoned)
		answer_free(a);
}

/* Waits for the answer to a call that has returned `asked`. If none comes in time, whoever brings it later frees it, and *own is NULL. */
static pmix_status_t answer_await(struct answer **own, pmix_status_t asked, double wait_s)
{
	struct answer *a = *own;
	struct timespec until;
	if (asked != PMIX_SUCCESS) /* there will be none */
		return asked == PMIX_OPERATION_SUCCEEDED ? PMIX_SUCCESS : asked;
	clock_gettime(CLOCK_MONOTONIC, &until);
	double at = (double)until.tv_sec + (double)until.tv_nsec * 1e-9 + wait_s;
	until = (struct timespec){ .tv_sec = (time_t)at, .tv_nsec = (long)((at - floor(at)) * 1e9) };
	pthread_mutex_lock(&a->lock);
	while (!a->done && !pthread_cond_timedwait(&a->came, &a->lock, &until))
		;
	pmix_status_t status = a->done ? a->status : PMIX_ERR_TIMEOUT;
	a->abandoned = !a->done;
	if (a->abandoned)
		*own = NULL;
	pthread_mutex_unlock(&a->lock);
	return status;
}

/* HSPMD_PMIX_WAIT_S is for tests. */
static double limit(double wait_s)
{
	const char *given = getenv("HSPMD_PMIX_WAIT_S");
	double s = given ? atof(given) : 0;
	return s > 0 ? s : wait_s;
}

static void *call_init(void *context)
{
	struct answer *a = context;
	answer_comes(PMIx_Init(&a->self, NULL, 0), a);
	return NULL;
}

static pmix_status_t init(pmix_proc_t *self)
{
	pthread_t thread;
	struct answer *a = answer_create();
	if (!a || pthread_create(&thread, NULL, call_init, a)) {
		answer_free(a);
		return PMIX_ERR_NOMEM;
	}
	pthread_detach(thread);
	pmix_status_t s = answer_await(&a, PMIX_SUCCESS, limit(HSPMD_PMIX_WAIT_S));
	if (s == PMIX_SUCCESS)
		*self = a->self;
	answer_free(a);
	return s;
}

static void value_comes(pmix_status_t status, pmix_value_t *v, void *context)
{
	struct answer *a = context;
	if (status == PMIX_SUCCESS && !v)
		status = PMIX_ERR_NOT_FOUND;
	else if (status == PMIX_SUCCESS && v->type == PMIX_UINT32)
		a->number = v->data.uint32;
	else if (status == PMIX_SUCCESS && v->type == PMIX_UINT16)
		a->number = v->data.uint16;
	else if (status == PMIX_SUCCESS && v->type == PMIX_PROC_RANK)
		a->number = v->data.rank;
	else if (status == PMIX_SUCCESS && v->type != PMIX_STRING)
		status = PMIX_ERR_TYPE_MISMATCH;
	else if (status == PMIX_SUCCESS && v->data.string && *v->data.string && !(a->text = strdup(v->data.string)))
		status = PMIX_ERR_NOMEM;
	answer_comes(status, a);
}

/* What the server has about a task or the job: a number, or a text (malloc'd; NULL: an empty one). */
static pmix_status_t get_value(const pmix_proc_t *who, const char *key, double wait_s, uint32_t *number, char **text)
{
	struct answer *a = answer_create();
	if (!a)
		return PMIX_ERR_NOMEM;
	pmix_status_t asked = PMIx_Get_nb(who, key, NULL, 0, value_comes, a);
	pmix_status_t s = asked == PMIX_OPERATION_SUCCEEDED ? PMIX_ERR_NOT_FOUND : answer_await(&a, asked, wait_s);
	if (s == PMIX_SUCCESS && number)
		*number = a->number;
	if (s == PMIX_SUCCESS && text) {
		*text = a->text;
		a->text = NULL;
	}
	answer_free(a);
	return s;
}

static pmix_status_t put(const char *key, const char *text)
{
	pmix_value_t v;
	PMIX_VALUE_CONSTRUCT(&v);
	v.type = PMIX_STRING;
	v.data.string = strdup(text);
	if (!v.data.string)
		return PMIX_ERR_NOMEM;
	pmix_status_t s = PMIx_Put(PMIX_GLOBAL, key, &v);
	free(v.data.string);
	return s == PMIX_SUCCESS ? PMIx_Commit() : s;
}

/* Wait for all tasks: every task calls this even after errors, so that no task hangs. */
static pmix_status_t fence(const pmix_proc_t *self, bool collects, double wait_s)
{
	pmix_proc_t everyone;
	pmix_info_t collect;
	struct answer *a = answer_create();
	if (!a)
		return PMIX_ERR_NOMEM;
	PMIX_PROC_CONSTRUCT(&everyone);
	PMIX_LOAD_PROCID(&everyone, self->nspace, PMIX_RANK_WILDCARD);
	PMIX_INFO_CONSTRUCT(&collect);
	PMIX_INFO_LOAD(&collect, PMIX_COLLECT_DATA, &collects, PMIX_BOOL);
	pmix_status_t s = answer_await(&a, PMIx_Fence_nb(&everyone, 1, &collect, 1, answer_comes, a), wait_s);
	PMIX_INFO_DESTRUCT(&collect);
	answer_free(a);
	return s;
}

static pmix_status_t get(const struct hspmd_pmix *step, const char *key, double wait_s, char **texts)
{
	for (int r = 0; r < step->size; r++) {
		pmix_proc_t who;
		PMIX_PROC_CONSTRUCT(&who);
		PMIX_LOAD_PROCID(&who, step->self.nspace, (pmix_rank_t)r);
		pmix_status_t s = get_value(&who, key, wait_s, NULL, &texts[r]);
		if (s != PMIX_SUCCESS)
			return s;
	}
	return PMIX_SUCCESS;
}

static int join(struct hspmd_pmix *step, struct hspmd_error *err)
{
	pmix_status_t s = init(&step->self);
	if (s == PMIX_ERR_TIMEOUT)
		return fail_timeout(err, "slurmstepd", limit(HSPMD_PMIX_WAIT_S));
	if (s != PMIX_SUCCESS) {
		fail_pmix(err, "starting", s);
		return hspmd_error_prefix(err, "is the step started with srun --mpi=pmix?");
	}
	pmix_proc_t job;
	uint32_t size = 0, local = 0;
	PMIX_PROC_CONSTRUCT(&job);
	PMIX_LOAD_PROCID(&job, step->self.nspace, PMIX_RANK_WILDCARD);
	s = get_value(&job, PMIX_JOB_SIZE, limit(HSPMD_PMIX_WAIT_S), &size, NULL);
	if (s != PMIX_SUCCESS || !size || size > 1u << 20) {
		PMIx_Finalize(NULL, 0);
		return fail_pmix(err, "asking for the number of tasks", s);
	}
	/* Unknown: every task counts as its node's first, and merging reports a node that appears twice as an error. */
	if (get_value(&step->self, PMIX_LOCAL_RANK, limit(HSPMD_PMIX_WAIT_S), &local, NULL) != PMIX_SUCCESS)
		local = 0;
	step->rank = (int)step->self.rank;
	step->size = (int)size;
	step->local_rank = (int)local;
	return 0;
}

struct hspmd_pmix *hspmd_pmix_open(struct hspmd_error *err)
{
	struct hspmd_pmix *step = hspmd_calloc(1, sizeof *step);
	if (!step) {
		hspmd_fail_memory(err, "joining the step");
		return NULL;
	}
	step->size = 1;
	step->alone = !getenv("PMIX_RANK") && step_tasks() <= 1;
	if (!step->alone && join(step, err)) {
		free(step);
		return NULL;
	}
	return step;
}

static int gather_over_pmix(struct hspmd_pmix *step, const char *own, bool wanted, char **texts, double wait_s, struct hspmd_error *err)
{
	char key[32];
	if (step->broken)
		return hspmd_fail(err, "PMIx: an earlier exchange with the other nodes has failed");
	snprintf(key, sizeof key, "hspmd.%u", step->gathered++);
	wait_s = limit(wait_s);
	pmix_status_t s = put(key, own ? own : ""), fenced = fence(&step->self, true, wait_s);
	step->broken = fenced != PMIX_SUCCESS;
	if (fenced == PMIX_ERR_TIMEOUT)
		return fail_timeout(err, "all tasks of this Slurm step", wait_s);
	if (s != PMIX_SUCCESS || fenced != PMIX_SUCCESS)
		return fail_pmix(err, s != PMIX_SUCCESS ? "giving this node's part" : "waiting for the other nodes",
		                 s != PMIX_SUCCESS ? s : fenced);
	s = wanted ? get(step, key, wait_s, texts) : PMIX_SUCCESS;
	if (s == PMIX_ERR_TIMEOUT)
		return fail_timeout(err, "the other nodes' parts", wait_s);
	return s == PMIX_SUCCESS ? 0 : fail_pmix(err, "taking the other nodes' parts", s);
}

int hspmd_pmix_close(struct hspmd_pmix *step, struct hspmd_error *err)
{
	if (!step)
		return 0;
	/* Slurm tells a task that a fence is complete while its node is still passing on what others wait for, which is lost if the task
	 * then ends first. Whoever comes out of this further fence knows that all are out of the last one. Nothing depends on it. */
	if (!step->alone && !step->broken)
		fence(&step->self, false, limit(LEAVE_S));
	pmix_status_t s = step->alone ? PMIX_SUCCESS : PMIx_Finalize(NULL, 0);
	free(step);
	return s == PMIX_SUCCESS ? 0 : fail_pmix(err, "ending", s);
}

#else

struct hspmd_pmix {
	int rank, size, local_rank;
	bool alone;
};

struct hspmd_pmix *hspmd_pmix_open(struct hspmd_error *err)
{
	struct hspmd_pmix *step = step_tasks() > 1 ? NULL : hspmd_calloc(1, sizeof *step);
	if (step_tasks() > 1)
		hspmd_fail(err, "this step has %d tasks, but this hspmd was built without PMIx", step_tasks());
	else if (!step)
		hspmd_fail_memory(err, "joining the step");
	if (step)
		*step = (struct hspmd_pmix){ .size = 1, .alone = true };
	return step;
}

static int gather_over_pmix(struct hspmd_pmix *step, const char *own, bool wanted, char **texts, double wait_s, struct hspmd_error *err)
{
	(void)step, (void)own, (void)wanted, (void)texts, (void)wait_s;
	return hspmd_fail(err, "built without PMIx");
}

int hspmd_pmix_close(struct hspmd_pmix *step, struct hspmd_error *err)
{
	(void)err;
	free(step);
	return 0;
}

#endif

void hspmd_pmix_leave(struct hspmd_pmix *step)
{
	free(step);
}

int hspmd_pmix_rank(const struct hspmd_pmix *step)
{
	return step->rank;
}

int hspmd_pmix_size(const struct hspmd_pmix *step)
{
	return step->size;
}

int hspmd_pmix_local_rank(const struct hspmd_pmix *step)
{
	return step->local_rank;
}

void hspmd_pmix_free_texts(char **texts, int count)
{
	for (int i = 0; texts && i < count; i++)
		free(texts[i]);
	free(texts);
}

int hspmd_pmix_gather(struct hspmd_pmix *step, const char *own, char ***all, double wait_s, struct hspmd_error *err)
{
	char **texts = all ? hspmd_calloc((size_t)step->size, sizeof *texts) : NULL;
	/* Even without memory: the others wait for this task. */
	bool able = texts || !all;
	int rv = 0;
	if (!step->alone)
		rv = gather_over_pmix(step, own, all && able, texts, wait_s, err);
	else if (texts && own && *own && !(texts[0] = strdup(own)))
		able = false;
	if (!rv && !able)
		rv = hspmd_fail_memory(err, "gathering");
	if (rv) {
		hspmd_pmix_free_texts(texts, step->size);
		texts = NULL;
	}
	if (all)
		*all = texts;
	return rv;
}

char *hspmd_topology_text(const struct hspmd_cluster *c)
{
	json_t *value = c ? hspmd_cluster_to_json(c) : NULL;
	char *text = value ? json_dumps(value, JSON_COMPACT) : NULL;
	json_decref(value);
	return text;
}

int hspmd_topology_exchange(const struct hspmd_cluster *own, struct hspmd_cluster **all, int *rank, struct hspmd_error *err)
{
	*all = NULL;
	struct hspmd_pmix *step = hspmd_pmix_open(err);
	if (!step)
		return -1;
	char *text = hspmd_topology_text(own), **texts = NULL;
	bool first = !hspmd_pmix_rank(step);
	int size = hspmd_pmix_size(step);
	if (rank)
		*rank = hspmd_pmix_rank(step);
	/* Even without a text this task takes part: the others wait for it. One part per node: its other tasks would pass the same. */
	int rv = hspmd_pmix_gather(step, hspmd_pmix_local_rank(step) ? NULL : text, first ? &texts : NULL, HSPMD_PMIX_WAIT_S, err);
	if (hspmd_pmix_close(step, rv ? NULL : err))
		rv = -1;
	if (!rv && own && !text)
		rv = hspmd_fail_memory(err, "describing this node");
	if (!rv && first) {
		*all = hspmd_topology_merge(texts, size, err);
		rv = *all ? 0 : -1;
	}
	hspmd_pmix_free_texts(texts, size);
	free(text);
	return rv;
}
