/* SPDX-License-Identifier: Apache-2.0 */
/* Splitting a row of layers over a row of stages. */
#ifndef HSPMD_CONTROLLER_SOLVER_PARTITION_H
#define HSPMD_CONTROLLER_SOLVER_PARTITION_H

/* Seconds of a micro-batch when stage `stage` holds layers [first, end); INFINITY when they do not fit. */
typedef double (*hspmd_partition_cost)(void *data, int stage, int first, int end);

/* Fill ends[0..stages) so that the slowest stage is as fast as can be; every stage gets at least one layer. 0; 1: no split fits; -1: memory is short. */
int hspmd_partition(int stages, int layers, hspmd_partition_cost cost, void *data, int *ends);

#endif
