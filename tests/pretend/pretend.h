/* SPDX-License-Identifier: Apache-2.0 */
/* A make-believe accelerator, for tests: a kind of device that no release has, with memory of its own that the host cannot read or write,
 * and kernels in fp32 and bf16. It computes with the CPU device's kernels; in bf16 it rounds what they read and write. */
#ifndef HSPMD_TESTS_PRETEND_H
#define HSPMD_TESTS_PRETEND_H

#include "runtime/device/device.h"

extern const struct hspmd_device_ops pretend_ops;
extern const struct hspmd_device_traits pretend_traits;

int pretend_copies(void);        /* between host and devices, so far */
size_t pretend_host_bytes(void); /* of the host's memory that devices have had, so far */
size_t pretend_offloaded_bytes(void); /* of activations, in both directions, so far */

#endif
