/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/device/cpu/kernel.h"

static struct matrix matrix_of(const struct hspmd_view *v, bool transposed)
{
	int64_t columns = v->shape[v->rank - 1];
	return transposed ? (struct matrix){ v->data, 1, columns } : (struct matrix){ v->data, columns, 1 };
}

static void matmul(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	const struct hspmd_view *a = &args->in[0], *b = &args->in[1], *y = &args->out[0];
	int64_t m = y->shape[y->rank - 2], n = y->shape[y->rank - 1], k = a->shape[a->rank - (args->attr->kind & 1 ? 2 : 1)], count = 1;
	struct gemm p = { .m = m, .n = n, .k = k, .c = y->data, .ldc = n, .accumulate = y->accumulate };
	p.a = matrix_of(a, args->attr->kind & 1);
	p.b = matrix_of(b, args->attr->kind & 2);
	for (int d = 0; d < y->rank - 2; d++)
		count *= y->shape[d];
	for (int64_t i = 0; i < count; i++, p.a.data += m * k, p.b.data += k * n, p.c += m * n)
		LOCAL(gemm)(cpu->pool, &p, args->workspace);
}

static size_t workspace(const struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	const struct hspmd_view *a = &args->in[0], *y = &args->out[0];
	return LOCAL(gemm_workspace)(hspmd_thread_pool_threads(cpu->pool), y->shape[y->rank - 1],
	                             a->shape[a->rank - (args->attr->kind & 1 ? 2 : 1)]);
}

const struct hspmd_cpu_kernel LOCAL(matmul) = { matmul, workspace };
