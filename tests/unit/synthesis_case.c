/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/synthesis_case.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>
#include <jansson.h>
#include <math.h>

#include "common/error.h"
#include "runtime/lib/hspmd.h"

const int case_devices[] = { 0, 1, 2, 3, 4, 5, 6, 7 };

int case_weight(struct hspmd_net *net, int number, int64_t out, int64_t in)
{
	char name[32];
	snprintf(name, sizeof name, "w%d", number);
	return hspmd_net_parameter(net, name, 2, (int64_t[]){ out, in }, 0, 0.1);
}

int case_vector(struct hspmd_net *net, int number, char letter, int64_t size)
{
	char name[32];
	snprintf(name, sizeof name, "%c%d", letter, number);
	return hspmd_net_parameter(net, name, 1, &size, 0, 0.1);
}

/* Eight experts, which are divided whole. */
int case_experts(struct hspmd_net *net, int x, int number, int64_t width, int64_t inner, int per_token)
{
	static const char *const names[] = { "gate", "up", "down" };
	int parts[3];
	for (int i = 0; i < 3; i++) {
		char name[32];
		snprintf(name, sizeof name, "%s%d", names[i], number);
		parts[i] = hspmd_net_parameter(net, name, 3, (int64_t[]){ 8, i < 2 ? inner : width, i < 2 ? width : inner }, 0, 0.1);
		hspmd_net_split(net, parts[i], 0, 1);
	}
	return hspmd_net_experts(net, x, case_weight(net, number + 200, 8, width), parts, per_token, 0, HSPMD_GATE_SILU);
}

struct hspmd_graph *case_graph(void (*build)(void *, struct hspmd_net *), void *context, int layers, int samples, int64_t length)
{
	struct hspmd_error err = { "" };
	struct hspmd_net_source source = { build, context, layers };
	struct hspmd_graph_source graphs = hspmd_net_graph_source(&source);
	struct hspmd_model_build_options how = { .batch = samples, .seq_len = length, .vocab_parts = 1, .widest = 1, .loss_scale = 0.1 };
	struct hspmd_graph *g = graphs.build(graphs.context, &how, &err);
	if (!g)
		fail_msg("%s", err.text);
	return g;
}

double case_applied_cost(struct hspmd_graph *g, struct hspmd_synthesis *s, const char *what)
{
	struct hspmd_error err = { "" };
	struct hspmd_spmd_stage stage = { .device_count = s->stage.device_count, .devices = s->stage.devices, .context = 1 };
	int stage_of_layer[64] = { 0 };
	if (s->chosen && hspmd_synthesis_apply(s, g, &err))
		fail_msg("%s: %s", what, err.text);
	struct hspmd_spmd *spmd = hspmd_spmd_build(g, &stage, stage_of_layer, &s->cost, &err);
	if (!spmd)
		fail_msg("%s: %s", what, err.text);
	double seconds = hspmd_synthesis_cost(spmd, &s->stage, &s->cost, NULL, &err);
	if (getenv("HSPMD_SHOW")) {
		char *text = hspmd_spmd_text(spmd);
		fputs(text, stderr);
		free(text);
	}
	hspmd_spmd_destroy(spmd);
	return seconds;
}

struct hspmd_synthesis *case_travelled(const struct hspmd_synthesis *s, double seconds, const char *what)
{
	struct hspmd_error err = { "" };
	json_t *saved = hspmd_synthesis_save(s, &err);
	struct hspmd_synthesis *t = saved ? hspmd_synthesis_create(s->g, &s->stage, &err) : NULL;
	if (!t || hspmd_synthesis_load(t, saved, &err))
		fail_msg("%s: %s", what, err.text);
	json_t *again = hspmd_synthesis_save(t, &err);
	if (!json_equal(saved, again))
		fail_msg("%s: the program is another one after it was saved", what);
	struct program p;
	double bytes[8];
	assert_int_equal(hspmd_synthesis_program_open(t, &p), 0);
	double same = hspmd_synthesis_program_seconds(t, &p, bytes);
	if (!(fabs(same - seconds) <= 1e-9 * seconds))
		fail_msg("%s: found %.12g, %.12g after it was saved", what, seconds, same);
	hspmd_synthesis_program_close(&p);
	json_decref(again);
	json_decref(saved);
	return t;
}
