/* SPDX-License-Identifier: Apache-2.0 */
/* What Slurm's accounting and the site's budgets let elastic jobs take, as hspmdctld reads and counts it. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/clock.h"
#include "controller/ctld/daemon_internal.h"
#include "policies/match.h"

/* The tree of accounts: root - site - lab, other. Columns as the comment in accounts.h has them. */
static const char assoc[] = "sacctmgr: a warning\n"
                            "c1|root||||||\n"
                            "c1|site|||root|node=20||\n"
                            "c1|lab|||site|cpu=40,node=9|6|3\n"
                            "c2|lab|||site|node=1||\n"
                            "c1|lab|ann|||gres/gpu=4||2\n"
                            "c1|lab|ann|gold||node=1||\n"
                            "c1|lab|bob|||node=1||\n"
                            "c1|other|||site|node=1||\n";
static const char qos_lines[] = "normal||||||\n"
                                "scavenger|node=12|cpu=30|mem=64G||5|\n";
static const char share_lines[] = "root||1.000000\n"
                                  " lab||0.400000\n"
                                  "  lab|ann|0.250000\n"
                                  "  lab|bob|0.000000\n"
                                  "  other|ann|0.750000\n"
                                  "  other|eve|\n";

static struct hspmd_slurm_accounts read_all(void)
{
	struct hspmd_slurm_accounts a = { 0 };
	struct hspmd_error err;
	char *text = strdup(assoc);
	assert_int_equal(hspmd_slurm_assoc_parse(&a, "c1", text, &err), 0);
	free(text);
	text = strdup(qos_lines);
	assert_int_equal(hspmd_slurm_qos_limits_parse(&a, text, &err), 0);
	free(text);
	text = strdup(share_lines);
	assert_int_equal(hspmd_slurm_shares_parse(&a, text, &err), 0);
	free(text);
	return a;
}

static void test_what_the_commands_print(void **state)
{
	(void)state;
	struct hspmd_slurm_accounts a = read_all();
	assert_int_equal(a.limit_count, 7 + 2);
	assert_string_equal(a.limits[2].tres[HSPMD_SLURM_GRP_TRES], "cpu=40,node=9");
	assert_int_equal(a.limits[2].jobs[HSPMD_SLURM_GRP_JOBS], 6);
	/* What an account's users inherit is their own limit, not the account's. */
	assert_int_equal(a.limits[2].jobs[HSPMD_SLURM_USER_JOBS], -1);
	assert_int_equal(a.limits[3].jobs[HSPMD_SLURM_USER_JOBS], 2);
	assert_string_equal(a.limits[8].qos, "scavenger");
	assert_string_equal(a.limits[8].tres[HSPMD_SLURM_ACCOUNT_TRES], "mem=64G");
	assert_int_equal(a.limits[8].jobs[HSPMD_SLURM_USER_JOBS], 5);
	assert_float_equal(hspmd_slurm_share_of(&a, "lab", "ann"), 0.25, 0);
	assert_float_equal(hspmd_slurm_share_of(&a, "lab", "bob"), 0, 0);
	assert_float_equal(hspmd_slurm_share_of(&a, "other", "eve"), -1, 0);
	assert_float_equal(hspmd_slurm_share_of(NULL, "lab", "ann"), -1, 0);
	assert_float_equal(hspmd_slurm_tres_of("cpu=8,mem=64G,gres/gpu=2", "mem"), 65536, 0);
	assert_float_equal(hspmd_slurm_tres_of("mem=512M", "mem"), 512, 0);
	assert_float_equal(hspmd_slurm_tres_of("mem=512", "mem"), 512, 0);
	assert_float_equal(hspmd_slurm_tres_of("cpu=8,gres/gpu=2", "gres/gpu"), 2, 0);
	assert_float_equal(hspmd_slurm_tres_of("cpu=8", "node"), -1, 0);
	hspmd_slurm_accounts_clear(&a);
}

/* ---- a cluster of six nodes: elastic job 10 of ann on n0 n1, its member 11 on n2, job 12 of bob on n3; n4 n5 are idle */

static char nothing[] = "", lab[] = "lab", ann[] = "ann", bob[] = "bob", normal[] = "normal", scavenger[] = "scavenger",
            gpus[] = "gres:gpu:2";
static char names[6][3] = { "n0", "n1", "n2", "n3", "n4", "n5" };
static char two_nodes[] = "cpu=8,mem=16G,node=2,gres/gpu=2", one_node[] = "cpu=4,mem=8G,node=1,gres/gpu=1", bobs[] = "cpu=4,node=1";
static unsigned char all_nodes[6] = { 1, 1, 1, 1, 1, 1 };
static int held[4] = { 0, 1, 2, 3 };
static struct hspmd_slurm_view_node nodes[6];
static struct hspmd_slurm_view_partition partition = { normal, 1, true, true, all_nodes };
static struct hspmd_slurm_view_job jobs[3];
static struct ctld_node_history histories[6];

static struct hspmd_slurm_view make_view(const struct hspmd_slurm_accounts *a)
{
	memset(histories, 0, sizeof histories);
	for (int i = 0; i < 6; i++)
		nodes[i] = (struct hspmd_slurm_view_node){ .name = names[i],
			                                   .state = i < 4 ? HSPMD_SLURM_VIEW_BUSY : HSPMD_SLURM_VIEW_IDLE,
			                                   .cpus = 4,
			                                   .features = nothing,
			                                   .gres = nothing };
	for (int i = 0; i < 3; i++)
		jobs[i] = (struct hspmd_slurm_view_job){ .id = 10 + (uint32_t)i,
			                                 .uid = i < 2 ? 1000 : 1001,
			                                 .state = HSPMD_SLURM_VIEW_RUNNING,
			                                 .user = i < 2 ? ann : bob,
			                                 .account = lab,
			                                 .partition = normal,
			                                 .qos = i == 1 ? scavenger : normal,
			                                 .features = nothing,
			                                 .tres_per_node = nothing,
			                                 .tres = i == 0   ? two_nodes
			                                         : i == 1 ? one_node
			                                                  : bobs,
			                                 .batch_host = names[0],
			                                 .limit_s = INFINITY,
			                                 .started = 500 + i,
			                                 .held = held + (i ? i + 1 : 0),
			                                 .held_count = i ? 1 : 2 };
	return (struct hspmd_slurm_view){
		.node_count = 6, .partition_count = 1, .job_count = 3, .nodes = nodes, .partitions = &partition, .jobs = jobs, .accounts = a
	};
}

static struct ctld_peer make_peer(int members)
{
	return (struct ctld_peer){ .job = 10,
		                   .uid = 1000,
		                   .reachable = true,
		                   .member_count = members,
		                   .members = { 11 },
		                   .min_nodes = 1,
		                   .max_nodes = 8,
		                   .resized_s = -INFINITY,
		                   .declined_grow_until_s = -INFINITY,
		                   .declined_shrink_until_s = -INFINITY };
}

static struct hspmd_policy *policy_of(const char *terms)
{
	char text[600];
	struct hspmd_error err = { "" };
	struct hspmd_policy *p = hspmd_policy_create(&err);
	snprintf(text, sizeof text, "{\"format\": \"hspmd-policy-1\", \"rules\": [{\"name\": \"x\", %s}]}", terms);
	if (hspmd_policy_add_text(p, text, strlen(text), "x.json", &err))
		fail_msg("%s", err.text);
	return p;
}

/* The snapshot of that cluster with its only elastic job; the caller clears it. */
static struct ctld_snapshot build(const struct hspmd_slurm_view *v, const struct hspmd_policy *policy, const struct ctld_peer *peer)
{
	struct ctld_snapshot s;
	assert_int_equal(ctld_snapshot_build(&s, v, policy, peer, 1, histories, 1000, NULL, NULL, NULL), 0);
	return s;
}

/* The limit's room and cost for the only elastic job; fails if there is no such limit. */
static void expect_limit(const struct ctld_snapshot *s, const char *name, double left, double cost)
{
	for (int l = 0; l < s->snapshot.limit_count; l++)
		if (!strcmp(s->snapshot.limits[l].name, name)) {
			assert_float_equal(s->snapshot.limits[l].left, left, 1e-9);
			assert_float_equal(s->elastic[0].limit_cost[l], cost, 1e-9);
			return;
		}
	fail_msg("no limit \"%s\"", name);
}

static void test_limits_on_growth_in_place(void **state)
{
	(void)state;
	struct hspmd_slurm_accounts a = read_all();
	struct hspmd_slurm_view v = make_view(&a);
	struct hspmd_policy *policy = policy_of("\"grow\": {\"into_idle\": true}");
	struct ctld_peer peer = make_peer(0);
	struct ctld_snapshot s;
	jobs[1].state = HSPMD_SLURM_VIEW_COMPLETING; /* no longer counted */
	s = build(&v, policy, &peer);
	assert_int_equal(s.snapshot.limit_count, 4);
	expect_limit(&s, "GrpTRES node of account site", 20 - 3, 1);
	expect_limit(&s, "GrpTRES cpu of account lab", 40 - 12, 4);
	expect_limit(&s, "GrpTRES node of account lab", 9 - 3, 1);
	expect_limit(&s, "GrpTRES gres/gpu of user ann in account lab", 4 - 2, 1);
	ctld_snapshot_clear(&s);
	/* Without what sacctmgr says there are none. */
	v.accounts = NULL;
	s = build(&v, policy, &peer);
	assert_int_equal(s.snapshot.limit_count, 0);
	ctld_snapshot_clear(&s);
	hspmd_policy_destroy(policy);
	hspmd_slurm_accounts_clear(&a);
}

static void test_limits_on_members(void **state)
{
	(void)state;
	struct hspmd_slurm_accounts a = read_all();
	struct hspmd_slurm_view v = make_view(&a);
	struct hspmd_policy *policy = policy_of("\"grow\": {\"into_idle\": true, \"qos\": \"scavenger\"}");
	struct ctld_peer peer = make_peer(1);
	struct ctld_snapshot s;
	s = build(&v, policy, &peer);
	/* The QOS in which members run: its limit of nodes stands in place of the associations', and so does its limit of jobs per user. */
	expect_limit(&s, "GrpTRES node of QOS scavenger", 12 - 1, 1);
	expect_limit(&s, "MaxTRESPerUser cpu of QOS scavenger for ann", 30 - 4, 4);
	expect_limit(&s, "MaxTRESPerAccount mem of QOS scavenger for lab", (64 - 8) * 1024, 8 * 1024);
	expect_limit(&s, "MaxJobsPerUser of QOS scavenger for ann", 5 - 1, 1);
	expect_limit(&s, "GrpTRES cpu of account lab", 40 - 16, 4);
	expect_limit(&s, "GrpJobs of account lab", 6 - 3, 1);
	expect_limit(&s, "GrpTRES gres/gpu of user ann in account lab", 4 - 3, 1);
	assert_int_equal(s.snapshot.limit_count, 7);
	ctld_snapshot_clear(&s);
	/* Members in the job's own QOS, which sets none: the association's number of jobs counts. */
	hspmd_policy_destroy(policy);
	policy = policy_of("\"grow\": {\"into_idle\": true}");
	jobs[0].tres_per_node = gpus;
	peer.member_count = 0;
	s = build(&v, policy, &peer);
	expect_limit(&s, "MaxJobsPerUser of user ann in account lab", 2 - 2, 1);
	ctld_snapshot_clear(&s);
	/* The association for a partition is for members in that partition. */
	hspmd_policy_destroy(policy);
	policy = policy_of("\"grow\": {\"into_idle\": true, \"partition\": \"gold\"}");
	s = build(&v, policy, &peer);
	expect_limit(&s, "GrpTRES node of user ann in account lab", 1, 1);
	ctld_snapshot_clear(&s);
	hspmd_policy_destroy(policy);
	hspmd_slurm_accounts_clear(&a);
}

static void test_weight_and_age(void **state)
{
	(void)state;
	struct hspmd_slurm_accounts a = read_all();
	struct hspmd_slurm_view v = make_view(&a);
	struct hspmd_policy *policy = policy_of("\"share\": {\"weight\": \"fairshare\"}");
	struct ctld_peer peer = make_peer(1);
	struct ctld_snapshot s;
	histories[1].held_since_s = 700;
	s = build(&v, policy, &peer);
	assert_float_equal(s.elastic[0].terms.weight, 0.25, 0);
	assert_float_equal(s.nodes[0].held_since_s, 0, 0);
	assert_float_equal(s.nodes[1].held_since_s, 700, 0);
	assert_float_equal(s.nodes[2].held_since_s, 501, 0); /* a member's node, since the member began */
	ctld_snapshot_clear(&s);
	jobs[0].user = bob; /* has used too much; his job is still worth something */
	s = build(&v, policy, &peer);
	assert_float_equal(s.elastic[0].terms.weight, 1e-3, 0);
	ctld_snapshot_clear(&s);
	v.accounts = NULL;
	s = build(&v, policy, &peer);
	assert_float_equal(s.elastic[0].terms.weight, 1, 0);
	ctld_snapshot_clear(&s);
	hspmd_policy_destroy(policy);
	hspmd_slurm_accounts_clear(&a);
}

static void charge(struct ctld *d, double seconds, double *spent)
{
	budgets_note_nodes(d);
	struct ctld_snapshot s = build(d->view, d->policy, d->peers.peers);
	if (d->charged_s > 0)
		d->charged_s = hspmd_unix_time() - seconds;
	budgets_charge(d, &s);
	*spent = s.elastic[0].spent_node_hours;
	ctld_snapshot_clear(&s);
}

static void test_budgets_outlive_the_daemon(void **state)
{
	(void)state;
	char path[] = "/tmp/hspmd-test-budget.XXXXXX";
	int fd = mkstemp(path);
	assert_true(fd >= 0);
	close(fd);
	unlink(path);
	struct ctld_options options = { .budget_file = path };
	struct hspmd_slurm_view v = make_view(NULL);
	struct ctld_peer peer = make_peer(1);
	struct hspmd_policy *policy = policy_of("\"grow\": {\"budget_node_hours\": 10}");
	struct ctld d = { .options = &options, .policy = policy, .view = &v, .peers = { .count = 1, .peers = &peer } };
	struct hspmd_error err;
	double spent;
	assert_int_equal(budgets_load(&d, &err), 0); /* there is no file yet */
	v.job_count = 1;                             /* before its member came */
	charge(&d, 0, &spent);
	assert_float_equal(spent, 0, 0);
	v.job_count = 3;
	charge(&d, 360, &spent);
	assert_float_equal(spent, 0.1, 1e-3); /* one added node for a tenth of an hour */
	charge(&d, 1e6, &spent);
	assert_float_equal(spent, 0.1 + 1 / 6.0, 1e-3); /* a gap counts as ten minutes at most */
	budgets_save(&d, true);
	hspmd_budget_clear(&d.budget);
	/* Another incarnation knows that the job began with two nodes. */
	peer.fewest_nodes = 0;
	d.charged_s = 0;
	assert_int_equal(budgets_load(&d, &err), 0);
	charge(&d, 0, &spent);
	assert_float_equal(spent, 0.1 + 1 / 6.0, 1e-3);
	assert_int_equal(peer.fewest_nodes, 2);
	json_decref(d.saved_jobs);
	d.saved_jobs = NULL;
	hspmd_budget_clear(&d.budget);
	FILE *f = fopen(path, "w");
	fputs("{}", f);
	fclose(f);
	assert_int_equal(budgets_load(&d, &err), -1);
	assert_non_null(strstr(err.text, path));
	unlink(path);
	hspmd_policy_destroy(policy);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_what_the_commands_print),    cmocka_unit_test(test_limits_on_growth_in_place),
		cmocka_unit_test(test_limits_on_members),          cmocka_unit_test(test_weight_and_age),
		cmocka_unit_test(test_budgets_outlive_the_daemon),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
