/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA device is a module that is loaded when it is asked for, so that no program needs CUDA's libraries that does not use a GPU. */
#ifndef HSPMD_CUDA_MODULE_H
#define HSPMD_CUDA_MODULE_H

#include "runtime/device/device.h"

/* What a module exports as "hspmd_cuda_module"; version first, so that one of another release is refused. */
#define HSPMD_CUDA_FILE "hspmd-cuda.so"
#define HSPMD_CUDA_MODULE_VERSION 5
struct hspmd_cuda_module {
	int version;
	const struct hspmd_device_ops *ops;
};

#ifndef __cplusplus
/* Load it: the file that environment HSPMD_CUDA_MODULE names, else the one in the build folder that the program lies in, else the installed
 * one. Loaded once a process and kept. NULL and err: none was built, or the system's loader cannot load it (what it says is in the
 * message). */
const struct hspmd_device_ops *hspmd_cuda_load(struct hspmd_error *err);
#endif

#endif
