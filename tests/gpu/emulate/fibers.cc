/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a block of a kernel, or a pair of blocks (cuda.h), as fibers: see cuda_runtime.h. A thread gets a stack when it begins and returns
 * it when it ends, so that the threads of a kernel without barriers run one after the other on one stack. */
#include <mutex>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <vector>

#include "tests/gpu/emulate/cuda.h"

/* All stacks lie side by side, at distances that are no power of two, neither in lines nor in pages: otherwise their tops would share a few
 * places of the caches for data and for addresses. */
#if defined __SANITIZE_ADDRESS__ /* whose frames are several times as large */
#define STACK_BYTES ((size_t)(260 << 10) + 13 * 64)
#else
#define STACK_BYTES ((size_t)(68 << 10) + 13 * 64)
#endif
#define MOST_THREADS ((size_t)1024)
#define SLOT 64
#define LANES 32
#define PAIR 2
#define SHARED_ALIGNMENT ((size_t)1024) /* of what lies between the shared memory of two blocks: the same address in both */

enum wait { READY, AT_BARRIER, AT_WARP, AT_CONDITION, DONE };

struct copy {
	void *to;
	const void *from;
	unsigned group;
};

/* A stack, on which one thread after the other runs. Not part of its memory: those of a warp share a few lines of the caches. */
struct stack {
	void *at; /* its stack pointer while it is not running */
};

struct fiber {
	struct stack *stack; /* NULL: has not begun, or is done */
	enum wait wait;
	dim3 index;
	unsigned rounds; /* warp-wide operations so far */
	unsigned group;  /* number of the group of copies that is being filled */
	std::vector<copy> copies;
	const std::function<bool()> *condition; /* that it waits for */
};

struct warp {
	char slot[2][LANES * SLOT]; /* used alternately: a lane that is a round ahead writes into the other */
	size_t ready, at_warp;      /* fibers of it that can run; that wait for the warp */
};

struct runner {
	std::vector<fiber> fibers;
	std::vector<warp> warps;
	std::vector<char> shared;
	char *memory; /* of MOST_THREADS stacks, of which the first `prepared` can run */
	stack stacks[MOST_THREADS];
	size_t prepared;
	std::vector<stack *> unused;
	void *scheduler;   /* its stack pointer while a fiber is running */
	size_t now, count; /* the running fiber; fibers of a block */
	size_t pair, rank; /* blocks that run together, the first fibers being those of the first; the one that is looked at */
	size_t begin;      /* the first fiber of the block that is running */
	const size_t *lanes; /* of its warp that is running, in their order; `lane` of them have been looked at */
	size_t lane;
	size_t shared_bytes; /* of each block */
	dim3 place[PAIR];    /* of the blocks in the grid */
	size_t at_barrier[PAIR], done[PAIR], at_condition;
	uint64_t blocks;   /* begun so far */
	bool asynchronous; /* the block does what cuda.h emulates */
	const std::function<void()> *thread;
	const char *name;
	~runner()
	{
		if (memory)
			munmap(memory, MOST_THREADS * STACK_BYTES);
	}
};

emulate_place emulate_here;
static runner *current;

[[noreturn]] void emulate_end(const char *why)
{
	fprintf(stderr, "emulated kernel %s, block %u %u %u, thread %u: %s\n", current ? current->name : "-", blockIdx.x, blockIdx.y,
	        blockIdx.z, threadIdx.x, why);
	abort();
}

#if defined __x86_64__
/* Saves what a function must keep on this stack, stores the stack pointer in *from, and continues with the other stack. Inline and without
 * a return, because the processor predicts returns by the calls that it has seen, and these were on the other stack. */
static inline __attribute__((always_inline)) void emulate_switch(void **from, void *to)
{
	__asm__ volatile("leaq -128(%%rsp), %%rsp\n\tpushq %%rbp\n\tpushq %%rbx\n\tleaq 1f(%%rip), %%rax\n\tpushq %%rax\n"
	                 "\tmovq %%rsp, (%%rdi)\n\tmovq %%rsi, %%rsp\n\tpopq %%rax\n\tjmp *%%rax\n"
	                 "1:\tpopq %%rbx\n\tpopq %%rbp\n\tleaq 128(%%rsp), %%rsp\n"
	                 : "+D"(from), "+S"(to)
	                 :
	                 : "rax", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "xmm0", "xmm1", "xmm2", "xmm3",
	                   "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "memory",
	                   "cc");
}

/* Returns the stack pointer of a stack that begins at `bottom` and calls `entry` when it runs first. */
static void *prepare(char *bottom, void (*entry)())
{
	void **top = (void **)(bottom + STACK_BYTES);
	*--top = NULL; /* a return address that is never used; aligns the stack as after a call */
	*--top = (void *)entry;
	return top;
}
#else
/* Slower, but for any processor: contexts, stored at the ends of the stacks. A stack pointer is one to the context. */
static void emulate_switch(void **from, void *to)
{
	ucontext_t own;
	*from = &own;
	swapcontext(&own, (ucontext_t *)to);
}

static void *prepare(char *bottom, void (*entry)())
{
	ucontext_t *context = (ucontext_t *)bottom;
	getcontext(context);
	context->uc_stack.ss_sp = context + 1;
	context->uc_stack.ss_size = STACK_BYTES - sizeof *context;
	context->uc_link = NULL;
	makecontext(context, entry, 0);
	return context;
}
#endif

static void run_threads();

static stack *take_stack(runner *r)
{
	if (r->unused.empty()) {
		stack *s = &r->stacks[r->prepared];
		s->at = prepare(r->memory + r->prepared++ * STACK_BYTES, run_threads);
		return s;
	}
	stack *s = r->unused.back();
	r->unused.pop_back();
	return s;
}

/* Makes the warp's next fiber that can run the running one. Returns NULL if there is none. */
static inline fiber *next_of_warp(runner *r)
{
	while (r->lane < LANES) {
		size_t i = r->begin + r->lanes[r->lane++];
		fiber *f = &r->fibers[i];
		if (f->wait != READY)
			continue;
		r->now = i;
		r->rank = r->begin > 0;
		emulate_here.thread = f->index;
		return f;
	}
	return NULL;
}

/* Leaves the stack that is running for that of the warp's next fiber; after the last fiber, for the scheduler's. */
static inline void switch_from(runner *r, stack *from, fiber *next)
{
	if (next && !next->stack)
		next->stack = take_stack(r);
	emulate_switch(&from->at, next ? next->stack->at : r->scheduler);
}

/* What runs on a stack: one thread after the other, as long as the warp's next has not begun either; and when somebody switches to the
 * stack again, more. */
static void run_threads()
{
	for (runner *r = current;;) {
		(*r->thread)();
		if (r->asynchronous)
			emulate_thread_ends();
		fiber &f = r->fibers[r->now];
		stack *own = f.stack;
		f.wait = DONE;
		f.stack = NULL;
		r->done[r->begin > 0]++;
		fiber *next = next_of_warp(r);
		if (next && !next->stack) {
			next->stack = own;
			continue;
		}
		r->unused.push_back(own);
		switch_from(r, own, next);
	}
}

static inline void pause(runner *r, enum wait wait)
{
	fiber &f = r->fibers[r->now];
	f.wait = wait;
	switch_from(r, f.stack, next_of_warp(r));
}

void __syncthreads()
{
	runner *r = current;
	r->at_barrier[r->begin > 0]++;
	pause(r, AT_BARRIER);
}

char *emulate_exchange(const void *own, size_t bytes, void (*combine)(char *slots))
{
	runner *r = current;
	warp &w = r->warps[r->now / LANES];
	char *slots = w.slot[r->fibers[r->now].rounds++ % 2], *to = slots + r->now % LANES * SLOT;
	if (bytes > SLOT)
		emulate_end("more than a warp can exchange");
	if (bytes == sizeof(float))
		memcpy(to, own, sizeof(float));
	else if (bytes)
		memcpy(to, own, bytes);
	if (++w.at_warp == LANES && combine)
		combine(slots);
	pause(r, AT_WARP);
	return slots;
}

void emulate_copy_later(void *to, const void *from)
{
	fiber &f = current->fibers[current->now];
	f.copies.push_back(copy{ to, from, f.group });
}

void emulate_copies_commit()
{
	current->fibers[current->now].group++;
}

void emulate_copies_wait(int left)
{
	fiber &f = current->fibers[current->now];
	std::vector<copy> later;
	for (const copy &c : f.copies)
		if (c.group + (unsigned)left >= f.group)
			later.push_back(c);
		else if (c.from)
			memcpy(c.to, c.from, 16);
		else
			memset(c.to, 0, 16);
	f.copies = later;
}

void *emulate_shared()
{
	uintptr_t first = ((uintptr_t)current->shared.data() + 15) & ~(uintptr_t)15;
	size_t stride = (current->shared_bytes + 2 * SHARED_ALIGNMENT - 1) / SHARED_ALIGNMENT * SHARED_ALIGNMENT;
	return (void *)(first + current->rank * stride);
}

void emulate_wait_until(const std::function<bool()> &ready)
{
	runner *r = current;
	r->fibers[r->now].condition = &ready;
	r->at_condition++;
	pause(r, AT_CONDITION);
}

unsigned emulate_thread()
{
	return (unsigned)(current->now - current->begin);
}

size_t emulate_look_at(size_t rank)
{
	size_t was = current->rank;
	current->rank = rank;
	return was;
}

size_t emulate_rank()
{
	return current->rank;
}

bool emulate_has_ended()
{
	return current->done[current->rank] > 0;
}

uint64_t emulate_block_number()
{
	current->asynchronous = true;
	return current->blocks;
}

char *emulate_shared_bytes(size_t *bytes)
{
	*bytes = current->shared_bytes;
	return (char *)emulate_shared();
}

/* Returns the order in which runnable fibers run: warp by warp, and lane by lane within a warp. */
static std::vector<size_t> make_order(size_t count)
{
	const char *text = getenv("HSPMD_EMULATE_ORDER");
	unsigned long seed = text ? strtoul(text, NULL, 10) : 0;
	auto shuffle = [&](size_t *first, size_t n, size_t step) {
		for (size_t i = 0; i < n; i++)
			first[i] = (seed == 1 ? n - 1 - i : i) * step;
		for (size_t i = n; seed > 1 && i > 1; i--) {
			seed = seed * 6364136223846793005ul + 1442695040888963407ul;
			std::swap(first[i - 1], first[(seed >> 33) % i]);
		}
	};
	std::vector<size_t> warps(count / LANES), order(count);
	shuffle(warps.data(), warps.size(), LANES);
	for (size_t w = 0; w < warps.size(); w++) {
		shuffle(&order[w * LANES], LANES, 1);
		for (size_t i = 0; i < LANES; i++)
			order[w * LANES + i] += warps[w];
	}
	return order;
}

/* The fibers of a warp can run on. */
static void release(runner *r, size_t first)
{
	for (size_t i = first; i < first + LANES; i++)
		r->fibers[i].wait = READY;
	warp &w = r->warps[first / LANES];
	w.ready = LANES;
	w.at_warp = 0;
}

/* Runs one warp as far as it gets without the others, so that data it should have waited for is not there yet or already overwritten.
 * begin: number of the block's first fiber. */
static bool run_warp(runner *r, size_t begin, const size_t *lanes)
{
	size_t first = begin + lanes[0] / LANES * LANES;
	warp &w = r->warps[first / LANES];
	bool ran = false;
	r->begin = begin;
	r->lanes = lanes;
	emulate_here.block = r->place[begin > 0];
	for (;;) {
		if (w.at_warp == LANES)
			release(r, first);
		if (!w.ready)
			return ran;
		r->lane = 0;
		fiber *f = next_of_warp(r);
		if (f && !f->stack)
			f->stack = take_stack(r);
		if (f)
			emulate_switch(&r->scheduler, f->stack->at); /* until the last of them has run */
		w.ready = 0;
		ran = true;
	}
}

/* Lets those of a block go on whose condition is true. */
static bool release_waiting(runner *r, size_t rank)
{
	bool any = false;
	for (size_t i = rank * r->count; i < (rank + 1) * r->count && r->at_condition; i++) {
		r->rank = rank;
		if (r->fibers[i].wait == AT_CONDITION && (*r->fibers[i].condition)()) {
			r->fibers[i].wait = READY;
			r->warps[i / LANES].ready++;
			r->at_condition--;
			any = true;
		}
	}
	return any;
}

static bool is_done(const runner *r)
{
	for (size_t rank = 0; rank < r->pair; rank++)
		if (r->done[rank] < r->count)
			return false;
	return true;
}

/* Lets the threads of a block go on if all are at the barrier. */
static bool release_barrier(runner *r, size_t rank)
{
	if (r->at_barrier[rank] < r->count)
		return false;
	for (size_t i = 0; i < r->count; i += LANES)
		release(r, rank * r->count + i);
	r->at_barrier[rank] = 0;
	return true;
}

/* Runs a block as far as it gets without the other of its pair. Returns false if that is nowhere. */
static bool run_block(runner *r, size_t rank, const std::vector<size_t> &order)
{
	bool ran = false;
	for (;;) {
		bool now = false;
		for (size_t i = 0; i < r->count; i += LANES)
			now |= run_warp(r, rank * r->count, &order[i]);
		now |= release_barrier(r, rank);
		now |= release_waiting(r, rank);
		if (!now)
			return ran;
		ran = true;
	}
}

static void run_blocks(runner *r, const std::vector<size_t> &order, bool descending)
{
	size_t count = r->pair * r->count;
	for (size_t i = 0; i < count; i++) {
		r->fibers[i].rounds = r->fibers[i].group = 0;
		r->fibers[i].copies.clear();
	}
	for (size_t i = 0; i < count; i += LANES)
		release(r, i);
	for (size_t rank = 0; rank < PAIR; rank++)
		r->at_barrier[rank] = r->done[rank] = 0;
	r->at_condition = 0;
	r->asynchronous = false;
	r->blocks++;
	while (!is_done(r)) {
		bool ran = false;
		for (size_t k = 0; k < r->pair; k++)
			ran |= run_block(r, descending ? r->pair - 1 - k : k, order);
		if (!ran)
			emulate_end("a barrier, or what a warp does together, was not reached by all");
	}
}

static void run_kernel(const char *name, dim3 grid, dim3 threads, size_t shared, const std::function<void()> &thread, size_t pair)
{
	static std::mutex lock;
	static runner kept;
	std::lock_guard<std::mutex> alone(lock);
	current = &kept;
	current->name = name;
	current->count = (size_t)threads.x * threads.y * threads.z;
	current->pair = pair;
	current->shared_bytes = shared;
	size_t all = pair * current->count;
	if (!all || all > MOST_THREADS || current->count % LANES || !grid.x || !grid.y || !grid.z || grid.y > 65535 || grid.z > 65535 ||
	    grid.x % pair)
		emulate_end("a grid that no GPU takes");
	if (current->fibers.size() < all)
		current->fibers.resize(all);
	if (!kept.memory) {
		void *memory =
		        mmap(NULL, MOST_THREADS * STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (memory == MAP_FAILED)
			emulate_end("no memory for its stacks");
		kept.memory = (char *)memory;
	}
	current->warps.resize(all / LANES);
	std::vector<size_t> order = make_order(current->count);
	fiber *f = current->fibers.data();
	for (size_t rank = 0; rank < pair; rank++)
		for (unsigned z = 0; z < threads.z; z++)
			for (unsigned y = 0; y < threads.y; y++)
				for (unsigned x = 0; x < threads.x; x++)
					f++->index = dim3(x, y, z);
	current->thread = &thread;
	const char *text = getenv("HSPMD_EMULATE_ORDER");
	bool descending = text && !strcmp(text, "1");
	emulate_here.threads = threads;
	emulate_here.blocks = grid;
	emulate_here.reduces_at_once = !text || !strcmp(text, "0");
	for (unsigned z = 0; z < grid.z; z++)
		for (unsigned y = 0; y < grid.y; y++)
			for (unsigned x = 0; x < grid.x; x += (unsigned)pair) {
				/* NaN: nobody may rely on the initial contents */
				current->shared.assign(pair * (shared + 2 * SHARED_ALIGNMENT), (char)0xff);
				for (unsigned rank = 0; rank < pair; rank++)
					current->place[rank] =
					        descending ? dim3(grid.x - (unsigned)pair - x + rank, grid.y - 1 - y, grid.z - 1 - z)
					                   : dim3(x + rank, y, z);
				run_blocks(&kept, order, descending);
			}
}

void emulate_run_kernel(const char *name, dim3 grid, dim3 threads, size_t shared, const std::function<void()> &thread)
{
	run_kernel(name, grid, threads, shared, thread, 1);
}

void emulate_run_pairs(const char *name, dim3 grid, dim3 threads, size_t shared, const std::function<void()> &thread)
{
	run_kernel(name, grid, threads, shared, thread, PAIR);
}
