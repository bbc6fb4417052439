/* SPDX-License-Identifier: Apache-2.0 */
/* All optimizers' updates, for a kernel. Before this file is included, HSPMD_UPDATE_REAL is the type that the kernel computes in,
 * HSPMD_UPDATE_SQRT(x) its square root, and HSPMD_UPDATE_FUNCTION begins the functions, each of which is
 *
 *     real NAME_update(const real *rates, real keep, real gradient, real parameter, real *moments)
 *
 * and returns the new parameter. NAME_MOMENTS is the number of moments. It computes the same for every element, so that a compiler can make
 * vectors of it. */
#ifndef HSPMD_OPTIMIZER_RULES_H
#define HSPMD_OPTIMIZER_RULES_H

#include "common/optimizer/optimizer.h"

#define HSPMD_OPTIMIZER_RULES
#include "build-aux/optimizer_list.h"
#undef HSPMD_OPTIMIZER_RULES

#endif
