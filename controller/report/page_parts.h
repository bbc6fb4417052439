/* SPDX-License-Identifier: Apache-2.0 */
/* What all pages have: head with style, foot with script, and the controls of their charts. */
#ifndef HSPMD_CONTROLLER_REPORT_PAGE_PARTS_H
#define HSPMD_CONTROLLER_REPORT_PAGE_PARTS_H

#include <stdio.h>

/* title, and after ": " the name of what is reported, which may be foreign; NULL: none. */
void report_head_write(FILE *out, const char *title, const char *name);
/* A sentence on how to look closer, with the switch to logarithmic scales; once in a page with charts. */
void report_controls_write(FILE *out);
void report_foot_write(FILE *out);

#endif
