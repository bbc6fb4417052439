/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs of a model of the user's own, as another process has built them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/graph/graph_json.h"
#include "runtime/model/own_internal.h"
#include "runtime/op/op.h"

/* As they lie in memory: both processes are of one program. */
char *hspmd_own_options_text(const struct hspmd_model_build_options *how)
{
	const unsigned char *bytes = (const unsigned char *)how;
	char *text = malloc(2 * sizeof *how + 1);
	for (size_t i = 0; text && i < sizeof *how; i++)
		snprintf(text + 2 * i, 3, "%02x", bytes[i]);
	return text;
}

int hspmd_own_options_parse(const char *text, struct hspmd_model_build_options *how)
{
	unsigned char bytes[sizeof *how];
	for (size_t i = 0; i < sizeof *how; i++) {
		unsigned value;
		if (!text[2 * i] || sscanf(text + 2 * i, "%2x", &value) != 1)
			return -1;
		bytes[i] = (unsigned char)value;
	}
	if (text[2 * sizeof *how])
		return -1;
	memcpy(how, bytes, sizeof *how);
	return how->batch > 0 && how->seq_len > 0 ? 0 : -1;
}

/* Padding would make equal options unlike. */
static struct hspmd_model_build_options plain(const struct hspmd_model_build_options *how)
{
	struct hspmd_model_build_options o;
	memset(&o, 0, sizeof o);
	o.batch = how->batch;
	o.seq_len = how->seq_len;
	o.vocab_parts = how->vocab_parts;
	o.widest = how->widest;
	o.loss_scale = how->loss_scale;
	o.reset_positions = how->reset_positions;
	o.documents = how->documents;
	o.parts = how->parts;
	o.bf16 = how->bf16;
	o.forward_only = how->forward_only;
	return o;
}

/* An answer that was given before; a new reference. NULL: none. */
static json_t *kept(struct hspmd_own *o, const char *request)
{
	json_t *answer = NULL;
	pthread_mutex_lock(&o->lock);
	for (int i = 0; i < HSPMD_OWN_KEPT && !answer; i++)
		if (o->kept[i].request && !strcmp(o->kept[i].request, request))
			answer = json_incref(o->kept[i].answer);
	pthread_mutex_unlock(&o->lock);
	return answer;
}

static void keep(struct hspmd_own *o, const char *request, json_t *answer)
{
	char *copy = strdup(request);
	if (!copy)
		return;
	pthread_mutex_lock(&o->lock);
	int i = o->kept_next;
	o->kept_next = (i + 1) % HSPMD_OWN_KEPT;
	free(o->kept[i].request);
	json_decref(o->kept[i].answer);
	o->kept[i].request = copy;
	o->kept[i].answer = json_incref(answer);
	pthread_mutex_unlock(&o->lock);
}

static json_t *ask(struct hspmd_own *o, const struct hspmd_model_build_options *how, struct hspmd_error *err)
{
	struct hspmd_model_build_options only = plain(how);
	char *text = hspmd_own_options_text(&only);
	json_t *request = text ? json_pack("{s:s, s:s}", "question", HSPMD_OWN_GRAPH, "how", text) : NULL;
	json_t *answer = request ? kept(o, text) : NULL;
	if (!request)
		hspmd_fail_memory(err, "asking for a graph");
	else if (!answer && (answer = hspmd_own_ask(o, request, err)))
		keep(o, text, answer);
	json_decref(request);
	free(text);
	return answer;
}

struct hspmd_graph *hspmd_own_graph(const struct hspmd_model *m, const struct hspmd_model_build_options *how, struct hspmd_error *err)
{
	struct hspmd_own *o = hspmd_own_of(m);
	pthread_mutex_lock(&o->lock);
	int status = hspmd_own_fetch(o, err);
	pthread_mutex_unlock(&o->lock);
	json_t *answer = status ? NULL : ask(o, how, err);
	if (!answer)
		return NULL;
	struct hspmd_graph *g = hspmd_graph_from_json(json_object_get(answer, "graph"), hspmd_op_types, how->bf16 ? HSPMD_BF16 : HSPMD_F32,
	                                              hspmd_model_layers(m), err);
	json_decref(answer);
	if (g && (how->forward_only || !hspmd_graph_differentiate(g)))
		return g;
	if (g)
		hspmd_fail(err, "%s", g->error.text);
	hspmd_graph_destroy(g);
	hspmd_error_prefix(err, "%s", o->path);
	return NULL;
}
