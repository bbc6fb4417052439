/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizers. Each is one file of this folder, NAME.h: its keys in the job file, how many moments it keeps per parameter, and its update of
 * one element, which every device's kernel includes (rules.h). Nothing else names one: autogen.sh lists the files. */
#ifndef HSPMD_OPTIMIZER_H
#define HSPMD_OPTIMIZER_H

#include <stdbool.h>
#include <stdint.h>

#include "build-aux/optimizer_list.h"

#define HSPMD_OPTIMIZER_MOMENTS 2 /* most values that an optimizer keeps per parameter */
#define HSPMD_OPTIMIZER_KEYS 4    /* most keys of its own */
#define HSPMD_OPTIMIZER_RATES 8   /* most numbers that its update takes */

#define HSPMD_OPTIMIZER_ENUM(NAME, name) HSPMD_OPTIMIZER_##NAME,
enum hspmd_optimizer { HSPMD_OPTIMIZERS(HSPMD_OPTIMIZER_ENUM) HSPMD_OPTIMIZER_COUNT };

/* A number of the optimizer's section of the job file. */
struct hspmd_optimizer_key {
	const char *name; /* NULL: there are no more */
	double least, most, standard;
};

struct hspmd_optimizer_type {
	const char *name; /* "adamw" */
	int moments;      /* values kept per parameter in addition to it, in its type; at least one. They start with 0 */
	struct hspmd_optimizer_key keys[HSPMD_OPTIMIZER_KEYS];
	/* The numbers of one step's update: values by key, the learning rate, and the number of the update, from 1 on. */
	void (*rates)(const double *values, double lr, int64_t update, double *rates);
};

/* Bytes of the state of one element of a parameter in fp32: value, gradient and moments. */
static inline double hspmd_optimizer_state_bytes(int moments)
{
	return 4.0 * (2 + moments);
}

extern const struct hspmd_optimizer_type *const hspmd_optimizer_types[HSPMD_OPTIMIZER_COUNT];
extern const char *const hspmd_optimizer_names[HSPMD_OPTIMIZER_COUNT + 1]; /* ends with NULL */

/* One update of a parameter, for kernels. */
struct hspmd_optimizer_update {
	enum hspmd_optimizer optimizer;
	int64_t number; /* from 1 on */
	bool decays;    /* the parameter has weight decay */
	double keep;    /* factor of the parameter: 1 - learning rate * weight decay */
	double rates[HSPMD_OPTIMIZER_RATES];
};

struct hspmd_optimizer_update hspmd_optimizer_update(enum hspmd_optimizer optimizer, const double *values, double lr, double weight_decay,
                                                     int64_t update);

#endif
