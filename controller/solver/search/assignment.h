/* SPDX-License-Identifier: Apache-2.0 */
/* The assignment problem: pair n with n so that the sum of the pairs' values is greatest. Private to the solver. */
#ifndef HSPMD_SEARCH_ASSIGNMENT_H
#define HSPMD_SEARCH_ASSIGNMENT_H

/* Set to[i] to the partner of i; value[i * n + j] is the value of pairing i with j. Exact up to HSPMD_ASSIGN_EXACT_MAX (Kuhn 1955 in
 * Jonker and Volgenant's form, O(n^3)); beyond that greedy, the most valuable pairs first (at least half of the greatest sum if no value
 * is negative). Returns 0, or -1 if memory runs out. */
#define HSPMD_ASSIGN_EXACT_MAX 160
int hspmd_assign_best(int n, const double *value, int *to);

#endif
