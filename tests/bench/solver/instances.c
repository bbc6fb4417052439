/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/bench/solver/instances.h"

#include <math.h>
#include <stdlib.h>

#include "common/alloc.h"
#include "tests/bench/solver/dice.h"

static const char *const type_names[3] = { "A", "B", "C" };

static json_t *random_nodes(struct dice *d, int devices, int types)
{
	json_t *nodes = json_array();
	int left = pick(d, 2, devices);
	for (int n = 0; left > 0; n++) {
		int count = pick(d, 1, 4);
		count = count < left ? count : left;
		left -= count;
		char name[16];
		snprintf(name, sizeof name, "n%d", n);
		json_array_append_new(nodes, json_pack("{s:s, s:[{s:s, s:i}]}", "name", name, "devices", "type",
		                                       type_names[pick(d, 0, types - 1)], "count", count));
	}
	return nodes;
}

static json_t *random_cluster(struct dice *d, int devices, double model_bytes, bool tight)
{
	int types = pick(d, 1, 3);
	json_t *described = json_object(), *links = json_array();
	for (int t = 0; t < types; t++) {
		double memory = model_bytes * (tight ? between(d, 0.35, 0.9) : between(d, 1.5, 6));
		json_object_set_new(described, type_names[t],
		                    json_pack("{s:s, s:I, s:f, s:{s:f}}", "kind", "cpu", "memory_bytes", (json_int_t)memory, "gbytes_per_s",
		                              100.0, "peak_tflops", "fp32", 1.0));
	}
	json_array_append_new(links, json_pack("{s:s, s:f, s:f}", "scope", "node", "alpha_s", 1e-6, "gbytes_per_s", between(d, 5, 100)));
	json_array_append_new(links,
	                      json_pack("{s:s, s:f, s:f}", "scope", "cluster", "alpha_s", 1e-5, "gbytes_per_s", between(d, 0.3, 20)));
	return json_pack("{s:s, s:o, s:o, s:o}", "format", HSPMD_CLUSTER_FORMAT, "device_types", described, "nodes",
	                 random_nodes(d, devices, types), "links", links);
}

static json_t *random_profile(struct dice *d, int layers, double *model_bytes)
{
	json_t *rows = json_array(), *times = json_array();
	double block = between(d, 2e6, 2e7), output = between(d, 1e5, 2e6), kept = output * between(d, 10, 40);
	double embedding = between(d, 0.3, 3), head = between(d, 0.3, 3);
	*model_bytes = 0;
	for (int l = 0; l < layers; l++) {
		double size = l == 0 ? embedding : l == layers - 1 ? head : 1;
		json_array_append_new(rows, json_pack("{s:s, s:f, s:f, s:f}", "name", "layer", "params", size * block, "output_elems",
		                                      output, "activation_bytes", size * kept));
		*model_bytes += size * block * 20 + 2 * size * kept;
	}
	for (int t = 0; t < 3; t++) {
		double second = between(d, 1e-3, 8e-3), ends = between(d, 0.1, 2);
		for (int tp = 1; tp <= 4; tp *= 2) {
			double share = 1.0 / tp + 0.05 * (tp - 1) * roll(d);
			for (int mb = 1; mb <= 4; mb *= 2) {
				json_t *forward = json_array(), *backward = json_array(), *update = json_array();
				double seconds = second * share * (mb + 0.3);
				for (int l = 0; l < layers; l++) {
					double part = l == 0 ? 0.1 * ends : l == layers - 1 ? ends : 1;
					json_array_append_new(forward, json_real(seconds * part));
					json_array_append_new(backward, json_real(1.9 * seconds * part));
					json_array_append_new(update, json_real(0.1 * second / tp));
				}
				json_array_append_new(times, json_pack("{s:s, s:i, s:i, s:o, s:o, s:o}", "device_type", type_names[t], "tp",
				                                       tp, "micro_batch", mb, "forward_s", forward, "backward_s", backward,
				                                       "optimizer_s", update));
			}
		}
	}
	return json_pack("{s:s, s:s, s:i, s:i, s:o, s:o}", "format", HSPMD_PROFILE_FORMAT, "model", "random", "seq_len", 128, "dtype_bytes",
	                 4, "layers", rows, "times", times);
}

int instance_new(unsigned seed, int devices, int layers, struct instance *out, struct hspmd_error *err)
{
	static const int batches[] = { 4, 6, 8, 12, 16 };
	struct dice d = { seed * 7919u + 1 };
	double model_bytes;
	*out = (struct instance){ .global_batch = batches[pick(&d, 0, 4)], .tight = seed % 3 == 0 };
	json_t *profile = random_profile(&d, pick(&d, 3, layers), &model_bytes);
	json_t *cluster = random_cluster(&d, devices, model_bytes, out->tight);
	out->profile = hspmd_profile_from_json(profile, "profile", err);
	out->cluster = out->profile ? hspmd_cluster_from_json(cluster, "cluster", err) : NULL;
	json_decref(profile);
	json_decref(cluster);
	return out->cluster ? 0 : -1;
}

void instance_free(struct instance *i)
{
	hspmd_cluster_destroy(i->cluster);
	hspmd_profile_destroy(i->profile);
	*i = (struct instance){ 0 };
}
