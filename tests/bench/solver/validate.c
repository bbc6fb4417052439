/* SPDX-License-Identifier: Apache-2.0 */
/* How well the cost model predicts published step times: reads cases.json of the validation folder (HSPMD_VALIDATION, default
 * ../shared/validation), evaluates every plan and prints measured and predicted times, then the figures of each group. With group names
 * as arguments, only those groups. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/json.h"
#include "tests/bench/solver/figures.h"

static const char *const groups[] = { "sailor-mit", "sailor-clariden", "amp-het", "amp-homo", "hspmd" };
#define GROUP_COUNT ((int)(sizeof groups / sizeof *groups))

static void print_case(const struct validation_case *c)
{
	char error[16] = "-", measured[16] = "did not run";
	if (c->measured_s > 0) {
		snprintf(measured, sizeof measured, "%.4g", c->measured_s);
		snprintf(error, sizeof error, "%+.1f%%", 100 * (c->predicted_s / c->measured_s - 1));
	}
	printf("%-36s %12s %10.4g %8s  %5.1f%% of memory%s\n", c->name,
	       c->measured_s > 0 || strstr(c->note, "did not run") ? measured : "-", c->predicted_s, error, 100 * c->fullness,
	       c->fullness > 1 ? ": does not fit" : "");
}

static void print_group(const char *group, const struct validation_case *cases, int count)
{
	struct validation_figures f = validation_figures(group, cases, count);
	printf("\n%s: %d measured", group, f.measured);
	if (f.measured > 0)
		printf(", mean absolute error %.1f%%", 100 * f.mean_error);
	if (f.measured > 2)
		printf(", Spearman %.3f", f.spearman);
	if (f.small > 2)
		printf(" (micro-batch <= 2: %.3f)", f.spearman_small);
	if (f.measured > 2)
		printf(", ranked first is %.1f%% slower than the best", 100 * f.first_loss);
	if (f.failed)
		printf("; %d of %d that did not run predicted not to fit", f.failed_predicted, f.failed);
	if (f.failed_bare)
		printf("; %d with the embedding alone in a stage did not run, %d did", f.failed_bare, f.ran_bare);
	printf("; %d of %d that ran predicted not to fit\n", f.ran_predicted_not, f.measured);
}

int main(int argc, char **argv)
{
	struct hspmd_error err = { "" };
	struct validation_case *cases;
	int count = validation_read(validation_folder(), &cases, &err);
	if (count < 0) {
		fprintf(stderr, "validate: %s\n", err.text);
		return 1;
	}
	for (int g = 0; g < GROUP_COUNT; g++) {
		bool wanted = argc < 2;
		for (int i = 1; i < argc; i++)
			wanted = wanted || !strcmp(argv[i], groups[g]);
		if (!wanted)
			continue;
		for (int i = 0; i < count; i++)
			if (!strncmp(cases[i].name, groups[g], strlen(groups[g])))
				print_case(&cases[i]);
		print_group(groups[g], cases, count);
		putchar('\n');
	}
	validation_free(cases, count);
	return 0;
}
