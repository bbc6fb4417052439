/* SPDX-License-Identifier: Apache-2.0 */
#include "common/format/attention_memory.h"

#define MOST_PARTS 8        /* more save little: only the first part's keys and the last one's queries are alone */
#define BLOCKS_EACH 2       /* keys' blocks of a part for each multiprocessor, at least: fewer end at different times */
#define SCORE_BYTES 2       /* BF16 */
#define MULTIPROCESSORS 132 /* most of a GPU of compute capability 9.0 (H100 SXM5, H200); fewer need no more memory */

static int64_t tiles(int64_t rows)
{
	return (rows + HSPMD_ATTENTION_TILE - 1) / HSPMD_ATTENTION_TILE;
}

/* Of a query head. */
static size_t score_bytes(const struct hspmd_attention_sizes *a)
{
	return (size_t)(tiles(a->keys) * tiles(a->queries)) * HSPMD_ATTENTION_TILE * HSPMD_ATTENTION_TILE * SCORE_BYTES;
}

/* The size of parts of `count` that are at most `most` and about equally large. */
static int part_size(int64_t count, int64_t most)
{
	int64_t parts = (count + most - 1) / most;
	return (int)((count + parts - 1) / parts);
}

struct hspmd_attention_parts hspmd_attention_parts_of(const struct hspmd_attention_sizes *a, int multiprocessors, size_t most)
{
	int64_t all = a->batches * a->heads, room = score_bytes(a) ? (int64_t)(most / score_bytes(a)) : 0,
	        wanted = tiles(a->keys) * a->batches * a->kv_heads / (BLOCKS_EACH * multiprocessors);
	struct hspmd_attention_parts p = { 0, 0, room >= 2 * a->group ? 2 : 1, 0 };
	wanted = p.buffers == 1 || wanted < 1 ? 1 : wanted > MOST_PARTS ? MOST_PARTS : wanted;
	p.buffers = wanted == 1 && room >= all ? 1 : p.buffers;
	room = (room < 2 * all ? room : 2 * all) / p.buffers;
	int64_t each = (a->batches * a->kv_heads + wanted - 1) / wanted, samples = room / a->heads, kv = room / a->group;
	if (samples && each >= a->kv_heads) {
		each = (each + a->kv_heads - 1) / a->kv_heads;
		p.batches = part_size(a->batches, each < samples ? each : samples);
		p.kv_heads = (int)a->kv_heads;
	} else if (samples || kv) {
		kv = samples || kv > a->kv_heads ? a->kv_heads : kv;
		p.batches = 1;
		p.kv_heads = part_size(a->kv_heads, each < kv ? each : kv);
	}
	int64_t heads = p.kv_heads * a->group;
	p.bytes = score_bytes(a) * (size_t)(p.batches * (heads < a->heads ? heads : a->heads));
	return p;
}

/* Returns the largest divisor of n that is at most `most`. */
static int64_t divisor(int64_t n, int64_t most)
{
	int64_t d = n < most ? n : most;
	while (n % d)
		d--;
	return d;
}

bool hspmd_attention_dnn_part(const struct hspmd_attention_sizes *a, size_t in_memory, size_t most, int64_t *samples, int64_t *kv_heads)
{
	int64_t one = a->group * (int64_t)in_memory, room = (int64_t)(most - most / 4);
	*samples = a->batches;
	*kv_heads = a->kv_heads;
	if (one > room)
		return false;
	if (one * a->kv_heads <= room) {
		*samples = one ? divisor(a->batches, room / (one * a->kv_heads)) : a->batches;
	} else {
		*samples = 1;
		*kv_heads = divisor(a->kv_heads, room / one);
	}
	return true;
}

size_t hspmd_attention_delta_bytes(const struct hspmd_attention_sizes *a)
{
	return ((size_t)(a->batches * a->heads * a->queries) * sizeof(float) + 255) / 256 * 256;
}

/* Beside the gradients of scores cuDNN is left a third of their bytes. */
static size_t dnn_bytes(const struct hspmd_attention_sizes *a)
{
	struct hspmd_attention_sizes part = *a;
	size_t scores = (size_t)(a->queries * a->keys) * SCORE_BYTES;
	if (!hspmd_attention_dnn_part(a, scores, HSPMD_ATTENTION_DNN, &part.batches, &part.kv_heads))
		return 0;
	part.heads = part.kv_heads * a->group;
	size_t bytes = hspmd_attention_delta_bytes(&part) + scores * (size_t)(part.batches * part.heads) / 3 * 4;
	return bytes < HSPMD_ATTENTION_DNN ? bytes : HSPMD_ATTENTION_DNN;
}

size_t hspmd_attention_workspace(const struct hspmd_attention_sizes *a, bool wgmma, bool dnn)
{
	if (a->batches < 1 || a->heads < 1 || a->kv_heads < 1 || a->queries < 1)
		return 0;
	size_t own = hspmd_attention_delta_bytes(a), other = dnn && a->dnn && a->heads == a->kv_heads * a->group ? dnn_bytes(a) : 0;
	if (wgmma && a->wgmma) {
		struct hspmd_attention_parts p = hspmd_attention_parts_of(a, MULTIPROCESSORS, HSPMD_ATTENTION_SCORES);
		own += p.bytes * (size_t)p.buffers;
	}
	return own > other ? own : other;
}
