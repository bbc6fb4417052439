/* SPDX-License-Identifier: Apache-2.0 */
/* Loads the module for this machine's Slurm. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "common/module_path.h"
#include "controller/slurm/interface.h"
#include "controller/slurm/module.h"

#define PATTERN "hspmd-slurm-*.so"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const struct hspmd_slurm_module *loaded;

static const struct hspmd_slurm_module *load_file(const char *path, struct hspmd_error *err)
{
	/* Slurm's own plugins, which libslurm loads, look for its functions among those that are visible to all. */
	void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
	if (!library) {
		hspmd_fail(err, "%s", dlerror());
		return NULL;
	}
	const struct hspmd_slurm_module *module = dlsym(library, "hspmd_slurm_module");
	bool same_release = module && !strcmp(module->release, PACKAGE_VERSION);
	if (same_release && !strcmp(module->interface, HSPMD_SLURM_INTERFACE))
		return module;
	if (same_release)
		hspmd_fail(err,
		           "%s was built from other sources of hspmd " PACKAGE_VERSION " than this program: install both from one build",
		           path);
	else
		hspmd_fail(err, "%s is of %s%s, this is hspmd " PACKAGE_VERSION, path, module ? "hspmd " : "something else",
		           module ? module->release : "");
	dlclose(library);
	return NULL;
}

/* Tries all paths, the newest Slurm's first. */
static const struct hspmd_slurm_module *load_first(char *const *path, size_t count, struct hspmd_error *err)
{
	const struct hspmd_slurm_module *module = NULL;
	char why[sizeof err->text] = "";
	size_t n = 0;
	for (size_t i = count; !module && i > 0; i--) {
		struct hspmd_error each;
		if (!(module = load_file(path[i - 1], &each)) && n < sizeof why)
			n += (size_t)snprintf(why + n, sizeof why - n, "%s%s", n ? "; " : "", each.text);
	}
	if (!module)
		hspmd_fail(err, "no module of hspmd fits the Slurm of this machine (install or build one for its version): %s", why);
	else if (*why)
		hspmd_debug("using the module for Slurm %s; %s", module->slurm, why);
	return module;
}

static const struct hspmd_slurm_module *load(struct hspmd_error *err)
{
	const char *named = getenv("HSPMD_SLURM_MODULE");
	const struct hspmd_slurm_module *module = NULL;
	char **path = NULL;
	if (named && *named)
		return load_file(named, err);
	int count = hspmd_module_paths(PATTERN, &path, err);
	if (!count)
		hspmd_fail(err, "hspmd's module for Slurm (" PATTERN ") is not in " HSPMD_PKGLIBDIR
		                ": install hspmd-slurm-plugin, or build hspmd where Slurm's headers are");
	else if (count > 0)
		module = load_first(path, (size_t)count, err);
	hspmd_module_paths_free(path, count);
	return module;
}

const struct hspmd_slurm_module *hspmd_slurm_module_load(struct hspmd_error *err)
{
	pthread_mutex_lock(&lock);
	if (!loaded)
		loaded = load(err);
	const struct hspmd_slurm_module *module = loaded;
	pthread_mutex_unlock(&lock);
	return module;
}
