/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/world_runs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

void world_run_for(struct world *w, double seconds)
{
	double until = world_now(w) + seconds;
	while (world_now(w) < until)
		world_go_on(w);
}

void world_run_until(struct world *w, int step)
{
	int status;
	for (int i = 0; i < WORLD_MOVES && !world_ended(w, &status) && world_steps_told(w) < step; i++)
		if (!world_move(w))
			world_wait(w);
}

void world_run_out(struct world *w, uint64_t seed)
{
	int status;
	for (int i = 0; i < WORLD_MOVES && !world_ended(w, &status); i++)
		if (!world_move(w))
			world_wait(w);
	if (!world_ended(w, &status)) {
		json_t *s = world_status(w);
		char *text = json_dumps(s, JSON_COMPACT);
		fail_msg("seed %llu: no end: %s", (unsigned long long)seed, text);
	}
}

/* One move of the world; else time passes. */
void world_go_on(struct world *w)
{
	int status;
	if (world_ended(w, &status))
		fail_msg("it ended: %s", world_exit_text(w));
	if (!world_move(w))
		world_wait(w);
}

void world_run_until_nodes(struct world *w, int nodes)
{
	for (int i = 0; i < WORLD_MOVES && world_nodes(w) != nodes; i++)
		world_go_on(w);
	assert_int_equal(world_nodes(w), nodes);
}
