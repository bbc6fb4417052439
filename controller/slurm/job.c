/* SPDX-License-Identifier: Apache-2.0 */
/* Reads and changes jobs through libslurm. Links libslurm (GPL-2.0-or-later with OpenSSL exception). */
#include "controller/slurm/job.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <slurm/slurm_errno.h>

#include "common/alloc.h"
#include "common/gres.h"
#include "common/hostlist.h"
#include "controller/slurm/libslurm_internal.h"

#define END_MOST_S (10 * 366 * 86400.0) /* longer than any job; one without a limit has an end a year after its start */
#define NODES_MAX 65536

static char *text(const char *from, bool *failed)
{
	char *copy = strdup(from ? from : "");
	*failed |= !copy;
	return copy;
}

static enum hspmd_slurm_state state_of(uint32_t state)
{
	switch (state & JOB_STATE_BASE) {
	case JOB_PENDING:
		return HSPMD_SLURM_PENDING;
	case JOB_RUNNING:
		return state & JOB_COMPLETING ? HSPMD_SLURM_ENDING : HSPMD_SLURM_RUNNING;
	case JOB_SUSPENDED:
		return HSPMD_SLURM_SUSPENDED;
	default:
		return HSPMD_SLURM_ENDING;
	}
}

static const char *over(uint32_t state)
{
	switch (state & JOB_STATE_BASE) {
	case JOB_COMPLETE:
		return "has ended";
	case JOB_CANCELLED:
		return "was cancelled";
	case JOB_FAILED:
		return "has failed";
	case JOB_TIMEOUT:
	case JOB_DEADLINE:
		return "has timed out";
	case JOB_NODE_FAIL:
		return "has lost its node";
	case JOB_PREEMPTED:
		return "was preempted";
	case JOB_BOOT_FAIL:
		return "could not boot its node";
	case JOB_OOM:
		return "was out of memory";
	default:
		return "";
	}
}

static bool is_there(const char *text)
{
	return text && *text;
}

/* GRES for which the site does no accounting are missing in tres_alloc_str. */
static bool holds_gres(const job_info_t *from)
{
	bool holds = (from->tres_alloc_str && strstr(from->tres_alloc_str, "gres/")) || is_there(from->gres_total);
	/* One text per node; a node may hold none. */
	for (uint32_t i = 0; !holds && from->gres_detail_str && i < from->gres_detail_cnt; i++)
		holds = is_there(from->gres_detail_str[i]);
	return holds;
}

/* Returns the GRES requested per node; if they were requested in another way, those of the first node: "gpu:fake:2(IDX:0-1)" without the
 * parentheses. */
static char *gres_of_a_node(const job_info_t *from, bool *failed)
{
	bool otherwise = is_there(from->tres_per_job) || is_there(from->tres_per_socket) || is_there(from->tres_per_task);
	if (is_there(from->tres_per_node) || !otherwise || from->gres_detail_cnt < 1 || !from->gres_detail_str)
		return text(from->tres_per_node, failed);
	char *copy = text(from->gres_detail_str[0], failed), *to = copy;
	int depth = 0;
	for (const char *at = copy; copy && *at; at++) {
		depth += *at == '(';
		if (!depth)
			*to++ = *at;
		depth -= *at == ')';
	}
	if (copy)
		*to = '\0';
	return copy;
}

/* Returns the numbers of GPUs in "gpu:a100:2(IDX:0-1),nic:1,gpu:h100:1(IDX:4)": "0-1,4". */
static char *gpu_numbers(const char *gres, bool *failed)
{
	char *list = calloc(1, strlen(gres) + 1), *to = list;
	*failed |= !list;
	for (const char *at = gres; list && *at; at += *at == ',') {
		const char *open = strchr(at, '('), *close = open ? strchr(open, ')') : NULL, *comma = strchr(at, ',');
		bool numbered = close && (!comma || open < comma);
		if (numbered && !strncmp(at, "gpu", 3) && !strncmp(open, "(IDX:", 5) && open[5] >= '0' && open[5] <= '9')
			to += sprintf(to, "%s%.*s", to > list ? "," : "", (int)(close - open - 5), open + 5);
		at = numbered ? close : at;
		at += strcspn(at, ",");
	}
	return list;
}

/* Returns what a step must ask for to get the GRES of a node. GPUs that were requested per node are given to every step. Of those that were
 * requested for the job, its sockets or its tasks, and those that it holds because the node is its own, a step that does not ask gets as
 * many as its own tasks would, or none. It must not name a type: if the job has several, Slurm then refuses the step. */
static char *gres_to_ask_for(const job_info_t *from, const char *detail, bool *failed)
{
	char list[256] = "";
	bool given = from->tres_per_node && strstr(from->tres_per_node, "gpu");
	if (!given && strstr(detail, "gpu") && hspmd_gres_request(detail, false, list, sizeof list))
		*list = '\0';
	return text(list, failed);
}

/* GPUs and GRES on each of the job's nodes. From 24.11 on libslurm does not say how many CPUs of a node it holds. */
static void read_node_gres(struct hspmd_slurm_job *j, const job_info_t *from, bool *failed)
{
	bool detailed = from->gres_detail_str && from->gres_detail_cnt == (uint32_t)j->node_count;
	if (!j->node_count)
		return;
	j->node_gpus = hspmd_calloc((size_t)j->node_count, sizeof *j->node_gpus);
	j->node_gres = hspmd_calloc((size_t)j->node_count, sizeof *j->node_gres);
	*failed |= !j->node_gpus || !j->node_gres;
	for (int i = 0; !*failed && i < j->node_count; i++) {
		const char *detail = detailed && from->gres_detail_str[i] ? from->gres_detail_str[i] : "";
		j->node_gpus[i] = gpu_numbers(detail, failed);
		j->node_gres[i] = gres_to_ask_for(from, detail, failed);
	}
}

/* Slurm computes some ends with 32 bits, without a sign: an end that has passed a minute ago is then 136 years away. */
static time_t end_of(const job_info_t *from)
{
	return difftime(from->end_time, from->start_time) > END_MOST_S ? 0 : from->end_time;
}

static char *tasks_of(const job_info_t *from, bool *failed)
{
	char *tasks = from->array_task_str ? strdup(from->array_task_str) : hspmd_asprintf("%u", from->array_task_id);
	*failed |= !tasks;
	if (tasks)
		tasks[strcspn(tasks, "%")] = '\0'; /* how many of them may run at once */
	return tasks;
}

/* Returns the number of tasks in a list such as "2,5-9". */
static int count_tasks(const char *list)
{
	int count = 0;
	for (const char *at = list; at && *at; at += strcspn(at, ","), at += *at == ',') {
		char *end;
		long first = strtol(at, &end, 10), last = *end == '-' ? strtol(end + 1, &end, 10) : first;
		count += last >= first && last - first < NODES_MAX ? (int)(last - first) + 1 : 0;
	}
	return count;
}

static struct hspmd_slurm_job *from_info(const job_info_t *from, struct hspmd_error *err)
{
	struct hspmd_slurm_job *j = calloc(1, sizeof *j);
	bool failed = !j;
	if (j) {
		*j = (struct hspmd_slurm_job){
			.id = from->job_id,
			.state = state_of(from->job_state),
			.uid = from->user_id,
			.cpus = (int)from->num_cpus,
			.priority = from->priority,
			.restarts = from->restart_cnt,
			.start = from->start_time,
			.end = end_of(from),
			.resized = from->resize_time,
			.preempted = from->preempt_time,
			.holds_gres = holds_gres(from),
			.exclusive = from->shared == 0,
			.completing = from->job_state & JOB_COMPLETING,
			.over = over(from->job_state),
			.array = from->array_job_id,
		};
		j->array_tasks = from->array_job_id ? tasks_of(from, &failed) : text(NULL, &failed);
		j->array_task_count = count_tasks(j->array_tasks);
		if (from->pn_min_memory & MEM_PER_CPU)
			j->cpu_memory_mb = from->pn_min_memory & ~MEM_PER_CPU;
		else
			j->node_memory_mb = from->pn_min_memory;
		j->user = text(from->user_name, &failed);
		j->partition = text(from->partition, &failed);
		j->account = text(from->account, &failed);
		j->qos = text(from->qos, &failed);
		j->batch_host = text(from->batch_host, &failed);
		j->comment = text(from->comment, &failed);
		j->cluster = text(from->cluster, &failed);
		j->name = text(from->name, &failed);
		j->constraints = text(from->features, &failed);
		j->reservation = text(from->resv_name, &failed);
		j->gres = gres_of_a_node(from, &failed);
	}
	if (failed) {
		hspmd_slurm_job_destroy(j);
		hspmd_fail_memory(err, "reading a job");
		return NULL;
	}
	if (from->nodes && *from->nodes && (j->node_count = hspmd_hostlist_expand(from->nodes, NODES_MAX, &j->nodes, err)) < 0) {
		j->node_count = 0;
		hspmd_slurm_job_destroy(j);
		return NULL;
	}
	read_node_gres(j, from, &failed);
	if (failed) {
		hspmd_slurm_job_destroy(j);
		hspmd_fail_memory(err, "reading a job");
		return NULL;
	}
	return j;
}

struct hspmd_slurm_job *hspmd_slurm_job_load(uint32_t id, struct hspmd_error *err)
{
	job_info_msg_t *answer = NULL;
	if (hspmd_slurm_init(err))
		return NULL;
	if (slurm_load_job(&answer, id, SHOW_DETAIL)) {
		hspmd_fail(err, "job %u: slurmctld says: %s", id, slurm_strerror(errno));
		return NULL;
	}
	struct hspmd_slurm_job *j = NULL;
	if (answer->record_count < 1)
		hspmd_fail(err, "job %u is not known to slurmctld", id);
	else
		j = from_info(&answer->job_array[0], err);
	slurm_free_job_info_msg(answer);
	return j;
}

static int by_id(const void *a, const void *b)
{
	uint32_t x = (*(struct hspmd_slurm_job *const *)a)->id, y = (*(struct hspmd_slurm_job *const *)b)->id;
	return x < y ? -1 : x > y;
}

int hspmd_slurm_jobs_named(uint32_t uid, const char *name, struct hspmd_slurm_job ***jobs, struct hspmd_error *err)
{
	job_info_msg_t *answer = NULL;
	int count = 0, rc = 0;
	*jobs = NULL;
	if (hspmd_slurm_init(err))
		return -1;
	if (slurm_load_job_user(&answer, uid, SHOW_DETAIL))
		return hspmd_fail(err, "the jobs of user %u: slurmctld says: %s", uid, slurm_strerror(errno));
	struct hspmd_slurm_job **list = hspmd_calloc(answer->record_count + 1, sizeof *list);
	if (!list)
		rc = hspmd_fail_memory(err, "reading jobs");
	for (uint32_t i = 0; !rc && i < answer->record_count; i++)
		if (answer->job_array[i].name && !strcmp(answer->job_array[i].name, name)) {
			if ((list[count] = from_info(&answer->job_array[i], err)))
				count++;
			else
				rc = -1;
		}
	slurm_free_job_info_msg(answer);
	if (rc) {
		hspmd_slurm_jobs_free(list, count);
		return -1;
	}
	qsort(list, (size_t)count, sizeof *list, by_id);
	*jobs = list;
	return count;
}

int hspmd_slurm_update(job_desc_msg_t *change, uint32_t id, const char *what, struct hspmd_error *err)
{
#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(25, 11, 0)
	change->step_id.job_id = id;
#else
	change->job_id = id;
#endif
	change->user_id = getuid(); /* as scontrol says it; auth/slurm refuses a message that names nobody */
	if (slurm_update_job(change))
		return hspmd_fail(err, "job %u: %s: slurmctld says: %s", id, what, slurm_strerror(errno));
	return 0;
}

int hspmd_slurm_job_shrink(uint32_t id, char *const *keep, int count, struct hspmd_error *err)
{
	job_desc_msg_t change;
	if (hspmd_slurm_init(err))
		return -1;
	char *nodes = hspmd_hostlist_fold(keep, count);
	if (!nodes)
		return hspmd_fail_memory(err, "shrinking the job");
	slurm_init_job_desc_msg(&change);
	change.req_nodes = nodes;
	int status = hspmd_slurm_update(&change, id, "giving nodes back", err);
	free(nodes);
	return status;
}

int hspmd_slurm_job_requeue(uint32_t id, struct hspmd_error *err)
{
	if (hspmd_slurm_init(err))
		return -1;
	if (slurm_requeue(id, 0))
		return hspmd_fail(err, "job %u cannot be requeued: slurmctld says: %s", id, slurm_strerror(errno));
	return 0;
}

static int cancelled(int rc, uint32_t id, struct hspmd_error *err)
{
	if (rc && errno != ESLURM_ALREADY_DONE && errno != ESLURM_INVALID_JOB_ID)
		return hspmd_fail(err, "job %u cannot be cancelled: slurmctld says: %s", id, slurm_strerror(errno));
	return 0;
}

int hspmd_slurm_job_cancel(uint32_t id, struct hspmd_error *err)
{
	return hspmd_slurm_init(err) ? -1 : cancelled(slurm_kill_job(id, SIGKILL, 0), id, err);
}

int hspmd_slurm_member_cancel(const struct hspmd_slurm_job *member, struct hspmd_error *err)
{
	if (!member->array)
		return hspmd_slurm_job_cancel(member->id, err);
	if (hspmd_slurm_init(err))
		return -1;
	char *tasks = hspmd_asprintf("%u_[%s]", member->array, member->array_tasks);
	int rc = tasks ? cancelled(slurm_kill_job2(tasks, SIGKILL, 0, NULL), member->id, err) : hspmd_fail_memory(err, "cancelling a job");
	free(tasks);
	return rc;
}
