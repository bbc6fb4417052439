/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA device: what its host files (C) and its kernel files (.cu) share. F32, and BF16 with statistics and gradients of parameters in
 * F32.
 *
 * Everything a device does goes to one stream in the order it is asked for, so kernels and copies need no events among themselves; but
 * groups have streams of their own (runtime/comm/nccl), and so has what is read beside the kernels (staging.c). All of it is a loadable
 * module of its own (load.c finds it), so that a program without it needs no CUDA library. The kernel files keep to what tests/gpu/emulate
 * can run on a CPU: launches by LAUNCH, dynamic shared memory by DYNAMIC_SHARED, tensor cores and the like by the wrappers of kernel.h. */
#ifndef HSPMD_CUDA_CUDA_H
#define HSPMD_CUDA_CUDA_H

#include <cuda_runtime.h>
#include <stdlib.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "runtime/device/cuda/module.h"
#include "runtime/tensor/opcode_list.h"

struct hspmd_cuda_blas;
struct hspmd_cuda_dnn;
struct hspmd_cuda_communicators;
struct hspmd_cuda_profile;
struct hspmd_cuda_staging;

struct hspmd_cuda {
	struct hspmd_device base;
	int index, multiprocessors;
	char model[96]; /* "sm90-132-NVIDIA H200": what measurements hold for */
	cudaStream_t stream;
	void *green_context; /* the green context that stream is of; NULL: the whole GPU */
	cudaEvent_t mark;    /* for waits for the whole stream */
	struct hspmd_cuda_blas *blas;
	struct hspmd_cuda_dnn *dnn;
	struct hspmd_cuda_staging *staging, *concurrent_staging;
	struct hspmd_cuda_communicators *communicators; /* the groups it is in (runtime/comm/nccl) */
	/* Returns -1 and err if communication under way on the GPU has failed, takes too long or was cancelled; asked while waiting. */
	int (*check)(struct hspmd_cuda *cuda, struct hspmd_error *err);
	struct hspmd_cuda_profile *profile;             /* NULL: nobody asked */
};

struct hspmd_cuda_kernel {
	/* Enqueue; errors of launches are asked for by the caller. */
	int (*run)(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *err);
	size_t (*workspace)(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args); /* NULL: needs none */
	/* Many calls at once, as if one after the other; with the workspace of any of them. NULL: one after the other. */
	int (*run_batch)(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, int count, struct hspmd_error *err);
};

#define HSPMD_CUDA_DECLARE(opcode, name) extern const struct hspmd_cuda_kernel hspmd_cuda_##name;
HSPMD_OPS(HSPMD_CUDA_DECLARE)

/* fill.cu: as copy_box of device.h, but without the paths that are plain copies of memory. */
int hspmd_cuda_copy_box(struct hspmd_cuda *cuda, void *dst, const struct hspmd_box *dst_box, const void *src,
                        const struct hspmd_box *src_box, const struct hspmd_box *part, enum hspmd_dtype dtype, bool add,
                        struct hspmd_error *err);

/* column_sum.cu: sums[n] (+)= the sum of the rows of x[rows, n]; workspace of hspmd_cuda_column_sum_workspace bytes. */
void hspmd_cuda_column_sum(struct hspmd_cuda *cuda, const struct hspmd_view *x, int64_t rows, int64_t n, float *sums, bool accumulate,
                           void *workspace);
/* sums[n] += more[n] */
void hspmd_cuda_add_sums(struct hspmd_cuda *cuda, float *sums, const float *more, int64_t n);
size_t hspmd_cuda_column_sum_workspace(const struct hspmd_cuda *cuda, int64_t rows, int64_t n);

/* ---- host memory on its way (staging.c) */

int hspmd_cuda_staging_create(struct hspmd_cuda *cuda, struct hspmd_error *err);
void hspmd_cuda_staging_destroy(struct hspmd_cuda *cuda);
/* Copy from pageable memory, which may be changed as soon as this returns; no wait as long as the ring has room. */
int hspmd_cuda_upload(struct hspmd_cuda *cuda, void *dst, const void *host, size_t bytes, struct hspmd_error *err);
/* Done on return. */
int hspmd_cuda_download(struct hspmd_cuda *cuda, void *host, const void *src, size_t bytes, struct hspmd_error *err);
int hspmd_cuda_download_batch(struct hspmd_cuda *cuda, void *host, const void *const *src, int count, size_t bytes,
                              struct hspmd_error *err);
int hspmd_cuda_download_concurrent(struct hspmd_cuda *cuda, void *host, const void *src, size_t bytes, struct hspmd_error *err);

/* Wait on the host for what an event was recorded behind; where communication under way on the GPU has failed, takes too long or was called
 * off, -1 and err. */
int hspmd_cuda_event_wait(struct hspmd_cuda *cuda, cudaEvent_t event, struct hspmd_error *err);

size_t hspmd_cuda_dtype_bytes(enum hspmd_dtype dtype);

/* An environment variable; if it is not set, the variable by which earlier versions called it. */
static inline const char *hspmd_cuda_getenv(const char *name, const char *old_name)
{
	const char *value = getenv(name);
	return value ? value : getenv(old_name);
}

/* A CUDA call that failed: -1 and err "what: why". */
int hspmd_cuda_failed(cudaError_t status, const char *what, struct hspmd_error *err);

/* ---- shapes, as the kernels see them */

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

static inline int64_t hspmd_cuda_elements(const struct hspmd_view *v)
{
	return hspmd_cuda_row_count(v) * hspmd_cuda_row_length(v);
}

#ifdef __cplusplus
}
#endif

#endif
