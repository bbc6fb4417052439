/* SPDX-License-Identifier: Apache-2.0 */
/* What the emulated device has been asked for since it was loaded: emulate_counts[]. */
#ifndef EMULATE_COUNTS_H
#define EMULATE_COUNTS_H

enum emulate_count {
	EMULATE_ASKED,         /* kernels, copies, clearings, graphs, waits of a stream for another */
	EMULATE_WAITS,         /* of the host, for a stream or for an event that is not reached */
	EMULATE_ALLOCATIONS,   /* of the device's or pinned memory, and their ends */
	EMULATE_COPIES,        /* on streams that compute */
	EMULATE_COPIES_BESIDE, /* on others */
	EMULATE_COUNTS
};

#endif
