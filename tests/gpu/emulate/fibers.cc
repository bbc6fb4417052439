/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a block of a kernel as fibers: see cuda_runtime.h. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <vector>

#include "tests/gpu/emulate/cuda_runtime.h"

#define STACK_BYTES ((size_t)64 << 10)
#define SLOT 64
#define LANES 32

enum wait { READY, AT_BARRIER, AT_WARP, DONE };

struct copy {
	void *to;
	const void *from;
	unsigned group;
};

struct fiber {
	void *stack, *at; /* `at`: its stack pointer while it is not running */
	enum wait wait;
	dim3 index;
	unsigned rounds; /* warp-wide operations so far */
	unsigned group;  /* number of the group of copies that is being filled */
	std::vector<copy> copies;
};

struct warp {
	char slot[2][LANES * SLOT]; /* used alternately: a lane that is a round ahead writes into the other */
};

struct runner {
	std::vector<fiber> fibers;
	std::vector<warp> warps;
	std::vector<char> shared;
	void *scheduler; /* its stack pointer while a fiber is running */
	size_t now, count;
	const std::function<void()> *thread;
	const char *name;
	~runner()
	{
		for (fiber &f : fibers)
			munmap(f.stack, STACK_BYTES);
	}
};

__thread emulate_place emulate_here;
static __thread runner *current;

[[noreturn]] void emulate_end(const char *why)
{
	fprintf(stderr, "emulated kernel %s, block %u %u %u, thread %u: %s\n", current ? current->name : "-", blockIdx.x, blockIdx.y,
	        blockIdx.z, threadIdx.x, why);
	abort();
}

#if defined __x86_64__
/* Saves the callee-saved registers on this stack, stores the stack pointer in *from, and continues with the other stack. */
extern "C" void emulate_switch(void **from, void *to);
__asm__(".text\n.globl emulate_switch\n.hidden emulate_switch\n.type emulate_switch, @function\nemulate_switch:\n"
        "\tpushq %rbp\n\tpushq %rbx\n\tpushq %r12\n\tpushq %r13\n\tpushq %r14\n\tpushq %r15\n"
        "\tmovq %rsp, (%rdi)\n\tmovq %rsi, %rsp\n"
        "\tpopq %r15\n\tpopq %r14\n\tpopq %r13\n\tpopq %r12\n\tpopq %rbx\n\tpopq %rbp\n\tret\n"
        ".size emulate_switch, .-emulate_switch\n");

static void prepare(fiber &f, void (*entry)())
{
	void **top = (void **)((char *)f.stack + STACK_BYTES);
	*--top = NULL; /* a return address that is never used; aligns the stack as after a call */
	*--top = (void *)entry;
	top -= 6;
	f.at = top;
}
#else
/* Slower, but for any processor: contexts, stored at the ends of the stacks. */
static void emulate_switch(void **from, void *to)
{
	ucontext_t own;
	*from = &own;
	swapcontext(&own, (ucontext_t *)to);
}

static void prepare(fiber &f, void (*entry)())
{
	ucontext_t *context = (ucontext_t *)f.stack;
	getcontext(context);
	context->uc_stack.ss_sp = (char *)f.stack + sizeof *context;
	context->uc_stack.ss_size = STACK_BYTES - sizeof *context;
	context->uc_link = NULL;
	makecontext(context, entry, 0);
	f.at = context;
}
#endif

static void run_thread()
{
	(*current->thread)();
	fiber &f = current->fibers[current->now];
	f.wait = DONE;
	emulate_switch(&f.at, current->scheduler);
}

static void pause(enum wait wait)
{
	fiber &f = current->fibers[current->now];
	f.wait = wait;
	emulate_switch(&f.at, current->scheduler);
}

void __syncthreads()
{
	pause(AT_BARRIER);
}

const char *emulate_exchange(const void *own, size_t bytes)
{
	fiber &f = current->fibers[current->now];
	warp &w = current->warps[current->now / LANES];
	char *slots = w.slot[f.rounds++ % 2];
	if (bytes > SLOT)
		emulate_end("more than a warp can exchange");
	memcpy(slots + current->now % LANES * SLOT, own, bytes);
	pause(AT_WARP);
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
	return (void *)(((uintptr_t)current->shared.data() + 15) & ~(uintptr_t)15);
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

static void release(size_t first, size_t end)
{
	for (size_t i = first; i < end; i++)
		current->fibers[i].wait = READY;
}

static size_t count_waiting(size_t first, size_t end, enum wait wait)
{
	size_t n = 0;
	for (size_t i = first; i < end; i++)
		n += current->fibers[i].wait == wait;
	return n;
}

/* Runs one warp as far as it gets without the others, so that data it should have waited for is not there yet or already overwritten. */
static bool run_warp(const size_t *lanes)
{
	fiber *fibers = current->fibers.data();
	size_t first = lanes[0] / LANES * LANES, at_warp = count_waiting(first, first + LANES, AT_WARP);
	bool ran = false;
	do {
		if (at_warp == LANES)
			release(first, first + LANES);
		at_warp = 0;
		for (size_t i = 0; i < LANES; i++) {
			fiber &f = fibers[lanes[i]];
			if (f.wait == READY) {
				current->now = lanes[i];
				emulate_here.thread = f.index;
				emulate_switch(&current->scheduler, f.at);
				ran = true;
			}
			at_warp += f.wait == AT_WARP;
		}
	} while (at_warp == LANES);
	return ran;
}

static void run_block(const std::vector<size_t> &order)
{
	size_t count = current->count;
	for (size_t i = 0; i < count; i++) {
		current->fibers[i].wait = READY;
		current->fibers[i].rounds = current->fibers[i].group = 0;
		current->fibers[i].copies.clear();
		prepare(current->fibers[i], run_thread);
	}
	while (count_waiting(0, count, DONE) < count) {
		bool ran = false;
		for (size_t i = 0; i < count; i += LANES)
			ran |= run_warp(&order[i]);
		if (count_waiting(0, count, AT_BARRIER) == count) {
			release(0, count);
			ran = true;
		}
		if (!ran)
			emulate_end("a barrier, or what a warp does together, was not reached by all");
	}
}

void emulate_run_kernel(const char *name, dim3 grid, dim3 threads, size_t shared, const std::function<void()> &thread)
{
	static thread_local runner kept;
	current = &kept;
	current->name = name;
	current->count = (size_t)threads.x * threads.y * threads.z;
	if (!current->count || current->count > 1024 || current->count % LANES || !grid.x || !grid.y || !grid.z || grid.y > 65535 ||
	    grid.z > 65535)
		emulate_end("a grid that no GPU takes");
	while (current->fibers.size() < current->count) {
		void *stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (stack == MAP_FAILED)
			emulate_end("no memory for its stacks");
		current->fibers.push_back(fiber{ stack, NULL, READY, dim3(), 0, 0, {} });
	}
	current->warps.resize((current->count + LANES - 1) / LANES);
	std::vector<size_t> order = make_order(current->count);
	for (size_t i = 0; i < current->count; i++)
		current->fibers[i].index =
		        dim3((unsigned)(i % threads.x), (unsigned)(i / threads.x % threads.y), (unsigned)(i / threads.x / threads.y));
	current->thread = &thread;
	emulate_here.threads = threads;
	emulate_here.blocks = grid;
	for (unsigned z = 0; z < grid.z; z++)
		for (unsigned y = 0; y < grid.y; y++)
			for (unsigned x = 0; x < grid.x; x++) {
				current->shared.assign(shared + 16, (char)0xff); /* NaN: nobody may rely on the initial contents */
				emulate_here.block = dim3(x, y, z);
				run_block(order);
			}
}
