/* SPDX-License-Identifier: Apache-2.0 */
/* The local experts of a mixture, one after another: the tokens that chose an expert are gathered, go through its two layers, and are added
 * to their rows. An expert sees its tokens in order and a token its experts in order, so that sums have one order. With FP8 operands they
 * are the same products, of the floats that the FP8 numbers are. */
#include "runtime/device/cpu/fp8_operand.h"
#include "runtime/device/cpu/gate.h"

#define ROWS_PER_ITEM 16

/* What is rounded to FP8 for the products, each with one scale, for all experts. */
struct fp8_operands {
	int scale[HSPMD_EXPERTS_OPERANDS]; /* exponents */
	real amax[HSPMD_EXPERTS_OPERANDS]; /* so far; found by the backward pass alone */
	real *matrix;                      /* one, rounded */
};

/* One call, and in it one expert's tokens. */
struct experts {
	const struct hspmd_kernel_args *args;
	struct hspmd_thread_pool *pool;
	int64_t tokens, width, inner, per_token;
	const real *x, *dy; /* dy NULL: forward */
	const int32_t *choice;
	const real *weights;
	real *dweights; /* NULL: not wanted */
	real *to;       /* y or dx */
	void *workspace;
	const struct hspmd_view *biases; /* of gate, up, down; NULL: none */
	bool is_first;                   /* this device has the first part of the inner width */
	struct fp8_operands *fp8;        /* NULL: operands are not rounded */
	/* of the current expert */
	int64_t count;
	int32_t *token, *slot; /* number of the token, and of the choice among the token's choices */
	real *rows, *rows_dy;  /* [count][width]: x, and dy */
	real *gate, *up, *act; /* [count][inner] */
	real *result;          /* [count][width] */
	const real *down_bias; /* backward; NULL: none here */
};

static int64_t items_of(int64_t rows)
{
	return (rows + ROWS_PER_ITEM - 1) / ROWS_PER_ITEM;
}

static double rows_ns(int64_t length, double element_ns)
{
	return (double)(ROWS_PER_ITEM * length) * element_ns;
}

static void item_range(const struct experts *e, int64_t item, int64_t *first, int64_t *end)
{
	*first = item * ROWS_PER_ITEM;
	*end = *first + ROWS_PER_ITEM < e->count ? *first + ROWS_PER_ITEM : e->count;
}

static void find_tokens(struct experts *e, int32_t expert)
{
	e->count = 0;
	for (int64_t t = 0; t < e->tokens; t++)
		for (int64_t j = 0; j < e->per_token; j++)
			if (e->choice[t * e->per_token + j] == expert) {
				e->token[e->count] = (int32_t)t;
				e->slot[e->count++] = (int32_t)j;
			}
}

static real weight_of(const struct experts *e, int64_t i)
{
	return e->weights[e->token[i] * e->per_token + e->slot[i]];
}

/* ---- FP8 operands: without, these do nothing */

static void find_scales(struct experts *e, struct fp8_operands *fp8, const struct hspmd_view *history)
{
	e->fp8 = fp8;
	memset(fp8->amax, 0, sizeof fp8->amax);
	for (int row = 0; row < HSPMD_EXPERTS_OPERANDS; row++)
		fp8->scale[row] = scale_of(e->args, history, row, hspmd_experts_operand_kind(row));
}

static void note(const struct experts *e, enum hspmd_experts_operand row, const real *values, int64_t count)
{
	real amax = e->dy ? amax_of(values, count) : 0;
	if (amax > e->fp8->amax[row])
		e->fp8->amax[row] = amax;
}

static void round_rows(const struct experts *e, enum hspmd_experts_operand row, real *rows, int64_t length)
{
	if (!e->fp8)
		return;
	note(e, row, rows, e->count * length);
	round_elements(e->pool, rows, e->count * length, e->fp8->scale[row], hspmd_experts_operand_kind(row), rows);
}

/* An expert's matrix as its products read it: until the next call, if it is rounded. */
static const real *operand_of(const struct experts *e, enum hspmd_experts_operand row, const real *matrix)
{
	int64_t count = e->inner * e->width;
	if (!e->fp8)
		return matrix;
	note(e, row, matrix, count);
	if (e->count)
		round_elements(e->pool, matrix, count, e->fp8->scale[row], HSPMD_FP8_WEIGHT, e->fp8->matrix);
	return e->fp8->matrix;
}

/* The thermometers of everything that was rounded. */
static void note_operands(const struct experts *e, const struct hspmd_view *to)
{
	for (int row = 0; to->data && row < HSPMD_EXPERTS_OPERANDS; row++)
		note_amax(e->fp8->amax[row],
		          hspmd_experts_operand_kind(row) == HSPMD_FP8_GRADIENT ? hspmd_amax_unit(e->args->attr->scale) : 0, to, row);
}

/* The forward pass's act, of which the weight's gradient consists. */
static real act_as_read(const struct experts *e, real act)
{
	if (!e->fp8)
		return act;
	int scale = e->fp8->scale[HSPMD_EXPERTS_ACT];
	return fp8_value(act, hspmd_power_of_two(scale), hspmd_power_of_two(-scale), false);
}

/* ---- an expert */

static void gather(void *context, int64_t item, int thread)
{
	const struct experts *e = context;
	(void)thread;
	int64_t first, end;
	size_t bytes = (size_t)e->width * sizeof(real);
	item_range(e, item, &first, &end);
	for (int64_t i = first; i < end; i++) {
		memcpy(e->rows + i * e->width, e->x + e->token[i] * e->width, bytes);
		if (e->dy)
			memcpy(e->rows_dy + i * e->width, e->dy + e->token[i] * e->width, bytes);
	}
}

/* act = f(gate) * up */
static void activate(void *context, int64_t item, int thread)
{
	const struct experts *e = context;
	(void)thread;
	int64_t first, end;
	item_range(e, item, &first, &end);
	for (int64_t i = first * e->inner; i < end * e->inner; i += LANES) {
		int64_t n = end * e->inner - i;
		vec g = n >= LANES ? load(e->gate + i) : load_part(e->gate + i, n),
		    u = n >= LANES ? load(e->up + i) : load_part(e->up + i, n);
		vec a = gate_value(e->args->attr, g, u);
		if (n >= LANES)
			store(e->act + i, a);
		else
			store_part(e->act + i, a, n);
	}
}

static void scatter(void *context, int64_t item, int thread)
{
	const struct experts *e = context;
	(void)thread;
	int64_t first, end;
	item_range(e, item, &first, &end);
	for (int64_t i = first; i < end; i++) {
		real w = e->dy ? 1 : weight_of(e, i);
		const real *from = e->result + i * e->width;
		real *to = e->to + e->token[i] * e->width;
		for (int64_t j = 0; j < e->width; j++)
			to[j] += w * from[j];
	}
}

/* Replaces a row's gate and up by their gradients, for activations other than silu. */
static void differentiate_gate(const struct experts *e, real w, const real *dact, real *gate, real *up)
{
	for (int64_t j = 0; j < e->inner; j += LANES) {
		int64_t n = e->inner - j < LANES ? e->inner - j : LANES;
		vec dgate, dup;
		gate_gradients(e->args->attr, splat(w) * load_part(dact + j, n), load_part(gate + j, n), load_part(up + j, n), &dgate,
		               &dup);
		store_part(gate + j, dgate, n);
		store_part(up + j, dup, n);
	}
}

/* On entry `gate` and `up` hold the first layer, `act` holds act, and `result`, not used yet, holds dy * down, the gradient of act but for
 * the token's weight. Writes the gradient of the weight, replaces gate and up by their gradients, and act by what ddown needs: weight *
 * act. */
static void differentiate(void *context, int64_t item, int thread)
{
	const struct experts *e = context;
	(void)thread;
	int64_t first, end;
	item_range(e, item, &first, &end);
	for (int64_t i = first; i < end; i++) {
		real *gate = e->gate + i * e->inner, *up = e->up + i * e->inner, *act = e->act + i * e->inner;
		const real *dact = e->result + i * e->inner;
		real w = weight_of(e, i), dweight = 0;
		if (e->args->attr->activation != HSPMD_SILU)
			differentiate_gate(e, w, dact, gate, up);
		for (int64_t j = 0; j < e->inner; j++) {
			dweight += act_as_read(e, act[j]) * dact[j];
			act[j] *= w;
			if (e->args->attr->activation != HSPMD_SILU)
				continue;
			real s = 1 / (1 + (real)exp(-gate[j])), g = gate[j], da = w * dact[j];
			gate[j] = da * up[j] * s * (1 + g * (1 - s));
			up[j] = da * g * s;
		}
		for (int64_t j = 0; e->down_bias && j < e->width; j++)
			dweight += e->down_bias[j] * e->rows_dy[i * e->width + j];
		if (e->dweights)
			e->dweights[e->token[i] * e->per_token + e->slot[i]] = dweight;
	}
}

/* C[m,n] (+)= A[m,k] B[k,n] + bias, with the strides of `a` and `b`. bias NULL: none. */
static void multiply(const struct experts *e, int64_t m, int64_t n, int64_t k, struct matrix a, struct matrix b, const real *bias, real *c,
                     bool accumulate)
{
	struct gemm p = { .m = m, .n = n, .k = k, .a = a, .b = b, .c = c, .ldc = n, .bias = bias, .accumulate = accumulate };
	LOCAL(gemm)(e->pool, &p, e->workspace);
}

/* The bias of a local expert's gate (0), up (1) or down (2). NULL: none, or added by the device that has the first part of the inner
 * width. */
static const real *bias_of(const struct experts *e, int which, int64_t expert)
{
	const struct hspmd_view *bias = e->biases ? &e->biases[which] : NULL;
	return bias && bias->data && (which < 2 || e->is_first) ? (const real *)bias->data + expert * bias->shape[1] : NULL;
}

/* gate and up of the gathered rows, and their act. */
static void first_layer(struct experts *e, int64_t expert, const real *gate, const real *up)
{
	struct matrix rows = { e->rows, e->width, 1 };
	hspmd_thread_pool_for(e->pool, items_of(e->count), rows_ns(e->width, MOVE_NS), gather, e);
	round_rows(e, HSPMD_EXPERTS_X, e->rows, e->width);
	multiply(e, e->count, e->inner, e->width, rows, (struct matrix){ operand_of(e, HSPMD_EXPERTS_GATE, gate), 1, e->width },
	         bias_of(e, 0, expert), e->gate, false);
	multiply(e, e->count, e->inner, e->width, rows, (struct matrix){ operand_of(e, HSPMD_EXPERTS_UP, up), 1, e->width },
	         bias_of(e, 1, expert), e->up, false);
	hspmd_thread_pool_for(e->pool, items_of(e->count), rows_ns(e->inner, 2 * VEXP_NS), activate, e);
}

/* Lays out the workspace for all tokens choosing one expert; returns the bytes used. first: number of the first input, x. fp8: is filled
 * in, from the history that follows the matrices; NULL: operands are not rounded. */
static size_t lay_out(const struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args, struct experts *e, int first, bool backward,
                      struct fp8_operands *fp8)
{
	const struct hspmd_view *x = &args->in[first], *gate = &args->in[first + 3];
	*e = (struct experts){ .args = args,
		               .pool = cpu->pool,
		               .tokens = row_count(x),
		               .width = row_length(x),
		               .inner = gate->shape[1],
		               .per_token = row_length(&args->in[first + 1]),
		               .x = x->data,
		               .choice = args->in[first + 1].data,
		               .weights = args->in[first + 2].data,
		               .workspace = args->workspace,
		               .biases = !fp8 && args->input_count > first + 6 ? &args->in[first + 6] : NULL,
		               .is_first = gate->start[1] == 0 };
	int64_t wide = e->width > e->inner ? e->width : e->inner, deep = e->tokens > wide ? e->tokens : wide;
	real *matrix;
	int64_t sizes[] = { e->tokens * e->width,         backward ? e->tokens * e->width : 0,
		            e->tokens * e->inner,         e->tokens * e->inner,
		            e->tokens * e->inner,         e->tokens * wide,
		            fp8 ? e->inner * e->width : 0 };
	real **places[] = { &e->rows, &e->rows_dy, &e->gate, &e->up, &e->act, &e->result, &matrix };
	size_t used = LOCAL(gemm_workspace)(hspmd_thread_pool_threads(cpu->pool), wide, deep),
	       indices = (size_t)(e->tokens * 4 + 63) / 64 * 64;
	used = (used + 63) / 64 * 64;
	char *base = args->workspace;
	for (int i = 0; i < 7; i++) {
		*places[i] = base ? (real *)(base + used) : NULL;
		used += (size_t)(sizes[i] + 15) / 16 * 16 * sizeof(real);
	}
	e->token = base ? (int32_t *)(base + used) : NULL;
	e->slot = base ? (int32_t *)(base + used + indices) : NULL;
	if (fp8 && base) {
		find_scales(e, fp8, &args->in[first + 6]);
		fp8->matrix = matrix;
	}
	return used + 2 * indices;
}

static void forward(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args, struct fp8_operands *fp8)
{
	struct experts e;
	const struct hspmd_view *gate = &args->in[3];
	lay_out(cpu, args, &e, 0, false, fp8);
	e.to = args->out[0].data;
	memset(e.to, 0, (size_t)(e.tokens * e.width) * sizeof *e.to);
	for (int64_t k = 0; k < gate->shape[0]; k++) {
		int64_t at = k * e.inner * e.width;
		find_tokens(&e, (int32_t)(gate->start[0] + k));
		first_layer(&e, k, (const real *)gate->data + at, (const real *)args->in[4].data + at);
		round_rows(&e, HSPMD_EXPERTS_ACT, e.act, e.inner);
		multiply(&e, e.count, e.width, e.inner, (struct matrix){ e.act, e.inner, 1 },
		         (struct matrix){ operand_of(&e, HSPMD_EXPERTS_DOWN, (const real *)args->in[5].data + at), 1, e.inner },
		         bias_of(&e, 2, k), e.result, false);
		hspmd_thread_pool_for(cpu->pool, items_of(e.count), rows_ns(e.width, MOVE_NS), scatter, &e);
	}
}

static void experts(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	forward(cpu, args, NULL);
}

static size_t experts_workspace(const struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	struct experts e;
	return lay_out(cpu, args, &e, 0, false, NULL);
}

static void experts_fp8(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	struct fp8_operands fp8;
	forward(cpu, args, &fp8);
}

static size_t experts_fp8_workspace(const struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	struct experts e;
	struct fp8_operands fp8;
	return lay_out(cpu, args, &e, 0, false, &fp8);
}

/* Gradient of one expert's matrix, unless it is not wanted: left^T right over the expert's tokens. */
static void matrix_grad(const struct experts *e, const struct hspmd_view *out, int64_t at, int64_t m, int64_t n, const real *left,
                        const real *right)
{
	if (!out->data)
		return;
	real *to = (real *)out->data + at;
	if (e->count > 0)
		multiply(e, m, n, e->count, (struct matrix){ left, 1, m }, (struct matrix){ right, n, 1 }, NULL, to, out->accumulate);
	else if (!out->accumulate)
		memset(to, 0, (size_t)(m * n) * sizeof *to);
}

/* Gradient of one expert's bias, unless it is not wanted: the sum of rows, each times the token's weight if `weighted`. */
static void bias_grad(const struct experts *e, int output, int64_t expert, const real *rows, bool weighted)
{
	const struct hspmd_view *out = &e->args->out[output];
	if (e->fp8 || e->args->output_count <= output || !out->data)
		return;
	int64_t n = out->shape[1];
	real *to = (real *)out->data + expert * n;
	if (!out->accumulate)
		memset(to, 0, (size_t)n * sizeof *to);
	for (int64_t i = 0; i < e->count; i++)
		for (int64_t j = 0; j < n; j++)
			to[j] += (weighted ? weight_of(e, i) : 1) * rows[i * n + j];
}

static void expert_grad(struct experts *e, int64_t k)
{
	const struct hspmd_kernel_args *args = e->args;
	int64_t at = k * e->inner * e->width;
	const real *gate = (const real *)args->in[4].data + at, *up = (const real *)args->in[5].data + at,
	           *down = (const real *)args->in[6].data + at;
	first_layer(e, k, gate, up);
	e->down_bias = bias_of(e, 2, k);
	round_rows(e, HSPMD_EXPERTS_DY, e->rows_dy, e->width);
	multiply(e, e->count, e->inner, e->width, (struct matrix){ e->rows_dy, e->width, 1 },
	         (struct matrix){ operand_of(e, HSPMD_EXPERTS_DOWN, down), e->inner, 1 }, NULL, e->result, false);
	if (e->fp8)
		note(e, HSPMD_EXPERTS_ACT, e->act, e->count * e->inner);
	hspmd_thread_pool_for(e->pool, items_of(e->count), rows_ns(e->inner, LIBM_NS), differentiate, e);
	round_rows(e, HSPMD_EXPERTS_WEIGHTED_ACT, e->act, e->inner);
	round_rows(e, HSPMD_EXPERTS_DGATE, e->gate, e->inner);
	round_rows(e, HSPMD_EXPERTS_DUP, e->up, e->inner);
	matrix_grad(e, &args->out[2], at, e->inner, e->width, e->gate, e->rows);
	matrix_grad(e, &args->out[3], at, e->inner, e->width, e->up, e->rows);
	matrix_grad(e, &args->out[4], at, e->width, e->inner, e->rows_dy, e->act);
	bias_grad(e, 5, k, e->gate, false);
	bias_grad(e, 6, k, e->up, false);
	bias_grad(e, 7, k, e->rows_dy, true);
	if (!e->to)
		return;
	multiply(e, e->count, e->width, e->inner, (struct matrix){ e->gate, e->inner, 1 },
	         (struct matrix){ operand_of(e, HSPMD_EXPERTS_GATE, gate), e->width, 1 }, NULL, e->result, false);
	multiply(e, e->count, e->width, e->inner, (struct matrix){ e->up, e->inner, 1 },
	         (struct matrix){ operand_of(e, HSPMD_EXPERTS_UP, up), e->width, 1 }, NULL, e->result, true);
	hspmd_thread_pool_for(e->pool, items_of(e->count), rows_ns(e->width, MOVE_NS), scatter, e);
}

static void backward(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args, struct fp8_operands *fp8)
{
	struct experts e;
	const struct hspmd_view *gate = &args->in[4];
	lay_out(cpu, args, &e, 1, true, fp8);
	e.dy = args->in[0].data;
	e.to = args->out[0].data;
	e.dweights = args->out[1].data;
	if (e.dweights)
		memset(e.dweights, 0, (size_t)(e.tokens * e.per_token) * sizeof *e.dweights);
	if (e.to)
		memset(e.to, 0, (size_t)(e.tokens * e.width) * sizeof *e.to);
	for (int64_t k = 0; k < gate->shape[0]; k++) {
		find_tokens(&e, (int32_t)(gate->start[0] + k));
		expert_grad(&e, k);
	}
	if (fp8 && args->output_count > 5)
		note_operands(&e, &args->out[5]);
}

static void experts_grad(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	backward(cpu, args, NULL);
}

static size_t experts_grad_workspace(const struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	struct experts e;
	return lay_out(cpu, args, &e, 1, true, NULL);
}

static void experts_fp8_grad(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	struct fp8_operands fp8;
	backward(cpu, args, &fp8);
}

static size_t experts_fp8_grad_workspace(const struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	struct experts e;
	struct fp8_operands fp8;
	return lay_out(cpu, args, &e, 1, true, &fp8);
}

const struct hspmd_cpu_kernel LOCAL(experts) = { experts, experts_workspace };
const struct hspmd_cpu_kernel LOCAL(experts_grad) = { experts_grad, experts_grad_workspace };
const struct hspmd_cpu_kernel LOCAL(experts_fp8) = { experts_fp8, experts_fp8_workspace };
const struct hspmd_cpu_kernel LOCAL(experts_fp8_grad) = { experts_fp8_grad, experts_fp8_grad_workspace };
