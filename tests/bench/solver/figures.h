/* SPDX-License-Identifier: Apache-2.0 */
/* The validation data with what the solver predicts, and the figures that describe a group of cases. Shared by the bench and the tests. */
#ifndef HSPMD_TESTS_BENCH_SOLVER_FIGURES_H
#define HSPMD_TESTS_BENCH_SOLVER_FIGURES_H

#include <stdbool.h>

#include "common/error.h"

struct validation_case {
	char *name, *note;
	double measured_s; /* 0: not known */
	double predicted_s;
	double fullness; /* predicted bytes of the fullest device over what it has */
	int micro_batch;
	bool bare; /* a stage holds the embedding alone */
};

struct validation_figures {
	int measured, small; /* cases with a time; of these, with a micro-batch of at most 2 */
	double mean_error, spearman, spearman_small;
	double first_loss;            /* how much slower than the best measured the one ranked first is */
	int failed, failed_predicted; /* that did not run, bare ones left out; of these, predicted not to fit */
	int failed_bare, ran_bare;    /* bare ones that did not run, that ran */
	int ran_predicted_not;        /* that ran but were predicted not to fit */
};

/* HSPMD_VALIDATION, or ../shared/validation beside the source tree. */
const char *validation_folder(void);
/* Read cases.json in a folder and evaluate every plan. Count, or -1. */
int validation_read(const char *folder, struct validation_case **cases, struct hspmd_error *err);
void validation_free(struct validation_case *cases, int count);
/* Of the cases whose name begins with `group`. */
struct validation_figures validation_figures(const char *group, const struct validation_case *cases, int count);

#endif
