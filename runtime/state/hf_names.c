/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/state/hf_names.h"

#include <ctype.h>
#include <string.h>

#include "common/alloc.h"

static const char word[] = ".experts.";

static const char *after_experts(const char *name)
{
	const char *at = strstr(name, word);
	return at ? at + sizeof word - 1 : NULL;
}

bool hspmd_hf_is_expert_stack(const char *name)
{
	const char *rest = after_experts(name);
	return rest && !isdigit((unsigned char)*rest);
}

char *hspmd_hf_expert_name(const char *name, int64_t expert)
{
	const char *rest = after_experts(name);
	return hspmd_asprintf("%.*s%lld.%s", (int)(rest - name), name, (long long)expert, rest);
}

/* Join the last two dimensions. */
struct hspmd_shape hspmd_hf_shape(const char *name, const struct hspmd_shape *shape)
{
	struct hspmd_shape s = *shape;
	if (!strstr(name, ".c_attn.") || s.rank < 2)
		return s;
	s.rank--;
	s.dim[s.rank - 1] *= s.dim[s.rank];
	s.dim[s.rank] = 0;
	return s;
}
