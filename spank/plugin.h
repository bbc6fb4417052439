/* SPDX-License-Identifier: Apache-2.0 */
/* The Slurm plugin: functions that its files share. One file per context; plugin.c calls it from Slurm's entry points.
 *
 *   sbatch, salloc, srun   submit.c  checks everything, refuses with an error message, puts HSPMD_* into the job's environment
 *   slurmstepd             remote.c  sets HSPMD_* if the user's environment was not exported; cannot fail
 *   slurmd, after a job    epilog.c  removes what the job's agents left in the node's memory; cannot fail
 */
#ifndef HSPMD_SPANK_PLUGIN_H
#define HSPMD_SPANK_PLUGIN_H

#include <slurm/spank.h>
#include <stdbool.h>
#include <sys/types.h>

#include "common/error.h"

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
