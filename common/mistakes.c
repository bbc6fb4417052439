/* SPDX-License-Identifier: Apache-2.0 */
#include "common/mistakes.h"

#include <string.h>

#include "common/log.h"

bool hspmd_mistakes_add(struct hspmd_mistakes *all, struct hspmd_error *err, const char *whose, const char *text)
{
	if (!all || !all->report) {
		if (!all || !all->count++)
			hspmd_fail(err, "%s", text);
		return false;
	}
	if (all->count && !strcmp(err->text, text)) /* a value that is read twice */
		return true;
	if (all->count)
		all->report(all->context, err->text);
	bool more = all->count++ < HSPMD_MISTAKES_MAX;
	if (more)
		hspmd_fail(err, "%s", text);
	else
		hspmd_fail(err, "%s: there are more mistakes than these %d", whose, HSPMD_MISTAKES_MAX);
	return more;
}

static void log_mistake(void *context, const char *text)
{
	(void)context;
	hspmd_error_log("%s", text);
}

struct hspmd_mistakes hspmd_mistakes_logged(void)
{
	return (struct hspmd_mistakes){ .report = log_mistake };
}
