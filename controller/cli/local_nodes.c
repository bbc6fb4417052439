/* SPDX-License-Identifier: Apache-2.0 */
#include "common/format/device_traits.h"
#include "controller/cli/local_nodes.h"

#include <stdio.h>
#include <unistd.h>

#include "runtime/device/device.h"

json_t *local_nodes_create(int count, int share)
{
	double memory = 0.8 * (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGE_SIZE) / share;
	char name[40];
	snprintf(name, sizeof name, count > 1 ? "local-[0-%d]" : "local-0", count - 1);
	return json_pack("{s:s, s:{s:{s:s, s:I, s:f, s:{s:f}}}, s:[{s:s, s:[{s:s, s:i}]}], s:[{s:s, s:f, s:f}]}", "format",
	                 HSPMD_CLUSTER_FORMAT, "device_types", "cpu-core", "kind", hspmd_device_name_of_cores(), "memory_bytes",
	                 (json_int_t)memory, "gbytes_per_s", 10.0, "peak_tflops", "fp32", 0.05, "nodes", "name", name, "devices", "type",
	                 "cpu-core", "count", 1, "links", "scope", "cluster", "alpha_s", 2e-5, "gbytes_per_s", 2.0);
}

int local_nodes_check(const struct hspmd_cluster *c, const char *path, struct hspmd_error *err)
{
	for (int i = 0; i < c->type_count; i++)
		if (!hspmd_device_find(hspmd_device_kind_names[c->types[i].kind], err))
			return hspmd_error_prefix(err, "%s: device_types.%s.kind", path, c->types[i].name);
	return 0;
}
