/* SPDX-License-Identifier: Apache-2.0 */
/* A device: a table of functions that allocate, copy and run operators' kernels. One object per worker; not thread-safe unless stated
 * (to_host_concurrent). */
#ifndef HSPMD_DEVICE_DEVICE_H
#define HSPMD_DEVICE_DEVICE_H

#include "common/error.h"
#include "common/format/device_traits.h"
#include "runtime/tensor/box.h"
#include "runtime/tensor/dtype.h"
#include "runtime/tensor/opcode.h"
#include "runtime/tensor/view.h"

/* What a device has decided about calls of one operator with operands of the same types and shapes. */
struct hspmd_prepared;
struct hspmd_step_values; /* step_values.h */

struct hspmd_kernel_args {
	const struct hspmd_op_attr *attr;
	int input_count, output_count;
	struct hspmd_view in[HSPMD_OP_MAX_IO];  /* rank -1, data NULL: absent optional input */
	struct hspmd_view out[HSPMD_OP_MAX_IO]; /* rank -1, data NULL: unwanted output */
	void *workspace;                        /* at least the size that workspace() returned for these args; 64-byte aligned */
	size_t workspace_bytes;
	const struct hspmd_prepared *prepared; /* of such a call (struct hspmd_device_ops); NULL: the device decides in the call */
	const struct hspmd_step_values *values; /* what takes the place of attr's numbers, in the device's memory; NULL: nothing */
	int64_t bytes_beside; /* that other operators move while it runs, if it is run by run_apart; 0: nothing is beside it */
	bool tf32;                             /* products of F32 may round their operands to TF32 */
	bool any_order;                        /* sums may have another order, and so other bits, each time */
	bool repeats_first; /* the call before rounded the same in[0] to FP8, and neither it nor the workspace has changed since: what is
	                       left there may be used again */
	/* What can be computed with less workspace gets no more of it: a power of two, of which 1 stands for none at all; 0: as much as is
	 * fastest. What is computed then is the same on all devices of a kind. */
	uint32_t workspace_most;
};

/* What workspace_most leaves of `bytes`. */
static inline size_t hspmd_workspace_within(size_t bytes, uint32_t workspace_most)
{
	return !workspace_most || bytes <= workspace_most ? bytes : workspace_most > 1 ? workspace_most : 0;
}

#define HSPMD_DEVICE_GROUPS 64
#define HSPMD_DEVICE_COPIES 64

struct hspmd_device;
struct hspmd_communicator_ops;
struct hspmd_device_graph;

struct hspmd_device_ops {
	const char *name; /* of its kind: "cpu", "cuda" */
	bool host_memory; /* the CPU can read and write buffers directly */
	/* `index`: number of the GPU; `threads`: cores of a CPU device (0: all that the process may use). */
	int (*open)(struct hspmd_device **dev, int index, int threads, struct hspmd_error *err);
	void (*close)(struct hspmd_device *dev);
	void *(*allocate)(struct hspmd_device *dev, size_t bytes, struct hspmd_error *err); /* 64-byte aligned, not cleared */
	void (*release)(struct hspmd_device *dev, void *data);
	/* Memory of the host that kernels and copy_box read and write as they do the device's own, over the device's link; the host may use
	 * it too, after synchronise. 64-byte aligned, not cleared. May take long, and be called from any thread. NULL (the function): there
	 * is no such memory. */
	void *(*allocate_host)(struct hspmd_device *dev, size_t bytes, struct hspmd_error *err);
	void (*release_host)(struct hspmd_device *dev, void *data); /* that nothing uses any more; NULL is fine */
	/* Copies are ordered with this device's kernels; to_host is complete on return. */
	int (*to_device)(struct hspmd_device *dev, void *dst, const void *host, size_t bytes, struct hspmd_error *err);
	int (*to_host)(struct hspmd_device *dev, void *host, const void *src, size_t bytes, struct hspmd_error *err);
	/* hspmd_device_read_batch with one wait for all. NULL: would not be faster. */
	int (*to_host_batch)(struct hspmd_device *dev, void *host, const void *const *src, int count, size_t bytes,
	                     struct hspmd_error *err);
	/* Like to_host, but concurrent with the kernels and not ordered with them; one thread at a time, which need not be the device's
	 * own. The bytes read were written before the device's last synchronise, and nothing writes them until the call returns. NULL: not
	 * possible. */
	int (*to_host_concurrent)(struct hspmd_device *dev, void *host, const void *src, size_t bytes, struct hspmd_error *err);
	int (*zero)(struct hspmd_device *dev, void *dst, size_t bytes, struct hspmd_error *err);
	/* Copies from memory that allocate_host gave, which must not change until the copy is done, or between two places of the device's
	 * own. Can be recorded: each replay then copies what is there. A device that has this also takes args' `values`. NULL: not
	 * possible. */
	int (*copy_direct)(struct hspmd_device *dev, void *dst, const void *src, size_t bytes, struct hspmd_error *err);
	/* Copies between the device's own memory and memory that allocate_host gave, in either direction, beside what is asked of the
	 * device afterwards: begins when all that was asked before is done. Such copies are made one after the other. `number`, below
	 * HSPMD_DEVICE_COPIES, names it until the next call with the same number. synchronise waits for it, too. Not while calls are
	 * recorded. NULL: not possible. */
	int (*copy_beside)(struct hspmd_device *dev, void *dst, const void *src, size_t bytes, int number, struct hspmd_error *err);
	/* What is asked afterwards begins when the latest copy with this number is done. */
	int (*wait_copy)(struct hspmd_device *dev, int number, struct hspmd_error *err);
	/* Copies `part` between packed buffers that hold dst_box and src_box; add: dst += src (floating types). */
	int (*copy_box)(struct hspmd_device *dev, void *dst, const struct hspmd_box *dst_box, const void *src,
	                const struct hspmd_box *src_box, const struct hspmd_box *part, enum hspmd_dtype dtype, bool add,
	                struct hspmd_error *err);
	/* Row i of `count` rows of `elements` elements becomes the sum, in their order and in F32 for BF16, of the rows at from[first[i]]..
	 * from[first[i + 1] - 1]; of none: 0. Addresses are the device's, the arrays the host's, and free on return. NULL: not possible;
	 * needed by devices whose memory the host cannot read if their programs dispatch (struct hspmd_device_traits). */
	int (*sum_rows)(struct hspmd_device *dev, void *const *to, const int64_t *first, const void *const *from, int64_t count,
	                int64_t elements, enum hspmd_dtype dtype, struct hspmd_error *err);
	/* Bytes of workspace that an operator needs for these args (data pointers unset). */
	size_t (*workspace)(struct hspmd_device *dev, enum hspmd_opcode op, const struct hspmd_kernel_args *args);
	int (*run)(struct hspmd_device *dev, enum hspmd_opcode op, const struct hspmd_kernel_args *args, struct hspmd_error *err);
	/* Like `run` for one after the other, in as few launches as possible; values that all must share (workspace, an optimizer's step)
	 * are taken from the first. NULL: would not be faster. */
	int (*run_batch)(struct hspmd_device *dev, enum hspmd_opcode op, const struct hspmd_kernel_args *args, int count,
	                 struct hspmd_error *err);
	/* Like run_batch, but beside what is asked of the device afterwards: the work begins when all that was asked before is done.
	 * `group`, below HSPMD_DEVICE_GROUPS, names it until the next call with the same number. synchronise waits for it, too. NULL: not
	 * possible. */
	int (*run_beside)(struct hspmd_device *dev, enum hspmd_opcode op, const struct hspmd_kernel_args *args, int count, int group,
	                  struct hspmd_error *err);
	/* What is asked afterwards begins when the group's latest work is done. If it is recorded, so does every replay: the latest then is
	 * what was asked for before the replay. */
	int (*wait_beside)(struct hspmd_device *dev, int group, struct hspmd_error *err);
	/* Like `run`, beside what is asked of the device afterwards until join_apart: the work begins when all asked before is done, that
	 * of several such calls in turn. `prepared` decides whether it does, or is run as by `run`. NULL: not possible. */
	int (*run_apart)(struct hspmd_device *dev, enum hspmd_opcode op, const struct hspmd_kernel_args *args, struct hspmd_error *err);
	/* What is asked afterwards begins when the work of all calls of run_apart is done. */
	int (*join_apart)(struct hspmd_device *dev, struct hspmd_error *err);
	/* Decides what calls with such args would otherwise decide or look up each time: algorithms, plans of libraries, limits of kernels.
	 * With the result as args' `prepared`, run and run_batch take no lock, search nothing and allocate nothing. It serves all calls
	 * whose args are the same but for the addresses of data (present as here, and aligned as well) and the numbers in attr that are
	 * only factors. The caller frees it before it closes the device. NULL: there is nothing to decide. */
	int (*prepare)(struct hspmd_device *dev, enum hspmd_opcode op, const struct hspmd_kernel_args *args, struct hspmd_prepared **made,
	               struct hspmd_error *err);
	void (*prepared_free)(struct hspmd_device *dev, struct hspmd_prepared *prepared); /* NULL is fine */
	int (*synchronise)(struct hspmd_device *dev, struct hspmd_error *err);
	/* Returns -1 and err if the device has failed for good: it does no more work, and nothing in its memory can be read again. Does not
	 * wait. NULL: a failure of the device is one of the process. */
	int (*check)(struct hspmd_device *dev, struct hspmd_error *err);
	/* How the device computes what it could compute in several ways: what it has measured, a line each, "KEY = CHOICE". Devices of one
	 * kind that choose alike give the same bits. The caller frees it. NULL: out of memory, or (the function) nothing is measured. */
	char *(*choices)(struct hspmd_device *dev);
	/* Takes over such lines; they count instead of the device's own choices, and nothing is measured for their keys. Lines that are not
	 * for it are left alone. While a program runs, no choice that it uses may become another. -1: out of memory. */
	int (*choose)(struct hspmd_device *dev, const char *choices);
	/* Calls of run(), zero(), copy_direct(), run_beside(), wait_beside(), run_apart() and join_apart() between capture_begin and
	 * capture_end are recorded instead of executed; replay executes them with the same buffers, as often as it is called. capture_end
	 * ends the recording also if a call in between failed. NULL: not possible. */
	int (*capture_begin)(struct hspmd_device *dev, struct hspmd_error *err);
	int (*capture_end)(struct hspmd_device *dev, struct hspmd_device_graph **captured, struct hspmd_error *err);
	int (*replay)(struct hspmd_device *dev, const struct hspmd_device_graph *captured, struct hspmd_error *err);
	/* Replays calls of run_beside, beside what is asked of the device afterwards. */
	int (*replay_beside)(struct hspmd_device *dev, const struct hspmd_device_graph *captured, struct hspmd_error *err);
	void (*graph_free)(struct hspmd_device *dev, struct hspmd_device_graph *captured); /* NULL is fine */
	/* Communication between such devices without host memory (runtime/device/communicator.h); NULL: none. */
	const struct hspmd_communicator_ops *communicators;
	/* Bytes of its memory that can still be allocated; SIZE_MAX, or NULL: nobody knows. */
	size_t (*free_memory)(struct hspmd_device *dev);
};

/* First member of every device's struct. */
struct hspmd_device {
	const struct hspmd_device_ops *ops;
};

/* Returns true if devices of a kind have a kernel for an operator that not all devices have (OP_FUSED, OP_FUSED_SUM, OP_TABLE). Needs no
 * such device, so that a program is the same on every machine that shows it. */
bool hspmd_device_has_kernel(enum hspmd_device_kind kind, enum hspmd_opcode opcode);

/* Finds out, from the workspace that the device asks for, which blocks of a matrix product's factors it packs (common/format/cluster.h).
 * All 0 if it packs none, or if its memory is not the host's: what such devices hold before they run a program is counted as their
 * context. */
struct hspmd_product_blocks;
void hspmd_device_product_blocks(struct hspmd_device *dev, struct hspmd_product_blocks *out);

/* to_host of `bytes` bytes (at most 64) from each of `count` addresses, one after another in `host`, as many at once as the device can. */
int hspmd_device_read_batch(struct hspmd_device *dev, void *host, const void *const *src, int count, size_t bytes, struct hspmd_error *err);

/* By name of the kind; some are modules that are loaded at the first call. NULL and err otherwise. */
const struct hspmd_device_ops *hspmd_device_find(const char *name, struct hspmd_error *err);

/* Adds a kind of device that is not in common/format/device_list.h (hspmd_device_kind_add). Returns the kind, or -1: the tables contradict
 * each other, or there are too many kinds. */
int hspmd_device_add(const struct hspmd_device_ops *ops, const struct hspmd_device_traits *traits);

/* Of each kind in the list, in its folder. */
#define HSPMD_DEVICE_DECLARE(kind, name, ...) const struct hspmd_device_ops *hspmd_device_##name(struct hspmd_error *err);
HSPMD_DEVICE_KINDS(HSPMD_DEVICE_DECLARE)

#endif
