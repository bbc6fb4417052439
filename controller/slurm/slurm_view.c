/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/slurm/slurm_view.h"

#include <errno.h>
#include <math.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>

#include <slurm/slurm_errno.h>

#include "common/alloc.h"
#include "common/log.h"
#include "common/format/job.h"
#include "controller/slurm/libslurm_internal.h"

#define PARTITIONS_EVERY_S 300
#define ENFORCE_LIMITS 2 /* in AccountingStorageEnforce; Slurm's headers do not name it */

/* slurmctld's last replies. They stay valid as long as it answers "no change". */
static job_info_msg_t *jobs_msg;
static node_info_msg_t *nodes_msg;
static partition_info_msg_t *partitions_msg;
static time_t partitions_at; /* time of the last RPC for them */

static char *copy(const char *text)
{
	return strdup(text ? text : "");
}

/* PreemptMode of the cluster, for partitions without their own. */
static uint16_t preempt_mode;
static bool by_qos; /* PreemptType=preempt/qos */
static struct hspmd_slurm_qos_table qos;

int hspmd_slurm_view_settings(struct hspmd_slurm_view_settings *s, struct hspmd_error *err)
{
	*s = (struct hspmd_slurm_view_settings){ 0 };
	slurm_conf_t *conf = hspmd_slurm_load_conf(err);
	if (!conf)
		return -1;
	preempt_mode = conf->preempt_mode;
	by_qos = conf->preempt_type && !strcmp(conf->preempt_type, "preempt/qos");
	s->state_folder = copy(conf->state_save_location);
	s->user = copy(conf->slurm_user_name);
	s->without_munge = conf->authtype && strcmp(conf->authtype, "auth/munge") != 0;
	s->munge_socket = s->without_munge ? NULL : hspmd_slurm_socket_of(conf->authinfo);
	s->private_jobs = conf->private_data & PRIVATE_DATA_JOBS;
	bool limits = (conf->accounting_storage_enforce & ENFORCE_LIMITS) && conf->cluster_name;
	s->limited = limits ? strdup(conf->cluster_name) : NULL;
	slurm_free_ctl_conf(conf);
	if (s->state_folder && s->user && (s->limited || !limits))
		return 0;
	hspmd_slurm_view_settings_clear(s);
	return hspmd_fail_memory(err, "reading Slurm's settings");
}

/* ---- RPCs */

/* Returns 1 if the reply is new, 0 if slurmctld says "no change", -1 and err. */
static int check_reply(int rc, const char *what, struct hspmd_error *err)
{
	if (rc == SLURM_SUCCESS)
		return 1;
	int code = errno;
	if (code == SLURM_NO_CHANGE_IN_DATA)
		return 0;
	return hspmd_fail(err, "reading slurmctld's %s: %s", what, slurm_strerror(code));
}

static int load_jobs(const struct hspmd_slurm_view *v, struct hspmd_error *err)
{
	job_info_msg_t *msg = NULL;
	int rc = check_reply(slurm_load_jobs(v ? v->jobs_at : 0, &msg, SHOW_ALL), "jobs", err);
	if (rc > 0) {
		slurm_free_job_info_msg(jobs_msg);
		jobs_msg = msg;
	}
	return rc;
}

static int load_nodes(const struct hspmd_slurm_view *v, struct hspmd_error *err)
{
	node_info_msg_t *msg = NULL;
	int rc = check_reply(slurm_load_node(v ? v->nodes_at : 0, &msg, SHOW_ALL | SHOW_MIXED), "nodes", err);
	if (rc > 0) {
		slurm_free_node_info_msg(nodes_msg);
		nodes_msg = msg;
	}
	return rc;
}

static int load_partitions(struct hspmd_error *err)
{
	partition_info_msg_t *msg = NULL;
	int rc = check_reply(slurm_load_partitions(partitions_msg ? partitions_msg->last_update : 0, &msg, SHOW_ALL), "partitions", err);
	if (rc > 0) {
		slurm_free_partition_info_msg(partitions_msg);
		partitions_msg = msg;
	}
	return rc;
}

static void load_qos(void)
{
	struct hspmd_slurm_qos_table now;
	struct hspmd_error err;
	if (hspmd_slurm_qos_read(&now, &err)) {
		hspmd_warn("which QOS preempts which is not known%s: %s", qos.count ? " anew" : "", err.text);
		return;
	}
	hspmd_slurm_qos_clear(&qos);
	qos = now;
}

/* ---- nodes */

static enum hspmd_slurm_view_node_state node_state(uint32_t state)
{
	const uint32_t bad = NODE_STATE_DRAIN | NODE_STATE_FAIL | NODE_STATE_MAINT | NODE_STATE_RES | NODE_STATE_NO_RESPOND |
	                     NODE_STATE_POWERED_DOWN | NODE_STATE_POWERING_DOWN | NODE_STATE_POWERING_UP | NODE_STATE_REBOOT_REQUESTED;
	uint32_t base = state & NODE_STATE_BASE;
	if (base == NODE_STATE_ALLOCATED || base == NODE_STATE_MIXED)
		return HSPMD_SLURM_VIEW_BUSY;
	if (base != NODE_STATE_IDLE || state & bad)
		return HSPMD_SLURM_VIEW_UNUSABLE;
	return state & NODE_STATE_COMPLETING ? HSPMD_SLURM_VIEW_LEAVING : HSPMD_SLURM_VIEW_IDLE;
}

static int take_nodes(struct hspmd_slurm_view *v)
{
	v->nodes = hspmd_calloc(nodes_msg->record_count, sizeof *v->nodes);
	if (!v->nodes)
		return -1;
	for (uint32_t i = 0; i < nodes_msg->record_count; i++) {
		const node_info_t *from = &nodes_msg->node_array[i];
		struct hspmd_slurm_view_node *n = &v->nodes[v->node_count++];
		*n = (struct hspmd_slurm_view_node){
			.name = copy(from->name),
			.state = from->name && *from->name ? node_state(from->node_state) : HSPMD_SLURM_VIEW_UNUSABLE,
			.last_busy = from->last_busy,
			.cpus = from->cpus,
			.memory_mb = (int64_t)from->real_memory,
			.features = copy(from->features_act ? from->features_act : from->features),
			.gres = copy(from->gres),
			.weight = (int)from->weight,
		};
		if (!n->name || !n->features || !n->gres)
			return -1;
	}
	v->nodes_at = nodes_msg->last_update;
	return 0;
}

/* Slurm's lists of nodes are pairs of first and last index into its table, ended by -1. */
static int take_list(const struct hspmd_slurm_view *v, const int32_t *pairs, void (*each)(void *, int), void *to)
{
	int n = 0;
	for (; pairs && pairs[0] >= 0; pairs += 2)
		for (int i = pairs[0]; i <= pairs[1] && i < v->node_count; i++, n++)
			if (each)
				each(to, i);
	return n;
}

static void mark(void *to, int node)
{
	((unsigned char *)to)[node] = 1;
}

struct list {
	int count, *items;
};

static void append(void *to, int node)
{
	struct list *l = to;
	l->items[l->count++] = node;
}

/* ---- partitions */

static int take_partitions(struct hspmd_slurm_view *v)
{
	v->partitions = hspmd_calloc(partitions_msg->record_count, sizeof *v->partitions);
	if (!v->partitions)
		return -1;
	for (uint32_t i = 0; i < partitions_msg->record_count; i++) {
		const partition_info_t *from = &partitions_msg->partition_array[i];
		struct hspmd_slurm_view_partition *p = &v->partitions[v->partition_count++];
		p->name = copy(from->name);
		p->nodes = hspmd_calloc((size_t)v->node_count, 1);
		if (!p->name || !p->nodes)
			return -1;
		p->tier = from->priority_tier;
		p->up = from->state_up == PARTITION_UP;
		uint16_t mode = from->preempt_mode == NO_VAL16 ? preempt_mode : from->preempt_mode;
		p->preemptable = (mode & ~PREEMPT_MODE_GANG) != PREEMPT_MODE_OFF;
		take_list(v, from->node_inx, mark, p->nodes);
	}
	return 0;
}

/* ---- jobs */

/* Returns true if more idle nodes would start the job. */
static bool waits_for_nodes(const slurm_job_info_t *from)
{
	bool cured = from->state_reason == WAIT_NO_REASON || from->state_reason == WAIT_PRIORITY || from->state_reason == WAIT_RESOURCES;
	return cured && from->priority > 1 && from->eligible_time && from->eligible_time <= time(NULL);
}

static double limit_of(const slurm_job_info_t *from)
{
	return from->time_limit == INFINITE || from->time_limit == NO_VAL ? INFINITY : 60.0 * from->time_limit;
}

static char *user_of(const slurm_job_info_t *from)
{
	if (from->user_name && *from->user_name)
		return strdup(from->user_name);
	const struct passwd *pw = getpwuid(from->user_id);
	return pw ? strdup(pw->pw_name) : hspmd_asprintf("%u", from->user_id);
}

static int64_t memory_of(const slurm_job_info_t *from)
{
	if (from->pn_min_memory & MEM_PER_CPU)
		return (int64_t)(from->pn_min_memory & ~MEM_PER_CPU) * (from->pn_min_cpus ? from->pn_min_cpus : 1);
	return (int64_t)from->pn_min_memory;
}

static int take_job(struct hspmd_slurm_view *v, const slurm_job_info_t *from)
{
	uint32_t base = from->job_state & JOB_STATE_BASE;
	bool completing = from->job_state & JOB_COMPLETING;
	if (base != JOB_PENDING && base != JOB_RUNNING && base != JOB_SUSPENDED && !completing)
		return 0;
	struct hspmd_slurm_view_job *j = &v->jobs[v->job_count++];
	*j = (struct hspmd_slurm_view_job){
		.id = from->job_id,
		.uid = from->user_id,
		.state = completing            ? HSPMD_SLURM_VIEW_COMPLETING
		         : base == JOB_PENDING ? HSPMD_SLURM_VIEW_PENDING
		                               : HSPMD_SLURM_VIEW_RUNNING,
		.ready = base == JOB_PENDING && waits_for_nodes(from),
		.wants_named_nodes = (from->req_nodes && *from->req_nodes) || (from->exc_nodes && *from->exc_nodes) ||
		                     (from->resv_name && *from->resv_name),
		.user = user_of(from),
		.account = copy(from->account),
		.partition = copy(from->partition),
		.qos = copy(from->qos),
		.features = copy(from->features),
		.tres_per_node = copy(from->tres_per_node),
		.tres = copy(base == JOB_PENDING ? NULL : from->tres_alloc_str),
		.batch_host = copy(from->batch_host),
		.elastic = from->comment && !strcmp(from->comment, HSPMD_JOB_COMMENT),
		.nodes = (int)from->num_nodes,
		.node_cpus = from->pn_min_cpus,
		.node_memory_mb = memory_of(from),
		.priority = from->priority,
		.limit_s = limit_of(from),
		.submitted = from->submit_time,
		.started = from->start_time,
		.ends = from->end_time,
		.resized = from->resize_time,
	};
	struct list held = { 0, NULL };
	int n = base == JOB_PENDING ? 0 : take_list(v, from->node_inx, NULL, NULL);
	held.items = j->held = hspmd_calloc((size_t)n, sizeof *j->held);
	if (!j->user || !j->account || !j->partition || !j->qos || !j->features || !j->tres_per_node || !j->tres || !j->batch_host ||
	    !j->held)
		return -1;
	if (n)
		take_list(v, from->node_inx, append, &held);
	j->held_count = held.count;
	return 0;
}

static int take_jobs(struct hspmd_slurm_view *v)
{
	v->jobs = hspmd_calloc(jobs_msg->record_count, sizeof *v->jobs);
	if (!v->jobs)
		return -1;
	for (uint32_t i = 0; i < jobs_msg->record_count; i++)
		if (take_job(v, &jobs_msg->job_array[i]) < 0)
			return -1;
	v->jobs_at = jobs_msg->last_update;
	return 0;
}

/* Returns 1 if something is new, 0 if nothing is, -1 and err. */
static int load_all(const struct hspmd_slurm_view *old, int *rpcs, struct hspmd_error *err)
{
	int partitions = 0, nodes, jobs;
	if (!old || time(NULL) - partitions_at >= PARTITIONS_EVERY_S) {
		++*rpcs;
		if ((partitions = load_partitions(err)) < 0)
			return -1;
		partitions_at = time(NULL);
		if (by_qos)
			load_qos();
	}
	++*rpcs;
	if ((nodes = load_nodes(old, err)) < 0)
		return -1;
	++*rpcs;
	if ((jobs = load_jobs(old, err)) < 0)
		return -1;
	return partitions || nodes || jobs || !old;
}

int hspmd_slurm_view_refresh(const struct hspmd_slurm_view *old, struct hspmd_slurm_view **new, int *rpcs, struct hspmd_error *err)
{
	*new = NULL;
	if (hspmd_slurm_init(err))
		return -1;
	int rc = load_all(old, rpcs, err);
	if (rc <= 0)
		return rc;
	struct hspmd_slurm_view *v = hspmd_calloc(1, sizeof *v);
	if (!v || take_nodes(v) < 0 || take_partitions(v) < 0 || take_jobs(v) < 0 || (by_qos && hspmd_slurm_qos_copy(&v->qos, &qos))) {
		hspmd_slurm_view_destroy(v);
		return hspmd_fail_memory(err, "reading slurmctld's replies");
	}
	hspmd_slurm_view_index(v);
	*new = v;
	return 1;
}
