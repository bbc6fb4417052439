/* SPDX-License-Identifier: Apache-2.0 */
/* Which attentions cuDNN is trusted with. cuDNN makes plans for more shapes than it computes correctly, so that a plan that compiles proves
 * nothing; what is not listed here is computed by the device's own kernels. */
#ifndef HSPMD_CUDA_DNN_SUPPORT_H
#define HSPMD_CUDA_DNN_SUPPORT_H

#include "runtime/device/cuda/dnn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Returns NULL if cuDNN of this version (91501: 9.15.1) is known to compute the attention correctly, otherwise a constant text that says
 * why it is not asked. */
const char *hspmd_dnn_unsupported(size_t version, const struct hspmd_dnn_attention *a);

#ifdef __cplusplus
}
#endif

#endif
