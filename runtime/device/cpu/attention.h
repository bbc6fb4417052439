/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by attention's forward and backward: the addresses of heads, the visible positions, and products with small panels.
 *
 * Queries are along vectors: NR queries are a panel of the "right" operand, and scores are [key][query], so that softmax needs no sums
 * across lanes (blocks of keys with a running maximum: Dao et al., "FlashAttention", arXiv 2205.14135). T x T is never stored. A block has
 * several panels, so that products that sum over its queries are deep. Each product leaves out what causality and window hide from all
 * rows of its tile.
 */
#ifndef HSPMD_CPU_ATTENTION_H
#define HSPMD_CPU_ATTENTION_H

#include "runtime/device/cpu/kernel.h"
#include "runtime/device/cpu/microkernel.h"
#include "runtime/device/dropout.h"

#define PANELS 3
#define QUERIES (PANELS * NR) /* per block of scores: a multiple of MR, too */
#define KEYS 96               /* per block of scores: a multiple of MR */
#define MASKED ((real)-1e30)

/* The rows (positions) of one tensor's heads: element d of head h at position t of sample b is data[b * batch + t * row + h * head_dim +
 * d]. */
struct head_rows {
	real *data;
	int64_t batch, row;
};

struct attention {
	const struct hspmd_kernel_args *args;
	int64_t batches, head_dim;
	int64_t queries, keys;          /* local positions */
	int64_t query_start, key_start; /* global position of the first */
	int64_t heads, kv_heads;        /* local */
	int64_t first_head, first_kv;   /* global numbers of the first local heads */
	int64_t group;                  /* query heads that share a kv head */
	int64_t window;                 /* 0: none */
	bool bidirectional;             /* else causal */
	real scale, softcap;            /* softcap 0: none */
	const real *sinks;              /* of the first local head on; NULL: none */
	const int32_t *segments;        /* NULL: none */
	int64_t segment_length, segment_start;
	const int32_t *noise; /* of dropout; NULL: none */
	int64_t noise_length, noise_start;
	const real *mask;     /* added to scores; NULL: none */
	int64_t mask_step[4]; /* elements between samples, heads, queries and keys; 0: the same for all */
	struct head_rows q, k, v;
	int threads;     /* that take items */
	int64_t parts;   /* items that share the queries of one kv head */
	int64_t scratch; /* elements of workspace per thread */
};

/* in[first..] are q, k, v or qkv; segments are in[segments] if present. `rows`: o or its gradient, whose positions are the queries to
 * compute (qkv may hold more). */
void LOCAL(attention_setup)(struct attention *a, const struct hspmd_kernel_args *args, int first, int segments,
                            const struct hspmd_view *rows);
int64_t LOCAL(attention_inputs)(const struct hspmd_kernel_args *args, int first); /* 1 (packed) or 3 */

/* Local query heads [*first, *end) that read local kv head `kv`. */
static inline void heads_of(const struct attention *a, int64_t kv, int64_t *first, int64_t *end)
{
	*first = (a->first_kv + kv) * a->group - a->first_head;
	*end = *first + a->group;
	*first = *first > 0 ? *first : 0;
	*end = *end < a->heads ? *end : a->heads;
}

/* Keys [*first, *end) that some query of [q0, q1) may see, by causality and window. */
static inline void keys_seen(const struct attention *a, int64_t q0, int64_t q1, int64_t *first, int64_t *end)
{
	int64_t shift = a->query_start - a->key_start, ahead = !a->bidirectional ? 0 : a->window ? a->window - 1 : a->keys;
	*first = a->window && q0 + shift - a->window + 1 > 0 ? q0 + shift - a->window + 1 : 0;
	*end = q1 + shift + ahead < a->keys ? q1 + shift + ahead : a->keys;
	*end = *end > *first ? *end : *first;
}

/* Queries [*first, *end) that may see some key of [k0, k1), by causality and window. */
static inline void queries_seen(const struct attention *a, int64_t k0, int64_t k1, int64_t *first, int64_t *end)
{
	int64_t shift = a->query_start - a->key_start, low = 0, high = a->queries;
	if (!a->bidirectional)
		low = k0 - shift;
	else if (a->window)
		low = k0 - a->window + 1 - shift;
	if (a->window)
		high = k1 - 1 + a->window - shift;
	*first = low > 0 ? low : 0;
	*end = high < a->queries ? high : a->queries;
	*end = *end > *first ? *end : *first;
}

/* The part [*first, *end) of [k0, k1). */
static inline void clip(int64_t k0, int64_t k1, int64_t *first, int64_t *end)
{
	*first = *first > k0 ? *first : k0;
	*end = *end < k1 ? *end : k1;
	*end = *end > *first ? *end : *first;
}

/* Number of queries, at most `most`, from q0 on. */
static inline int64_t queries_from(const struct attention *a, int64_t q0, int64_t most)
{
	return a->queries - q0 < most ? a->queries - q0 : most;
}

/* Returns true if the query that is `distance` positions after a key may see it, by causality and window. */
static inline bool is_near(const struct attention *a, int64_t distance)
{
	return (distance >= 0 || a->bidirectional) && (!a->window || (distance < a->window && -distance < a->window));
}

/* Adds the mask to scores[key][query], of the panel of queries from q0 and keys [k0, k1). */
static inline void add_mask(const struct attention *a, int64_t batch, int64_t head, int64_t q0, int64_t k0, int64_t k1, real *scores)
{
	const int64_t *step = a->mask_step;
	const real *from = a->mask + batch * step[0] + head * step[1] + q0 * step[2];
	int64_t count = queries_from(a, q0, NR);
	for (int64_t k = k0; k < k1; k++)
		for (int64_t j = 0; j < count; j++)
			scores[(k - k0) * QUERIES + j] += from[j * step[2] + k * step[3]];
}

/* Sets scores[key][query] to MASKED if the query may not see the key, for keys [k0, k1) and the panel of queries from q0. */
static inline void mask_scores(const struct attention *a, int64_t batch, int64_t q0, int64_t k0, int64_t k1, real *scores)
{
	int64_t shift = a->query_start - a->key_start;
	const int32_t *segments = a->segments ? a->segments + batch * a->segment_length - a->segment_start : NULL;
	bool inside = is_near(a, q0 + shift - (k1 - 1)) && is_near(a, q0 + NR - 1 + shift - k0);
	if (inside && !segments)
		return;
	for (int64_t k = k0; k < k1; k++) {
		real *row = scores + (k - k0) * QUERIES;
		if (!segments && is_near(a, q0 + shift - k) && is_near(a, q0 + NR - 1 + shift - k))
			continue;
		for (int64_t j = 0; j < NR; j++) {
			int64_t distance = q0 + j + shift - k;
			if (!is_near(a, distance))
				row[j] = MASKED;
			else if (segments && q0 + j < a->queries && segments[a->query_start + q0 + j] != segments[a->key_start + k])
				row[j] = MASKED;
		}
	}
}

/* Scores become softcap * tanh(score / softcap); not called for 0. */
static inline void cap_scores(const struct attention *a, int64_t keys, real *scores)
{
	for (int64_t k = 0; k < keys; k++)
		for (int64_t i = k * QUERIES; i < k * QUERIES + NR; i += LANES)
			store(scores + i, vsoftcap(load(scores + i), a->softcap));
}

/* Multiplies probabilities or their gradients, [key][query], by dropout's factors. */
static inline void drop_scores(const struct attention *a, int64_t batch, int64_t head, int64_t q0, int64_t k0, int64_t k1, real *scores)
{
	const struct hspmd_op_attr *attr = a->args->attr;
	int64_t count = queries_from(a, q0, NR);
	const int32_t *noise = a->noise + batch * a->noise_length - a->noise_start + a->query_start + q0;
	for (int64_t k = k0; k < k1; k++)
		for (int64_t j = 0; j < count; j++)
			scores[(k - k0) * QUERIES + j] *=
			        (real)hspmd_dropout_factor(attr->rate, attr->random.stream, noise[j],
			                                   hspmd_dropout_probability(a->first_head + head, a->key_start + k));
}

/* Clears a panel's scores for the keys of [k0, k1) that are not in [first, end). */
static inline void clear_unseen(int64_t k0, int64_t k1, int64_t first, int64_t end, real *scores)
{
	for (int64_t k = k0; k < first && k < k1; k++)
		memset(scores + (k - k0) * QUERIES, 0, NR * sizeof *scores);
	for (int64_t k = end; k < k1; k++)
		memset(scores + (k - k0) * QUERIES, 0, NR * sizeof *scores);
}

/* Panels of A from `count` rows, `depth` deep: panel i at to + i * depth * MR. */
static inline void pack_rows(real *to, const real *from, int64_t row_step, int64_t column_step, int64_t depth, int64_t count)
{
	for (int64_t i = 0; i < count; i += MR)
		pack_panel_a(to + i * depth, from + i * row_step, row_step, column_step, depth, count - i < MR ? count - i : MR);
}

static inline int64_t padded(int64_t rows)
{
	return (rows + MR - 1) / MR * MR;
}

/* Elements of a row of head_dim columns in panels of B. */
static inline int64_t columns_of(const struct attention *a)
{
	return (a->head_dim + NR - 1) / NR * NR;
}

/* Panels of B from `count` rows of head_dim elements, which are `step` apart: panel c at to + c * rows * NR. */
static inline void pack_columns(const struct attention *a, real *to, int64_t rows, const real *from, int64_t step, int64_t count)
{
	int64_t whole = a->head_dim / NR * NR;
	for (int64_t k = 0; k < count; k++)
		for (int64_t c = 0; c < whole; c += NR)
			memcpy(to + c * rows + k * NR, from + k * step + c, NR * sizeof *to);
	if (whole < a->head_dim)
		pack_panel_b(to + whole * rows, from + whole, step, 1, count, a->head_dim - whole);
}

/* Rows of one head's tensors, of the item that this thread comes to next: they are fetched into its cache while it multiplies, because
 * heads' rows are short and far apart, which no processor fetches ahead by itself. */
#define FETCHED_TENSORS 8
#define FETCHED_ROWS 3 /* per tile of scores */
struct fetched {
	struct {
		const real *data;
		int64_t row, rows;
	} tensors[FETCHED_TENSORS];
	int count, tensor; /* number of tensors; the current one */
	int64_t row;       /* its next row */
};

static inline void fetch_later(struct fetched *f, const real *data, int64_t row, int64_t rows)
{
	if (!data || !rows)
		return;
	f->tensors[f->count].data = data;
	f->tensors[f->count].row = row;
	f->tensors[f->count++].rows = rows;
}

static inline void fetch_rows(const struct attention *a, struct fetched *f)
{
	for (int n = 0; n < FETCHED_ROWS && f->tensor < f->count; n++) {
		const real *row = f->tensors[f->tensor].data + f->row * f->tensors[f->tensor].row;
		for (int64_t d = 0; d < a->head_dim; d += CACHE_LINE / (int)sizeof *row)
			__builtin_prefetch(row + d, 0, 2);
		if (++f->row == f->tensors[f->tensor].rows)
			f->row = 0, f->tensor++;
	}
}

/* A block's scores of one panel, [key][QUERIES] from key k0 on: keys [k0, k1) times the panel of queries. Writes rows up to a multiple of
 * MR. */
static inline void multiply_keys(const struct attention *a, const real *keys, int64_t k0, int64_t k1, const real *queries, real *scores,
                                 struct fetched *fetched)
{
	int64_t d = a->head_dim;
	for (int64_t k = k0; k < k1; k += MR) {
		fetch_rows(a, fetched);
		micro_kernel(d, keys + k * d, queries, scores + (k - k0) * QUERIES, QUERIES, false, NULL);
	}
}

/* Adds to [query][columns_of] the products of a block's scores, which are of keys [k0, k1), with the keys' rows in panels of columns. */
static inline void add_to_queries(const struct attention *a, int64_t q0, int64_t k0, int64_t k1, const real *scores, const real *rows,
                                  real *to)
{
	int64_t wide = columns_of(a), count = queries_from(a, q0, QUERIES), first, end;
	for (int64_t c = 0; c < a->head_dim; c += NR)
		for (int64_t i = 0; i < count; i += MR) {
			keys_seen(a, q0 + i, q0 + i + queries_from(a, q0 + i, MR), &first, &end);
			clip(k0, k1, &first, &end);
			if (first == end)
				continue;
			micro_kernel_at(end - first, scores + (first - k0) * QUERIES + i, 1, QUERIES, rows + c * a->keys + first * NR,
			                to + i * wide + c, wide, true, NULL);
		}
}

#endif
