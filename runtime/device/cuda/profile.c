/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/device/cuda/profile.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BATCH 1024

struct hspmd_cuda_profile {
	int used; /* in the batch */
	enum hspmd_opcode op[BATCH];
	cudaEvent_t start[BATCH], end[BATCH];
	double seconds[HSPMD_OP_COUNT];
	long calls[HSPMD_OP_COUNT];
};

static const char *const names[HSPMD_OP_COUNT] = {
#define OP(opcode, name) [HSPMD_OP_##opcode] = #name,
#include "runtime/tensor/opcode_list.h"
};

struct hspmd_cuda_profile *hspmd_cuda_profile_open(void)
{
	const char *wanted = getenv("HSPMD_CUDA_PROFILE");
	struct hspmd_cuda_profile *p = wanted && !strcmp(wanted, "1") ? calloc(1, sizeof *p) : NULL;
	for (int i = 0; p && i < BATCH; i++)
		if (cudaEventCreate(&p->start[i]) || cudaEventCreate(&p->end[i])) {
			hspmd_cuda_profile_close(p);
			return NULL;
		}
	return p;
}

static void collect(struct hspmd_cuda_profile *p)
{
	for (int i = 0; i < p->used; i++) {
		float milliseconds = 0;
		if (cudaEventSynchronize(p->end[i]) || cudaEventElapsedTime(&milliseconds, p->start[i], p->end[i]))
			continue;
		p->seconds[p->op[i]] += milliseconds * 1e-3;
		p->calls[p->op[i]]++;
	}
	p->used = 0;
}

void hspmd_cuda_profile_start(struct hspmd_cuda_profile *p, enum hspmd_opcode op, cudaStream_t stream)
{
	if (!p)
		return;
	if (p->used == BATCH)
		collect(p);
	p->op[p->used] = op;
	cudaEventRecord(p->start[p->used], stream);
}

void hspmd_cuda_profile_end(struct hspmd_cuda_profile *p, cudaStream_t stream)
{
	if (p)
		cudaEventRecord(p->end[p->used++], stream);
}

void hspmd_cuda_profile_close(struct hspmd_cuda_profile *p)
{
	double total = 0;
	if (!p)
		return;
	collect(p);
	for (int op = 0; op < HSPMD_OP_COUNT; op++)
		total += p->seconds[op];
	for (int op = 0; op < HSPMD_OP_COUNT; op++)
		if (p->calls[op])
			fprintf(stderr, "%-16s %8ld calls %10.4f s %5.1f %%\n", names[op], p->calls[op], p->seconds[op],
			        total > 0 ? 100 * p->seconds[op] / total : 0);
	for (int i = 0; i < BATCH; i++) {
		if (p->start[i])
			cudaEventDestroy(p->start[i]);
		if (p->end[i])
			cudaEventDestroy(p->end[i]);
	}
	free(p);
}
