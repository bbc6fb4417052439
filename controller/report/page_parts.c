/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/report/page_parts.h"

#include "controller/report/markup.h"

static const char style[] =
#include "controller/report/report_css.h"
        ;
static const char script[] =
#include "controller/report/report_js.h"
        ;

void report_head_write(FILE *out, const char *title, const char *name)
{
	fputs("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
	      "content=\"width=device-width\"><title>",
	      out);
	report_text(out, title);
	if (name) {
		fputs(": ", out);
		report_text(out, name);
	}
	fprintf(out, "</title>\n<style>\n%s</style></head><body>\n<h1>", style);
	report_text(out, title);
	fputs("</h1>\n", out);
}

void report_controls_write(FILE *out)
{
	fputs("Drag over a picture to look closer, double click to see all; <label><input type=\"checkbox\" id=\"log\"> "
	      "logarithmic</label>",
	      out);
}

void report_foot_write(FILE *out)
{
	fprintf(out, "<div id=\"tip\" hidden></div>\n<script>\n%s</script>\n</body></html>\n", script);
}
