/* SPDX-License-Identifier: Apache-2.0 */
#include "common/format/model.h"

#include <stdlib.h>

void hspmd_model_destroy(struct hspmd_model *m)
{
	if (!m)
		return;
	json_decref(m->config);
	free(m->own);
	free(m->name);
	free(m);
}

/* ---- counting */

int hspmd_model_layers(const struct hspmd_model *m)
{
	return m->block_count + 2;
}

static int64_t norm_params(const struct hspmd_model *m)
{
	return m->rms_norm ? m->hidden : 2 * m->hidden;
}

static int64_t attention_params(const struct hspmd_model *m)
{
	int64_t q = m->heads * m->head_dim, kv = m->kv_heads * m->head_dim;
	int64_t n = m->hidden * (q + 2 * kv) + q * m->hidden;
	return n + (m->qkv_bias ? q + 2 * kv : 0) + (m->out_bias ? m->hidden : 0);
}

static int64_t mlp_params(const struct hspmd_model *m)
{
	int64_t in = m->gated ? 2 : 1;
	int64_t n = (in + 1) * m->hidden * m->ffn + (m->mlp_bias ? in * m->ffn + m->hidden : 0);
	return m->experts ? m->experts * n + m->experts * m->hidden : n;
}

int64_t hspmd_model_layer_params(const struct hspmd_model *m, int layer)
{
	if (layer == 0)
		return (m->vocab + (m->learnt_positions ? m->max_positions : 0)) * m->hidden;
	if (layer <= m->block_count)
		return 2 * norm_params(m) + attention_params(m) + mlp_params(m);
	return norm_params(m) + (m->tied ? 0 : m->vocab * m->hidden);
}

int64_t hspmd_model_params(const struct hspmd_model *m)
{
	return hspmd_model_layer_params(m, 0) + m->block_count * hspmd_model_layer_params(m, 1) +
	       hspmd_model_layer_params(m, m->block_count + 1);
}

/* Number of pairs of positions that attend: half the square, without the pairs that the window excludes. */
static double attended_pairs(const struct hspmd_model *m, double seq_len)
{
	double window = m->sliding_window > 0 && (double)m->sliding_window < seq_len ? (double)m->sliding_window : seq_len;
	return window * (seq_len - window / 2);
}

double hspmd_model_layer_flops(const struct hspmd_model *m, int layer, int64_t seq_len)
{
	double t = (double)seq_len, h = (double)m->hidden;
	if (layer == 0)
		return 0;
	if (layer > m->block_count)
		return 2 * t * h * (double)m->vocab;
	double q = (double)(m->heads * m->head_dim), kv = (double)(m->kv_heads * m->head_dim);
	double projections = 2 * t * h * (2 * q + 2 * kv);
	double attention = 2 * 2 * attended_pairs(m, t) * q;
	double mlp = 2 * t * h * (double)m->ffn * (m->gated ? 3 : 2);
	double router = 2 * t * h * m->experts;
	return projections + attention + (m->experts ? m->experts_per_token : 1) * mlp + router;
}

int64_t hspmd_model_layer_output(const struct hspmd_model *m, int layer, int64_t seq_len)
{
	return layer > m->block_count ? 1 : seq_len * m->hidden;
}
