/* SPDX-License-Identifier: Apache-2.0 */
/* For tests of the plugin: a job file, a site with policies, and a submission that is accepted or refused. */
#ifndef HSPMD_TESTS_SPANK_CASE_H
#define HSPMD_TESTS_SPANK_CASE_H

#include <sys/types.h>

#include "common/error.h"
#include "spank/plugin.h"

extern struct hspmd_error spank_err;
extern char spank_folder[];
extern char spank_job_path[128], spank_policies[128], spank_program[128], spank_owner[64];
void spank_write_file(const char *name, const char *text, mode_t mode);
void spank_job_is(const char *elastic, const char *precision);
/* The site's policies: one rule, or none ("": there is no folder). */
void spank_site_is(const char *rules);
/* Every test begins with a job of 1 to 4 nodes and a site without policies. */
int spank_fresh(void **state);
struct hspmd_spank_args spank_args_of_site(void);
int spank_submit(const struct hspmd_spank_args *args, const char *file, const char *nodes, const char *policy, const char *checkpoint);
void spank_accepts(const char *nodes, const char *policy, const char *checkpoint);
void spank_refuses(const char *nodes, const char *policy, const char *checkpoint, const char *why);

#endif
