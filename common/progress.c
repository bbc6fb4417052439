/* SPDX-License-Identifier: Apache-2.0 */
#include "common/progress.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

#include "common/clock.h"

#define FIRST_S 0.5
#define EVERY_S 0.2
#define BAR 24

static struct {
	const char *what; /* NULL: nothing is shown */
	double began, shown_at;
	bool shown;
} progress;

void hspmd_progress_begin(const char *what)
{
	if (!isatty(STDERR_FILENO))
		return;
	progress.what = what;
	progress.began = hspmd_now();
	progress.shown_at = progress.began + FIRST_S - EVERY_S;
	progress.shown = false;
}

/* "40 s", "3 min", "2.1 h" */
static void write_left(char *text, size_t size, double seconds)
{
	if (seconds < 90)
		snprintf(text, size, "%.0f s", fmax(1, seconds));
	else if (seconds < 5400)
		snprintf(text, size, "%.0f min", seconds / 60);
	else
		snprintf(text, size, "%.1f h", fmin(1e6, seconds / 3600));
}

void hspmd_progress(double done, double total)
{
	double now = progress.what ? hspmd_now() : 0;
	if (!progress.what || !(total > 0) || now - progress.shown_at < EVERY_S)
		return;
	double part = fmin(1, fmax(0, done / total));
	char left[24] = "", bar[BAR + 1];
	for (int i = 0; i < BAR; i++)
		bar[i] = i < part * BAR ? '#' : '.';
	bar[BAR] = 0;
	if (part > 0 && part < 1)
		write_left(left, sizeof left, (now - progress.began) * (1 - part) / part);
	/* The line is written over, and its rest cleared, in one write: so it does not flicker. */
	char line[160];
	int n = snprintf(line, sizeof line, "\r%.24s: [%s] %3.0f %%%s%s%s\033[K", progress.what, bar, part * 100, *left ? ", about " : "",
	                 left, *left ? " more" : "");
	fwrite(line, 1, (size_t)n, stderr);
	fflush(stderr);
	progress.shown = true;
	progress.shown_at = now;
}

void hspmd_progress_end(void)
{
	if (progress.what && progress.shown) {
		fputs("\r\033[K", stderr);
		fflush(stderr);
	}
	progress.what = NULL;
}
