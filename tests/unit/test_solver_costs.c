/* SPDX-License-Identifier: Apache-2.0 */
/* What single effects do to a predicted step, against what can be computed by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "controller/solver/solver.h"
#include "tests/unit/solver_inputs.h"

#define NEAR 1e-9
#define HEAD "{\"format\":\"hspmd-plan-1\",\"global_batch\":8,\"micro_batch\":1,\"seq_len\":64,\"schedule\":\"1f1b\",\"zero_stage\":0,\"pipelines\":["
#define TYPE "{\"kind\":\"cpu\",\"memory_bytes\":8000000000,\"gbytes_per_s\":20,\"peak_tflops\":{\"fp32\":1}}"
#define CLUSTER(more, links) \
	"{\"format\":\"hspmd-cluster-1\",\"device_types\":{\"x\":" TYPE "},\"nodes\":[{\"name\":\"a\"" more ",\"devices\":[{\"type\":\"x\",\"count\":4}]}," \
	"{\"name\":\"b\",\"devices\":[{\"type\":\"x\",\"count\":4}]}],\"links\":[" links "]}"
#define FREE "{\"scope\":\"node\",\"alpha_s\":0,\"gbytes_per_s\":1e6},{\"scope\":\"cluster\",\"alpha_s\":0,\"gbytes_per_s\":1e6}"
/* 1 ms a message within a node, 3 ms between two, whatever its size. */
#define LATENT "{\"scope\":\"node\",\"alpha_s\":1e-3,\"gbytes_per_s\":1e9},{\"scope\":\"cluster\",\"alpha_s\":3e-3,\"gbytes_per_s\":1e9}"

/* Four layers of which each takes 1 ms forward and 2 ms backward; in a group of two half of that and 1 ms of all-reduces besides where `grouped`. */
static struct hspmd_profile *profile(bool grouped)
{
	char text[2048];
	struct hspmd_error err = { "" };
	snprintf(text, sizeof text,
		 "{\"format\":\"hspmd-profile-1\",\"model\":\"m\",\"seq_len\":64,\"dtype_bytes\":4,\"layers\":["
		 "{\"name\":\"e\",\"params\":1000,\"output_elems\":64,\"activation_bytes\":256},{\"name\":\"b0\",\"params\":1000,\"output_elems\":64,"
		 "\"activation_bytes\":4096},{\"name\":\"b1\",\"params\":1000,\"output_elems\":64,\"activation_bytes\":4096},"
		 "{\"name\":\"h\",\"params\":1000,\"output_elems\":64,\"activation_bytes\":256}],\"times\":[{\"device_type\":\"x\",\"tp\":1,\"micro_batch\":1,"
		 "\"forward_s\":[1e-3,1e-3,1e-3,1e-3],\"backward_s\":[2e-3,2e-3,2e-3,2.5e-3],\"optimizer_s\":[0,0,0,0]},{\"device_type\":\"x\",\"tp\":1,"
		 "\"micro_batch\":2,\"forward_s\":[2e-3,2e-3,2e-3,2e-3],\"backward_s\":[4e-3,4e-3,4e-3,5e-3],\"optimizer_s\":[0,0,0,0]}%s]}",
		 grouped ? ",{\"device_type\":\"x\",\"tp\":2,\"micro_batch\":1,\"forward_s\":[1.5e-3,1.5e-3,1.5e-3,1.5e-3],\"backward_s\":[2e-3,2e-3,2e-3,"
			   "2.25e-3],\"optimizer_s\":[0,0,0,0]}" : "");
	json_t *value = json_loads(text, 0, NULL);
	struct hspmd_profile *p = value ? hspmd_profile_from_json(value, "profile", &err) : NULL;
	json_decref(value);
	if (!p)
		fail_msg("%s", err.text);
	return p;
}

static struct hspmd_predicted evaluate(const char *cluster, const struct hspmd_profile *p, const char *plan)
{
	struct hspmd_error err = { "" };
	struct hspmd_cluster *c = cluster_from(cluster);
	json_t *value = json_loads(plan, 0, NULL);
	struct hspmd_plan *x = value ? hspmd_plan_from_json(value, "plan", c, p->layer_count, &err) : NULL;
	json_decref(value);
	if (!x || hspmd_evaluate(c, NULL, p, HSPMD_PRECISION_FP32, x, NULL, &err))
		fail_msg("%s", err.text);
	struct hspmd_predicted result = x->predicted;
	assert_float_equal(result.compute_s + result.bubble_s + result.communication_s + result.sync_s, result.step_s, NEAR);
	hspmd_plan_destroy(x);
	hspmd_cluster_destroy(c);
	result.devices = NULL;
	result.memory_bytes = NULL;
	return result;
}

static void a_straggler_takes_as_much_longer_as_it_is_slower(void **state)
{
	(void)state;
	static const char one[] = HEAD "{\"micro_batches\":8,\"stages\":[{\"layers\":[0,4],\"devices\":[\"a:0\"]}]}]}";
	struct hspmd_profile *p = profile(false);
	double healthy = evaluate(CLUSTER("", FREE), p, one).step_s;
	assert_float_equal(healthy, 8 * 12.5e-3, NEAR);
	assert_float_equal(evaluate(CLUSTER(",\"slowdown\":1.4", FREE), p, one).step_s, 1.4 * healthy, NEAR);
	hspmd_profile_destroy(p);
}

/* Two micro-batches of 1 in the time of one of 2: pipelines that differ in this alone are as fast as ones that do not. */
static void a_pipeline_has_its_own_micro_batch(void **state)
{
	(void)state;
	struct hspmd_profile *p = profile(false);
	double alike = evaluate(CLUSTER("", FREE), p, HEAD "{\"micro_batches\":4,\"stages\":[{\"layers\":[0,4],\"devices\":[\"a:0\"]}]},{\"micro_batches\":4,"
								    "\"stages\":[{\"layers\":[0,4],\"devices\":[\"b:0\"]}]}]}").step_s;
	double own = evaluate(CLUSTER("", FREE), p, HEAD "{\"micro_batches\":4,\"stages\":[{\"layers\":[0,4],\"devices\":[\"a:0\"]}]},{\"micro_batches\":2,"
								  "\"micro_batch\":2,\"stages\":[{\"layers\":[0,4],\"devices\":[\"b:0\"]}]}]}").step_s;
	assert_float_equal(own, alike, NEAR);
	hspmd_profile_destroy(p);
}

static const char inside[] = HEAD "{\"micro_batches\":8,\"stages\":[{\"layers\":[0,4],\"devices\":[\"a:0-1\"]}]}]}";
static const char across[] = HEAD "{\"micro_batches\":8,\"stages\":[{\"layers\":[0,4],\"devices\":[\"a:0\",\"b:0\"]}]}]}";

/* Measured in a group: its all-reduces are inside, once. Between nodes they take longer: layers with an input reduce twice in a pass, each time two messages. */
static void groups_across_nodes_pay_what_is_longer_there(void **state)
{
	(void)state;
	struct hspmd_profile *p = profile(true);
	double within = evaluate(CLUSTER("", LATENT), p, inside).step_s, between = evaluate(CLUSTER("", LATENT), p, across).step_s;
	assert_float_equal(within, 8 * 14.25e-3, NEAR);
	assert_float_equal(between - within, 8 * 2 * 3 * 2 * 2 * 3e-3, 1e-6);
	hspmd_profile_destroy(p);
}

/* Measured alone: what is saved is the work of the other half, and the all-reduces come on top, within a node too. */
static void groups_that_were_not_measured_communicate(void **state)
{
	(void)state;
	struct hspmd_profile *p = profile(false);
	double free = evaluate(CLUSTER("", FREE), p, inside).step_s, latent = evaluate(CLUSTER("", LATENT), p, inside).step_s;
	assert_true(free < 8 * 12.5e-3);
	assert_float_equal(latent - free, 8 * 2 * 3 * 2 * 2 * 1e-3, 1e-6);
	hspmd_profile_destroy(p);
}

/* Two chunks a device: the bubble of the last stage is that of one chunk, half of what it is with one stage a device. */
static void interleaving_pays(void **state)
{
	(void)state;
	struct hspmd_profile *p = profile(false);
	double plain = evaluate(CLUSTER("", FREE), p, HEAD "{\"micro_batches\":8,\"stages\":[{\"layers\":[0,2],\"devices\":[\"a:0\"]},{\"layers\":[2,4],"
								    "\"devices\":[\"a:1\"]}]}]}").step_s;
	double rounds = evaluate(CLUSTER("", FREE), p,
				 "{\"format\":\"hspmd-plan-1\",\"global_batch\":8,\"micro_batch\":1,\"seq_len\":64,\"schedule\":\"interleaved\",\"virtual_stages\":2,"
				 "\"pipelines\":[{\"micro_batches\":8,\"stages\":[{\"layers\":[0,1],\"devices\":[\"a:0\"]},{\"layers\":[1,2],\"devices\":[\"a:1\"]},"
				 "{\"layers\":[2,3],\"devices\":[\"a:0\"]},{\"layers\":[3,4],\"devices\":[\"a:1\"]}]}]}").step_s;
	assert_true(rounds < plain - 2e-3);
	assert_true(rounds > 8 * 6e-3);
	hspmd_profile_destroy(p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_straggler_takes_as_much_longer_as_it_is_slower),
		cmocka_unit_test(a_pipeline_has_its_own_micro_batch),
		cmocka_unit_test(groups_across_nodes_pay_what_is_longer_there),
		cmocka_unit_test(groups_that_were_not_measured_communicate),
		cmocka_unit_test(interleaving_pays),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
