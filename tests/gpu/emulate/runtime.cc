/* SPDX-License-Identifier: Apache-2.0 */
/* Streams, events and memory: see cuda_runtime.h. */
#include <chrono>
#include <deque>
#include <map>
#include <mutex>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/gpu/emulate/cuda_runtime.h"

struct work {
	std::function<void()> run;
	struct emulate_event *event; /* NULL: none */
	uint64_t number;
};

struct emulate_stream {
	std::mutex lock; /* a stream may be waited for by several threads */
	std::deque<work> waiting;
};

struct emulate_event {
	emulate_stream *stream;      /* where it was last recorded; NULL: nowhere */
	uint64_t recorded, reached;  /* numbers of its records */
	double at;
};

static double now_ms()
{
	return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/* Do a stream's work up to the record `number` of an event, or all. */
static void drain(emulate_stream *s, emulate_event *until, uint64_t number)
{
	std::lock_guard<std::mutex> guard(s->lock);
	while (!s->waiting.empty() && !(until && until->reached >= number)) {
		work w = std::move(s->waiting.front());
		s->waiting.pop_front();
		if (w.run)
			w.run();
		if (w.event) {
			w.event->reached = w.number;
			w.event->at = now_ms();
		}
	}
}

void emulate_enqueue(cudaStream_t stream, std::function<void()> run)
{
	std::lock_guard<std::mutex> guard(stream->lock);
	stream->waiting.push_back(work{ std::move(run), NULL, 0 });
}

/* ---- memory: the end of a block lies at a page that cannot be touched, as near as 16-byte accesses allow; the bytes between are watched */

#define WATCH 0x5a

struct allocation {
	void *map;
	size_t map_bytes, bytes, slack;
};

static std::mutex memory_lock;
static std::map<void *, allocation> memory;

static cudaError_t allocate(void **data, size_t bytes)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE), room = (bytes + 63) / 64 * 64, whole = (room + page - 1) / page * page;
	char *map = (char *)mmap(NULL, whole + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (map == MAP_FAILED)
		return cudaErrorMemoryAllocation;
	mprotect(map + whole, page, PROT_NONE);
	*data = map + whole - room;
	memset((char *)*data + bytes, WATCH, room - bytes);
	std::lock_guard<std::mutex> guard(memory_lock);
	memory[*data] = allocation{ map, whole + page, bytes, room - bytes };
	return cudaSuccess;
}

static cudaError_t release(void *data)
{
	if (!data)
		return cudaSuccess;
	std::lock_guard<std::mutex> guard(memory_lock);
	auto found = memory.find(data);
	if (found == memory.end())
		return cudaErrorInvalidValue;
	for (size_t i = 0; i < found->second.slack; i++)
		if (((unsigned char *)data)[found->second.bytes + i] != WATCH)
			emulate_end("something was written beyond a buffer's end");
	munmap(found->second.map, found->second.map_bytes);
	memory.erase(found);
	return cudaSuccess;
}

extern "C" {

const char *cudaGetErrorString(cudaError_t status)
{
	return status == cudaSuccess ? "no error" : status == cudaErrorMemoryAllocation ? "out of memory" : status == cudaErrorNoDevice ? "no GPU" : "invalid value";
}

cudaError_t cudaGetLastError(void)
{
	return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count)
{
	const char *text = getenv("HSPMD_EMULATE_GPUS");
	*count = text ? atoi(text) : 8;
	return *count > 0 ? cudaSuccess : cudaErrorNoDevice;
}

cudaError_t cudaSetDevice(int)
{
	return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int)
{
	*value = attribute == cudaDevAttrMultiProcessorCount ? 3 : attribute == cudaDevAttrComputeCapabilityMajor ? 9 : 0;
	return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned)
{
	*stream = new emulate_stream;
	return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
	drain(stream, NULL, 0);
	return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
	drain(stream, NULL, 0);
	delete stream;
	return cudaSuccess;
}

cudaError_t cudaMalloc(void **data, size_t bytes)
{
	return allocate(data, bytes);
}

cudaError_t cudaFree(void *data)
{
	return release(data);
}

cudaError_t cudaMallocHost(void **data, size_t bytes)
{
	return allocate(data, bytes);
}

cudaError_t cudaFreeHost(void *data)
{
	return release(data);
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind, cudaStream_t stream)
{
	emulate_enqueue(stream, [=] { memcpy(dst, src, bytes); });
	return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *dst, int value, size_t bytes, cudaStream_t stream)
{
	emulate_enqueue(stream, [=] { memset(dst, value, bytes); });
	return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
	*event = new emulate_event();
	return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned)
{
	return cudaEventCreate(event);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
	if (event->stream && event->reached < event->recorded)
		drain(event->stream, event, event->recorded);
	delete event;
	return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
	std::lock_guard<std::mutex> guard(stream->lock);
	event->stream = stream;
	stream->waiting.push_back(work{ nullptr, event, ++event->recorded });
	return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
	if (event->stream)
		drain(event->stream, event, event->recorded);
	return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end)
{
	*milliseconds = (float)(end->at - start->at);
	return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *, enum cudaFuncAttribute, int value)
{
	return value <= 227 * 1024 ? cudaSuccess : cudaErrorInvalidValue;
}
}
