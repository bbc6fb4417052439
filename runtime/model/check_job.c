/* SPDX-License-Identifier: Apache-2.0 */
/* Mistakes of a job that its model's parameters show. */
#include "common/mistakes.h"
#include "runtime/model/build.h"
#include "runtime/weights/weights.h"

struct check {
	const struct hspmd_job *j;
	const struct hspmd_model *m;
	const struct hspmd_graph *g;
	struct hspmd_mistakes *all;
	struct hspmd_error *err;
	int status;
	bool enough; /* no more shall be found */
};

static void add(struct check *k, const struct hspmd_error *one)
{
	k->status = -1;
	k->enough = !hspmd_mistakes_add(k->all, k->err, k->j->file, one->text);
}

static const struct hspmd_tensor *next_parameter(const struct check *k, size_t *i)
{
	while (*i < k->g->tensor_count) {
		const struct hspmd_tensor *t = &k->g->tensors[(*i)++];
		if (t->role == HSPMD_TENSOR_PARAMETER && !t->history)
			return t;
	}
	return NULL;
}

/* Every pattern should match a parameter. */
static void check_no_decay(struct check *k)
{
	for (int pattern = 0; pattern < k->j->optimizer.no_decay_count && !k->enough; pattern++) {
		const struct hspmd_tensor *t, *first = NULL;
		struct hspmd_error one;
		size_t i = 0;
		while ((t = next_parameter(k, &i)) && !hspmd_job_no_decay_matches(k->j, pattern, t->name))
			first = first ? first : t;
		if (t)
			continue;
		hspmd_fail(&one, "%s: optimizer.no_decay[%d]: no parameter of the model matches \"%s\"; one is named %s", k->j->file,
		           pattern, k->j->optimizer.no_decay[pattern], first ? first->name : "nothing");
		add(k, &one);
	}
}

/* The files should have every parameter, in its shape. Their headers say that. */
static void check_init(struct check *k)
{
	struct hspmd_error one;
	struct hspmd_weights *w = k->j->init && !k->enough ? hspmd_weights_open(k->j->init, &one) : NULL;
	struct hspmd_file_map map = hspmd_model_file_map(k->m);
	const struct hspmd_tensor *t;
	size_t i = 0;
	int status = k->j->init && !k->enough && !w ? -1 : 0;
	while (w && !status && (t = next_parameter(k, &i)))
		status = hspmd_weights_check(w, &map, t->name, &t->shape, &one);
	hspmd_weights_destroy(w);
	if (!status)
		return;
	hspmd_error_prefix(&one, "%s: init", k->j->file);
	add(k, &one);
}

static int check_job(const struct hspmd_job *j, const struct hspmd_model *m, struct hspmd_mistakes *all, struct hspmd_error *err)
{
	struct check k = { .j = j, .m = m, .all = all, .err = err };
	if (!j->init && !j->optimizer.no_decay_count)
		return 0;
	struct hspmd_error one;
	struct hspmd_graph *g = hspmd_model_job_graph(m, j, &one);
	k.g = g;
	if (!g) {
		hspmd_error_prefix(&one, "%s: model", j->file);
		add(&k, &one);
		return -1;
	}
	check_no_decay(&k);
	check_init(&k);
	hspmd_graph_destroy(g);
	return k.status;
}

const struct hspmd_job_models hspmd_job_models = { hspmd_model_read_job, check_job };
