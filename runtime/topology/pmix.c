/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of all nodes of a step, exchanged over PMIx. A client that dies before it has finalised makes Slurm end the whole step, so PMIx is started,
 * used and finalised in here, and nothing that can fail for other reasons happens in between. */
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "runtime/topology/topology.h"

/* Nodes of one kind measure a little differently; a plan should not treat them as different. */
#define TOLERANCE 0.1

/* Tasks of the step this process is in; 1 outside of one. */
static int step_tasks(void)
{
	const char *tasks = getenv("SLURM_STEP_NUM_TASKS");
	return getenv("SLURM_PROCID") && tasks ? atoi(tasks) : 1;
}

static int alone(const struct hspmd_cluster *own, struct hspmd_cluster **all, int *rank, struct hspmd_error *err)
{
	*rank = 0;
	if (!own)
		return hspmd_fail(err, "this node has nothing to give");
	*all = hspmd_cluster_merge(&own, 1, TOLERANCE, err);
	return *all ? 0 : -1;
}

#ifdef HAVE_PMIX
#include <pmix.h>

#define KEY "hspmd.cluster"

/* Parts as texts, in the order of tasks; NULL where a task has none to give. */
struct parts {
	char **text;
	int count;
};

static void free_parts(struct parts *p)
{
	for (int i = 0; i < p->count; i++)
		free(p->text[i]);
	free(p->text);
}

static int merge(const struct parts *p, struct hspmd_cluster **all, struct hspmd_error *err)
{
	struct hspmd_cluster **part = hspmd_calloc((size_t)p->count, sizeof *part);
	int count = 0, rv = part ? 0 : hspmd_fail_memory(err, "putting the cluster together");
	for (int i = 0; i < p->count && !rv; i++) {
		if (!p->text[i])
			continue;
		json_error_t where;
		json_t *value = json_loads(p->text[i], 0, &where);
		char name[32];
		snprintf(name, sizeof name, "task %d", i);
		part[count] = value ? hspmd_cluster_from_json(value, name, err) : NULL;
		if (!value)
			hspmd_fail(err, "%s: %s", name, where.text);
		rv = part[count] ? 0 : -1;
		count += !rv;
		json_decref(value);
	}
	if (!rv && !count)
		rv = hspmd_fail(err, "no node of the step has anything to give");
	if (!rv) {
		*all = hspmd_cluster_merge((const struct hspmd_cluster *const *)part, count, TOLERANCE, err);
		rv = *all ? 0 : -1;
	}
	for (int i = 0; i < count; i++)
		hspmd_cluster_destroy(part[i]);
	free(part);
	return rv;
}

static int fail_pmix(struct hspmd_error *err, const char *what, pmix_status_t status)
{
	return hspmd_fail(err, "PMIx: %s: %s", what, PMIx_Error_string(status));
}

/* A number the server knows about this task or its job. */
static pmix_status_t ask(const pmix_proc_t *who, const char *key, uint32_t *out)
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

static pmix_status_t put(const char *text)
{
	pmix_value_t v;
	PMIX_VALUE_CONSTRUCT(&v);
	v.type = PMIX_STRING;
	v.data.string = strdup(text);
	if (!v.data.string)
		return PMIX_ERR_NOMEM;
	pmix_status_t s = PMIx_Put(PMIX_GLOBAL, KEY, &v);
	free(v.data.string);
	return s == PMIX_SUCCESS ? PMIx_Commit() : s;
}

/* All that wait for one another: what every task does whatever happens to it, so that nobody hangs. */
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

static pmix_status_t get(const pmix_proc_t *self, struct parts *p)
{
	for (int r = 0; r < p->count; r++) {
		pmix_proc_t who;
		pmix_value_t *v = NULL;
		PMIX_PROC_CONSTRUCT(&who);
		PMIX_LOAD_PROCID(&who, self->nspace, (pmix_rank_t)r);
		pmix_status_t s = PMIx_Get(&who, KEY, NULL, 0, &v);
		if (s != PMIX_SUCCESS)
			return s;
		bool given = v->type == PMIX_STRING && v->data.string && *v->data.string;
		p->text[r] = given ? strdup(v->data.string) : NULL;
		bool short_of_memory = given && !p->text[r];
		PMIX_VALUE_RELEASE(v);
		if (short_of_memory)
			return PMIX_ERR_NOMEM;
	}
	return PMIX_SUCCESS;
}

/* Between init and finalise. Task 0 gets the parts. */
static int exchange(const pmix_proc_t *self, const char *text, struct parts *p, struct hspmd_error *err)
{
	pmix_proc_t job;
	uint32_t size = 0, local = 0;
	PMIX_PROC_CONSTRUCT(&job);
	PMIX_LOAD_PROCID(&job, self->nspace, PMIX_RANK_WILDCARD);
	pmix_status_t s = ask(&job, PMIX_JOB_SIZE, &size);
	if (s != PMIX_SUCCESS || !size || size > 1u << 20)
		return fail_pmix(err, "asking for the number of tasks", s);
	/* One part a node: other tasks of it would say the same. Unknown: every task counts, and a node named twice is then an error below. */
	if (ask(self, PMIX_LOCAL_RANK, &local) != PMIX_SUCCESS)
		local = 0;
	s = put(local ? "" : text);
	pmix_status_t fenced = fence(self);
	if (s != PMIX_SUCCESS || fenced != PMIX_SUCCESS)
		return fail_pmix(err, s != PMIX_SUCCESS ? "giving this node's part" : "waiting for the other nodes", s != PMIX_SUCCESS ? s : fenced);
	if (self->rank)
		return 0;
	p->text = hspmd_calloc(size, sizeof *p->text);
	if (!p->text)
		return hspmd_fail_memory(err, "putting the cluster together");
	p->count = (int)size;
	s = get(self, p);
	return s == PMIX_SUCCESS ? 0 : fail_pmix(err, "taking the other nodes' parts", s);
}

static int over_pmix(const char *text, struct parts *p, int *rank, struct hspmd_error *err)
{
	pmix_proc_t self;
	pmix_status_t s = PMIx_Init(&self, NULL, 0);
	if (s != PMIX_SUCCESS) {
		fail_pmix(err, "starting", s);
		return hspmd_error_prefix(err, "is the step started with srun --mpi=pmix?");
	}
	*rank = (int)self.rank;
	int rv = exchange(&self, text, p, err);
	s = PMIx_Finalize(NULL, 0);
	return rv || s == PMIX_SUCCESS ? rv : fail_pmix(err, "ending", s);
}

int hspmd_topology_exchange(const struct hspmd_cluster *own, struct hspmd_cluster **all, int *rank, struct hspmd_error *err)
{
	int dummy;
	*all = NULL;
	rank = rank ? rank : &dummy;
	if (!getenv("PMIX_RANK") && step_tasks() <= 1)
		return alone(own, all, rank, err);
	json_t *value = own ? hspmd_cluster_to_json(own) : NULL;
	char *text = value ? json_dumps(value, JSON_COMPACT) : NULL;
	struct parts p = { 0 };
	/* Even without a text this task takes its place in the fence: the others wait for it. */
	int rv = over_pmix(text ? text : "", &p, rank, err);
	if (!rv && own && !text)
		rv = hspmd_fail_memory(err, "describing this node");
	if (!rv && !*rank)
		rv = merge(&p, all, err);
	free_parts(&p);
	free(text);
	json_decref(value);
	return rv;
}

#else

int hspmd_topology_exchange(const struct hspmd_cluster *own, struct hspmd_cluster **all, int *rank, struct hspmd_error *err)
{
	int dummy;
	*all = NULL;
	if (step_tasks() > 1)
		return hspmd_fail(err, "this step has %d tasks, but this hspmd was built without PMIx", step_tasks());
	return alone(own, all, rank ? rank : &dummy, err);
}

#endif
