/* SPDX-License-Identifier: Apache-2.0 */
/* A tensor of another trainer (hspmd.h) as the files know tensors. */
#ifndef HSPMD_LIB_STORED_TENSOR_H
#define HSPMD_LIB_STORED_TENSOR_H

#include "common/error.h"
#include "runtime/lib/hspmd.h"
#include "runtime/state/checkpoint.h"

/* Checks the description. Names and data stay the tensor's. */
int hspmd_stored_slice(const struct hspmd_stored_tensor *t, struct hspmd_state_slice *slice, struct hspmd_error *err);

#endif
