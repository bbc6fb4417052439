/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/snapshot_maker.h"

void maker_start(struct maker *m)
{
	memset(m, 0, sizeof *m);
	m->types[0] = "t0";
	m->types[1] = "t1";
	m->snapshot = (struct hspmd_snapshot){ .now_s = 10000,
		                               .type_count = 2,
		                               .types = m->types,
		                               .classes = m->classes,
		                               .nodes = m->nodes,
		                               .pending = m->pending,
		                               .elastic = m->elastic };
}

int maker_class(struct maker *m, int type, int devices)
{
	m->classes[m->snapshot.class_count] = (struct hspmd_snapshot_class){ .type = type, .devices = devices };
	return m->snapshot.class_count++;
}

int maker_nodes(struct maker *m, int class, int n, int holder, double idle_s)
{
	int first = m->snapshot.node_count;
	assert_true(first + n <= MAKER_MAX);
	for (int i = 0; i < n; i++)
		m->nodes[m->snapshot.node_count++] = (struct hspmd_snapshot_node){
			.name = "n",
			.class = class,
			.state = holder >= 0    ? HSPMD_SNAPSHOT_HELD
			         : holder == -1 ? HSPMD_SNAPSHOT_IDLE
			                        : HSPMD_SNAPSHOT_BUSY,
			.holder = holder >= 0 ? holder : -1,
			.since_s = m->snapshot.now_s - idle_s,
			.free_s = m->snapshot.now_s + 1000,
		};
	return first;
}

int maker_elastic(struct maker *m, double rate, double power)
{
	int job = m->snapshot.elastic_count++;
	struct hspmd_snapshot_elastic *e = &m->elastic[job];
	for (int i = 0; i < MAKER_CURVE; i++)
		m->curves[job][i] = rate * pow(i + 1, power);
	memset(m->elastic_usable[job], 1, sizeof m->elastic_usable[job]);
	*e = (struct hspmd_snapshot_elastic){ .id = 100 + (uint32_t)job,
		                              .terms = hspmd_policy_builtin,
		                              .min_nodes = 1,
		                              .max_nodes = MAKER_CURVE,
		                              .priority = 10,
		                              .curve_count = MAKER_CURVE,
		                              .tokens_per_s = m->curves[job],
		                              .resized_s = -INFINITY,
		                              .remaining_s = INFINITY,
		                              .reachable = true,
		                              .declined_grow_until_s = -INFINITY,
		                              .wait_until_s = -INFINITY,
		                              .usable = m->elastic_usable[job] };
	e->terms.into_idle = true;
	e->terms.after_idle_s = e->terms.grow_cooldown_s = e->terms.shrink_cooldown_s = e->terms.min_gain = 0;
	e->terms.for_pending = HSPMD_PENDING_HIGHER;
	return job;
}

int maker_pending(struct maker *m, int nodes, double priority)
{
	int i = m->snapshot.pending_count++;
	memset(m->pending_usable[i], 1, sizeof m->pending_usable[i]);
	m->pending[i] = (struct hspmd_snapshot_pending){ .id = 900 + (uint32_t)i,
		                                         .nodes = nodes,
		                                         .run_s = INFINITY,
		                                         .priority = priority,
		                                         .eligible_since_s = NAN,
		                                         .usable = m->pending_usable[i] };
	return i;
}

void maker_decide(const struct maker *m, struct hspmd_decision *d)
{
	struct hspmd_error err = { "" };
	if (hspmd_policy_decide(&m->snapshot, d, &err) < 0)
		fail_msg("%s", err.text);
}

int maker_moved(const struct hspmd_decision *d, enum hspmd_resize_kind kind, int job)
{
	for (int i = 0; i < d->count; i++)
		if (d->actions[i].kind == kind && d->actions[i].job == job)
			return d->actions[i].node_count;
	return 0;
}

double maker_random(uint64_t *state)
{
	*state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (double)(*state >> 11) / 9007199254740992.0;
}

int maker_grown(const struct maker *m, const char *why)
{
	struct hspmd_decision d;
	maker_decide(m, &d);
	int n = maker_moved(&d, HSPMD_RESIZE_GROW, 0);
	if (!n && why && !strstr(d.why[0], why))
		fail_msg("why: \"%s\", expected \"%s\"", d.why[0], why);
	hspmd_decision_clear(&d);
	return n;
}

int maker_given(const struct maker *m)
{
	struct hspmd_decision d;
	maker_decide(m, &d);
	int n = 0;
	for (int i = 0; i < d.count; i++)
		n += d.actions[i].kind == HSPMD_RESIZE_SHRINK ? d.actions[i].node_count : 0;
	hspmd_decision_clear(&d);
	return n;
}
