/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "spank/plugin.h"

struct hspmd_spank_options hspmd_spank_options;
const char *const hspmd_spank_env_names[] = { "HSPMD_JOB",      "HSPMD_NODES", "HSPMD_POLICY", "HSPMD_CHECKPOINT", "HSPMD_CTLD",
	                                      "HSPMD_POLICIES", "HSPMD_JOB_DIGEST", "HSPMD_JOB_COPY", NULL };

enum { FILE_OPTION, NODES_OPTION, POLICY_OPTION, CHECKPOINT_OPTION };

static int take(int option, const char *text, int remote)
{
	char **slots[] = { &hspmd_spank_options.file, &hspmd_spank_options.nodes, &hspmd_spank_options.policy,
		           &hspmd_spank_options.checkpoint };
	if (remote)
		return 0; /* on the node the options come from the environment (remote.c) */
	char *copy = strdup(text ? text : "");
	if (!copy)
		return -1;
	free(*slots[option]);
	*slots[option] = copy;
	return 0;
}

static struct spank_option options[] = {
	{ "hspmd", "FILE", "train elastically what the job file says (see hspmd-job(5))", 1, FILE_OPTION, take },
	{ "hspmd-nodes", "MIN-MAX", "hspmd: fewest and most nodes, instead of the job file's", 1, NODES_OPTION, take },
	{ "hspmd-policy", "NAME", "hspmd: which of the site's policies to go by", 1, POLICY_OPTION, take },
	{ "hspmd-checkpoint", "DIR", "hspmd: shared folder for checkpoints, instead of the job file's", 1, CHECKPOINT_OPTION, take },
};

int hspmd_spank_options_register(spank_t spank)
{
	for (size_t i = 0; i < sizeof options / sizeof *options; i++)
		if (spank_option_register(spank, &options[i]) != ESPANK_SUCCESS)
			return -1;
	return 0;
}

void hspmd_spank_options_clear(void)
{
	free(hspmd_spank_options.file);
	free(hspmd_spank_options.nodes);
	free(hspmd_spank_options.policy);
	free(hspmd_spank_options.checkpoint);
	memset(&hspmd_spank_options, 0, sizeof hspmd_spank_options);
}
