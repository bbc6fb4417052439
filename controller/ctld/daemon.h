/* SPDX-License-Identifier: Apache-2.0 */
/* hspmdctld polls Slurm, decides which elastic jobs are resized, and requests it of their controllers. It stores nothing that matters:
 * after a restart it learns everything from Slurm and from the controllers, which connect again. */
#ifndef HSPMD_CONTROLLER_CTLD_DAEMON_H
#define HSPMD_CONTROLLER_CTLD_DAEMON_H

#include "common/error.h"
#include "common/format/policy.h"
#include "controller/slurm/slurm_view.h"

/* Labels that metrics of jobs may have. Jobs whose labels are equal count together. */
enum ctld_job_label { CTLD_LABEL_JOB, CTLD_LABEL_USER, CTLD_LABEL_ACCOUNT, CTLD_LABEL_PARTITION, CTLD_LABEL_QOS, CTLD_LABELS };
extern const char *const ctld_job_label_names[]; /* "job", "user", ..., NULL */

struct ctld_options {
	const char *listen, *policies, *munge_socket, *event_log, *metrics; /* event_log, metrics, munge_socket may be NULL */
	const char *cookie; /* a secret by which both sides prove themselves instead of MUNGE, for tests; NULL: MUNGE */
	struct hspmd_policy_trust trust;
	bool private_jobs;      /* viewers see their own jobs only, except root, the daemon's user and the operators */
	const uid_t *operators; /* [operator_count] */
	int operator_count;
	double poll_min_s, poll_max_s; /* interval between two polls of Slurm while everything changes, and while nothing does */
	unsigned job_labels;           /* bits 1 << enum ctld_job_label */
	bool syslog;
	bool dry_run; /* decide and log, but request nothing of the controllers */
	/* Polls Slurm; as hspmd_slurm_view_refresh(). Called on another thread than the loop's, one call at a time. */
	int (*poll)(void *context, const struct hspmd_slurm_view *old, struct hspmd_slurm_view **new, int *rpcs, struct hspmd_error *err);
	/* Reads what accounting lets users take, on the same thread; as hspmd_slurm_accounts_read(). NULL: it is not read. */
	int (*accounts)(void *context, bool shares, struct hspmd_slurm_accounts *a, int *rpcs, struct hspmd_error *err);
	void *poll_context;
	const char *budget_file;  /* keeps used budgets (budget.h) across restarts; NULL: they count from the start of the daemon */
	const char *state_folder; /* folder in which files change when the queue does; NULL: none */
};

/* Runs until SIGTERM or SIGINT; SIGHUP makes it read the policies again. Returns 0, or -1 and err if it could not start. */
int ctld_run(const struct ctld_options *options, struct hspmd_error *err);

#endif
