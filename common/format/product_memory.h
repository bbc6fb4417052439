/* SPDX-License-Identifier: Apache-2.0 */
/* What a matrix product needs of a GPU's memory while it runs, beside its operands and what its operator keeps there: one account for the
 * device (runtime/device/cuda), and for plans, which are made where there is none. */
#ifndef HSPMD_FORMAT_PRODUCT_MEMORY_H
#define HSPMD_FORMAT_PRODUCT_MEMORY_H

/* Most bytes that cuBLASLt gets: its algorithms for different shapes need anything from none to all of it. Products that run beside other
 * operators have as much of their own. */
#define HSPMD_PRODUCT_WORKSPACE (32 << 20)

#endif
