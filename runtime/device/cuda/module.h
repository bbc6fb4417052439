/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA device is a module that is loaded on demand, so that programs that use no GPU do not need CUDA's libraries. */
#ifndef HSPMD_CUDA_MODULE_H
#define HSPMD_CUDA_MODULE_H

#include "runtime/device/device.h"

/* A module exports this as "hspmd_cuda_module"; version comes first, so that a module of another release is refused. */
#define HSPMD_CUDA_FILE "hspmd-cuda.so"
#define HSPMD_CUDA_MODULE_VERSION 12
struct hspmd_cuda_module {
	int version;
	const struct hspmd_device_ops *ops;
};

/* hspmd_device_cuda loads the module: the file that environment HSPMD_CUDA_MODULE names, else the one in the build folder that contains the
 * program, else the installed one. It is loaded once per process and stays loaded. Returns NULL and err if none was built, or if the
 * system's loader cannot load it (err contains the loader's message). */

#endif
