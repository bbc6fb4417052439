/* SPDX-License-Identifier: Apache-2.0 */
/* The environment of a rank: what torch.distributed ("env://"), torchrun's workers, Accelerate, Lightning, Megatron and JAX read. Variables
 * by which Slurm, PMI and Open MPI tell a process another rank than this one are taken away. */
#ifndef HSPMD_COMMAND_ENVIRONMENT_H
#define HSPMD_COMMAND_ENVIRONMENT_H

#include <stdbool.h>
#include <stdint.h>

#include "runtime/command/placement.h"

struct hspmd_environment_input {
	const struct hspmd_placement *place;
	const char *master_host;
	int master_port;
	int64_t generation, restarts; /* restarts: generations that this run has had before */
	const char *id;               /* of the job */
	const char *checkpoint;       /* folder; NULL: none */
	int steps_fd;                 /* to tell steps */
	int threads;                  /* of a rank; 0: as many as it likes */
	bool gpus;                    /* its device is a GPU */
};

/* A copy of `from` (NULL-terminated "NAME=value") with the changes. One malloc'd block per text, and one for the list; NULL: out of
 * memory. */
char **hspmd_environment_make(char *const *from, const struct hspmd_environment_input *in);
void hspmd_environment_destroy(char **list);

#endif
