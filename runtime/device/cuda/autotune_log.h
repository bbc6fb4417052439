/* SPDX-License-Identifier: Apache-2.0 */
/* HSPMD_CUDA_TUNE_LOG=FILE: a line of JSON for every candidate that is measured, for tables of what a GPU's libraries can do. */
#ifndef HSPMD_CUDA_AUTOTUNE_LOG_H
#define HSPMD_CUDA_AUTOTUNE_LOG_H

#include <stdbool.h>

/* Returns true if lines are wanted. */
bool hspmd_cuda_autotune_log_is_on(void);
/* Appends a line (without its end) to the file; several processes may do so. Does nothing if none is wanted, or if it cannot be written. */
void hspmd_cuda_autotune_log(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#endif
