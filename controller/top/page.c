/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/top/page.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"

#define LINE_MAX_BYTES 4096

void top_page_begin(struct top_page *p, int width, bool unicode)
{
	*p = (struct top_page){ .width = width < 1 ? 1 : width, .unicode = unicode };
}

void top_page_free(struct top_page *p)
{
	free(p->text);
	free(p->spans);
	memset(p, 0, sizeof *p);
}

/* Bytes of the first `columns` code points of text; *taken: how many there are. */
static size_t first_columns(const char *text, int columns, int *taken)
{
	size_t at = 0;
	*taken = 0;
	while (text[at] && *taken < columns) {
		at++;
		while (((unsigned char)text[at] & 0xc0) == 0x80)
			at++;
		++*taken;
	}
	return at;
}

void top_page_put(struct top_page *p, enum top_style style, const char *text)
{
	int columns;
	size_t bytes = first_columns(text, p->width - p->column, &columns);
	if (!columns || p->failed || (p->height && p->lines >= p->height))
		return;
	if (hspmd_array_grow(&p->spans, &p->span_capacity, p->span_count, sizeof *p->spans)) {
		p->failed = true;
		return;
	}
	if (p->bytes + bytes + 1 > p->text_capacity) {
		size_t capacity = 2 * (p->bytes + bytes + 1);
		char *grown = realloc(p->text, capacity);
		if (!grown) {
			p->failed = true;
			return;
		}
		p->text = grown;
		p->text_capacity = capacity;
	}
	memcpy(p->text + p->bytes, text, bytes);
	p->spans[p->span_count++] =
	        (struct top_span){ .line = p->lines, .columns = columns, .style = style, .at = p->bytes, .bytes = bytes };
	p->bytes += bytes;
	p->column += columns;
}

void top_page_print(struct top_page *p, enum top_style style, const char *fmt, ...)
{
	char text[LINE_MAX_BYTES];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	top_page_put(p, style, text);
}

void top_page_to(struct top_page *p, int column)
{
	int spaces = column > p->column ? column - p->column : 1;
	top_page_print(p, TOP_NORMAL, "%*s", spaces < LINE_MAX_BYTES ? spaces : LINE_MAX_BYTES - 1, "");
}

int top_page_room(const struct top_page *p)
{
	return p->width - p->column;
}

void top_page_end_line(struct top_page *p)
{
	p->lines += !p->height || p->lines < p->height;
	p->column = 0;
}

void top_page_bar(struct top_page *p, enum top_style style, int columns, double share)
{
	int inside = columns - 2;
	top_page_put(p, TOP_DIM, "[");
	if (isnan(share)) {
		top_page_print(p, TOP_DIM, "%*s", inside, "");
	} else {
		int full = (int)lround(fmin(fmax(share, 0), 1) * inside);
		for (int i = 0; i < inside; i++)
			top_page_put(p, i < full ? style : TOP_DIM, i < full ? "|" : ".");
	}
	top_page_put(p, TOP_DIM, "]");
}

void top_page_sparkline(struct top_page *p, enum top_style style, const double *values, int count, int columns)
{
	static const char *const blocks[] = { "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█" };
	static const char *const ascii[] = { "_", ".", "-", "~", "=", "+", "*", "#" };
	double low = INFINITY, high = -INFINITY;
	if (columns > count)
		columns = count;
	for (int i = 0; i < count; i++) {
		low = fmin(low, values[i]);
		high = fmax(high, values[i]);
	}
	for (int c = 0; c < columns; c++) {
		int from = (int)((long)c * count / columns), end = (int)((long)(c + 1) * count / columns), have = 0;
		double sum = 0;
		for (int i = from; i < end; i++)
			if (!isnan(values[i])) {
				sum += values[i];
				have++;
			}
		double share = high > low && have ? (sum / have - low) / (high - low) : 0;
		int level = (int)fmin(7, floor(share * 8));
		top_page_put(p, style, !have ? " " : p->unicode ? blocks[level] : ascii[level]);
	}
}

const char *top_clean(const char *text, char *buf, size_t size)
{
	size_t n = 0;
	for (const char *s = text ? text : ""; *s && n + 1 < size; s++)
		buf[n++] = *s >= 0x20 && *s < 0x7f ? *s : '?';
	buf[n] = 0;
	return buf;
}

const char *top_bytes(double bytes, char *buf, size_t size)
{
	static const char *const units[] = { "B", "kB", "MB", "GB", "TB", "PB" };
	size_t u = 0;
	while (bytes >= 999.5 && u + 1 < sizeof units / sizeof *units) {
		bytes /= 1000;
		u++;
	}
	snprintf(buf, size, "%.*f %s", u && bytes < 99.95 ? 1 : 0, bytes, units[u]);
	return buf;
}

const char *top_duration(double seconds, char *buf, size_t size)
{
	double minutes = floor(seconds / 60);
	if (!(seconds >= 0) || seconds > 1e10)
		snprintf(buf, size, "?");
	else if (seconds < 120)
		snprintf(buf, size, "%.0f s", seconds);
	else if (minutes < 120)
		snprintf(buf, size, "%.0f min", minutes);
	else if (minutes < 48 * 60)
		snprintf(buf, size, "%.0f h %02.0f min", floor(minutes / 60), fmod(minutes, 60));
	else
		snprintf(buf, size, "%.0f d %.0f h", floor(minutes / 1440), floor(fmod(minutes, 1440) / 60));
	return buf;
}
