/* SPDX-License-Identifier: Apache-2.0 */
/* Softmax cross-entropy over a vocabulary that may be split: each shard's statistics of its logits, the loss from all shards' statistics,
 * and the gradient of the shard's logits; of a vocabulary that is whole, statistics and gradient row by row, while a row is in the cache:
 * from and to memory go the logits once and their gradient once. */
#include "runtime/device/cpu/kernel.h"

#define ROWS_PER_ITEM 8

static int64_t items_of(const struct hspmd_view *logits)
{
	return (row_count(logits) + ROWS_PER_ITEM - 1) / ROWS_PER_ITEM;
}

static double row_ns(const struct hspmd_view *logits)
{
	return (double)row_length(logits) * VEXP_NS;
}

static real largest_of(const real *x, int64_t n)
{
	vec most = splat(x[0]);
	int64_t j = 0;
	for (; j + LANES <= n; j += LANES)
		most = vmax(load(x + j), most);
	real best = reduce_max(most);
	for (; j < n; j++)
		best = x[j] > best ? x[j] : best;
	return best;
}

static real sum_of_exp(const real *x, int64_t n, real most)
{
	vec sum = { 0 };
	int64_t j = 0;
	for (; j + LANES <= n; j += LANES)
		sum += vexp(load(x + j) - splat(most));
	if (j < n) {
		vec e = vexp(load_part(x + j, n - j) - splat(most));
		real lane[LANES];
		memcpy(lane, &e, sizeof e);
		sum += load_part(lane, n - j);
	}
	return reduce_add(sum);
}

static double sum_of(const real *x, int64_t n)
{
	double sum = 0;
	for (int64_t j = 0; j < n; j++)
		sum += (double)x[j];
	return sum;
}

/* Of row r of the logits. */
static void stats_of_row(const struct hspmd_view *logits, const int32_t *targets, const struct hspmd_view *to, int64_t r)
{
	int64_t n = row_length(logits), first = logits->start[logits->rank - 1], width = row_length(to);
	const real *x = (const real *)logits->data + r * n;
	real *stats = (real *)to->data + width * r;
	stats[0] = largest_of(x, n);
	stats[1] = sum_of_exp(x, n, stats[0]);
	stats[2] = targets[r] >= first && targets[r] < first + n ? x[targets[r] - first] : 0;
	if (width > 3)
		stats[3] = (real)(sum_of(x, n) / (double)logits->full[logits->rank - 1]);
}

/* One past the last row of an item. */
static int64_t end_of(const struct hspmd_view *logits, int64_t item)
{
	int64_t end = (item + 1) * ROWS_PER_ITEM, rows = row_count(logits);
	return end < rows ? end : rows;
}

static void stats_rows(void *context, int64_t item, int thread)
{
	const struct hspmd_kernel_args *args = context;
	(void)thread;
	for (int64_t r = item * ROWS_PER_ITEM; r < end_of(&args->in[0], item); r++)
		stats_of_row(&args->in[0], args->in[1].data, &args->out[0], r);
}

static void vocab_stats(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	hspmd_thread_pool_for(cpu->pool, items_of(&args->in[0]), row_ns(&args->in[0]) * ROWS_PER_ITEM, stats_rows, (void *)args);
}

/* Log of the sum of exponentials over all shards, and the target's logit, with smoothing, of row r. stats is [parts][rows][width]. */
static double log_sum(const struct hspmd_op_attr *attr, const struct hspmd_view *view, int64_t rows, int64_t r, double *target)
{
	const real *stats = view->data;
	int64_t parts = view->shape[0], width = row_length(view);
	double most = stats[width * r], sum = 0;
	*target = 0;
	for (int64_t p = 0; p < parts; p++) {
		const real *s = stats + width * (p * rows + r);
		most = s[0] > most ? s[0] : most;
		*target += width > 3 ? (1 - attr->smoothing) * (double)s[2] + attr->smoothing * (double)s[3] : (double)s[2];
	}
	for (int64_t p = 0; p < parts; p++) {
		const real *s = stats + width * (p * rows + r);
		sum += s[1] * exp(s[0] - most);
	}
	return most + log(sum);
}

/* What a token counts: 0 if its target is ignored. weights: input number. */
static double weight_of(const struct hspmd_kernel_args *args, int weights, int64_t r)
{
	int32_t target = ((const int32_t *)args->in[1].data)[r];
	if (target < 0 || (args->attr->ignores && target == args->attr->numbers[0]))
		return 0;
	bool weighted = args->input_count > weights && args->in[weights].rank >= 0;
	return weighted ? (double)((const real *)args->in[weights].data)[r] : 1;
}

static void loss(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	(void)cpu;
	const struct hspmd_view *stats = &args->in[0];
	int64_t rows = element_count(&args->in[1]);
	double total = 0, target;
	for (int64_t r = 0; r < rows; r++) {
		double weight = weight_of(args, 2, r);
		if (weight != 0)
			total += weight * (log_sum(args->attr, stats, rows, r, &target) - target);
	}
	double *out = args->out[0].data;
	*out = (args->out[0].accumulate ? *out : 0) + args->attr->scale * total;
}

/* Of row r; weights: input number. */
static void grad_of_row(const struct hspmd_kernel_args *args, const struct hspmd_view *stats, int weights, int64_t r)
{
	const struct hspmd_view *logits = &args->in[0];
	const int32_t *targets = args->in[1].data;
	int64_t n = row_length(logits), first = logits->start[logits->rank - 1];
	double smoothing = args->attr->smoothing, target;
	real uniform = (real)(smoothing / (double)logits->full[logits->rank - 1]);
	const real *x = (const real *)logits->data + r * n;
	real *dx = (real *)args->out[0].data + r * n;
	real scale = (real)(args->attr->scale * weight_of(args, weights, r));
	if (scale == 0) {
		memset(dx, 0, (size_t)n * sizeof *dx);
		return;
	}
	vec shift = splat((real)log_sum(args->attr, stats, row_count(logits), r, &target));
	int64_t j = 0;
	for (; j + LANES <= n; j += LANES)
		store(dx + j, (vexp(load(x + j) - shift) - splat(uniform)) * splat(scale));
	if (j < n)
		store_part(dx + j, (vexp(load_part(x + j, n - j) - shift) - splat(uniform)) * splat(scale), n - j);
	if (targets[r] >= first && targets[r] < first + n)
		dx[targets[r] - first] -= scale * (real)(1 - smoothing);
}

static void grad_rows(void *context, int64_t item, int thread)
{
	const struct hspmd_kernel_args *args = context;
	(void)thread;
	for (int64_t r = item * ROWS_PER_ITEM; r < end_of(&args->in[0], item); r++)
		grad_of_row(args, &args->in[2], 3, r);
}

static void both_rows(void *context, int64_t item, int thread)
{
	const struct hspmd_kernel_args *args = context;
	(void)thread;
	for (int64_t r = item * ROWS_PER_ITEM; r < end_of(&args->in[0], item); r++) {
		stats_of_row(&args->in[0], args->in[1].data, &args->out[1], r);
		grad_of_row(args, &args->out[1], 2, r);
	}
}

static void loss_grad(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	hspmd_thread_pool_for(cpu->pool, items_of(&args->in[0]), row_ns(&args->in[0]) * ROWS_PER_ITEM, grad_rows, (void *)args);
}

static void cross_entropy(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	hspmd_thread_pool_for(cpu->pool, items_of(&args->in[0]), 2 * row_ns(&args->in[0]) * ROWS_PER_ITEM, both_rows, (void *)args);
}

const struct hspmd_cpu_kernel LOCAL(vocab_stats) = { vocab_stats, NULL };
const struct hspmd_cpu_kernel LOCAL(loss) = { loss, NULL };
const struct hspmd_cpu_kernel LOCAL(loss_grad) = { loss_grad, NULL };
const struct hspmd_cpu_kernel LOCAL(cross_entropy) = { cross_entropy, NULL };
