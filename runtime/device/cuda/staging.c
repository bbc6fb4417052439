/* SPDX-License-Identifier: Apache-2.0 */
/* Copies between pageable host memory and the device, through rings of pinned pieces. One ring uses the device's stream; the host continues
 * as soon as its bytes are in the ring. The other has a stream of its own, for copies that run concurrently with the kernels.
 *
 * Copies to the device stay on its stream: the last operator of one pass still reads the memory that the next pass's inputs are copied to,
 * so a separate stream would have to wait for all of the pass; and a second buffer on the device would cost, for the copy from it, as much
 * as it saves. Data read back is a result that the host waits for. */
#include <stdlib.h>
#include <string.h>

#include "runtime/device/cuda/cuda.h"

#define PIECES 16
#define PIECE_BYTES ((size_t)1 << 20)

struct hspmd_cuda_staging {
	cudaStream_t stream, own; /* own: NULL, or the same as stream, used by threads other than the device's */
	char *memory;             /* pinned, PIECES * PIECE_BYTES */
	cudaEvent_t free[PIECES]; /* recorded after the piece's last copy was enqueued */
	int next;
};

static int create(struct hspmd_cuda *cuda, struct hspmd_cuda_staging **out, bool concurrent, struct hspmd_error *err)
{
	struct hspmd_cuda_staging *s = *out = calloc(1, sizeof *s);
	cudaError_t status = cudaSuccess;
	if (!s)
		return hspmd_fail_memory(err, "opening a CUDA device");
	if (concurrent)
		status = cudaStreamCreateWithFlags(&s->own, cudaStreamNonBlocking);
	s->stream = concurrent ? s->own : cuda->stream;
	if (!status)
		status = cudaMallocHost((void **)&s->memory, PIECES * PIECE_BYTES);
	for (int i = 0; !status && i < PIECES; i++)
		status = cudaEventCreateWithFlags(&s->free[i], cudaEventDisableTiming);
	return status ? hspmd_cuda_failed(status, "pinned memory for copies", err) : 0;
}

static void destroy(struct hspmd_cuda_staging **at)
{
	struct hspmd_cuda_staging *s = *at;
	if (!s)
		return;
	for (int i = 0; i < PIECES; i++)
		if (s->free[i])
			cudaEventDestroy(s->free[i]);
	if (s->own)
		cudaStreamDestroy(s->own);
	if (s->memory)
		cudaFreeHost(s->memory);
	free(s);
	*at = NULL;
}

int hspmd_cuda_staging_create(struct hspmd_cuda *cuda, struct hspmd_error *err)
{
	return create(cuda, &cuda->staging, false, err) || create(cuda, &cuda->concurrent_staging, true, err) ? -1 : 0;
}

void hspmd_cuda_staging_destroy(struct hspmd_cuda *cuda)
{
	destroy(&cuda->staging);
	destroy(&cuda->concurrent_staging);
}

/* Only the device's thread may check the communicators; a concurrent copy waits for no other member. */
static int await_piece(struct hspmd_cuda *cuda, struct hspmd_cuda_staging *s, int piece, struct hspmd_error *err)
{
	return s->own ? hspmd_cuda_event_wait_alone(cuda, s->free[piece], err) : hspmd_cuda_event_wait(cuda, s->free[piece], err);
}

int hspmd_cuda_upload(struct hspmd_cuda *cuda, void *dst, const void *host, size_t bytes, struct hspmd_error *err)
{
	struct hspmd_cuda_staging *s = cuda->staging;
	for (size_t at = 0; at < bytes;) {
		size_t n = bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES;
		char *piece = s->memory + (size_t)s->next * PIECE_BYTES;
		if (await_piece(cuda, s, s->next, err))
			return -1;
		memcpy(piece, (const char *)host + at, n);
		cudaError_t status = cudaMemcpyAsync((char *)dst + at, piece, n, cudaMemcpyHostToDevice, s->stream);
		if (!status)
			status = cudaEventRecord(s->free[s->next], s->stream);
		if (status)
			return hspmd_cuda_failed(status, "copying to the GPU", err);
		s->next = (s->next + 1) % PIECES;
		at += n;
	}
	return 0;
}

int hspmd_cuda_copy_direct(struct hspmd_cuda *cuda, void *dst, const void *src, size_t bytes, struct hspmd_error *err)
{
	cudaError_t status = cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, cuda->stream);
	return status ? hspmd_cuda_failed(status, "copying to the GPU", err) : 0;
}

static int download(struct hspmd_cuda *cuda, struct hspmd_cuda_staging *s, void *host, const void *src, size_t bytes,
                    struct hspmd_error *err)
{
	size_t taken = 0; /* passed to the device so far; up to PIECES pieces are in progress */
	for (size_t at = 0; at < bytes;) {
		while (taken < bytes && taken < at + PIECES * PIECE_BYTES) {
			size_t n = bytes - taken < PIECE_BYTES ? bytes - taken : PIECE_BYTES;
			int piece = (int)(taken / PIECE_BYTES % PIECES);
			cudaError_t status = cudaMemcpyAsync(s->memory + (size_t)piece * PIECE_BYTES, (const char *)src + taken, n,
			                                     cudaMemcpyDeviceToHost, s->stream);
			if (!status)
				status = cudaEventRecord(s->free[piece], s->stream);
			if (status)
				return hspmd_cuda_failed(status, "copying from the GPU", err);
			taken += n;
		}
		size_t n = bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES;
		int piece = (int)(at / PIECE_BYTES % PIECES);
		if (await_piece(cuda, s, piece, err))
			return -1;
		memcpy((char *)host + at, s->memory + (size_t)piece * PIECE_BYTES, n);
		at += n;
	}
	return 0;
}

int hspmd_cuda_download(struct hspmd_cuda *cuda, void *host, const void *src, size_t bytes, struct hspmd_error *err)
{
	return download(cuda, cuda->staging, host, src, bytes, err);
}

int hspmd_cuda_download_concurrent(struct hspmd_cuda *cuda, void *host, const void *src, size_t bytes, struct hspmd_error *err)
{
	return download(cuda, cuda->concurrent_staging, host, src, bytes, err);
}

int hspmd_cuda_download_batch(struct hspmd_cuda *cuda, void *host, const void *const *src, int count, size_t bytes, struct hspmd_error *err)
{
	struct hspmd_cuda_staging *s = cuda->staging;
	int most = (int)(PIECE_BYTES / bytes);
	for (int first = 0; first < count; first += most) {
		int n = count - first < most ? count - first : most;
		cudaError_t status = cudaSuccess;
		for (int i = 0; !status && i < n; i++)
			status = cudaMemcpyAsync(s->memory + (size_t)i * bytes, src[first + i], bytes, cudaMemcpyDeviceToHost, s->stream);
		if (!status)
			status = cudaEventRecord(s->free[0], s->stream);
		if (status)
			return hspmd_cuda_failed(status, "copying from the GPU", err);
		if (await_piece(cuda, s, 0, err))
			return -1;
		memcpy((char *)host + (size_t)first * bytes, s->memory, (size_t)n * bytes);
	}
	return 0;
}
