/* SPDX-License-Identifier: Apache-2.0 */
/* Times of a week, as policies write them: "mon-fri 18:00-08:00", "sat-sun", "22:00-06:00". Days are mon, tue, wed, thu, fri, sat and
 * sun; a range of days or hours whose end comes before its beginning runs over the end of the week or of the day. */
#ifndef HSPMD_FORMAT_WEEK_TIMES_H
#define HSPMD_FORMAT_WEEK_TIMES_H

#include <stdbool.h>
#include <time.h>

#define HSPMD_WEEK_MINUTES (7 * 24 * 60)

/* Returns NULL, or what is wrong with the text, as "expected ...". */
const char *hspmd_week_times_check(const char *text);
/* Returns true if the times include a minute of the week: 0 is Monday 00:00. False for a text that hspmd_week_times_check() refuses. */
bool hspmd_week_times_include(const char *text, int minute);
/* Returns the minute of the week by this machine's time zone. */
int hspmd_week_minute(time_t at);
/* Reads "sat 03:00". Returns the minute, or -1. */
int hspmd_week_minute_read(const char *text);

#endif
