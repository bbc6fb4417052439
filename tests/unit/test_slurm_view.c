/* SPDX-License-Identifier: Apache-2.0 */
/* What hspmdctld sees of the cluster, from tables as libslurm gives them: states of nodes, partitions with their settings, jobs with what
 * they hold and wait for; and how often it asks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <pwd.h>
#include <string.h>
#include <unistd.h>

#include <slurm/slurm_errno.h>

#include "common/format/job.h"
#include "controller/ctld/poll_interval.h"
#include "controller/slurm/slurm_view.h"
#include "tests/unit/fake_slurm.h"

static struct hspmd_error err;

#define COUNT(a) (sizeof(a) / sizeof *(a))

static node_info_t nodes[] = {
	{ .name = "n0",
	  .node_state = NODE_STATE_IDLE,
	  .cpus = 8,
	  .real_memory = 64000,
	  .features = "old",
	  .features_act = "fast,ib",
	  .gres = "gpu:a100:4",
	  .weight = 7,
	  .last_busy = 1234 },
	{ .name = "n1", .node_state = NODE_STATE_ALLOCATED, .features = "configured" },
	{ .name = "n2", .node_state = NODE_STATE_MIXED },
	{ .name = "n3", .node_state = NODE_STATE_IDLE | NODE_STATE_COMPLETING },
	{ .name = "n4", .node_state = NODE_STATE_IDLE | NODE_STATE_DRAIN },
	{ .name = "n5", .node_state = NODE_STATE_DOWN },
	{ .name = "n6", .node_state = NODE_STATE_ALLOCATED | NODE_STATE_DRAIN },
	{ .name = "n7", .node_state = NODE_STATE_IDLE | NODE_STATE_NO_RESPOND },
	{ .name = "n8", .node_state = NODE_STATE_IDLE | NODE_STATE_POWERED_DOWN },
	{ .name = "n9", .node_state = NODE_STATE_IDLE | NODE_STATE_RES },
	{ .name = "", .node_state = NODE_STATE_IDLE }, /* a record that Slurm no longer uses */
};
static int32_t front[] = { 0, 1, 3, 3, -1 }, beyond[] = { 9, 90, -1 };
static partition_info_t partitions[] = {
	{ .name = "day", .node_inx = front, .state_up = PARTITION_UP, .priority_tier = 3, .preempt_mode = NO_VAL16 },
	{ .name = "gang", .node_inx = beyond, .state_up = PARTITION_DOWN, .preempt_mode = PREEMPT_MODE_GANG },
	{ .name = "night", .state_up = PARTITION_UP, .preempt_mode = PREEMPT_MODE_REQUEUE | PREEMPT_MODE_GANG },
};

static void tables(job_info_t *jobs, size_t count)
{
	fake_slurm_reset();
	fake_slurm.nodes = (node_info_msg_t){ .node_array = nodes, .record_count = COUNT(nodes), .last_update = 100 };
	fake_slurm.partitions =
	        (partition_info_msg_t){ .partition_array = partitions, .record_count = COUNT(partitions), .last_update = 100 };
	fake_slurm.jobs = (job_info_msg_t){ .job_array = jobs, .record_count = (uint32_t)count, .last_update = 100 };
}

static struct hspmd_slurm_view *view_of(job_info_t *jobs, size_t count)
{
	struct hspmd_slurm_view *v;
	int rpcs = 0;
	tables(jobs, count);
	assert_int_equal(hspmd_slurm_view_refresh(NULL, &v, &rpcs, &err), 1);
	assert_non_null(v);
	return v;
}

static void states_of_nodes(void **state)
{
	static const enum hspmd_slurm_view_node_state expected[COUNT(nodes)] = {
		HSPMD_SLURM_VIEW_IDLE,     HSPMD_SLURM_VIEW_BUSY,     HSPMD_SLURM_VIEW_BUSY,     HSPMD_SLURM_VIEW_LEAVING,
		HSPMD_SLURM_VIEW_UNUSABLE, HSPMD_SLURM_VIEW_UNUSABLE, HSPMD_SLURM_VIEW_BUSY,     HSPMD_SLURM_VIEW_UNUSABLE,
		HSPMD_SLURM_VIEW_UNUSABLE, HSPMD_SLURM_VIEW_UNUSABLE, HSPMD_SLURM_VIEW_UNUSABLE,
	};
	struct hspmd_slurm_view *v = view_of(NULL, 0);
	(void)state;
	assert_int_equal(v->node_count, COUNT(nodes));
	for (size_t i = 0; i < COUNT(nodes); i++)
		if (v->nodes[i].state != expected[i])
			fail_msg("node %zu (%s): state %d, expected %d", i, v->nodes[i].name, v->nodes[i].state, expected[i]);
	assert_string_equal(v->nodes[0].features, "fast,ib");
	assert_string_equal(v->nodes[1].features, "configured");
	assert_string_equal(v->nodes[2].features, "");
	assert_string_equal(v->nodes[0].gres, "gpu:a100:4");
	assert_string_equal(v->nodes[2].gres, "");
	assert_int_equal(v->nodes[0].cpus, 8);
	assert_int_equal(v->nodes[0].memory_mb, 64000);
	assert_int_equal(v->nodes[0].weight, 7);
	assert_int_equal(v->nodes[0].last_busy, 1234);
	assert_int_equal(hspmd_slurm_view_find_node(v, "n3"), 3);
	assert_int_equal(hspmd_slurm_view_find_node(v, "n33"), -1);
	hspmd_slurm_view_destroy(v);
}

static void partitions_and_preemption(void **state)
{
	struct hspmd_slurm_view_settings s;
	(void)state;
	tables(NULL, 0);
	/* The cluster's mode holds for a partition without one of its own. */
	fake_slurm.conf = (slurm_conf_t){ .preempt_mode = PREEMPT_MODE_CANCEL,
		                          .state_save_location = "/state",
		                          .slurm_user_name = "slurm",
		                          .private_data = PRIVATE_DATA_JOBS | PRIVATE_DATA_USAGE,
		                          .authinfo = "ttl=60,socket=/run/m.socket,x=y" };
	assert_int_equal(hspmd_slurm_view_settings(&s, &err), 0);
	assert_string_equal(s.state_folder, "/state");
	assert_string_equal(s.user, "slurm");
	assert_string_equal(s.munge_socket, "/run/m.socket");
	assert_false(s.without_munge);
	assert_true(s.private_jobs);
	hspmd_slurm_view_settings_clear(&s);
	struct hspmd_slurm_view *v = view_of(NULL, 0);
	assert_int_equal(v->partition_count, 3);
	assert_string_equal(v->partitions[0].name, "day");
	assert_int_equal(v->partitions[0].tier, 3);
	assert_true(v->partitions[0].up && v->partitions[0].preemptable);
	assert_true(!v->partitions[1].up && !v->partitions[1].preemptable);
	assert_true(v->partitions[2].up && v->partitions[2].preemptable);
	for (int i = 0; i < v->node_count; i++) {
		assert_int_equal(v->partitions[0].nodes[i], i == 0 || i == 1 || i == 3);
		assert_int_equal(v->partitions[1].nodes[i], i >= 9); /* a list beyond the table of nodes is cut */
		assert_int_equal(v->partitions[2].nodes[i], 0);
	}
	hspmd_slurm_view_destroy(v);
	fake_slurm.conf = (slurm_conf_t){ .preempt_mode = PREEMPT_MODE_OFF, .state_save_location = "/state", .slurm_user_name = "slurm" };
	assert_int_equal(hspmd_slurm_view_settings(&s, &err), 0);
	assert_null(s.munge_socket);
	assert_false(s.private_jobs || s.without_munge);
	hspmd_slurm_view_settings_clear(&s);
	fake_slurm.conf.authtype = "auth/slurm";
	fake_slurm.conf.authinfo = "socket=/run/sack.socket";
	assert_int_equal(hspmd_slurm_view_settings(&s, &err), 0);
	assert_true(s.without_munge && !s.munge_socket);
	hspmd_slurm_view_settings_clear(&s);
	slurm_conf_t conf = fake_slurm.conf;
	v = view_of(NULL, 0);
	assert_false(v->partitions[0].preemptable);
	hspmd_slurm_view_destroy(v);
	fake_slurm.conf = conf;
	fake_slurm.conf_error = 7;
	assert_int_equal(hspmd_slurm_view_settings(&s, &err), -1);
	assert_non_null(strstr(err.text, "error 7 of slurmctld"));
	assert_null(s.state_folder);
}

static void running_jobs(void **state)
{
	static int32_t held[] = { 1, 2, 6, 6, -1 }, far[] = { 10, 4000, -1 };
	job_info_t jobs[] = {
		{ .job_id = 5,
		  .job_state = JOB_RUNNING,
		  .user_id = 12,
		  .user_name = "ann",
		  .account = "a",
		  .partition = "day",
		  .qos = "high",
		  .features = "ib",
		  .tres_per_node = "gres/gpu:2",
		  .batch_host = "n1",
		  .comment = HSPMD_JOB_COMMENT,
		  .num_nodes = 3,
		  .node_inx = held,
		  .pn_min_cpus = 4,
		  .pn_min_memory = MEM_PER_CPU | 1000,
		  .priority = 77,
		  .time_limit = 90,
		  .submit_time = 1,
		  .start_time = 2,
		  .end_time = 3,
		  .resize_time = 4 },
		{ .job_id = 6, .job_state = JOB_COMPLETE, .user_name = "ann" },
		{ .job_id = 7,
		  .job_state = JOB_COMPLETE | JOB_COMPLETING,
		  .user_name = "bob",
		  .node_inx = far,
		  .num_nodes = 1,
		  .time_limit = INFINITE,
		  .pn_min_memory = 5000,
		  .pn_min_cpus = 3,
		  .comment = HSPMD_JOB_COMMENT "x" },
		{ .job_id = 8,
		  .job_state = JOB_SUSPENDED,
		  .user_id = getuid(),
		  .node_inx = held,
		  .time_limit = NO_VAL,
		  .pn_min_memory = MEM_PER_CPU | 10 },
		{ .job_id = 9, .job_state = JOB_TIMEOUT },
		{ .job_id = 10, .job_state = JOB_RUNNING, .user_id = 4000000000u },
	};
	struct hspmd_slurm_view *v = view_of(jobs, COUNT(jobs));
	(void)state;
	assert_int_equal(v->job_count, 4);
	const struct hspmd_slurm_view_job *j = hspmd_slurm_view_find_job(v, 5);
	assert_non_null(j);
	assert_int_equal(j->state, HSPMD_SLURM_VIEW_RUNNING);
	assert_int_equal(j->uid, 12);
	assert_int_equal(j->held_count, 3);
	assert_true(j->held[0] == 1 && j->held[1] == 2 && j->held[2] == 6);
	assert_true(j->elastic && !j->ready && !j->wants_named_nodes);
	assert_string_equal(j->user, "ann");
	assert_string_equal(j->account, "a");
	assert_string_equal(j->partition, "day");
	assert_string_equal(j->qos, "high");
	assert_string_equal(j->features, "ib");
	assert_string_equal(j->tres_per_node, "gres/gpu:2");
	assert_string_equal(j->batch_host, "n1");
	assert_int_equal(j->node_memory_mb, 4000);
	assert_true(j->node_cpus == 4 && j->nodes == 3);
	assert_true(fabs(j->limit_s - 5400) < 1e-9 && fabs(j->priority - 77) < 1e-9);
	assert_true(j->submitted == 1 && j->started == 2 && j->ends == 3 && j->resized == 4);
	assert_null(hspmd_slurm_view_find_job(v, 6));
	j = hspmd_slurm_view_find_job(v, 7);
	assert_int_equal(j->state, HSPMD_SLURM_VIEW_COMPLETING);
	assert_int_equal(j->held_count, 1); /* the table of nodes ends there */
	assert_true(isinf(j->limit_s) && !j->elastic);
	assert_int_equal(j->node_memory_mb, 5000);
	j = hspmd_slurm_view_find_job(v, 8);
	assert_int_equal(j->state, HSPMD_SLURM_VIEW_RUNNING);
	assert_true(isinf(j->limit_s));
	assert_int_equal(j->node_memory_mb, 10);
	if (getpwuid(getuid()))
		assert_string_equal(j->user, getpwuid(getuid())->pw_name);
	assert_string_equal(hspmd_slurm_view_find_job(v, 10)->user, "4000000000"); /* a user that this machine does not know */
	hspmd_slurm_view_destroy(v);
}

/* A job that more idle nodes would start, and one that waits for anything else. */
static void pending_jobs(void **state)
{
	static int32_t held[] = { 1, 2, -1 };
	const time_t past = time(NULL) - 100;
	const job_info_t base = {
		.job_id = 1, .job_state = JOB_PENDING, .user_name = "u", .priority = 10, .eligible_time = past, .node_inx = held
	};
	job_info_t jobs[11];
	static const bool ready[COUNT(jobs)] = { true, true, true, false, false, false, false, true, true, true, false };
	static const bool named[COUNT(jobs)] = { false, false, false, false, false, false, false, true, true, true, false };
	(void)state;
	for (size_t i = 0; i < COUNT(jobs); i++)
		jobs[i] = base;
	jobs[0].state_reason = WAIT_RESOURCES;
	jobs[1].state_reason = WAIT_PRIORITY;
	jobs[2].state_reason = WAIT_NO_REASON;
	jobs[3].state_reason = WAIT_DEPENDENCY;
	jobs[4].priority = 0; /* held */
	jobs[5].eligible_time = time(NULL) + 1000;
	jobs[6].eligible_time = 0;
	jobs[7].req_nodes = "n1";
	jobs[8].exc_nodes = "n1";
	jobs[9].resv_name = "maintenance";
	jobs[10].priority = 1; /* Slurm gives it to jobs that it will not start */
	struct hspmd_slurm_view *v = view_of(jobs, COUNT(jobs));
	assert_int_equal(v->job_count, COUNT(jobs));
	for (size_t i = 0; i < COUNT(jobs); i++) {
		assert_int_equal(v->jobs[i].state, HSPMD_SLURM_VIEW_PENDING);
		assert_int_equal(v->jobs[i].held_count, 0);
		if (v->jobs[i].ready != ready[i] || v->jobs[i].wants_named_nodes != named[i])
			fail_msg("job %zu: ready %d, named nodes %d", i, v->jobs[i].ready, v->jobs[i].wants_named_nodes);
	}
	hspmd_slurm_view_destroy(v);
}

static void asks_seldom(void **state)
{
	job_info_t jobs[] = { { .job_id = 5, .job_state = JOB_RUNNING, .user_name = "u" } };
	struct hspmd_slurm_view *v = view_of(jobs, 1), *next;
	int rpcs = 0;
	(void)state;
	assert_int_equal(fake_slurm.asked, 3);
	assert_int_equal(hspmd_slurm_view_refresh(v, &next, &rpcs, &err), 0);
	assert_null(next);
	assert_int_equal(rpcs, 2); /* not the partitions */
	assert_int_equal(fake_slurm.asked, 5);
	/* Only the jobs have changed: the nodes are those of the last reply. */
	jobs[0].job_state = JOB_RUNNING | JOB_COMPLETING;
	fake_slurm.jobs.last_update = 101;
	assert_int_equal(hspmd_slurm_view_refresh(v, &next, &rpcs, &err), 1);
	assert_int_equal(next->node_count, COUNT(nodes));
	assert_int_equal(next->partition_count, COUNT(partitions));
	assert_int_equal(next->jobs[0].state, HSPMD_SLURM_VIEW_COMPLETING);
	assert_int_equal(next->jobs_at, 101);
	assert_int_equal(next->nodes_at, 100);
	assert_false(hspmd_slurm_view_equal(v, next));
	hspmd_slurm_view_destroy(v);
	static const char *const what[] = { "partitions", "nodes", "jobs" };
	int *const errors[] = { &fake_slurm.partitions_error, &fake_slurm.nodes_error, &fake_slurm.jobs_error };
	for (int i = 0; i < 3; i++) {
		*errors[i] = 40 + i;
		assert_int_equal(hspmd_slurm_view_refresh(NULL, &v, &rpcs, &err), -1);
		assert_null(v);
		assert_non_null(strstr(err.text, what[i]));
		assert_non_null(strstr(err.text, "error 4"));
		*errors[i] = 0;
	}
	hspmd_slurm_view_destroy(next);
}

/* What sacctmgr prints at a site that preempts by QOS. */
static void preemption_by_qos(void **state)
{
	char text[] = "sacctmgr: warning: slow\nnormal||cluster\nscavenger||REQUEUE\nhigh|normal,scavenger|cluster\n"
	              "urgent|high|cluster\nfixed||OFF\nring|ring,fixed|cluster\n";
	struct hspmd_slurm_qos_table t, copy;
	(void)state;
	assert_int_equal(hspmd_slurm_qos_parse(&t, text, &err), 0);
	assert_int_equal(t.count, 6);
	assert_int_equal(hspmd_slurm_qos_copy(&copy, &t), 0);
	hspmd_slurm_qos_clear(&t);
	assert_int_equal(hspmd_slurm_qos_find(&copy, "normal")->level, 0);
	assert_int_equal(hspmd_slurm_qos_find(&copy, "high")->level, 1);
	assert_int_equal(hspmd_slurm_qos_find(&copy, "urgent")->level, 2);
	assert_true(hspmd_slurm_qos_preempts(&copy, "high", "scavenger"));
	assert_false(hspmd_slurm_qos_preempts(&copy, "high", "scaveng"));
	assert_false(hspmd_slurm_qos_preempts(&copy, "normal", "high"));
	assert_false(hspmd_slurm_qos_preempts(&copy, "urgent", "normal")); /* Slurm does not follow the chain */
	assert_false(hspmd_slurm_qos_preempts(&copy, "ring", "fixed"));    /* PreemptMode=OFF */
	assert_null(hspmd_slurm_qos_find(&copy, "slow"));
	hspmd_slurm_qos_clear(&copy);
}

/* A clock of the test's own, for slurm_view.c too; 0: the machine's. */
static time_t invented_now;

time_t time(time_t *to)
{
	struct timespec t = { .tv_sec = invented_now };
	if (!invented_now)
		clock_gettime(CLOCK_REALTIME, &t);
	if (to)
		*to = t.tv_sec;
	return t.tv_sec;
}

/* Polls as hspmdctld does by default (--poll 10,75) in an hour of an invented clock, and counts what reaches slurmctld. Every `change_s`
 * seconds a job changes (0: never), and slurmctld saves its state five seconds later at most, which brings the next poll forward. */
static int calls_in_an_hour(double change_s)
{
	job_info_t jobs[] = { { .job_id = 5, .job_state = JOB_RUNNING, .user_name = "u", .partition = "day", .num_nodes = 1 } };
	struct ctld_poll_interval p;
	struct hspmd_slurm_view *view = NULL, *new;
	double saved_s = 0, changed_s = 0;
	bool unsaved = false;
	int counted = 0;
	tables(jobs, 1);
	ctld_poll_interval_start(&p, 10, 75);
	for (double now = 0; now < 3600; now = fmin(p.next_s, change_s > 0 ? saved_s : p.next_s)) {
		for (; change_s > 0 && changed_s <= now; changed_s += change_s, unsaved = true)
			jobs[0].job_id++;
		if (change_s > 0 && saved_s <= now) {
			if (unsaved)
				ctld_poll_interval_soon(&p, now);
			unsaved = false;
			saved_s = now + 5;
		}
		if (now < p.next_s)
			continue;
		invented_now = 1000000 + (time_t)now;
		fake_slurm.jobs.last_update = fake_slurm.nodes.last_update = invented_now;
		int rc = hspmd_slurm_view_refresh(view, &new, &counted, &err);
		assert_int_equal(rc, 1);
		bool same = view && hspmd_slurm_view_equal(view, new);
		hspmd_slurm_view_destroy(view);
		view = new;
		ctld_poll_interval_done(&p, now, now + 0.1, same ? CTLD_POLL_UNCHANGED : CTLD_POLL_CHANGED);
	}
	hspmd_slurm_view_destroy(view);
	invented_now = 0;
	assert_int_equal(counted, fake_slurm.asked); /* what it says is what it does */
	return counted;
}

static void spares_slurmctld(void **state)
{
	(void)state;
	/* At rest, with a change a minute, and while all changes. */
	int rest = calls_in_an_hour(0), minute = calls_in_an_hour(60), churn = calls_in_an_hour(0.7);
	print_message("calls to slurmctld in an hour: %d at rest, %d with a change a minute, %d with one every 0.7 s\n", rest, minute,
	              churn);
	assert_in_range(rest, 60, 6 * 60);
	assert_in_range(churn, rest, 20 * 60);
	assert_in_range(minute, rest, churn);
}

/* Times and priorities, which change all the time, are no difference; what a decision depends on is one. */
static void what_is_a_difference(void **state)
{
	static int32_t one[] = { 1, 1, -1 }, other[] = { 2, 2, -1 }, row[] = { 0, 0, -1 };
	job_info_t jobs[] = {
		{ .job_id = 5, .job_state = JOB_RUNNING, .user_name = "u", .partition = "day", .node_inx = one, .num_nodes = 1 }
	};
	struct hspmd_slurm_view *v = view_of(jobs, 1), *w;
	const job_info_t job = jobs[0];
	const node_info_t node = nodes[0];
	const partition_info_t partition = partitions[0];
	(void)state;
	for (int i = 0; i < 12; i++) {
		jobs[0] = job;
		nodes[0] = node;
		partitions[0] = partition;
		switch (i) {
		case 0:
			jobs[0].priority = 99;
			break;
		case 1:
			jobs[0].end_time = 99;
			break;
		case 2:
			nodes[0].last_busy = 99;
			break;
		case 3:
			jobs[0].node_inx = other;
			break;
		case 4:
			jobs[0].job_state |= JOB_COMPLETING;
			break;
		case 5:
			jobs[0].partition = "night";
			break;
		case 6:
			nodes[0].node_state |= NODE_STATE_DRAIN;
			break;
		case 7:
			nodes[0].real_memory++;
			break;
		case 8:
			nodes[0].features_act = "slow";
			break;
		case 9:
			partitions[0].state_up = PARTITION_DOWN;
			break;
		case 10:
			partitions[0].node_inx = row;
			break;
		case 11:
			partitions[0].priority_tier++;
			break;
		}
		w = view_of(jobs, 1);
		if (hspmd_slurm_view_equal(v, w) != (i < 3))
			fail_msg("change %d: equal is %d", i, hspmd_slurm_view_equal(v, w));
		hspmd_slurm_view_destroy(w);
	}
	nodes[0] = node;
	partitions[0] = partition;
	hspmd_slurm_view_destroy(v);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(states_of_nodes),      cmocka_unit_test(partitions_and_preemption), cmocka_unit_test(running_jobs),
		cmocka_unit_test(pending_jobs),         cmocka_unit_test(preemption_by_qos),         cmocka_unit_test(asks_seldom),
		cmocka_unit_test(what_is_a_difference), cmocka_unit_test(spares_slurmctld),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
