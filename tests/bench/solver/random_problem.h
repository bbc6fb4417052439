/* SPDX-License-Identifier: Apache-2.0 */
/* Random planning problems for many devices: 64 to 512 GPUs of one to four types in nodes of 4 or 8, and a Llama of 24 to 80 blocks. */
#ifndef HSPMD_TESTS_BENCH_SOLVER_RANDOM_PROBLEM_H
#define HSPMD_TESTS_BENCH_SOLVER_RANDOM_PROBLEM_H

#include "controller/solver/solver.h"
#include "runtime/model/model.h"

struct problem {
	struct hspmd_cluster *cluster;
	struct hspmd_model *model;
	struct hspmd_model_facts *facts;
	struct hspmd_solve_request request;
};

/* Make problem number `seed`. Returns 0, or -1 with err; problem_free is due in both cases. */
int problem_new(unsigned seed, struct problem *p, struct hspmd_error *err);
void problem_free(struct problem *p);

#endif
