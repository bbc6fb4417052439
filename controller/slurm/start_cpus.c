/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/slurm/start_cpus.h"

#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/hostlist.h"
#include "common/range.h"

void hspmd_slurm_start_cpus_read(struct hspmd_slurm_start_cpus *s, const char *nodes, const char *cpus)
{
	struct hspmd_error ignored;
	*s = (struct hspmd_slurm_start_cpus){ .nodes = NULL };
	s->count = nodes && cpus ? hspmd_hostlist_expand(nodes, HSPMD_RANGE_MAX, &s->nodes, &ignored) : 0;
	s->cpus = s->count > 0 ? hspmd_calloc((size_t)s->count, sizeof *s->cpus) : NULL;
	for (int i = 0; s->cpus && *cpus && i < s->count;) {
		char *end;
		int each = (int)strtol(cpus, &end, 10);
		long times = strncmp(end, "(x", 2) ? 1 : strtol(end + 2, &end, 10);
		for (; times > 0 && i < s->count; times--)
			s->cpus[i++] = each;
		cpus = end + strcspn(end, ",");
		cpus += *cpus == ',';
	}
}

void hspmd_slurm_start_cpus_clear(struct hspmd_slurm_start_cpus *s)
{
	if (s->count > 0)
		hspmd_hostlist_free(s->nodes, s->count);
	free(s->cpus);
}

int hspmd_slurm_start_cpus_of(struct hspmd_slurm_start_cpus *s, const char *node)
{
	for (int i = 0; s->cpus && i < s->count; i++) {
		int k = (s->next + i) % s->count;
		if (!strcmp(s->nodes[k], node)) {
			s->next = k + 1;
			return s->cpus[k];
		}
	}
	return 0;
}
