/* SPDX-License-Identifier: Apache-2.0 */
/* Tries on a device whether linear layers of FP8 operands that follow one another round the operand that they share once, and anew where
 * they must (repeats_first of runtime/device/device.h). */
#ifndef TESTS_REPEATED_OPERAND_H
#define TESTS_REPEATED_OPERAND_H

#include "runtime/device/device.h"

/* Fails the test if the second of two layers does not use what the first left of their x, or does so with a scale of its own; likewise for
 * the gradient of the result, which the gradient of x shares with that of the weight if `shares_gradient`. */
void check_repeated_operand(struct hspmd_device *dev, enum hspmd_dtype type, bool transposed, bool shares_gradient);

#endif
