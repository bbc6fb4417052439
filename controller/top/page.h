/* SPDX-License-Identifier: Apache-2.0 */
/* A page of text with styles, as a terminal shows it: lines of at most `width` columns. Pure: the screen (screen.c) draws it, plain mode
 * prints it, tests read it. */
#ifndef HSPMD_CONTROLLER_TOP_PAGE_H
#define HSPMD_CONTROLLER_TOP_PAGE_H

#include <stdbool.h>
#include <stddef.h>

enum top_style { TOP_NORMAL, TOP_TITLE, TOP_GOOD, TOP_WARN, TOP_BAD, TOP_DIM, TOP_CHOSEN, TOP_STYLES };

struct top_span {
	int line, columns;
	enum top_style style;
	size_t at, bytes; /* in page.text */
};

struct top_page {
	int width;     /* columns; text beyond it is cut */
	int height;    /* lines, further ones are dropped; 0: no limit */
	bool unicode;  /* sparklines in block characters, else in ASCII */
	int lines;     /* finished lines */
	bool failed;   /* memory was short: the page is incomplete */
	char *text;    /* of all spans */
	struct top_span *spans;
	size_t span_count;
	/* private */
	size_t span_capacity, bytes, text_capacity;
	int column; /* of the line under way */
};

void top_page_begin(struct top_page *p, int width, bool unicode); /* p is zeroed: free an earlier page first */
void top_page_free(struct top_page *p);

/* Append to the line under way. The text is valid UTF-8 in which every code point takes one column; what is beyond the width is dropped.
 * Texts from elsewhere go through top_clean first. */
void top_page_put(struct top_page *p, enum top_style style, const char *text);
void top_page_print(struct top_page *p, enum top_style style, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void top_page_to(struct top_page *p, int column); /* fills with spaces; at least one if the column has been passed */
void top_page_end_line(struct top_page *p);
int top_page_room(const struct top_page *p); /* columns that are left in the line under way */
/* "[|||||.....]" of `columns` columns, `share` of it filled; NaN: "[         ]". */
void top_page_bar(struct top_page *p, enum top_style style, int columns, double share);
/* One column per value, the lowest at the bottom; the mean of those that share a column if there are more. NaN values are left out. */
void top_page_sparkline(struct top_page *p, enum top_style style, const double *values, int count, int columns);

/* A copy of `text` in which every byte that is not printable ASCII is '?', so that no name can move the cursor. Returns buf. NULL: "". */
const char *top_clean(const char *text, char *buf, size_t size);
/* "12.1 GB", "830 MB", "0 B"; powers of 1000. Returns buf. */
const char *top_bytes(double bytes, char *buf, size_t size);
/* "45 s", "12 min", "3 h 05 min", "2 d 4 h". Returns buf. */
const char *top_duration(double seconds, char *buf, size_t size);

#endif
