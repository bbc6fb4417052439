/* SPDX-License-Identifier: Apache-2.0 */
/* A played cluster: the real controller (state machine, loop, solver) in a process of its own, and all agents and workers of a large job in
 * this one (played_agents.h), over loopback. The job starts, trains, writes a checkpoint, grows, shrinks, loses one node and a rack, is cut
 * into two by the network, which heals, and its controller stands still for a while, and is killed. */
#ifndef HSPMD_TESTS_BENCH_SCALE_PLAYED_SCENES_H
#define HSPMD_TESTS_BENCH_SCALE_PLAYED_SCENES_H

#include <stdint.h>

#include "common/error.h"
#include "tests/bench/scale/played_controller.h"

#define PLAYED_PHASES_MAX 11

/* What went through the controller in one phase. */
struct played_phase {
	const char *name;
	double wall_s, cpu_s;         /* cpu_s: of the controller and its solver */
	int64_t bytes_down, bytes_up; /* to and from the agents, with all that belongs to the protocol */
	int64_t down, up;             /* messages */
	int64_t largest;              /* bytes of the largest message, not compressed */
	int64_t workers;              /* that take part at its end */
	int64_t manifests;            /* that were written to nodes' folders */
	int64_t asked_for_manifest;   /* nodes that were asked for the text of one */
	int64_t found_bytes;          /* of what agents have said of the checkpoints that they see */
	int64_t asked, srun;          /* calls of Slurm: questions for the nodes, and runs of srun */
	int64_t connects, generation; /* of agents; the newest that all its members have started */
	int64_t from;                 /* the step with which it has begun */
};

/* devices: a multiple of 64. train_s: how long the job only trains.
 * Fills in phases[PLAYED_PHASES_MAX]. 0, or -1 and err, which names the phase that did not end; *count phases are filled in either way.
 * PLAYED_LOG=1 shows the controller's log. The calling program passes PLAYED_WAIT on to played_wait(). */
enum played_what {
	PLAYED_ALL,
	PLAYED_RESTART, /* from a checkpoint alone */
};
int played_scenes_run(enum played_what what, int devices, double train_s, struct played_phase *phases, int *count, struct hspmd_error *err);

#endif
