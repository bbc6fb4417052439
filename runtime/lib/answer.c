/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/lib/answer.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/durable.h"
#include "common/json.h"
#include "runtime/graph/graph_json.h"
#include "runtime/lib/object.h"
#include "runtime/model/own.h"

#define TRIED_LENGTH 64 /* positions of the net that is described without a job, unless the model takes fewer */

static void say(const char *text)
{
	(void)hspmd_write_all(HSPMD_OWN_ANSWER_FD, text, strlen(text)); /* it fails if nobody is listening any more */
}

static void at(const char *doing)
{
	char line[128];
	snprintf(line, sizeof line, HSPMD_OWN_AT "%s\n", doing);
	say(line);
}

static void send_answer(const json_t *value)
{
	char *text = json_dumps(value, JSON_COMPACT);
	if (!text)
		return;
	say(HSPMD_OWN_ANSWER);
	say(text);
	say("\n");
	free(text);
}

static void send_error(const struct hspmd_error *err)
{
	json_t *value = json_pack("{s:s}", "error", err->text);
	if (!value) /* not UTF-8 */
		value = json_pack("{s:s}", "error", "an error whose text is not UTF-8");
	send_answer(value);
	json_decref(value);
}

/* ---- the description */

static bool is_of_tokens(const char *input)
{
	return !strcmp(input, HSPMD_TENSOR_TOKENS) || !strcmp(input, HSPMD_TENSOR_TARGETS) || !strcmp(input, HSPMD_TENSOR_SEGMENTS) ||
	       !strcmp(input, HSPMD_TENSOR_POSITIONS) || hspmd_input_is_noise(input);
}

/* The net for one sample of the job, or of a usual length. */
static struct hspmd_graph *try_build(const struct hspmd_own_object *o, const struct hspmd_job *job, struct hspmd_error *err)
{
	int64_t longest = o->sizes.max_length ? o->sizes.max_length : INT64_MAX;
	if (job && job->seq_len > longest) {
		hspmd_fail(err, "seq_len: expected at most %lld, the model's positions, got %lld", (long long)longest,
		           (long long)job->seq_len);
		return NULL;
	}
	struct hspmd_model_build_options how = { .batch = 1, .vocab_parts = 1, .loss_scale = 1 };
	struct hspmd_graph_source source = hspmd_net_graph_source(&o->net);
	how.seq_len = job ? job->seq_len : longest < TRIED_LENGTH ? longest : TRIED_LENGTH;
	how.documents = job && job->documents;
	how.reset_positions = job && job->reset_positions;
	at("its function build");
	return source.build(source.context, &how, err);
}

/* Whether every input of the net can be filled. */
static int check_inputs(const struct hspmd_own_object *o, const struct hspmd_graph *g, bool *only_own, struct hspmd_error *err)
{
	*only_own = false;
	for (size_t i = 0; i < g->tensor_count; i++) {
		const struct hspmd_tensor *t = &g->tensors[i];
		if (t->role != HSPMD_TENSOR_INPUT)
			continue;
		bool tokens = is_of_tokens(t->name) && t->dtype == HSPMD_I32 && t->shape.rank == 2;
		*only_own |= !tokens || !o->sizes.vocabulary;
		if (!o->definition->read_sample && !tokens)
			return hspmd_fail(
			        err,
			        "input %s: hspmd fills integers named tokens, targets, segments and positions; for others the model needs "
			        "open_samples and read_sample",
			        t->name);
		if (!o->definition->read_sample && !o->sizes.vocabulary)
			return hspmd_fail(err, "input %s: sizes.vocabulary is missing: tokens are below it", t->name);
	}
	return 0;
}

/* A sample of each input, so that a reader that cannot read is found out before the job waits in a queue. */
static int try_samples(const struct hspmd_own_object *o, const struct hspmd_graph *g, const struct hspmd_job *job, bool validation,
                       struct hspmd_error *err)
{
	struct hspmd_own_samples samples;
	at("its function open_samples");
	int status = hspmd_own_object_open_samples(o, job, validation, &samples, err);
	for (size_t i = 0; !status && i < g->tensor_count; i++) {
		const struct hspmd_tensor *t = &g->tensors[i];
		if (t->role != HSPMD_TENSOR_INPUT || hspmd_input_is_noise(t->name))
			continue;
		int64_t positions = t->shape.rank > 1 ? t->shape.dim[1] : 1;
		void *to = calloc((size_t)hspmd_shape_elements(&t->shape), hspmd_dtype_bytes(t->dtype));
		at("its function read_sample");
		status = to ? samples.read(samples.context, t->name, 0, 0, positions, to, err) : hspmd_fail_memory(err, "a sample");
		free(to);
	}
	if (!status)
		at("its function close_samples");
	if (!status)
		hspmd_own_object_close_samples(&samples);
	return status;
}

static json_t *describe(const struct hspmd_own_object *o, const json_t *job_json, struct hspmd_error *err)
{
	struct hspmd_job *job = job_json ? hspmd_job_from_json(job_json, "job.json", NULL, err) : NULL;
	struct hspmd_graph *g = job || !job_json ? try_build(o, job, err) : NULL;
	bool only_own;
	int status = g ? check_inputs(o, g, &only_own, err) : -1;
	if (!status && job && job->data_kind == HSPMD_DATA_OWN && o->definition->read_sample)
		status = try_samples(o, g, job, false, err) || (job->valid_count && try_samples(o, g, job, true, err)) ? -1 : 0;
	json_t *value = NULL;
	if (!status) {
		value = json_pack("{s:s, s:i, s:b, s:b}", "name", o->definition->name, "layers", o->sizes.layers, "reads_samples",
		                  o->definition->read_sample != NULL, "only_own_samples", (int)only_own);
		if (value && o->sizes.vocabulary)
			json_object_set_new(value, "vocabulary", json_integer(o->sizes.vocabulary));
		if (value && o->sizes.max_length)
			json_object_set_new(value, "max_length", json_integer(o->sizes.max_length));
		if (!value)
			hspmd_fail(err, "hspmd_model.name is not UTF-8");
	}
	hspmd_graph_destroy(g);
	hspmd_job_destroy(job);
	return value;
}

/* ---- a graph */

static json_t *make_graph(const struct hspmd_own_object *o, const char *how_text, struct hspmd_error *err)
{
	struct hspmd_model_build_options how;
	struct hspmd_graph_source source = hspmd_net_graph_source(&o->net);
	if (!how_text || hspmd_own_options_parse(how_text, &how)) {
		hspmd_fail(err, "the options of a graph cannot be read");
		return NULL;
	}
	at("its function build");
	struct hspmd_graph *g = source.build(source.context, &how, err);
	if (!g)
		return NULL;
	at("the description of its net");
	json_t *graph = hspmd_graph_to_json(g), *value = graph ? json_pack("{s:o}", "graph", graph) : NULL;
	if (!value)
		hspmd_fail(err, "the net cannot be described: a name is not UTF-8");
	hspmd_graph_destroy(g);
	return value;
}

/* ---- the whole */

static void *read_object(size_t *size, struct hspmd_error *err)
{
	struct stat st;
	if (fstat(HSPMD_OWN_OBJECT_FD, &st) || st.st_size < 1 || (size_t)st.st_size > HSPMD_OWN_OBJECT_MAX) {
		hspmd_fail(err, "this command is hspmd's own: it gets its object from another hspmd");
		return NULL;
	}
	char *bytes = malloc((size_t)st.st_size);
	*size = (size_t)st.st_size;
	if (!bytes) {
		hspmd_fail_memory(err, "reading the object");
		return NULL;
	}
	if (!hspmd_read_at(HSPMD_OWN_OBJECT_FD, bytes, *size, 0))
		return bytes;
	hspmd_fail_errno(err, "reading the object");
	free(bytes);
	return NULL;
}

static json_t *answer_to(const json_t *request, struct hspmd_error *err)
{
	size_t size = 0;
	const char *name = json_string_value(json_object_get(request, "name"));
	const char *config = json_string_value(json_object_get(request, "config"));
	const char *question = json_string_value(json_object_get(request, "question"));
	void *bytes = read_object(&size, err);
	if (!bytes)
		return NULL;
	if (!name || !config || !question) {
		hspmd_fail(err, "the request cannot be read");
		free(bytes);
		return NULL;
	}
	struct hspmd_own_object *o = hspmd_own_object_open(bytes, size, name, config, at, err);
	free(bytes);
	if (!o)
		return NULL;
	if (!strcmp(question, HSPMD_OWN_DESCRIBE))
		return describe(o, json_object_get(request, "job"), err);
	return make_graph(o, json_string_value(json_object_get(request, "how")), err);
}

/* Libraries of this program explain a crash at length; whoever asked will say it in a line. */
static void end_plainly(void)
{
	static const int signals[] = { SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT };
	for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
		signal(signals[i], SIG_DFL);
}

int hspmd_own_answer(void)
{
	end_plainly();
	struct hspmd_error err = { "" };
	json_t *request = json_loadf(stdin, 0, NULL), *answer = answer_to(request, &err);
	if (answer)
		send_answer(answer);
	else
		send_error(&err);
	fflush(NULL);
	_exit(answer ? 0 : 1); /* the user's code has nothing more to do here */
}
