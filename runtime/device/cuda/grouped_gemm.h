/* SPDX-License-Identifier: Apache-2.0 */
/* Products of many matrices whose numbers of rows only the device knows (a mixture's experts, each with the tokens that chose it), on
 * tensor cores, in one launch for all: by grouped_gemm_wgmma.cu and grouped_fp8_wgmma.cu where the device has what they need, else by
 * grouped_gemm.cu. Rows are sorted by group. cuBLASLt of CUDA 13.0 has no such product, and cuBLAS (cublasGemmGroupedBatchedEx) wants the
 * numbers of rows on the host, which would have to wait for them. */
#ifndef HSPMD_CUDA_GROUPED_GEMM_H
#define HSPMD_CUDA_GROUPED_GEMM_H

#include "runtime/device/cuda/kernel.h"

struct hspmd_cuda_groups {
	const int32_t *first; /* [count + 1], on the device: where a group's rows begin; the last: where they end */
	int64_t count, most;  /* groups; upper bound of the rows of all */
};

/* The first layer of experts: gate and up of the rows, and their activation. Types are BF16. */
struct hspmd_cuda_gate_up {
	const void *gate, *up;   /* [group][n][depth] */
	const void *biases[2];   /* [group][n]; NULL: none */
	void *act_gate, *act_up; /* [row][n]; written if act is NULL */
	void *act;
	int activation;
	float limit;
};

/* Inverse scales of FP8 operands, on the device: of both operands of one product, and of another. */
struct hspmd_cuda_inverse_scales {
	const float *left[2], *right[2];
};

/* Codes that products over rows read: of each column one after the other, those of a group from a multiple of HSPMD_TURNED_ROWS on, with
 * zeros up to the next one's. */
#define HSPMD_CUDA_TURNED 3 /* most that are turned at once */
struct hspmd_cuda_turned {
	const void *from; /* [row][columns] */
	void *to;         /* [columns][hspmd_cuda_grouped_turned_rows()] */
	int64_t columns;  /* multiple of 16 */
};

#ifdef __cplusplus
extern "C" {
#endif

/* Returns true if these products can be computed here: BF16, rows of whole 16 bytes. All buffers begin on 16 bytes. */
bool hspmd_cuda_grouped_fits(enum hspmd_dtype dtype, int64_t n, int64_t depth);
/* Lets the kernels have the shared memory that they need; once per device. 0 or -1 and err. */
int hspmd_cuda_grouped_prepare(struct hspmd_cuda *cuda, struct hspmd_error *err);

/* C[row][n] = sum over k of A[row][k] B(k, n), in BF16, rounded once, where B is that of the row's group g: if transposed
 * b[(g * n + n) * depth + k], else b[(g * depth + k) * n + n]. a[1], b[1] NULL: none; else the product of the two is added. */
void hspmd_cuda_grouped_rows(struct hspmd_cuda *cuda, const struct hspmd_cuda_groups *groups, const void *const a[2],
                             const void *const b[2], void *c, int64_t n, int64_t depth, bool transposed);
/* C[g][m][n] (+)= sum over the rows of group g of left[row][m] right[row][n], in the order of the rows; C in F32. */
void hspmd_cuda_grouped_grad(struct hspmd_cuda *cuda, const struct hspmd_cuda_groups *groups, const void *left, const void *right, float *c,
                             int64_t m, int64_t n, bool accumulate);

/* The same by products of warp-groups, for compute capability 9.0 alone. False, and nothing is enqueued: the driver refuses to describe the
 * matrices. */
int hspmd_cuda_grouped_wgmma_prepare(struct hspmd_error *err);
bool hspmd_cuda_grouped_wgmma_rows(struct hspmd_cuda *cuda, const struct hspmd_cuda_groups *groups, const void *const a[2],
                                   const void *const b[2], void *c, int64_t n, int64_t depth, bool transposed);
/* Two products of the same rows, each rounded once, and once more after its bias is added, and then what follows. */
bool hspmd_cuda_grouped_wgmma_gate_up(struct hspmd_cuda *cuda, const struct hspmd_cuda_groups *groups, const void *rows, int64_t n,
                                      int64_t depth, const struct hspmd_cuda_gate_up *p);
bool hspmd_cuda_grouped_wgmma_grad(struct hspmd_cuda *cuda, const struct hspmd_cuda_groups *groups, const void *left, const void *right,
                                   float *c, int64_t m, int64_t n, bool accumulate);

int hspmd_cuda_grouped_fp8_prepare(struct hspmd_error *err);
/* Returns true if there are products of FP8 codes. */
bool hspmd_cuda_grouped_fp8_fits(const struct hspmd_cuda *cuda, int64_t n, int64_t depth);
/* The same products of FP8 codes: `a` in E4M3, or in E5M2 if a_e5m2, and `b` in E4M3, transposed. Results are multiplied by the inverse
 * scales of their operands. Of gate and up, act is written in E4M3 with the scale *act_scale. */
bool hspmd_cuda_grouped_fp8_rows(struct hspmd_cuda *cuda, const struct hspmd_cuda_groups *groups, const void *const a[2],
                                 const void *const b[2], const struct hspmd_cuda_inverse_scales *scales, bool a_e5m2, void *c, int64_t n,
                                 int64_t depth);
bool hspmd_cuda_grouped_fp8_gate_up(struct hspmd_cuda *cuda, const struct hspmd_cuda_groups *groups, const void *rows, int64_t n,
                                    int64_t depth, const struct hspmd_cuda_inverse_scales *scales, const struct hspmd_cuda_gate_up *p,
                                    const float *act_scale);
/* Returns how many codes a column of turned codes has, the zeros between groups included. */
int64_t hspmd_cuda_grouped_turned_rows(int64_t most, int64_t groups);
/* Turns the codes of `count` tensors of the same rows, in one launch. */
void hspmd_cuda_grouped_fp8_turn(struct hspmd_cuda *cuda, const struct hspmd_cuda_groups *groups, const struct hspmd_cuda_turned *tensors,
                                 int count);
/* As hspmd_cuda_grouped_grad, of turned codes: `left` [m] in E5M2, `right` [n] in E4M3. */
bool hspmd_cuda_grouped_fp8_grad(struct hspmd_cuda *cuda, const struct hspmd_cuda_groups *groups, const void *left, const void *right,
                                 const struct hspmd_cuda_inverse_scales *scales, float *c, int64_t m, int64_t n, bool accumulate);

#ifdef __cplusplus
}
#endif

/* Lets `count` kernels have so much shared memory. */
static inline int hspmd_cuda_grouped_allow(const void *const *kernels, size_t count, size_t bytes, struct hspmd_error *err)
{
	for (size_t i = 0; i < count; i++) {
		cudaError_t status = allow_shared(kernels[i], bytes);
		if (status)
			return hspmd_cuda_failed(status, "shared memory of grouped products", err);
	}
	return 0;
}

#endif
