/* SPDX-License-Identifier: Apache-2.0 */
/* What a checkpoint of a large job sends through the controller, and what the controller does for it, by both formats of manifests
 * (runtime/state/manifest.h): all workers' reports, each of which keeps a copy of another's shard, the manifest, whether it is whole, and
 * the messages that commit it. Real reports of every worker, real frames; no files. Listed extents go to every node, as each has a folder
 * of its own; a root to few.
 *
 *     checkpoints [DEVICES...] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/wire.h"
#include "runtime/generation/root_files.h"
#include "runtime/state/checkpoint_choice.h"
#include "runtime/state/state_internal.h"
#include "tests/bench/processor_time.h"
#include "tests/bench/scale/frames.h"
#include "tests/bench/scale/problem.h"

#define NODE_DEVICES 8
#define ALL_NODES 32 /* as controller/core/committed.c */
#define SPREAD_NODES 8
#define LISTED_MOST 1024
#define SAMPLED 16 /* one in so many devices */

/* What each worker writes: its parts of parameters that no device before it has. */
struct job {
	struct scale_problem p;
	struct hspmd_graph_source source;
	struct hspmd_old_plan under;
	int devices, nodes;
	struct extent_list *extents; /* by device */
	bool *has;                   /* by device and parameter */
	json_t *about;               /* `job` of the manifest */
};

static int write_parameter(struct job *j, int p, int *device, struct hspmd_local_shard *local)
{
	const struct hspmd_parameter_layout *l = &j->under.layouts->parameters[p];
	int count = hspmd_annotation_local_shards(l->state, &l->shape, device, local);
	for (int i = 0; i < count; i++) {
		struct extent_list *list = &j->extents[device[i]];
		if (local[i].replica)
			continue;
		j->has[device[i] * j->under.layouts->parameter_count + p] = true;
		for (int k = 0; k < HSPMD_STATE_KIND_COUNT; k++) {
			if (hspmd_array_grow(&list->items, &list->capacity, list->count, sizeof *list->items))
				return -1;
			struct hspmd_extent *e = &list->items[list->count];
			uint64_t at = list->count ? e[-1].offset + e[-1].bytes : 1 << 16,
			         bytes = 4 * (uint64_t)hspmd_box_elements(&local[i].box);
			*e = (struct hspmd_extent){ .tensor = (char *)(uintptr_t)l->name,
				                    .kind = (enum hspmd_state_kind)k,
				                    .shape = l->shape,
				                    .box = local[i].box,
				                    .offset = at,
				                    .bytes = bytes,
				                    .xxh3 = at * 0x9e3779b97f4a7c15 };
			list->count++;
		}
	}
	return 0;
}

static int make_job(struct job *j, int devices, struct hspmd_error *err)
{
	enum scale_shapes shapes = devices % 1024 ? SCALE_ALIKE : SCALE_FOUR;
	*j = (struct job){ .devices = devices, .nodes = devices / NODE_DEVICES };
	if (scale_problem_create(devices, shapes, &j->p, err))
		return -1;
	j->source = hspmd_graph_source_model(j->p.model);
	json_t *cluster = hspmd_cluster_to_json(j->p.cluster), *plan = hspmd_plan_to_json(j->p.plan, j->p.cluster);
	j->about =
	        json_pack("{s:s, s:o, s:o, s:O}", "run", "0123456789abcdef", "cluster", cluster, "plan", plan, "model", j->p.model->config);
	if (!j->about || hspmd_old_plan_read(&j->source, NULL, NULL, cluster, plan, "plan", &j->under, err))
		return -1;
	j->extents = calloc((size_t)devices, sizeof *j->extents);
	j->has = calloc((size_t)devices, (size_t)j->under.layouts->parameter_count);
	int *device = calloc((size_t)devices, sizeof *device);
	struct hspmd_local_shard *local = calloc((size_t)devices, sizeof *local);
	int status = j->extents && j->has && device && local ? 0 : hspmd_fail_memory(err, "making shards");
	for (int p = 0; !status && p < j->under.layouts->parameter_count; p++)
		if (write_parameter(j, p, device, local))
			status = hspmd_fail_memory(err, "making shards");
	free(device);
	free(local);
	return status;
}

static void clear_job(struct job *j)
{
	for (int d = 0; j->extents && d < j->devices; d++)
		free(j->extents[d].items);
	free(j->extents);
	free(j->has);
	json_decref(j->about);
	hspmd_old_plan_clear(&j->under);
	scale_problem_clear(&j->p);
}

/* The shard of a device as a node reports that has it. */
static json_t *shard_on(const struct job *j, int device, int node, bool root)
{
	char address[64], file[HSPMD_SHARD_NAME_MAX], name[64], *names = name;
	const struct extent_list *x = &j->extents[device];
	const int parameters = j->under.layouts->parameter_count;
	hspmd_cluster_device_address(j->p.cluster, device, address, sizeof address);
	hspmd_shard_name(address, file, sizeof file);
	snprintf(name, sizeof name, "%s", j->p.cluster->nodes[node].name);
	uint64_t bytes = x->count ? x->items[x->count - 1].offset + x->items[x->count - 1].bytes : 4096;
	if (!root)
		return hspmd_shard_json(file, bytes, &names, 1, x->items, (int)x->count);
	char *set =
	        device / NODE_DEVICES == node ? hspmd_manifest_set_text(j->has + (size_t)device * (size_t)parameters, parameters) : NULL;
	json_t *shard = hspmd_root_shard_json(file, bytes, name, (uint64_t)(device + 1) * 0x9e3779b97f4a7c15, set);
	free(set);
	return shard;
}

static json_t *report_of(const struct job *j, int device, bool root)
{
	char from[64], folder[80];
	int node = device / NODE_DEVICES, other = (device + j->devices / 2) % j->devices;
	hspmd_cluster_device_address(j->p.cluster, device, from, sizeof from);
	snprintf(folder, sizeof folder, "/scratch/hspmd/user/run-0123456789ab/%s", j->p.cluster->nodes[node].name);
	json_t *places = root ? json_array() : json_pack("[{s:s, s:n}]", "place", folder, "error");
	json_t *m = json_pack("{s:s, s:s, s:s, s:i, s:i, s:o, s:o, s:f, s:f, s:{s:[o], s:n}}", "type", "checkpoint_written", "from", from,
	                      "id", "g12-345-67", "step", 123456, "generation", 12, "shard", shard_on(j, device, node, root), "places",
	                      places, "seconds", 12.345678901234567, "hold_s", 0.0012345678901234567, "copies", "shards",
	                      shard_on(j, other, node, root), "error");
	if (m && !root)
		json_object_set(m, "bytes", json_object_get(json_object_get(m, "shard"), "bytes"));
	return m;
}

/* All reports, as the controller has them. */
static json_t *reports(const struct job *j, bool root, struct scale_control *c, struct hspmd_error *err)
{
	json_t *all = json_array();
	for (int d = 0; d < j->devices; d++) {
		json_t *m = report_of(j, d, root);
		if (json_array_append(all, m) || scale_pass(c, 1, m, false, err))
			break;
	}
	return all;
}

static int commit(const struct job *j, json_t *manifest, bool root, struct scale_control *c, struct hspmd_error *err)
{
	int holders = !root || j->nodes <= ALL_NODES ? j->nodes : SPREAD_NODES;
	json_t *write = json_pack("{s:s, s:s, s:O}", "type", "write_manifest", "id", "g12-345-67", "manifest", manifest);
	json_t *own = json_pack("{s:[s], s:[s]}", "folders", "/scratch/hspmd/user/run-0123456789ab", "to", "n1000:0");
	json_t *kept = json_pack("{s:s, s:s, s:[[ii],[ii]]}", "type", "committed", "folder", "/scratch/hspmd/user/run-0123456789ab",
	                         "checkpoints", 123456, 12, 123000, 12);
	int status = scale_pass_packed(c, holders, write, own, err);
	if (!status && root)
		status = scale_pass_packed(c, j->nodes, kept, json_pack("{s:[s]}", "to", "n1000:0"), err);
	else
		json_decref(kept);
	return status ? status
	              : scale_pass(c, holders,
	                           json_pack("{s:s, s:s, s:s}", "type", "manifest_written", "from", "n1000:0", "id", "g12-345-67"), false,
	                           err);
}

static int checkpoint(const struct job *j, bool root, struct hspmd_error *err)
{
	struct scale_control c = { 0 };
	struct hspmd_root_checker checker = { .source = &j->source };
	struct hspmd_root_check check = { hspmd_root_checker_covered, &checker };
	json_t *ask = json_pack("{s:s, s:i, s:s, s:s, s:n}", "type", "checkpoint", "generation", 12, "id", "g12-345-67", "local",
	                        "/scratch/hspmd/user/run-0123456789ab", "shared");
	if (scale_pass_packed(&c, j->nodes, ask,
	                      json_pack("{s:[ssssssss]}", "to", "n1000:0", "n1000:1", "n1000:2", "n1000:3", "n1000:4", "n1000:5", "n1000:6",
	                                "n1000:7"),
	                      err))
		return -1;
	json_t *written = reports(j, root, &c, err), *manifest = NULL;
	double seconds[2] = { 0 };
	for (int i = 0; i < 2; i++) { /* the layouts of a plan are made for its first checkpoint */
		double start = processor_time();
		json_decref(manifest);
		manifest = hspmd_manifest_from_reports(written, j->about, &check, err);
		seconds[i] = processor_time() - start;
	}
	size_t bytes = manifest ? json_dumpb(manifest, NULL, 0, JSON_COMPACT) : 0;
	int status = manifest ? commit(j, manifest, root, &c, err) : -1;
	if (!status)
		printf("| %d | %s | %.2f MB | %.3f MB | %.2f MB | %.2f s | %.2f, %.2f s |\n", j->devices, root ? "root" : "extents",
		       c.bytes / 1e6, c.largest / 1e6, (double)bytes / 1e6, c.processor_s, seconds[0], seconds[1]);
	json_decref(written);
	json_decref(manifest);
	hspmd_root_checker_clear(&checker);
	return status;
}

/* Extents of so many devices do not fit into memory as JSON: the reports of some devices are counted one by one, and the manifest by their
 * shards. */
static int count_extents(const struct job *j, struct hspmd_error *err)
{
	struct scale_control c = { 0 };
	double manifest = 0;
	for (int d = 0; d < j->devices; d += SAMPLED) {
		json_t *m = report_of(j, d, false);
		manifest += SAMPLED * (double)json_dumpb(json_object_get(m, "shard"), NULL, 0, JSON_COMPACT);
		if (scale_pass(&c, 1, m, false, err))
			return -1;
	}
	printf("| %d | extents | %.0f MB of reports | the manifest | %.0f MB | %.2f s | a message may have %u MB |\n", j->devices,
	       SAMPLED * c.bytes / 1e6, manifest / 1e6, SAMPLED * c.processor_s, HSPMD_WIRE_MAX >> 20);
	return 0;
}

static int measure(int devices)
{
	struct hspmd_error err = { "" };
	struct job j;
	int status = make_job(&j, devices, &err);
	if (!status)
		status = devices > LISTED_MOST ? count_extents(&j, &err) : checkpoint(&j, false, &err);
	if (!status)
		status = checkpoint(&j, true, &err);
	if (status)
		printf("%d devices: %s\n", devices, err.text);
	fflush(stdout);
	clear_job(&j);
	return status;
}

int main(int argc, char **argv)
{
	static char *sizes[] = { "64", "256", "1024", "4096", "10240" };
	int failed = 0, count = argc > 1 ? argc - 1 : 5;
	char **size = argc > 1 ? argv + 1 : sizes;
	printf("| devices | manifest | through the controller | largest message | manifest file | frames | first manifest made and "
	       "checked, the next |\n"
	       "| ---: | --- | ---: | ---: | ---: | ---: | ---: |\n");
	fflush(stdout);
	for (int i = 0; i < count; i++) {
		pid_t child = fork();
		int status = 1;
		if (child == 0)
			_exit(measure(atoi(size[i])));
		if (child < 0 || waitpid(child, &status, 0) < 0)
			perror("checkpoints");
		failed |= status != 0;
	}
	return failed;
}
