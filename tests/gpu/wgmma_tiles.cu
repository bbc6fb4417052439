/* SPDX-License-Identifier: Apache-2.0 */
/* Products of one warp-group on tiles that the tensor memory accelerator copies (runtime/device/cuda/wgmma.h), for each layout that
 * attention and grouped products use, and of a pair of blocks that copy to each other, compared with the same on the host: numbers are so
 * small that all sums are exact. Built for a GPU of compute capability 9.0 and for the emulated one. The emulated one must also notice what
 * a kernel may do wrong: products that are not begun or not waited for, tiles that are used before they are there or overwritten too early,
 * registers that are touched too early, wrong descriptors.
 *
 * Usage: wgmma_tiles      Prints a line per case. Exit status: 0 all right, 1 not, 77 no such GPU. */
#include <stdio.h>
#include <stdlib.h>
#include <vector>

#include "runtime/device/cuda/tensor_map.h"
#include "runtime/device/cuda/wgmma.h"
#include "runtime/tensor/fp8.h"

#ifdef EMULATE
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#endif

#define ROWS 64
#define CASE(how, depth, n) { #how ", " #depth " deep, " #n " wide", how, depth, n, run_kernel<how, depth, n> }

/* How the product of 64 rows, `depth` columns, by n columns is computed:
 * - BY_ROWS: rows of both tiles, which are as wide as the product is deep;
 * - FRAGMENT: the left operand from registers, the right one by columns of a tile of as many rows as the product is deep;
 * - BY_COLUMNS: both by columns of such tiles;
 * - BY_BOTH: the left operand as in the first, the right one as in the last;
 * - CODES: as the first, of E4M3 codes, of which two lie where a BF16 number would; GRADIENT_CODES: the left ones are E5M2. */
enum how { BY_ROWS, FRAGMENT, BY_COLUMNS, BY_BOTH, CODES, GRADIENT_CODES };

/* Returns true if the left tile has the rows of the product. */
static __host__ __device__ constexpr bool left_has_rows(enum how how)
{
	return how != FRAGMENT && how != BY_COLUMNS;
}

/* Returns true if the right tile has the columns of the product as its rows. */
static __host__ __device__ constexpr bool right_has_rows(enum how how)
{
	return how == BY_ROWS || how == CODES || how == GRADIENT_CODES;
}

/* How many numbers lie where a BF16 number would. */
static __host__ __device__ constexpr int in_place_of_one(enum how how)
{
	return how == CODES || how == GRADIENT_CODES ? 2 : 1;
}

enum mistake {
	NONE,
	NOT_BEGUN,
	NOT_WAITED,
	NOT_THERE,
	OVERWRITTEN,
	ACCUMULATOR_TOUCHED,
	FRAGMENT_TOUCHED,
	WRONG_STRIDE,
	WRONG_LEADING,
	WRONG_SWIZZLE,
	MISTAKES
};

struct tile_maps {
	CUtensorMap left, right;
};

template <enum how how, int depth, int n>
static __global__ void __launch_bounds__(GROUP_THREADS)
        tile_kernel(const __grid_constant__ struct tile_maps maps, const bf16 *left_data, float *out, enum mistake mistake)
{
	/* Slabs and rows of the tiles in shared memory. */
	const int left_rows = left_has_rows(how) ? ROWS : depth, left_slabs = (left_has_rows(how) ? depth : ROWS) / SLAB_COLUMNS;
	const int right_rows = right_has_rows(how) ? n : depth, right_slabs = (right_has_rows(how) ? depth : n) / SLAB_COLUMNS;
	const int left_bytes = how == FRAGMENT ? 0 : left_rows * left_slabs * SLAB_ROW_BYTES,
	          right_bytes = right_rows * right_slabs * SLAB_ROW_BYTES;
	DYNAMIC_SHARED(char, shared);
	char *left = shared + (SWIZZLE_BYTES - (shared_address(shared) & (SWIZZLE_BYTES - 1))) % SWIZZLE_BYTES, *right = left + left_bytes;
	uint64_t *b = (uint64_t *)(right + right_bytes);
	float c[n / 8][4];
	uint32_t p[depth / 16][4];
	int own = threadIdx.x / WARP * 16;
	if (threadIdx.x == 0) {
		barrier_init(b, 1);
		barrier_init(b + 1, 1);
		barriers_ready();
		barrier_arrive_expecting(b, left_bytes + right_bytes);
		for (int i = 0; i < left_slabs && left_bytes; i++)
			copy_box_async(left + i * left_rows * SLAB_ROW_BYTES, &maps.left, i * SLAB_COLUMNS, 0, 0, 0, b);
		for (int i = 0; i < right_slabs; i++)
			copy_box_async(right + i * right_rows * SLAB_ROW_BYTES, &maps.right, i * SLAB_COLUMNS, 0, 0, 0, b);
	}
	__syncthreads();
	if (mistake != NOT_THERE)
		barrier_wait(b, 0);
	uint64_t a = slab_descriptor(left, 0), d = slab_descriptor(right, mistake == WRONG_LEADING ? 1024 : right_rows * SLAB_ROW_BYTES);
	if (mistake == WRONG_STRIDE)
		d ^= (uint64_t)(1024 >> 4 ^ 512 >> 4) << 32;
	if (mistake == WRONG_SWIZZLE)
		d ^= (uint64_t)3 << 62;
	for (int k = 0; k < depth; k += 16)
		for (int i = 0; i < 4; i++)
			p[k / 16][i] = *(const uint32_t *)(left_data + (own + fragment_row(i % 2 * 2)) * depth + k + i / 2 * 8 +
			                                   fragment_column(0));
	pin(p);
#ifdef EMULATE
	if (mistake != NOT_BEGUN)
#endif
		products_begin();
#pragma unroll
	for (int k = 0; k < depth; k += 16) {
		int within = k % SLAB_COLUMNS * 2, slab = k / SLAB_COLUMNS;
		if constexpr (how == BY_ROWS)
			multiply_slabs<n, false, false>(c, descriptor_after(a, slab * left_rows * SLAB_ROW_BYTES + within),
			                                descriptor_after(d, slab * right_rows * SLAB_ROW_BYTES + within), k > 0);
		else if constexpr (right_has_rows(how))
			multiply_fp8_slabs<n, how == GRADIENT_CODES>(c, descriptor_after(a, slab * left_rows * SLAB_ROW_BYTES + within),
			                                             descriptor_after(d, slab * right_rows * SLAB_ROW_BYTES + within),
			                                             k > 0);
		else if constexpr (how == BY_BOTH)
			multiply_slabs<n, false, true>(c, descriptor_after(a, slab * left_rows * SLAB_ROW_BYTES + within),
			                               descriptor_after(d, k * SLAB_ROW_BYTES), k > 0);
		else if constexpr (how == FRAGMENT)
			multiply_fragment<n, true>(c, p[k / 16], descriptor_after(d, k * SLAB_ROW_BYTES), k > 0);
		else
			multiply_slabs<n, true, true>(c, descriptor_after(a, k * SLAB_ROW_BYTES), descriptor_after(d, k * SLAB_ROW_BYTES),
			                              k > 0);
	}
	products_commit();
#ifdef EMULATE
	if (mistake == OVERWRITTEN && threadIdx.x == 0)
		copy_box_async(right, &maps.right, 0, 0, 0, 0, b + 1);
	if (mistake == ACCUMULATOR_TOUCHED)
		c[1][2] = 3;
	if (mistake == FRAGMENT_TOUCHED)
		p[0][1] ^= 1;
	if (mistake == NOT_WAITED)
		products_wait<1>();
	else
#endif
		products_wait<0>();
	pin(c);
	pin(p);
	for (int j = 0; j < n / 8; j++)
		for (int i = 0; i < 4; i++)
			out[(own + fragment_row(i)) * n + j * 8 + fragment_column(i)] = c[j][i];
#ifdef EMULATE
	if (mistake == NOT_WAITED)
		products_wait<0>();
#endif
}

struct matrices {
	bf16 *left, *left_data, *right;
	float *out;
	int left_rows, left_columns, right_rows, right_columns; /* as they are stored */
};

static bool map(CUtensorMap *to, const bf16 *data, int rows, int columns, int box)
{
	const int64_t shape[4] = { columns, rows, 1, 1 }, stride[3] = { columns, columns, columns };
	return hspmd_cuda_tensor_map(to, data, shape, stride, box);
}

template <enum how how, int depth, int n> static cudaError_t run_kernel(const struct matrices *m, enum mistake mistake, cudaStream_t stream)
{
	struct tile_maps maps;
	size_t shared = 2 * SWIZZLE_BYTES + (size_t)(ROWS + n) * depth * 2;
	auto *kernel = tile_kernel<how, depth, n>;
	if (!map(&maps.left, m->left, m->left_rows, m->left_columns, left_has_rows(how) ? ROWS : depth) ||
	    !map(&maps.right, m->right, m->right_rows, m->right_columns, right_has_rows(how) ? n : depth))
		return cudaErrorInvalidValue;
	cudaError_t status = allow_shared((const void *)kernel, shared);
	if (status)
		return status;
	LAUNCH(kernel, 1u, GROUP_THREADS, shared, stream, maps, (const bf16 *)m->left_data, m->out, mistake);
	return cudaGetLastError();
}

struct tile_case {
	const char *name;
	enum how how;
	int depth, n;
	cudaError_t (*run)(const struct matrices *m, enum mistake mistake, cudaStream_t stream);
};

static const struct tile_case cases[] = {
	CASE(BY_ROWS, 64, 64),   CASE(BY_ROWS, 64, 128),   CASE(BY_ROWS, 128, 64),   CASE(BY_ROWS, 128, 128),   CASE(FRAGMENT, 64, 64),
	CASE(FRAGMENT, 64, 128), CASE(FRAGMENT, 128, 128), CASE(BY_COLUMNS, 64, 64), CASE(BY_COLUMNS, 64, 128), CASE(BY_BOTH, 64, 128),
	CASE(CODES, 64, 128), CASE(CODES, 128, 128), CASE(GRADIENT_CODES, 64, 128),
};

/* A small whole number that depends on both places. */
static int element(int matrix, int row, int column)
{
	return (int)((unsigned)(row * 131 + column * 17 + matrix * 7) * 2654435761u >> 20) % 7 - 3;
}

/* code: of a number; NULL: they are BF16 numbers. */
static cudaError_t upload(bf16 **to, const std::vector<float> &from, cudaStream_t stream, uint8_t (*code)(float) = NULL)
{
	std::vector<uint16_t> bits;
	for (size_t i = 0; code && i < from.size(); i += 2)
		bits.push_back((uint16_t)(code(from[i]) | code(from[i + 1]) << 8));
	for (float x : code ? std::vector<float>() : from) {
		uint32_t whole;
		memcpy(&whole, &x, sizeof whole);
		bits.push_back((uint16_t)(whole >> 16)); /* exact */
	}
	cudaError_t status = cudaMalloc((void **)to, bits.size() * 2);
	if (!status)
		status = cudaMemcpyAsync(*to, bits.data(), bits.size() * 2, cudaMemcpyHostToDevice, stream);
	return status ? status : cudaStreamSynchronize(stream);
}

/* Returns the number of wrong elements, -1 if it does not run. The right tile has `lacks` rows fewer than the copy takes; those are 0. */
static int check(const struct tile_case *c, enum mistake mistake, int lacks)
{
	std::vector<float> left, turned, right, out((size_t)(ROWS * c->n));
	struct matrices m = {};
	cudaStream_t stream;
	bool rows = right_has_rows(c->how);
	int depth = c->depth * in_place_of_one(c->how);
	uint8_t (*right_code)(float) = in_place_of_one(c->how) == 2 ? hspmd_e4m3_bits : NULL;
	uint8_t (*left_code)(float) = c->how == GRADIENT_CODES ? hspmd_e5m2_bits : right_code;
	for (int i = 0; i < ROWS; i++)
		for (int k = 0; k < depth; k++)
			left.push_back((float)element(0, i, k));
	for (int k = 0; k < depth; k++)
		for (int i = 0; i < ROWS; i++)
			turned.push_back((float)element(0, i, k));
	m.right_rows = (rows ? c->n : c->depth) - lacks;
	m.right_columns = rows ? c->depth : c->n;
	for (int r = 0; r < m.right_rows; r++)
		for (int j = 0; j < m.right_columns * in_place_of_one(c->how); j++)
			right.push_back((float)element(1, rows ? j : r, rows ? r : j));
	m.left_rows = left_has_rows(c->how) ? ROWS : c->depth;
	m.left_columns = left_has_rows(c->how) ? c->depth : ROWS;
	if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) ||
	    upload(&m.left, left_has_rows(c->how) ? left : turned, stream, left_code) ||
	    upload(&m.left_data, left, stream, left_code) || upload(&m.right, right, stream, right_code) ||
	    cudaMalloc((void **)&m.out, out.size() * sizeof(float)) || c->run(&m, mistake, stream) ||
	    cudaMemcpyAsync(out.data(), m.out, out.size() * sizeof(float), cudaMemcpyDeviceToHost, stream) || cudaStreamSynchronize(stream))
		return -1;
	int wrong = 0;
	for (int i = 0; i < ROWS; i++)
		for (int j = 0; j < c->n; j++) {
			float sum = 0;
			for (int k = 0; k < depth; k++)
				if ((rows ? j : k) < m.right_rows)
					sum += (float)(element(0, i, k) * element(1, k, j));
			wrong += !(out[(size_t)(i * c->n + j)] == sum);
		}
	cudaFree(m.left);
	cudaFree(m.left_data);
	cudaFree(m.right);
	cudaFree(m.out);
	cudaStreamDestroy(stream);
	return wrong;
}

/* ---- a pair of blocks, of which each copies half of the right tile to both */

#define PAIR_DEPTH 64
#define PAIR_COLUMNS 128

static __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(GROUP_THREADS)
        pair_kernel(const __grid_constant__ struct tile_maps maps, float *out)
{
	DYNAMIC_SHARED(char, shared);
	char *left = align_tiles(shared), *right = left + ROWS * SLAB_ROW_BYTES;
	uint64_t *b = (uint64_t *)(right + PAIR_COLUMNS * SLAB_ROW_BYTES);
	int rank = (int)(blockIdx.x % 2), half = PAIR_COLUMNS / 2;
	float c[PAIR_COLUMNS / 8][4];
	if (threadIdx.x == 0) {
		barrier_init(b, 1);
		barrier_init(b + 1, 2 * GROUP_THREADS / WARP);
		barriers_ready();
	}
	pair_wait();
	uint64_t a = slab_descriptor(left, 0), d = slab_descriptor(right, 0);
	for (int round = 0; round < 2; round++) { /* the second overwrites what the first has read, in both blocks */
		if (threadIdx.x == 0) {
			barrier_wait(b + 1, round ^ 1);
			barrier_arrive_expecting(b, (ROWS + PAIR_COLUMNS) * SLAB_ROW_BYTES);
			copy_box_async(left, &maps.left, 0, rank * ROWS, 0, 0, b);
			copy_box_to_both_async(right + rank * half * SLAB_ROW_BYTES, &maps.right, 0, rank * half, 0, 0, b);
		}
		__syncwarp();
		barrier_wait(b, round);
		products_begin();
#pragma unroll
		for (int k = 0; k < PAIR_DEPTH; k += 16)
			multiply_slabs<PAIR_COLUMNS, false, false>(c, descriptor_after(a, k * 2), descriptor_after(d, k * 2), k > 0);
		products_commit();
		products_wait<0>();
		pin(c);
		release_stage(b + 1, true);
	}
	int first = rank * ROWS + (int)threadIdx.x / WARP * 16;
	for (int j = 0; j < PAIR_COLUMNS / 8; j++)
		for (int i = 0; i < 4; i++)
			out[(first + fragment_row(i)) * PAIR_COLUMNS + j * 8 + fragment_column(i)] = c[j][i];
	pair_wait();
}

/* Returns the number of wrong elements, -1 if it does not run. */
static int check_pair()
{
	std::vector<float> left, right, out((size_t)(2 * ROWS * PAIR_COLUMNS));
	bf16 *from[2] = {};
	float *to = NULL;
	cudaStream_t stream;
	struct tile_maps maps;
	const size_t shared = SWIZZLE_BYTES + (ROWS + PAIR_COLUMNS) * SLAB_ROW_BYTES + 2 * sizeof(uint64_t);
	for (int k = 0; k < 2 * ROWS * PAIR_DEPTH; k++)
		left.push_back((float)element(0, k / PAIR_DEPTH, k % PAIR_DEPTH));
	for (int k = 0; k < PAIR_COLUMNS * PAIR_DEPTH; k++)
		right.push_back((float)element(1, k % PAIR_DEPTH, k / PAIR_DEPTH));
	if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) || upload(&from[0], left, stream) ||
	    upload(&from[1], right, stream) || cudaMalloc((void **)&to, out.size() * sizeof(float)) ||
	    !map(&maps.left, from[0], 2 * ROWS, PAIR_DEPTH, ROWS) ||
	    !map(&maps.right, from[1], PAIR_COLUMNS, PAIR_DEPTH, PAIR_COLUMNS / 2) || allow_shared((const void *)pair_kernel, shared))
		return -1;
	LAUNCH_PAIRS(pair_kernel, 2u, GROUP_THREADS, shared, stream, maps, to);
	if (cudaGetLastError() || cudaMemcpyAsync(out.data(), to, out.size() * sizeof(float), cudaMemcpyDeviceToHost, stream) ||
	    cudaStreamSynchronize(stream))
		return -1;
	int wrong = 0;
	for (int i = 0; i < 2 * ROWS; i++)
		for (int j = 0; j < PAIR_COLUMNS; j++) {
			float sum = 0;
			for (int k = 0; k < PAIR_DEPTH; k++)
				sum += (float)(element(0, i, k) * element(1, k, j));
			wrong += !(out[(size_t)(i * PAIR_COLUMNS + j)] == sum);
		}
	cudaFree(from[0]);
	cudaFree(from[1]);
	cudaFree(to);
	cudaStreamDestroy(stream);
	return wrong;
}

#ifdef EMULATE
/* A mistake ends the process, or makes elements wrong. */
static bool is_noticed(const struct tile_case *c, enum mistake mistake)
{
	int status = 0;
	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		if (!freopen("/dev/null", "w", stderr))
			_exit(3);
		int wrong = check(c, mistake, 0);
		_exit(wrong > 0 ? 1 : wrong < 0 ? 2 : 0);
	}
	return child > 0 && waitpid(child, &status, 0) == child &&
	       (WIFSIGNALED(status) ? WTERMSIG(status) == SIGABRT : WEXITSTATUS(status) == 1);
}

static bool check_mistakes()
{
	bool good = true;
	for (const struct tile_case &c : cases)
		for (int mistake = NONE + 1; mistake < MISTAKES; mistake++) {
			bool is_none = (mistake == FRAGMENT_TOUCHED && c.how != FRAGMENT) ||
			               (mistake == WRONG_LEADING && (right_has_rows(c.how) || c.n == 64));
			if (is_none)
				continue;
			if (!is_noticed(&c, (enum mistake)mistake)) {
				printf("not ok %s: nobody noticed mistake %d\n", c.name, mistake);
				good = false;
			}
		}
	printf("%s mistakes are noticed\n", good ? "ok" : "not ok");
	return good;
}
#else
static bool check_mistakes()
{
	return true;
}
#endif

int main()
{
	int major = 0, minor = 0, count = 0;
	bool good = true;
	if (cudaGetDeviceCount(&count) || !count || cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) ||
	    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0) || major != 9 || minor != 0 ||
	    !hspmd_cuda_has_tensor_maps()) {
		printf("skipped: no GPU of compute capability 9.0\n");
		return 77;
	}
	for (const struct tile_case &c : cases) {
		int wrong = check(&c, NONE, 0), short_wrong = check(&c, NONE, 5);
		if (wrong || short_wrong)
			printf("not ok %s: %d wrong, %d with missing rows, of %d\n", c.name, wrong, short_wrong, ROWS * c.n);
		else
			printf("ok %s\n", c.name);
		good = good && !wrong && !short_wrong;
	}
	int wrong = check_pair();
	printf("%s a pair of blocks: %d wrong\n", wrong ? "not ok" : "ok", wrong);
	good = good && !wrong;
	return check_mistakes() && good ? 0 : 1;
}
