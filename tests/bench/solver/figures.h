/* SPDX-License-Identifier: Apache-2.0 */
/* The validation data with the solver's predictions, and the figures that describe a group of cases. Used by the bench and the tests. */
#ifndef HSPMD_TESTS_BENCH_SOLVER_FIGURES_H
#define HSPMD_TESTS_BENCH_SOLVER_FIGURES_H

#include <stdbool.h>

#include "common/error.h"

struct validation_case {
	char *name, *note;
	double measured_s; /* 0: unknown */
	double predicted_s;
	double fullness; /* predicted bytes of the fullest device divided by its memory */
	int micro_batch;
	bool bare; /* a stage holds only the embedding */
};

struct validation_figures {
	int measured, small; /* cases with a measured time; of these, cases with a micro-batch of at most 2 */
	double mean_error, spearman, spearman_small;
	double first_loss;            /* how much slower than the best measured case the one predicted fastest is */
	int failed, failed_predicted; /* cases that did not run, without bare ones; of these, predicted not to fit */
	int failed_bare, ran_bare;    /* bare cases that did not run; that ran */
	int ran_predicted_not;        /* cases that ran but were predicted not to fit */
};

/* Path of the validation folder: HSPMD_VALIDATION, or ../shared/validation next to the source tree. */
const char *validation_folder(void);
/* Read cases.json in a folder and evaluate every plan. Returns the number of cases, or -1 with err. */
int validation_read(const char *folder, struct validation_case **cases, struct hspmd_error *err);
void validation_free(struct validation_case *cases, int count);
/* Figures of the cases whose name begins with `group`. */
struct validation_figures validation_figures(const char *group, const struct validation_case *cases, int count);

#endif
