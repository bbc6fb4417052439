/* SPDX-License-Identifier: Apache-2.0 */
/* Slurm hostlist expressions: "n[0-3,7],login,gpu[01-16]-ib". Leading zeros are kept; several brackets in one name multiply. */
#ifndef HSPMD_COMMON_HOSTLIST_H
#define HSPMD_COMMON_HOSTLIST_H

#include "common/error.h"

/* Expand into names (malloc'd array of malloc'd strings; free with hspmd_hostlist_free), at most `max`. Count, or -1 with err. */
int hspmd_hostlist_expand(const char *text, int max, char ***names, struct hspmd_error *err);
void hspmd_hostlist_free(char **names, int count);
/* Fold names into one expression, in their order where runs allow: malloc'd, NULL when memory is short. */
char *hspmd_hostlist_fold(char *const *names, int count);

#endif
