/* SPDX-License-Identifier: Apache-2.0 */
/* Slurm hostlist expressions: "n[0-3,7],login,gpu[01-16]-ib". Leading zeros are kept; several brackets in one name multiply. */
#ifndef HSPMD_COMMON_HOSTLIST_H
#define HSPMD_COMMON_HOSTLIST_H

#include "common/error.h"

/* Expand into at most `max` names: a malloc'd array of malloc'd strings, freed by hspmd_hostlist_free. Returns the count, or -1. */
int hspmd_hostlist_expand(const char *text, int max, char ***names, struct hspmd_error *err);
void hspmd_hostlist_free(char **names, int count);
/* Fold names into one expression, in their order if runs allow: malloc'd; NULL: out of memory. */
char *hspmd_hostlist_fold(char *const *names, int count);

#endif
