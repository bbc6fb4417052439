/* SPDX-License-Identifier: Apache-2.0 */
#include "common/format/plan.h"
#include "fuzz.h"

/* The cluster whose devices plans name. */
static const struct hspmd_cluster *cluster(void)
{
	static struct hspmd_cluster *c;
	struct hspmd_error err;
	if (!c)
		c = hspmd_cluster_read(HSPMD_SRCDIR "/tests/data/cluster/mixed.json", &err);
	fuzz_check(c != NULL, "the cluster is there");
	return c;
}

static void look_around(const struct hspmd_plan *p)
{
	char *line = hspmd_plan_summary(p, cluster());
	struct hspmd_plan *copy = hspmd_plan_copy(p);
	fuzz_check(line && copy, "a plan can be described and copied");
	fuzz_check(hspmd_plan_device_count(copy) <= cluster()->device_count, "no device is counted twice");
	hspmd_plan_destroy(copy);
	free(line);
}

static json_t *written(const json_t *value, struct hspmd_error *err)
{
	struct hspmd_plan *x = hspmd_plan_from_json(value, "input", cluster(), -1, err);
	if (!x)
		return NULL;
	look_around(x);
	json_t *o = hspmd_plan_to_json(x, cluster());
	hspmd_plan_destroy(x);
	fuzz_check(o != NULL, "what was read can be written");
	return o;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	return fuzz_round_trip(data, size, written);
}
