/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/cli/commands.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>

#include "common/log.h"

int hspmd_option_int(const char *option, const char *text, int64_t min, int64_t max, int64_t *out)
{
	char *end;
	errno = 0;
	long long value = strtoll(text, &end, 10);
	if (end == text || *end || errno || value < min || value > max) {
		hspmd_error_log("--%s: expected a whole number in %" PRId64 "..%" PRId64 ", got '%s'", option, min, max, text);
		return -1;
	}
	*out = value;
	return 0;
}

int hspmd_option_number(const char *option, const char *text, double min, double max, double *out)
{
	char *end;
	errno = 0;
	double value = strtod(text, &end);
	if (end == text || *end || !isfinite(value) || value < min || value > max) {
		hspmd_error_log("--%s: expected a number in %g..%g, got '%s'", option, min, max, text);
		return -1;
	}
	*out = value;
	return 0;
}

int hspmd_usage_hint(const char *command)
{
	fprintf(stderr, "Try 'hspmd %s --help'.\n", command);
	return HSPMD_EXIT_USAGE;
}

int hspmd_usage_error(const char *command, const char *fmt, ...)
{
	char text[512];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	hspmd_error_log("%s", text);
	return hspmd_usage_hint(command);
}
