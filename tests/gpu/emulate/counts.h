/* SPDX-License-Identifier: Apache-2.0 */
/* What the host has asked the emulated device for since it was loaded: the indices of emulate_counts[]. */
#ifndef EMULATE_COUNTS_H
#define EMULATE_COUNTS_H

/* The module also has a thread-local integer `emulate_inside`: above 0 while a thread is in the emulator, whose locks and allocations are
 * not the device's. */

enum emulate_count {
	EMULATE_ASKED,         /* kernels, copies, clears, graphs, waits of a stream for another */
	EMULATE_WAITS,         /* of the host, for a stream, or for an event that is not reached */
	EMULATE_ALLOCATIONS,   /* allocations and frees of the device's or pinned memory */
	EMULATE_COPIES,        /* copies on streams that compute */
	EMULATE_COPIES_BESIDE, /* copies on other streams */
	EMULATE_HELD,          /* measurements that wait for the file of HSPMD_EMULATE_HOLD to go */
	EMULATE_SECOND,        /* products by cuBLASLt's second algorithm */
	EMULATE_LOOKUPS,       /* questions to libraries for algorithms and plans, and limits of kernels that are changed */
	EMULATE_GRAPHS,        /* graphs that were made ready to launch */
	EMULATE_WGMMA,         /* blocks with products of warp-groups */
	EMULATE_FP8,           /* of these, blocks whose first product is of FP8 codes */
	EMULATE_BOXES,         /* boxes that were copied into shared memory */
	EMULATE_COUNTS
};

#endif
