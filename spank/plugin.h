/* SPDX-License-Identifier: Apache-2.0 */
/* The Slurm plugin: what its parts hand one another. One file a context; plugin.c sends each of Slurm's calls to it.
 *
 *   sbatch, salloc, srun   submit.c  checks everything, refuses in words, puts HSPMD_* into the job's environment
 *   slurmstepd             remote.c  mirrors HSPMD_* where the user's environment did not travel; never fails
 *   slurmd, after a job    epilog.c  removes what its agents left in the node's memory; never fails
 */
#ifndef HSPMD_SPANK_PLUGIN_H
#define HSPMD_SPANK_PLUGIN_H

#include <slurm/spank.h>
#include <stdbool.h>
#include <sys/types.h>

#include "common/error.h"

/* plugstack.conf: key=value arguments. Strings are borrowed from argv or static. */
struct hspmd_spank_args {
	const char *policies; /* folder of policy files */
	const char *owner; /* user whose policy files are believed beside root's, and as whom hspmdctld runs; NULL: "slurm" where there is
	                      such a user */
	const char *ctld;  /* HOST:PORT of hspmdctld; NULL: the site has none */
	const char *hspmd; /* the program, by which hspmdctld is asked */
	const char *default_partition; /* what a job that names none gets; NULL: not known */
};

/* -1 and err on an unknown key, an empty or a relative value. */
int hspmd_spank_args_read(struct hspmd_spank_args *args, int argc, char *const *argv, struct hspmd_error *err);

/* What the user asked for. Owned copies; NULL: not given. */
struct hspmd_spank_options {
	char *file, *nodes, *policy, *checkpoint;
};
extern struct hspmd_spank_options hspmd_spank_options;

/* Register --hspmd and its kin; their values come into hspmd_spank_options. */
int hspmd_spank_options_register(spank_t spank);
void hspmd_spank_options_clear(void);

/* Check the job that is about to be submitted and carry its options into its environment. 0, or -1 with what is wrong. */
int hspmd_spank_submit(spank_t spank, const struct hspmd_spank_args *args, const struct hspmd_spank_options *options,
                       struct hspmd_error *err);

/* What hspmdctld says of a job of so many nodes that is about to be submitted: how many elastic jobs its user has already, and what the
 * nodes cost an hour at least. Any of the words may be NULL. False: there is no hspmdctld, or it does not answer within a few seconds; then
 * the job's start is what is looked at. */
struct hspmd_spank_quote {
	int jobs;
	double price_per_hour;
};
bool hspmd_spank_quote(const struct hspmd_spank_args *args, uid_t owner, int nodes, const char *partition, const char *features,
                       const char *gres, struct hspmd_spank_quote *quote);

/* On the node, in the job's environment. Cannot fail: a failure here would drain the node. */
void hspmd_spank_export_env(spank_t spank);

/* A job is over on this node, or has given it back: nothing of it stays in memory here that an agent which was killed left behind. Cannot
 * fail, either. */
void hspmd_spank_clean_node(spank_t spank);

/* What sbatch, salloc or srun was told for one of its own options ("partition"), malloc'd, or NULL: not given, or this Slurm does not
 * tell. */
char *hspmd_spank_slurm_option(const char *name);
/* Set one of them, as if the user had. False: this Slurm does not let us. */
bool hspmd_spank_slurm_set(const char *name, const char *value);

/* What a job gets, in its environment. NULL-terminated. */
extern const char *const hspmd_spank_env_names[];

#endif
