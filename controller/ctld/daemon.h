/* SPDX-License-Identifier: Apache-2.0 */
/* hspmdctld: look at the cluster, decide, ask. It keeps nothing that matters: after a restart Slurm and the controllers, which call again,
 * tell it all. */
#ifndef HSPMD_CONTROLLER_CTLD_DAEMON_H
#define HSPMD_CONTROLLER_CTLD_DAEMON_H

#include "common/error.h"
#include "common/format/policy.h"
#include "controller/slurm/slurm_view.h"

struct ctld_options {
	const char *listen, *policies, *munge_socket, *event_log, *metrics; /* event_log, metrics, munge_socket may be NULL */
	const char *cookie; /* both sides prove themselves by this secret instead of MUNGE: for tests */
	struct hspmd_policy_trust trust;
	double poll_min_s, poll_max_s; /* between two polls of Slurm: when all changes, when nothing does */
	bool syslog;
	/* How the cluster is looked at. Called off the loop, one call at a time. As hspmd_slurm_view_refresh. */
	int (*poll)(void *context, const struct hspmd_slurm_view *old, struct hspmd_slurm_view **new, int *rpcs, struct hspmd_error *err);
	void *poll_context;
	const char *state_folder; /* files change in it when the queue does; NULL: none */
};

/* Run till SIGTERM or SIGINT; SIGHUP reads the policies again. 0, or -1 with what kept it from starting. */
int ctld_run(const struct ctld_options *options, struct hspmd_error *err);

#endif
