/* SPDX-License-Identifier: Apache-2.0 */
/* Nets and programs for tests of the search for a stage's program. All fail the test if something fails. */
#ifndef TESTS_SYNTHESIS_CASE_H
#define TESTS_SYNTHESIS_CASE_H

#include "common/error.h"
#include "runtime/lib/net.h"
#include "runtime/synthesis/synthesis_internal.h"

extern const int case_devices[8]; /* 0 to 7 */

/* Parameters "w<number>" and "<letter><number>", and eight experts with a router, behind x. */
int case_weight(struct hspmd_net *net, int number, int64_t out, int64_t in);
int case_vector(struct hspmd_net *net, int number, char letter, int64_t size);
int case_experts(struct hspmd_net *net, int x, int number, int64_t width, int64_t inner, int per_token);
struct hspmd_graph *case_graph(void (*build)(void *, struct hspmd_net *), void *context, int layers, int samples, int64_t length);
/* What the sharding pass makes of the program, under the same cost model: seconds. */
double case_applied_cost(struct hspmd_graph *g, struct hspmd_synthesis *s, const char *what);
/* Saves the program and loads it into another search over the same graph, which the caller destroys. Both are equal, and the new one has
 * searched nothing. */
struct hspmd_synthesis *case_travelled(const struct hspmd_synthesis *s, double seconds, const char *what);

#endif
