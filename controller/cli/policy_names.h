/* SPDX-License-Identifier: Apache-2.0 */
/* Whether Slurm knows the names in the site's policies. */
#ifndef HSPMD_CLI_POLICY_NAMES_H
#define HSPMD_CLI_POLICY_NAMES_H

#include "common/format/policy.h"

/* Asks scontrol and sacctmgr for partitions, QOS, accounts and users, and warns of each pattern in a rule's match, and each name in `grow`,
 * that fits none. What cannot be asked is said and not checked. Blocks for at most a minute. Returns the number of warnings. */
int policy_names_check(const struct hspmd_policy *p);

#endif
