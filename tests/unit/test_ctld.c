/* SPDX-License-Identifier: Apache-2.0 */
/* hspmdctld without its loop: which jobs fit on which nodes, the snapshot built from Slurm's view and the controllers' states, quotes,
 * and how often Slurm is polled. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/gres.h"
#include "controller/ctld/snapshot.h"
#include "controller/ctld/poll_interval.h"
#include "controller/ctld/peers.h"
#include "controller/ctld/quote.h"

static void test_features(void **state)
{
	(void)state;
	static const struct {
		const char *wanted, *has;
		bool fits;
	} cases[] = {
		{ "", "", true },
		{ "a", "a,b", true },
		{ "a", "ab", false },
		{ "a&b", "b,a", true },
		{ "a&c", "a,b", false },
		{ "a|c", "c", true },
		{ "a,b", "a,b", true },
		{ "(a|c)&b", "c,b", true },
		{ "(a|c)&b", "c", false },
		{ "a&(b|(c&d))", "a,d,c", true },
		{ "[a|b]", "a", false },
		{ "a*2", "a", false },
		{ "a&", "a", false },
		{ "(a", "a", false },
		{ "((((((((((((((((((a))))))))))))))))))", "a", false },
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		if (ctld_features_fit(cases[i].wanted, cases[i].has) != cases[i].fits)
			fail_msg("\"%s\" in \"%s\"", cases[i].wanted, cases[i].has);
}

static void test_price(void **state)
{
	(void)state;
	assert_float_equal(ctld_price("fast,price:2.5,ib"), 2.5, 0);
	assert_float_equal(ctld_price("price:3"), 3, 0);
	assert_float_equal(ctld_price("fast,overprice:3"), 0, 0);
	assert_float_equal(ctld_price("price:,price:1"), 0, 0);
	assert_float_equal(ctld_price("price:-1"), 0, 0);
	assert_float_equal(ctld_price("price:nan"), 0, 0);
}

static void test_gres(void **state)
{
	(void)state;
	static const struct {
		const char *wanted, *has;
		bool fits;
	} cases[] = {
		{ "", "", true },
		{ "gres:gpu:2", "gpu:fake:2(S:0-1)", true },
		{ "gres:gpu:3", "gpu:fake:2(S:0-1)", false },
		{ "gres/gpu:fake:2", "gpu:fake:2", true },
		{ "gpu:H20:1", "gpu:fake:2", false },
		{ "gpu:3", "gpu:a:2(S:0,1),gpu:b:2", true },
		{ "gpu", "gpu:1", true },
		{ "gpu:1,license:1", "gpu:1", false },
		{ "gpu:a:b:1", "gpu:a:1", false },
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		if (hspmd_gres_fit(cases[i].wanted, cases[i].has) != cases[i].fits)
			fail_msg("\"%s\" in \"%s\"", cases[i].wanted, cases[i].has);
	char type[32];
	assert_int_equal(hspmd_gres_devices("gpu:H20:8(S:0-1),shard:4", type, sizeof type), 8);
	assert_string_equal(type, "H20");
	assert_int_equal(hspmd_gres_devices("", type, sizeof type), 1);
	assert_string_equal(type, "cpu");
}

/* ---- the snapshot */

static unsigned char in_all[6] = { 1, 1, 1, 1, 1, 1 }, in_half[6] = { 1, 1, 1, 0, 0, 0 };
static char none[] = "", gpu[] = "gpu:H20:8", normal[] = "normal", high[] = "high", ann[] = "ann", host[] = "n0";
static char names[6][3] = { "n0", "n1", "n2", "n3", "n4", "n5" };
static int held_by_elastic[] = { 0, 1 }, held_by_other[] = { 3 }, held_by_member[] = { 2 };

static struct hspmd_slurm_view_node nodes[6];
static struct hspmd_slurm_view_partition partitions[2] = { { normal, 1, true, true, in_all }, { high, 5, true, true, in_half } };
static struct hspmd_slurm_view_job jobs[4];

/* n0 n1: elastic job 10, n2: its member 11, n3: job 12, n4 n5 idle; job 13 is pending in `high`, which has n0 to n2. n5 has GPUs. */
static struct hspmd_slurm_view make_view(void)
{
	for (int i = 0; i < 6; i++)
		nodes[i] = (struct hspmd_slurm_view_node){
			names[i], i < 4 ? HSPMD_SLURM_VIEW_BUSY : HSPMD_SLURM_VIEW_IDLE, 900, 4, 1000, none, i == 5 ? gpu : none, 1
		};
	struct hspmd_slurm_view_job base = { .uid = 1000,
		                             .state = HSPMD_SLURM_VIEW_RUNNING,
		                             .user = ann,
		                             .account = none,
		                             .partition = normal,
		                             .qos = none,
		                             .features = none,
		                             .tres_per_node = none,
		                             .batch_host = host,
		                             .limit_s = 3600,
		                             .ends = 2000,
		                             .priority = 5 };
	for (int i = 0; i < 4; i++)
		jobs[i] = base;
	jobs[0].id = 10;
	jobs[0].held_count = 2;
	jobs[0].held = held_by_elastic;
	jobs[1].id = 11;
	jobs[1].held_count = 1;
	jobs[1].held = held_by_member;
	jobs[2].id = 12;
	jobs[2].held_count = 1;
	jobs[2].held = held_by_other;
	jobs[3].id = 13;
	jobs[3].state = HSPMD_SLURM_VIEW_PENDING;
	jobs[3].ready = true;
	jobs[3].partition = high;
	jobs[3].nodes = 2;
	return (struct hspmd_slurm_view){
		.node_count = 6, .partition_count = 2, .job_count = 4, .nodes = nodes, .partitions = partitions, .jobs = jobs
	};
}

static struct hspmd_policy *make_policy(void)
{
	static const char text[] = "{\"format\": \"hspmd-policy-1\", \"rules\": [{\"name\": \"x\", \"shrink\": {\"for_pending\": "
	                           "\"higher_priority\"}, \"limits\": {\"max_jobs_per_user\": 1},"
	                           "\"grow\": {\"into_idle\": true}}]}";
	struct hspmd_policy *p = hspmd_policy_create(NULL);
	assert_int_equal(hspmd_policy_add_text(p, text, strlen(text), "x.json", NULL), 0);
	return p;
}

static void test_snapshot(void **state)
{
	(void)state;
	struct hspmd_slurm_view v = make_view();
	struct hspmd_policy *policy = make_policy();
	struct ctld_peer peer = { .job = 10,
		                  .uid = 1000,
		                  .reachable = true,
		                  .member_count = 1,
		                  .members = { 11 },
		                  .min_nodes = 1,
		                  .max_nodes = 8,
		                  .resized_s = -INFINITY,
		                  .declined_grow_until_s = -INFINITY,
		                  .kind_count = 2,
		                  .kinds = { "n5", "gone" },
		                  .relative_speed = { 20, 3 } };
	struct ctld_node_history node_histories[6] = { { 0 } };
	struct ctld_snapshot s;
	node_histories[4] = (struct ctld_node_history){ .reserved_for = 99, .reserved_until_s = 1001 };
	node_histories[3] = (struct ctld_node_history){ .up_s = 100, .losses = 1 };
	node_histories[1] = (struct ctld_node_history){ .requested_from = 10, .requested_until_s = 1001 };
	node_histories[0] = (struct ctld_node_history){ .requested_from = 10, .requested_until_s = 999 };
	node_histories[2] = (struct ctld_node_history){ .requested_from = 12, .requested_until_s = 1001 };
	assert_int_equal(ctld_snapshot_build(&s, &v, policy, &peer, 1, node_histories, 1000, NULL, NULL, NULL), 0);
	assert_int_equal(s.snapshot.elastic_count, 1);
	assert_int_equal(s.snapshot.pending_count, 1);
	assert_int_equal(s.snapshot.class_count, 3); /* n0-n2 (in high too), n3 n4, n5 */
	assert_int_equal(s.nodes[2].holder, 0);
	assert_true(s.nodes[0].fixed);
	assert_false(s.nodes[1].fixed);
	assert_true(s.nodes[1].leaving); /* its holder was recently requested to return it */
	assert_false(s.nodes[0].leaving);
	assert_false(s.nodes[2].leaving);
	assert_float_equal(s.elastic[0].terms.weight, 1, 0);
	assert_int_equal(s.nodes[3].state, HSPMD_SNAPSHOT_BUSY);
	assert_float_equal(s.nodes[3].free_s, 2000, 0);
	assert_int_equal(s.nodes[4].reserved_for, 99);
	assert_int_equal(s.nodes[5].state, HSPMD_SNAPSHOT_IDLE);
	assert_float_equal(s.classes[s.nodes[3].class].losses_per_s, 0.01, 1e-12);
	assert_int_equal(s.classes[s.nodes[5].class].devices, 8);
	assert_float_equal(s.elastic[0].relative_speed[s.classes[s.nodes[5].class].type], 20, 0);
	/* n0, n1 and the member's n2 are of a kind for which it has sent no relative speed. */
	assert_float_equal(ctld_reference_nodes(&v, &peer), 3, 0);
	nodes[2].gres = gpu;
	assert_float_equal(ctld_reference_nodes(&v, &peer), 22, 0);
	nodes[2].gres = none;
	/* Of two kinds that Slurm cannot tell apart a node counts as their mean, in what the job holds and in what it may get. */
	struct ctld_peer two_kinds = peer;
	strcpy(two_kinds.kinds[0], "n0");
	strcpy(two_kinds.kinds[1], "n3");
	two_kinds.relative_speed[0] = 1;
	struct ctld_snapshot of_two;
	assert_int_equal(ctld_snapshot_build(&of_two, &v, policy, &two_kinds, 1, node_histories, 1000, NULL, NULL, NULL), 0);
	assert_float_equal(of_two.elastic[0].relative_speed[of_two.classes[of_two.nodes[4].class].type], 2, 0);
	assert_float_equal(ctld_reference_nodes(&v, &two_kinds), 6, 0);
	ctld_snapshot_clear(&of_two);
	assert_true(s.pending[0].priority > s.elastic[0].priority);
	assert_true(s.pending[0].preempts);
	assert_int_equal(s.pending[0].usable[s.nodes[0].class], 1);
	assert_int_equal(s.pending[0].usable[s.nodes[4].class], 0);
	ctld_snapshot_clear(&s);
	peer.overclaim_factor = 50; /* times the accepted rate */
	assert_int_equal(ctld_snapshot_build(&s, &v, policy, &peer, 1, node_histories, 1000, NULL, NULL, NULL), 0);
	assert_float_equal(s.elastic[0].terms.weight, 0.02, 1e-12);
	ctld_snapshot_clear(&s);
	/* At a site that preempts by QOS, partitions do not decide. */
	char low_qos[] = "low", high_qos[] = "urgent", above[] = "low", nothing[] = "";
	struct hspmd_slurm_qos qos[2] = { { low_qos, nothing, true, 0 }, { high_qos, above, true, 1 } };
	v.qos = (struct hspmd_slurm_qos_table){ 2, qos };
	for (int urgent = 0; urgent < 2; urgent++) {
		jobs[0].qos = low_qos;
		jobs[3].qos = urgent ? high_qos : low_qos;
		assert_int_equal(ctld_snapshot_build(&s, &v, policy, &peer, 1, node_histories, 1000, NULL, NULL, NULL), 0);
		assert_int_equal(s.pending[0].preempts, urgent);
		ctld_snapshot_clear(&s);
	}
	/* The job itself is safe, but its member is in a QOS that can be preempted. */
	jobs[0].qos = high_qos;
	jobs[1].qos = low_qos;
	assert_int_equal(ctld_snapshot_build(&s, &v, policy, &peer, 1, node_histories, 1000, NULL, NULL, NULL), 0);
	assert_true(s.pending[0].preempts);
	ctld_snapshot_clear(&s);
	jobs[1].uid = 1001; /* another user's job, which it names as its member */
	assert_int_equal(ctld_snapshot_build(&s, &v, policy, &peer, 1, node_histories, 1000, NULL, NULL, NULL), 0);
	assert_false(s.pending[0].preempts);
	ctld_snapshot_clear(&s);
	jobs[1].uid = 1000;
	jobs[0].qos = low_qos;
	jobs[1].qos = none;
	jobs[3].partition = normal; /* the same tier: the QOS makes it the more important one */
	assert_int_equal(ctld_snapshot_build(&s, &v, policy, &peer, 1, node_histories, 1000, NULL, NULL, NULL), 0);
	assert_true(s.pending[0].priority > s.elastic[0].priority);
	ctld_snapshot_clear(&s);
	v.qos = (struct hspmd_slurm_qos_table){ 0, NULL };
	jobs[3].partition = high;
	jobs[0].qos = jobs[3].qos = none;
	/* By members in another partition, whose nodes have other devices. */
	char wanted[] = "gres:gpu:A100:8", features[] = "ib";
	jobs[0].partition = high;
	jobs[0].tres_per_node = wanted;
	jobs[0].features = features;
	for (int grown = 0; grown < 2; grown++) {
		policy->rules[0].terms.grow_partition = grown ? normal : NULL;
		policy->rules[0].terms.given |= UINT64_C(1) << hspmd_policy_field("grow", "partition");
		assert_int_equal(ctld_snapshot_build(&s, &v, policy, &peer, 1, node_histories, 1000, NULL, NULL, NULL), 0);
		assert_int_equal(s.elastic[0].usable[s.nodes[5].class], grown);
		assert_int_equal(s.elastic[0].usable[s.nodes[4].class], 0);
		ctld_snapshot_clear(&s);
	}
	/* Nodes of its own partition bring it nothing then. */
	policy->rules[0].terms.grow_partition = high;
	jobs[0].partition = normal;
	jobs[0].tres_per_node = jobs[0].features = none;
	assert_int_equal(ctld_snapshot_build(&s, &v, policy, &peer, 1, node_histories, 1000, NULL, NULL, NULL), 0);
	assert_int_equal(s.elastic[0].usable[s.nodes[0].class], 1);
	assert_int_equal(s.elastic[0].usable[s.nodes[4].class], 0);
	ctld_snapshot_clear(&s);
	policy->rules[0].terms.grow_partition = NULL;
	policy->rules[0].terms.by = HSPMD_SHARE_PROPORTIONAL; /* the scale has no effect there */
	policy->rules[0].terms.given |= UINT64_C(1) << hspmd_policy_field("share", "by");
	assert_int_equal(ctld_snapshot_build(&s, &v, policy, &peer, 1, node_histories, 1000, NULL, NULL, NULL), 0);
	assert_float_equal(s.elastic[0].terms.weight, 1, 0);
	ctld_snapshot_clear(&s);
	hspmd_policy_destroy(policy);
}

static void test_others_jobs_and_limits(void **state)
{
	(void)state;
	struct hspmd_slurm_view v = make_view();
	struct hspmd_policy *policy = make_policy();
	struct ctld_node_history node_histories[6] = { { 0 } };
	struct ctld_peer peers[2] = { { .job = 10, .uid = 1000, .min_nodes = 1, .max_nodes = 8 },
		                      { .job = 12, .uid = 1000, .min_nodes = 1, .max_nodes = 8 } };
	struct ctld_snapshot s;
	peers[0].member_count = 1;
	peers[0].members[0] = 12;
	jobs[2].uid = 1001; /* another user's: neither a member nor a job of this user's controller */
	assert_int_equal(ctld_snapshot_build(&s, &v, policy, peers, 2, node_histories, 1000, NULL, NULL, NULL), 0);
	assert_int_equal(s.snapshot.elastic_count, 1);
	assert_int_equal(s.nodes[3].state, HSPMD_SNAPSHOT_BUSY);
	ctld_snapshot_clear(&s);
	jobs[2].uid = 1000;
	peers[0].member_count = 0;
	assert_int_equal(ctld_snapshot_build(&s, &v, policy, peers, 2, node_histories, 1000, NULL, NULL, NULL), 0);
	assert_int_equal(s.snapshot.elastic_count, 2);
	assert_true(s.elastic[0].terms.into_idle);
	assert_false(s.elastic[1].terms.into_idle); /* max_jobs_per_user is 1 */
	ctld_snapshot_clear(&s);
	jobs[3].wants_named_nodes = true;
	assert_int_equal(ctld_snapshot_build(&s, &v, policy, peers, 2, node_histories, 1000, NULL, NULL, NULL), 0);
	assert_int_equal(s.snapshot.pending_count, 0);
	ctld_snapshot_clear(&s);
	hspmd_policy_destroy(policy);
}

/* ---- quotes */

static struct ctld_quote quoted(const struct hspmd_slurm_view *v, const struct ctld_peer *peers, int count, const char *text)
{
	struct ctld_quote_request ask;
	struct ctld_quote q;
	json_t *m = json_loads(text, 0, NULL);
	assert_int_equal(ctld_quote_read(&ask, m, NULL), 0);
	assert_int_equal(ctld_quote(&q, v, peers, count, 1000, &ask, NULL), 0);
	json_decref(m);
	return q;
}

static void test_quote(void **state)
{
	(void)state;
	struct hspmd_slurm_view v = make_view();
	static char two[] = "ib,price:2", three[] = "price:3";
	/* Controllers of 10 and 12 of this user and of 9 of another are connected; 11 is a member, 13 is pending. */
	struct ctld_peer peers[3] = { { .job = 10, .uid = 1000, .member_count = 1, .members = { 11 } },
		                      { .job = 12, .uid = 1000 },
		                      { .job = 9, .uid = 1001 } };
	nodes[0].features = nodes[1].features = two;
	nodes[2].features = nodes[3].features = three;
	assert_int_equal(quoted(&v, peers, 3, "{\"type\": \"quote\"}").jobs, 2);
	assert_int_equal(quoted(&v, peers, 3, "{\"type\": \"quote\", \"job\": 12}").jobs, 1);
	assert_int_equal(quoted(&v, peers, 3, "{\"type\": \"quote\", \"job\": 10}").jobs, 0);
	jobs[1].elastic = jobs[3].elastic = true; /* by its comment; a member does not count as a job */
	assert_int_equal(quoted(&v, peers, 3, "{\"type\": \"quote\"}").jobs, 3);
	assert_int_equal(quoted(&v, peers, 3, "{\"type\": \"quote\", \"job\": 14}").jobs,
	                 2); /* a pending job does not count before one that starts */
	jobs[0].state = HSPMD_SLURM_VIEW_COMPLETING;
	assert_int_equal(quoted(&v, peers, 3, "{\"type\": \"quote\"}").jobs, 2);
	jobs[3].state = HSPMD_SLURM_VIEW_COMPLETING; /* neither does one without a controller */
	assert_int_equal(quoted(&v, peers, 3, "{\"type\": \"quote\"}").jobs, 1);
	/* The cheapest nodes that fit: n4 and n5 cost nothing, but are not in `high`. */
	assert_float_equal(quoted(&v, peers, 3, "{\"type\": \"quote\", \"nodes\": 4}").price_per_hour, 4, 0);
	assert_float_equal(quoted(&v, peers, 3, "{\"type\": \"quote\", \"nodes\": 3, \"partition\": \"high\"}").price_per_hour, 7, 0);
	assert_float_equal(quoted(&v, peers, 3, "{\"type\": \"quote\", \"nodes\": 9, \"features\": \"ib\"}").price_per_hour, 4, 0);
	assert_float_equal(quoted(&v, peers, 3, "{\"type\": \"quote\", \"nodes\": 1, \"gres\": \"gpu:H20:8\"}").price_per_hour, 0, 0);
	assert_float_equal(quoted(&v, peers, 3, "{\"type\": \"quote\", \"names\": [\"n0\", \"n2\", \"gone\"]}").price_per_hour, 5, 0);
}

static void test_ill_formed_quotes(void **state)
{
	(void)state;
	static const char *const bad[] = { "{\"type\": \"quote\", \"nodes\": -1}", "{\"type\": \"quote\", \"names\": [1]}",
		                           "{\"type\": \"quote\", \"names\": {}}", "{\"type\": \"quote\", \"partition\": 5}",
		                           "{\"type\": \"quote\", \"uid\": 0}" };
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		struct ctld_quote_request ask;
		struct hspmd_error err;
		json_t *m = json_loads(bad[i], 0, NULL);
		if (ctld_quote_read(&ask, m, &err) == 0)
			fail_msg("taken: %s", bad[i]);
		json_decref(m);
	}
}

/* ---- how often Slurm is polled */

/* Polls per hour if nothing changes and each takes `took` seconds. */
static int looks_an_hour(struct ctld_poll_interval *p, double took, enum ctld_poll_result what)
{
	int n = 0;
	for (double now = p->next_s, end = now + 3600; now < end; now = p->next_s, n++)
		ctld_poll_interval_done(p, now, now + took, what);
	return n;
}

static void test_pace(void **state)
{
	(void)state;
	struct ctld_poll_interval p;
	ctld_poll_interval_start(&p, 1, 75);
	looks_an_hour(&p, 0.01, CTLD_POLL_UNCHANGED);
	/* Two RPCs per poll, and one for partitions every five minutes. */
	assert_true(2 * looks_an_hour(&p, 0.01, CTLD_POLL_UNCHANGED) + 12 <= 2 * 60);
	double now = p.polled_s + 30;
	ctld_poll_interval_soon(&p, now);
	assert_float_equal(p.next_s, now, 0);
	ctld_poll_interval_done(&p, now, now + 0.01, CTLD_POLL_CHANGED);
	assert_float_equal(p.next_s, now + 1.01, 1e-9);
	ctld_poll_interval_soon(&p, now + 0.1);
	assert_float_equal(p.next_s, now + 1.01, 1e-9);
	assert_true(looks_an_hour(&p, 0.01, CTLD_POLL_CHANGED) > 3500);
	/* After a change the interval stays short for as long as slurmctld may delay its next state file. */
	now = p.polled_s;
	while (p.next_s < now + 5) {
		assert_float_equal(p.interval_s, 1, 0);
		ctld_poll_interval_done(&p, p.next_s, p.next_s, CTLD_POLL_UNCHANGED);
	}
}

static void test_pace_spares_a_busy_slurmctld(void **state)
{
	(void)state;
	struct ctld_poll_interval p;
	ctld_poll_interval_start(&p, 1, 75);
	ctld_poll_interval_done(&p, 100, 103, CTLD_POLL_CHANGED); /* slurmctld limited the rate */
	ctld_poll_interval_soon(&p, 104);
	ctld_poll_interval_by(&p, 110);
	assert_float_equal(p.next_s, 118, 0);
	ctld_poll_interval_done(&p, 118, 118.1, CTLD_POLL_FAILED);
	ctld_poll_interval_soon(&p, 118.2);
	assert_float_equal(p.next_s, 120.1, 1e-9);
	assert_true(looks_an_hour(&p, 0.1, CTLD_POLL_FAILED) < 60);
	/* It is found within the longest interval when slurmctld answers again, however long it was away. */
	assert_float_equal(p.interval_s, 75, 0);
	double now = p.next_s;
	ctld_poll_interval_done(&p, now, now, CTLD_POLL_UNCHANGED); /* slurmctld answers again */
	assert_float_equal(p.next_s, now + 1, 0);
	ctld_poll_interval_by(&p, now + 0.3); /* something is to be decided then */
	assert_float_equal(p.next_s, now + 0.3, 0);
}

static void test_same_view(void **state)
{
	(void)state;
	struct hspmd_slurm_view a = make_view(), b = a;
	struct hspmd_slurm_view_job other[4];
	assert_true(hspmd_slurm_view_equal(&a, &b));
	memcpy(other, a.jobs, sizeof other);
	b.jobs = other;
	other[0].priority += 10;
	b.jobs_at++;
	assert_true(hspmd_slurm_view_equal(&a, &b));
	other[0].held_count--;
	assert_false(hspmd_slurm_view_equal(&a, &b));
	other[0].held_count++;
	other[3].ready = !other[3].ready;
	assert_false(hspmd_slurm_view_equal(&a, &b));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_pace),
		cmocka_unit_test(test_pace_spares_a_busy_slurmctld),
		cmocka_unit_test(test_same_view),
		cmocka_unit_test(test_quote),
		cmocka_unit_test(test_ill_formed_quotes),
		cmocka_unit_test(test_features),
		cmocka_unit_test(test_gres),
		cmocka_unit_test(test_price),
		cmocka_unit_test(test_snapshot),
		cmocka_unit_test(test_others_jobs_and_limits),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
