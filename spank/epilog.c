/* SPDX-License-Identifier: Apache-2.0 */
/* slurmd, after a job's last process on the node has ended: removes what a job that lost the node without notice left behind, before the
 * next job gets the node. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/shm_dir.h"
#include "spank/plugin.h"

#define LIMIT_S 10 /* the next job waits for the epilog */

void hspmd_spank_clean_node(spank_t spank)
{
	char host[256] = "", job[16];
	const char *node = getenv("SLURMD_NODENAME");
	uint32_t id;
	uid_t owner;
	if (spank_get_item(spank, S_JOB_ID, &id) != ESPANK_SUCCESS || spank_get_item(spank, S_JOB_UID, &owner) != ESPANK_SUCCESS)
		return;
	if (!node && !gethostname(host, sizeof host - 1)) {
		host[strcspn(host, ".")] = '\0';
		node = host;
	}
	if (!node)
		return;
	snprintf(job, sizeof job, "%u", id);
	hspmd_shm_dir_sweep_job(owner, node, job, LIMIT_S);
}
