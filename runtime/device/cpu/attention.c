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

/* Workspace of one thread: packed keys and values of one head, one block of queries, its scores, its output (transposed). */
struct scratch {
	real *keys, *values, *query, *scores, *output;
};

static int64_t lay_out(const struct attention *a, real *base, struct scratch *s)
{
	int64_t d = padded(a->head_dim), used = 0;
	int64_t sizes[] = { padded(a->keys) * a->head_dim, a->keys * d, a->head_dim * QUERIES, (KEYS + MR) * QUERIES, d * QUERIES };
	real **places[] = { &s->keys, &s->values, &s->query, &s->scores, &s->output };
	for (int i = 0; i < 5; i++) {
		if (base)
			*places[i] = base + used;
		used += (sizes[i] + 15) / 16 * 16;
	}
	return used;
}

/* Turns scores into exponentials against the running maximum, and scales sums and output to the new maximum. Keys alternate between two
 * maxima, so that one comparison need not wait for the other. */
static void soften(int64_t keys, int64_t d, const struct scratch *s, vec most[NV], vec sum[NV])
{
	vec now[NV], other[NV], factor[NV], base[NV];
	for (int j = 0; j < NV; j++)
		now[j] = other[j] = most[j];
	for (int64_t k = 0; k + 2 <= keys; k += 2)
		for (int j = 0; j < NV; j++) {
			now[j] = vmax(load(s->scores + k * QUERIES + j * LANES), now[j]);
			other[j] = vmax(load(s->scores + (k + 1) * QUERIES + j * LANES), other[j]);
		}
	for (int j = 0; j < NV; j++) {
		if (keys % 2)
			now[j] = vmax(load(s->scores + (keys - 1) * QUERIES + j * LANES), now[j]);
		now[j] = vmax(now[j], other[j]);
		factor[j] = vexp(most[j] - now[j]);
		base[j] = vmax(now[j], splat(MASKED / 2)); /* no key seen yet: all exponentials are 0 */
		most[j] = now[j];
		sum[j] *= factor[j];
	}
	for (int64_t k = 0; k < keys; k++)
		for (int j = 0; j < NV; j++) {
			real *at = s->scores + k * QUERIES + j * LANES;
			vec e = vexp(load(at) - base[j]);
			sum[j] += e;
			store(at, e);
		}
	for (int64_t i = 0; i < d; i++)
		for (int j = 0; j < NV; j++)
			store(s->output + i * QUERIES + j * LANES, load(s->output + i * QUERIES + j * LANES) * factor[j]);
}

/* Merges the queries' results over earlier keys with those over these keys: softmax over both. Scales both to a common maximum and sum. */
static void merge_output(const struct attention *a, real *o, real *lse, int64_t count, const real *new_lse, real *new_output)
{
	int64_t width = a->heads * a->head_dim;
	for (int64_t j = 0; j < count; j++) {
		real most = lse[j] > new_lse[j] ? lse[j] : new_lse[j];
		real old_part = (real)exp(lse[j] - most), new_part = (real)exp(new_lse[j] - most), sum = old_part + new_part;
		lse[j] = most + (real)log(sum);
		for (int64_t d = 0; d < a->head_dim; d++)
			o[j * width + d] = (o[j * width + d] * old_part + new_output[d * QUERIES + j] * new_part) / sum;
	}
}

static void write_output(const struct attention *a, int64_t batch, int64_t head, int64_t q0, const struct scratch *s, const vec *most,
                         const vec *sum)
{
	int64_t width = a->heads * a->head_dim, count = a->queries - q0 < QUERIES ? a->queries - q0 : QUERIES;
	real inverse[QUERIES], lse[QUERIES];
	for (int j = 0; j < NV; j++)
		for (int i = 0; i < LANES; i++) {
			bool sees = sum[j][i] > 0;
			inverse[j * LANES + i] = sees ? 1 / sum[j][i] : 0;
			lse[j * LANES + i] = sees ? most[j][i] + (real)log(sum[j][i]) : MASKED;
		}
	for (int64_t d = 0; d < a->head_dim; d++)
		for (int j = 0; j < QUERIES; j++)
			s->output[d * QUERIES + j] *= inverse[j];
	real *o = (real *)a->args->out[0].data + (batch * a->queries + q0) * width + head * a->head_dim;
	real *lse_out = (real *)a->args->out[1].data + (batch * a->heads + head) * a->queries + q0;
	if (a->args->out[0].accumulate) {
		merge_output(a, o, lse_out, count, lse, s->output);
		return;
	}
	transpose_copy(o, width, s->output, QUERIES, a->head_dim, count);
	memcpy(lse_out, lse, (size_t)count * sizeof *lse);
}

static void attend_block(const struct attention *a, int64_t batch, int64_t head, int64_t q0, const struct scratch *s)
{
	int64_t d = a->head_dim, count = a->queries - q0 < QUERIES ? a->queries - q0 : QUERIES, first, end;
	const real *q = a->q.data + batch * a->q.batch + q0 * a->q.row + head * d;
	vec most[NV], sum[NV];
	for (int j = 0; j < NV; j++) {
		most[j] = splat(a->sinks ? a->sinks[head] : MASKED);
		sum[j] = splat(a->sinks ? 1 : 0);
	}
	pack_panel_b(s->query, q, 1, a->q.row, d, count);
	for (int64_t i = 0; i < d * QUERIES; i++)
		s->query[i] *= a->scale;
	memset(s->output, 0, (size_t)(padded(d) * QUERIES) * sizeof *s->output);
	keys_seen(a, q0, q0 + count, &first, &end);
	for (int64_t k0 = first / MR * MR; k0 < end; k0 += KEYS) {
		int64_t k1 = k0 + KEYS < end ? k0 + KEYS : end;
		multiply_panels(k1 - k0, d, s->keys + k0 * d, d * MR, s->query, s->scores, QUERIES, false);
		if (a->softcap > 0)
			cap_scores(a, k1 - k0, s->scores);
		if (a->mask)
			add_mask(a, batch, head, q0, k0, k1, s->scores);
		mask_scores(a, batch, q0, k0, k1, s->scores);
		soften(k1 - k0, d, s, most, sum);
		if (a->noise)
			drop_scores(a, batch, head, q0, k0, k1, s->scores);
		multiply_panels(d, k1 - k0, s->values + k0 * MR, a->keys * MR, s->scores, s->output, QUERIES, true);
	}
	write_output(a, batch, head, q0, s, most, sum);
}

/* One part of the queries of one kv head of one sample. Every part packs the keys and values for itself: little work compared with what it
 * saves later. */
static void attend(void *context, int64_t item, int thread)
{
	const struct attention *a = context;
	struct scratch s;
	int64_t part = item % a->parts, kv = item / a->parts % a->kv_heads, batch = item / a->parts / a->kv_heads, d = a->head_dim;
	lay_out(a, (real *)a->args->workspace + thread * a->scratch, &s);
	pack_rows(s.keys, a->k.data + batch * a->k.batch + kv * d, a->k.row, 1, d, a->keys);
	pack_rows(s.values, a->v.data + batch * a->v.batch + kv * d, 1, a->v.row, a->keys, d);
	int64_t first, end;
	heads_of(a, kv, &first, &end);
	for (int64_t head = first; head < end; head++)
		for (int64_t q0 = part * QUERIES; q0 < a->queries; q0 += a->parts * QUERIES)
			attend_block(a, batch, head, q0, &s);
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
