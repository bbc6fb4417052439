/* SPDX-License-Identifier: Apache-2.0 */
/* Results of PyTorch in files (tests/data/golden, written by tests/golden/generate). Inputs and weights are numbers that the generator and
 * the tests both compute from a tensor's name, so that the files hold results only; tests/golden/formula.py has the same in Python.
 *
 * A result is a digest of four numbers: the norm of all elements, their projection on a direction that belongs to the name, the first and
 * the last element. */
#ifndef HSPMD_TEST_GOLDEN_H
#define HSPMD_TEST_GOLDEN_H

#include <jansson.h>
#include <stdint.h>
#include <string.h>

#include "common/fnv.h"
#include "runtime/tensor/box.h"
#include "runtime/tensor/dtype.h"

/* The beginning of a name's numbers. */
static inline uint64_t golden_name(const char *name)
{
	return hspmd_fnv1a(name, strlen(name));
}

/* 16 bits of element i: splitmix64 (Steele, Lea, Flood 2014). */
static inline uint32_t golden_bits(uint64_t name, int64_t i)
{
	uint64_t x = name + ((uint64_t)i + 1) * UINT64_C(0x9e3779b97f4a7c15);
	x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
	return (uint32_t)((x ^ (x >> 31)) >> 48);
}

/* In (-1, 1), never 0, exact in F32 also if multiplied by a power of two and increased by 1. */
static inline double golden_unit(uint64_t name, int64_t i)
{
	return (2.0 * golden_bits(name, i) - 65535) / 65536;
}

/* The same for operators' inputs, in (-2, 2); `group` and `tensor` make the name. */
void golden_fill(void *data, enum hspmd_dtype type, int64_t count, const char *group, const char *tensor);

/* Fails the test unless each number of the digest is the elements' to `tolerance` times their norm. */
void golden_check(const char *what, const char *name, const json_t *digest, const void *data, enum hspmd_dtype type, int64_t count,
                  double tolerance);
/* Fails the test unless |got - want| <= tolerance * |want|. */
void golden_check_number(const char *what, int64_t at, double want, double got, double tolerance);

/* One file of kind "model" or "training" (golden_model.c). */
void golden_model(const json_t *file);
void golden_training(const json_t *file);
/* Teardown of every test: a failed one leaves its temporary folder. */
int golden_remove_folder(void **state);

#endif
