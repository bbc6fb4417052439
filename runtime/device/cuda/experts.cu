/* SPDX-License-Identifier: Apache-2.0 */
/* The local experts of a mixture. The device sorts the tokens by expert, so that the host need not know how many tokens each expert got:
 * grids are sized for the worst case, and blocks beyond the last row return at once. Values between the products have the type of the
 * operands. Products run on tensor cores in BF16 (grouped_gemm.h), and on CUDA cores in F32 or if rows are no multiple of 16 bytes.
 *
 * FP8 operands are codes where FP8 units can multiply them: in BF16 on compute capability 9.0, in rows of whole 16 codes. They multiply
 * only operands whose rows have the depth, so that the matrices are turned for gradients of rows, and rows for gradients of matrices. All
 * others are kept as elements of the type of x, which represents them exactly, and multiplied as such: the same numbers up to the order of
 * sums, at the speed of BF16. A matrix that is rounded moves 3 bytes per element besides, or 4 without codes; what else is rounded is so
 * where it is written, but for act without codes. */
#include "runtime/device/cuda/experts.h"
#include "runtime/device/cuda/gate.h"
#include "runtime/device/cuda/grouped_gemm.h"
#include "runtime/device/cuda/kernel.h"
#include "runtime/device/cuda/row_tiles.h"

#define TILE 32

/* C[row][n] = sum over k of A[row][k] B_e(k, n), where B_e(k, n) is b[e * n * depth elements + k * step_k + n * step_n]; plus the same of
 * the second pair, if there is one. */
struct pairs {
	const void *a[2], *b[2]; /* a[1] NULL: there is one pair */
	int64_t step_k, step_n;
};

template <typename T>
static __global__ void __launch_bounds__(THREADS)
        rows_kernel(const int32_t *first, int experts, struct pairs of, T *c, int64_t n, int64_t depth)
{
	__shared__ float left[TILE][TILE + 1], right[TILE][TILE + 1];
	int row, e = find_tile<TILE>(first, experts, blockIdx.y, &row);
	if (e < 0)
		return;
	int end = first[e + 1], column = threadIdx.x % TILE, line = threadIdx.x / TILE;
	int64_t n0 = (int64_t)blockIdx.x * TILE;
	float sum[TILE / 8] = {};
	int64_t once = (depth + TILE - 1) / TILE * TILE; /* steps of the first pair, whose last may be short */
	for (int64_t at = 0; at < (of.a[1] ? 2 : 1) * once; at += TILE) {
		bool second = at >= once;
		int64_t k0 = second ? at - once : at;
		const T *a = (const T *)(second ? of.a[1] : of.a[0]), *own = (const T *)(second ? of.b[1] : of.b[0]) + e * n * depth;
		__syncthreads();
		for (int i = line; i < TILE; i += 8) {
			left[i][column] = row + i < end && k0 + column < depth ? to_float(a[(row + i) * depth + k0 + column]) : 0.0f;
			/* neighbouring threads read neighbouring elements, whether B is transposed or not */
			int64_t k = k0 + (of.step_k == 1 ? column : i), m = n0 + (of.step_k == 1 ? i : column);
			right[of.step_k == 1 ? column : i][of.step_k == 1 ? i : column] =
			        k < depth && m < n ? to_float(own[k * of.step_k + m * of.step_n]) : 0.0f;
		}
		__syncthreads();
		for (int k = 0; k < TILE; k++)
			for (int i = 0; i < TILE / 8; i++)
				sum[i] += left[line + 8 * i][k] * right[k][column];
	}
	for (int i = 0; i < TILE / 8; i++) {
		int64_t r = row + line + 8 * i;
		if (r < end && n0 + column < n)
			c[r * n + n0 + column] = from_float<T>(sum[i]);
	}
}

/* C_e[m][n] (+)= sum over the rows of expert e of left[row][m] right[row][n] */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
        matrix_kernel(const int32_t *first, const T *left, const T *right, float *c, int64_t m, int64_t n, bool accumulate)
{
	__shared__ float a[TILE][TILE + 1], b[TILE][TILE + 1];
	int e = blockIdx.z, end = first[e + 1], column = threadIdx.x % TILE, line = threadIdx.x / TILE;
	int64_t n0 = (int64_t)blockIdx.x * TILE, m0 = (int64_t)blockIdx.y * TILE;
	float sum[TILE / 8] = {};
	for (int row = first[e]; row < end; row += TILE) {
		__syncthreads();
		for (int i = line; i < TILE; i += 8) {
			a[i][column] = row + i < end && m0 + column < m ? to_float(left[(row + i) * m + m0 + column]) : 0.0f;
			b[i][column] = row + i < end && n0 + column < n ? to_float(right[(row + i) * n + n0 + column]) : 0.0f;
		}
		__syncthreads();
		for (int k = 0; k < TILE; k++)
			for (int i = 0; i < TILE / 8; i++)
				sum[i] += a[k][line + 8 * i] * b[k][column];
	}
	float *own = c + e * m * n;
	for (int i = 0; i < TILE / 8; i++) {
		int64_t r = m0 + line + 8 * i;
		if (r < m && n0 + column < n)
			own[r * n + n0 + column] = (accumulate ? own[r * n + n0 + column] : 0.0f) + sum[i];
	}
}

/* ---- rows */

template <typename T, int operand>
static __global__ void __launch_bounds__(THREADS) gather_kernel(struct experts e, const T *from, T *to, void *codes)
{
	__shared__ float room[WARP];
	int64_t row = blockIdx.x;
	if (row >= e.order.first[e.count])
		return;
	int64_t token = e.order.list[row] / e.per_token;
	float most = 0;
	for (int64_t j = threadIdx.x; j < e.width; j += THREADS) {
		float x = to_float(from[token * e.width + j]);
		most = larger(most, x);
		if (to)
			to[row * e.width + j] = from_float<T>(as_read<operand>(e, x));
		if (codes)
			store_code<operand>(e, codes, row * e.width + j, x);
	}
	note_operand(e, operand, most, room);
}

/* The local expert that a row belongs to. */
static __device__ __forceinline__ int64_t expert_of(const struct experts &e, int64_t row)
{
	int64_t expert = 0;
	while (row >= e.order.first[expert + 1])
		expert++;
	return expert;
}

template <typename T> static __device__ __forceinline__ float activation_of(const struct experts &e, float gate, float up)
{
	return to_float(from_float<T>(gate_value(e.activation, e.limit, gate, up)));
}

/* Adds the biases to gate and up; act = f(gate) * up, if wanted */
template <typename T> static __global__ void __launch_bounds__(THREADS) activate_kernel(struct experts e, bool wants_act)
{
	int64_t row = blockIdx.x;
	if (row >= e.order.first[e.count])
		return;
	T *act_gate = (T *)e.act_gate, *act_up = (T *)e.act_up, *act = (T *)e.act;
	int64_t bias = e.biases[0] ? expert_of(e, row) * e.inner - row * e.inner : 0;
	for (int64_t j = row * e.inner + threadIdx.x; j < (row + 1) * e.inner; j += THREADS) {
		if (e.biases[0]) {
			act_gate[j] = from_float<T>(to_float(act_gate[j]) + to_float(((const T *)e.biases[0])[bias + j]));
			act_up[j] = from_float<T>(to_float(act_up[j]) + to_float(((const T *)e.biases[1])[bias + j]));
		}
		if (wants_act)
			act[j] = from_float<T>(activation_of<T>(e, to_float(act_gate[j]), to_float(act_up[j])));
	}
}

/* Sums, per token, the results of the local experts over the token's choices; weighted: each times the choice's weight. */
template <typename T>
static __global__ void __launch_bounds__(THREADS) scatter_kernel(struct experts e, const int32_t *choice, int32_t lowest, bool weighted)
{
	int64_t token = blockIdx.x;
	for (int64_t j = threadIdx.x; j < e.width; j += THREADS) {
		float sum = 0;
		for (int64_t k = token * e.per_token; k < (token + 1) * e.per_token; k++) {
			if (e.order.rank[k] < 0)
				continue;
			int64_t row = e.order.first[choice[k] - lowest] + e.order.rank[k];
			float result = to_float(((const T *)e.result)[row * e.width + j]);
			if (weighted && e.biases[2] && e.is_first)
				result += to_float(((const T *)e.biases[2])[(choice[k] - lowest) * e.width + j]);
			sum += (weighted ? to_float(((const T *)e.weights)[k]) : 1.0f) * result;
		}
		((T *)e.to)[token * e.width + j] = from_float<T>(sum);
	}
}

/* On entry `result` holds dy * down, the gradient of act without the token's weight. Writes the gradient of the weight, and weight * act,
 * which ddown needs, and replaces gate and up with their gradients. */
template <typename T> static __global__ void __launch_bounds__(THREADS) differentiate_kernel(struct experts e)
{
	__shared__ float room[WARP];
	int64_t row = blockIdx.x;
	if (row >= e.order.first[e.count])
		return;
	int64_t k = e.order.list[row];
	float w = to_float(((const T *)e.weights)[k]), dweight = 0, most_act = 0, most_weighted = 0, most_gate = 0, most_up = 0;
	T *act_gate = (T *)e.act_gate, *act_up = (T *)e.act_up, *act = (T *)e.act;
	for (int64_t j = row * e.inner + threadIdx.x; j < (row + 1) * e.inner; j += THREADS) {
		float dact = to_float(((const T *)e.result)[j]), gate = to_float(act_gate[j]), up = to_float(act_up[j]), dgate, dup;
		float own = activation_of<T>(e, gate, up);
		dweight += as_read<HSPMD_EXPERTS_ACT>(e, own) * dact;
		gate_gradients(e.activation, e.limit, w * dact, gate, up, &dgate, &dup);
		if (e.is_coded) {
			store_code<HSPMD_EXPERTS_DGATE>(e, e.dgate_codes, j, dgate);
			store_code<HSPMD_EXPERTS_DUP>(e, e.dup_codes, j, dup);
			store_code<HSPMD_EXPERTS_WEIGHTED_ACT>(e, e.act_codes, j, w * own);
		} else {
			act_gate[j] = from_float<T>(as_read<HSPMD_EXPERTS_DGATE>(e, dgate));
			act_up[j] = from_float<T>(as_read<HSPMD_EXPERTS_DUP>(e, dup));
			act[j] = from_float<T>(as_read<HSPMD_EXPERTS_WEIGHTED_ACT>(e, w * own));
		}
		most_act = larger(most_act, own);
		most_weighted = larger(most_weighted, w * own);
		most_gate = larger(most_gate, dgate);
		most_up = larger(most_up, dup);
	}
	note_operand(e, HSPMD_EXPERTS_ACT, most_act, room);
	note_operand(e, HSPMD_EXPERTS_WEIGHTED_ACT, most_weighted, room);
	note_operand(e, HSPMD_EXPERTS_DGATE, most_gate, room);
	note_operand(e, HSPMD_EXPERTS_DUP, most_up, room);
	if (e.biases[2] && e.is_first) {
		const T *bias = (const T *)e.biases[2] + expert_of(e, row) * e.width;
		for (int64_t j = threadIdx.x; j < e.width; j += THREADS)
			dweight += to_float(bias[j]) * to_float(((const T *)e.rows_dy)[row * e.width + j]);
	}
	dweight = block_reduce<Sum>(dweight, 0.0f, room);
	if (threadIdx.x == 0 && e.dweights)
		((T *)e.dweights)[k] = from_float<T>(dweight);
}

/* to[expert][j] (+)= the sum of the expert's rows, each times the token's weight if `weighted`. */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
        bias_kernel(struct experts e, const T *rows, int64_t width, float *to, bool weighted, bool accumulate)
{
	int64_t j = (int64_t)blockIdx.x * THREADS + threadIdx.x, expert = blockIdx.y;
	if (j >= width)
		return;
	float sum = 0;
	for (int64_t row = e.order.first[expert]; row < e.order.first[expert + 1]; row++)
		sum += (weighted ? to_float(((const T *)e.weights)[e.order.list[row]]) : 1.0f) * to_float(rows[row * width + j]);
	to[expert * width + j] = (accumulate ? to[expert * width + j] : 0.0f) + sum;
}

/* ---- for the host */

static struct hspmd_cuda_groups groups_of(const struct experts *e)
{
	return { e->order.first, e->count, e->most };
}

static int report_refused(const struct experts *e, struct hspmd_error *err)
{
	return e->refused ? hspmd_cuda_failed(cudaErrorInvalidValue, "describing codes of experts for products", err) : 0;
}

static int gradient_unit(const struct hspmd_kernel_args *args)
{
	return hspmd_amax_unit(args->attr->scale);
}

static void find_scales(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, const struct experts *e, int first)
{
	const struct hspmd_view *history = &args->in[first + 6];
	if (e->fp8)
		LAUNCH(find_scales_kernel, HSPMD_EXPERTS_OPERANDS, WARP, 0, cuda->stream, history->data, history->dtype == HSPMD_F32,
		       gradient_unit(args), e->fp8);
}

/* A matrix of all experts as products read it: in e->rounded[slot], if it is rounded. rows: of one expert's; turned: as codes, with its
 * columns as rows. */
template <typename T>
static const void *operand_of(struct hspmd_cuda *cuda, const struct experts *e, int operand, const void *matrix, int64_t rows, int slot,
                              bool turned)
{
	struct rounding r = {};
	if (!e->fp8)
		return matrix;
	r.columns = r.stride = e->inner * e->width / rows;
	r.rows = rows * (turned ? 1 : e->count);
	r.scale = e->fp8->scale[operand];
	r.amax = e->notes_amax ? &e->fp8->amax[operand] : NULL;
	unsigned blocks = blocks_of(&r, turned);
	if (!e->is_coded)
		round_as<T, T>(cuda, matrix, e->rounded[slot], &r, blocks);
	else if (turned)
		LAUNCH(turn_kernel, dim3(blocks, (unsigned)e->count), THREADS, 0, cuda->stream, (const bf16 *)matrix,
		       (fp8_code *)e->rounded[slot], r);
	else
		round_as<bf16, fp8_code>(cuda, matrix, e->rounded[slot], &r, blocks);
	return e->rounded[slot];
}

/* The inverse scales of two products' operands. */
static struct hspmd_cuda_inverse_scales inverse_scales(const struct experts *e, int left, int right, int other_left, int other_right)
{
	return { { &e->fp8->scale[left][1], &e->fp8->scale[other_left][1] }, { &e->fp8->scale[right][1], &e->fp8->scale[other_right][1] } };
}

/* c = a0 b0, plus a1 b1 if there is a1, of every expert's rows; transposed: b is [n, depth] for each expert, else [depth, n]. */
template <typename T>
static void multiply_rows(struct hspmd_cuda *cuda, const struct experts *e, const void *a0, const void *b0, const void *a1, const void *b1,
                          void *c, int64_t n, int64_t depth, bool transposed)
{
	if (hspmd_cuda_grouped_fits(sizeof(T) == 2 ? HSPMD_BF16 : HSPMD_F32, n, depth)) {
		const void *a[] = { a0, a1 }, *b[] = { b0, b1 };
		struct hspmd_cuda_groups groups = groups_of(e);
		hspmd_cuda_grouped_rows(cuda, &groups, a, b, c, n, depth, transposed);
		return;
	}
	auto *kernel = rows_kernel<T>;
	struct pairs of = { { a0, a1 }, { b0, b1 }, transposed ? (int64_t)1 : n, transposed ? depth : (int64_t)1 };
	dim3 grid((unsigned)ceil_div(n, TILE), most_tiles(e->most, e->count, TILE));
	LAUNCH(kernel, grid, THREADS, 0, cuda->stream, e->order.first, (int)e->count, of, (T *)c, n, depth);
}

/* Codes, and which operands they are. [1] NULL: there is one pair. */
struct code_pairs {
	const void *codes[2];
	int operand[2];
};

/* result = a0 b0, plus a1 b1 if there is a1, of every expert's rows, in codes; b is [n, depth] for each expert. */
static void multiply_codes(struct hspmd_cuda *cuda, struct experts *e, struct code_pairs a, struct code_pairs b, int64_t n, int64_t depth)
{
	struct hspmd_cuda_groups groups = groups_of(e);
	int other = a.codes[1] ? 1 : 0;
	struct hspmd_cuda_inverse_scales scales =
	        inverse_scales(e, a.operand[0], b.operand[0], a.operand[other], b.operand[other]);
	bool gradient = a.operand[0] >= HSPMD_EXPERTS_DY;
	e->refused |= !hspmd_cuda_grouped_fp8_rows(cuda, &groups, a.codes, b.codes, &scales, gradient, e->result, n, depth);
}

/* Gate and up in one product, where there is one; the forward pass needs their activation alone, the backward pass what it is computed
 * from. */
template <typename T>
static bool gate_up_at_once(struct hspmd_cuda *cuda, const struct experts *e, const void *gate, const void *up, bool forward)
{
	struct hspmd_cuda_groups groups = groups_of(e);
	struct hspmd_cuda_gate_up p = {};
	p.gate = gate;
	p.up = up;
	p.biases[0] = e->biases[0];
	p.biases[1] = e->biases[1];
	p.act_gate = forward ? NULL : e->act_gate;
	p.act_up = forward ? NULL : e->act_up;
	p.act = forward ? e->act : NULL;
	p.activation = e->activation;
	p.limit = e->limit;
	if (e->is_coded) {
		struct hspmd_cuda_inverse_scales scales =
		        inverse_scales(e, HSPMD_EXPERTS_X, HSPMD_EXPERTS_GATE, HSPMD_EXPERTS_X, HSPMD_EXPERTS_UP);
		p.act = forward ? e->act_codes : NULL;
		return hspmd_cuda_grouped_fp8_gate_up(cuda, &groups, e->x_codes, e->inner, e->width, &scales, &p,
		                                      e->fp8->scale[HSPMD_EXPERTS_ACT]);
	}
	return cuda->wgmma && hspmd_cuda_grouped_fits(sizeof(T) == 2 ? HSPMD_BF16 : HSPMD_F32, e->inner, e->width) &&
	       hspmd_cuda_grouped_wgmma_gate_up(cuda, &groups, e->rows, e->inner, e->width, &p);
}

/* Sorts and gathers the rows, and runs them through the first layer: to act, or if not forward to gate and up. */
template <typename T>
static void first_layer(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct experts *e, int first, bool forward)
{
	hspmd_cuda_stable_sort_run(cuda, (const int32_t *)args->in[first + 1].data, e->most, (int32_t)args->in[first + 3].start[0],
	                           e->count, args->workspace, &e->order);
	find_scales(cuda, args, e, first);
	auto *gather = gather_kernel<T, HSPMD_EXPERTS_X>;
	LAUNCH(gather, (unsigned)e->most, THREADS, 0, cuda->stream, *e, (const T *)e->x, (T *)e->rows, e->x_codes);
	const void *gate = operand_of<T>(cuda, e, HSPMD_EXPERTS_GATE, e->gate, e->inner, 0, false);
	const void *up = operand_of<T>(cuda, e, HSPMD_EXPERTS_UP, e->up, e->inner, 1, false);
	bool at_once = gate_up_at_once<T>(cuda, e, gate, up, forward);
	e->refused |= e->is_coded && !at_once;
	if (at_once || e->is_coded)
		return;
	multiply_rows<T>(cuda, e, e->rows, gate, NULL, NULL, e->act_gate, e->inner, e->width, true);
	multiply_rows<T>(cuda, e, e->rows, up, NULL, NULL, e->act_up, e->inner, e->width, true);
	auto *activate = activate_kernel<T>;
	if (forward || e->biases[0])
		LAUNCH(activate, (unsigned)e->most, THREADS, 0, cuda->stream, *e, forward);
}

template <typename T>
static int experts_of(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, bool fp8, struct hspmd_error *err)
{
	struct experts e;
	lay_out(cuda, args, &e, 0, false, fp8);
	e.to = args->out[0].data;
	if (!e.most)
		return 0;
	first_layer<T>(cuda, args, &e, 0, true);
	auto *round_act = round_act_kernel<T>;
	if (fp8 && !e.is_coded)
		LAUNCH(round_act, (unsigned)e.most, THREADS, 0, cuda->stream, e);
	const void *down = operand_of<T>(cuda, &e, HSPMD_EXPERTS_DOWN, e.down, e.width, 0, false);
	if (e.is_coded)
		multiply_codes(cuda, &e, { { e.act_codes }, { HSPMD_EXPERTS_ACT } }, { { down }, { HSPMD_EXPERTS_DOWN } }, e.width,
		               e.inner);
	else
		multiply_rows<T>(cuda, &e, e.act, down, NULL, NULL, e.result, e.width, e.inner, true);
	auto *scatter = scatter_kernel<T>;
	LAUNCH(scatter, (unsigned)e.tokens, THREADS, 0, cuda->stream, e, (const int32_t *)args->in[1].data, (int32_t)args->in[3].start[0],
	       true);
	return report_refused(&e, err);
}

/* A factor of a gradient of matrices: as elements, or turned as codes of this operand. */
struct grad_factor {
	const void *elements, *turned;
	int operand;
};

template <typename T>
static void matrix_grad(struct hspmd_cuda *cuda, struct experts *e, const struct hspmd_view *out, int64_t m, int64_t n,
                        struct grad_factor left, struct grad_factor right)
{
	if (!out->data)
		return;
	float *to = (float *)out->data;
	struct hspmd_cuda_groups groups = groups_of(e);
	if (e->is_coded) {
		struct hspmd_cuda_inverse_scales scales = inverse_scales(e, left.operand, right.operand, left.operand, right.operand);
		e->refused |= !hspmd_cuda_grouped_fp8_grad(cuda, &groups, left.turned, right.turned, &scales, to, m, n, out->accumulate);
		return;
	}
	if (hspmd_cuda_grouped_fits(sizeof(T) == 2 ? HSPMD_BF16 : HSPMD_F32, m, n)) {
		hspmd_cuda_grouped_grad(cuda, &groups, left.elements, right.elements, to, m, n, out->accumulate);
		return;
	}
	auto *kernel = matrix_kernel<T>;
	dim3 grid((unsigned)ceil_div(n, TILE), (unsigned)ceil_div(m, TILE), (unsigned)e->count);
	LAUNCH(kernel, grid, THREADS, 0, cuda->stream, e->order.first, (const T *)left.elements, (const T *)right.elements, to, m, n,
	       out->accumulate);
}

template <typename T>
static void bias_grad(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, const struct experts *e, int output, const void *rows,
                      bool weighted)
{
	if (e->fp8 || args->output_count <= output || !args->out[output].data)
		return;
	int64_t width = args->out[output].shape[1];
	auto *kernel = bias_kernel<T>;
	LAUNCH(kernel, dim3((unsigned)ceil_div(width, THREADS), (unsigned)e->count), THREADS, 0, cuda->stream, *e, (const T *)rows, width,
	       (float *)args->out[output].data, weighted, args->out[output].accumulate);
}

template <typename T>
static int experts_grad_of(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, bool fp8, struct hspmd_error *err)
{
	struct experts e;
	lay_out(cuda, args, &e, 1, true, fp8);
	e.dy = args->in[0].data;
	e.to = args->out[0].data;
	e.dweights = args->out[1].data;
	if (!e.most)
		return 0;
	if (e.dweights)
		cudaMemsetAsync(e.dweights, 0, (size_t)e.most * sizeof(T), cuda->stream);
	first_layer<T>(cuda, args, &e, 1, false);
	struct hspmd_cuda_groups groups = groups_of(&e);
	bool turns = e.is_coded && (args->out[2].data || args->out[3].data || args->out[4].data);
	auto *gather = gather_kernel<T, HSPMD_EXPERTS_DY>;
	LAUNCH(gather, (unsigned)e.most, THREADS, 0, cuda->stream, e, (const T *)e.dy, (T *)e.rows_dy, e.dy_codes);
	const struct hspmd_cuda_turned of_width[] = { { e.x_codes, e.x_turned, e.width }, { e.dy_codes, e.dy_turned, e.width } };
	if (turns)
		hspmd_cuda_grouped_fp8_turn(cuda, &groups, of_width, 2);
	const void *down = operand_of<T>(cuda, &e, HSPMD_EXPERTS_DOWN, e.down, e.width, 0, e.is_coded);
	if (e.is_coded)
		multiply_codes(cuda, &e, { { e.dy_codes }, { HSPMD_EXPERTS_DY } }, { { down }, { HSPMD_EXPERTS_DOWN } }, e.inner, e.width);
	else
		multiply_rows<T>(cuda, &e, e.rows_dy, down, NULL, NULL, e.result, e.inner, e.width, false);
	auto *differentiate = differentiate_kernel<T>;
	LAUNCH(differentiate, (unsigned)e.most, THREADS, 0, cuda->stream, e);
	const struct hspmd_cuda_turned of_inner[] = { { e.dgate_codes, e.dgate_turned, e.inner },
		                                      { e.dup_codes, e.dup_turned, e.inner },
		                                      { e.act_codes, e.act_turned, e.inner } };
	if (turns)
		hspmd_cuda_grouped_fp8_turn(cuda, &groups, of_inner, 3);
	struct grad_factor x = { e.rows, e.x_turned, HSPMD_EXPERTS_X }, dy = { e.rows_dy, e.dy_turned, HSPMD_EXPERTS_DY };
	matrix_grad<T>(cuda, &e, &args->out[2], e.inner, e.width, { e.act_gate, e.dgate_turned, HSPMD_EXPERTS_DGATE }, x);
	matrix_grad<T>(cuda, &e, &args->out[3], e.inner, e.width, { e.act_up, e.dup_turned, HSPMD_EXPERTS_DUP }, x);
	matrix_grad<T>(cuda, &e, &args->out[4], e.width, e.inner, dy, { e.act, e.act_turned, HSPMD_EXPERTS_WEIGHTED_ACT });
	bias_grad<T>(cuda, args, &e, 5, e.act_gate, false);
	bias_grad<T>(cuda, args, &e, 6, e.act_up, false);
	bias_grad<T>(cuda, args, &e, 7, e.rows_dy, true);
	if (e.notes_amax)
		LAUNCH(note_operands_kernel, HSPMD_EXPERTS_OPERANDS, HSPMD_AMAX_BINS, 0, cuda->stream, e.fp8, gradient_unit(args),
		       (float *)args->out[5].data, args->out[5].accumulate);
	if (!e.to)
		return report_refused(&e, err);
	e.notes_amax = false; /* they were noted */
	const void *gate = operand_of<T>(cuda, &e, HSPMD_EXPERTS_GATE, e.gate, e.inner, 0, e.is_coded);
	const void *up = fp8 && !e.is_coded ? e.rounded[1] : operand_of<T>(cuda, &e, HSPMD_EXPERTS_UP, e.up, e.inner, 1, e.is_coded);
	if (e.is_coded)
		multiply_codes(cuda, &e, { { e.dgate_codes, e.dup_codes }, { HSPMD_EXPERTS_DGATE, HSPMD_EXPERTS_DUP } },
		               { { gate, up }, { HSPMD_EXPERTS_GATE, HSPMD_EXPERTS_UP } }, e.width, e.inner);
	else
		multiply_rows<T>(cuda, &e, e.act_gate, gate, e.act_up, up, e.result, e.width, e.inner, false);
	auto *scatter = scatter_kernel<T>;
	LAUNCH(scatter, (unsigned)e.tokens, THREADS, 0, cuda->stream, e, (const int32_t *)args->in[2].data, (int32_t)args->in[4].start[0],
	       false);
	return report_refused(&e, err);
}

static int prepare(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *, struct hspmd_prepared *, struct hspmd_error *err)
{
	return hspmd_cuda_grouped_prepare(cuda, err);
}

#define FUNCTIONS(name, fp8)                                                                                                               \
	static int name##_forward(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *err)                  \
	{                                                                                                                                  \
		if (!args->prepared && hspmd_cuda_grouped_prepare(cuda, err))                                                              \
			return -1;                                                                                                         \
		return BY_TYPE(args->in[0].dtype, experts_of, cuda, args, fp8, err);                                                       \
	}                                                                                                                                  \
	static size_t name##_workspace(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args)                                      \
	{                                                                                                                                  \
		struct experts e;                                                                                                          \
		return lay_out(cuda, args, &e, 0, false, fp8);                                                                             \
	}                                                                                                                                  \
	static int name##_backward(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *err)                 \
	{                                                                                                                                  \
		if (!args->prepared && hspmd_cuda_grouped_prepare(cuda, err))                                                              \
			return -1;                                                                                                         \
		return BY_TYPE(args->in[1].dtype, experts_grad_of, cuda, args, fp8, err);                                                  \
	}                                                                                                                                  \
	static size_t name##_grad_workspace(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args)                                 \
	{                                                                                                                                  \
		struct experts e;                                                                                                          \
		return lay_out(cuda, args, &e, 1, true, fp8);                                                                              \
	}

FUNCTIONS(experts, false)
FUNCTIONS(experts_fp8, true)

const struct hspmd_cuda_kernel hspmd_cuda_experts = { experts_forward, experts_workspace, NULL, prepare };
const struct hspmd_cuda_kernel hspmd_cuda_experts_grad = { experts_backward, experts_grad_workspace, NULL, prepare };
const struct hspmd_cuda_kernel hspmd_cuda_experts_fp8 = { experts_fp8_forward, experts_fp8_workspace, NULL, prepare };
const struct hspmd_cuda_kernel hspmd_cuda_experts_fp8_grad = { experts_fp8_backward, experts_fp8_grad_workspace, NULL, prepare };
