/* SPDX-License-Identifier: Apache-2.0 */
/* A generation takes up the state of a checkpoint that other devices wrote under another plan. By a manifest that lists extents and by a
 * root it gets the same state, and what is wrong with the files is told. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/durable.h"
#include "runtime/generation/generation.h"
#include "runtime/generation/root_files.h"
#include "runtime/model/model.h"
#include "runtime/program/pipelines.h"
#include "runtime/state/state_internal.h"
#include "runtime/tensor/fp8.h"
#include "tests/unit/state_root.h"

#define STEP 9
#define FOLDER "step-0000000009-g2"

static const char model_text[] = "{\"model_type\":\"gpt2\",\"n_embd\":16,\"n_layer\":1,\"n_head\":2,\"n_positions\":8,\"vocab_size\":300,"
                                 "\"resid_pdrop\":0,\"embd_pdrop\":0,\"attn_pdrop\":0}";
#define EXPERTS(more)                                                                                                                      \
	"{\"model_type\":\"mixtral\",\"hidden_size\":16,\"num_hidden_layers\":1,\"num_attention_heads\":2," more                           \
	"\"num_key_value_heads\":2,\"intermediate_size\":8,\"max_position_embeddings\":8,\"vocab_size\":300,"                              \
	"\"num_local_experts\":2,\"num_experts_per_tok\":1}"
static const char experts_text[] = EXPERTS(""), tied_experts_text[] = EXPERTS("\"tie_word_embeddings\":true,");
#define CLUSTER(nodes)                                                                                                                     \
	"{\"format\":\"hspmd-cluster-1\",\"device_types\":{\"c\":{\"kind\":\"cpu\",\"memory_bytes\":1000000000,\"gbytes_per_s\":10,"       \
	"\"peak_tflops\":{\"fp32\":0.01}}},\"nodes\":[" nodes "],\"links\":[{\"scope\":\"node\",\"alpha_s\":1e-6,\"gbytes_per_s\":5},"     \
	"{\"scope\":\"cluster\",\"alpha_s\":1e-6,\"gbytes_per_s\":0.1}]}"
#define NODE(name, count) "{\"name\":\"" name "\",\"devices\":[{\"type\":\"c\",\"count\":" count "}]}"
#define PLAN(pipelines)                                                                                                                    \
	"{\"format\":\"hspmd-plan-1\",\"global_batch\":4,\"micro_batch\":1,\"seq_len\":4,\"zero_stage\":0,\"pipelines\":[" pipelines "]}"
#define PIPELINE(stages) "{\"micro_batches\":2,\"stages\":[" stages "]}"
#define STAGE(layers, devices) "{\"layers\":[" layers "],\"devices\":[" devices "]}"

/* The writers: n:0 and n:1 have a part each, m:0 has everything once more. */
static const char old_cluster[] = CLUSTER(NODE("n", "2") "," NODE("m", "1"));
static const char old_plan[] = PLAN(PIPELINE(STAGE("0,1", "\"n:0\"") "," STAGE("1,3", "\"n:1\"")) "," PIPELINE(STAGE("0,3", "\"m:0\"")));
enum { WRITERS = 3 };
static const char *const nodes[WRITERS] = { "n", "n", "m" }, *const files[WRITERS] = { "n-0.safetensors", "n-1.safetensors",
	                                                                               "m-0.safetensors" };

static const char new_cluster[] = CLUSTER(NODE("n", "1"));
static const char new_plan[] = PLAN("{\"micro_batches\":4,\"stages\":[" STAGE("0,3", "\"n:0\"") "]}");

static struct {
	const char *lacks; /* of parameters that the checkpoint does not have: how their names end, with so many rows; NULL: none */
	int64_t lacks_rows;
	bool is_counted;  /* the root's sets have a place for them nevertheless */
	const char *plan; /* of the writers; NULL: old_plan */
	char root[64], local[96], shared[96], folder[WRITERS][128];
	struct hspmd_worker_setup setup;
	struct hspmd_generation *g;
	struct hspmd_manifest *listed;
	json_t *root_manifest, *other; /* `other`: of a model whose parameters have the same names, but not the same shapes */
} scene;

static float value_at(int parameter, int kind, int64_t element)
{
	return (float)(element % 10007) + 0.25f * (float)kind + 20000.0f * (float)parameter;
}

/* ---- writing */

static float *fill(int parameter, int kind, const struct hspmd_shape *shape, const struct hspmd_box *box)
{
	float *data = malloc((size_t)hspmd_box_elements(box) * sizeof *data);
	int64_t at[HSPMD_MAX_RANK], n = hspmd_box_elements(box);
	memcpy(at, box->lo, sizeof at);
	for (int64_t i = 0; i < n; i++) {
		int64_t element = 0;
		for (int d = 0; d < shape->rank; d++)
			element = element * shape->dim[d] + at[d];
		data[i] = value_at(parameter, kind, element);
		for (int d = box->rank - 1; d >= 0 && ++at[d] == box->hi[d]; d--)
			at[d] = box->lo[d];
	}
	return data;
}

static bool is_lacking(const struct hspmd_parameter_layout *l)
{
	size_t length = strlen(l->name), end = scene.lacks ? strlen(scene.lacks) : 0;
	return end && length >= end && !strcmp(l->name + length - end, scene.lacks) && l->shape.dim[0] == scene.lacks_rows;
}

/* longer: by how many rows each parameter is longer than the model's. */
static json_t *write_shard(const struct hspmd_parameter_layouts *layouts, int device, const char *location, int longer)
{
	struct hspmd_state_slice slices[256] = { 0 };
	struct hspmd_error err = { "" };
	struct hspmd_image im = { 0 };
	json_t *shard;
	size_t n = 0;
	for (int p = 0; p < layouts->parameter_count; p++) {
		const struct hspmd_parameter_layout *l = &layouts->parameters[p];
		struct hspmd_local_shard part;
		struct hspmd_shape shape = l->shape;
		shape.dim[0] += longer;
		if (is_lacking(l) || !hspmd_annotation_local_shard(l->state, &l->shape, device, &part))
			continue;
		part.box.hi[0] += longer;
		for (int k = 0; k < HSPMD_STATE_KIND_COUNT; k++)
			slices[n++] = (struct hspmd_state_slice){ l->name,  (enum hspmd_state_kind)k,      HSPMD_F32, shape,
				                                  part.box, fill(p, k, &shape, &part.box), false };
	}
	int status = hspmd_image_layout(&im, slices, n, &err);
	for (size_t i = 0; !status && i < n; i++)
		memcpy(im.data + im.extents[i].offset, slices[i].data, im.extents[i].bytes);
	if (status || hspmd_image_seal(&im, &err) ||
	    hspmd_shard_store(location, nodes[device], STEP, 2, files[device], im.data, im.bytes, &shard, &err))
		fail_msg("%s", err.text);
	for (size_t i = 0; i < n; i++)
		free((void *)(uintptr_t)slices[i].data);
	hspmd_image_free(&im);
	return shard;
}

static void write_checkpoint(void)
{
	struct hspmd_error err = { "" };
	json_t *cluster_json = json_loads(old_cluster, 0, NULL), *plan_json = json_loads(scene.plan ? scene.plan : old_plan, 0, NULL),
	       *shards[WRITERS];
	json_t *job = json_pack("{sO,sO}", "cluster", cluster_json, "plan", plan_json);
	struct hspmd_cluster *cluster = hspmd_cluster_from_json(cluster_json, "cluster", &err);
	struct hspmd_plan *plan = cluster ? hspmd_plan_from_json(plan_json, "plan", cluster, 3, &err) : NULL;
	struct hspmd_graph *graph = plan ? hspmd_pipeline_graph(&scene.setup.source, plan, cluster, &err) : NULL;
	struct hspmd_parameter_layouts *layouts = graph ? hspmd_parameter_layouts_build(graph, plan, &err) : NULL;
	if (!layouts)
		fail_msg("%s", err.text);
	const char *names[64], *folders[WRITERS];
	int count = 0;
	for (int p = 0; p < layouts->parameter_count; p++)
		if (scene.is_counted || !is_lacking(&layouts->parameters[p]))
			names[count++] = layouts->parameters[p].name;
	for (int d = 0; d < WRITERS; d++) {
		shards[d] = write_shard(layouts, d, d < 2 ? scene.local : scene.shared, 0);
		snprintf(scene.folder[d], sizeof scene.folder[d], "%s/" FOLDER, d < 2 ? scene.local : scene.shared);
		folders[d] = scene.folder[d];
	}
	scene.listed = hspmd_manifest_assemble(STEP, 2, job, shards, WRITERS, &err);
	if (!scene.listed)
		fail_msg("%s", err.text);
	scene.root_manifest = state_root(scene.listed, folders, names, count);
	char location[96], folder[128];
	snprintf(location, sizeof location, "%s/other", scene.root);
	snprintf(folder, sizeof folder, "%s/" FOLDER, location);
	json_t *longer = write_shard(layouts, 2, location, 1);
	struct hspmd_manifest *other = hspmd_manifest_assemble(STEP, 2, job, &longer, 1, &err);
	if (!other)
		fail_msg("%s", err.text);
	scene.other = state_root(other, (const char *const[]){ folder }, names, count);
	hspmd_manifest_destroy(other);
	json_decref(longer);
	for (int d = 0; d < WRITERS; d++)
		json_decref(shards[d]);
	hspmd_parameter_layouts_destroy(layouts);
	hspmd_graph_destroy(graph);
	hspmd_plan_destroy(plan);
	hspmd_cluster_destroy(cluster);
	json_decref(job);
	json_decref(cluster_json);
	json_decref(plan_json);
}

/* ---- the generation */

static int set_up(const char *text, const char *precision)
{
	struct hspmd_error err = { "" };
	struct hspmd_worker_setup *w = &scene.setup;
	snprintf(scene.root, sizeof scene.root, "/tmp/hspmd-load-XXXXXX");
	if (!mkdtemp(scene.root))
		return -1;
	snprintf(scene.local, sizeof scene.local, "%s/local/n", scene.root);
	snprintf(scene.shared, sizeof scene.shared, "%s/shared", scene.root);
	json_t *model = json_loads(text, 0, NULL);
	json_t *job = json_pack("{ss,ss,ss,s{s[s],ss},si,si,si,si,s{ss,sf,ss}}", "format", "hspmd-job-1", "model", "/none", "init",
	                        "random", "data", "train", "/none", "kind", "bytes", "seq_len", 4, "global_batch", 4, "steps", 20, "seed",
	                        7, "optimizer", "type", "adamw", "lr", 3e-3, "schedule", "constant");
	json_object_set_new(job, "precision", json_string(precision));
	w->job = hspmd_job_from_json(job, "/job.json", NULL, &err);
	w->model = hspmd_model_from_json(model, "model", &err);
	const struct hspmd_device_ops *ops = hspmd_device_find("cpu", &err);
	if (!w->job || !w->model || !ops || ops->open(&w->device, 0, 1, &err))
		fail_msg("%s", err.text);
	w->source = hspmd_graph_source_job(w->model, w->job);
	w->address = (char *)(uintptr_t) "n:0";
	w->node = (char *)(uintptr_t) "n";
	write_checkpoint();
	json_t *message = json_pack("{ss,si,s[s],so,so}", "type", "prepare", "generation", 3, "members", "n:0", "cluster",
	                            json_loads(new_cluster, 0, NULL), "plan", json_loads(new_plan, 0, NULL));
	scene.g = hspmd_generation_prepare(w, message, 0, &err);
	if (!scene.g || hspmd_generation_connect(scene.g, &err) || hspmd_generation_allocate(scene.g, NULL, &err))
		fail_msg("%s", err.text);
	json_decref(message);
	json_decref(model);
	json_decref(job);
	return 0;
}

static int setup(void **state)
{
	(void)state;
	return set_up(model_text, "fp32");
}

static int teardown(void **state)
{
	(void)state;
	hspmd_generation_destroy(scene.g);
	hspmd_manifest_destroy(scene.listed);
	json_decref(scene.root_manifest);
	json_decref(scene.other);
	scene.setup.device->ops->close(scene.setup.device);
	hspmd_model_destroy(scene.setup.model);
	hspmd_job_destroy(scene.setup.job);
	int status = hspmd_remove_tree(scene.root, NULL);
	memset(&scene, 0, sizeof scene);
	return status;
}

/* Counts the elements of the generation's state that are not those of the checkpoint, or 0 if it has none of them. */
static int64_t differences(void)
{
	const struct hspmd_program *p = scene.g->program;
	int64_t wrong = 0;
	for (int i = 0; i < p->state_count; i++)
		for (int k = 0; k < HSPMD_STATE_KIND_COUNT; k++) {
			const struct hspmd_program_state *s = &p->states[i];
			const float *data = hspmd_executor_slot_data(scene.g->executor, hspmd_generation_state_slot(s, k));
			for (int64_t e = 0; e < hspmd_box_elements(&s->shard.box); e++)
				wrong += data[e] != (is_lacking(&scene.g->layouts->parameters[i]) ? 0 : value_at(i, k, e));
		}
	return wrong;
}

static void forget_state(void)
{
	const struct hspmd_program *p = scene.g->program;
	for (int i = 0; i < p->state_count; i++)
		for (int k = 0; k < HSPMD_STATE_KIND_COUNT; k++) {
			const struct hspmd_program_state *s = &p->states[i];
			memset(hspmd_executor_slot_data(scene.g->executor, hspmd_generation_state_slot(s, k)), 0xff,
			       (size_t)hspmd_box_elements(&s->shard.box) * sizeof(float));
		}
}

/* Load with `files` of `start` as text. */
static int load(json_t *manifest, const char *readers, struct hspmd_load_report *report, struct hspmd_error *err)
{
	char local[96], other[96];
	snprintf(local, sizeof local, "%s/local", scene.root);
	snprintf(other, sizeof other, "%s/other", scene.root);
	json_t *state = json_pack("{sO,ss,ss,so}", "manifest", manifest, "local", local, "shared",
	                          manifest == scene.other ? other : scene.shared, "files", json_loads(readers, 0, NULL));
	forget_state();
	int status = hspmd_generation_load(scene.g, NULL, state, STEP, report, err);
	json_decref(state);
	return status;
}

static int64_t state_bytes(void)
{
	int64_t bytes = 0;
	for (int p = 0; p < scene.g->layouts->parameter_count; p++)
		bytes += hspmd_shape_elements(&scene.g->layouts->parameters[p].shape) * (int64_t)sizeof(float) * HSPMD_STATE_KIND_COUNT;
	return bytes;
}

#define OWN "{\"n-0.safetensors\": [\"n:0\"], \"n-1.safetensors\": [\"n:0\"]}"

static void test_same_state(void **state)
{
	(void)state;
	json_t *listed = hspmd_manifest_to_json(scene.listed);
	static const struct {
		bool root;
		const char *readers;
		bool disk, shared;
	} ways[] = {
		{ false, OWN, true, false },
		{ false, "{\"m-0.safetensors\": [\"n:0\"]}", true, false }, /* reads what is nearest, whatever it was told of */
		{ true, OWN, true, false },
		{ true, "{\"m-0.safetensors\": [\"n:0\"]}", false, true },
		{ true, "{\"m-0.safetensors\": true}", false, true },
		{ true, "{\"n-1.safetensors\": [\"n:0\"], \"m-0.safetensors\": true}", true, true },
		{ true, "{\"n-0.safetensors\": [\"n:0\", \"away:0\"], \"n-1.safetensors\": true, \"x.safetensors\": true}", true, false },
	};
	for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
		struct hspmd_load_report report;
		struct hspmd_error err = { "" };
		if (load(ways[i].root ? scene.root_manifest : listed, ways[i].readers, &report, &err))
			fail_msg("%zu: %s", i, err.text);
		assert_int_equal(differences(), 0);
		assert_true(!report.unreadable && (report.disk > 0) == ways[i].disk && (report.shared > 0) == ways[i].shared);
		assert_true(report.disk + report.shared >= state_bytes());
	}
	json_decref(listed);
}

static void flip(const char *folder, const char *file, off_t at)
{
	char path[256], c;
	snprintf(path, sizeof path, "%s/%s", folder, file);
	int fd = open(path, O_RDWR);
	assert_true(fd >= 0 && pread(fd, &c, 1, at) == 1);
	c ^= 4;
	assert_int_equal(pwrite(fd, &c, 1, at), 1);
	close(fd);
}

/* A file whose header or data are damaged is named, so that the controller looks for another one. */
static void test_damage(void **state)
{
	(void)state;
	const off_t size = (off_t)scene.listed->shards[1].bytes, places[] = { 100, size - 5 };
	for (size_t i = 0; i < 2; i++) {
		struct hspmd_load_report report;
		struct hspmd_error err = { "" };
		flip(scene.folder[1], files[1], places[i]);
		assert_int_equal(load(scene.root_manifest, OWN, &report, &err), -1);
		assert_non_null(strstr(err.text, "is incomplete in the checkpoint's files on this node"));
		assert_string_equal(json_string_value(json_object_get(report.unreadable, "file")), files[1]);
		assert_int_equal(json_integer_value(json_object_get(report.unreadable, "step")), STEP);
		json_decref(report.unreadable);
		/* Files that this member does not need are not looked at. */
		if (load(scene.root_manifest, "{\"m-0.safetensors\": true}", &report, &err))
			fail_msg("%s", err.text);
		flip(scene.folder[1], files[1], places[i]);
	}
}

static void expect_refused(json_t *manifest, const char *readers, const char *says)
{
	struct hspmd_load_report report;
	struct hspmd_error err = { "" };
	assert_int_equal(load(manifest, readers, &report, &err), -1);
	if (!strstr(err.text, says))
		fail_msg("%s", err.text);
	assert_null(report.unreadable);
}

static void test_refused(void **state)
{
	(void)state;
	/* m:0 has everything, but no member can read it. */
	expect_refused(scene.root_manifest, "{\"n-0.safetensors\": [\"n:0\"], \"m-0.safetensors\": [\"m:0\"]}", "no copy of");
	expect_refused(scene.root_manifest, "{}", "no copy of");
	json_t *other = json_deep_copy(scene.root_manifest), *sets = json_object_get(other, "sets");
	for (size_t i = 0; i < WRITERS; i++)
		json_array_set_new(sets, i, json_string("ff"));
	expect_refused(other, OWN, "another number of parameters");
	json_decref(other);
	other = json_deep_copy(scene.root_manifest);
	json_object_del(json_object_get(other, "job"), "plan");
	expect_refused(other, OWN, "manifest.job.plan");
	json_decref(other);
	expect_refused(scene.other, "{\"m-0.safetensors\": true}", "has another shape than the model's");
}

static void expect_covered(struct hspmd_root_checker *c, json_t *root, const bool *there, const char *lacks)
{
	struct hspmd_error err = { "" };
	struct hspmd_manifest *m = hspmd_manifest_from_json(root, "root", &err);
	int rv = m ? hspmd_root_checker_covered(c, m, there, &err) : -1;
	if (lacks ? !rv || !strstr(err.text, lacks) : rv)
		fail_msg("expected %s: %s", lacks ? lacks : "nothing", rv ? err.text : "covered");
	hspmd_manifest_destroy(m);
}

/* Whoever knows plan and model can tell whether some of a root's shards are enough. */
static void test_covered(void **state)
{
	(void)state;
	struct hspmd_root_checker c = { .source = &scene.setup.source };
	json_t *root = scene.root_manifest, *other = json_deep_copy(root);
	static const bool all[] = { true, true, true }, first[] = { true, true, false }, last[] = { false, false, true },
	                  both[] = { false, true, true }, half[] = { true, false, false };
	expect_covered(&c, root, all, NULL);
	expect_covered(&c, root, first, NULL);
	expect_covered(&c, root, last, NULL);
	expect_covered(&c, root, both, NULL);
	expect_covered(&c, root, half, "is in n-1.safetensors, which cannot be read");
	/* m:0's shard has everything but the second parameter, which then only n:0's has (the first is n:1's, too). */
	json_t *sets = json_object_get(other, "sets");
	char *set = strdup(json_string_value(json_array_get(sets, 2)));
	assert_int_equal(set[0], 'f');
	set[0] = 'd';
	json_array_set_new(sets, 2, json_string(set));
	free(set);
	expect_covered(&c, other, both, "is in n-0.safetensors, which cannot be read");
	expect_covered(&c, other, first, NULL);
	/* Another plan: the layouts are not those of the last one. */
	json_t *before = other;
	other = json_deep_copy(before);
	json_decref(before);
	sets = json_object_get(other, "sets");
	json_t *pipelines = json_object_get(json_object_get(json_object_get(other, "job"), "plan"), "pipelines");
	json_array_remove(pipelines, 0);
	json_object_set_new(json_array_get(pipelines, 0), "micro_batches", json_integer(4));
	expect_covered(&c, other, first, "is in m-0.safetensors, which cannot be read");
	expect_covered(&c, other, all, "is in no shard");
	json_array_clear(sets);
	for (size_t i = 0; i < WRITERS; i++)
		json_array_append_new(sets, json_string("f"));
	expect_covered(&c, other, all, "another number of parameters");
	json_object_del(json_object_get(other, "job"), "plan");
	expect_covered(&c, other, all, "manifest.job.plan");
	expect_covered(&c, root, all, NULL);
	hspmd_root_checker_clear(&c);
	json_decref(other);
}

/* ---- a job in fp8 with experts, whose checkpoint is from before these had amax histories */

/* Loads by either manifest. */
static void load_both(bool whole)
{
	json_t *listed = hspmd_manifest_to_json(scene.listed), *both[] = { listed, scene.root_manifest };
	for (int i = 0; i < 2; i++) {
		struct hspmd_error err = { "" };
		struct hspmd_load_report report;
		if (!load(both[i], OWN, &report, &err) != whole)
			fail_msg("%d: %s", i, whole ? err.text : "loaded");
		assert_true(!whole || !differences());
		json_decref(report.unreadable);
	}
	json_decref(listed);
}

static void test_missing_histories_begin_empty(void **state)
{
	static const bool all[] = { true, true, true }, half[] = { true, false, false };
	scene.lacks = HSPMD_AMAX_HISTORY;
	scene.lacks_rows = HSPMD_EXPERTS_OPERANDS;
	assert_int_equal(set_up(experts_text, "fp8"), 0);
	load_both(true);
	struct hspmd_root_checker c = { .source = &scene.setup.source };
	expect_covered(&c, scene.root_manifest, all, NULL);
	expect_covered(&c, scene.root_manifest, half, "is in n-1.safetensors, which cannot be read");
	hspmd_root_checker_clear(&c);
	assert_int_equal(teardown(state), 0);
}

/* What else is missing is not left out silently, although the root's number of parameters would be right. */
static void test_missing_weights_are_refused(void **state)
{
	scene.lacks = "model.norm.weight";
	scene.lacks_rows = 16;
	assert_int_equal(set_up(experts_text, "fp8"), 0);
	load_both(false);
	assert_int_equal(teardown(state), 0);
}

/* A root that lacks its last parameters, as many as there are amax histories of experts, is not taken for one without these: what it lacks
 * is named. Its sets are as long as without them or (the last two) not; the last stage has the block of experts or (the second) not. */
static void test_last_weights_are_named(void **state)
{
	static const char block_first[] =
	        PLAN(PIPELINE(STAGE("0,2", "\"n:0\"") "," STAGE("2,3", "\"n:1\"")) "," PIPELINE(STAGE("0,3", "\"m:0\"")));
	static const struct {
		const char *model, *plan, *lacks;
		int64_t rows;
		bool loads; /* until files are read */
	} cases[] = { { experts_text, old_plan, "lm_head.weight", 300, true },
		      { experts_text, block_first, "lm_head.weight", 300, false },
		      { tied_experts_text, old_plan, "model.norm.weight", 16, false },
		      { tied_experts_text, block_first, "model.norm.weight", 16, false } };
	static const bool all[] = { true, true, true };
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		scene.lacks = cases[i].lacks;
		scene.lacks_rows = cases[i].rows;
		scene.plan = cases[i].plan;
		scene.is_counted = true;
		assert_int_equal(set_up(cases[i].model, "fp8"), 0);
		const struct hspmd_parameter_layouts *l = scene.g->layouts;
		assert_string_equal(l->parameters[l->parameter_count - 1].name, cases[i].lacks);
		struct hspmd_root_checker c = { .source = &scene.setup.source };
		char says[96];
		snprintf(says, sizeof says, "the checkpoint has no tensor %s, which is in the model", cases[i].lacks);
		expect_covered(&c, scene.root_manifest, all, cases[i].loads ? NULL : says);
		hspmd_root_checker_clear(&c);
		expect_refused(scene.root_manifest, OWN, says);
		assert_int_equal(teardown(state), 0);
	}
}

int main(void)
{
	setenv("HSPMD_LOG", "error", 1);
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_same_state), cmocka_unit_test(test_damage),
		                            cmocka_unit_test(test_refused), cmocka_unit_test(test_covered) };
	const struct CMUnitTest fp8[] = { cmocka_unit_test(test_missing_histories_begin_empty),
		                          cmocka_unit_test(test_missing_weights_are_refused),
		                          cmocka_unit_test(test_last_weights_are_named) };
	int failed = cmocka_run_group_tests(tests, setup, teardown);
	return failed + cmocka_run_group_tests(fp8, NULL, NULL);
}
