/* SPDX-License-Identifier: Apache-2.0 */
/* What hspmd knows of a kind of device where there is none: for plans, for programs of other devices, and for the controller. */
#ifndef HSPMD_FORMAT_DEVICE_TRAITS_H
#define HSPMD_FORMAT_DEVICE_TRAITS_H

#include <stdbool.h>

#include "common/format/enums.h"

/* What the devices of a kind are made of on a node, by which they are found there. */
enum hspmd_device_origin {
	HSPMD_ORIGIN_NONE,  /* only cluster files name them */
	HSPMD_ORIGIN_CORES, /* shares of the node's own cores */
	HSPMD_ORIGIN_NVIDIA /* GPUs of NVIDIA's driver */
};

struct hspmd_device_traits {
	const char *name; /* in cluster files */
	enum hspmd_device_origin origin;
	bool host_memory;     /* the CPU can read and write its memory, so that state can outlive the worker's process */
	bool bf16;            /* computes in bf16; all compute in fp32 */
	bool tf32;            /* can round the operands of fp32 products to tf32 */
	bool fp8;             /* has products of FP8 operands, if by no units for them then of floats that are such numbers */
	bool takes_parts;     /* attention takes keys and values part by part, as they come from other devices (not in bf16) */
	bool overlaps;        /* its program sums gradients over devices while passes still run */
	int row_bytes;        /* rows of matrices that are padded begin on multiples of it; 0: rows are never padded */
	bool fused;           /* has kernels for the operators of opcode_list.h that not all devices have */
	bool fused_sums;      /* has kernels at least for those that add one gradient to another (OP_FUSED_SUM) */
	bool beside;          /* can run products beside other operators (run_apart of struct hspmd_device_ops) */
	bool dispatches;      /* its programs can send those rows of a tensor alone that chose an expert of the receiver or the sender */
	double choice_s;      /* with `dispatches`: until the host knows what was chosen, and the device goes on */
	bool rings;           /* gathers and sums among its like around a ring, by a library of its own (NCCL) */
	double launch_s;      /* seconds to launch a kernel; 0: it launches nothing, and its times are in proportion to work */
	double context_bytes; /* of its memory, in use before a program allocates any */
	double product_bytes; /* most bytes of its memory that a product needs while it runs, beside its operator (product_memory.h);
	                         with `beside`, those beside other operators need as many again */
};

/* Lives as long as the process. */
const struct hspmd_device_traits *hspmd_device_traits(enum hspmd_device_kind kind);
/* The kind of this origin that is first in the list; -1: there is none. */
int hspmd_device_kind_of(enum hspmd_device_origin origin);
/* The name of the kind that a node's own cores are. */
const char *hspmd_device_name_of_cores(void);
/* The kind of this name; -1: there is none. */
int hspmd_device_kind_named(const char *name);
/* Returns true if hspmd's runtime can compute in this precision on such devices. */
bool hspmd_device_kind_computes(enum hspmd_device_kind kind, enum hspmd_precision precision);

/* Adds a kind that is not in the list, before clusters are read and threads started; `traits` is borrowed for ever. Returns the kind, or
 * -1: there are HSPMD_DEVICE_KINDS_MAX already. */
int hspmd_device_kind_add(const struct hspmd_device_traits *traits);

#endif
