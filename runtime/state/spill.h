/* SPDX-License-Identifier: Apache-2.0 */
/* Memory for the state of a plan that no longer trains, while the next plan uses the device memory: host memory or, if the device
 * computes in host memory, an unnamed file on the node's disk, which the system can write out and read again as memory is needed. Both
 * are lost when the process ends. */
#ifndef HSPMD_STATE_SPILL_H
#define HSPMD_STATE_SPILL_H

#include "runtime/device/device.h"

struct hspmd_spill {
	void *at; /* in host memory; read-only. NULL: nothing is spilled */
	size_t bytes;
	bool mapped;
};

/* Copy `bytes` from the device. folder: on a disk, created if it does not exist; NULL: copy into host memory. 0, or -1 and err: the disk
 * is full or fails, or memory is short. */
int hspmd_spill_write(struct hspmd_spill *s, struct hspmd_device *dev, const void *from, size_t bytes, const char *folder,
                      struct hspmd_error *err);
/* `at` NULL is fine. */
void hspmd_spill_free(struct hspmd_spill *s);

#endif
