/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products by cuBLASLt. Of the algorithms that its heuristics name for a shape the fastest is taken, by measurement when a program
 * with that shape is built (never inside a step), and remembered: in memory, and in a file so that the next run takes the same one and
 * gives the same bits.
 *
 * Environment: HSPMD_CUDA_TUNE=0 takes the heuristics' first without measuring; HSPMD_CUDA_CACHE names the file's folder (default
 * $XDG_CACHE_HOME/hspmd or ~/.cache/hspmd; empty: no file); HSPMD_CUDA_TF32=1 lets products of F32 use TF32. */
#ifndef HSPMD_CUDA_GEMM_H
#define HSPMD_CUDA_GEMM_H

#include "runtime/device/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What is done with a product before it is written. */
enum hspmd_epilogue {
	HSPMD_EPILOGUE_NONE,
	HSPMD_EPILOGUE_GELU,      /* tanh form; if has_aux, `aux` receives the GELU input (CUBLASLT_EPILOGUE_GELU_AUX) */
	HSPMD_EPILOGUE_GELU_GRAD, /* D is the gradient of the GELU input in `aux` */
	HSPMD_EPILOGUE_BGRAD_A,   /* `bgrad` receives the sums of op(A) or op(B) over k, of d's type: of m or n elements */
	HSPMD_EPILOGUE_BGRAD_B,
};

/* Row-major D[m, n] (+)= op(A) op(B) (+ bias[n]) (+ residual): A is [m, k], or [k, m] when transposed; B is [k, n], or [n, k] when
 * transposed. No padding between rows. */
struct hspmd_cuda_gemm {
	int64_t m, n, k;
	const void *a, *b;
	void *d;
	bool trans_a, trans_b, accumulate, has_bias, has_residual, has_aux;
	const void *bias;     /* of d's type, as the three that follow */
	const void *residual; /* [m, n]; may be d */
	void *beside;         /* [m, n] */
	void *bgrad;
	enum hspmd_epilogue epilogue;  /* but for PLAIN only where hspmd_cuda_gemm_exists */
	enum hspmd_dtype type, d_type; /* of a and b; of d: the same, or F32 for BF16 */
};

int hspmd_cuda_blas_create(struct hspmd_cuda *cuda, struct hspmd_error *err);
void hspmd_cuda_blas_destroy(struct hspmd_cuda *cuda);
/* Finds the algorithm for products like this one (pointers are not looked at); the workspace that it needs. */
size_t hspmd_cuda_gemm_workspace(struct hspmd_cuda *cuda, const struct hspmd_cuda_gemm *p);
/* Has cuBLASLt an algorithm for it? */
bool hspmd_cuda_gemm_exists(struct hspmd_cuda *cuda, const struct hspmd_cuda_gemm *p);
int hspmd_cuda_gemm_run(struct hspmd_cuda *cuda, const struct hspmd_cuda_gemm *p, void *workspace, size_t workspace_bytes,
                        struct hspmd_error *err);
/* gemm_fallback.cu: of any sizes, slowly; hspmd_cuda_gemm_run takes it where cuBLASLt has no algorithm. */
int hspmd_cuda_gemm_fallback(struct hspmd_cuda *cuda, const struct hspmd_cuda_gemm *p, struct hspmd_error *err);

#ifdef __cplusplus
}
#endif

#endif
