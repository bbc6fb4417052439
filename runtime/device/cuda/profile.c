/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/device/cuda/profile.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"

#define BATCH 1024

/* All calls of one operator on operands of the same types and shapes. */
struct row {
	char call[HSPMD_CUDA_CALL_TEXT];
	double seconds;
	long calls;
};

struct hspmd_cuda_profile {
	int used;     /* in the batch */
	bool started; /* false: the current operator is not timed */
	size_t row[BATCH];
	cudaEvent_t start[BATCH], end[BATCH];
	struct row *rows;
	size_t count, capacity;
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
		p->rows[p->row[i]].seconds += milliseconds * 1e-3;
		p->rows[p->row[i]].calls++;
	}
	p->used = 0;
}

/* Returns false if there is no memory for another row. */
static bool find_row(struct hspmd_cuda_profile *p, enum hspmd_opcode op, const struct hspmd_kernel_args *args, size_t *row)
{
	char call[HSPMD_CUDA_CALL_TEXT];
	hspmd_cuda_describe_call(op, args, call);
	for (*row = 0; *row < p->count; ++*row)
		if (!strcmp(p->rows[*row].call, call))
			return true;
	if (hspmd_array_grow(&p->rows, &p->capacity, p->count, sizeof *p->rows))
		return false;
	p->rows[p->count] = (struct row){ .calls = 0 };
	memcpy(p->rows[p->count++].call, call, sizeof call);
	return true;
}

void hspmd_cuda_profile_start(struct hspmd_cuda_profile *p, enum hspmd_opcode op, const struct hspmd_kernel_args *args, cudaStream_t stream)
{
	size_t row;
	if (!p)
		return;
	if (p->used == BATCH)
		collect(p);
	/* Before the first event, so that the operator's time on the GPU does not include this. */
	p->started = find_row(p, op, args, &row);
	if (!p->started)
		return;
	p->row[p->used] = row;
	cudaEventRecord(p->start[p->used], stream);
}

void hspmd_cuda_profile_end(struct hspmd_cuda_profile *p, cudaStream_t stream)
{
	if (p && p->started)
		cudaEventRecord(p->end[p->used++], stream);
}

static int dearest_first(const void *a, const void *b)
{
	const struct row *x = a, *y = b;
	return (x->seconds < y->seconds) - (x->seconds > y->seconds);
}

void hspmd_cuda_profile_close(struct hspmd_cuda_profile *p)
{
	double total = 0;
	if (!p)
		return;
	collect(p);
	for (size_t i = 0; i < p->count; i++)
		total += p->rows[i].seconds;
	if (p->count)
		qsort(p->rows, p->count, sizeof *p->rows, dearest_first);
	for (size_t i = 0; i < p->count; i++)
		fprintf(stderr, "%8ld calls %10.6f s %5.1f %% %s\n", p->rows[i].calls, p->rows[i].seconds,
		        total > 0 ? 100 * p->rows[i].seconds / total : 0, p->rows[i].call);
	for (int i = 0; i < BATCH; i++) {
		if (p->start[i])
			cudaEventDestroy(p->start[i]);
		if (p->end[i])
			cudaEventDestroy(p->end[i]);
	}
	free(p->rows);
	free(p);
}
