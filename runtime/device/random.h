/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers that are a pure function of (seed, stream, index): every device and every plan draws the same ones. Philox4x32-10 (Salmon
 * et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011), keyed by seed and counted by stream and index; normal numbers by Box and
 * Muller. The index is that of an element in the full tensor, whichever device holds it. */
#ifndef HSPMD_DEVICE_RANDOM_H
#define HSPMD_DEVICE_RANDOM_H

#include <math.h>
#include <stdint.h>

#include "runtime/device/device.h"

#ifdef __CUDACC__
#define HSPMD_RANDOM static __host__ __device__ inline
#else
#define HSPMD_RANDOM static inline
#endif

HSPMD_RANDOM void hspmd_random_words(uint64_t seed, uint64_t stream, uint64_t index, uint32_t word[4])
{
	uint32_t key[2] = { (uint32_t)seed, (uint32_t)(seed >> 32) };
	uint32_t x[4] = { (uint32_t)index, (uint32_t)(index >> 32), (uint32_t)stream, (uint32_t)(stream >> 32) };
	for (int round = 0; round < 10; round++) {
		uint64_t a = (uint64_t)0xD2511F53u * x[0], b = (uint64_t)0xCD9E8D57u * x[2];
		uint32_t next[4] = { (uint32_t)(b >> 32) ^ x[1] ^ key[0], (uint32_t)b, (uint32_t)(a >> 32) ^ x[3] ^ key[1], (uint32_t)a };
		for (int i = 0; i < 4; i++)
			x[i] = next[i];
		key[0] += 0x9E3779B9u;
		key[1] += 0xBB67AE85u;
	}
	for (int i = 0; i < 4; i++)
		word[i] = x[i];
}

/* Four normal numbers of mean 0 and deviation 1, for the indices 4 * block .. 4 * block + 3. */
HSPMD_RANDOM void hspmd_random_normals(uint64_t seed, uint64_t stream, uint64_t block, double normal[4])
{
	uint32_t w[4];
	hspmd_random_words(seed, stream, block, w);
	for (int i = 0; i < 4; i += 2) {
		double size = sqrt(-2 * log(((double)w[i] + 0.5) * 0x1p-32)), angle = 6.283185307179586 * 0x1p-32 * (double)w[i + 1];
		normal[i] = size * cos(angle);
		normal[i + 1] = size * sin(angle);
	}
}

HSPMD_RANDOM double hspmd_random_normal(uint64_t seed, uint64_t stream, uint64_t index)
{
	double normal[4];
	hspmd_random_normals(seed, stream, index / 4, normal);
	return normal[index % 4];
}

/* ---- indices */

/* Indices of a local part's elements in the full tensor. Dimensions start from the last; a dimension that the part has in full is merged
 * with the dimension before it, so that most parts need no division. */
struct hspmd_index_map {
	int rank;                                              /* 1 ... HSPMD_MAX_RANK */
	int64_t first;                                         /* index of element 0 */
	int64_t shape[HSPMD_MAX_RANK], stride[HSPMD_MAX_RANK]; /* of the part, and in the full tensor */
};

static inline struct hspmd_index_map hspmd_index_map_of(const struct hspmd_view *v)
{
	struct hspmd_index_map map = { 1, 0, { v->rank ? v->shape[v->rank - 1] : 1 }, { 1 } };
	int64_t size = v->rank ? v->full[v->rank - 1] : 1, stride = size; /* of the merged dimension; of the next one in the full tensor */
	map.first = v->rank ? v->start[v->rank - 1] : 0;
	for (int d = v->rank - 2; d >= 0; d--) {
		int last = map.rank - 1;
		if (map.shape[last] == size) {
			map.shape[last] *= v->shape[d];
			size *= v->full[d];
		} else {
			map.shape[map.rank] = v->shape[d];
			map.stride[map.rank++] = stride;
			size = v->full[d];
		}
		map.first += v->start[d] * stride;
		stride *= v->full[d];
	}
	return map;
}

/* Index of local element i. *run: the number of elements from i on that have consecutive indices. */
HSPMD_RANDOM int64_t hspmd_index_at(const struct hspmd_index_map *map, int64_t i, int64_t *run)
{
	int64_t index = map->first;
	*run = map->shape[0] - (map->rank > 1 ? i % map->shape[0] : i);
	for (int d = 0; d + 1 < map->rank; d++) {
		index += i % map->shape[d] * map->stride[d];
		i /= map->shape[d];
	}
	return index + i * map->stride[map->rank - 1];
}

#endif
