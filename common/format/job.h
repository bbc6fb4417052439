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
#include "common/mistakes.h"
#include "common/optimizer/optimizer.h"

#define HSPMD_JOB_FORMAT "hspmd-job-1"
#define HSPMD_JOB_STEPS_MAX ((int64_t)1 << 40)
#define HSPMD_JOB_PROMPTS_MAX 64
#define HSPMD_JOB_TRACE_MAX 1000 /* steps of a trace */
/* Comment of the Slurm jobs that train such a file, unless the user gave one. It identifies jobs that wait in the queue. */
#define HSPMD_JOB_COMMENT "hspmd"

/* OWN: the model reads its files itself (struct hspmd_model_definition in runtime/lib/hspmd.h). */
enum hspmd_data_kind { HSPMD_DATA_BYTES, HSPMD_DATA_UINT16, HSPMD_DATA_UINT32, HSPMD_DATA_MEGATRON, HSPMD_DATA_OWN };
extern const char *const hspmd_data_kind_names[];
enum hspmd_lr_schedule { HSPMD_LR_CONSTANT, HSPMD_LR_COSINE, HSPMD_LR_LINEAR, HSPMD_LR_WSD };
extern const char *const hspmd_lr_schedule_names[];
enum hspmd_lr_decay { HSPMD_DECAY_LINEAR, HSPMD_DECAY_COSINE, HSPMD_DECAY_SQRT };
extern const char *const hspmd_lr_decay_names[];
enum hspmd_rounding { HSPMD_ROUNDING_NEAREST, HSPMD_ROUNDING_STOCHASTIC };
extern const char *const hspmd_rounding_names[];

struct hspmd_job {
	char *file;       /* absolute path of the job file */
	char *model_path; /* absolute */
	json_t *model_config; /* an object, for a model of the user's own; NULL: none */
	char *init;       /* NULL: random; else absolute path of safetensors (file or folder). Default random */
	enum hspmd_data_kind data_kind;
	int train_count, valid_count;
	char **train, **valid;
	double *train_weights; /* by file of train; NULL: none has a weight */
	int64_t valid_every;   /* steps; after the last, too. Default 100 */
	int64_t valid_batches; /* -1: all. Default 4 */
	bool documents;        /* the data are documents, and attention stays within one. Default false */
	int64_t document_end;  /* the token that ends one; -1: documents are those of the files' index */
	bool reset_positions;  /* positions are counted from the beginning of each document. Default false */
	bool mask;             /* beside each file is one that says which tokens are to be predicted. Default false */
	/* With documents: the lengths by which they are grouped, ascending, the last is seq_len. Default none: every step is of seq_len. */
	int64_t *lengths;
	int length_count;
	bool mix_lengths;                     /* a step has samples of several of these lengths, else of one. Default false */
	bool lengths_auto;                    /* they are chosen by the data; until they are, there are none (hspmd_data_choose_lengths) */
	int64_t seq_len, global_batch, steps; /* with a command: 1, 1 and INT64_MAX */
	uint64_t seed; /* default 1 */
	struct {
		enum hspmd_optimizer type;           /* default AdamW */
		double values[HSPMD_OPTIMIZER_KEYS]; /* by the keys of the type */
		double lr, min_lr;                   /* min_lr: final rate of all schedules but constant; default lr / 10 */
		int64_t warmup_steps;                /* default 0 */
		enum hspmd_lr_schedule schedule;     /* default constant */
		int64_t decay_steps;                 /* of WSD, the last ones of the job; default a tenth of all steps */
		enum hspmd_lr_decay decay;           /* of WSD; default linear */
		double weight_decay;                 /* default 0.1 */
		double clip;                         /* global norm; 0: none. Default 1.0 */
		char **no_decay;                     /* patterns (fnmatch) of the names of parameters without weight decay */
		int no_decay_count;
	} optimizer;
	enum hspmd_precision precision; /* FP32 (default), TF32, BF16 or FP8 */
	bool any_order;                 /* not deterministic: sums need not have the same order, and bits, each time */
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
	/* Texts that the model continues while it trains (common/format/job_samples.h). The keys are options of `hspmd generate`. */
	struct {
		int64_t every_steps; /* 0: none */
		int prompt_count;
		char **prompts;
		int64_t max_tokens, top_k; /* defaults 64, 50 */
		double temperature, top_p; /* defaults 1, 1 */
		char *tokenizer;           /* "bytes", or an absolute path; NULL: bytes */
	} samples;
	int64_t trace_first, trace_end; /* steps [first, end) are recorded as a trace; equal: none */
	/* Another trainer (common/format/job_command.h). Of `checkpoint` only its folder is then used. */
	struct {
		int argc;    /* 0: none, hspmd trains itself */
		char **argv; /* NULL-terminated; may have {...} (common/template.h) */
		bool per_node;
		bool warm;         /* a warm interpreter beside each rank (runtime/command/warm.h) */
		int notice_signal; /* sent before a change, ... */
		double notice_s;   /* ... this long before SIGKILL. Default SIGTERM, 60 */
		char *folder;      /* absolute: in which it is run; NULL: that of `hspmd run` */
	} command;
};

/* Read and check the job file alone. With `all`, which may be NULL, all mistakes are reported. */
struct hspmd_job *hspmd_job_read(const char *path, struct hspmd_mistakes *all, struct hspmd_error *err);
struct hspmd_job *hspmd_job_from_json(const json_t *value, const char *path, struct hspmd_mistakes *all, struct hspmd_error *err);
json_t *hspmd_job_to_json(const struct hspmd_job *j);
void hspmd_job_destroy(struct hspmd_job *j);

/* Returns true if the index of Megatron's data says where documents begin. */
bool hspmd_job_uses_index(const struct hspmd_job *j);
/* The loss mask of a data file: one byte per token. malloc'd; NULL: out of memory. */
char *hspmd_job_mask_path(const struct hspmd_job *j, const char *path);

/* What knows models (hspmd_job_models of runtime/model/model.h). check: finds mistakes of the job that the model's parameters show; it
 * calls hspmd_mistakes_add itself, for each of them. 0 or -1. */
struct hspmd_job_models {
	struct hspmd_model *(*read)(const struct hspmd_job *j, void *context, struct hspmd_error *err);
	int (*check)(const struct hspmd_job *j, const struct hspmd_model *m, struct hspmd_mistakes *all, struct hspmd_error *err);
};
/* Check the files that the job names: the model can be read (returned in *model unless NULL; the caller destroys it), data files exist, are
 * complete and hold at least one sample of seq_len + 1 tokens each, seq_len is within the model's positions, initial weights are the
 * model's, the shared checkpoint folder can be written. Of a job with a command: its {...} can be read, and *model is NULL. With `all`,
 * which may be NULL, all mistakes are reported. For submission and for the start of a run; therefore the node-local checkpoint folder is
 * not checked. */
int hspmd_job_check_files(const struct hspmd_job *j, const struct hspmd_job_models *models, void *context, struct hspmd_model **model,
                          struct hspmd_mistakes *all, struct hspmd_error *err);

/* -1 and err: the job's samples are longer than the model's positions. */
int hspmd_job_check_positions(const struct hspmd_job *j, const struct hspmd_model *m, struct hspmd_error *err);

/* -1 and err: the path has a variable that hspmd_job_expand_path() does not know. */
int hspmd_job_check_path(const char *path, struct hspmd_error *err);
/* Expand $USER, $JOB (the Slurm job id; "local" if job_id is NULL), $HOME, and their ${NAME} forms. malloc'd; NULL and err for other
 * variables. */
char *hspmd_job_expand_path(const char *path, const char *job_id, struct hspmd_error *err);

/* Learning rate of step `step` (0-based): rises linearly to lr over warmup_steps (step warmup_steps - 1 has lr); then constant, or falls to
 * min_lr at step `steps` along a half cosine or a line. WSD (warm-up, stable, decay; Hu et al., arXiv 2404.06395, section 4): constant, and
 * over the last decay_steps down to min_lr along a line, a half cosine, or 1 - sqrt (Haegele et al., arXiv 2405.18392, section 3). */
double hspmd_job_lr(const struct hspmd_job *j, int64_t step);
/* Returns false if a pattern of no_decay matches the parameter's name. Vectors have no weight decay whatever this returns. */
bool hspmd_job_decays(const struct hspmd_job *j, const char *parameter);
bool hspmd_job_no_decay_matches(const struct hspmd_job *j, int pattern, const char *parameter);

#endif
