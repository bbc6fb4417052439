/* SPDX-License-Identifier: Apache-2.0 */
/* What elasticity brought a site, as an HTML page in the style of the report on runs. Its data stand in the page as JSON, with the id
 * "site". */
#ifndef HSPMD_CONTROLLER_REPORT_SITE_PAGE_H
#define HSPMD_CONTROLLER_REPORT_SITE_PAGE_H

#include <stdio.h>

#include "common/error.h"
#include "controller/report/site.h"

#define REPORT_SITE_ROWS_MAX 500 /* of a table */

/* 0, or -1 and err: out of memory. */
int report_site_page_write(FILE *out, struct report_site *s, struct hspmd_error *err);

#endif
