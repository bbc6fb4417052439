/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/trainer.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/alloc.h"
#include "runtime/train/execute.h"

const char trainer_gpt2[] = "{\"model_type\":\"gpt2\",\"n_embd\":24,\"n_layer\":3,\"n_head\":4,\"n_positions\":32,\"vocab_size\":257,"
			    "\"resid_pdrop\":0,\"embd_pdrop\":0,\"attn_pdrop\":0}";
const char trainer_llama[] = "{\"model_type\":\"llama\",\"hidden_size\":24,\"num_hidden_layers\":3,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
			     "\"intermediate_size\":40,\"max_position_embeddings\":64,\"vocab_size\":259,\"rms_norm_eps\":1e-5,\"tie_word_embeddings\":true}";
const char trainer_mixtral[] = "{\"model_type\":\"mixtral\",\"hidden_size\":24,\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":4,"
			       "\"intermediate_size\":20,\"max_position_embeddings\":64,\"vocab_size\":256,\"num_local_experts\":4,\"num_experts_per_tok\":2}";

struct shared {
	struct hspmd_job *job;
	struct hspmd_model *model;
	struct hspmd_cluster *cluster;
	struct hspmd_plan *plan;
	struct hspmd_data *data;
	int devices, members, steps;
	int *rank_of, *voters, voter_count;
	struct hspmd_address *addresses; /* by rank */
	pthread_barrier_t opened;
	atomic_int failed;
	double *losses;
};

struct member {
	struct shared *s;
	int device, rank;
	struct hspmd_error err;
	pthread_t thread;
};

static int run_steps(struct member *m, struct hspmd_executor *ex, struct hspmd_error *err)
{
	if (hspmd_executor_initialise(ex, err) || hspmd_executor_spread(ex, err))
		return -1;
	for (int s = 0; s < m->s->steps; s++) {
		struct hspmd_totals own = { 0 }, all;
		struct hspmd_step_times times;
		if (hspmd_executor_gradients(ex, s, &own, &times, err) || hspmd_executor_vote(ex, s, &own, &all, err) ||
		    hspmd_executor_commit(ex, s, &all, err) || hspmd_executor_spread(ex, err))
			return -1;
		if (m->rank == m->s->voters[0])
			m->s->losses[s] = all.loss;
	}
	return 0;
}

static void *run_member(void *argument)
{
	struct member *m = argument;
	struct shared *s = m->s;
	struct hspmd_device *dev = NULL;
	struct hspmd_program *program = NULL;
	struct hspmd_executor *ex = NULL;
	struct hspmd_transport *t = NULL;
	struct hspmd_graph_source source = hspmd_graph_source_model(s->model);
	const struct hspmd_device_ops *ops = hspmd_device_find("cpu", &m->err);
	int status = !ops || ops->open(&dev, 0, 1, &m->err) || !(program = hspmd_program_build(&source, s->plan, s->cluster, m->device, dev, &m->err));
	struct hspmd_transport_options o = { .rank = m->rank, .size = s->members, .abort = &s->failed, .timeout_s = 60 };
	if (!status && s->members > 1)
		status = hspmd_transport_memory.open(&o, &t, &m->err) || hspmd_transport_memory.address(t, &s->addresses[m->rank], &m->err);
	if (status)
		atomic_store(&s->failed, 1);
	pthread_barrier_wait(&s->opened);
	if (!atomic_load(&s->failed)) {
		struct hspmd_executor_options eo = {
			.program = program, .device = dev, .transport = t, .rank_of = s->rank_of, .device_count = s->devices, .voters = s->voters,
			.voter_count = s->voter_count, .data = s->data, .job = s->job,
		};
		status = (t && t->ops->connect(t, s->addresses, &m->err)) || !(ex = hspmd_executor_create(&eo, &m->err)) || run_steps(m, ex, &m->err);
		if (status)
			atomic_store(&s->failed, 1);
	}
	hspmd_executor_destroy(ex);
	if (t)
		t->ops->close(t);
	hspmd_program_destroy(program);
	if (dev)
		ops->close(dev);
	if (!status)
		m->err.text[0] = '\0';
	return NULL;
}

/* Text enough for any test: a byte file with structure that a model can learn. */
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

static int set_up(struct shared *s, const char *model, const char *plan, const char *corpus, struct hspmd_error *err)
{
	char *cluster = hspmd_asprintf("{\"format\":\"hspmd-cluster-1\",\"device_types\":{\"c\":{\"kind\":\"cpu\",\"memory_bytes\":1000000000,"
				       "\"gbytes_per_s\":10,\"peak_tflops\":{\"fp32\":0.01}}},\"nodes\":[{\"name\":\"n\",\"devices\":[{\"type\":\"c\",\"count\":%d}]}],"
				       "\"links\":[{\"scope\":\"node\",\"alpha_s\":1e-6,\"gbytes_per_s\":5}]}",
				       s->devices);
	json_t *c = cluster ? json_loads(cluster, 0, NULL) : NULL, *p = json_loads(plan, 0, NULL), *m = json_loads(model, 0, NULL), *j = NULL;
	int status = -1;
	s->model = m ? hspmd_model_from_json(m, "model", err) : NULL;
	s->cluster = c ? hspmd_cluster_from_json(c, "cluster", err) : NULL;
	s->plan = p && s->cluster && s->model ? hspmd_plan_from_json(p, "plan", s->cluster, hspmd_model_layers(s->model), err) : NULL;
	if (s->plan)
		j = json_pack("{ss,ss,ss,s{s[s],ss},si,si,si,si,s{ss,sf,si,ss}}", "format", "hspmd-job-1", "model", "/none", "init", "random", "data", "train",
			      corpus, "kind", "bytes", "seq_len", s->plan->seq_len, "global_batch", s->plan->global_batch, "steps", 1000, "seed", 7,
			      "optimizer", "type", "adamw", "lr", 3e-3, "warmup_steps", 2, "schedule", "constant");
	s->job = j ? hspmd_job_from_json(j, "/job.json", err) : NULL;
	s->data = s->job ? hspmd_data_open(s->job, s->model->vocab, err) : NULL;
	if (s->data)
		status = 0;
	json_decref(c);
	json_decref(p);
	json_decref(m);
	json_decref(j);
	free(cluster);
	return status;
}

static void number_members(struct shared *s)
{
	for (int p = 0; p < s->plan->pipeline_count; p++)
		for (int g = 0; g < s->plan->pipelines[p].stage_count / s->plan->virtual_stages; g++)
			for (int d = 0; d < s->plan->pipelines[p].stages[g].device_count; d++) {
				s->rank_of[s->plan->pipelines[p].stages[g].devices[d]] = s->members;
				s->voters[s->voter_count++] = s->members++;
			}
}

int trainer_run(const char *model, const char *plan, int devices, int steps, double *losses, struct hspmd_error *err)
{
	char corpus[] = "/tmp/hspmd-test-XXXXXX";
	struct shared s = { .devices = devices, .steps = steps, .losses = losses };
	s.rank_of = malloc((size_t)devices * sizeof(int));
	s.voters = malloc((size_t)devices * sizeof(int));
	s.addresses = calloc((size_t)devices, sizeof *s.addresses);
	struct member *members = calloc((size_t)devices, sizeof *members);
	int status = write_corpus(corpus);
	if (!status)
		status = set_up(&s, model, plan, corpus, err);
	unlink(corpus);
	if (!status) {
		memset(s.rank_of, -1, (size_t)devices * sizeof(int));
		number_members(&s);
		pthread_barrier_init(&s.opened, NULL, (unsigned)s.members);
		for (int d = 0; d < devices; d++)
			if (s.rank_of[d] >= 0) {
				members[d] = (struct member){ .s = &s, .device = d, .rank = s.rank_of[d] };
				pthread_create(&members[d].thread, NULL, run_member, &members[d]);
			}
		for (int d = 0; d < devices; d++)
			if (s.rank_of[d] >= 0)
				pthread_join(members[d].thread, NULL);
		pthread_barrier_destroy(&s.opened);
		for (int d = 0; d < devices; d++)
			if (getenv("TRAINER_DEBUG") && members[d].err.text[0])
				fprintf(stderr, "device %d: %s\n", d, members[d].err.text);
		for (int d = 0; d < devices; d++)
			if (members[d].err.text[0] && (!status || strstr(err->text, "called off") || strstr(err->text, "abort"))) {
				*err = members[d].err;
				status = -1;
			}
		status = atomic_load(&s.failed) ? -1 : 0;
	}
	for (int d = 0; d < devices; d++)
		free(s.addresses[d].data);
	hspmd_data_close(s.data);
	hspmd_job_destroy(s.job);
	hspmd_plan_destroy(s.plan);
	hspmd_cluster_destroy(s.cluster);
	hspmd_model_destroy(s.model);
	free(s.rank_of);
	free(s.voters);
	free(s.addresses);
	free(members);
	return status;
}
