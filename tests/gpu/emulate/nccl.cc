/* SPDX-License-Identifier: Apache-2.0 */
/* A stand-in for NCCL on emulated GPUs, for tests: the functions that runtime/device/cuda/nccl uses, between threads and processes of one
 * machine, through a file in shared memory. Like the real NCCL, it does not report that a member is gone, does nothing before all members
 * are there, works in the order of the stream, and returns "in progress" for a while after every call.
 * - FAKE_NCCL_VERSION: the version that it reports (22703).
 * - FAKE_NCCL_DIR: the folder of its files (/dev/shm; those of a killed process remain).
 * - nccl_fake_made counts the communicators of this process.
 * - nccl_fake_break makes all of them fail. */
#include <atomic>
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <memory>
#include <mutex>
#include <set>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <string>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

#define MOST 8            /* ranks */
#define RING_BYTES 16384u /* in flight from one rank to another */
#define PATH_BYTES 128

enum { SUCCESS = 0, SYSTEM_ERROR = 2, INVALID = 4, REMOTE_ERROR = 6, IN_PROGRESS = 7 };

struct channel {
	std::atomic<uint64_t> given, taken;
	char ring[RING_BYTES];
};

struct board {
	std::atomic<int> attached, finalized;
	channel way[MOST][MOST];
};

struct comm {
	board *shared = nullptr;
	int rank = 0, size = 0;
	std::atomic<int> polls{ 2 }, error{ SUCCESS }, running{ 0 };
	std::atomic<bool> aborted{ false }, finalizing{ false };
	std::string path;
	~comm()
	{
		munmap(shared, sizeof *shared);
	}
};

/* A handle is the address of a shared pointer, because pending work outlives the communicator. */
typedef std::shared_ptr<comm> *handle;

enum kind { SEND, RECEIVE, BROADCAST, REDUCE, ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER };
struct op {
	kind what;
	const char *in;
	char *out;
	size_t count, element;
	int type, peer;
	std::shared_ptr<comm> c;
	void *stream;
};

struct flow {
	channel *way;
	bool sending;
	char *data;
	size_t bytes, done;
};

struct job {
	std::vector<op> ops;
};

static std::mutex lock;
static std::set<comm *> all;
static thread_local int depth;
static thread_local std::vector<op> gathered;

static size_t bytes_of(int type)
{
	return type == 8 ? 8 : type == 9 ? 2 : 4;
}

static void add_up(char *sum, const char *x, size_t count, int type)
{
	for (size_t i = 0; i < count; i++) {
		if (type == 7)
			((float *)sum)[i] += ((const float *)x)[i];
		else if (type == 8)
			((double *)sum)[i] += ((const double *)x)[i];
		else if (type == 2)
			((uint32_t *)sum)[i] += ((const uint32_t *)x)[i];
		else {
			uint32_t a = (uint32_t)((uint16_t *)sum)[i] << 16, b = (uint32_t)((const uint16_t *)x)[i] << 16;
			float p, q;
			memcpy(&p, &a, 4);
			memcpy(&q, &b, 4);
			p += q;
			memcpy(&a, &p, 4);
			((uint16_t *)sum)[i] = (uint16_t)((a + 0x7fff + (a >> 16 & 1)) >> 16);
		}
	}
}

/* ---- moving bytes */

/* Tries once to move bytes; returns how many were moved. */
static size_t push(flow &f)
{
	uint64_t given = f.way->given.load(), taken = f.way->taken.load(), moved = 0;
	while (f.done < f.bytes && (f.sending ? given - taken < RING_BYTES : taken < given)) {
		uint64_t at = (f.sending ? given : taken) % RING_BYTES, room = f.sending ? RING_BYTES - (given - taken) : given - taken;
		size_t n = f.bytes - f.done;
		n = n < room ? n : room;
		n = n < RING_BYTES - at ? n : RING_BYTES - at;
		if (f.sending)
			memcpy(f.way->ring + at, f.data + f.done, n);
		else
			memcpy(f.data + f.done, f.way->ring + at, n);
		f.done += n;
		moved += n;
		(f.sending ? given : taken) += n;
		(f.sending ? f.way->given : f.way->taken).store(f.sending ? given : taken);
	}
	return moved;
}

static bool carry_out(comm &c, std::vector<flow> &flows)
{
	for (;;) {
		bool left = false, moved = false;
		std::set<std::pair<channel *, bool>> busy;
		for (flow &f : flows) {
			if (f.done == f.bytes)
				continue;
			left = true;
			if (busy.insert({ f.way, f.sending }).second)
				moved |= push(f) > 0;
		}
		if (!left)
			return true;
		if (c.aborted)
			return false;
		if (!moved)
			usleep(50);
	}
}

struct landing {
	const op *o;
	std::vector<std::vector<char>> from; /* indexed by rank */
};

/* Determines what an operation sends to which rank, and what it receives from which rank into which buffer. */
static void plan(const op &o, std::vector<flow> &flows, landing &l)
{
	comm &c = *o.c;
	size_t bytes = o.count * o.element;
	auto send = [&](int to, const char *data) {
		flows.push_back(flow{ &c.shared->way[c.rank][to], true, const_cast<char *>(data), bytes, 0 });
	};
	auto take = [&](int from, char *data) { flows.push_back(flow{ &c.shared->way[from][c.rank], false, data, bytes, 0 }); };
	auto take_beside = [&](int from) {
		l.from[from].resize(bytes);
		take(from, l.from[from].data());
	};
	l.o = &o;
	l.from.resize(c.size);
	if (o.what == SEND)
		send(o.peer, o.in);
	if (o.what == RECEIVE)
		take(o.peer, o.out);
	if (o.what == BROADCAST && c.rank != o.peer)
		take(o.peer, o.out);
	if (o.what == REDUCE && c.rank != o.peer)
		send(o.peer, o.in);
	for (int r = 0; r < c.size; r++) {
		if (r == c.rank)
			continue;
		if ((o.what == BROADCAST && c.rank == o.peer) || o.what == ALL_REDUCE || o.what == ALL_GATHER)
			send(r, o.in);
		if (o.what == REDUCE_SCATTER)
			send(r, o.in + (size_t)r * bytes);
		if (o.what == ALL_GATHER)
			take(r, o.out + (size_t)r * bytes);
		if ((o.what == REDUCE && c.rank == o.peer) || o.what == ALL_REDUCE || o.what == REDUCE_SCATTER)
			take_beside(r);
	}
}

static void land(const landing &l)
{
	const op &o = *l.o;
	comm &c = *o.c;
	size_t bytes = o.count * o.element;
	if (o.what == BROADCAST && c.rank == o.peer)
		memmove(o.out, o.in, bytes);
	if (o.what == ALL_GATHER)
		memmove(o.out + (size_t)c.rank * bytes, o.in, bytes);
	if (o.what == ALL_REDUCE || o.what == REDUCE_SCATTER || (o.what == REDUCE && c.rank == o.peer)) {
		const char *own = o.what == REDUCE_SCATTER ? o.in + (size_t)c.rank * bytes : o.in;
		std::vector<char> sum;
		for (int r = 0; r < c.size; r++) {
			const char *x = r == c.rank ? own : l.from[r].data();
			if (!r)
				sum.assign(x, x + bytes);
			else
				add_up(sum.data(), x, o.count, o.type);
		}
		memcpy(o.out, sum.data(), bytes);
	}
}

static void run_job(void *argument)
{
	std::unique_ptr<job> j((job *)argument);
	std::vector<flow> flows;
	std::vector<landing> landings(j->ops.size());
	for (size_t i = 0; i < j->ops.size(); i++)
		plan(j->ops[i], flows, landings[i]);
	comm &c = *j->ops[0].c;
	if (!c.aborted && carry_out(c, flows))
		for (const landing &l : landings)
			land(l);
	c.running--;
}

/* The emulated device's function, which the loader does not make visible. */
static int (*find_launch())(void *, void (*)(void *), void *)
{
	static int (*launch)(void *, void (*)(void *), void *);
	if (launch)
		return launch;
	dl_iterate_phdr(
	        [](dl_phdr_info *info, size_t, void *) {
		        if (!strstr(info->dlpi_name, "hspmd-cuda-emulated.so"))
			        return 0;
		        void *module = dlopen(info->dlpi_name, RTLD_NOW | RTLD_NOLOAD),
		             *found = module ? dlsym(module, "cudaLaunchHostFunc") : nullptr;
		        memcpy(&launch, &found, sizeof found);
		        return 1;
	        },
	        nullptr);
	return launch;
}

static int enter(kind what, const void *in, void *out, size_t count, int type, int peer, handle h, void *stream)
{
	if (!h || !find_launch() || peer < 0 || peer >= (*h)->size)
		return INVALID;
	gathered.push_back(op{ what, (const char *)in, (char *)out, count, bytes_of(type), type, peer, *h, stream });
	return SUCCESS;
}

struct id {
	char path[PATH_BYTES];
};
struct config {
	size_t size;
	unsigned magic, version;
	int blocking;
};

#pragma GCC visibility push(default)
extern "C" {

std::atomic<int> nccl_fake_made;

void nccl_fake_break(void)
{
	std::lock_guard<std::mutex> guard(lock);
	for (comm *c : all)
		c->error = REMOTE_ERROR;
}

int ncclGetVersion(int *version)
{
	const char *claimed = getenv("FAKE_NCCL_VERSION");
	*version = claimed ? atoi(claimed) : 22703;
	return SUCCESS;
}

/* These files exist until all members have joined, or this process ends. */
static std::set<std::string> *files;
static void remove_files()
{
	for (const std::string &f : *files)
		unlink(f.c_str());
}

int ncclGetUniqueId(id *i)
{
	memset(i, 0, sizeof *i);
	const char *folder = getenv("FAKE_NCCL_DIR");
	snprintf(i->path, sizeof i->path, "%s/hspmd-nccl-%d-XXXXXX", folder ? folder : "/dev/shm", (int)getpid());
	int fd = mkstemp(i->path), failed = fd < 0 || ftruncate(fd, sizeof(board));
	if (fd >= 0)
		close(fd);
	std::lock_guard<std::mutex> guard(lock);
	if (!files) {
		files = new std::set<std::string>;
		atexit(remove_files);
	}
	files->insert(i->path);
	return failed ? SYSTEM_ERROR : SUCCESS;
}

int ncclCommInitRankConfig(handle *out, int size, id i, int rank, const config *how)
{
	if (size < 1 || size > MOST || rank < 0 || rank >= size || !how || how->magic != 0xcafebeef || how->blocking)
		return INVALID;
	int fd = open(i.path, O_RDWR | O_CLOEXEC);
	void *at = fd < 0 ? MAP_FAILED : mmap(nullptr, sizeof(board), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (fd >= 0)
		close(fd);
	if (at == MAP_FAILED)
		return SYSTEM_ERROR;
	std::shared_ptr<comm> c = std::make_shared<comm>();
	c->shared = (board *)at;
	c->rank = rank;
	c->size = size;
	c->path = i.path;
	if (c->shared->attached.fetch_add(1) + 1 == size)
		unlink(i.path);
	std::lock_guard<std::mutex> guard(lock);
	all.insert(c.get());
	nccl_fake_made++;
	*out = new std::shared_ptr<comm>(c);
	return IN_PROGRESS;
}

int ncclCommGetAsyncError(handle h, int *error)
{
	comm &c = **h;
	bool waits = c.shared->attached < c.size || (c.finalizing && (c.running || c.shared->finalized < c.size));
	*error = c.error ? c.error.load() : waits || c.polls-- > 0 ? (int)IN_PROGRESS : (int)SUCCESS;
	return SUCCESS;
}

static void drop(handle h)
{
	std::lock_guard<std::mutex> guard(lock);
	all.erase(h->get());
	delete h;
}

int ncclCommAbort(handle h)
{
	(*h)->aborted = true;
	drop(h);
	return SUCCESS;
}

int ncclCommFinalize(handle h)
{
	(*h)->finalizing = true;
	(*h)->shared->finalized++;
	return IN_PROGRESS;
}

int ncclCommDestroy(handle h)
{
	drop(h);
	return SUCCESS;
}

int ncclGroupStart(void)
{
	depth++;
	return SUCCESS;
}

int ncclGroupEnd(void)
{
	if (--depth || gathered.empty())
		return SUCCESS;
	job *j = new job{ std::move(gathered) };
	gathered.clear();
	comm &c = *j->ops[0].c;
	c.running++;
	c.polls = 2;
	find_launch()(j->ops[0].stream, run_job, j);
	return IN_PROGRESS;
}

int ncclSend(const void *in, size_t count, int type, int peer, handle h, void *stream)
{
	return enter(SEND, in, nullptr, count, type, peer, h, stream);
}

int ncclRecv(void *out, size_t count, int type, int peer, handle h, void *stream)
{
	return enter(RECEIVE, nullptr, out, count, type, peer, h, stream);
}

int ncclBroadcast(const void *in, void *out, size_t count, int type, int root, handle h, void *stream)
{
	return enter(BROADCAST, in, out, count, type, root, h, stream);
}

int ncclReduce(const void *in, void *out, size_t count, int type, int, int root, handle h, void *stream)
{
	return enter(REDUCE, in, out, count, type, root, h, stream);
}

int ncclAllReduce(const void *in, void *out, size_t count, int type, int, handle h, void *stream)
{
	return enter(ALL_REDUCE, in, out, count, type, 0, h, stream);
}

int ncclAllGather(const void *in, void *out, size_t count, int type, handle h, void *stream)
{
	return enter(ALL_GATHER, in, out, count, type, 0, h, stream);
}

int ncclReduceScatter(const void *in, void *out, size_t count, int type, int, handle h, void *stream)
{
	return enter(REDUCE_SCATTER, in, out, count, type, 0, h, stream);
}

const char *ncclGetErrorString(int status)
{
	return status == REMOTE_ERROR ? "remote process exited or there was a network error"
	       : status == INVALID    ? "invalid argument"
	                              : "unhandled system error";
}
}
#pragma GCC visibility pop
