/* SPDX-License-Identifier: Apache-2.0 */
/* How often to write a checkpoint. */
#ifndef HSPMD_CORE_CHECKPOINT_INTERVAL_H
#define HSPMD_CORE_CHECKPOINT_INTERVAL_H

/* Local checkpoints to one on shared storage, where the job does not say: they are there for the loss of nodes, the shared one for that of
 * all. */
#define HSPMD_LOCAL_PER_SHARED_CHECKPOINT 10

/* How often the state is written, in seconds: as the job file says, or as was chosen. Where there is one place alone both are the same. */
struct run_intervals {
	double every_s, shared_every_s;
};

/* Seconds between two checkpoints with which least time is lost, where one costs the training cost_s and failures come failure_s apart in
 * the mean: Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974, carried to higher order by Daly, "A
 * higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22(3), 2006, equation 37. */
double hspmd_checkpoint_interval(double cost_s, double failure_s);

/* Mean seconds between failures that a job on `nodes` nodes must expect which has run for run_s and seen `failures`: what is known of the
 * site's nodes (losses_per_node_s; 0: nothing, and then one failure in 30 days each) counts as one observation beside the job's own. */
double hspmd_mean_time_between_failures(int nodes, double run_s, int failures, double losses_per_node_s);

#endif
