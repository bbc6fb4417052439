/* SPDX-License-Identifier: Apache-2.0 */
/* Barriers in shared memory, copies of boxes, and products of warp-groups: see cuda.h. Layouts and rules are those of the PTX ISA
 * ("mbarrier", "Tensors", "Asynchronous warpgroup level matrix instructions"). */
#include <map>
#include <stdio.h>
#include <vector>

#include "common/half.h"
#include "tests/gpu/emulate/counts.h"
#include "tests/gpu/emulate/cuda.h"
#include "tests/gpu/emulate/sums.h"

#define GROUP 128
#define WARP 32
#define DEPTH 16 /* what a product sums over: so many BF16 numbers, or twice as many FP8 numbers */
#define ROWS 64  /* of A */
#define SHARED_BYTES (227 * 1024)

extern "C" long emulate_counts[EMULATE_COUNTS]; /* runtime.cc */

struct box_copy {
	char *to;
	CUtensorMap map; /* by value: a launch's maps end with it */
	int64_t x[4];
	size_t bytes;
};

struct barrier {
	int count, pending;
	unsigned phase;
	int64_t expected; /* bytes announced for this phase and not there yet */
	std::vector<box_copy> copies;
};

struct product {
	float *c;
	int columns;
	const uint32_t *fragment; /* NULL: A is in shared memory */
	uint32_t own[4];          /* the fragment as it was when the product was asked for */
	uint32_t lane[4][4];      /* the fragments of the four lanes that have the same rows */
	uint64_t a, b;
	bool a_rows, b_rows, add;
	unsigned group;
	emulate_numbers a_numbers, b_numbers;
};

/* An accumulator that products in progress have. */
struct accumulator {
	float *c;
	std::vector<float> value;
};

struct thread {
	std::vector<product> products;         /* in the order of their groups */
	std::vector<accumulator> accumulators; /* the first `busy`; the others have room for later ones */
	size_t busy = 0;
	unsigned group = 0; /* number of the group that is being filled */
	bool begun = false;
};

/* An operand that a descriptor leads to, for all threads that use it before shared memory is written to again. */
struct tile {
	uint64_t descriptor;
	bool rows;
	emulate_numbers numbers;
	unsigned count;            /* of A's rows, or of B's columns */
	std::vector<double> value; /* [depth][count], at tile_place() */
};

/* Where row or column i is: those of a thread (two of every eight) lie side by side. */
static unsigned tile_place(unsigned i, unsigned count)
{
	return i % 8 / 2 * (count / 4) + i / 8 * 2 + i % 2;
}

/* Of a block that runs. */
struct block {
	uint64_t number = 0;
	std::map<uint64_t *, barrier> barriers;
	std::vector<thread> threads;
	std::vector<char> seen; /* shared memory as copies have written it, and threads before a shared_ready; from shared_start() on */
	std::vector<tile> tiles; /* of `seen` as it is: the first `tiles_kept`; the others have room for later ones */
	size_t tiles_kept = 0;
	bool multiplies = false;
	size_t at_pair_barrier = 0;
	size_t at_turn[2] = {}; /* arrivals at the barrier before each group's turn */

	/* Another block; the room of the one before is kept. */
	void reset(uint64_t next, size_t count)
	{
		block fresh;
		fresh.number = next;
		std::swap(fresh.threads, threads);
		std::swap(fresh.seen, seen);
		std::swap(fresh.tiles, tiles);
		fresh.threads.resize(count);
		for (thread &t : fresh.threads) {
			t.products.clear();
			t.busy = t.group = 0;
			t.begun = false;
		}
		fresh.seen.clear();
		*this = std::move(fresh);
	}
};

static block &here()
{
	static block blocks[2];
	block &b = blocks[emulate_rank()];
	if (b.number != emulate_block_number())
		b.reset(emulate_block_number(), (size_t)blockDim.x * blockDim.y * blockDim.z);
	return b;
}

/* ---- addresses */

/* Where address 0 would be: shared memory begins on a multiple of 16 bytes and of no more. */
static char *shared_start()
{
	size_t bytes;
	return (char *)((uintptr_t)emulate_shared_bytes(&bytes) & ~(uintptr_t)1023);
}

uint32_t emulate_shared_address(const void *p)
{
	size_t bytes;
	char *begin = emulate_shared_bytes(&bytes);
	if ((const char *)p < begin || (const char *)p >= begin + bytes)
		emulate_end("the address is not in dynamic shared memory");
	return (uint32_t)((const char *)p - shared_start());
}

/* Shared memory as products see it. */
static std::vector<char> &seen()
{
	std::vector<char> &all = here().seen;
	size_t bytes;
	char *begin = emulate_shared_bytes(&bytes);
	all.resize((size_t)(begin - shared_start()) + bytes, (char)0xff);
	return all;
}

void shared_ready()
{
	std::vector<char> &all = seen();
	size_t bytes;
	char *begin = emulate_shared_bytes(&bytes);
	memcpy(all.data() + (begin - shared_start()), begin, bytes);
	here().tiles_kept = 0;
}

static uint32_t swizzled(uint32_t address, uint32_t mask)
{
	return address ^ (address >> 7 & mask) << 4;
}

/* A matrix descriptor, decoded. */
struct operand {
	uint32_t start, leading, stride, row_bytes, mask;
	bool rows; /* a row of the memory is one of the 16 that are summed over */

	operand(uint64_t d, bool rows_) : rows(rows_)
	{
		static const uint32_t bytes[] = { 16, 128, 64, 32 }, masks[] = { 0, 7, 3, 1 };
		start = (uint32_t)(d & 0x3fff) << 4;
		leading = (uint32_t)(d >> 16 & 0x3fff) << 4;
		stride = (uint32_t)(d >> 32 & 0x3fff) << 4;
		row_bytes = bytes[d >> 62];
		mask = masks[d >> 62];
		if (d >> 49 & 7)
			emulate_end("a matrix descriptor has a base offset, which its tile does not need");
	}

	/* The address of element i of A's rows, or B's columns, at depth k. */
	uint32_t at(unsigned i, unsigned k) const
	{
		uint32_t offset;
		if (row_bytes == 16)
			offset = rows ? i % 8 * 2 + i / 8 * stride + k % 8 * 16 + k / 8 * leading
			              : i % 8 * 16 + i / 8 * stride + k / 8 * leading + k % 8 * 2;
		else
			offset = rows ? i % (row_bytes / 2) * 2 + i / (row_bytes / 2) * leading + k % 8 * row_bytes + k / 8 * stride
			              : i % 8 * row_bytes + i / 8 * stride + k * 2;
		return swizzled(start + offset, mask);
	}

	/* The 16 bytes that begin with element i at depth k: they lie side by side in memory, however it is swizzled. */
	const char *piece(const std::vector<char> &shared, unsigned i, unsigned k) const
	{
		uint32_t address = at(i, k);
		if (address + 16 > shared.size())
			emulate_end("a matrix descriptor leads out of shared memory");
		return shared.data() + address;
	}

	/* Returns true if one of the first `count` rows or columns has an element in [first, end), whole pieces of 16 bytes. */
	bool meets(unsigned count, uint32_t first, uint32_t end) const
	{
		for (unsigned i = 0; i < count; i += rows ? 8 : 1)
			for (unsigned k = 0; k < DEPTH; k += rows ? 1 : 8)
				if (at(i, k) >= first && at(i, k) < end)
					return true;
		return false;
	}
};

/* ---- barriers and copies */

CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *data, const cuuint64_t *dim,
                                const cuuint64_t *stride, const cuuint32_t *box, const cuuint32_t *element_stride,
                                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion,
                                CUtensorMapFloatOOBfill)
{
	if ((uintptr_t)map % 64 || type != CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 || rank != 4 || (uintptr_t)data % 16 ||
	    interleave != CU_TENSOR_MAP_INTERLEAVE_NONE || swizzle != CU_TENSOR_MAP_SWIZZLE_128B || box[0] * 2 > 128)
		return CUDA_ERROR_INVALID_VALUE;
	*map = CUtensorMap();
	for (unsigned i = 0; i < rank; i++) {
		uint64_t bytes = i ? stride[i - 1] : 2;
		if (!dim[i] || dim[i] > (uint64_t)1 << 32 || !box[i] || box[i] > 256 || element_stride[i] != 1 ||
		    (i && (bytes % 16 || bytes >= (uint64_t)1 << 40)))
			return CUDA_ERROR_INVALID_VALUE;
		map->dim[i] = dim[i];
		map->stride[i] = bytes;
		map->box[i] = box[i];
	}
	map->rank = rank;
	map->data = data;
	return CUDA_SUCCESS;
}

static barrier &barrier_at(uint64_t *b)
{
	auto found = here().barriers.find(b);
	if (found == here().barriers.end())
		emulate_end("a barrier is used that was not initialised");
	return found->second;
}

void barrier_init(uint64_t *b, int arrivals)
{
	if (emulate_shared_address(b) % 8 || arrivals < 1)
		emulate_end("a barrier that no GPU takes");
	here().barriers[b] = barrier{ arrivals, arrivals, 0, 0, {} };
}

void barriers_ready()
{
}

/* Calls f(memory of the GPU, NULL outside of the tensor; memory of the block) for all pieces of 16 bytes of a box. */
template <typename F> static void each_piece(const box_copy &c, F f)
{
	const CUtensorMap &m = c.map;
	char *shared = shared_start();
	uint32_t at = (uint32_t)(c.to - shared);
	for (uint32_t i3 = 0; i3 < m.box[3]; i3++)
		for (uint32_t i2 = 0; i2 < m.box[2]; i2++)
			for (uint32_t i1 = 0; i1 < m.box[1]; i1++)
				for (uint32_t i0 = 0; i0 < m.box[0]; i0 += 8, at += 16) {
					int64_t x[] = { c.x[0] + i0, c.x[1] + i1, c.x[2] + i2, c.x[3] + i3 }, from = 0;
					bool inside = true;
					for (int d = 0; d < 4; d++) {
						inside = inside && x[d] >= 0 && (uint64_t)x[d] < m.dim[d];
						from += x[d] * (int64_t)m.stride[d];
					}
					if (inside && (uint64_t)x[0] + 8 > m.dim[0])
						emulate_end("the emulation copies rows of whole pieces of 16 bytes only");
					f(inside ? (char *)m.data + from : NULL, shared + swizzled(at, 7));
				}
}

/* Overwrites a box, before its bytes arrive with nonsense. */
static void write_box(const box_copy &c, bool arrives)
{
	char *all = seen().data(), *start = shared_start();
	each_piece(c, [=](const char *from, char *to) {
		if (arrives && from)
			memcpy(to, from, 16);
		else
			memset(to, arrives ? 0 : 0xff, 16);
		memcpy(all + (to - start), to, 16);
	});
	here().tiles_kept = 0;
}

static void refuse_to_overwrite(const box_copy &c)
{
	uint32_t first = (uint32_t)(c.to - shared_start()), last = first + (uint32_t)c.bytes;
	std::vector<thread> &threads = here().threads;
	for (size_t i = 0; i < threads.size(); i += WARP) /* the others of a warp have the same products */
		for (const product &p : threads[i].products)
			if (operand(p.b, p.b_rows).meets((unsigned)p.columns, first, last) ||
			    (!p.fragment && operand(p.a, p.a_rows).meets(ROWS, first, last)))
				emulate_end("a copy overwrites what a product reads that is in progress");
}

static void copy_box(void *to, const CUtensorMap *map, int x0, int x1, int x2, int x3, uint64_t *b)
{
	box_copy c = { (char *)to, *map, { x0, x1, x2, x3 }, (size_t)map->box[0] * map->box[1] * map->box[2] * map->box[3] * 2 };
	if (emulate_shared_address(to) % 1024 || map->box[0] != 64)
		emulate_end("a swizzled box does not begin on a multiple of 1024 bytes, or has rows of other than 128 bytes");
	emulate_shared_address((char *)to + c.bytes - 1);
	refuse_to_overwrite(c);
	write_box(c, false);
	barrier_at(b).copies.push_back(c);
}

void copy_box_async(void *to, const CUtensorMap *map, int x0, int x1, int x2, int x3, uint64_t *b)
{
	__atomic_add_fetch(&emulate_counts[EMULATE_BOXES], 1, __ATOMIC_RELAXED);
	copy_box(to, map, x0, x1, x2, x3, b);
}

/* Calls f(distance from this block's shared memory to the other's, or 0) for both blocks of the pair. */
template <typename F> static void in_both(F f)
{
	size_t own = emulate_rank();
	char *from = shared_start();
	for (size_t rank = 0; rank < 2; rank++) {
		emulate_look_at(rank);
		f(shared_start() - from);
	}
	emulate_look_at(own);
}

void copy_box_to_both_async(void *to, const CUtensorMap *map, int x0, int x1, int x2, int x3, uint64_t *b)
{
	__atomic_add_fetch(&emulate_counts[EMULATE_BOXES], 1, __ATOMIC_RELAXED);
	in_both([=](ptrdiff_t by) {
		if (by && emulate_has_ended())
			emulate_end("a copy goes to a block of which threads have ended");
		copy_box((char *)to + by, map, x0, x1, x2, x3, (uint64_t *)((char *)b + by));
	});
}

/* Ends the phase if nobody is missing; only then do the copies' bytes arrive. */
static void try_to_complete(barrier *b)
{
	int64_t bytes = 0;
	for (const box_copy &c : b->copies)
		bytes += (int64_t)c.bytes;
	if (b->pending || bytes != b->expected)
		return;
	for (const box_copy &c : b->copies)
		write_box(c, true);
	b->copies.clear();
	b->expected = 0;
	b->pending = b->count;
	b->phase++;
}

static void arrive(uint64_t *at, int bytes)
{
	barrier &b = barrier_at(at);
	try_to_complete(&b);
	if (!b.pending)
		emulate_end("more threads arrive at a barrier than it expects");
	b.pending--;
	b.expected += bytes;
}

void barrier_arrive_expecting(uint64_t *at, int bytes)
{
	arrive(at, bytes);
	emulate_wait_until([] { return true; });
}

void barrier_arrive_in_both(uint64_t *b)
{
	in_both([=](ptrdiff_t by) {
		if (by && emulate_has_ended())
			emulate_end("a thread arrives at a barrier of a block of which threads have ended");
		arrive((uint64_t *)((char *)b + by), 0);
	});
	emulate_wait_until([] { return true; });
}

/* A thread that has waited may come again before others of its block go on: each counts for the times that it has come. */
void pair_wait()
{
	size_t all = (size_t)blockDim.x * blockDim.y * blockDim.z;
	size_t round = here().at_pair_barrier++ / all + 1;
	emulate_wait_until([=] {
		bool over = true;
		size_t own = emulate_rank();
		for (size_t rank = 0; rank < 2; rank++) {
			emulate_look_at(rank);
			over = over && here().at_pair_barrier >= round * all;
		}
		emulate_look_at(own);
		return over;
	});
}

void barrier_arrive(uint64_t *b)
{
	barrier_arrive_expecting(b, 0);
}

void barrier_wait(uint64_t *at, int parity)
{
	barrier *b = &barrier_at(at);
	auto over = [=] {
		if ((int)(b->phase & 1) == parity)
			try_to_complete(b);
		return (int)(b->phase & 1) != parity;
	};
	if (!over())
		emulate_wait_until(over);
}

/* ---- turns */

/* Each turn is taken by all of a group and passed on by all of the other. */
void turn_wait(int group)
{
	block *own = &here();
	size_t turn = own->at_turn[group]++ / (2 * GROUP) + 1;
	emulate_wait_until([=] { return own->at_turn[group] >= turn * 2 * GROUP; });
}

void turn_pass(int group)
{
	here().at_turn[1 - group]++;
}

/* ---- products */

static thread &running()
{
	return here().threads[emulate_thread()];
}

void products_begin()
{
	running().begun = true;
}

static accumulator &accumulator_of(thread &t, float *c, int columns)
{
	for (size_t i = 0; i < t.busy; i++)
		if (t.accumulators[i].c == c)
			return t.accumulators[i];
	if (t.busy == t.accumulators.size())
		t.accumulators.emplace_back();
	accumulator &a = t.accumulators[t.busy++];
	a.c = c;
	a.value.assign(c, c + columns / 2);
	memset((void *)c, 0xff, (size_t)columns / 2 * sizeof *c);
	return a;
}

void emulate_product(float *c, int columns, const uint32_t *fragment, uint64_t a, bool a_rows, uint64_t b, bool b_rows, bool add,
                     emulate_numbers numbers)
{
	thread &t = running();
	uint64_t same[] = { a, b, (uint64_t)add };
	const char *all = emulate_exchange(same, sizeof same);
	if (memcmp(all, same, sizeof same))
		emulate_end("the threads of a warp ask for different products");
	if (!t.begun)
		emulate_end("products are asked for without products_begin");
	product p = { c, columns, fragment, {}, {}, a, b, a_rows, b_rows, add, t.group,
		      numbers, numbers == EMULATE_BF16 ? EMULATE_BF16 : EMULATE_E4M3 };
	if (fragment) {
		memcpy(p.own, fragment, sizeof p.own);
		all = emulate_exchange(p.own, sizeof p.own);
		for (unsigned i = 0; i < 4; i++)
			memcpy(p.lane[i], all + (emulate_thread() % WARP / 4 * 4 + i) * 64, sizeof p.lane[i]);
	}
	accumulator_of(t, c, columns);
	t.products.push_back(p);
	if (!here().multiplies) {
		__atomic_add_fetch(&emulate_counts[EMULATE_WGMMA], 1, __ATOMIC_RELAXED);
		__atomic_add_fetch(&emulate_counts[EMULATE_FP8], numbers != EMULATE_BF16, __ATOMIC_RELAXED);
	}
	here().multiplies = true;
}

void products_commit()
{
	running().group++;
}

static unsigned depth_of(emulate_numbers numbers)
{
	return numbers == EMULATE_BF16 ? DEPTH : MOST_DEPTH;
}

static double number_at(const char *at, unsigned n, emulate_numbers numbers)
{
	uint16_t bits;
	if (numbers != EMULATE_BF16)
		return (double)(numbers == EMULATE_E4M3 ? hspmd_e4m3_value((uint8_t)at[n]) : hspmd_e5m2_value((uint8_t)at[n]));
	memcpy(&bits, at + n * sizeof bits, sizeof bits);
	return (double)hspmd_bf16_to_float(bits);
}

static const double *tile_values(uint64_t descriptor, bool rows, unsigned count, emulate_numbers numbers)
{
	block &own = here();
	for (size_t i = 0; i < own.tiles_kept; i++) {
		const tile &t = own.tiles[i];
		if (t.descriptor == descriptor && t.rows == rows && t.count == count && t.numbers == numbers)
			return t.value.data();
	}
	operand o(descriptor, rows);
	if (own.tiles_kept == own.tiles.size())
		own.tiles.emplace_back();
	tile &made = own.tiles[own.tiles_kept++];
	made.descriptor = descriptor;
	made.rows = rows;
	made.numbers = numbers;
	made.count = count;
	made.value.resize((size_t)depth_of(numbers) * count); /* all are written below */
	double *value = made.value.data();
	const std::vector<char> &shared = seen();
	for (unsigned k = 0; k < DEPTH; k += rows ? 1 : 8)
		for (unsigned i = 0; i < count; i += rows ? 8 : 1) {
			const char *piece = o.piece(shared, i, k);
			if (numbers != EMULATE_BF16)
				for (unsigned n = 0; n < 16; n++)
					value[(2 * k + n) * count + tile_place(i, count)] = number_at(piece, n, numbers);
			else
				for (unsigned n = 0; n < 8; n++)
					value[(rows ? k : k + n) * count + tile_place(rows ? i + n : i, count)] =
					        number_at(piece, n, numbers);
		}
	return value;
}

/* The thread's part of a product: two rows, and in every eight columns two. Where a machine adds a product without rounding it first, the
 * bits are the same: products of BF16 and FP8 numbers are exact. */
#if defined __x86_64__
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
static void
compute(const product &p, std::vector<float> &sums)
{
	unsigned lane = emulate_thread() % WARP, warp = emulate_thread() % GROUP / WARP, columns = (unsigned)p.columns;
	unsigned depth = depth_of(p.a_numbers);
	const double *a = p.fragment ? NULL : tile_values(p.a, p.a_rows, ROWS, p.a_numbers);
	double left[2][MOST_DEPTH];
	for (unsigned half = 0; half < 2; half++)
		for (unsigned k = 0; k < depth; k++) {
			uint32_t pair = p.lane[k % 8 / 2][half + (k >= 8 ? 2 : 0)];
			left[half][k] = a ? a[k * ROWS + tile_place(warp * 16 + lane / 4 + half * 8, ROWS)]
			                  : (double)hspmd_bf16_to_float((uint16_t)(pair >> 16 * (k & 1)));
		}
	const double *b = tile_values(p.b, p.b_rows, columns, p.b_numbers) + lane % 4 * (columns / 4);
	unsigned n = 0;
	for (; n + 8 <= columns / 8; n += 8)
		add_products<eight_doubles, 2>(left, depth, b + n * 2, columns, p.add, &sums[n * 4]);
	for (; n + 4 <= columns / 8; n += 4)
		add_products<eight_doubles, 1>(left, depth, b + n * 2, columns, p.add, &sums[n * 4]);
	for (; n < columns / 8; n++)
		add_products<two_doubles, 1>(left, depth, b + n * 2, columns, p.add, &sums[n * 4]);
}

void emulate_products_wait(unsigned left)
{
	thread &t = running();
	for (size_t k = 0; k < t.busy; k++)
		for (size_t i = 0; i < t.accumulators[k].value.size(); i++) {
			uint32_t bits;
			memcpy(&bits, t.accumulators[k].c + i, sizeof bits);
			if (bits != 0xffffffff)
				emulate_end("an accumulator was written to while a product was in progress");
		}
	size_t done = 0;
	for (; done < t.products.size() && t.products[done].group + left < t.group; done++) {
		const product &p = t.products[done];
		if (p.fragment && memcmp(p.own, p.fragment, sizeof p.own))
			emulate_end("a fragment was written to while a product was in progress");
		compute(p, accumulator_of(t, p.c, p.columns).value);
	}
	t.products.erase(t.products.begin(), t.products.begin() + (ptrdiff_t)done);
	size_t busy = 0;
	for (size_t k = 0; k < t.busy; k++) {
		accumulator &a = t.accumulators[k];
		bool more = false;
		for (const product &p : t.products)
			more |= p.c == a.c;
		if (more)
			std::swap(t.accumulators[busy++], a);
		else
			memcpy((void *)a.c, a.value.data(), a.value.size() * sizeof(float));
	}
	t.busy = busy;
	t.begun = false;
	emulate_exchange("", 0);
}

void emulate_thread_ends()
{
	if (here().threads.size() > emulate_thread() && !running().products.empty())
		emulate_end("a thread ends while its products are in progress");
}
