/* SPDX-License-Identifier: Apache-2.0 */
/* Algorithms chosen by measurement, kept in a file with one line per choice: "m n k flags" and the 8 words of the algorithm in hexadecimal.
 * A file holds for one model of GPU and one version of a library. If the file cannot be read or written, the measurements are repeated;
 * nothing else is lost. */
#ifndef HSPMD_CUDA_AUTOTUNE_CACHE_H
#define HSPMD_CUDA_AUTOTUNE_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct hspmd_cuda_autotune_cache;

struct hspmd_cuda_autotune_key {
	int64_t m, n, k;
	uint64_t flags;
};

struct hspmd_cuda_autotune_entry {
	uint64_t word[8];
};

/* library: "cublaslt" or "cudnn". Returns NULL if there is no memory. */
struct hspmd_cuda_autotune_cache *hspmd_cuda_autotune_cache_open(const char *library, const char *model, size_t version);
void hspmd_cuda_autotune_cache_close(struct hspmd_cuda_autotune_cache *c);
bool hspmd_cuda_autotune_cache_find(struct hspmd_cuda_autotune_cache *c, const struct hspmd_cuda_autotune_key *key,
                                    struct hspmd_cuda_autotune_entry *choice);
/* measured false: it holds for this process alone, as nothing could be measured, and is not written to the file. */
void hspmd_cuda_autotune_cache_add(struct hspmd_cuda_autotune_cache *c, const struct hspmd_cuda_autotune_key *key,
                                   const struct hspmd_cuda_autotune_entry *choice, bool measured);

/* The choices that this process has found or added, a line each as `choices` of device.h has them. The caller frees it. c NULL: there are
 * none. NULL: no memory. */
char *hspmd_cuda_autotune_cache_text(const struct hspmd_cuda_autotune_cache *c);
/* Takes over those of such lines that are for this GPU and library: they count instead of what is known. They are not written to the file.
 * -1: no memory. */
int hspmd_cuda_autotune_cache_learn(struct hspmd_cuda_autotune_cache *c, const char *text);

#endif
