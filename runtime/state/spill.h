/* SPDX-License-Identifier: Apache-2.0 */
/* Where the state of a plan that trains no more waits while the next one takes the device's memory: in the host's, or, where the device's
 * memory is the host's, in a file without a name on the node's disk, which the system may write out and read again as it needs the memory.
 * Either dies with the process. */
#ifndef HSPMD_STATE_SPILL_H
#define HSPMD_STATE_SPILL_H

#include "runtime/device/device.h"

struct hspmd_spill {
	void *at; /* in host memory; only to be read. NULL: nothing is spilled */
	size_t bytes;
	bool mapped;
};

/* Copy so many bytes from the device. folder: on a disk, is made where it is not there; NULL: into host memory. 0, or -1 and err: the disk
 * is full or fails, no memory. */
int hspmd_spill_write(struct hspmd_spill *s, struct hspmd_device *dev, const void *from, size_t bytes, const char *folder,
                      struct hspmd_error *err);
/* NULL `at` is fine. */
void hspmd_spill_free(struct hspmd_spill *s);

#endif
