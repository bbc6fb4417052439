/* SPDX-License-Identifier: Apache-2.0 */
/* The Slurm plugin: functions that its files share. One file per context; plugin.c calls it from Slurm's entry points.
 *
 *   sbatch, salloc, srun   submit.c  checks everything, refuses with an error message, puts HSPMD_* into the job's environment
 *                          script.c  what the batch script will run; fit.c  whether the model fits; quote.c  what hspmdctld says
 *   slurmstepd             remote.c  sets HSPMD_* if the user's environment was not exported; cannot fail
 *   slurmd, after a job    epilog.c  removes what the job's agents left in the node's memory; cannot fail
 */
#ifndef HSPMD_SPANK_PLUGIN_H
#define HSPMD_SPANK_PLUGIN_H

#include <slurm/spank.h>
#include <stdbool.h>
#include <sys/types.h>

#include "common/error.h"
#include "common/format/job.h"
#include "common/format/model.h"

/* The key=value arguments in plugstack.conf. Strings are borrowed from argv or static. */
struct hspmd_spank_args {
	const char *policies; /* folder of policy files */
	const char *owner; /* user whose policy files are trusted as root's are, and as whom hspmdctld runs; NULL: "slurm" if it exists */
	const char *ctld;  /* HOST:PORT of hspmdctld; NULL: the site has none */
	const char *hspmd; /* path of the program `hspmd`, which queries hspmdctld */
	const char *default_partition; /* partition of a job that names none; NULL: not known */
};

/* Returns 0, or -1 and err: an unknown key, an empty value, or a relative path. */
int hspmd_spank_args_read(struct hspmd_spank_args *args, int argc, char *const *argv, struct hspmd_error *err);

/* Values of the user's --hspmd options. Owned copies; NULL: not given. */
struct hspmd_spank_options {
	char *file, *nodes, *policy, *checkpoint;
};
extern struct hspmd_spank_options hspmd_spank_options;

/* Registers --hspmd and the other options; Slurm then fills hspmd_spank_options. Returns 0 or -1. */
int hspmd_spank_options_register(spank_t spank);
void hspmd_spank_options_clear(void);

/* Checks the job that is about to be submitted, and puts its options into its environment. Returns 0, or -1 and err. */
int hspmd_spank_submit(spank_t spank, const struct hspmd_spank_args *args, const struct hspmd_spank_options *options,
                       struct hspmd_error *err);

/* Gets hspmdctld's quote for a job of `nodes` nodes that is about to be submitted: how many elastic jobs its user has already, and the
 * least price of the nodes per hour. partition, features and gres may be NULL. Blocks for a few seconds at most. Returns false if the site
 * has no hspmdctld or it does not answer in time; the limits are then checked only when the job starts. */
struct hspmd_spank_quote {
	int jobs;
	double price_per_hour;
};
bool hspmd_spank_quote(const struct hspmd_spank_args *args, uid_t owner, int nodes, const char *partition, const char *features,
                       const char *gres, struct hspmd_spank_quote *quote);

/* Runs a program, found by PATH if it is only a name, without input and without its errors, and reads what it prints, for a few seconds at
 * most. Returns the bytes read, and `text` ends with a 0; 0 also if it cannot be started. */
size_t hspmd_spank_output_of(const char *program, const char *const *argv, char *text, size_t size);

/* Refuses a job whose script would train nothing (--wrap of something else, a heterogeneous job) or the same thing several times (an
 * array). Returns 0, or -1 and err. */
int hspmd_spank_check_script(struct hspmd_error *err);
/* sbatch --hspmd=FILE without a script reads one from its standard input: if that is a terminal or /dev/null, it gets one that runs
 * `hspmd run`. To be called before sbatch reads its script; sbatch does not read its input if it has a script. default_script: the same
 * for a command of these words, and another descriptor; returns 0, or -1: there is no pipe. */
void hspmd_spank_give_script(const struct hspmd_spank_args *args);
int hspmd_spank_default_script(const struct hspmd_spank_args *args, const char *command, char *const *words, int count, int fd);

/* Refuses a model whose state no plan can fit into the memory of elastic.max_nodes nodes, or of `most`, which the policy allows, if these
 * are fewer: those of the partition (NULL: of the cluster), or as much of them as --mem asks for. m may be NULL. Returns 0, or -1 and
 * err. */
int hspmd_spank_check_fit(const struct hspmd_job *j, const struct hspmd_model *m, int most, const char *partition, struct hspmd_error *err);
/* Bytes that training needs at least. */
double hspmd_spank_bytes_needed(const struct hspmd_model *m, const struct hspmd_job *j);
/* Bytes of Slurm's "4000", "4G" or "4000M"; 0: not a size, or all of a node's memory. */
double hspmd_spank_memory(const char *text);
/* Bytes of the `most` largest nodes among lines "COUNT MIB", of each at most `limit` (0: all that it has); *nodes: how many these are. */
double hspmd_spank_bytes_had(const char *sinfo, int most, double limit, int *nodes);

/* On the node, at the start of the job: sets HSPMD_* in the job's environment. Cannot fail: a failure here would drain the node. */
void hspmd_spank_export_env(spank_t spank);

/* On the node, after the job has ended there or has returned the node: frees the memory that a killed agent left behind. Cannot fail. */
void hspmd_spank_clean_node(spank_t spank);

/* Returns the value of one of sbatch's, salloc's or srun's own options ("partition"), malloc'd; NULL: not given, or not known with this
 * Slurm. */
char *hspmd_spank_slurm_option(const char *name);
/* Sets one of these options, as if the user had. Returns false if this Slurm does not allow it. */
bool hspmd_spank_slurm_set(const char *name, const char *value);

/* Names of the variables in a job's environment. NULL-terminated. */
extern const char *const hspmd_spank_env_names[];

#endif
