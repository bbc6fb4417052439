/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/device/cpu/attention.h"

int64_t LOCAL(attention_inputs)(const struct hspmd_kernel_args *args, int first)
{
	return args->in[first].rank == 4 ? 1 : 3;
}

void LOCAL(attention_setup)(struct attention *a, const struct hspmd_kernel_args *args, int first, int segments,
                            const struct hspmd_view *rows)
{
	const struct hspmd_view *q = &args->in[first];
	bool packed = LOCAL(attention_inputs)(args, first) == 1;
	const struct hspmd_view *k = packed ? q : &args->in[first + 1], *v = packed ? q : &args->in[first + 2];
	int last = q->rank - 1;
	int64_t d = args->attr->head_dim, width = q->shape[last], kv_width = k->shape[last];
	*a = (struct attention){ .args = args,
		                 .batches = q->shape[0],
		                 .head_dim = d,
		                 .queries = rows->shape[1],
		                 .keys = k->shape[1],
		                 .query_start = rows->start[1],
		                 .key_start = k->start[1],
		                 .heads = width / d,
		                 .kv_heads = kv_width / d,
		                 .first_head = q->start[last] / d,
		                 .first_kv = k->start[last] / d,
		                 .window = args->attr->window,
		                 .bidirectional = args->attr->bidirectional,
		                 .scale = (real)args->attr->scale,
		                 .softcap = (real)args->attr->softcap };
	a->group = q->full[last] / k->full[last];
	if (args->input_count > segments && args->in[segments].rank >= 0) {
		a->segments = args->in[segments].data;
		a->segment_length = args->in[segments].shape[1];
		a->segment_start = args->in[segments].start[1];
	}
	int noise = segments + (first ? 1 : 2); /* the gradient has no sinks */
	if (args->input_count > noise && args->in[noise].rank >= 0) {
		a->noise = args->in[noise].data;
		a->noise_length = args->in[noise].shape[1];
		a->noise_start = args->in[noise].start[1];
	}
	const struct hspmd_view *mask = &args->in[noise + 1];
	if (args->input_count > noise + 1 && mask->rank >= 0) {
		int64_t step = 1;
		a->mask = mask->data;
		for (int i = 3; i >= 0; step *= mask->shape[i--])
			a->mask_step[i] = mask->full[i] == 1 ? 0 : step;
	}
	int64_t fold = packed ? 3 : 1;
	a->q = (struct head_rows){ q->data, q->shape[1] * fold * width, fold * width };
	a->k = (struct head_rows){ k->data, a->keys * fold * kv_width, fold * kv_width };
	a->v = (struct head_rows){ v->data, a->keys * fold * kv_width, fold * kv_width };
	if (packed && q->data) {
		a->k.data += width;
		a->v.data += 2 * width;
	}
	if (q->data)
		a->q.data += (rows->start[1] - q->start[1]) * a->q.row;
}

/* Workspace of one thread: packed keys and values of one head, one block of queries, its scores, and its output. */
struct scratch {
	real *keys;   /* panels of A */
	real *values; /* panels of B: columns */
	real *query;  /* [PANELS][head_dim][NR] */
	real *scores; /* [KEYS][QUERIES] */
	real *output; /* [QUERIES][columns_of] */
};

static int64_t lay_out(const struct attention *a, real *base, struct scratch *s)
{
	int64_t wide = columns_of(a), used = 0;
	int64_t sizes[] = { padded(a->keys) * a->head_dim, a->keys * wide, a->head_dim * QUERIES, (KEYS + MR) * QUERIES, QUERIES * wide };
	real **places[] = { &s->keys, &s->values, &s->query, &s->scores, &s->output };
	for (int i = 0; i < 5; i++) {
		if (base)
			*places[i] = base + used;
		used += (sizes[i] + 15) / 16 * 16;
	}
	return used;
}

/* What is known of a block's queries after some blocks of keys. */
struct softmax {
	vec most[PANELS][NV], sum[PANELS][NV];
	real factor[QUERIES]; /* by which the last block of keys changed the scale */
};

/* Turns a panel's scores into exponentials against the running maximum, and scales sums to the new maximum. Keys alternate between two
 * maxima, so that one comparison need not wait for the other. */
static void soften(int64_t keys, real *scores, vec most[NV], vec sum[NV], real *factors)
{
	vec now[NV], other[NV], base[NV];
	for (int j = 0; j < NV; j++)
		now[j] = other[j] = most[j];
	for (int64_t k = 0; k + 2 <= keys; k += 2)
		for (int j = 0; j < NV; j++) {
			now[j] = vmax(load(scores + k * QUERIES + j * LANES), now[j]);
			other[j] = vmax(load(scores + (k + 1) * QUERIES + j * LANES), other[j]);
		}
	for (int j = 0; j < NV; j++) {
		if (keys % 2)
			now[j] = vmax(load(scores + (keys - 1) * QUERIES + j * LANES), now[j]);
		now[j] = vmax(now[j], other[j]);
		vec factor = vexp(most[j] - now[j]);
		base[j] = vmax(now[j], splat(MASKED / 2)); /* no key seen yet: all exponentials are 0 */
		most[j] = now[j];
		sum[j] *= factor;
		store(factors + j * LANES, factor);
	}
	for (int64_t k = 0; k < keys; k++, scores += QUERIES) {
		vec e[NV];
		for (int j = 0; j < NV; j++)
			e[j] = load(scores + j * LANES) - base[j];
		vexps(e, NV);
		for (int j = 0; j < NV; j++) {
			sum[j] += e[j];
			store(scores + j * LANES, e[j]);
		}
	}
}

/* Merges the queries' results over earlier keys with those over these keys: softmax over both. Scales both to a common maximum and sum. */
static void merge_output(const struct attention *a, real *o, real *lse, int64_t count, const real *new_lse, const real *new_output)
{
	int64_t width = a->heads * a->head_dim, wide = columns_of(a);
	for (int64_t j = 0; j < count; j++) {
		real most = lse[j] > new_lse[j] ? lse[j] : new_lse[j];
		real old_part = (real)exp(lse[j] - most), new_part = (real)exp(new_lse[j] - most), sum = old_part + new_part;
		lse[j] = most + (real)log(sum);
		for (int64_t d = 0; d < a->head_dim; d++)
			o[j * width + d] = (o[j * width + d] * old_part + new_output[j * wide + d] * new_part) / sum;
	}
}

/* Multiplies the elements of a row, a multiple of LANES of them. */
static void scale_row(real *row, int64_t count, real factor)
{
	for (int64_t d = 0; d < count; d += LANES)
		store(row + d, load(row + d) * splat(factor));
}

static void write_output(const struct attention *a, int64_t batch, int64_t head, int64_t q0, const struct scratch *s,
                         const struct softmax *x)
{
	int64_t width = a->heads * a->head_dim, wide = columns_of(a), count = queries_from(a, q0, QUERIES);
	real most[QUERIES], sum[QUERIES], lse[QUERIES];
	bool add = a->args->out[0].accumulate;
	memcpy(most, x->most, sizeof most);
	memcpy(sum, x->sum, sizeof sum);
	real *o = (real *)a->args->out[0].data + (batch * a->queries + q0) * width + head * a->head_dim;
	real *lse_out = (real *)a->args->out[1].data + (batch * a->heads + head) * a->queries + q0;
	for (int64_t j = 0; j < count; j++) {
		bool sees = sum[j] > 0;
		real *row = s->output + j * wide;
		lse[j] = sees ? most[j] + (real)log(sum[j]) : MASKED;
		scale_row(row, wide, sees ? 1 / sum[j] : 0);
		if (!add)
			memcpy(o + j * width, row, (size_t)a->head_dim * sizeof *row);
	}
	if (add)
		merge_output(a, o, lse_out, count, lse, s->output);
	else
		memcpy(lse_out, lse, (size_t)count * sizeof *lse);
}

/* Exponentials of one panel's scores for keys [k0, k1), and its sums. */
static void score_panel(const struct attention *a, int64_t batch, int64_t head, int64_t q0, int panel, int64_t k0, int64_t k1,
                        const struct scratch *s, struct softmax *x, struct fetched *fetched)
{
	int64_t q = q0 + panel * NR, first, end;
	keys_seen(a, q, q + queries_from(a, q, NR), &first, &end);
	first = first / MR * MR;
	clip(k0, k1, &first, &end);
	real *scores = s->scores + panel * NR + (first - k0) * QUERIES;
	multiply_keys(a, s->keys, first, end, s->query + panel * NR * a->head_dim, scores, fetched);
	if (a->softcap > 0)
		cap_scores(a, end - first, scores);
	if (a->mask)
		add_mask(a, batch, head, q, first, end, scores);
	mask_scores(a, batch, q, first, end, scores);
	soften(end - first, scores, x->most[panel], x->sum[panel], x->factor + panel * NR);
	if (a->noise)
		drop_scores(a, batch, head, q, first, end, scores);
	clear_unseen(k0, k1, first, end, s->scores + panel * NR);
}

static void attend_block(const struct attention *a, int64_t batch, int64_t head, int64_t q0, const struct scratch *s,
                         struct fetched *fetched)
{
	int64_t d = a->head_dim, wide = columns_of(a), count = queries_from(a, q0, QUERIES), first, end;
	int panels = (int)((count + NR - 1) / NR);
	const real *q = a->q.data + batch * a->q.batch + q0 * a->q.row + head * d;
	struct softmax x;
	for (int p = 0; p < PANELS; p++)
		for (int j = 0; j < NV; j++) {
			x.most[p][j] = splat(a->sinks ? a->sinks[head] : MASKED);
			x.sum[p][j] = splat(a->sinks ? 1 : 0);
		}
	for (int p = 0; p < panels; p++)
		pack_panel_b(s->query + p * NR * d, q + p * NR * a->q.row, 1, a->q.row, d, queries_from(a, q0 + p * NR, NR));
	for (int64_t i = 0; i < d * panels * NR; i++)
		s->query[i] *= a->scale;
	memset(s->output, 0, (size_t)(QUERIES * wide) * sizeof *s->output);
	keys_seen(a, q0, q0 + count, &first, &end);
	first = first / MR * MR;
	for (int64_t k0 = first; k0 < end; k0 += KEYS) {
		int64_t k1 = k0 + KEYS < end ? k0 + KEYS : end;
		for (int p = 0; p < panels; p++)
			score_panel(a, batch, head, q0, p, k0, k1, s, &x, fetched);
		for (int64_t j = 0; k0 > first && j < count; j++)
			scale_row(s->output + j * wide, wide, x.factor[j]);
		add_to_queries(a, q0, k0, k1, s->scores, s->values, s->output);
	}
	write_output(a, batch, head, q0, s, &x);
}

static void fetch_item(const struct attention *a, int64_t item, struct fetched *f)
{
	int64_t kv = item / a->parts % a->kv_heads, batch = item / a->parts / a->kv_heads, d = a->head_dim, first, end;
	heads_of(a, kv, &first, &end);
	if (batch >= a->batches || first >= end)
		return;
	fetch_later(f, a->k.data + batch * a->k.batch + kv * d, a->k.row, a->keys);
	fetch_later(f, a->v.data + batch * a->v.batch + kv * d, a->v.row, a->keys);
	fetch_later(f, a->q.data + batch * a->q.batch + first * d, a->q.row, a->queries);
	fetch_later(f, (const real *)a->args->out[0].data + batch * a->queries * a->heads * d + first * d, a->heads * d, a->queries);
}

/* One part of the queries of one kv head of one sample. Every part packs the keys and values for itself: little work compared with what it
 * saves later. */
static void attend(void *context, int64_t item, int thread)
{
	const struct attention *a = context;
	struct scratch s;
	struct fetched fetched = { .count = 0 };
	int64_t part = item % a->parts, kv = item / a->parts % a->kv_heads, batch = item / a->parts / a->kv_heads, d = a->head_dim;
	fetch_item(a, item + a->threads, &fetched);
	lay_out(a, (real *)a->args->workspace + thread * a->scratch, &s);
	pack_rows(s.keys, a->k.data + batch * a->k.batch + kv * d, a->k.row, 1, d, a->keys);
	pack_columns(a, s.values, a->keys, a->v.data + batch * a->v.batch + kv * d, a->v.row, a->keys);
	int64_t first, end;
	heads_of(a, kv, &first, &end);
	for (int64_t head = first; head < end; head++)
		for (int64_t q0 = part * QUERIES; q0 < a->queries; q0 += a->parts * QUERIES)
			attend_block(a, batch, head, q0, &s, &fetched);
}

static void attention(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	struct attention a;
	struct scratch none;
	int segments = (int)LOCAL(attention_inputs)(args, 0);
	LOCAL(attention_setup)(&a, args, 0, segments, &args->out[0]);
	/* a call that adds keys to earlier ones has the sinks in its statistics already */
	if (args->input_count > segments + 1 && args->in[segments + 1].rank >= 0 && !args->out[0].accumulate)
		a.sinks = args->in[segments + 1].data;
	int64_t pairs = a.batches * a.kv_heads, wanted = 4 * hspmd_thread_pool_threads(cpu->pool),
	        blocks = (a.queries + QUERIES - 1) / QUERIES;
	a.parts = pairs && pairs < wanted ? (wanted + pairs - 1) / pairs : 1;
	a.parts = a.parts < blocks || !blocks ? a.parts : blocks;
	a.scratch = lay_out(&a, NULL, &none);
	a.threads = hspmd_thread_pool_threads(cpu->pool);
	double seen = (double)(a.group * a.queries * a.keys) / (double)a.parts, packed = (double)(2 * a.keys * a.head_dim);
	hspmd_thread_pool_for(cpu->pool, pairs * a.parts, seen * (2 * (double)a.head_dim * PRODUCT_NS + VEXP_NS) + packed * MOVE_NS, attend,
	                      &a);
}

static size_t attention_workspace(const struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	struct attention a;
	struct scratch none;
	LOCAL(attention_setup)(&a, args, 0, (int)LOCAL(attention_inputs)(args, 0), &args->out[0]);
	return (size_t)(lay_out(&a, NULL, &none) * hspmd_thread_pool_threads(cpu->pool)) * sizeof(real);
}

const struct hspmd_cpu_kernel LOCAL(attention) = { attention, attention_workspace };
