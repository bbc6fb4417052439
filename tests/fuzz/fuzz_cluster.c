/* SPDX-License-Identifier: Apache-2.0 */
#include "common/format/cluster.h"
#include "fuzz.h"

/* Make the queries that other code makes; the index must answer as the search without it does. */
static void look_around(struct hspmd_cluster *c)
{
	char address[300];
	struct hspmd_error err;
	int n = c->device_count, few = n < 12 ? n : 12;
	for (int i = 0; i < few; i++) {
		int a = i * (n / few), b = (a * 7 + i) % n;
		const struct hspmd_link *l = hspmd_cluster_find_link(c, a, b, 1 + i % 3, 1 + i % 2);
		struct hspmd_cluster_index *index = c->index;
		c->index = NULL;
		fuzz_check(l == hspmd_cluster_find_link(c, a, b, 1 + i % 3, 1 + i % 2), "the index agrees with the search");
		c->index = index;
		if (l)
			fuzz_check(hspmd_link_seconds(l, 1e6) >= 0, "no message takes less than no time");
		fuzz_check(hspmd_cluster_find_device(c, hspmd_cluster_device_address(c, a, address, sizeof address), &err) == a,
		           "addresses lead back");
	}
}

static json_t *written(const json_t *value, struct hspmd_error *err)
{
	struct hspmd_cluster *x = hspmd_cluster_from_json(value, "input", err);
	if (!x)
		return NULL;
	look_around(x);
	json_t *o = hspmd_cluster_to_json(x);
	hspmd_cluster_destroy(x);
	fuzz_check(o != NULL, "what was read can be written");
	return o;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	return fuzz_round_trip(data, size, written);
}
