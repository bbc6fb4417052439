/* SPDX-License-Identifier: Apache-2.0 */
/* Streams, events and memory: see cuda_runtime.h. */
#include <chrono>
#include <map>
#include <set>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/gpu/emulate/counts.h"
#include "tests/gpu/emulate/streams.h"

static double now_ms()
{
	return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::atomic<cudaError_t> kernel_error{ cudaSuccess };

/* Returns true if a test has put the file there that the environment variable names. */
static bool is_told(const char *variable)
{
	const char *name = getenv(variable);
	return name && !access(name, F_OK);
}

static bool is_eager()
{
	static const bool eager = getenv("HSPMD_EMULATE_EAGER") && !strcmp(getenv("HSPMD_EMULATE_EAGER"), "1");
	return eager;
}

static void carry_out(const work &w)
{
	if (w.run && kernel_error == cudaSuccess)
		w.run();
	if (!w.event)
		return;
	std::lock_guard<std::mutex> guard(w.event->lock);
	w.event->reached = w.number;
	w.event->at = now_ms();
	w.event->changed.notify_all();
}

/* Eager mode: does one piece of work after another until the stream is destroyed. */
static void work_along(emulate_stream *s)
{
	std::unique_lock<std::mutex> guard(s->lock);
	for (;;) {
		s->changed.wait(guard, [s] { return s->ending || !s->waiting.empty(); });
		if (s->waiting.empty())
			return;
		work w = std::move(s->waiting.front());
		s->waiting.pop_front();
		s->working = true;
		guard.unlock();
		carry_out(w);
		guard.lock();
		s->working = false;
		s->changed.notify_all();
	}
}

/* Does a stream's work (or waits until it is complete) up to the record `number` of an event, or all of it. */
static void drain(emulate_stream *s, const std::shared_ptr<event_state> &until, uint64_t number)
{
	if (is_eager() && until) {
		std::unique_lock<std::mutex> guard(until->lock);
		until->changed.wait(guard, [&] { return until->reached >= number; });
		return;
	}
	std::unique_lock<std::mutex> guard(s->lock);
	if (is_eager()) {
		s->changed.wait(guard, [s] { return s->waiting.empty() && !s->working; });
		return;
	}
	while (!s->waiting.empty() && !(until && until->reached >= number)) {
		work w = std::move(s->waiting.front());
		s->waiting.pop_front();
		carry_out(w);
	}
}

/* The host may not wait for work that is being captured; another stream may, for work queued before the capture. */
static void drain_for_host(emulate_stream *s, const std::shared_ptr<event_state> &until, uint64_t number)
{
	if (s->recording)
		emulate_end("a stream was waited for while it was recorded");
	drain(s, until, number);
}

void enqueue(emulate_stream *s, work w)
{
	{
		std::lock_guard<std::mutex> guard(s->lock);
		s->waiting.push_back(std::move(w));
		s->changed.notify_all();
	}
	if (s->early && is_early() && !is_eager())
		drain(s, nullptr, 0);
}

std::vector<captured_work> &captured_by(emulate_stream *s)
{
	return s->recording->branches[s->branch].work;
}

extern "C" {
extern long emulate_counts[EMULATE_COUNTS];
long emulate_counts[EMULATE_COUNTS] __attribute__((visibility("default")));
}

extern __thread int emulate_inside __attribute__((visibility("default")));
__thread int emulate_inside;

emulate_own::emulate_own()
{
	emulate_inside++;
}

emulate_own::~emulate_own()
{
	emulate_inside--;
}

void count(enum emulate_count what)
{
	__atomic_add_fetch(&emulate_counts[what], 1, __ATOMIC_RELAXED);
}

static void ask(cudaStream_t stream, std::function<void()> run)
{
	if (stream->recording) {
		captured_by(stream).push_back({ std::move(run), nullptr, false, -1 });
		return;
	}
	count(EMULATE_ASKED);
	enqueue(stream, work{ std::move(run), nullptr, 0 });
}

void emulate_enqueue(cudaStream_t stream, std::function<void()> run)
{
	const char *fault = getenv("HSPMD_EMULATE_FAULT");
	stream->computes = true;
	if (!fault) {
		ask(stream, std::move(run));
		return;
	}
	ask(stream, [=] {
		if (!unlink(fault))
			kernel_error = cudaErrorIllegalAddress;
		else
			run();
	});
}

/* ---- memory: a block ends at a page that cannot be accessed, as near as 16-byte accesses allow; the bytes between are checked */

#define WATCH 0x5a
#define HELD_MS 20000

struct allocation {
	void *map;
	size_t map_bytes, bytes, slack;
};

static std::mutex memory_lock;
static std::map<void *, allocation> memory;
static std::vector<allocation> freed; /* and still mapped */

static std::mutex streams_lock;
static std::set<emulate_stream *> streams;

/* Bytes of the device that this process has allocated; environment HSPMD_EMULATE_MEMORY limits them (bytes; not set: no limit). */
static size_t device_bytes;

static bool take_room(size_t bytes)
{
	const char *most = getenv("HSPMD_EMULATE_MEMORY");
	std::lock_guard<std::mutex> guard(memory_lock);
	if (most && device_bytes + bytes > strtoull(most, NULL, 10))
		return false;
	device_bytes += bytes;
	return true;
}

static void give_room(void *data)
{
	std::lock_guard<std::mutex> guard(memory_lock);
	auto found = memory.find(data);
	if (found != memory.end())
		device_bytes -= found->second.bytes;
}

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

/* Returns true if a stream has work to do, or one is just doing it. */
static bool is_busy()
{
	std::lock_guard<std::mutex> guard(streams_lock);
	for (emulate_stream *s : streams) {
		std::unique_lock<std::mutex> own(s->lock, std::try_to_lock);
		if (!own || s->working || !s->waiting.empty())
			return true;
	}
	return false;
}

/* A GPU frees memory when the work is done that was asked of it before. Here that work may be done later, if the host waits for no stream
 * that does it: what it still writes is lost, as on a GPU, and does not end the process. */
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
	freed.push_back(found->second);
	memory.erase(found);
	if (is_busy())
		return cudaSuccess;
	for (const allocation &a : freed)
		munmap(a.map, a.map_bytes);
	freed.clear();
	return cudaSuccess;
}

/* ---- events */

uint64_t next_record(const std::shared_ptr<event_state> &state, emulate_stream *stream)
{
	std::lock_guard<std::mutex> guard(state->lock);
	state->stream = stream;
	return ++state->recorded;
}

std::function<void()> wait_for_record(emulate_stream *stream, const std::shared_ptr<event_state> &state)
{
	emulate_stream *other = state->stream;
	uint64_t number = state->recorded;
	if (!other || other == stream)
		return [] {};
	return [=] {
		if (state->reached < number)
			drain(other, state, number);
	};
}

extern "C" {

const char *cudaGetErrorString(cudaError_t status)
{
	return status == cudaSuccess                 ? "no error"
	       : status == cudaErrorMemoryAllocation ? "out of memory"
	       : status == cudaErrorNoDevice         ? "no GPU"
	       : status == cudaErrorNotReady         ? "not ready"
	       : status == cudaErrorIllegalAddress   ? "an illegal memory access was encountered"
	                                             : "invalid value";
}

cudaError_t cudaGetLastError(void)
{
	return kernel_error;
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

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *about, int)
{
	snprintf(about->name, sizeof about->name, "Emulated GPU");
	return cudaSuccess;
}

static int multiprocessors()
{
	const char *text = getenv("HSPMD_EMULATE_MULTIPROCESSORS");
	return text ? atoi(text) : 3;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int)
{
	*value = attribute == cudaDevAttrMultiProcessorCount ? multiprocessors() : attribute == cudaDevAttrComputeCapabilityMajor ? 9 : 0;
	return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned)
{
	*stream = new emulate_stream;
	{
		std::lock_guard<std::mutex> guard(streams_lock);
		(*stream)->early = !streams.empty();
		streams.insert(*stream);
	}
	if (is_eager())
		(*stream)->worker = std::thread(work_along, *stream);
	return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
	*least = 0;
	*greatest = -5;
	return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority)
{
	return priority > 0 || priority < -5 ? cudaErrorInvalidValue : cudaStreamCreateWithFlags(stream, flags);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
	emulate_own own;
	count(EMULATE_WAITS);
	drain_for_host(stream, nullptr, 0);
	return kernel_error;
}

cudaError_t cudaStreamQuery(cudaStream_t)
{
	return kernel_error;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
	drain_for_host(stream, nullptr, 0);
	if (stream->worker.joinable()) {
		{
			std::lock_guard<std::mutex> guard(stream->lock);
			stream->ending = true;
			stream->changed.notify_all();
		}
		stream->worker.join();
	}
	{
		std::lock_guard<std::mutex> guard(streams_lock);
		streams.erase(stream);
	}
	delete stream;
	return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, void (*work)(void *), void *argument)
{
	emulate_own own;
	emulate_enqueue(stream, [=] { work(argument); });
	return cudaSuccess;
}

cudaError_t cudaMalloc(void **data, size_t bytes)
{
	count(EMULATE_ALLOCATIONS);
	if (kernel_error != cudaSuccess)
		return kernel_error;
	return take_room(bytes) ? allocate(data, bytes) : cudaErrorMemoryAllocation;
}

cudaError_t cudaMemGetInfo(size_t *left, size_t *all)
{
	const char *most = getenv("HSPMD_EMULATE_MEMORY");
	std::lock_guard<std::mutex> guard(memory_lock);
	*all = most ? strtoull(most, NULL, 10) : (size_t)1 << 40;
	*left = *all > device_bytes ? *all - device_bytes : 0;
	return kernel_error;
}

cudaError_t cudaFree(void *data)
{
	count(EMULATE_ALLOCATIONS);
	give_room(data);
	return release(data);
}

cudaError_t cudaMallocHost(void **data, size_t bytes)
{
	count(EMULATE_ALLOCATIONS);
	return allocate(data, bytes);
}

cudaError_t cudaFreeHost(void *data)
{
	count(EMULATE_ALLOCATIONS);
	return release(data);
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind, cudaStream_t stream)
{
	emulate_own own;
	count(stream->computes ? EMULATE_COPIES : EMULATE_COPIES_BESIDE);
	ask(stream, [=] { memcpy(dst, src, bytes); });
	return kernel_error;
}

cudaError_t cudaMemsetAsync(void *dst, int value, size_t bytes, cudaStream_t stream)
{
	emulate_own own;
	emulate_enqueue(stream, [=] { memset(dst, value, bytes); });
	return kernel_error;
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
	delete event;
	return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
	emulate_own own;
	if (stream->recording) { /* for the recording's own streams */
		event->state->within = stream->recording;
		event->state->inner = (int)stream->recording->recorded_by.size();
		stream->recording->recorded_by.push_back(stream->branch);
		captured_by(stream).push_back({ nullptr, nullptr, true, event->state->inner });
		return cudaSuccess;
	}
	event->state->within = nullptr;
	enqueue(stream, work{ nullptr, event->state, next_record(event->state, stream) });
	return kernel_error;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags)
{
	emulate_own own;
	if (!stream->recording || stream->branch || flags != cudaEventRecordExternal)
		return cudaErrorInvalidValue;
	captured_by(stream).push_back({ nullptr, event->state, true, -1 });
	return cudaSuccess;
}

static cudaError_t reach(cudaEvent_t event)
{
	if (event->state->stream)
		drain_for_host(event->state->stream, event->state, event->state->recorded);
	return kernel_error;
}

static void count_wait(const emulate_event *event)
{
	if (event->state->reached < event->state->recorded)
		count(EMULATE_WAITS);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
	emulate_own own;
	count_wait(event);
	return reach(event);
}

/* If work is queued until someone waits for it, a query has to do it. */
cudaError_t cudaEventQuery(cudaEvent_t event)
{
	emulate_own own;
	if (is_told("HSPMD_EMULATE_HANG"))
		return cudaErrorNotReady;
	if (!is_eager()) {
		count_wait(event);
		return reach(event);
	}
	std::lock_guard<std::mutex> guard(event->state->lock);
	return event->state->reached < event->state->recorded ? cudaErrorNotReady : kernel_error.load();
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
	emulate_own own;
	std::shared_ptr<event_state> state = event->state;
	if (stream->recording && !stream->branch && flags == cudaEventWaitExternal) { /* of each launch */
		captured_by(stream).push_back({ nullptr, state, false, -1 });
		return cudaSuccess;
	}
	if (state->within && state->within->open && !stream->recording) { /* a new branch */
		stream->recording = state->within;
		stream->branch = state->within->branches.size();
		state->within->branches.push_back({ stream, {} });
	}
	if (state->within && stream->recording == state->within) {
		captured_by(stream).push_back({ nullptr, nullptr, false, state->inner });
		return cudaSuccess;
	}
	if (stream->recording || state->within)
		return cudaErrorInvalidValue; /* captured work may not wait for work that is not captured, nor the other way round */
	if (state->stream && state->stream != stream)
		ask(stream, wait_for_record(stream, state));
	return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end)
{
	*milliseconds = (float)(end->state->at - start->state->at);
	if (is_told("HSPMD_EMULATE_HOLD"))
		count(EMULATE_HELD);
	for (int i = 0; is_told("HSPMD_EMULATE_HOLD"); i++) {
		if (i == HELD_MS)
			emulate_end("a measurement was held for too long: whoever should end it waits for it");
		usleep(1000);
	}
	return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *, enum cudaFuncAttribute, int value)
{
	count(EMULATE_LOOKUPS);
	return value <= 227 * 1024 ? cudaSuccess : cudaErrorInvalidValue;
}
}
