/* SPDX-License-Identifier: Apache-2.0 */
/* slurmd, once a job's last process on the node has ended: a job that was shrunk without a word had no time to tidy up, and its node is the
 * next one's. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/shm_dir.h"
#include "spank/plugin.h"

#define LIMIT_S 20 /* the next job waits meanwhile */

void hspmd_spank_clean_node(spank_t spank)
{
	char host[256] = "", job[16];
	const char *node = getenv("SLURMD_NODENAME");
	uint32_t id;
	if (spank_get_item(spank, S_JOB_ID, &id) != ESPANK_SUCCESS)
		return;
	if (!node && !gethostname(host, sizeof host - 1)) {
		host[strcspn(host, ".")] = '\0';
		node = host;
	}
	if (!node)
		return;
	snprintf(job, sizeof job, "%u", id);
	hspmd_shm_dir_sweep_job(node, job, LIMIT_S);
}
