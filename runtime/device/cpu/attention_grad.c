/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/device/cpu/attention.h"

/* Workspace of one thread. For one kv head: keys and values packed for scores (panels of A), keys packed for dq (panels of columns), and
 * sums of dk and dv. For one block of queries: q and do as right operands in both orientations, scores and their gradient. */
struct scratch {
	real *keys, *values, *keys_across;
	real *dk, *dv;                /* [keys][columns_of] */
	real *query, *dout;           /* [PANELS][head_dim][NR] */
	real *query_rows, *dout_rows; /* panels [QUERIES][NR] of columns */
	real *p, *ds;                 /* [KEYS][QUERIES] */
	real *dq;                     /* [QUERIES][columns_of] */
};

static int64_t lay_out(const struct attention *a, real *base, struct scratch *s)
{
	int64_t d = a->head_dim, wide = columns_of(a), keys = padded(a->keys), block = (KEYS + MR) * QUERIES, used = 0;
	int64_t sizes[] = { keys * d,    keys * d,       a->keys * wide, keys * wide, keys * wide, d * QUERIES,
		            d * QUERIES, wide * QUERIES, wide * QUERIES, block,       block,       wide * QUERIES };
	real **places[] = { &s->keys, &s->values,     &s->keys_across, &s->dk, &s->dv, &s->query,
		            &s->dout, &s->query_rows, &s->dout_rows,   &s->p,  &s->ds, &s->dq };
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		if (base)
			*places[i] = base + used;
		used += (sizes[i] + 15) / 16 * 16;
	}
	return used;
}

/* p = exp(scores - lse), ds = p (dp - delta) scale, where ds holds dp on entry; of one panel, for `keys` rows. */
static void differentiate_scores(const struct attention *a, int64_t keys, real *scores, real *ds, const real *lse, const real *delta)
{
	real softcap = a->softcap;
	for (int64_t k = 0; k < keys; k++, scores += QUERIES, ds += QUERIES) {
		vec p[NV], scale[NV];
		for (int j = 0; j < NV; j++) {
			vec score = load(scores + j * LANES);
			scale[j] = splat(a->scale);
			p[j] = score - load(lse + j * LANES);
			if (softcap > 0) {
				vec t = score / splat(softcap);
				scale[j] *= vselect(t < splat(-1), splat(0), splat(1) - t * t); /* hidden scores are far below */
			}
		}
		vexps(p, NV);
		for (int j = 0; j < NV; j++) {
			real *at = ds + j * LANES;
			store(scores + j * LANES, p[j]);
			store(at, p[j] * (load(at) - load(delta + j * LANES)) * scale[j]);
		}
	}
}

/* Adds to the sums of keys [k0, k1) the products of `left`, [keys][QUERIES], whose rows the kernel reads where they are, with the rows of
 * the block's queries in panels of columns. */
static void add_to_keys(const struct attention *a, real *to, int64_t q0, int64_t k0, int64_t k1, const real *left, const real *right)
{
	int64_t wide = columns_of(a), first, end;
	for (int64_t c = 0; c < a->head_dim; c += NR)
		for (int64_t k = k0; k < k1; k += MR) {
			queries_seen(a, k, k + MR < k1 ? k + MR : k1, &first, &end);
			clip(q0, q0 + queries_from(a, q0, QUERIES), &first, &end);
			if (first < end)
				micro_kernel_at(end - first, left + (k - k0) * QUERIES + first - q0, QUERIES, 1,
				                right + c * QUERIES + (first - q0) * NR, to + k * wide + c, wide, true, NULL);
		}
}

static real dot(const real *restrict x, const real *restrict y, int64_t count)
{
	vec sums = { 0 };
	int64_t i = 0;
	for (; i + LANES <= count; i += LANES)
		sums += load(x + i) * load(y + i);
	real sum = reduce_add(sums);
	for (; i < count; i++)
		sum += x[i] * y[i];
	return sum;
}

/* lse and delta = sum of do * o for the block's queries; for those that see no key, and beyond the last, values that make p 0. */
static void query_terms(const struct attention *a, int64_t batch, int64_t head, int64_t q0, int64_t count, int out, real *lse, real *delta)
{
	int64_t d = a->head_dim, width = a->heads * d, at = (batch * a->queries + q0) * width + head * d;
	const real *dout = (const real *)a->args->in[0].data + at, *o = (const real *)a->args->in[out].data + at;
	memcpy(lse, (const real *)a->args->in[out + 1].data + (batch * a->heads + head) * a->queries + q0, (size_t)count * sizeof *lse);
	for (int64_t j = 0; j < QUERIES; j++) {
		delta[j] = j < count ? dot(dout + j * width, o + j * width, d) : 0;
		if (j >= count || lse[j] < MASKED / 2)
			lse[j] = -MASKED;
	}
}

struct grads {
	struct attention a;
	int out; /* input number of o; lse follows */
	struct head_rows dq, dk, dv;
	int64_t shift; /* rows of dq before the first query (packed only) */
};

static void write_dq(const struct grads *g, int64_t batch, int64_t head, int64_t q0, int64_t count, const struct scratch *s)
{
	real *dq = g->dq.data + batch * g->dq.batch + (g->shift + q0) * g->dq.row + head * g->a.head_dim;
	int64_t wide = columns_of(&g->a);
	bool add = g->a.args->out[0].accumulate;
	for (int64_t j = 0; j < count; j++) {
		real *row = dq + j * g->dq.row;
		if (!add)
			memcpy(row, s->dq + j * wide, (size_t)g->a.head_dim * sizeof *row);
		for (int64_t d = 0; add && d < g->a.head_dim; d++)
			row[d] += s->dq[j * wide + d];
	}
}

/* Clears rows of dqkv for queries that are not computed here. */
static void clear_other_rows(const struct grads *g, int64_t batch, int64_t head)
{
	int64_t rows = g->dq.batch / g->dq.row;
	real *dq = g->dq.data + batch * g->dq.batch + head * g->a.head_dim;
	for (int64_t t = 0; t < rows; t++)
		if (t < g->shift || t >= g->shift + g->a.queries)
			memset(dq + t * g->dq.row, 0, (size_t)g->a.head_dim * sizeof *dq);
}

/* Probabilities of one panel and gradients of its scores, for keys [k0, k1). */
static void panel_grad(const struct attention *a, int64_t batch, int64_t head, int64_t q0, int panel, int64_t k0, int64_t k1,
                       const struct scratch *s, const real *lse, const real *delta, struct fetched *fetched)
{
	int64_t q = q0 + panel * NR, d = a->head_dim, first, end;
	keys_seen(a, q, q + queries_from(a, q, NR), &first, &end);
	first = first / MR * MR;
	clip(k0, k1, &first, &end);
	real *p = s->p + panel * NR + (first - k0) * QUERIES, *ds = s->ds + panel * NR + (first - k0) * QUERIES;
	multiply_keys(a, s->keys, first, end, s->query + panel * NR * d, p, fetched);
	multiply_keys(a, s->values, first, end, s->dout + panel * NR * d, ds, fetched);
	if (a->softcap > 0)
		cap_scores(a, end - first, p);
	if (a->mask)
		add_mask(a, batch, head, q, first, end, p);
	mask_scores(a, batch, q, first, end, p);
	if (a->noise)
		drop_scores(a, batch, head, q, first, end, ds);
	differentiate_scores(a, end - first, p, ds, lse + panel * NR, delta + panel * NR);
	if (a->noise)
		drop_scores(a, batch, head, q, first, end, p);
	clear_unseen(k0, padded(k1), first, end, s->p + panel * NR); /* tiles of keys are whole */
	clear_unseen(k0, padded(k1), first, end, s->ds + panel * NR);
}

static void block_grad(const struct grads *g, int64_t batch, int64_t head, int64_t q0, const struct scratch *s, struct fetched *fetched)
{
	const struct attention *a = &g->a;
	int64_t d = a->head_dim, width = a->heads * d, count = queries_from(a, q0, QUERIES), first, end;
	int panels = (int)((count + NR - 1) / NR);
	const real *q = a->q.data + batch * a->q.batch + q0 * a->q.row + head * d;
	const real *dout = (const real *)a->args->in[0].data + (batch * a->queries + q0) * width + head * d;
	real lse[QUERIES], delta[QUERIES];
	query_terms(a, batch, head, q0, count, g->out, lse, delta);
	for (int p = 0; p < panels; p++) {
		int64_t rows = queries_from(a, q0 + p * NR, NR);
		pack_panel_b(s->query + p * NR * d, q + p * NR * a->q.row, 1, a->q.row, d, rows);
		pack_panel_b(s->dout + p * NR * d, dout + p * NR * width, 1, width, d, rows);
	}
	for (int64_t i = 0; i < d * panels * NR; i++)
		s->query[i] *= a->scale;
	pack_columns(a, s->query_rows, QUERIES, q, a->q.row, count);
	pack_columns(a, s->dout_rows, QUERIES, dout, width, count);
	memset(s->dq, 0, (size_t)(QUERIES * columns_of(a)) * sizeof *s->dq);
	keys_seen(a, q0, q0 + count, &first, &end);
	for (int64_t k0 = first / MR * MR; k0 < end; k0 += KEYS) {
		int64_t k1 = k0 + KEYS < end ? k0 + KEYS : end;
		for (int p = 0; p < panels; p++)
			panel_grad(a, batch, head, q0, p, k0, k1, s, lse, delta, fetched);
		add_to_queries(a, q0, k0, k1, s->ds, s->keys_across, s->dq);
		add_to_keys(a, s->dv, q0, k0, k1, s->p, s->dout_rows);
		add_to_keys(a, s->dk, q0, k0, k1, s->ds, s->query_rows);
	}
	if (g->dq.data)
		write_dq(g, batch, head, q0, count, s);
}

static void write_keys(const struct attention *a, const struct head_rows *to, bool add, int64_t batch, int64_t kv, const real *from)
{
	int64_t wide = columns_of(a);
	for (int64_t t = 0; to->data && t < a->keys; t++) {
		real *row = to->data + batch * to->batch + t * to->row + kv * a->head_dim;
		if (!add)
			memcpy(row, from + t * wide, (size_t)a->head_dim * sizeof *from);
		for (int64_t d = 0; add && d < a->head_dim; d++)
			row[d] += from[t * wide + d];
	}
}

/* Rows of dq, dk or dv of one head. */
static void fetch_written(struct fetched *f, const struct head_rows *to, int64_t batch, int64_t column, int64_t rows)
{
	if (to->data)
		fetch_later(f, to->data + batch * to->batch + column, to->row, rows);
}

static void fetch_item(const struct grads *g, int64_t item, struct fetched *f)
{
	const struct attention *a = &g->a;
	int64_t kv = item % a->kv_heads, batch = item / a->kv_heads, d = a->head_dim, width = a->heads * d, first, end;
	heads_of(a, kv, &first, &end);
	if (batch >= a->batches || first >= end)
		return;
	int64_t at = batch * a->queries * width + first * d;
	fetch_later(f, a->k.data + batch * a->k.batch + kv * d, a->k.row, a->keys);
	fetch_later(f, a->v.data + batch * a->v.batch + kv * d, a->v.row, a->keys);
	fetch_later(f, a->q.data + batch * a->q.batch + first * d, a->q.row, a->queries);
	fetch_later(f, (const real *)a->args->in[0].data + at, width, a->queries);
	fetch_later(f, (const real *)a->args->in[g->out].data + at, width, a->queries);
	fetch_written(f, &g->dq, batch, g->shift * g->dq.row + first * d, a->queries);
	fetch_written(f, &g->dk, batch, kv * d, a->keys);
	fetch_written(f, &g->dv, batch, kv * d, a->keys);
}

/* All queries that read one kv head of one sample: dk and dv are summed only here, in a fixed order. */
static void kv_head_grad(void *context, int64_t item, int thread)
{
	const struct grads *g = context;
	const struct attention *a = &g->a;
	struct scratch s;
	struct fetched fetched = { .count = 0 };
	fetch_item(g, item + a->threads, &fetched);
	int64_t kv = item % a->kv_heads, batch = item / a->kv_heads, d = a->head_dim, first, end;
	lay_out(a, (real *)a->args->workspace + thread * a->scratch, &s);
	const real *k = a->k.data + batch * a->k.batch + kv * d;
	pack_rows(s.keys, k, a->k.row, 1, d, a->keys);
	pack_rows(s.values, a->v.data + batch * a->v.batch + kv * d, a->v.row, 1, d, a->keys);
	pack_columns(a, s.keys_across, a->keys, k, a->k.row, a->keys);
	size_t sums = (size_t)(padded(a->keys) * columns_of(a)) * sizeof(real);
	memset(s.dk, 0, sums);
	memset(s.dv, 0, sums);
	heads_of(a, kv, &first, &end);
	for (int64_t head = first; head < end; head++) {
		for (int64_t q0 = 0; q0 < a->queries; q0 += QUERIES)
			block_grad(g, batch, head, q0, &s, &fetched);
		if (g->dq.data)
			clear_other_rows(g, batch, head);
	}
	bool separate = g->out > 2; /* else they are parts of the first output */
	write_keys(a, &g->dk, separate && a->args->out[1].accumulate, batch, kv, s.dk);
	write_keys(a, &g->dv, separate && a->args->out[2].accumulate, batch, kv, s.dv);
}

static void setup(struct grads *g, const struct hspmd_kernel_args *args)
{
	int inputs = (int)LOCAL(attention_inputs)(args, 1);
	struct scratch none;
	*g = (struct grads){ .out = 1 + inputs };
	LOCAL(attention_setup)(&g->a, args, 1, g->out + 2, &args->in[0]);
	g->a.scratch = lay_out(&g->a, NULL, &none);
	const struct attention *a = &g->a;
	g->dq = (struct head_rows){ args->out[0].data, a->q.batch, a->q.row };
	if (inputs == 1) {
		real *dqkv = args->out[0].data;
		g->dk = (struct head_rows){ dqkv ? dqkv + a->heads * a->head_dim : NULL, a->k.batch, a->k.row };
		g->dv = (struct head_rows){ dqkv ? dqkv + 2 * a->heads * a->head_dim : NULL, a->v.batch, a->v.row };
		g->shift = a->query_start - a->key_start;
	} else {
		g->dk = (struct head_rows){ args->out[1].data, a->k.batch, a->k.row };
		g->dv = (struct head_rows){ args->out[2].data, a->v.batch, a->v.row };
	}
}

static void attention_grad(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	struct grads g;
	setup(&g, args);
	g.a.threads = hspmd_thread_pool_threads(cpu->pool);
	double seen = (double)(g.a.group * g.a.queries * g.a.keys), packed = (double)(5 * g.a.keys * g.a.head_dim);
	hspmd_thread_pool_for(cpu->pool, g.a.batches * g.a.kv_heads,
	                      seen * (5 * (double)g.a.head_dim * PRODUCT_NS + VEXP_NS) + packed * MOVE_NS, kv_head_grad, &g);
}

static size_t attention_grad_workspace(const struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	struct grads g;
	setup(&g, args);
	return (size_t)(g.a.scratch * hspmd_thread_pool_threads(cpu->pool)) * sizeof(real);
}

const struct hspmd_cpu_kernel LOCAL(attention_grad) = { attention_grad, attention_grad_workspace };

/* ---- sinks */

/* A sink's score has the probability p = exp(sink - lse) and the gradient -p * delta; for each head the sum over all queries. */
static void sinks_grad_head(void *context, int64_t head, int thread)
{
	const struct hspmd_kernel_args *args = context;
	(void)thread;
	const struct hspmd_view *o = &args->in[1];
	int64_t d = args->attr->head_dim, heads = o->shape[2] / d, queries = o->shape[1];
	double sink = (double)((const real *)args->in[3].data)[head], sum = 0;
	for (int64_t b = 0; b < o->shape[0]; b++)
		for (int64_t q = 0; q < queries; q++) {
			int64_t at = ((b * queries + q) * heads + head) * d;
			const real *dout = (const real *)args->in[0].data + at, *out = (const real *)o->data + at;
			double lse = (double)((const real *)args->in[2].data)[(b * heads + head) * queries + q];
			sum -= exp(sink - lse) * (double)dot(dout, out, d);
		}
	real *to = (real *)args->out[0].data + head;
	*to = (args->out[0].accumulate ? *to : 0) + (real)sum;
}

static void attention_sinks_grad(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	const struct hspmd_view *o = &args->in[1];
	int64_t rows = o->shape[0] * o->shape[1];
	hspmd_thread_pool_for(cpu->pool, o->shape[2] / args->attr->head_dim,
	                      (double)rows * ((double)args->attr->head_dim * MOVE_NS + LIBM_NS), sinks_grad_head, (void *)args);
}

const struct hspmd_cpu_kernel LOCAL(attention_sinks_grad) = { attention_sinks_grad, NULL };
