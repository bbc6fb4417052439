/* SPDX-License-Identifier: Apache-2.0 */
/* How many steps of a job have which length, for the solver: of the job's data, or as told. */
#ifndef HSPMD_CLI_STEP_LENGTHS_H
#define HSPMD_CLI_STEP_LENGTHS_H

#include "common/format/job.h"
#include "common/format/model.h"
#include "controller/cli/commands.h"
#include "controller/solver/search/length_plans.h"
#include "runtime/program/program.h"

struct hspmd_step_lengths_of {
	int count; /* 0: all steps have the same length */
	struct hspmd_step_share *shares;
};

/* If data.lengths is "auto": chooses the job's lengths by its data. Nothing otherwise. index, here and below: as in runtime/input/data.h;
 * if it is NULL or does not fit, all documents are read. 0, or -1 and err. */
int hspmd_job_choose_lengths(struct hspmd_job *job, const struct hspmd_model *model, const char *index, struct hspmd_error *err);
/* Make the file `index` for the job's workers if they need it. A failure is logged: they can do without. */
void hspmd_job_index_lengths(const struct hspmd_job *job, const struct hspmd_model *model, const char *index);

/* Of the job's steps, or of its samples if steps mix lengths. longest: facts of the model at its seq_len, borrowed; source: for those of
 * other lengths, which the result owns. 0, or -1 and err. */
int hspmd_step_lengths_of_job(const struct hspmd_job *job, const struct hspmd_model *model, const struct hspmd_graph_source *source,
                              const struct hspmd_model_facts *longest, const char *index, struct hspmd_step_lengths_of *out,
                              struct hspmd_error *err);
/* As the words of --lengths say, LENGTH:SHARE each, ascending; the last is `seq_len`. Shares are of steps. Without facts. 0, or -1 and
 * err. */
int hspmd_step_lengths_parse(const struct hspmd_option_list *words, int seq_len, struct hspmd_step_lengths_of *out,
                             struct hspmd_error *err);
/* Adds the facts: `longest` and `source` as above. 0, or -1 and err. */
int hspmd_step_lengths_find_facts(struct hspmd_step_lengths_of *l, const struct hspmd_model *model, const struct hspmd_graph_source *source,
                                  const struct hspmd_model_facts *longest, struct hspmd_error *err);
void hspmd_step_lengths_clear(struct hspmd_step_lengths_of *l);

#endif
