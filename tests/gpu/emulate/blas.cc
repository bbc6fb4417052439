/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products: see cublasLt.h. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vector>

#include "runtime/tensor/fp8.h"
#include "tests/gpu/emulate/counts.h"
#include "tests/gpu/emulate/cublasLt.h"
#include "tests/gpu/emulate/cuda_bf16.h"

extern "C" long emulate_counts[EMULATE_COUNTS]; /* runtime.cc */

struct emulate_blas {
	int open;
};
struct emulate_layout {
	cudaDataType_t type;
	uint64_t rows, columns;
	int64_t ld;
};
struct emulate_product {
	cublasOperation_t a = CUBLAS_OP_N, b = CUBLAS_OP_N;
	cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
	void *bias = NULL, *aux = NULL;
	const float *scale[2] = { NULL, NULL }; /* of FP8 operands; on the device */
	bool tf32 = false;
	int64_t aux_ld = 0;
	int32_t multiprocessors = 0; /* that it may use; 0: all */
};
struct emulate_preference {
	size_t workspace = 0;
};

#define MAGIC 0x616c676f72697468ull
#define WORKSPACE 64

/* Bytes that the second algorithm needs; the first needs none. */
static size_t second_workspace()
{
	const char *told = getenv("HSPMD_EMULATE_PRODUCT_WORKSPACE");
	return told ? strtoull(told, NULL, 10) : WORKSPACE;
}

static void count_lookup()
{
	__atomic_add_fetch(&emulate_counts[EMULATE_LOOKUPS], 1, __ATOMIC_RELAXED);
}

static double get(const void *data, cudaDataType_t type, size_t i)
{
	if (type == CUDA_R_8F_E4M3)
		return hspmd_e4m3_value(((const uint8_t *)data)[i]);
	if (type == CUDA_R_8F_E5M2)
		return hspmd_e5m2_value(((const uint8_t *)data)[i]);
	return type == CUDA_R_32F ? ((const float *)data)[i] : __bfloat162float(((const __nv_bfloat16 *)data)[i]);
}

static void put(void *data, cudaDataType_t type, size_t i, double value)
{
	if (type == CUDA_R_32F)
		((float *)data)[i] = (float)value;
	else
		((__nv_bfloat16 *)data)[i] = __float2bfloat16_rn((float)value);
}

/* Rounded to the 10 bits that tensor cores take. */
static double to_tf32(double value)
{
	float x = (float)value;
	uint32_t bits;
	memcpy(&bits, &x, sizeof bits);
	bits = (bits + 0xfffu + (bits >> 13 & 1)) & ~0x1fffu;
	memcpy(&x, &bits, sizeof bits);
	return x;
}

/* A matrix as doubles in the order in which it is read. Numbers of the outer index are `stride` apart. */
struct unfolded {
	size_t outer, inner, stride;
	std::vector<double> value;
};

/* Calls f with what returns element i of the data. */
template <typename F> static void with_elements(const void *data, cudaDataType_t type, F f)
{
	if (type == CUDA_R_8F_E4M3)
		f([=](size_t i) { return get(data, CUDA_R_8F_E4M3, i); });
	else if (type == CUDA_R_8F_E5M2)
		f([=](size_t i) { return get(data, CUDA_R_8F_E5M2, i); });
	else if (type == CUDA_R_32F)
		f([=](size_t i) { return get(data, CUDA_R_32F, i); });
	else
		f([=](size_t i) { return get(data, CUDA_R_16BF, i); });
}

/* Returns op(X), with the rows of X outside or its columns; the inner index is filled up with zeros to whole blocks. */
static unfolded unfold(const void *data, const emulate_layout &l, bool rows_outside, bool tf32, size_t block)
{
	unfolded u = { rows_outside ? l.rows : l.columns, rows_outside ? l.columns : l.rows, 0, {} };
	u.stride = (u.inner + block - 1) / block * block;
	u.value.resize(u.outer * u.stride);
	with_elements(data, l.type, [&](auto element) {
		for (size_t o = 0; o < u.outer; o++)
			for (size_t i = 0; i < u.inner; i++)
				u.value[o * u.stride + i] = rows_outside ? element(i * (size_t)l.ld + o) : element(o * (size_t)l.ld + i);
	});
	for (size_t i = 0; tf32 && i < u.value.size(); i++)
		u.value[i] = to_tf32(u.value[i]);
	return u;
}

static bool is_fp8(const emulate_layout &l)
{
	return l.type == CUDA_R_8F_E4M3 || l.type == CUDA_R_8F_E5M2;
}

/* As on Hopper: see the FP8 requirements of cublasLtMatmul. */
static bool fits_fp8(const emulate_product &p, const emulate_layout &a, const emulate_layout &b, const emulate_layout &d)
{
	return is_fp8(a) && is_fp8(b) && !(a.type == CUDA_R_8F_E5M2 && b.type == CUDA_R_8F_E5M2) && p.a == CUBLAS_OP_T &&
	       p.b == CUBLAS_OP_N && (a.rows | a.columns | b.columns | (uint64_t)a.ld | (uint64_t)b.ld | (uint64_t)d.ld) % 16 == 0 &&
	       p.scale[0] && p.scale[1] && (d.type == CUDA_R_16BF || d.type == CUDA_R_32F);
}

static bool fits(const emulate_product &p, const emulate_layout &a, const emulate_layout &b, const emulate_layout &d)
{
	uint64_t m = p.a == CUBLAS_OP_T ? a.columns : a.rows, k = p.a == CUBLAS_OP_T ? a.rows : a.columns;
	uint64_t n = p.b == CUBLAS_OP_T ? b.rows : b.columns, k2 = p.b == CUBLAS_OP_T ? b.columns : b.rows;
	bool types = is_fp8(a) || is_fp8(b) ? fits_fp8(p, a, b, d) : a.type == b.type && (d.type == a.type || d.type == CUDA_R_32F);
	return m == d.rows && n == d.columns && k == k2 && k && (uint64_t)a.ld >= a.rows && (uint64_t)b.ld >= b.rows &&
	       (uint64_t)d.ld >= d.rows && types;
}

static bool has(const emulate_product &p, int what)
{
	return ((int)p.epilogue & what) == what;
}

#define AUX 128 /* the bit of epilogues that read or write another matrix */
#define DGELU 64

static bool is_complete(const emulate_product &p, const emulate_layout &d)
{
	bool small = has(p, CUBLASLT_EPILOGUE_BIAS) || has(p, CUBLASLT_EPILOGUE_BGRADA) || has(p, CUBLASLT_EPILOGUE_BGRADB);
	return (!small || p.bias) && (!has(p, AUX) || (p.aux && p.aux_ld >= (int64_t)d.rows));
}

static double gelu(double x)
{
	return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

static double gelu_slope(double x)
{
	double t = tanh(0.7978845608028654 * (x + 0.044715 * x * x * x));
	return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * 0.7978845608028654 * (1 + 3 * 0.044715 * x * x);
}

/* Applies the epilogue to element (m, n) of D before it is written. */
static double finish(const emulate_product &p, const emulate_layout &d, size_t m, size_t n, double value)
{
	size_t beside = n * (size_t)p.aux_ld + m;
	if (has(p, CUBLASLT_EPILOGUE_BIAS))
		value += get(p.bias, d.type, m);
	if (has(p, DGELU))
		return value * gelu_slope(get(p.aux, d.type, beside));
	if (!has(p, CUBLASLT_EPILOGUE_GELU))
		return value;
	if (has(p, AUX))
		put(p.aux, d.type, beside, value);
	return gelu(value);
}

/* Sums over the depth, which is the outer index of A and the inner one of B. */
static void add_up(const unfolded &x, bool depth_outside, void *sums, cudaDataType_t type)
{
	for (size_t r = 0; r < (depth_outside ? x.inner : x.outer); r++) {
		double sum = 0;
		for (size_t i = 0; i < (depth_outside ? x.outer : x.inner); i++)
			sum += x.value[depth_outside ? i * x.stride + r : r * x.stride + i];
		put(sums, type, r, sum);
	}
}

#define BLOCK 8 /* sums that are computed side by side, each in the order of the depth: no bit depends on it */

static void multiply_block(const double *left, size_t stride, const double *right, size_t depth, double sums[BLOCK])
{
	typedef double two_doubles __attribute__((vector_size(16)));
	two_doubles sum[BLOCK / 2] = {};
	for (size_t i = 0; i < depth; i++) {
		two_doubles x[BLOCK / 2], y = { right[i], right[i] };
		memcpy(x, left + i * stride, sizeof x);
#pragma GCC unroll 4
		for (int j = 0; j < BLOCK / 2; j++)
			sum[j] += x[j] * y;
	}
	memcpy(sums, sum, sizeof sum);
}

static void multiply(const emulate_product &p, const emulate_layout &la, const emulate_layout &lb, const emulate_layout &ld, const void *a,
                     const void *b, float alpha, float beta, const void *c, void *d)
{
	if (is_fp8(la))
		alpha *= *p.scale[0] * *p.scale[1];
	unfolded left = unfold(a, la, p.a == CUBLAS_OP_T, p.tf32, BLOCK), right = unfold(b, lb, p.b == CUBLAS_OP_T, p.tf32, 1);
	for (size_t n = 0; n < ld.columns; n++)
		for (size_t first = 0; first < ld.rows; first += BLOCK) {
			double sums[BLOCK];
			multiply_block(&left.value[first], left.stride, &right.value[n * right.stride], left.outer, sums);
			for (size_t m = first; m < ld.rows && m < first + BLOCK; m++) {
				size_t at = n * (size_t)ld.ld + m;
				double value = alpha * sums[m - first] + (beta != 0 ? beta * get(c, ld.type, at) : 0);
				put(d, ld.type, at, finish(p, ld, m, n, value));
			}
		}
	if (has(p, CUBLASLT_EPILOGUE_BGRADA) || has(p, CUBLASLT_EPILOGUE_BGRADB))
		add_up(has(p, CUBLASLT_EPILOGUE_BGRADA) ? left : right, has(p, CUBLASLT_EPILOGUE_BGRADA), p.bias, ld.type);
}

extern "C" {

const char *cublasLtGetStatusString(cublasStatus_t status)
{
	return status == CUBLAS_STATUS_INVALID_VALUE ? "CUBLAS_STATUS_INVALID_VALUE" : "CUBLAS_STATUS_NOT_SUPPORTED";
}

size_t cublasLtGetVersion(void)
{
	return 1;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
	*handle = new emulate_blas{ 1 };
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
	delete handle;
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, cublasComputeType_t compute, cudaDataType_t scale)
{
	if (scale != CUDA_R_32F)
		return CUBLAS_STATUS_NOT_SUPPORTED;
	*desc = new emulate_product;
	(*desc)->tf32 = compute == CUBLAS_COMPUTE_32F_FAST_TF32;
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc)
{
	delete desc;
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute, const void *value,
                                              size_t size)
{
	void *to = attribute == CUBLASLT_MATMUL_DESC_TRANSA                 ? (void *)&desc->a
	           : attribute == CUBLASLT_MATMUL_DESC_TRANSB               ? (void *)&desc->b
	           : attribute == CUBLASLT_MATMUL_DESC_EPILOGUE             ? (void *)&desc->epilogue
	           : attribute == CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER ? (void *)&desc->aux
	           : attribute == CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD      ? (void *)&desc->aux_ld
	           : attribute == CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET      ? (void *)&desc->multiprocessors
	           : attribute == CUBLASLT_MATMUL_DESC_A_SCALE_POINTER      ? (void *)&desc->scale[0]
	           : attribute == CUBLASLT_MATMUL_DESC_B_SCALE_POINTER      ? (void *)&desc->scale[1]
	                                                                    : (void *)&desc->bias;
	bool small = attribute < CUBLASLT_MATMUL_DESC_BIAS_POINTER || attribute == CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET;
	if (size != (small ? 4 : sizeof(void *)))
		return CUBLAS_STATUS_INVALID_VALUE;
	memcpy(to, value, size);
	return desc->multiprocessors < 0 ? CUBLAS_STATUS_INVALID_VALUE : CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType_t type, uint64_t rows, uint64_t columns, int64_t ld)
{
	*layout = new emulate_layout{ type, rows, columns, ld };
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
	delete layout;
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference)
{
	*preference = new emulate_preference;
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
	delete preference;
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void *value, size_t size)
{
	if (size != (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES ? sizeof(size_t) : sizeof(uint32_t)))
		return CUBLAS_STATUS_INVALID_VALUE;
	if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
		memcpy(&preference->workspace, value, size);
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted, cublasLtMatmulHeuristicResult_t *found,
                                              int *count)
{
	*count = 0;
	count_lookup();
	/* Like the real cuBLASLt may, it refuses rows that do not begin on multiples of 16 bytes. */
	if (!fits(*desc, *a, *b, *d) || (a->type == CUDA_R_16BF && (a->ld | b->ld | d->ld) % 8))
		return CUBLAS_STATUS_NOT_SUPPORTED;
	const size_t need[] = { 0, second_workspace() };
	for (int i = 0; i < 2 && i < wanted && need[i] <= preference->workspace; i++) {
		found[i] = cublasLtMatmulHeuristicResult_t();
		found[i].algo.data[0] = MAGIC;
		found[i].algo.data[1] = (uint64_t)i;
		found[i].workspaceSize = need[i];
		++*count;
	}
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t *algo,
                                       cublasLtMatmulHeuristicResult_t *result)
{
	count_lookup();
	if (!fits(*desc, *a, *b, *d) || algo->data[0] != MAGIC || algo->data[1] > 1)
		return CUBLAS_STATUS_NOT_SUPPORTED;
	*result = cublasLtMatmulHeuristicResult_t();
	result->workspaceSize = algo->data[1] ? second_workspace() : 0;
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout, const void *beta,
                              const void *c, cublasLtMatrixLayout_t, void *d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t *algo, void *workspace, size_t workspace_bytes, cudaStream_t stream)
{
	emulate_own own;
	size_t need = algo->data[1] ? second_workspace() : 0;
	if (!handle->open || !fits(*desc, *a_layout, *b_layout, *d_layout) || algo->data[0] != MAGIC || !c || workspace_bytes < need ||
	    (need && !workspace) || !is_complete(*desc, *d_layout))
		return CUBLAS_STATUS_INVALID_VALUE;
	if (algo->data[1] == 1)
		__atomic_add_fetch(&emulate_counts[EMULATE_SECOND], 1, __ATOMIC_RELAXED);
	emulate_product p = *desc;
	emulate_layout la = *a_layout, lb = *b_layout, ld = *d_layout;
	float scale = *(const float *)alpha, keep = *(const float *)beta;
	emulate_enqueue(stream, [=] {
		if (need)
			memset(workspace, 0, need);
		multiply(p, la, lb, ld, a, b, scale, keep, c, d);
	});
	return CUBLAS_STATUS_SUCCESS;
}
}
