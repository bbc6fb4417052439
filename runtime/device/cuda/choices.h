/* SPDX-License-Identifier: Apache-2.0 */
/* Algorithms that were chosen by measurement, in a file of one line each: "m n k flags" and the algorithm's 8 words in hexadecimal. A file is of one model of GPU and
 * one version of a library. That it cannot be read or written costs the measurements, nothing else. */
#ifndef HSPMD_CUDA_CHOICES_H
#define HSPMD_CUDA_CHOICES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct hspmd_cuda_choices;

struct hspmd_cuda_choice_key {
	int64_t m, n, k;
	uint64_t flags;
};

struct hspmd_cuda_choice {
	uint64_t word[8];
};

/* library: "cublaslt", "cudnn". NULL: memory */
struct hspmd_cuda_choices *hspmd_cuda_choices_open(const char *library, const char *model, size_t version);
void hspmd_cuda_choices_close(struct hspmd_cuda_choices *c);
bool hspmd_cuda_choices_find(const struct hspmd_cuda_choices *c, const struct hspmd_cuda_choice_key *key, struct hspmd_cuda_choice *choice);
void hspmd_cuda_choices_add(struct hspmd_cuda_choices *c, const struct hspmd_cuda_choice_key *key, const struct hspmd_cuda_choice *choice);

#endif
