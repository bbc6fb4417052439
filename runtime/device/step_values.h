/* SPDX-License-Identifier: Apache-2.0 */
/* What differs from step to step, in the memory of a device that takes it from there (copy_direct of device.h): calls that were recorded
 * once then hold for all steps. Kernels read it through args->values; for the others args->attr has it. */
#ifndef HSPMD_DEVICE_STEP_VALUES_H
#define HSPMD_DEVICE_STEP_VALUES_H

#include <stdint.h>

#include "common/optimizer/optimizer.h"

struct hspmd_step_values {
	double square_sum;                   /* of the gradients: SUM_SQUARES adds to it, and UPDATE clips by it */
	double clip;                         /* the largest norm of the gradients; 0: any */
	double loss_factor;                  /* multiplies attr.scale of LOSS, LOSS_GRAD and CROSS_ENTROPY */
	double keep;                         /* as in struct hspmd_optimizer_update, of parameters that decay */
	double rates[HSPMD_OPTIMIZER_RATES]; /* likewise, of all */
	uint64_t streams[]; /* of the random numbers that round copies, if attr.stochastic: attr.random.stream is an index */
};

#endif
