/* SPDX-License-Identifier: Apache-2.0 */
/* How often to write a checkpoint. */
#ifndef HSPMD_CORE_CHECKPOINT_INTERVAL_H
#define HSPMD_CORE_CHECKPOINT_INTERVAL_H

/* Local checkpoints per checkpoint on shared storage, if the job file does not say. Local ones are for the loss of some nodes, shared ones
 * for the loss of all. */
#define HSPMD_LOCAL_PER_SHARED_CHECKPOINT 10

/* Seconds between checkpoints on local disks and on shared storage, by the job file or computed. If there is only one of the two, both are
 * the same. */
struct run_intervals {
	double every_s, shared_every_s;
};

/* Seconds between checkpoints that minimise the time lost, if a checkpoint costs the training cost_s, and failures are failure_s apart on
 * average: Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974, carried to higher order by Daly, "A
 * higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22(3), 2006, equation 37. */
double hspmd_checkpoint_interval(double cost_s, double failure_s);

/* Expected mean seconds between failures of a job on `nodes` nodes that has run for run_s and had `failures` failures. The loss rate of the
 * cluster's nodes (losses_per_node_s; 0: unknown, then one failure per node in 30 days) counts as one observation in addition to the job's
 * own. */
double hspmd_mean_time_between_failures(int nodes, double run_s, int failures, double losses_per_node_s);

#endif
