/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by attention's forward and backward: the addresses of heads, the visible positions, and products with small panels.
 *
 * Queries are along vectors: a block of QUERIES queries is a panel of the "right" operand, and scores are [key][query], so that softmax
 * needs no sums across lanes (blocks of keys with a running maximum: Dao et al., "FlashAttention", arXiv 2205.14135). T x T is never
 * stored.
 */
#ifndef HSPMD_CPU_ATTENTION_H
#define HSPMD_CPU_ATTENTION_H

#include "runtime/device/cpu/kernel.h"
#include "runtime/device/cpu/microkernel.h"
#include "runtime/device/dropout.h"

#define QUERIES NR
#define KEYS 96 /* keys per block of scores: a multiple of MR */
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

/* Returns true if the query that is `distance` positions after a key may see it, by causality and window. */
static inline bool is_near(const struct attention *a, int64_t distance)
{
	return (distance >= 0 || a->bidirectional) && (!a->window || (distance < a->window && -distance < a->window));
}

/* Adds the mask to scores[key][query]. */
static inline void add_mask(const struct attention *a, int64_t batch, int64_t head, int64_t q0, int64_t k0, int64_t k1, real *scores)
{
	const int64_t *step = a->mask_step;
	const real *from = a->mask + batch * step[0] + head * step[1] + q0 * step[2];
	int64_t count = a->queries - q0 < QUERIES ? a->queries - q0 : QUERIES;
	for (int64_t k = k0; k < k1; k++)
		for (int64_t j = 0; j < count; j++)
			scores[(k - k0) * QUERIES + j] += from[j * step[2] + k * step[3]];
}

/* Sets scores[key][query] to MASKED if the query may not see the key, for keys [k0, k1) and QUERIES queries from q0. */
static inline void mask_scores(const struct attention *a, int64_t batch, int64_t q0, int64_t k0, int64_t k1, real *scores)
{
	int64_t shift = a->query_start - a->key_start;
	const int32_t *segments = a->segments ? a->segments + batch * a->segment_length - a->segment_start : NULL;
	bool inside = is_near(a, q0 + shift - (k1 - 1)) && is_near(a, q0 + QUERIES - 1 + shift - k0);
	if (inside && !segments)
		return;
	for (int64_t k = k0; k < k1; k++) {
		real *row = scores + (k - k0) * QUERIES;
		if (!segments && is_near(a, q0 + shift - k) && is_near(a, q0 + QUERIES - 1 + shift - k))
			continue;
		for (int64_t j = 0; j < QUERIES; j++) {
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
	for (int64_t i = 0; i < keys * QUERIES; i += LANES)
		store(scores + i, vsoftcap(load(scores + i), a->softcap));
}

/* Multiplies probabilities or their gradients, [key][query], by dropout's factors. */
static inline void drop_scores(const struct attention *a, int64_t batch, int64_t head, int64_t q0, int64_t k0, int64_t k1, real *scores)
{
	const struct hspmd_op_attr *attr = a->args->attr;
	int64_t count = a->queries - q0 < QUERIES ? a->queries - q0 : QUERIES;
	const int32_t *noise = a->noise + batch * a->noise_length - a->noise_start + a->query_start + q0;
	for (int64_t k = k0; k < k1; k++)
		for (int64_t j = 0; j < count; j++)
			scores[(k - k0) * QUERIES + j] *=
			        (real)hspmd_dropout_factor(attr->rate, attr->random.stream, noise[j],
			                                   hspmd_dropout_probability(a->first_head + head, a->key_start + k));
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

/* C[rows up to a multiple of MR][NR] (+)= panels of A times one panel of B. `stride`: elements from one panel of A to the next. */
static inline void multiply_panels(int64_t rows, int64_t depth, const real *a, int64_t stride, const real *b, real *c, int64_t ldc,
                                   bool add)
{
	for (int64_t i = 0; i < rows; i += MR, a += stride)
		micro_kernel(depth, a, b, c + i * ldc, ldc, add, NULL);
}

#endif
