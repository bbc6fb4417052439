/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA device: what its host files (C) and its kernel files (.cu) share. It computes in F32, and in BF16 with statistics and gradients
 * of parameters in F32.
 *
 * All work of a device goes to one stream in the order of the calls, so kernels and copies need no events among themselves. Exceptions:
 * communicators have streams of their own (nccl/communicator.c), and so have reads that run concurrently with the kernels (staging.c), and
 * updates that run beside the next step (run_beside of device.h), and products beside other operators (run_apart). The device is a
 * loadable module (load.c finds it), so that a program that does not use it needs no CUDA library. The kernel files use only what
 * tests/gpu/emulate can run on a CPU: LAUNCH for launches, DYNAMIC_SHARED for dynamic shared memory, and the wrappers of kernel.h and mma.h
 * for tensor cores and the like. */
#ifndef HSPMD_CUDA_CUDA_H
#define HSPMD_CUDA_CUDA_H

#include <cuda_runtime.h>
#include <stdlib.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "runtime/device/cuda/module.h"

struct hspmd_cuda_blas;
struct hspmd_cuda_dnn;
struct hspmd_cuda_communicators;
struct hspmd_cuda_profile;
struct hspmd_cuda_staging;

struct hspmd_cuda {
	struct hspmd_device base;
	int index, multiprocessors;
	char model[96]; /* "sm90-132-NVIDIA H200": measurements hold for this */
	cudaStream_t stream;
	cudaStream_t beside;                         /* for work beside that of `stream` (run_beside); NULL: there was none yet */
	cudaEvent_t fork, done[HSPMD_DEVICE_GROUPS]; /* fork: where such work began; done: where each group ended */
	int last_beside;                             /* the group asked for last, whose end is the end of all; -1: there was none yet */
	cudaStream_t copies;                         /* of copy_beside; NULL: there was none yet */
	cudaEvent_t copy_fork, copied[HSPMD_DEVICE_COPIES]; /* copy_fork: where a copy may begin; copied: where each has ended */
	int last_copy; /* the number of the last copy, whose end is the end of all; -1: there was none yet */
	cudaStream_t apart;                 /* of run_apart; NULL: there was none yet */
	cudaEvent_t apart_fork, apart_done; /* where such work may begin, and where it has ended */
	bool is_apart;                      /* such work was asked for, and nothing waits for it yet */
	bool capturing;
	int captured_beside; /* while capturing: the last group so far; -1: none */
	void *green_context; /* the green context that owns stream; NULL: the whole GPU */
	cudaEvent_t mark;    /* for waiting for the whole stream */
	struct hspmd_cuda_blas *blas;
	struct hspmd_cuda_dnn *dnn;
	struct hspmd_cuda_staging *staging, *concurrent_staging;
	struct hspmd_cuda_communicators *communicators; /* the device's communicators (nccl/) */
	/* Returns -1 and err if communication in progress on the GPU has failed, takes too long or was cancelled; called while waiting. */
	int (*check)(struct hspmd_cuda *cuda, struct hspmd_error *err);
	struct hspmd_cuda_profile *profile; /* NULL: profiling is off */
	void *lists;                        /* of sum_rows; NULL: there were none yet */
	size_t list_bytes;
	bool wgmma;      /* it has the instructions of wgmma.h, and HSPMD_CUDA_WGMMA=0 does not forbid them */
	int64_t attention_cached; /* bytes that attention's blocks of the same time should read again and again from the L2 cache */
	bool check_each; /* HSPMD_CUDA_CHECK=1: wait after every operator, so that a failure names its operator */
};

/* (device.h) An entry of choice[] is what a product (gemm.h) or an attention (attention_desc.h) has found for its shape; such choices
 * live as long as the device. */
struct hspmd_prepared {
	enum hspmd_opcode op;
	size_t workspace;      /* bytes that a call needs */
	bool apart;            /* run_apart runs it beside what follows */
	const void *choice[2]; /* which is what: the kernel's own */
};

struct hspmd_cuda_kernel {
	/* Enqueues the work; the caller checks for launch errors. */
	int (*run)(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *err);
	size_t (*workspace)(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args); /* NULL: needs none */
	/* Performs many calls at once, with the same effect as one after the other; the workspace is large enough for any one of them.
	 * NULL: the caller runs them one after the other. */
	int (*run_batch)(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, int count, struct hspmd_error *err);
	/* Makes the choices of such calls; `run` takes them from args->prepared if that is set. NULL: there are none. */
	int (*prepare)(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_prepared *to, struct hspmd_error *err);
};

#define OP(opcode, name) extern const struct hspmd_cuda_kernel hspmd_cuda_##name;
#include "runtime/tensor/opcode_list.h"

/* fill.cu: like copy_box of device.h, but without the special cases that are plain memory copies. */
int hspmd_cuda_copy_box(struct hspmd_cuda *cuda, void *dst, const struct hspmd_box *dst_box, const void *src,
                        const struct hspmd_box *src_box, const struct hspmd_box *part, enum hspmd_dtype dtype, bool add,
                        struct hspmd_error *err);

/* fill.cu: sum_rows of device.h. `lists`: to, from and first, on the device. */
void hspmd_cuda_sum_rows(struct hspmd_cuda *cuda, const void *lists, int64_t count, int64_t addends, int64_t elements,
                         enum hspmd_dtype dtype);

/* fill.cu: moves as many bytes as an operator that is bound by memory, read and written ones together, between two buffers of so much room,
 * over and over; to measure with. */
void hspmd_cuda_move_bytes(struct hspmd_cuda *cuda, void *to, const void *from, size_t room, int64_t bytes);

/* column_sum.cu: sums[n] = the sum of the rows of x[rows, n], which may be padded, added to sums[n] if accumulate; needs
 * hspmd_cuda_column_sum_workspace bytes of workspace. */
void hspmd_cuda_column_sum(struct hspmd_cuda *cuda, const struct hspmd_view *x, int64_t rows, int64_t n, float *sums, bool accumulate,
                           void *workspace);
/* For each of a few vectors: sums[n] = parts[0][n] + parts[1][n] + ... + parts[count - 1][n] in an order that depends on count alone, added
 * to sums[n] if accumulate. */
#define HSPMD_CUDA_PARTS_MOST 2
struct hspmd_cuda_parts {
	const float *parts;
	float *sums;
	bool accumulate;
};
void hspmd_cuda_add_parts(struct hspmd_cuda *cuda, const struct hspmd_cuda_parts *of, int vectors, int64_t count, int64_t n);
size_t hspmd_cuda_column_sum_workspace(const struct hspmd_cuda *cuda, int64_t rows, int64_t n);

/* ---- work beside other work within a step (apart.c) */

/* Implement run_apart and join_apart of device.h. */
int hspmd_cuda_run_apart(struct hspmd_cuda *cuda, enum hspmd_opcode op, const struct hspmd_kernel_args *args, struct hspmd_error *err);
int hspmd_cuda_join_apart(struct hspmd_cuda *cuda, struct hspmd_error *err);
/* Returns true if what is prepared may be run so. */
bool hspmd_cuda_can_run_apart(const struct hspmd_cuda *cuda);
/* Create cuda->apart, the stream of such work, and its events, if they are not there yet; and destroy them. */
cudaError_t hspmd_cuda_apart_create(struct hspmd_cuda *cuda);
void hspmd_cuda_apart_destroy(struct hspmd_cuda *cuda);
/* What is asked of cuda->apart from now on begins when all that was asked of cuda->stream is done; and the other way round. */
cudaError_t hspmd_cuda_apart_fork(const struct hspmd_cuda *cuda);
cudaError_t hspmd_cuda_apart_join(const struct hspmd_cuda *cuda);

/* ---- copies to and from host memory (staging.c) */

int hspmd_cuda_staging_create(struct hspmd_cuda *cuda, struct hspmd_error *err);
void hspmd_cuda_staging_destroy(struct hspmd_cuda *cuda);
/* Copies from pageable memory, which the caller may change as soon as this returns. Does not block as long as the ring has free pieces. */
int hspmd_cuda_upload(struct hspmd_cuda *cuda, void *dst, const void *host, size_t bytes, struct hspmd_error *err);
/* Implement copy_beside and wait_copy of device.h (copy_beside.c). */
int hspmd_cuda_copy_beside(struct hspmd_cuda *cuda, void *dst, const void *src, size_t bytes, int number, struct hspmd_error *err);
int hspmd_cuda_wait_copy(struct hspmd_cuda *cuda, int number, struct hspmd_error *err);
void hspmd_cuda_copies_destroy(struct hspmd_cuda *cuda);
/* From memory of the host that is pinned, or of the device; does not wait. */
int hspmd_cuda_copy_direct(struct hspmd_cuda *cuda, void *dst, const void *src, size_t bytes, struct hspmd_error *err);
/* These return when the copy is complete. */
int hspmd_cuda_download(struct hspmd_cuda *cuda, void *host, const void *src, size_t bytes, struct hspmd_error *err);
int hspmd_cuda_download_batch(struct hspmd_cuda *cuda, void *host, const void *const *src, int count, size_t bytes,
                              struct hspmd_error *err);
int hspmd_cuda_download_concurrent(struct hspmd_cuda *cuda, void *host, const void *src, size_t bytes, struct hspmd_error *err);

/* Block the host until `event`, or all work of the device's stream, is done. Return -1 and err if communication in progress on the GPU has
 * failed, takes too long or was called off; if work on the GPU has failed; and after 600 s (environment HSPMD_CUDA_WAIT_S). The second does
 * not check communication: threads other than the device's call it. */
int hspmd_cuda_event_wait(struct hspmd_cuda *cuda, cudaEvent_t event, struct hspmd_error *err);
int hspmd_cuda_event_wait_alone(struct hspmd_cuda *cuda, cudaEvent_t event, struct hspmd_error *err);
int hspmd_cuda_stream_wait(struct hspmd_cuda *cuda, struct hspmd_error *err);

size_t hspmd_cuda_dtype_bytes(enum hspmd_dtype dtype);

/* Returns an environment variable; if it is not set, the variable that earlier versions used for the same purpose. */
static inline const char *hspmd_cuda_getenv(const char *name, const char *old_name)
{
	const char *value = getenv(name);
	return value ? value : getenv(old_name);
}

/* Writes an operator with its operands' types and shapes, such as "linear bf16[2,128,768] bf16[3072,768] -> bf16[2,128,3072]"; what does
 * not fit is cut off. */
#define HSPMD_CUDA_CALL_TEXT 256
void hspmd_cuda_describe_call(enum hspmd_opcode op, const struct hspmd_kernel_args *args, char text[HSPMD_CUDA_CALL_TEXT]);

/* Reports a failed CUDA call: returns -1 and sets err to "what: why". */
int hspmd_cuda_failed(cudaError_t status, const char *what, struct hspmd_error *err);

/* ---- shapes as the kernels see them */

static inline int64_t hspmd_cuda_row_length(const struct hspmd_view *v)
{
	return v->rank ? v->shape[v->rank - 1] : 1;
}

static inline int64_t hspmd_cuda_row_count(const struct hspmd_view *v)
{
	int64_t n = 1;
	for (int d = 0; d + 1 < v->rank; d++)
		n *= v->shape[d];
	return n;
}

/* Elements from one row to the next. */
static inline int64_t hspmd_cuda_row_stride(const struct hspmd_view *v)
{
	return v->row_stride ? v->row_stride : hspmd_cuda_row_length(v);
}

static inline int64_t hspmd_cuda_elements(const struct hspmd_view *v)
{
	return hspmd_cuda_row_count(v) * hspmd_cuda_row_length(v);
}

#ifdef __cplusplus
}
#endif

#endif
