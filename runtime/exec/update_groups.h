/* SPDX-License-Identifier: Apache-2.0 */
/* The updates of a program's parameters, in groups in the order in which its passes first use them. A device that can run them beside the
 * passes of the next step does so: these begin to use a group's parameters when its update is done, so that the optimizer, which is bound
 * by memory, and products, which are not, run at the same time. The numbers do not depend on it. HSPMD_CUDA_BESIDE=N makes groups of at
 * least N bytes of parameters (16 MiB); 0: steps wait for their updates. */
#ifndef HSPMD_EXEC_UPDATE_GROUPS_H
#define HSPMD_EXEC_UPDATE_GROUPS_H

#include "runtime/program/program.h"

struct hspmd_update_groups {
	size_t count;      /* of updates */
	size_t *update;    /* instructions, in groups */
	int groups;        /* at most HSPMD_DEVICE_GROUPS */
	size_t *begin;     /* [groups + 1] the first update of each group */
	signed char *need; /* [vote] groups that must be done before an instruction; never fewer than before the one in front of it */
};

/* NULL: the updates are not to be run beside anything: the device cannot, they are followed by communication, or they read what the next
 * step's passes may overwrite. Also NULL if memory is short: it is not needed. */
struct hspmd_update_groups *hspmd_update_groups_build(const struct hspmd_program *p, const struct hspmd_device *dev);
void hspmd_update_groups_destroy(struct hspmd_update_groups *g); /* NULL is fine */

#endif
