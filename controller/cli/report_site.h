/* SPDX-License-Identifier: Apache-2.0 */
/* hspmd report --site: reads Slurm's accounting and hspmdctld's event log, for controller/report/site.h. */
#ifndef HSPMD_CLI_REPORT_SITE_H
#define HSPMD_CLI_REPORT_SITE_H

#include <stdio.h>

#include "common/error.h"
#include "controller/cli/commands.h"

struct report_site_options {
	const char *since, *until;                 /* as sacct takes them; until NULL: now */
	const char *accounting;                    /* file with sacct's output, "-": standard input; NULL: sacct is run */
	const struct hspmd_option_list *event_log; /* files of hspmdctld --event-log; none: what only they know is left out */
};

/* Writes the page. 0, or -1 and err. */
int report_site_write(FILE *out, const struct report_site_options *o, struct hspmd_error *err);

#endif
