/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/report/markup.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/json.h"

void report_text(FILE *out, const char *text)
{
	for (const char *c = text; *c; c++) {
		switch (*c) {
		case '&':
			fputs("&amp;", out);
			break;
		case '<':
			fputs("&lt;", out);
			break;
		case '>':
			fputs("&gt;", out);
			break;
		case '"':
			fputs("&quot;", out);
			break;
		case '\'':
			fputs("&#39;", out);
			break;
		default:
			putc((unsigned char)*c < ' ' && *c != '\n' ? ' ' : *c, out);
		}
	}
}

void report_cut(char *text)
{
	size_t n = strlen(text), tail = 0;
	while (tail < n && ((unsigned char)text[n - 1 - tail] & 0xc0) == 0x80)
		tail++;
	if (tail == n)
		return;
	unsigned char lead = (unsigned char)text[n - 1 - tail];
	size_t whole = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 1;
	if (tail + 1 < whole)
		text[n - 1 - tail] = 0;
}

void report_textf(FILE *out, const char *fmt, ...)
{
	char text[600];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	report_cut(text);
	report_text(out, text);
}

int report_data(FILE *out, const char *id, json_t *value)
{
	char *text = value ? hspmd_json_text(value) : NULL;
	json_decref(value);
	if (!text)
		return -1;
	fprintf(out, "<script type=\"application/json\" id=\"%s\">\n", id);
	for (const char *c = text; *c; c++) /* in JSON these stand in strings only, and a string may say "</script>" */
		if (*c == '<' || *c == '>' || *c == '&')
			fprintf(out, "\\u%04x", (unsigned)*c);
		else
			putc(*c, out);
	fputs("</script>\n", out);
	free(text);
	return 0;
}

const char *report_seconds(struct report_words *w, double seconds)
{
	if (seconds < 0.01 && seconds > 0)
		snprintf(w->text, sizeof w->text, "%.2g ms", seconds * 1e3);
	else if (seconds < 120)
		snprintf(w->text, sizeof w->text, "%.3g s", seconds);
	else if (seconds < 2 * 3600)
		snprintf(w->text, sizeof w->text, "%.0f min %.0f s", floor(seconds / 60), floor(fmod(seconds, 60)));
	else
		snprintf(w->text, sizeof w->text, "%.1f h", seconds / 3600);
	return w->text;
}

const char *report_bytes(struct report_words *w, double bytes)
{
	static const char *const units[] = { "bytes", "kB", "MB", "GB", "TB", "PB" };
	size_t u = 0;
	while (bytes >= 999.5 && u + 1 < sizeof units / sizeof *units) {
		bytes /= 1000;
		u++;
	}
	snprintf(w->text, sizeof w->text, "%.3g %s", bytes, units[u]);
	return w->text;
}

const char *report_date(struct report_words *w, double time)
{
	struct tm tm;
	time_t t = time >= 0 && time < 1e11 ? (time_t)time : 0;
	w->text[0] = 0;
	if (t && gmtime_r(&t, &tm))
		strftime(w->text, sizeof w->text, "%Y-%m-%d %H:%M:%S UTC", &tm);
	return w->text;
}
