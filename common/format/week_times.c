/* SPDX-License-Identifier: Apache-2.0 */
#include "common/format/week_times.h"

#include <stdio.h>
#include <string.h>

#define DAY_MINUTES (24 * 60)

static const char *const day_names[] = { "mon", "tue", "wed", "thu", "fri", "sat", "sun" };

/* Days first..last, in which the minutes from..to begin; to > DAY_MINUTES: they end on the next day. */
struct span {
	int first, last, from, to;
};

/* The readers move *at behind what they have read, and return -1 if it is not there. */
static int read_day(const char **at)
{
	for (int d = 0; d < 7; d++)
		if (!strncmp(*at, day_names[d], 3)) {
			*at += 3;
			return d;
		}
	return -1;
}

static int read_number(const char **at, int most)
{
	int value = 0, digits = 0;
	for (; **at >= '0' && **at <= '9' && digits < 2; digits++)
		value = 10 * value + *(*at)++ - '0';
	return digits == 2 && value <= most ? value : -1;
}

static int read_clock(const char **at)
{
	int hours = read_number(at, 24), minutes = -1;
	if (hours >= 0 && **at == ':') {
		++*at;
		minutes = read_number(at, 59);
	}
	return minutes < 0 || (hours == 24 && minutes) ? -1 : 60 * hours + minutes;
}

static const char *read_span(const char *text, struct span *s)
{
	static const char wrong[] = "expected days (mon-fri), hours (18:00-08:00), or both, as in \"mon-fri 18:00-08:00\"";
	const char *at = text;
	*s = (struct span){ .last = 6, .to = DAY_MINUTES };
	int day = read_day(&at);
	if (day >= 0) {
		s->first = s->last = day;
		if (*at == '-' && (at++, s->last = read_day(&at)) < 0)
			return wrong;
		if (!*at)
			return NULL;
		if (*at++ != ' ')
			return wrong;
	}
	s->from = read_clock(&at);
	if (s->from < 0 || *at++ != '-' || (s->to = read_clock(&at)) < 0 || *at)
		return wrong;
	if (s->from == s->to || s->from == DAY_MINUTES)
		return "expected hours of which the first differs from the second, as in 18:00-08:00";
	if (s->to < s->from)
		s->to += DAY_MINUTES;
	return NULL;
}

const char *hspmd_week_times_check(const char *text)
{
	struct span s;
	return read_span(text, &s);
}

static bool begins_on(const struct span *s, int day)
{
	return s->first <= s->last ? day >= s->first && day <= s->last : day >= s->first || day <= s->last;
}

bool hspmd_week_times_include(const char *text, int minute)
{
	struct span s;
	if (read_span(text, &s))
		return false;
	int day = minute / DAY_MINUTES, clock = minute % DAY_MINUTES;
	return (begins_on(&s, day) && clock >= s.from && clock < s.to) || (begins_on(&s, (day + 6) % 7) && clock + DAY_MINUTES < s.to);
}

int hspmd_week_minute(time_t at)
{
	struct tm local;
	if (!localtime_r(&at, &local))
		return 0;
	return ((local.tm_wday + 6) % 7) * DAY_MINUTES + local.tm_hour * 60 + local.tm_min;
}

int hspmd_week_minute_read(const char *text)
{
	const char *at = text;
	int day = read_day(&at);
	if (day < 0 || *at++ != ' ')
		return -1;
	int clock = read_clock(&at);
	return clock < 0 || clock == DAY_MINUTES || *at ? -1 : day * DAY_MINUTES + clock;
}
