/* SPDX-License-Identifier: Apache-2.0 */
/* Copies between pageable host memory and the device, through a ring of pinned pieces: the host goes on as soon as its bytes are in the ring. */
#include <stdlib.h>
#include <string.h>

#include "runtime/device/cuda/cuda.h"

#define PIECES 4
#define PIECE_BYTES ((size_t)4 << 20)

struct hspmd_cuda_staging {
	char *memory; /* pinned, PIECES * PIECE_BYTES */
	cudaEvent_t free[PIECES]; /* recorded when the piece's last copy was enqueued */
	int next;
};

int hspmd_cuda_staging_create(struct hspmd_cuda *cuda, struct hspmd_error *err)
{
	struct hspmd_cuda_staging *s = cuda->staging = calloc(1, sizeof *s);
	if (!s)
		return hspmd_fail_memory(err, "opening a CUDA device");
	cudaError_t status = cudaMallocHost((void **)&s->memory, PIECES * PIECE_BYTES);
	for (int i = 0; !status && i < PIECES; i++)
		status = cudaEventCreateWithFlags(&s->free[i], cudaEventDisableTiming);
	return status ? hspmd_cuda_failed(status, "pinned memory for copies", err) : 0;
}

void hspmd_cuda_staging_destroy(struct hspmd_cuda *cuda)
{
	struct hspmd_cuda_staging *s = cuda->staging;
	if (!s)
		return;
	for (int i = 0; i < PIECES; i++)
		if (s->free[i])
			cudaEventDestroy(s->free[i]);
	if (s->memory)
		cudaFreeHost(s->memory);
	free(s);
	cuda->staging = NULL;
}

int hspmd_cuda_upload(struct hspmd_cuda *cuda, void *dst, const void *host, size_t bytes, struct hspmd_error *err)
{
	struct hspmd_cuda_staging *s = cuda->staging;
	for (size_t at = 0; at < bytes;) {
		size_t n = bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES;
		char *piece = s->memory + (size_t)s->next * PIECE_BYTES;
		if (hspmd_cuda_await(cuda, s->free[s->next], err))
			return -1;
		memcpy(piece, (const char *)host + at, n);
		cudaError_t status = cudaMemcpyAsync((char *)dst + at, piece, n, cudaMemcpyHostToDevice, cuda->stream);
		if (!status)
			status = cudaEventRecord(s->free[s->next], cuda->stream);
		if (status)
			return hspmd_cuda_failed(status, "copying to the GPU", err);
		s->next = (s->next + 1) % PIECES;
		at += n;
	}
	return 0;
}

int hspmd_cuda_download(struct hspmd_cuda *cuda, void *host, const void *src, size_t bytes, struct hspmd_error *err)
{
	struct hspmd_cuda_staging *s = cuda->staging;
	size_t taken = 0; /* given to the device so far; up to PIECES pieces are on their way */
	for (size_t at = 0; at < bytes;) {
		while (taken < bytes && taken < at + PIECES * PIECE_BYTES) {
			size_t n = bytes - taken < PIECE_BYTES ? bytes - taken : PIECE_BYTES;
			int piece = (int)(taken / PIECE_BYTES % PIECES);
			cudaError_t status = cudaMemcpyAsync(s->memory + (size_t)piece * PIECE_BYTES, (const char *)src + taken, n, cudaMemcpyDeviceToHost,
							     cuda->stream);
			if (!status)
				status = cudaEventRecord(s->free[piece], cuda->stream);
			if (status)
				return hspmd_cuda_failed(status, "copying from the GPU", err);
			taken += n;
		}
		size_t n = bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES;
		int piece = (int)(at / PIECE_BYTES % PIECES);
		if (hspmd_cuda_await(cuda, s->free[piece], err))
			return -1;
		memcpy((char *)host + at, s->memory + (size_t)piece * PIECE_BYTES, n);
		at += n;
	}
	return 0;
}
