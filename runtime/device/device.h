/* SPDX-License-Identifier: Apache-2.0 */
/* A device: a table of functions that allocates, copies and runs operators' kernels. One object a worker; not thread-safe unless said
 * (to_host_concurrent). */
#ifndef HSPMD_DEVICE_DEVICE_H
#define HSPMD_DEVICE_DEVICE_H

#include "common/error.h"
#include "common/format/enums.h"
#include "runtime/tensor/box.h"
#include "runtime/tensor/dtype.h"
#include "runtime/tensor/opcode.h"
#include "runtime/tensor/view.h"

struct hspmd_kernel_args {
	const struct hspmd_op_attr *attr;
	int input_count, output_count;
	struct hspmd_view in[HSPMD_OP_MAX_IO];  /* rank -1, data NULL: optional input not given */
	struct hspmd_view out[HSPMD_OP_MAX_IO]; /* rank -1, data NULL: output not wanted */
	void *workspace;                        /* at least what the device's workspace() said for these args; 64-byte aligned */
	size_t workspace_bytes;
};

struct hspmd_device;
struct hspmd_communicator_ops;
struct hspmd_device_graph;

struct hspmd_device_ops {
	const char *name; /* "cpu", "cuda" */
	enum hspmd_device_kind kind;
	bool host_memory; /* buffers can be read and written by the CPU directly */
	/* `index`: which GPU; `threads`: cores of a CPU device (0: all that the process may use). */
	int (*open)(struct hspmd_device **dev, int index, int threads, struct hspmd_error *err);
	void (*close)(struct hspmd_device *dev);
	void *(*allocate)(struct hspmd_device *dev, size_t bytes, struct hspmd_error *err); /* 64-byte aligned, not cleared */
	void (*release)(struct hspmd_device *dev, void *data);
	/* Copies are ordered with the kernels of this device; to_host is done on return. */
	int (*to_device)(struct hspmd_device *dev, void *dst, const void *host, size_t bytes, struct hspmd_error *err);
	int (*to_host)(struct hspmd_device *dev, void *host, const void *src, size_t bytes, struct hspmd_error *err);
	/* hspmd_device_read_batch with one wait for all. NULL: does not gain by it. */
	int (*to_host_batch)(struct hspmd_device *dev, void *host, const void *const *src, int count, size_t bytes,
	                     struct hspmd_error *err);
	/* As to_host, beside the kernels and in no order with them: by one thread at a time, which need not be the device's own. What is
	 * read was written before the device was last synchronised, and nothing writes it until this returns. NULL: not possible. */
	int (*to_host_concurrent)(struct hspmd_device *dev, void *host, const void *src, size_t bytes, struct hspmd_error *err);
	int (*zero)(struct hspmd_device *dev, void *dst, size_t bytes, struct hspmd_error *err);
	/* Copy `part` between packed buffers holding dst_box and src_box; add: dst += src (floating types). */
	int (*copy_box)(struct hspmd_device *dev, void *dst, const struct hspmd_box *dst_box, const void *src,
	                const struct hspmd_box *src_box, const struct hspmd_box *part, enum hspmd_dtype dtype, bool add,
	                struct hspmd_error *err);
	/* Bytes of workspace an operator needs for these args (data pointers unset). */
	size_t (*workspace)(struct hspmd_device *dev, enum hspmd_opcode op, const struct hspmd_kernel_args *args);
	int (*run)(struct hspmd_device *dev, enum hspmd_opcode op, const struct hspmd_kernel_args *args, struct hspmd_error *err);
	/* As `run` for one after the other, in as few launches as may be; what all must share (workspace, an optimizer's step) is the
	 * first's. NULL: does not gain by it. */
	int (*run_batch)(struct hspmd_device *dev, enum hspmd_opcode op, const struct hspmd_kernel_args *args, int count,
	                 struct hspmd_error *err);
	int (*synchronise)(struct hspmd_device *dev, struct hspmd_error *err);
	/* What run() and zero() are asked for between the first two is kept instead of done; replay does it, with the same buffers, as
	 * often as it is asked for. capture_end ends a recording also where something in between failed. NULL: the device cannot. */
	int (*capture_begin)(struct hspmd_device *dev, struct hspmd_error *err);
	int (*capture_end)(struct hspmd_device *dev, struct hspmd_device_graph **captured, struct hspmd_error *err);
	int (*replay)(struct hspmd_device *dev, const struct hspmd_device_graph *captured, struct hspmd_error *err);
	void (*graph_free)(struct hspmd_device *dev, struct hspmd_device_graph *captured); /* NULL is fine */
	const struct hspmd_communicator_ops
	        *communicators; /* how such devices communicate without host memory (runtime/device/communicator.h); NULL: not at all */
};

/* First member of every device. */
struct hspmd_device {
	const struct hspmd_device_ops *ops;
};

/* Has a kind of devices a kernel for what not all have (HSPMD_OPS_EXTRA)? Known without such a device, so that a program is the same
 * wherever it is looked at. */
bool hspmd_device_has_kernel(enum hspmd_device_kind kind, enum hspmd_opcode opcode);

/* to_host of `bytes` (at most 64) from each of `count` places, one behind the other, as many at once as the device can. */
int hspmd_device_read_batch(struct hspmd_device *dev, void *host, const void *const *src, int count, size_t bytes, struct hspmd_error *err);

/* By name: "cpu", or "cuda", which is a module that is loaded when it is first asked for. NULL and err otherwise. */
const struct hspmd_device_ops *hspmd_device_find(const char *name, struct hspmd_error *err);

#endif
