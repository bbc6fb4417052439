/* SPDX-License-Identifier: Apache-2.0 */
/* hspmd-job-1: what to train. Plain data. A job has either a model with data and an optimizer, or the command of another trainer.
 * Paths are absolute after reading (relative ones are relative to the job file); $USER, $JOB and $HOME in checkpoint paths are kept as
 * written and expanded by hspmd_job_expand_path(). */
#ifndef HSPMD_FORMAT_JOB_H
#define HSPMD_FORMAT_JOB_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/error.h"
#include "common/format/model.h"
#include "common/format/enums.h"

#define HSPMD_JOB_FORMAT "hspmd-job-1"
/* Comment of the Slurm jobs that train such a file, unless the user gave one. It identifies jobs that wait in the queue. */
#define HSPMD_JOB_COMMENT "hspmd"

enum hspmd_data_kind { HSPMD_DATA_BYTES, HSPMD_DATA_UINT16, HSPMD_DATA_UINT32, HSPMD_DATA_MEGATRON };
extern const char *const hspmd_data_kind_names[];
enum hspmd_lr_schedule { HSPMD_LR_CONSTANT, HSPMD_LR_COSINE, HSPMD_LR_LINEAR };
extern const char *const hspmd_lr_schedule_names[];
enum hspmd_rounding { HSPMD_ROUNDING_NEAREST, HSPMD_ROUNDING_STOCHASTIC };
extern const char *const hspmd_rounding_names[];

struct hspmd_job {
	char *file;       /* absolute path of the job file */
	char *model_path; /* absolute */
	char *init;       /* NULL: random; else absolute path of safetensors (file or folder). Default random */
	enum hspmd_data_kind data_kind;
	int train_count, valid_count;
	char **train, **valid;
	int64_t valid_every; /* steps; after the last, too. Default 100 */
	bool documents; /* the data are documents, each ended by the token document_end, and attention stays within one. Default false */
	int64_t document_end;
	/* With documents: the lengths by which they are grouped, ascending, the last is seq_len. Default none: every step is of seq_len. */
	int64_t *lengths;
	int length_count;
	int64_t seq_len, global_batch, steps; /* with a command: 1, 1 and INT64_MAX */
	uint64_t seed; /* default 1 */
	struct {
		double lr, min_lr;                      /* min_lr: final rate of cosine and linear; default lr / 10 */
		int64_t warmup_steps;                   /* default 0 */
		enum hspmd_lr_schedule schedule;        /* default constant */
		double weight_decay, beta1, beta2, eps; /* defaults 0.1, 0.9, 0.95, 1e-8 */
		double clip;                            /* global norm; 0: none. Default 1.0 */
	} optimizer;
	enum hspmd_precision precision; /* FP32 (default) or BF16 */
	enum hspmd_rounding rounding;   /* of parameters to BF16, as operators read them. Default nearest; stochastic with BF16 alone */
	struct {
		int min_nodes, max_nodes; /* defaults 1, and no limit (INT_MAX) */
		char *policy;             /* default "default" */
	} elastic;
	struct {
		char *local, *shared;  /* NULL: none */
		double every_s;        /* 0: hspmd chooses */
		double shared_every_s; /* to `shared`, if there is a local folder as well; 0: hspmd chooses */
		int64_t every_steps;   /* 0: by time only */
		int replicas, keep;    /* defaults 1, 2 */
		bool memory;           /* replicas are kept in other nodes' memory as well; default true */
	} checkpoint;
	/* Another trainer (common/format/job_command.h). Of `checkpoint` only its folder is then used. */
	struct {
		int argc;    /* 0: none, hspmd trains itself */
		char **argv; /* NULL-terminated; may have {...} (common/template.h) */
		bool per_node;
		int notice_signal; /* sent before a change, ... */
		double notice_s;   /* ... this long before SIGKILL. Default SIGTERM, 60 */
		char *folder;      /* absolute: in which it is run; NULL: that of `hspmd run` */
	} command;
};

/* Read and check the job file alone. */
struct hspmd_job *hspmd_job_read(const char *path, struct hspmd_error *err);
struct hspmd_job *hspmd_job_from_json(const json_t *value, const char *path, struct hspmd_error *err);
json_t *hspmd_job_to_json(const struct hspmd_job *j);
void hspmd_job_destroy(struct hspmd_job *j);

/* Length of a Megatron data path without its .bin or .idx suffix, if any. */
int hspmd_job_megatron_base_length(const char *path);

/* Check the files that the job names: `read` (hspmd_model_read) can read the model's config (returned in *model unless NULL; the caller
 * destroys it), data files exist, are complete and hold at least one sample of seq_len + 1 tokens each, seq_len is within the model's
 * positions, initial weights can be read, the shared checkpoint folder can be written. Of a job with a command: its {...} can be read,
 * and *model is NULL. For submission and for the start of a run; therefore the node-local checkpoint folder is not checked. */
typedef struct hspmd_model *hspmd_job_read_model(const char *path, struct hspmd_error *err);
int hspmd_job_check_files(const struct hspmd_job *j, hspmd_job_read_model *read, struct hspmd_model **model, struct hspmd_error *err);

/* Expand $USER, $JOB (the Slurm job id; "local" if job_id is NULL), $HOME, and their ${NAME} forms. malloc'd; NULL and err for other
 * variables. */
char *hspmd_job_expand_path(const char *path, const char *job_id, struct hspmd_error *err);

/* Learning rate of step `step` (0-based): rises linearly to lr over warmup_steps (step warmup_steps - 1 has lr); then constant, or falls to
 * min_lr at step `steps` along a half cosine or a line. */
double hspmd_job_lr(const struct hspmd_job *j, int64_t step);

#endif
