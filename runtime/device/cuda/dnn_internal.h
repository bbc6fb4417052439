/* SPDX-License-Identifier: Apache-2.0 */
/* The library's functions that dnn.c found, for dnn_graph.c. */
#ifndef HSPMD_CUDA_DNN_INTERNAL_H
#define HSPMD_CUDA_DNN_INTERNAL_H

#include <cudnn_graph.h>

#include "runtime/device/cuda/dnn.h"

struct hspmd_dnn_calls {
	size_t (*get_version)(void);
	const char *(*error_string)(cudnnStatus_t status);
	cudnnStatus_t (*create)(cudnnHandle_t *handle);
	cudnnStatus_t (*destroy)(cudnnHandle_t handle);
	cudnnStatus_t (*set_stream)(cudnnHandle_t handle, cudaStream_t stream);
	cudnnStatus_t (*describe)(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *descriptor);
	cudnnStatus_t (*forget)(cudnnBackendDescriptor_t descriptor);
	cudnnStatus_t (*set)(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
	                     int64_t count, const void *values);
	cudnnStatus_t (*get)(cudnnBackendDescriptor_t const descriptor, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
	                     int64_t most, int64_t *count, void *values);
	cudnnStatus_t (*finalize)(cudnnBackendDescriptor_t descriptor);
	cudnnStatus_t (*execute)(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack);
	void (*last_error)(char *text, size_t size);
};

struct hspmd_dnn {
	const struct hspmd_dnn_calls *call;
	cudnnHandle_t handle;                /* NULL: for a GPU that is absent */
	cudnnBackendDescriptor_t properties; /* of the absent GPU; NULL: use handle's */
};

/* Returns -1 and sets err to "what: why". */
int hspmd_dnn_failed(const struct hspmd_dnn *dnn, cudnnStatus_t status, const char *what, struct hspmd_error *err);

#endif
