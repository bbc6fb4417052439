/* SPDX-License-Identifier: Apache-2.0 */
/* Entry points that Slurm calls; each is handled in the file of its context. */
#include "spank/plugin.h"

#include <stdlib.h>

SPANK_PLUGIN(hspmd, 1)

static struct hspmd_spank_args args;
static bool broken; /* plugstack.conf is invalid: the plugin does nothing */

static bool is_submission(void)
{
	spank_context_t c = spank_context();
	return c == S_CTX_ALLOCATOR || c == S_CTX_LOCAL;
}

int slurm_spank_init(spank_t spank, int argc, char *argv[])
{
	struct hspmd_error err;
	spank_context_t c = spank_context();
	if (c != S_CTX_ALLOCATOR && c != S_CTX_LOCAL && c != S_CTX_REMOTE)
		return ESPANK_SUCCESS;
	if (hspmd_spank_args_read(&args, argc, argv, &err) < 0) {
		slurm_error("hspmd: plugstack.conf: %s; the plugin does nothing", err.text);
		broken = true;
		return ESPANK_SUCCESS;
	}
	if (hspmd_spank_options_register(spank) < 0) {
		slurm_error("hspmd: Slurm does not take the plugin's options; it does nothing");
		broken = true;
	}
	if (!broken && c == S_CTX_ALLOCATOR)
		hspmd_spank_give_script(&args);
	return ESPANK_SUCCESS;
}

/* An `optional` plugin (a `required` one would break every command of a login node that lacks it) cannot stop a submission by its return
 * value, and an option's callback does not see later options. A bad job therefore ends the command here, before anything is submitted. */
int slurm_spank_init_post_opt(spank_t spank, int argc, char *argv[])
{
	struct hspmd_error err = { "" };
	(void)argc;
	(void)argv;
	if (broken || !is_submission())
		return ESPANK_SUCCESS;
	int rc = hspmd_spank_submit(spank, &args, &hspmd_spank_options, &err);
	if (rc < 0) {
		slurm_error("hspmd: %s", err.text);
		exit(EXIT_FAILURE);
	}
	return ESPANK_SUCCESS;
}

int slurm_spank_user_init(spank_t spank, int argc, char *argv[])
{
	(void)argc;
	(void)argv;
	if (!broken)
		hspmd_spank_export_env(spank);
	return ESPANK_SUCCESS;
}

/* On the node, as slurmd's user, after the job has ended there. */
int slurm_spank_job_epilog(spank_t spank, int argc, char *argv[])
{
	(void)argc;
	(void)argv;
	hspmd_spank_clean_node(spank);
	return ESPANK_SUCCESS;
}

int slurm_spank_exit(spank_t spank, int argc, char *argv[])
{
	(void)spank;
	(void)argc;
	(void)argv;
	hspmd_spank_options_clear();
	return ESPANK_SUCCESS;
}
