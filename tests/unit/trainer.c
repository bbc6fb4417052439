/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/model/model.h"
#include "tests/unit/trainer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/alloc.h"
#include "runtime/input/data.h"
#include "runtime/exec/execute.h"
#include "runtime/exec/train_local.h"

const char trainer_gpt2[] = "{\"model_type\":\"gpt2\",\"n_embd\":24,\"n_layer\":3,\"n_head\":4,\"n_positions\":32,\"vocab_size\":257,"
                            "\"resid_pdrop\":0,\"embd_pdrop\":0,\"attn_pdrop\":0}";
const char trainer_llama[] =
        "{\"model_type\":\"llama\",\"hidden_size\":24,\"num_hidden_layers\":3,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
        "\"intermediate_size\":40,\"max_position_embeddings\":64,\"vocab_size\":259,\"rms_norm_eps\":1e-5,\"tie_word_embeddings\":true}";
const char trainer_mixtral[] =
        "{\"model_type\":\"mixtral\",\"hidden_size\":24,\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":4,"
        "\"intermediate_size\":20,\"max_position_embeddings\":64,\"vocab_size\":256,\"num_local_experts\":4,\"num_experts_per_tok\":2}";

int (*trainer_complete_plan)(struct hspmd_plan *plan, const struct hspmd_cluster *cluster, const struct hspmd_graph_source *source,
                             struct hspmd_error *err);

unsigned trainer_pretend;

struct job {
	struct hspmd_job *job;
	struct hspmd_model *model;
	struct hspmd_cluster *cluster;
	struct hspmd_plan *plan;
	struct hspmd_data *data;
	double *losses;
	const struct trainer_options *o;
};

static void take_loss(void *context, int64_t step, double loss)
{
	((struct job *)context)->losses[step] = loss;
}

static int length_of_step(void *context, int64_t step)
{
	return hspmd_data_length_of_step(((struct job *)context)->data, step);
}

static int length_of_sample(void *context, int64_t number)
{
	return hspmd_data_length_of_sample(((struct job *)context)->data, number);
}

static int look(void *context, const struct hspmd_program *program, const struct hspmd_executor *executor, struct hspmd_device *device,
                struct hspmd_error *err)
{
	const struct trainer_options *o = ((struct job *)context)->o;
	return o->on_end ? o->on_end(o->context, program, executor, device, err) : 0;
}

/* A byte file with structure that a model can learn, long enough for all tests. */
static int write_corpus(char *path)
{
	int fd = mkstemp(path);
	FILE *f = fd < 0 ? NULL : fdopen(fd, "w");
	unsigned x = 1;
	for (int i = 0; f && i < 20000; i++) {
		x = x * 1103515245 + 12345;
		fputc((int)('a' + i % 7 + (x >> 16) % 3), f);
	}
	return f ? fclose(f) : -1;
}

/* Runs of tokens that do not count, of 1 to 40: some samples have no token that counts, others have all. */
static int write_mask(const char *path)
{
	FILE *f = fopen(path, "w");
	for (int i = 0, run = 0; f && i < 20000; run++)
		for (int k = 0; k < 1 + run * run % 40 && i < 20000; k++, i++)
			fputc(run % 2, f);
	return f ? fclose(f) : -1;
}

/* Devices in order, each an entry of its own, of type "c" (a CPU), "g" (a GPU) or "p" (make-believe). */
static char *write_cluster(const struct trainer_options *o)
{
	char *text = NULL;
	size_t size;
	if (o->cluster)
		return strdup(o->cluster);
	FILE *f = open_memstream(&text, &size);
	if (!f)
		return NULL;
	static const char rates[] = "\"memory_bytes\":1000000000,\"gbytes_per_s\":10,\"peak_tflops\":{\"fp32\":0.01}",
	                  host[] = "\"host\":{\"memory_bytes\":1000000000,\"gbytes_per_s\":1}";
	fprintf(f, "{\"format\":\"hspmd-cluster-1\",\"device_types\":{\"c\":{\"kind\":\"cpu\",%s}", rates);
	if (o->gpus)
		fprintf(f, ",\"g\":{\"kind\":\"cuda\",%s,%s}", rates, host);
	if (o->pretend)
		fprintf(f, ",\"p\":{\"kind\":\"pretend\",%s,%s}", rates, host);
	fputs("},\"nodes\":[{\"name\":\"n\",\"devices\":[", f);
	for (int d = 0; d < o->devices; d++)
		fprintf(f, "%s{\"type\":\"%c\",\"count\":1}", d ? "," : "", o->gpus >> d & 1 ? 'g' : o->pretend >> d & 1 ? 'p' : 'c');
	fputs("]}],\"links\":[{\"scope\":\"node\",\"alpha_s\":1e-6,\"gbytes_per_s\":5}]}", f);
	return fclose(f) ? NULL : text;
}

static void replace_keys(json_t *job, const char *by)
{
	json_t *sections = json_loads(by, 0, NULL), *section;
	const char *name;
	json_object_foreach(sections, name, section)
		if (json_object_update(json_object_get(job, name), section))
			abort();
	json_decref(sections);
}

static int set_up(struct job *s, const struct trainer_options *o, const char *corpus, struct hspmd_error *err)
{
	char *cluster = write_cluster(o);
	json_t *c = cluster ? json_loads(cluster, 0, NULL) : NULL, *p = json_loads(o->plan, 0, NULL), *m = json_loads(o->model, 0, NULL),
	       *j = NULL;
	int status = -1;
	s->model = m ? hspmd_model_from_json(m, "model", err) : NULL;
	s->cluster = c ? hspmd_cluster_from_json(c, "cluster", err) : NULL;
	s->plan = p && s->cluster && s->model ? hspmd_plan_from_json(p, "plan", s->cluster, hspmd_model_layers(s->model), err) : NULL;
	if (s->plan)
		j = json_pack("{ss,ss,ss,s{s[s],ss},si,si,si,si,s{ss,sf,si,ss}}", "format", "hspmd-job-1", "model", "/none", "init",
		              "random", "data", "train", corpus, "kind", "bytes", "seq_len", s->plan->seq_len, "global_batch",
		              s->plan->global_batch, "steps", 1000, "seed", o->seed ? o->seed : TRAINER_SEED, "optimizer", "type", "adamw",
		              "lr", 3e-3, "warmup_steps", 2, "schedule", "constant");
	if (j && o->documents)
		json_object_set_new(json_object_get(j, "data"), "document_end", json_integer('a'));
	if (j && o->masked)
		json_object_set_new(json_object_get(j, "data"), "mask", json_true());
	if (j && o->masked)
		json_object_set_new(json_object_get(j, "data"), "train", json_pack("[s,{ss,sf}]", corpus, "path", corpus, "weight", 0.3));
	if (j && o->clip != 0)
		json_object_set_new(json_object_get(j, "optimizer"), "clip", json_real(o->clip > 0 ? o->clip : 0));
	if (j && o->bf16)
		json_object_set_new(j, "precision", json_string("bf16"));
	if (j && o->tf32)
		json_object_set_new(j, "precision", json_string("tf32"));
	if (j && o->fp8)
		json_object_set_new(j, "precision", json_string("fp8"));
	if (j && o->any_order)
		json_object_set_new(j, "deterministic", json_false());
	if (j && o->stochastic)
		json_object_set_new(j, "rounding", json_string("stochastic"));
	if (j && o->job)
		replace_keys(j, o->job);
	s->job = j ? hspmd_job_from_json(j, "/job.json", NULL, err) : NULL;
	s->data = s->job ? hspmd_data_open(s->job, s->model->vocab, NULL, err) : NULL;
	if (s->data && trainer_complete_plan) {
		struct hspmd_graph_source source = hspmd_graph_source_job(s->model, s->job);
		status = trainer_complete_plan(s->plan, s->cluster, &source, err);
	} else if (s->data) {
		status = 0;
	}
	json_decref(c);
	json_decref(p);
	json_decref(m);
	json_decref(j);
	free(cluster);
	return status;
}

int trainer_train(const struct trainer_options *o, double *losses, struct hspmd_error *err)
{
	char corpus[] = "/tmp/hspmd-test-XXXXXX";
	struct job s = { .losses = losses, .o = o };
	int status = write_corpus(corpus);
	char mask[sizeof corpus + 5];
	snprintf(mask, sizeof mask, "%s.mask", corpus);
	if (!status && o->masked)
		status = write_mask(mask);
	if (!status)
		status = set_up(&s, o, corpus, err);
	unlink(corpus);
	if (o->masked)
		unlink(mask);
	if (!status) {
		struct hspmd_train_local_options local = {
			.source = hspmd_graph_source_job(s.model, s.job),
			.cluster = s.cluster,
			.plan = s.plan,
			.job = s.job,
			.samples = hspmd_data_source(s.data),
			.steps = o->steps,
			.on_loss = take_loss,
			.on_end = look,
			.context = &s,
		};
		if (s.job->length_count) {
			local.lengths = s.job->lengths;
			local.length_count = s.job->length_count;
			local.length_of_step = length_of_step;
			local.length_of_sample = s.job->mix_lengths ? length_of_sample : NULL;
			local.length_context = &s;
		}
		local.timeout_s = o->gpus ? 600 : 0; /* an emulated GPU on a loaded machine is very slow */
		status = hspmd_train_local(&local, err);
	}
	hspmd_data_close(s.data);
	hspmd_job_destroy(s.job);
	hspmd_plan_destroy(s.plan);
	hspmd_cluster_destroy(s.cluster);
	hspmd_model_destroy(s.model);
	return status;
}

int trainer_run(const char *model, const char *plan, int devices, int steps, double *losses, struct hspmd_error *err)
{
	return trainer_train(
	        &(struct trainer_options){ .model = model, .plan = plan, .devices = devices, .steps = steps, .pretend = trainer_pretend },
	        losses, err);
}

int trainer_documents(const char *model, const char *plan, int devices, int steps, double *losses, struct hspmd_error *err)
{
	return trainer_train(
	        &(struct trainer_options){
	                .model = model, .plan = plan, .devices = devices, .steps = steps, .pretend = trainer_pretend, .documents = true },
	        losses, err);
}

static int train_documents(const char *job, const char *model, const char *plan, int devices, int steps, double *losses,
                           struct hspmd_error *err)
{
	return trainer_train(&(struct trainer_options){ .model = model,
	                                                .plan = plan,
	                                                .devices = devices,
	                                                .steps = steps,
	                                                .pretend = trainer_pretend,
	                                                .documents = true,
	                                                .job = job },
	                     losses, err);
}

int trainer_lengths(const char *model, const char *plan, int devices, int steps, double *losses, struct hspmd_error *err)
{
	return train_documents("{\"data\":{\"lengths\":[8,14,16]}}", model, plan, devices, steps, losses, err);
}

int trainer_mixed(const char *model, const char *plan, int devices, int steps, double *losses, struct hspmd_error *err)
{
	return train_documents("{\"data\":{\"lengths\":[4,8,16],\"mix_lengths\":true}}", model, plan, devices, steps, losses, err);
}

int trainer_lion(const char *model, const char *plan, int devices, int steps, double *losses, struct hspmd_error *err)
{
	static const char job[] = "{\"optimizer\":{\"type\":\"lion\",\"lr\":3e-4,\"schedule\":\"wsd\",\"decay_steps\":990}}";
	return trainer_train(
	        &(struct trainer_options){
	                .model = model, .plan = plan, .devices = devices, .steps = steps, .pretend = trainer_pretend, .job = job },
	        losses, err);
}

int trainer_fp8(const char *model, const char *plan, int devices, int steps, double *losses, struct hspmd_error *err)
{
	return trainer_train(
	        &(struct trainer_options){
	                .model = model, .plan = plan, .devices = devices, .steps = steps, .pretend = trainer_pretend, .fp8 = true },
	        losses, err);
}

int trainer_masked(const char *model, const char *plan, int devices, int steps, double *losses, struct hspmd_error *err)
{
	static const char job[] = "{\"data\":{\"reset_positions\":true}}";
	return trainer_train(&(struct trainer_options){ .model = model,
	                                                .plan = plan,
	                                                .devices = devices,
	                                                .steps = steps,
	                                                .pretend = trainer_pretend,
	                                                .documents = true,
	                                                .masked = true,
	                                                .job = job },
	                     losses, err);
}

static void store_loss(void *context, int64_t step, double loss)
{
	((double *)context)[step] = loss;
}

int trainer_samples(const char *model, const char *plan, struct hspmd_train_local_options *o, double *losses, struct hspmd_error *err)
{
	static const char cluster[] =
	        "{\"format\":\"hspmd-cluster-1\",\"device_types\":{\"c\":{\"kind\":\"cpu\",\"memory_bytes\":1000000000,\"gbytes_per_s\":10,"
	        "\"peak_tflops\":{\"fp32\":0.01}}},\"nodes\":[{\"name\":\"n\",\"devices\":[{\"type\":\"c\",\"count\":4}]}],"
	        "\"links\":[{\"scope\":\"node\",\"alpha_s\":1e-6,\"gbytes_per_s\":5}]}";
	json_t *c = json_loads(cluster, 0, NULL), *p = json_loads(plan, 0, NULL), *m = json_loads(model, 0, NULL);
	struct hspmd_cluster *cl = hspmd_cluster_from_json(c, "cluster", err);
	struct hspmd_model *mo = hspmd_model_from_json(m, "model", err);
	struct hspmd_plan *pl = hspmd_plan_from_json(p, "plan", cl, hspmd_model_layers(mo), err);
	struct hspmd_job job = { .seed = 5,
		                 .global_batch = pl ? pl->global_batch : 0,
		                 .optimizer = { .lr = 2e-3, .values = { 0.9, 0.95, 1e-8 }, .clip = 1 },
		                 .steps = o->steps };
	int status = -1;
	if (pl) {
		o->source = hspmd_graph_source_model(mo);
		o->source.documents = true;
		o->cluster = cl;
		o->plan = pl;
		o->job = &job;
		o->on_loss = store_loss;
		o->context = losses;
		status = hspmd_train_local(o, err);
	}
	hspmd_plan_destroy(pl);
	hspmd_cluster_destroy(cl);
	hspmd_model_destroy(mo);
	json_decref(c);
	json_decref(p);
	json_decref(m);
	return status;
}

int trainer_sum_parameters(void *context, const struct hspmd_program *p, const struct hspmd_executor *ex, struct hspmd_device *device,
                           struct hspmd_error *err)
{
	uint64_t *sum = context;
	for (int i = 0; i < p->state_count; i++) {
		int slot = p->states[i].param;
		size_t bytes = slot < 0 ? 0 : p->slot_types[p->slots[slot].slot_type].bytes;
		unsigned char *host = malloc(bytes + 1);
		if (!host)
			return hspmd_fail_memory(err, "reading parameters");
		if (bytes && device->ops->to_host(device, host, hspmd_executor_slot_data(ex, slot), bytes, err)) {
			free(host);
			return -1;
		}
		for (size_t k = 0; k < bytes; k++)
			*sum = *sum * 1099511628211u + host[k];
		free(host);
	}
	return 0;
}

char *trainer_four_layers(const char *model)
{
	char *text = strdup(model), *at = text ? strstr(text, "_layer") : NULL;
	at = at ? strchr(at, ':') : NULL;
	if (at)
		at[1] = '2';
	return text;
}
