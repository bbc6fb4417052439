/* SPDX-License-Identifier: Apache-2.0 */
/* Where the parts of hspmd are that a program loads when it needs them: in the build folder that contains the program, or installed. */
#ifndef HSPMD_COMMON_MODULE_PATH_H
#define HSPMD_COMMON_MODULE_PATH_H

#include "common/error.h"

/* The files whose names match `pattern` (as of a shell) in the nearest folder above the running program that has any, else in the folder
 * of the installation. Folders that others than root, the user and the program's owner may change are passed over: what is found is
 * executed. Returns the number of files, and their paths in *paths, sorted as version numbers (freed by hspmd_module_paths_free()).
 * 0: there are none. -1 and err: out of memory. */
int hspmd_module_paths(const char *pattern, char ***paths, struct hspmd_error *err);
void hspmd_module_paths_free(char **paths, int count);

#endif
