/* SPDX-License-Identifier: Apache-2.0 */
/* Lets a simulated cluster run up to a point. The test fails if that takes too many moves, or if the run ends before. */
#ifndef HSPMD_TESTS_WORLD_RUNS_H
#define HSPMD_TESTS_WORLD_RUNS_H

#include <stdint.h>

#include "tests/unit/world.h"

#define WORLD_MOVES 400000 /* more means an endless loop */

/* One move of the world; else time passes. */
void world_go_on(struct world *w);
/* So many seconds of its time. */
void world_run_for(struct world *w, double seconds);
/* Until so many steps have been reported, or the run's end. */
void world_run_until(struct world *w, int step);
void world_run_until_nodes(struct world *w, int nodes);
/* Until the run's end; the seed is for the message. */
void world_run_out(struct world *w, uint64_t seed);

#endif
