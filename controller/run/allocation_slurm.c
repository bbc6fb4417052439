/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/log.h"
#include "controller/run/allocation.h"
#include "controller/slurm/job.h"
#include "controller/slurm/start_cpus.h"

#define IN_PLACE_S 60.0       /* to wait for idle nodes, if there is no other way to grow */
#define IN_PLACE_FIRST_S 20.0 /* the same if there is: a busy slurmctld is slow */

struct slurm {
	struct run_allocation base;
	uint32_t job;
	bool pmix, first;
	struct hspmd_slurm_member_terms terms;
	const char *log;                  /* members' output file, with sbatch's patterns; NULL: no members */
	char **command;                   /* command of the last member, for members that replace others */
	json_t *node_gres;                /* { node: GRES for which its agent's step must ask }, by the last poll; NULL: none */
	pthread_mutex_t lock;             /* of `command` and `node_gres` */
	atomic_bool checked, has_members; /* an earlier incarnation of the job may have left some */
	double poll_interval;
	struct hspmd_slurm_start_cpus start_cpus; /* of the thread that polls */
};

static bool active(const struct hspmd_slurm_job *j)
{
	return j->state != HSPMD_SLURM_ENDING;
}

static bool running(const struct hspmd_slurm_job *j)
{
	return j->state == HSPMD_SLURM_RUNNING || j->state == HSPMD_SLURM_SUSPENDED;
}

static int load_members(struct slurm *s, struct hspmd_slurm_job ***members, struct hspmd_error *err)
{
	char name[32];
	*members = NULL;
	if (!s->log || (atomic_load(&s->checked) && !atomic_load(&s->has_members)))
		return 0;
	hspmd_slurm_member_name(s->job, name);
	int count = hspmd_slurm_jobs_named(getuid(), name, members, err);
	if (count > 0)
		atomic_store(&s->has_members, true);
	if (count >= 0)
		atomic_store(&s->checked, true);
	return count;
}

/* ---- what is held */

static bool append(json_t *list, const char *name)
{
	return !json_array_append_new(list, json_string(name));
}

static bool listed(const json_t *list, const char *name)
{
	size_t i;
	json_t *v;
	json_array_foreach(list, i, v)
		if (!strcmp(json_string_value(v), name))
			return true;
	return false;
}

/* If nodes are shared, a member may get a part of a node that the job already holds. Such a member is of no use: cancels it and requests
 * another. */
static void replace(struct slurm *s, const struct hspmd_slurm_job *anchor, const struct hspmd_slurm_job *member, const json_t *held)
{
	struct hspmd_error err;
	size_t count = json_array_size(held);
	char **without = hspmd_calloc(count + 1, sizeof *without);
	hspmd_info("member job %u has a part of %s, which is held already: asking for another", member->id, member->nodes[0]);
	for (size_t i = 0; without && i < count; i++)
		without[i] = (char *)json_string_value(json_array_get(held, i));
	pthread_mutex_lock(&s->lock);
	bool again = without && s->command &&
	             hspmd_slurm_member_submit(anchor, &s->terms, (const char *const *)s->command, s->log, 1, without, (int)count, &err);
	pthread_mutex_unlock(&s->lock);
	if (!again)
		hspmd_warn("%s", without && s->command ? err.text : "no other member is asked for");
	if (hspmd_slurm_member_cancel(member, &err))
		hspmd_warn("%s", err.text);
	free(without);
}

/* Slurm knows as one job all tasks of an array that wait. */
static bool add_waiting(json_t *waiting, const struct hspmd_slurm_job *j)
{
	int count = j->array ? j->array_task_count : 1;
	for (int i = 0; i < count; i++)
		if (json_array_append_new(waiting, json_integer(j->id)))
			return false;
	return true;
}

/* Adds what the job holds on its nodes to `held`: { node: { cpus, gpus } }. */
static bool add_held(struct slurm *s, json_t *held, const struct hspmd_slurm_job *j)
{
	bool whole = true;
	for (int i = 0; whole && j->node_gpus && i < j->node_count; i++) {
		int cpus = j->node_count == 1 ? j->cpus : hspmd_slurm_start_cpus_of(&s->start_cpus, j->nodes[i]);
		whole = !json_object_set_new(held, j->nodes[i], json_pack("{si,ss}", "cpus", cpus, "gpus", j->node_gpus[i]));
	}
	return whole;
}

/* Adds a member that has ended. While Slurm waits for its processes, they can still hand over what they hold. */
static bool add_over(json_t *over, json_t *ending, const struct hspmd_slurm_job *j, const char *id)
{
	bool whole = !json_object_set_new(over, id, json_string(j->over));
	for (int n = 0; whole && j->completing && n < j->node_count; n++)
		whole = !json_object_set_new(ending, j->nodes[n], json_integer(j->id));
	return whole;
}

/* Adds the members to `v`: { nodes: [more], members: { node: job }, waiting: [jobs], over: { job: how it ended }, ending: { node: job } }.
 * The last has those of the jobs that are over whose processes may still run. */
static bool add_members(struct slurm *s, json_t *v, const struct hspmd_slurm_job *anchor, struct hspmd_slurm_job *const *member, int count)
{
	json_t *nodes = json_object_get(v, "nodes"), *of = json_object(), *waiting = json_array(), *over = json_object(),
	       *ending = json_object();
	bool whole = of && waiting && over && ending;
	for (int i = 0; whole && i < count; i++) {
		const struct hspmd_slurm_job *j = member[i];
		char id[16];
		snprintf(id, sizeof id, "%u", j->id);
		if (!active(j))
			whole = add_over(over, ending, j, id);
		else if (!running(j))
			whole = add_waiting(waiting, j);
		else if (j->node_count > 0 && listed(nodes, j->nodes[0]))
			replace(s, anchor, j, nodes);
		else
			for (int n = 0; whole && n < j->node_count; n++)
				whole = (n || add_held(s, json_object_get(v, "held"), j)) && append(nodes, j->nodes[n]) &&
				        !json_object_set_new(of, j->nodes[n], json_integer(j->id));
	}
	whole = whole && !json_object_set(v, "members", of) && !json_object_set(v, "waiting", waiting) &&
	        !json_object_set(v, "over", over) && !json_object_set(v, "ending", ending);
	json_decref(of);
	json_decref(waiting);
	json_decref(over);
	json_decref(ending);
	return whole;
}

static json_t *describe(struct slurm *s, const struct hspmd_slurm_job *j, struct hspmd_slurm_job *const *member, int count)
{
	json_t *nodes = json_array(), *end = j->end ? json_real(difftime(j->end, time(NULL))) : json_null(), *v = NULL,
	       *held = json_object();
	bool whole = nodes && end && held && add_held(s, held, j);
	/* The batch host first: it always stays. */
	for (int round = 0; whole && round < 2; round++)
		for (int i = 0; whole && i < j->node_count; i++)
			if (!strcmp(j->nodes[i], j->batch_host) == !round)
				whole = append(nodes, j->nodes[i]);
	const char *state = j->preempted ? "preempted" : j->state == HSPMD_SLURM_ENDING ? "ending" : "running";
	if (whole)
		v = json_pack("{s:O, s:s, s:O, s:O}", "nodes", nodes, "state", state, "end_in_s", end, "held", held);
	json_decref(nodes);
	json_decref(held);
	json_decref(end);
	if (v && !add_members(s, v, j, member, count)) {
		json_decref(v);
		v = NULL;
	}
	return v;
}

/* Keeps for the steps of the job itself what they must ask for; members ask in their own scripts. */
static void keep_node_gres(struct slurm *s, const struct hspmd_slurm_job *j)
{
	json_t *gres = NULL;
	for (int i = 0; j->node_gres && i < j->node_count; i++)
		if (*j->node_gres[i] && (gres || (gres = json_object())))
			json_object_set_new(gres, j->nodes[i], json_string(j->node_gres[i]));
	pthread_mutex_lock(&s->lock);
	json_decref(s->node_gres);
	s->node_gres = gres;
	pthread_mutex_unlock(&s->lock);
}

static json_t *poll_allocation(struct run_allocation *a, struct hspmd_error *err)
{
	struct slurm *s = (struct slurm *)a;
	struct hspmd_slurm_job **members = NULL, *j = hspmd_slurm_job_load(s->job, err);
	int count = j ? load_members(s, &members, err) : -1;
	json_t *v = count >= 0 ? describe(s, j, members, count) : NULL;
	if (j)
		keep_node_gres(s, j);
	if (count >= 0 && !v)
		hspmd_fail_memory(err, "polling the allocation");
	if (count > 0)
		hspmd_slurm_jobs_free(members, count);
	else
		free(members);
	hspmd_slurm_job_destroy(j);
	return v;
}

static const char *gres_of(const json_t *all, const char *node)
{
	const char *gres = json_string_value(json_object_get(all, node));
	return gres ? gres : "";
}

/* Moves the nodes on which a step asks for the same as on the first one to the front. Returns how many they are. */
static int front_alike(const json_t *gres, char **nodes, int count)
{
	int alike = count > 0;
	for (int i = 1; i < count; i++) {
		char *node = nodes[i];
		if (strcmp(gres_of(gres, node), gres_of(gres, nodes[0])) != 0)
			continue;
		memmove(nodes + alike + 1, nodes + alike, (size_t)(i - alike) * sizeof *nodes);
		nodes[alike++] = node;
	}
	return alike;
}

static char **start(struct run_allocation *a, char **nodes, int *count, const char *const *command, struct hspmd_error *err)
{
	struct slurm *s = (struct slurm *)a;
	pthread_mutex_lock(&s->lock);
	json_t *gres = json_incref(s->node_gres);
	pthread_mutex_unlock(&s->lock);
	*count = front_alike(gres, nodes, *count);
	/* Only the first step is started for all nodes at once; the agents of later nodes report their hardware only to the controller. */
	struct hspmd_slurm_step step = { .job = s->job,
		                         .nodes = nodes,
		                         .node_count = *count,
		                         .gres = gres_of(gres, nodes[0]),
		                         .pmix = s->pmix && s->first,
		                         .srun_args = s->terms.srun_args,
		                         .command = command };
	s->first = false;
	char **argv = hspmd_slurm_step_command(&step, err);
	json_decref(gres);
	return argv;
}

/* ---- more and fewer */

/* Keeps the command for members that are submitted later. */
static int keep_command(struct slurm *s, const char *const *command, struct hspmd_error *err)
{
	size_t n = 0, size = 0;
	for (; command[n]; n++)
		size += strlen(command[n]) + 1;
	char **copy = calloc(1, (n + 1) * sizeof *copy + size), *text = copy ? (char *)(copy + n + 1) : NULL;
	if (!copy)
		return hspmd_fail_memory(err, "growing the job");
	for (size_t i = 0; i < n; i++) {
		copy[i] = text;
		text = stpcpy(text, command[i]) + 1;
	}
	pthread_mutex_lock(&s->lock);
	free(s->command);
	s->command = copy;
	pthread_mutex_unlock(&s->lock);
	return 0;
}

/* Submits all members or none: if one is refused, the earlier ones are cancelled. Several are one job array, or jobs of their own if the
 * site does not take the array. */
static int submit_members(struct slurm *s, const struct hspmd_slurm_job *anchor, int count, char *const *without, int without_count,
                          struct hspmd_error *err)
{
	uint32_t *id = hspmd_calloc((size_t)count, sizeof *id);
	struct hspmd_error ignored;
	int done = 0, submitted = 0, most = HSPMD_SLURM_MEMBERS_MAX;
	if (!id)
		return hspmd_fail_memory(err, "growing the job");
	atomic_store(&s->has_members, true);
	while (submitted < count) {
		int n = count - submitted < most ? count - submitted : most;
		id[done] = hspmd_slurm_member_submit(anchor, &s->terms, (const char *const *)s->command, s->log, n, without, without_count,
		                                     err);
		if (id[done]) {
			hspmd_info("member job %u is submitted%s", id[done], n > 1 ? ", an array" : "");
			done++;
			submitted += n;
		} else if (n > 1) {
			hspmd_info("%s; submitting members one by one", err->text);
			most = 1;
		} else {
			break;
		}
	}
	for (int i = 0; submitted < count && i < done; i++)
		hspmd_slurm_job_cancel(id[i], &ignored);
	free(id);
	return submitted < count ? -1 : 0;
}

static int grow_by_members(struct slurm *s, const struct hspmd_slurm_job *anchor, int count, const char *const *command,
                           struct hspmd_error *err)
{
	struct hspmd_slurm_job **members = NULL;
	int n = keep_command(s, command, err) ? -1 : load_members(s, &members, err), have = 0, total = anchor->node_count, rc = -1;
	for (int i = 0; i < n; i++)
		total += members[i]->node_count;
	char **without = n >= 0 ? hspmd_calloc((size_t)total + 1, sizeof *without) : NULL;
	if (n >= 0 && !without)
		hspmd_fail_memory(err, "growing the job");
	for (int i = 0; without && i < anchor->node_count; i++)
		without[have++] = anchor->nodes[i];
	for (int i = 0; without && i < n; i++)
		for (int k = 0; active(members[i]) && k < members[i]->node_count; k++)
			without[have++] = members[i]->nodes[k];
	if (without)
		rc = submit_members(s, anchor, count, without, have, err);
	free(without);
	if (n >= 0)
		hspmd_slurm_jobs_free(members, n);
	return rc;
}

static int grow(struct run_allocation *a, int count, const char *const *command, struct hspmd_error *err)
{
	struct slurm *s = (struct slurm *)a;
	struct hspmd_slurm_job *j = hspmd_slurm_job_load(s->job, err);
	bool by_members = s->log && (s->terms.qos || s->terms.partition);
	int rc = j && !by_members ? hspmd_slurm_job_grow(j, count, s->log ? IN_PLACE_FIRST_S : IN_PLACE_S, err) : -1;
	if (j && rc && s->log) {
		if (!by_members)
			hspmd_info("%s; growing by member jobs", err->text);
		rc = grow_by_members(s, j, count, command, err);
	}
	hspmd_slurm_job_destroy(j);
	return rc;
}

static bool named(const char *name, char *const *list, int count)
{
	for (int i = 0; i < count; i++)
		if (!strcmp(list[i], name))
			return true;
	return false;
}

/* Cancels the members for which `matches` returns true; tries all, even after an error. */
static int cancel_members(struct slurm *s, bool (*matches)(const struct hspmd_slurm_job *j, char *const *nodes, int count),
                          char *const *nodes, int count, struct hspmd_error *err)
{
	struct hspmd_slurm_job **members = NULL;
	int n = load_members(s, &members, err), rc = n < 0 ? -1 : 0;
	for (int i = 0; i < n; i++)
		if (active(members[i]) && matches(members[i], nodes, count) && hspmd_slurm_member_cancel(members[i], err))
			rc = -1;
	if (n >= 0)
		hspmd_slurm_jobs_free(members, n);
	return rc;
}

static bool has_one_of(const struct hspmd_slurm_job *j, char *const *nodes, int count)
{
	for (int i = 0; i < j->node_count; i++)
		if (named(j->nodes[i], nodes, count))
			return true;
	return false;
}

static bool waits(const struct hspmd_slurm_job *j, char *const *nodes, int count)
{
	(void)nodes, (void)count;
	return !running(j);
}

static bool is_any(const struct hspmd_slurm_job *j, char *const *nodes, int count)
{
	(void)j, (void)nodes, (void)count;
	return true;
}

static int shrink_anchor(struct slurm *s, char *const *nodes, int count, struct hspmd_error *err)
{
	struct hspmd_slurm_job *j = hspmd_slurm_job_load(s->job, err);
	char **keep = j ? hspmd_calloc((size_t)j->node_count + 1, sizeof *keep) : NULL;
	int n = 0, rc = 0;
	if (j && !keep)
		hspmd_fail_memory(err, "shrinking the job");
	for (int i = 0; keep && i < j->node_count; i++)
		if (!named(j->nodes[i], nodes, count))
			keep[n++] = j->nodes[i];
	if (!keep || (n < j->node_count && hspmd_slurm_job_shrink(s->job, keep, n, err)))
		rc = -1;
	free(keep);
	hspmd_slurm_job_destroy(j);
	return rc;
}

static int shrink(struct run_allocation *a, char *const *nodes, int count, struct hspmd_error *err)
{
	struct slurm *s = (struct slurm *)a;
	return cancel_members(s, has_one_of, nodes, count, err) || shrink_anchor(s, nodes, count, err) ? -1 : 0;
}

static int cancel_grow(struct run_allocation *a, struct hspmd_error *err)
{
	return cancel_members((struct slurm *)a, waits, NULL, 0, err);
}

/* A preempted job that ends within its grace time would be complete for Slurm: it is requeued before. */
static void requeue_if_preempted(struct slurm *s)
{
	struct hspmd_error err;
	struct hspmd_slurm_job *j = hspmd_slurm_job_load(s->job, &err);
	if (j && j->preempted && running(j)) {
		if (hspmd_slurm_job_requeue(s->job, &err))
			hspmd_warn("preempted, and will not come back: %s", err.text);
		else
			hspmd_info("preempted; requeued");
	}
	hspmd_slurm_job_destroy(j);
}

static void end(struct run_allocation *a, bool done)
{
	struct hspmd_error err;
	if (!done)
		requeue_if_preempted((struct slurm *)a);
	if (cancel_members((struct slurm *)a, is_any, NULL, 0, &err))
		hspmd_warn("member jobs may be left: %s", err.text);
}

static double poll_interval(struct run_allocation *a)
{
	return ((struct slurm *)a)->poll_interval;
}

static void destroy(struct run_allocation *a)
{
	struct slurm *s = (struct slurm *)a;
	if (!s)
		return;
	pthread_mutex_destroy(&s->lock);
	hspmd_slurm_start_cpus_clear(&s->start_cpus);
	json_decref(s->node_gres);
	free(s->command);
	free(s);
}

struct run_allocation *run_allocation_slurm(uint32_t job, bool pmix, const char *member_log,
                                            const struct hspmd_slurm_member_terms *member_terms, struct hspmd_error *err)
{
	static const struct run_allocation_ops ops = { poll_allocation, start, grow, shrink, cancel_grow, poll_interval, end, destroy };
	struct slurm *s = calloc(1, sizeof *s);
	if (!s) {
		hspmd_fail_memory(err, "polling the allocation");
		return NULL;
	}
	s->base = (struct run_allocation){ .ops = &ops, .resizable = true };
	s->job = job;
	s->pmix = pmix;
	s->log = member_log;
	s->terms = *member_terms;
	s->first = true;
	hspmd_slurm_start_cpus_read(&s->start_cpus, getenv("SLURM_JOB_NODELIST"), getenv("SLURM_JOB_CPUS_PER_NODE"));
	s->poll_interval = hspmd_slurm_poll_interval();
	pthread_mutex_init(&s->lock, NULL);
	return &s->base;
}
