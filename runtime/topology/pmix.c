/* SPDX-License-Identifier: Apache-2.0 */
/* The exchange between the tasks of a Slurm step over PMIx. If a client dies before it has finalised, Slurm ends the whole step. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "runtime/topology/topology.h"

/* Measurements of equal nodes differ a little; a plan should not treat such nodes as different. */
#define TOLERANCE 0.1

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
};

static int fail_pmix(struct hspmd_error *err, const char *what, pmix_status_t status)
{
	return hspmd_fail(err, "PMIx: %s: %s", what, PMIx_Error_string(status));
}

/* A number that the server has about this task or its job. */
static pmix_status_t get_number(const pmix_proc_t *who, const char *key, uint32_t *out)
{
	pmix_value_t *v = NULL;
	pmix_status_t s = PMIx_Get(who, key, NULL, 0, &v);
	if (s != PMIX_SUCCESS)
		return s;
	switch (v->type) {
	case PMIX_UINT32:
		*out = v->data.uint32;
		break;
	case PMIX_UINT16:
		*out = v->data.uint16;
		break;
	case PMIX_PROC_RANK:
		*out = v->data.rank;
		break;
	default:
		s = PMIX_ERR_TYPE_MISMATCH;
	}
	PMIX_VALUE_RELEASE(v);
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
static pmix_status_t fence(const pmix_proc_t *self)
{
	pmix_proc_t everyone;
	pmix_info_t collect;
	bool yes = true;
	PMIX_PROC_CONSTRUCT(&everyone);
	PMIX_LOAD_PROCID(&everyone, self->nspace, PMIX_RANK_WILDCARD);
	PMIX_INFO_CONSTRUCT(&collect);
	PMIX_INFO_LOAD(&collect, PMIX_COLLECT_DATA, &yes, PMIX_BOOL);
	pmix_status_t s = PMIx_Fence(&everyone, 1, &collect, 1);
	PMIX_INFO_DESTRUCT(&collect);
	return s;
}

static pmix_status_t get(const struct hspmd_pmix *step, const char *key, char **texts)
{
	for (int r = 0; r < step->size; r++) {
		pmix_proc_t who;
		pmix_value_t *v = NULL;
		PMIX_PROC_CONSTRUCT(&who);
		PMIX_LOAD_PROCID(&who, step->self.nspace, (pmix_rank_t)r);
		pmix_status_t s = PMIx_Get(&who, key, NULL, 0, &v);
		if (s != PMIX_SUCCESS)
			return s;
		bool given = v->type == PMIX_STRING && v->data.string && *v->data.string;
		texts[r] = given ? strdup(v->data.string) : NULL;
		bool short_of_memory = given && !texts[r];
		PMIX_VALUE_RELEASE(v);
		if (short_of_memory)
			return PMIX_ERR_NOMEM;
	}
	return PMIX_SUCCESS;
}

static int join(struct hspmd_pmix *step, struct hspmd_error *err)
{
	pmix_status_t s = PMIx_Init(&step->self, NULL, 0);
	if (s != PMIX_SUCCESS) {
		fail_pmix(err, "starting", s);
		return hspmd_error_prefix(err, "is the step started with srun --mpi=pmix?");
	}
	pmix_proc_t job;
	uint32_t size = 0, local = 0;
	PMIX_PROC_CONSTRUCT(&job);
	PMIX_LOAD_PROCID(&job, step->self.nspace, PMIX_RANK_WILDCARD);
	s = get_number(&job, PMIX_JOB_SIZE, &size);
	if (s != PMIX_SUCCESS || !size || size > 1u << 20) {
		PMIx_Finalize(NULL, 0);
		return fail_pmix(err, "asking for the number of tasks", s);
	}
	/* Unknown: every task counts as its node's first, and merging reports a node that appears twice as an error. */
	if (get_number(&step->self, PMIX_LOCAL_RANK, &local) != PMIX_SUCCESS)
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

static int gather_over_pmix(struct hspmd_pmix *step, const char *own, bool wanted, char **texts, struct hspmd_error *err)
{
	char key[32];
	snprintf(key, sizeof key, "hspmd.%u", step->gathered++);
	pmix_status_t s = put(key, own ? own : ""), fenced = fence(&step->self);
	if (s != PMIX_SUCCESS || fenced != PMIX_SUCCESS)
		return fail_pmix(err, s != PMIX_SUCCESS ? "giving this node's part" : "waiting for the other nodes",
		                 s != PMIX_SUCCESS ? s : fenced);
	s = wanted ? get(step, key, texts) : PMIX_SUCCESS;
	return s == PMIX_SUCCESS ? 0 : fail_pmix(err, "taking the other nodes' parts", s);
}

int hspmd_pmix_close(struct hspmd_pmix *step, struct hspmd_error *err)
{
	if (!step)
		return 0;
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

static int gather_over_pmix(struct hspmd_pmix *step, const char *own, bool wanted, char **texts, struct hspmd_error *err)
{
	(void)step, (void)own, (void)wanted, (void)texts;
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

int hspmd_pmix_gather(struct hspmd_pmix *step, const char *own, char ***all, struct hspmd_error *err)
{
	char **texts = all ? hspmd_calloc((size_t)step->size, sizeof *texts) : NULL;
	/* Even without memory: the others wait for this task. */
	bool able = texts || !all;
	int rv = 0;
	if (!step->alone)
		rv = gather_over_pmix(step, own, all && able, texts, err);
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
	int rv = hspmd_pmix_gather(step, hspmd_pmix_local_rank(step) ? NULL : text, first ? &texts : NULL, err);
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
