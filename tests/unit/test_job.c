/* SPDX-License-Identifier: Apache-2.0 */
/* hspmd-job-1: which files are read, which are refused, paths, and the mistakes that are told. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <limits.h>
#include <math.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/durable.h"
#include "common/format/job.h"
#include "common/format/job_command.h"
#include "common/json.h"
#include "edit.h"
#include "runtime/model/model.h"

#define DATA HSPMD_SRCDIR "/tests/data/"

static struct hspmd_error err;
static struct hspmd_job *from_text(const char *text)
{
	struct hspmd_json_doc doc;
	err.text[0] = '\0';
	if (hspmd_json_parse(&doc, "/jobs/j.json", text, strlen(text), &err))
		return NULL;
	struct hspmd_job *j = hspmd_job_from_json(doc.root, "/jobs/j.json", NULL, &err);
	hspmd_json_close(&doc);
	return j;
}

static void reads_everything(void **state)
{
	(void)state;
	struct hspmd_job *j = hspmd_job_read(DATA "job/full.json", NULL, &err);
	assert_non_null(j);
	assert_string_equal(j->file, DATA "job/full.json");
	assert_string_equal(j->model_path, DATA "job/../model/gpt2.json");
	assert_string_equal(j->init, DATA "job/weights/model.safetensors");
	assert_int_equal(j->data_kind, HSPMD_DATA_UINT16);
	assert_true(j->documents && j->document_end == 50256);
	assert_int_equal(j->train_count, 2);
	assert_string_equal(j->train[0], DATA "job/corpus.bin");
	assert_string_equal(j->train[1], "/data/more.bin");
	assert_int_equal(j->valid_count, 1);
	assert_true(j->seq_len == 1024 && j->global_batch == 64 && j->steps == 2000 && j->seed == 7);
	assert_true(j->optimizer.lr == 6e-4 && j->optimizer.min_lr == 1e-5 && j->optimizer.warmup_steps == 100);
	assert_true(j->optimizer.schedule == HSPMD_LR_COSINE && j->optimizer.weight_decay == 0.05 && j->optimizer.values[0] == 0.8);
	assert_true(j->optimizer.values[1] == 0.99 && j->optimizer.values[2] == 1e-6 && j->optimizer.clip == 0.5);
	assert_true(j->precision == HSPMD_PRECISION_BF16 && j->rounding == HSPMD_ROUNDING_STOCHASTIC && j->any_order);
	assert_true(j->elastic.min_nodes == 2 && j->elastic.max_nodes == 8);
	assert_string_equal(j->elastic.policy, "spot");
	assert_string_equal(j->checkpoint.local, "/scratch/$USER/$JOB");
	assert_string_equal(j->checkpoint.shared, "${HOME}/ckpt");
	assert_true(j->checkpoint.every_s == 60 && j->checkpoint.every_steps == 50 && j->checkpoint.replicas == 2 &&
	            j->checkpoint.keep == 3);
	assert_true(j->samples.every_steps == 500 && j->samples.max_tokens == 9 && j->samples.top_k == 5 && j->samples.prompt_count == 2);
	assert_true(j->samples.temperature == 0.7 && j->samples.top_p == 0.9);
	assert_string_equal(j->samples.prompts[1], "upon");
	assert_string_equal(j->samples.tokenizer, DATA "job/words.json");
	hspmd_job_destroy(j);
	hspmd_job_destroy(NULL);
}

static void defaults(void **state)
{
	(void)state;
	struct hspmd_job *j = hspmd_job_read(DATA "job/least.json", NULL, &err);
	assert_non_null(j);
	assert_null(j->init);
	assert_int_equal(j->valid_count, 0);
	assert_true(j->seed == 1 && j->precision == HSPMD_PRECISION_FP32 && j->rounding == HSPMD_ROUNDING_NEAREST && !j->any_order);
	assert_true(j->optimizer.min_lr == 0.0001 && j->optimizer.warmup_steps == 0 && j->optimizer.schedule == HSPMD_LR_CONSTANT);
	assert_true(j->optimizer.weight_decay == 0.1 && j->optimizer.values[0] == 0.9 && j->optimizer.values[1] == 0.95);
	assert_true(j->optimizer.values[2] == 1e-8 && j->optimizer.clip == 1);
	assert_true(j->elastic.min_nodes == 1 && j->elastic.max_nodes == INT_MAX);
	assert_string_equal(j->elastic.policy, "default");
	assert_true(!j->checkpoint.local && !j->checkpoint.shared && j->checkpoint.every_s == 0 && j->checkpoint.every_steps == 0);
	assert_true(j->checkpoint.replicas == 1 && j->checkpoint.keep == 2);
	hspmd_job_destroy(j);
}

static void reads_a_command(void **state)
{
	(void)state;
	struct hspmd_job *j = hspmd_job_read(DATA "job/command.json", NULL, &err);
	assert_non_null(j);
	assert_int_equal(j->command.argc, 8);
	assert_string_equal(j->command.argv[4], "{512/world}");
	assert_string_equal(j->command.argv[7], "");
	assert_null(j->command.argv[8]);
	assert_true(j->command.per_node && j->command.notice_signal == SIGUSR1 && j->command.notice_s == 90.5);
	assert_string_equal(j->command.folder, "/home/me/work");
	assert_true(j->elastic.min_nodes == 2 && !j->checkpoint.memory && !j->model_path && !j->train_count);
	assert_int_equal(hspmd_job_check_files(j, &hspmd_job_models, NULL, NULL, NULL, &err), 0);
	hspmd_job_destroy(j);
	j = hspmd_job_from_command((char *[]){ "sh", "-c" }, 2, "here", &err);
	assert_true(j->command.argc == 2 && j->command.notice_signal == SIGTERM && j->command.notice_s == 60 && !j->command.per_node);
	assert_string_equal(j->file, "here");
	hspmd_job_destroy(j);
}

static void refuses_commands(void **state)
{
	(void)state;
	static const char *const cases[][2] = {
		{ "\"command\": []", "command: expected an array of 1..4096 elements, got an empty array" },
		{ "\"command\": \"ls\"", "command: expected an array" },
		{ "\"command\": [\"\"]", "command[0]: expected the name of a program" },
		{ "\"command\": [\"ls\", 3]", "command[1]: expected a text" },
		{ "\"command\": [\"ls\"], \"steps\": 3", "steps: expected none beside \"command\"" },
		{ "\"command\": [\"ls\"], \"model\": \"x\"", "model: expected none beside \"command\"" },
		{ "\"command\": [\"ls\"], \"notice\": \"KILL:3\"", "notice: expected SIGNAL:SECONDS with TERM" },
		{ "\"command\": [\"ls\"], \"notice\": \"TERM:-1\"", "notice: expected SIGNAL:SECONDS with 0 to" },
		{ "\"command\": [\"ls\"], \"notice\": \"TERM:3x\"", "notice: expected SIGNAL:SECONDS with 0 to" },
		{ "\"command\": [\"ls\"], \"folder\": \"x\"", "folder: expected an absolute path" },
		{ "\"command\": [\"ls\"], \"per_nod\": true", "per_nod: unknown key; did you mean \"per_node\"?" },
		{ "\"command\": [\"ls\"], \"checkpoint\": { \"local\": \"/a\", \"shared\": \"/b\" }", "checkpoint: expected one folder" },
		{ "\"per_node\": true", "it is missing" },
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		char *text = hspmd_asprintf("{ \"format\": \"hspmd-job-1\", %s }", cases[i][0]);
		json_t *v = json_loads(text, 0, NULL);
		assert_null(hspmd_job_from_json(v, "/jobs/j.json", NULL, &err));
		if (!strstr(err.text, cases[i][1]))
			fail_msg("%s: expected \"%s\", got \"%s\"", text, cases[i][1], err.text);
		json_decref(v);
		free(text);
	}
	json_t *v = json_pack("{ss,s[ss]}", "format", "hspmd-job-1", "command", "ls", "{1/wrld}");
	struct hspmd_job *j = hspmd_job_from_json(v, "/jobs/j.json", NULL, &err);
	assert_int_equal(hspmd_job_check_files(j, &hspmd_job_models, NULL, NULL, NULL, &err), -1);
	assert_string_equal(err.text,
	                    "/jobs/j.json: command[1]: {1/wrld}: unknown name \"wrld\"; expected world, nodes, rank, local_rank, latest or "
	                    "checkpoint ({{ is a plain {)");
	hspmd_job_destroy(j);
	json_decref(v);
}

static char *found[HSPMD_MISTAKES_MAX + 2];
static int found_count;

static void note(void *context, const char *text)
{
	(void)context;
	assert_true(found_count < HSPMD_MISTAKES_MAX + 2);
	found[found_count++] = strdup(text);
}

static void forget(void)
{
	while (found_count)
		free(found[--found_count]);
}

/* Each of them, in the order of reading, and nothing that only follows from another: of a wrong kind, type, precision or number the values
 * beside it, which depend on it, are not refused. */
static void tells_all_mistakes(void **state)
{
	(void)state;
	static const char text[] =
	        "{ \"format\": \"hspmd-job-1\", \"model\": 3, \"seq_len\": 0, \"data\": { \"kind\": \"words\","
	        "\"train\": [\"a\", 7, { \"path\": \"b\", \"wieght\": 1 }], \"documents\": true, \"lengths\": [5, 3],"
	        "\"valid\": \"c\", \"valid_every_steps\": 5 }, \"global_btach\": 8, \"steps\": \"many\","
	        "\"optimizer\": { \"type\": \"adma\", \"lr\": -1, \"min_lr\": 1e-5, \"beta1\": 0.9, \"schedule\": \"wsf\","
	        "\"decay_steps\": 5, \"no_decay\": [1] }, \"precision\": \"fp6\", \"rounding\": \"stochastic\","
	        "\"elastic\": { \"min_nodes\": 0, \"max_nodes\": 4, \"policy\": 1 },"
	        "\"checkpoint\": { \"local\": \"/x/$USRE\", \"shared\": 1 } }";
	static const char *const places[] = { "model",
		                              "seq_len",
		                              "data.kind",
		                              "data.valid",
		                              "data.train[1]",
		                              "data.train[2].wieght",
		                              "global_batch",
		                              "steps",
		                              "precision",
		                              "optimizer.type",
		                              "optimizer.lr",
		                              "optimizer.schedule",
		                              "optimizer.no_decay[0]",
		                              "elastic.min_nodes",
		                              "elastic.policy",
		                              "checkpoint.local",
		                              "checkpoint.shared",
		                              "global_btach" };
	const int count = sizeof places / sizeof *places;
	struct hspmd_mistakes all = { .report = note };
	json_t *v = json_loads(text, 0, NULL);
	assert_null(hspmd_job_from_json(v, "/jobs/j.json", &all, &err));
	note(NULL, err.text);
	for (int i = 0; i < found_count; i++) {
		char *place = hspmd_asprintf("/jobs/j.json: %s: ", i < count ? places[i] : "?");
		if (strncmp(found[i], place, strlen(place)) != 0)
			fail_msg("mistake %d: expected %s, got %s", i, place, found[i]);
		free(place);
	}
	assert_true(found_count == count && all.count == count);
	forget();
	json_decref(v);
}

static void tells_so_many_mistakes(void **state)
{
	(void)state;
	struct hspmd_mistakes all = { .report = note };
	json_t *v = json_pack("{ss,s[s],si}", "format", "hspmd-job-1", "command", "ls", "steps", 1);
	for (int i = 0; i < 100; i++) {
		char *key = hspmd_asprintf("k%d", i);
		json_object_set_new(v, key, json_true());
		free(key);
	}
	assert_null(hspmd_job_from_json(v, "/jobs/j.json", &all, &err));
	assert_int_equal(found_count, HSPMD_MISTAKES_MAX);
	assert_non_null(strstr(found[0], "j.json: steps: expected none beside"));
	assert_string_equal(err.text, "/jobs/j.json: there are more mistakes than these 20");
	forget();
	json_decref(v);
}

/* A model that cannot be read leaves the files' lengths to be checked. */
static void tells_all_wrong_files(void **state)
{
	(void)state;
	static const char *const words[] = { "/jobs/j.json: model: /jobs/none.json: ", "/jobs/j.json: data.train[0]: /jobs/a: ",
		                             "/jobs/j.json: data.train[1]: /dev/null: expected a plain file",
		                             "/jobs/j.json: data.valid[0]: /jobs/c: ",
		                             "/jobs/j.json: checkpoint.shared: cannot write to /dev/null" };
	struct hspmd_job *j =
	        from_text("{ \"format\": \"hspmd-job-1\", \"model\": \"none.json\", \"seq_len\": 8, \"global_batch\": 1,"
	                  "\"steps\": 1, \"data\": { \"kind\": \"bytes\", \"train\": [\"a\", \"/dev/null\"], \"valid\": [\"c\"] },"
	                  "\"optimizer\": { \"lr\": 1 }, \"checkpoint\": { \"shared\": \"/dev/null\" } }");
	struct hspmd_mistakes all = { .report = note };
	assert_non_null(j);
	assert_int_equal(hspmd_job_check_files(j, &hspmd_job_models, NULL, NULL, &all, &err), -1);
	note(NULL, err.text);
	assert_int_equal(found_count, sizeof words / sizeof *words);
	for (int i = 0; i < found_count; i++)
		if (strncmp(found[i], words[i], strlen(words[i])) != 0)
			fail_msg("mistake %d: expected %s, got %s", i, words[i], found[i]);
	forget();
	hspmd_job_destroy(j);
}

static void round_trips(void **state)
{
	(void)state;
	static const char *const names[] = { DATA "job/full.json", DATA "job/least.json", DATA "job/command.json" };
	for (int i = 0; i < 3; i++) {
		struct hspmd_job *j = hspmd_job_read(names[i], NULL, &err);
		json_t *once = hspmd_job_to_json(j);
		hspmd_job_destroy(j);
		char *text = hspmd_json_text(once);
		j = from_text(text); /* in another folder: paths are absolute by now */
		json_t *twice = hspmd_job_to_json(j);
		assert_true(json_equal(once, twice));
		hspmd_job_destroy(j);
		json_decref(once);
		json_decref(twice);
		free(text);
	}
}

static const struct edit edits[] = {
	{ "hspmd-job-1", "hspmd-plan-1", "/jobs/j.json: format: expected \"hspmd-job-1\", got \"hspmd-plan-1\"" },
	{ "\"steps\"", "\"step\"", "j.json: steps: expected an integer in 1..1099511627776, but it is missing" },
	{ "\"steps\": 100", "\"steps\": 100, \"stepss\": 1", "j.json: stepss: unknown key; did you mean \"steps\"?" },
	{ "\"steps\": 100", "\"steps\": 0", "j.json: steps: expected 1..1099511627776, got 0" },
	{ "\"steps\": 100", "\"steps\": \"many\"", "j.json: steps: expected an integer in 1..1099511627776, got \"many\"" },
	{ "\"steps\": 100", "\"steps\": 100, \"samples\": {\"every_steps\": 5, \"prompts\": [\"a\"]}",
	  "j.json: samples: expected checkpoint.shared beside it: samples are made from a checkpoint" },
	{ "\"steps\": 100", "\"steps\": 100, \"samples\": {\"every_steps\": 0, \"prompts\": [\"a\"]}",
	  "j.json: samples.every_steps: expected 1..1099511627776, got 0" },
	{ "\"steps\": 100", "\"steps\": 100, \"samples\": {\"every_steps\": 5, \"prompts\": []}",
	  "j.json: samples.prompts: expected an array of 1..64 elements, got an empty array" },
	{ "\"seq_len\": 128", "\"seq_len\": -5", "j.json: seq_len: expected 1..67108864, got -5" },
	{ "\"seq_len\": 128", "\"seq_len\": 1.5", "j.json: seq_len: expected an integer in 1..67108864, got 1.5" },
	{ "\"global_batch\": 8", "\"global_batch\": 99999999999", "j.json: global_batch: expected 1..1073741824, got 99999999999" },
	{ "\"kind\": \"bytes\"", "\"kind\": \"chars\"",
	  "j.json: data.kind: expected \"bytes\", \"uint16\", \"uint32\", \"megatron\" or \"own\", got \"chars\"" },
	{ ", \"kind\": \"bytes\"", "", "j.json: data.kind: expected" },
	{ "\"kind\": \"bytes\"", "\"kind\": \"own\", \"document_end\": 1", "j.json: data.kind: expected no document_end beside \"own\"" },
	{ "[\"corpus.txt\"]", "[]", "j.json: data.train: expected an array of 1..65536 elements, got an empty array" },
	{ "[\"corpus.txt\"]", "\"corpus.txt\"", "j.json: data.train: expected an array of 1..65536 elements, got \"corpus.txt\"" },
	{ "[\"corpus.txt\"]", "[\"a\", 3]", "j.json: data.train[1]: expected a string that is not empty, got 3" },
	{ "\"model\": \"config.json\",", "", "j.json: model: expected a string that is not empty, but it is missing" },
	{ "\"lr\": 0.001", "\"lr\": 0", "j.json: optimizer.lr: expected a number above 0 and at most 1000, got 0" },
	{ "\"lr\": 0.001", "\"rl\": 1", "j.json: optimizer.lr: expected a number above 0 and at most 1000, but it is missing" },
	{ "\"lr\": 0.001", "\"lr\": 1, \"type\": \"none\"", "j.json: optimizer.type: expected \"adamw\" or" },
	{ "\"lr\": 0.001", "\"lr\": 1, \"min_lr\": 2", "j.json: optimizer.min_lr: expected a number of at least 0 and at most 1, got 2" },
	{ "\"lr\": 0.001", "\"lr\": 1, \"beta2\": 1",
	  "j.json: optimizer.beta2: expected a number of at least 0 and at most 0.999999999, got 1" },
	{ "\"lr\": 0.001", "\"lr\": 1, \"type\": \"lion\", \"eps\": 1",
	  "j.json: optimizer.eps: unknown key; known here: type, lr, min_lr, warmup_steps" },
	{ "\"lr\": 0.001", "\"lr\": 1, \"decay_steps\": 1", "j.json: optimizer.decay_steps: expected schedule \"wsd\" beside it" },
	{ "\"lr\": 0.001", "\"lr\": 1, \"schedule\": \"cosine\", \"decay\": \"sqrt\"",
	  "j.json: optimizer.decay: expected schedule \"wsd\" beside it" },
	{ "\"lr\": 0.001", "\"lr\": 1, \"schedule\": \"wsd\", \"warmup_steps\": 2, \"decay_steps\": 1000000",
	  "j.json: optimizer.decay_steps: expected at most the steps after the warm-up, " },
	{ "\"lr\": 0.001", "\"lr\": 1, \"no_decay\": [\"*.bias\", 3]",
	  "j.json: optimizer.no_decay[1]: expected a string that is not empty" },
	{ "\"lr\": 0.001", "\"lr\": 1, \"clip\": -1", "j.json: optimizer.clip: expected a number of at least 0" },
	{ "\"lr\": 0.001", "\"lr\": 1, \"warmup\": 5",
	  "j.json: optimizer.warmup: unknown key; known here: type, lr, min_lr, warmup_steps" },
	{ "\"seq_len\"", "\"precision\": \"fp16\", \"seq_len\"",
	  "j.json: precision: expected \"fp32\", \"bf16\", \"tf32\" or \"fp8\", got \"fp16\"" },
	{ "\"seq_len\"", "\"precision\": \"fp8\", \"seq_len\"", "" },
	{ "\"seq_len\"", "\"rounding\": \"stochastic\", \"precision\": \"fp8\", \"seq_len\"",
	  "j.json: rounding: expected \"nearest\" with precision \"fp8\": only of \"bf16\" parameters are rounded stochastically" },
	{ "\"seq_len\"", "\"precision\": \"tf32\", \"deterministic\": false, \"seq_len\"", "" },
	{ "\"seq_len\"", "\"deterministic\": \"no\", \"seq_len\"", "j.json: deterministic: expected true or false" },
	{ "\"seq_len\"", "\"rounding\": \"up\", \"seq_len\"", "j.json: rounding: expected \"nearest\" or \"stochastic\", got \"up\"" },
	{ "\"seq_len\"", "\"rounding\": \"stochastic\", \"seq_len\"",
	  "j.json: rounding: expected \"nearest\" with precision \"fp32\": only of \"bf16\" parameters are rounded stochastically" },
	{ "\"seq_len\"", "\"rounding\": \"stochastic\", \"precision\": \"bf16\", \"seq_len\"", "" },
	{ "\"seq_len\"", "\"rounding\": \"nearest\", \"precision\": \"fp32\", \"seq_len\"", "" },
	{ "\"kind\": \"bytes\"", "\"kind\": \"bytes\", \"document_end\": -1", "j.json: data.document_end: expected 0..2147483647, got -1" },
	{ "\"kind\": \"bytes\"", "\"kind\": \"bytes\", \"document_end\": 0", "" },
	{ "\"kind\": \"bytes\"", "\"kind\": \"bytes\", \"document_end\": 0, \"lengths\": [64]", "" },
	{ "\"kind\": \"bytes\"", "\"kind\": \"bytes\", \"document_end\": 0, \"lengths\": [64, 64]",
	  "j.json: data.lengths[1]: expected 65..128 (lengths ascend, up to seq_len), got 64" },
	{ "\"kind\": \"bytes\"", "\"kind\": \"bytes\", \"document_end\": 0, \"lengths\": [64, 1048576]",
	  "j.json: data.lengths[1]: expected 65..128 (lengths ascend, up to seq_len), got 1048576" },
	{ "\"kind\": \"bytes\"", "\"kind\": \"bytes\", \"document_end\": 0, \"lengths\": [128, 129]",
	  "j.json: data.lengths[1]: expected no length behind that of seq_len, 128, got 129" },
	{ "\"kind\": \"bytes\"", "\"kind\": \"bytes\", \"document_end\": 0, \"lengths\": [0]",
	  "j.json: data.lengths[0]: expected 1..128 (lengths ascend, up to seq_len), got 0" },
	{ "\"kind\": \"bytes\"", "\"kind\": \"bytes\", \"document_end\": 0, \"lengths\": \"auto\"", "" },
	{ "\"kind\": \"bytes\"", "\"kind\": \"bytes\", \"document_end\": 0, \"lengths\": \"automatic\"",
	  "j.json: data.lengths: expected \"auto\", or an array of 1..64 lengths, ascending and up to seq_len, got \"automatic\"" },
	{ "\"kind\": \"bytes\"", "\"kind\": \"bytes\", \"document_end\": 0, \"lengths\": 64",
	  "j.json: data.lengths: expected \"auto\", or an array of 1..64 lengths, ascending and up to seq_len, got 64" },
	{ "\"kind\": \"bytes\"", "\"kind\": \"bytes\", \"document_end\": 0, \"lengths\": []",
	  "j.json: data.lengths: expected \"auto\", or an array of 1..64 lengths, ascending and up to seq_len, got an empty array" },
	{ "\"kind\": \"bytes\"", "\"kind\": \"bytes\", \"document_end\": 0, \"lengths\": [64], \"mix_lengths\": true", "" },
	{ "\"kind\": \"bytes\"", "\"kind\": \"bytes\", \"document_end\": 0, \"mix_lengths\": true",
	  "j.json: data.mix_lengths: expected lengths beside it: those that a step mixes" },
	{ "\"kind\": \"bytes\"", "\"kind\": \"bytes\", \"document_end\": 0, \"lengths\": [64], \"mix_lengths\": 1",
	  "j.json: data.mix_lengths: expected true or false, got 1" },
	{ "\"kind\": \"bytes\"", "\"kind\": \"bytes\", \"lengths\": \"auto\"",
	  "j.json: data.lengths: expected document_end or documents beside it: documents are grouped by length" },
	{ "\"kind\": \"bytes\"", "\"kind\": \"bytes\", \"lengths\": [64]",
	  "j.json: data.lengths: expected document_end or documents beside it: documents are grouped by length" },
	{ "\"seq_len\"", "\"seed\": -1, \"seq_len\"", "j.json: seed: expected an integer of at least 0, got -1" },
	{ "\"seq_len\"", "\"elastic\": {\"min_nodes\": 4, \"max_nodes\": 2}, \"seq_len\"",
	  "j.json: elastic.max_nodes: expected at least min_nodes, 4, got 2" },
	{ "\"seq_len\"", "\"trace\": {\"steps\": [5, 1005]}, \"seq_len\"", "" },
	{ "\"seq_len\"", "\"trace\": {\"steps\": [5, 3]}, \"seq_len\"",
	  "j.json: trace.steps: expected [FIRST, END], where END is 1 to 1000 above FIRST, got [5, 3]" },
	{ "\"seq_len\"", "\"trace\": {\"steps\": [5, 1006]}, \"seq_len\"",
	  "j.json: trace.steps: expected [FIRST, END], where END is 1 to 1000 above FIRST, got [5, 1006]" },
	{ "\"seq_len\"", "\"trace\": {\"steps\": [-1, 3]}, \"seq_len\"", "j.json: trace.steps[0]: expected 0.." },
	{ "\"seq_len\"", "\"elastic\": {\"min_nodes\": 0}, \"seq_len\"", "j.json: elastic.min_nodes: expected 1..65536, got 0" },
	{ "\"seq_len\"", "\"checkpoint\": {\"local\": \"/x/$JBO\"}, \"seq_len\"",
	  "j.json: checkpoint.local: $JBO is not a variable here; expected $USER, $JOB or $HOME" },
	{ "\"seq_len\"", "\"checkpoint\": {\"shared\": \"/x/${JOB\"}, \"seq_len\"",
	  "j.json: checkpoint.shared: \"/x/${JOB\": expected $NAME or ${NAME}" },
	{ "\"seq_len\"", "\"checkpoint\": {\"keep\": 0}, \"seq_len\"", "j.json: checkpoint.keep: expected 1..1000, got 0" },
	{ "\"seq_len\"", "\"checkpoint\": {\"every_s\": -1}, \"seq_len\"", "j.json: checkpoint.every_s: expected a number of at least 0" },
	{ "\"seq_len\"", "\"checkpoint\": {\"shared\": \"here/$USER\"}, \"seq_len\"", "" },
};

static void refuses(void **state)
{
	(void)state;
	char *good = hspmd_read_file(DATA "job/least.json", 1 << 20, NULL, &err);
	for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
		char *text = edited(good, edits[i].find, edits[i].replace);
		assert_non_null(text);
		struct hspmd_job *j = from_text(text);
		if (*edits[i].error ? j != NULL || !strstr(err.text, edits[i].error) : !j)
			fail_msg("%s -> %s: expected \"%s\", got \"%s\"", edits[i].find, edits[i].replace, edits[i].error, err.text);
		hspmd_job_destroy(j);
		free(text);
	}
	free(good);
}

static void fills_in_variables(void **state)
{
	(void)state;
	setenv("HOME", "/home/someone", 1);
	const struct passwd *me = getpwuid(geteuid());
	char *expected = hspmd_asprintf("/x/%s/42/home/someone-42%s", me->pw_name, me->pw_name);
	char *got = hspmd_job_expand_path("/x/$USER/$JOB$HOME-${JOB}${USER}", "42", &err);
	assert_string_equal(got, expected);
	free(got);
	free(expected);
	got = hspmd_job_expand_path("$JOB", NULL, &err);
	assert_string_equal(got, "local");
	free(got);
	static const char *const wrong[] = { "$", "a$", "$PATH", "${JOB", "${}", "$JOBS", "$-" };
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
		assert_null(hspmd_job_expand_path(wrong[i], "1", &err));
}

static void learning_rate(void **state)
{
	(void)state;
	struct hspmd_job *j = hspmd_job_read(DATA "job/full.json", NULL, &err);
	double lr = 6e-4, low = 1e-5;
	assert_true(fabs(hspmd_job_lr(j, 0) - lr / 100) < 1e-18);
	assert_true(fabs(hspmd_job_lr(j, 49) - lr / 2) < 1e-18);
	assert_true(hspmd_job_lr(j, 99) == lr);
	assert_true(hspmd_job_lr(j, 100) == lr);
	assert_true(fabs(hspmd_job_lr(j, 1050) - (low + (lr - low) / 2)) < 1e-15);
	assert_true(hspmd_job_lr(j, 2000) == low);
	assert_true(hspmd_job_lr(j, 5000) == low);
	j->optimizer.schedule = HSPMD_LR_LINEAR;
	assert_true(fabs(hspmd_job_lr(j, 100 + 475) - (lr - (lr - low) / 4)) < 1e-15);
	j->optimizer.schedule = HSPMD_LR_CONSTANT;
	assert_true(hspmd_job_lr(j, 1999) == lr);
	j->optimizer.schedule = HSPMD_LR_WSD;
	j->optimizer.decay_steps = 400;
	assert_true(fabs(hspmd_job_lr(j, 49) - lr / 2) < 1e-18 && hspmd_job_lr(j, 100) == lr && hspmd_job_lr(j, 1600) == lr);
	assert_true(fabs(hspmd_job_lr(j, 1700) - (lr - (lr - low) / 4)) < 1e-15);
	j->optimizer.decay = HSPMD_DECAY_SQRT;
	assert_true(fabs(hspmd_job_lr(j, 1700) - (lr - (lr - low) / 2)) < 1e-15);
	j->optimizer.decay = HSPMD_DECAY_COSINE;
	assert_true(fabs(hspmd_job_lr(j, 1800) - (low + (lr - low) / 2)) < 1e-15 && hspmd_job_lr(j, 2000) == low);
	j->optimizer.decay_steps = 0;
	assert_true(hspmd_job_lr(j, 1999) == lr && hspmd_job_lr(j, 2000) == low);
	hspmd_job_destroy(j);
}

static void optimizer_keys(void **state)
{
	(void)state;
	struct hspmd_job *j =
	        from_text("{\"format\":\"hspmd-job-1\",\"model\":\"m\",\"data\":{\"train\":[\"t\"],\"kind\":\"bytes\"},"
	                  "\"seq_len\":8,\"global_batch\":1,\"steps\":70,\"optimizer\":{\"type\":\"lion\",\"lr\":1,\"schedule\":"
	                  "\"wsd\",\"no_decay\":[\"*.bias\",\"embed*\"]}}");
	assert_non_null(j);
	assert_true(j->optimizer.type == HSPMD_OPTIMIZER_LION && j->optimizer.values[0] == 0.9 && j->optimizer.values[1] == 0.99);
	assert_true(j->optimizer.decay_steps == 7 && j->optimizer.decay == HSPMD_DECAY_LINEAR);
	json_t *written = hspmd_job_to_json(j);
	struct hspmd_job *again = hspmd_job_from_json(written, "/jobs/j.json", NULL, &err);
	assert_non_null(again);
	assert_true(again->optimizer.type == HSPMD_OPTIMIZER_LION && again->optimizer.decay_steps == 7);
	assert_false(hspmd_job_decays(again, "h.0.attn.bias") || hspmd_job_decays(again, "embed_tokens.weight"));
	assert_true(hspmd_job_decays(again, "model.embed_tokens.weight"));
	json_decref(written);
	hspmd_job_destroy(again);
	hspmd_job_destroy(j);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(reads_everything),
		cmocka_unit_test(defaults),
		cmocka_unit_test(reads_a_command),
		cmocka_unit_test(refuses_commands),
		cmocka_unit_test(round_trips),
		cmocka_unit_test(refuses),
		cmocka_unit_test(fills_in_variables),
		cmocka_unit_test(learning_rate),
		cmocka_unit_test(optimizer_keys),
		cmocka_unit_test(tells_all_mistakes),
		cmocka_unit_test(tells_so_many_mistakes),
		cmocka_unit_test(tells_all_wrong_files),
	};
	return cmocka_run_group_tests_name("job", tests, NULL, NULL);
}
