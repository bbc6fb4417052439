/* SPDX-License-Identifier: Apache-2.0 */
/* A limit on log lines that others can cause, so that they cannot fill the log: a few lines at once, then one line per interval. */
#ifndef HSPMD_COMMON_LOG_LIMIT_H
#define HSPMD_COMMON_LOG_LIMIT_H

#include <stdbool.h>
#include <stdint.h>

#define HSPMD_LOG_LIMIT_BURST 8      /* lines at once */
#define HSPMD_LOG_LIMIT_EVERY_S 10.0 /* interval of further lines */

/* Zeroed: nothing was logged yet. */
struct hspmd_log_limit {
	double until;     /* the lines logged so far have used up the intervals before this time */
	uint64_t dropped; /* lines that were not logged since the last that was */
};

/* Returns true if a line may be logged at `now` (hspmd_now()); *dropped is then the number of lines dropped since the last one. Otherwise
 * the line counts as dropped. */
bool hspmd_log_limit_allows(struct hspmd_log_limit *l, double now, uint64_t *dropped);

#endif
