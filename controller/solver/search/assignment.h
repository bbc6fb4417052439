/* SPDX-License-Identifier: Apache-2.0 */
/* Pairing n with n so that the sum of the pairs' values is greatest. Private to the solver. */
#ifndef HSPMD_SEARCH_ASSIGNMENT_H
#define HSPMD_SEARCH_ASSIGNMENT_H

/* value[i * n + j]: of pairing i with j. to[i] becomes i's partner. Exact up to HSPMD_ASSIGN_EXACT_MAX (Kuhn 1955 in Jonker and Volgenant's
 * form, O(n^3)); beyond that the most valuable pairs first (at least half of the greatest sum, where no value is negative). 0 or -1 (memory
 * is short). */
#define HSPMD_ASSIGN_EXACT_MAX 160
int hspmd_assign_best(int n, const double *value, int *to);

#endif
