/* SPDX-License-Identifier: Apache-2.0 */
/* Moves between jobs that say `rebalance`: the engine finds by bounds what looking at every pair of jobs finds. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "policies/decision_state_internal.h"
#include "tests/unit/snapshot_maker.h"

struct found {
	int giver, taker, count;
	int nodes[MAKER_MAX];
	double gain;
};

/* The best number of nodes for one pair, written down as decide.h says it. */
static void try_pair(const struct decision_state *k, int a, int b, struct found *best)
{
	const struct decision_job *x = &k->jobs[a], *y = &k->jobs[b];
	struct holding give = x->now, get = y->now;
	struct found f = { .giver = a, .taker = b };
	int n = decision_choose_nodes(k, a, y->e->usable, false, x->now.nodes - x->e->min_nodes, f.nodes);
	double cost_x = holding_pause_cost_per_s(x, &x->now), cost_y = holding_pause_cost_per_s(y, &y->now);
	double held = fmax(60, fmax(x->e->terms.grow_cooldown_s, y->e->terms.grow_cooldown_s));
	held = fmin(held, fmin(x->e->remaining_s, y->e->remaining_s));
	for (int i = 0; i < n; i++) {
		int class = k->s->nodes[f.nodes[i]].class;
		give = holding_with_nodes(k, x, &give, class, -1);
		get = holding_with_nodes(k, y, &get, class, 1);
		if (!decision_allowed(k, y, &get, class) || decision_limit_in_way(k, y, x, i + 1))
			break;
		double loss = holding_true_value(x, &give) - holding_true_value(x, &x->now),
		       change = loss + holding_true_value(y, &get) - holding_true_value(y, &y->now);
		bool pays = change * held > cost_x * x->e->pause_s + cost_y * y->e->pause_s &&
		            change >= fmax(x->e->terms.min_gain, y->e->terms.min_gain) * (cost_x + cost_y);
		if (change > f.gain && pays) {
			f.gain = change;
			f.count = i + 1;
		}
	}
	if (f.count && f.gain > best->gain)
		*best = f;
}

static bool takes_part(const struct decision_state *k, int job, bool gives)
{
	const struct decision_job *j = &k->jobs[job];
	bool cooled = k->s->now_s - j->e->resized_s >= j->e->terms.grow_cooldown_s;
	return !j->shrunk && cooled && (gives ? j->now.nodes > j->e->min_nodes : j->now.nodes < j->e->max_nodes);
}

/* Fails the test if the engine's moves are not those that looking at all pairs finds, one after the other. Returns their number. */
static int compare(const struct maker *m, int number)
{
	struct decision_state k;
	struct hspmd_decision d, unused;
	int moves = 0;
	assert_int_equal(decision_state_open(&k, &m->snapshot, &unused, NULL), 0);
	maker_decide(m, &d);
	for (;; moves++) {
		struct found best = { .giver = -1 };
		for (int a = 0; a < m->snapshot.elastic_count; a++)
			for (int b = 0; b < m->snapshot.elastic_count && takes_part(&k, a, true); b++)
				if (a != b && takes_part(&k, b, false))
					try_pair(&k, a, b, &best);
		if (best.giver < 0)
			break;
		const struct hspmd_resize_action *act = moves < d.count ? &d.actions[moves] : NULL;
		if (!act || act->job != best.giver || act->for_job != best.taker || act->node_count != best.count)
			fail_msg("case %d, move %d: job %d gives %d nodes to %d, expected job %d, %d nodes, to %d", number, moves,
			         act ? act->job : -1, act ? act->node_count : 0, act ? act->for_job : -1, best.giver, best.count,
			         best.taker);
		assert_memory_equal(act->nodes, best.nodes, (size_t)best.count * sizeof *best.nodes);
		assert_true(fabs(act->gain - best.gain) <= 1e-9 * best.gain);
		for (int i = 0; i < best.count; i++)
			k.jobs[best.giver].now =
			        holding_with_nodes(&k, &k.jobs[best.giver], &k.jobs[best.giver].now, m->nodes[best.nodes[i]].class, -1);
		decision_use_limits(&k, &k.jobs[best.taker], best.count);
		decision_use_limits(&k, &k.jobs[best.giver], -best.count);
		k.jobs[best.giver].shrunk = k.jobs[best.taker].shrunk = true;
	}
	assert_int_equal(d.count, moves);
	hspmd_decision_clear(&d);
	hspmd_decision_clear(&unused);
	decision_state_close(&k);
	return moves;
}

static void random_job(struct maker *m, uint64_t *seed, double limit_cost[3])
{
	int j = maker_elastic(m, 50 + 200 * maker_random(seed), 0.1 + maker_random(seed));
	struct hspmd_snapshot_elastic *e = &m->elastic[j];
	/* Curves that are level, fall and rise again: bounds that suppose a concave one would be too low. */
	for (int i = 1; i < MAKER_CURVE; i++)
		if (maker_random(seed) < 0.2)
			m->curves[j][i] = m->curves[j][i - 1] * (maker_random(seed) < 0.5 ? 1 : 0.9);
	static const enum hspmd_share_by by[] = { HSPMD_SHARE_TOKENS, HSPMD_SHARE_RELATIVE, HSPMD_SHARE_PROPORTIONAL };
	e->terms.into_idle = e->terms.rebalance = true;
	e->terms.by = by[(int)(3 * maker_random(seed))];
	e->terms.weight = 0.5 + maker_random(seed);
	e->terms.min_gain = maker_random(seed) < 0.5 ? 0 : 0.02;
	e->terms.grow_cooldown_s = maker_random(seed) < 0.5 ? 0 : 600;
	e->pause_s = maker_random(seed) < 0.3 ? 0 : 10 * maker_random(seed);
	e->lost_s = 100 * maker_random(seed);
	e->max_nodes = 1 + (int)(MAKER_CURVE * maker_random(seed));
	e->resized_s = m->snapshot.now_s - 1000 * maker_random(seed);
	for (int t = 0; t < 2; t++)
		m->relative_speed[j][t] = 0.3 + 2 * maker_random(seed);
	e->relative_speed = m->relative_speed[j];
	for (int c = 0; c < m->snapshot.class_count; c++)
		m->elastic_usable[j][c] = maker_random(seed) < 0.8;
	for (int l = 0; l < 3; l++)
		limit_cost[l] = maker_random(seed) < 0.3 ? 1 + (int)(3 * maker_random(seed)) : 0;
	e->limit_cost = limit_cost;
	maker_nodes(m, (int)(m->snapshot.class_count * maker_random(seed)), 1 + (int)(4 * maker_random(seed)), j, 0);
	maker_nodes(m, (int)(m->snapshot.class_count * maker_random(seed)), (int)(4 * maker_random(seed)), j, 0);
}

static void test_moves_are_those_of_all_pairs(void **state)
{
	(void)state;
	uint64_t seed = 21;
	int moves = 0, with_limits = 0;
	for (int i = 0; i < 3000; i++) {
		struct maker m;
		double limit_cost[8][3];
		struct hspmd_snapshot_limit limits[3];
		maker_start(&m);
		for (int c = 0; c < 3; c++) {
			maker_class(&m, c % 2, 1);
			m.classes[c].losses_per_s = maker_random(&seed) < 0.5 ? 0 : 1e-3 * maker_random(&seed);
		}
		for (int j = 0; j < 8; j++)
			random_job(&m, &seed, limit_cost[j]);
		for (int l = 0; l < 3; l++)
			limits[l] = (struct hspmd_snapshot_limit){ .name = "a limit", .left = (int)(4 * maker_random(&seed)) };
		int free_moves = compare(&m, i);
		m.snapshot.limits = limits;
		m.snapshot.limit_count = 3;
		with_limits += compare(&m, i) != free_moves;
		moves += free_moves;
	}
	print_message("%d moves; limits changed their number in %d cases\n", moves, with_limits);
	assert_true(moves > 3000 && with_limits > 100);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_moves_are_those_of_all_pairs) };
	return cmocka_run_group_tests(tests, NULL, NULL);
}
