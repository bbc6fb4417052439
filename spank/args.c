/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "spank/plugin.h"

int hspmd_spank_args_read(struct hspmd_spank_args *args, int argc, char *const *argv, struct hspmd_error *err)
{
	*args = (struct hspmd_spank_args){ .policies = HSPMD_SYSCONFDIR "/hspmd/policies.d", .hspmd = HSPMD_BINDIR "/hspmd" };
	const struct {
		const char *key;
		const char **value;
	} known[] = { { "policies", &args->policies },
		      { "owner", &args->owner },
		      { "ctld", &args->ctld },
		      { "hspmd", &args->hspmd },
		      { "default_partition", &args->default_partition } };
	for (int i = 0; i < argc; i++) {
		const char *equals = strchr(argv[i], '=');
		size_t n = equals ? (size_t)(equals - argv[i]) : 0, k = 0;
		if (!n)
			return hspmd_fail(err, "expected key=value, got \"%s\"", argv[i]);
		while (k < sizeof known / sizeof *known && (strlen(known[k].key) != n || strncmp(known[k].key, argv[i], n) != 0))
			k++;
		if (k == sizeof known / sizeof *known)
			return hspmd_fail(err, "unknown argument \"%.*s\"; known: policies, owner, ctld, hspmd, default_partition", (int)n,
			                  argv[i]);
		if (!equals[1])
			return hspmd_fail(err, "%s= needs a value", known[k].key);
		*known[k].value = equals + 1;
	}
	if (*args->policies != '/')
		return hspmd_fail(err, "policies=%s: expected an absolute path", args->policies);
	return 0;
}
