/* SPDX-License-Identifier: Apache-2.0 */
/* Texts, quantities and data inside HTML. Writing fails as the stream does: the caller looks at ferror() once. */
#ifndef HSPMD_CONTROLLER_REPORT_MARKUP_H
#define HSPMD_CONTROLLER_REPORT_MARKUP_H

#include <jansson.h>
#include <stdio.h>

/* A text from outside, inside an element or a quoted attribute. */
void report_text(FILE *out, const char *text);
/* printf whose result is written as report_text() does; for lines of at most a few hundred characters, cut beyond. */
void report_textf(FILE *out, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Removes the beginning of a UTF-8 character at the end of a text that was cut. */
void report_cut(char *text);
/* <script type="application/json" id=...>; drops the reference. -1: out of memory, also if value is NULL. */
int report_data(FILE *out, const char *id, json_t *value);

/* For people, into a buffer: "1.42 s", "3 min 5 s", "2.1 h"; "20.6 MB"; "2026-11-22 14:03:07 UTC" ("" for NaN). Return the buffer. */
struct report_words {
	char text[48];
};
const char *report_seconds(struct report_words *w, double seconds);
const char *report_bytes(struct report_words *w, double bytes);
const char *report_date(struct report_words *w, double time);

#endif
