/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/model/model.h"
#include "tests/bench/solver/figures.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/json.h"
#include "controller/solver/solver.h"
#include "runtime/facts/facts.h"

const char *validation_folder(void)
{
	const char *folder = getenv("HSPMD_VALIDATION");
	return folder && *folder ? folder : HSPMD_SRCDIR "/../shared/validation";
}

static char *path_of(const char *folder, const char *file)
{
	return file ? hspmd_asprintf("%s/%s", folder, file) : NULL;
}

static double fullest(const struct hspmd_plan *p, const struct hspmd_cluster *c)
{
	double most = 0;
	for (int i = 0; i < p->predicted.device_count; i++)
		most = fmax(most, p->predicted.memory_bytes[i] / (double)c->types[c->devices[p->predicted.devices[i]].type].memory_bytes);
	return most;
}

/* Evaluate one case. Paths are absolute; profile or model may be NULL. Returns 0, or -1 with err. */
static int predict(struct validation_case *out, const char *cluster, const char *profile, const char *model, const char *plan,
                   struct hspmd_error *err)
{
	int rc = -1;
	struct hspmd_cluster *c = hspmd_cluster_read(cluster, err);
	struct hspmd_profile *p = c && profile ? hspmd_profile_read(profile, err) : NULL;
	struct hspmd_model *m = c && model ? hspmd_model_read(model, err) : NULL;
	struct hspmd_plan *x = p || m ? hspmd_plan_read(plan, c, p ? p->layer_count : hspmd_model_layers(m), err) : NULL;
	struct hspmd_model_facts *f = x && m ? hspmd_model_facts_of(m, x->seq_len, err) : NULL;
	if (x && (f || !m) && !hspmd_evaluate(c, f, p, m ? HSPMD_PRECISION_BF16 : HSPMD_PRECISION_FP32, x, NULL, err)) {
		out->predicted_s = x->predicted.step_s;
		out->fullness = fullest(x, c);
		out->micro_batch = x->micro_batch;
		for (int i = 0; i < x->pipeline_count; i++)
			out->bare = out->bare || x->pipelines[i].stages[0].layers[1] == 1;
		rc = 0;
	}
	hspmd_plan_destroy(x);
	hspmd_model_facts_destroy(f);
	hspmd_model_destroy(m);
	hspmd_profile_destroy(p);
	hspmd_cluster_destroy(c);
	return rc;
}

static int read_case(const char *folder, const json_t *value, struct validation_case *out, struct hspmd_error *err)
{
	const json_t *measured = json_object_get(value, "measured_step_s");
	char *cluster = path_of(folder, json_string_value(json_object_get(value, "cluster")));
	char *profile = path_of(folder, json_string_value(json_object_get(value, "profile")));
	char *model = path_of(folder, json_string_value(json_object_get(value, "model")));
	char *plan = path_of(folder, json_string_value(json_object_get(value, "plan")));
	const char *name = json_string_value(json_object_get(value, "name")), *note = json_string_value(json_object_get(value, "note"));
	*out = (struct validation_case){ .name = strdup(name ? name : ""),
		                         .note = strdup(note ? note : ""),
		                         .measured_s = json_number_value(measured) };
	int rc = cluster && plan && out->name && out->note ? predict(out, cluster, profile, model, plan, err)
	                                                   : hspmd_fail(err, "an incomplete case");
	free(cluster);
	free(profile);
	free(model);
	free(plan);
	return rc;
}

int validation_read(const char *folder, struct validation_case **cases, struct hspmd_error *err)
{
	struct hspmd_json_doc doc;
	char *path = path_of(folder, "cases.json");
	int count = 0;
	if (!path || hspmd_json_open(&doc, path, err)) {
		free(path);
		return -1;
	}
	const json_t *list = json_is_array(doc.root) ? doc.root : json_object_get(doc.root, "cases");
	*cases = hspmd_calloc(json_array_size(list), sizeof **cases);
	if (!*cases)
		count = hspmd_fail_memory(err, "reading the validation cases");
	for (; count >= 0 && count < (int)json_array_size(list); count++)
		if (read_case(folder, json_array_get(list, (size_t)count), &(*cases)[count], err)) {
			hspmd_error_prefix(err, "%s", (*cases)[count].name);
			validation_free(*cases, count + 1);
			count = -2;
		}
	hspmd_json_close(&doc);
	free(path);
	return count < 0 ? -1 : count;
}

void validation_free(struct validation_case *cases, int count)
{
	for (int i = 0; i < count; i++) {
		free(cases[i].name);
		free(cases[i].note);
	}
	free(cases);
}

/* ---- figures */

/* Rank of x[i] among n values; equal values share their mean rank. */
static double rank(const double *x, int n, int i)
{
	int below = 0, equal = 0;
	for (int k = 0; k < n; k++) {
		below += x[k] < x[i];
		equal += x[k] == x[i];
	}
	return below + (equal - 1) / 2.0;
}

static double spearman(const double *x, const double *y, int n)
{
	double sxy = 0, sxx = 0, syy = 0, mean = (n - 1) / 2.0;
	for (int i = 0; i < n; i++) {
		double a = rank(x, n, i) - mean, b = rank(y, n, i) - mean;
		sxy += a * b;
		sxx += a * a;
		syy += b * b;
	}
	return sxx > 0 && syy > 0 ? sxy / sqrt(sxx * syy) : 0;
}

struct validation_figures validation_figures(const char *group, const struct validation_case *cases, int count)
{
	struct validation_figures f = { 0 };
	double *measured = hspmd_calloc((size_t)count * 4, sizeof *measured);
	if (!measured)
		return f;
	double *predicted = measured + count, *small_measured = predicted + count, *small_predicted = small_measured + count;
	int first = -1;
	double best = INFINITY;
	for (int i = 0; i < count; i++) {
		const struct validation_case *c = &cases[i];
		if (strncmp(c->name, group, strlen(group)))
			continue;
		if (strstr(c->note, "did not run")) {
			f.failed += !c->bare;
			f.failed_bare += c->bare;
			f.failed_predicted += !c->bare && c->fullness > 1;
		}
		if (c->measured_s <= 0)
			continue;
		if (c->micro_batch <= 2) {
			small_measured[f.small] = c->measured_s;
			small_predicted[f.small++] = c->predicted_s;
		}
		f.ran_predicted_not += c->fullness > 1;
		f.ran_bare += c->bare;
		f.mean_error += fabs(c->predicted_s / c->measured_s - 1);
		best = fmin(best, c->measured_s);
		if (first < 0 || c->predicted_s < cases[first].predicted_s)
			first = i;
		measured[f.measured] = c->measured_s;
		predicted[f.measured++] = c->predicted_s;
	}
	if (f.measured) {
		f.mean_error /= f.measured;
		f.first_loss = cases[first].measured_s / best - 1;
		f.spearman = spearman(measured, predicted, f.measured);
		f.spearman_small = spearman(small_measured, small_predicted, f.small);
	}
	free(measured);
	return f;
}
