/* SPDX-License-Identifier: Apache-2.0 */
/* The nearest plan is the one that the search finds if every device has just enough more memory: what it needs beyond the existing memory
 * is what is short. A change that would be enough is searched for among what a user can change, the smallest change first. */
#include "controller/solver/report/shortage.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/alloc.h"
#include "controller/solver/search/search_plan.h"
#include "controller/solver/search/subclusters.h"
#include "controller/solver/sim/predict.h"

#define FACTOR_MAX 1e6 /* most times the existing memory; for a model that needs more, no plan is named */
#define FACTOR_CLOSE 1.02
#define NODES_MAX 64       /* most additional nodes that are tried */
#define NODES_LOOKED_AT 64 /* nodes among which missing links are searched for */
#define HOST_TIMES_MAX 8   /* most times the hosts' memory that is tried */
#define FACTOR_NEAR 2      /* up to so many times the memory, more memory is named in addition to another change */

struct inquiry {
	const struct hspmd_cluster *c;
	const struct hspmd_model_facts *facts;
	const struct hspmd_profile *profile;
	struct hspmd_solve_request request;
	double until;
	double factor; /* times the existing memory with which there is a plan; 0: unknown */
	char *text;
	size_t size, used;
};

/* This thread's CPU time, so that the result does not depend on other users of the machine. */
static double now_s(void)
{
	struct timespec ts;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

static bool time_is_left(const struct inquiry *q)
{
	return now_s() < q->until;
}

__attribute__((format(printf, 2, 3))) static void append_text(struct inquiry *q, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	int n = q->used < q->size ? vsnprintf(q->text + q->used, q->size - q->used, fmt, ap) : 0;
	va_end(ap);
	q->used += n > 0 ? (size_t)n : 0;
}

/* Search until the first plan is found. */
static struct hspmd_plan *solve(const struct inquiry *q, const struct hspmd_cluster *c, const struct hspmd_solve_request *r)
{
	struct hspmd_solve_request first = *r;
	first.time_limit_s = 1e-9;
	return hspmd_search_plan(c, q->facts, q->profile, &first, NULL, NULL, NULL);
}

/* The plan for devices with `factor` times their memory; NULL if there is none. */
static struct hspmd_plan *with_memory(const struct inquiry *q, struct hspmd_cluster *copy, double factor)
{
	for (int t = 0; t < copy->type_count; t++)
		copy->types[t].memory_bytes = (int64_t)fmin((double)q->c->types[t].memory_bytes * factor, 9e18);
	return solve(q, copy, &q->request);
}

static struct hspmd_plan *nearest_plan(struct inquiry *q)
{
	struct hspmd_error ignored;
	json_t *json = hspmd_cluster_to_json(q->c);
	struct hspmd_cluster *copy = json ? hspmd_cluster_from_json(json, "the cluster with more memory", &ignored) : NULL;
	struct hspmd_plan *found = NULL;
	double low = 1, high = 2;
	while (copy && high < FACTOR_MAX && time_is_left(q) && !(found = with_memory(q, copy, high))) {
		low = high;
		high *= 4;
	}
	while (found && high / low > FACTOR_CLOSE && time_is_left(q)) {
		double middle = sqrt(low * high);
		struct hspmd_plan *closer = with_memory(q, copy, middle);
		if (closer) {
			hspmd_plan_destroy(found);
			found = closer;
		}
		*(closer ? &high : &low) = middle;
	}
	q->factor = found ? high : 0;
	hspmd_cluster_destroy(copy);
	json_decref(json);
	return found;
}

static void append_what_is_short(struct inquiry *q)
{
	struct hspmd_solve_report report = { 0 };
	struct hspmd_plan *p = nearest_plan(q);
	const struct hspmd_shortage *worst = NULL;
	if (p && !hspmd_evaluate(q->c, q->facts, q->profile, q->request.precision, p, &report, NULL))
		for (int i = 0; i < report.shortage_count && i < HSPMD_SHORTAGE_MAX; i++)
			if (!report.shortages[i].host && (!worst || report.shortages[i].need_bytes - report.shortages[i].have_bytes >
			                                                    worst->need_bytes - worst->have_bytes))
				worst = &report.shortages[i];
	if (worst) {
		const struct hspmd_stage *s = &p->pipelines[worst->pipeline].stages[worst->stage];
		char at[256];
		append_text(q,
		            ": in the plan that comes nearest %d of %d device%s short of memory, most of all %s (pipeline %d, stage %d, "
		            "layers %d-%d), which needs"
		            " %.4g GB of its %.4g: %.4g GB short",
		            report.shortage_count, hspmd_plan_device_count(p), report.shortage_count == 1 ? " is" : "s are",
		            hspmd_cluster_device_address(q->c, worst->device, at, sizeof at), worst->pipeline, worst->stage, s->layers[0],
		            s->layers[1] - 1, worst->need_bytes / 1e9, worst->have_bytes / 1e9,
		            (worst->need_bytes - worst->have_bytes) / 1e9);
	}
	hspmd_solve_report_clear(&report);
	hspmd_plan_destroy(p);
}

/* ---- changes that would be enough */

static bool would_do(const struct inquiry *q, const struct hspmd_cluster *c, const struct hspmd_solve_request *r)
{
	struct hspmd_plan *p = solve(q, c, r);
	hspmd_plan_destroy(p);
	return p != NULL;
}

/* The cluster with `count` additional nodes, each with as many devices of this type as the cluster's last node that begins with one; *like:
 * that node. Returns NULL if there is none or memory runs out. */
static struct hspmd_cluster *with_nodes(const struct inquiry *q, int type, int count, const struct hspmd_node **like)
{
	struct hspmd_error ignored;
	json_t *json = hspmd_cluster_to_json(q->c);
	struct hspmd_cluster *more = NULL;
	int devices = 0;
	*like = NULL;
	for (int n = 0; n < q->c->node_count; n++)
		if (q->c->nodes[n].device_count && q->c->devices[q->c->nodes[n].first_device].type == type)
			*like = &q->c->nodes[n];
	for (int d = 0; *like && d < (*like)->device_count; d++)
		devices += q->c->devices[(*like)->first_device + d].type == type;
	for (int i = 0; json && *like && i < count; i++) {
		char name[32];
		snprintf(name, sizeof name, "one-more-%d", i);
		json_array_append_new(json_object_get(json, "nodes"), json_pack("{ss,s[{ss,si}]}", "name", name, "devices", "type",
		                                                                q->c->types[type].name, "count", devices));
	}
	if (json && *like)
		more = hspmd_cluster_from_json(json, "a larger cluster", &ignored);
	json_decref(json);
	return more;
}

/* Find two devices without a link between them. Returns false if there are none among the nodes that are examined. */
static bool find_unlinked(const struct hspmd_cluster *c, int *a, int *b)
{
	int nodes = c->node_count < NODES_LOOKED_AT ? c->node_count : NODES_LOOKED_AT;
	for (int x = 0; x < nodes; x++)
		for (int y = x; y < nodes; y++) {
			*a = c->nodes[x].first_device;
			*b = x == y ? *a + c->nodes[x].device_count - 1 : c->nodes[y].first_device;
			if (c->nodes[x].device_count && c->nodes[y].device_count && *a != *b && !hspmd_cluster_find_link(c, *a, *b, 1, 1))
				return true;
		}
	return false;
}

/* Try with links for all pairs of that scope that have none, of a common network's speed. */
static bool links_would_do(struct inquiry *q)
{
	struct hspmd_error ignored;
	int a, b;
	if (!time_is_left(q) || !find_unlinked(q->c, &a, &b))
		return false;
	json_t *json = hspmd_cluster_to_json(q->c), *links = json_object_get(json, "links");
	const char *scope = q->c->devices[a].node == q->c->devices[b].node ? "node" : "cluster";
	json_array_append_new(links, json_pack("{ss,sf,sf}", "scope", scope, "alpha_s", 1e-5, "gbytes_per_s", 10.0));
	struct hspmd_cluster *linked = json ? hspmd_cluster_from_json(json, "the cluster with links", &ignored) : NULL;
	bool fine = linked && would_do(q, linked, &q->request);
	char one[256], other[256];
	if (fine)
		append_text(q, "; no link covers %s and %s: with one of scope \"%s\" for all that have none there is a plan",
		            hspmd_cluster_device_address(q->c, a, one, sizeof one),
		            hspmd_cluster_device_address(q->c, b, other, sizeof other), scope);
	hspmd_cluster_destroy(linked);
	json_decref(json);
	return fine;
}

static bool more_nodes_would_do(struct inquiry *q)
{
	struct hspmd_solve_request r = q->request;
	r.limits.max_nodes = r.limits.max_devices = 0;
	r.limits.max_price_per_hour = 0;
	for (int count = 1; count <= NODES_MAX; count *= 2)
		for (int t = 0; t < q->c->type_count && time_is_left(q); t++) {
			const struct hspmd_node *like;
			struct hspmd_cluster *more = with_nodes(q, t, count, &like);
			bool fine = more && would_do(q, more, &r);
			if (fine)
				append_text(q, "; %d node%s more like %s (%s) would do", count, count == 1 ? "" : "s", like->name,
				            q->c->types[t].name);
			hspmd_cluster_destroy(more);
			if (fine)
				return true;
		}
	return false;
}

static bool shorter_sequences_would_do(struct inquiry *q)
{
	struct hspmd_solve_request r = q->request;
	for (int shorter = r.seq_len / 2; !q->profile && shorter >= 64 && time_is_left(q); shorter /= 2) {
		r.seq_len = shorter;
		if (would_do(q, q->c, &r)) {
			append_text(q, "; with sequences of %d instead of %d there is a plan", shorter, q->request.seq_len);
			return true;
		}
	}
	return false;
}

static bool smaller_micro_batches_would_do(struct inquiry *q)
{
	struct hspmd_solve_request r = q->request;
	r.micro_batch = 0;
	struct hspmd_plan *p = q->request.micro_batch > 1 ? solve(q, q->c, &r) : NULL;
	if (p)
		append_text(q, "; with micro-batches of %d instead of %d there is a plan", p->micro_batch, q->request.micro_batch);
	hspmd_plan_destroy(p);
	return p != NULL;
}

/* Try with more of the hosts' memory, for the devices that may use some. */
static bool more_of_hosts_would_do(struct inquiry *q)
{
	struct hspmd_error ignored;
	json_t *json = hspmd_cluster_to_json(q->c);
	struct hspmd_cluster *copy = json ? hspmd_cluster_from_json(json, "the cluster with more of the hosts' memory", &ignored) : NULL;
	bool any = false, fine = false;
	for (int t = 0; copy && t < copy->type_count; t++)
		any = any || copy->types[t].host.memory_bytes;
	for (int times = 2; any && !fine && times <= HOST_TIMES_MAX && time_is_left(q); times *= 2) {
		for (int t = 0; t < copy->type_count; t++)
			copy->types[t].host.memory_bytes = (int64_t)fmin(times * (double)q->c->types[t].host.memory_bytes, 9e18);
		fine = would_do(q, copy, &q->request);
		if (fine)
			append_text(q, "; with %d times the host's memory for what devices offload there is a plan", times);
	}
	hspmd_cluster_destroy(copy);
	json_decref(json);
	return fine;
}

static bool has_limits(const struct hspmd_solve_limits *l)
{
	return hspmd_limits_are_set(l) || l->type_count > 0;
}

static bool no_limits_would_do(struct inquiry *q)
{
	struct hspmd_solve_request r = q->request;
	r.limits = (struct hspmd_solve_limits){ 0 };
	bool fine = has_limits(&q->request.limits) && would_do(q, q->c, &r);
	if (fine)
		append_text(q, "; without the limits on nodes, devices, types and price there is a plan");
	return fine;
}

static void append_what_would_do(struct inquiry *q)
{
	bool fine = smaller_micro_batches_would_do(q) || no_limits_would_do(q) || links_would_do(q) || more_of_hosts_would_do(q) ||
	            more_nodes_would_do(q) || shorter_sequences_would_do(q);
	if (!fine && time_is_left(q))
		append_text(q, "; neither smaller micro-batches nor more nodes like these would do");
	if (q->factor > 0 && (!fine || q->factor < FACTOR_NEAR))
		append_text(q, "; %sdevices with %.3g times the memory would do", fine ? "or " : "", ceil(q->factor * 100) / 100);
}

int hspmd_explain_shortage(const struct hspmd_cluster *cluster, const struct hspmd_model_facts *facts, const struct hspmd_profile *profile,
                           const struct hspmd_solve_request *request, double seconds, struct hspmd_error *err)
{
	char text[HSPMD_ERROR_MAX] = "";
	double start = now_s();
	struct inquiry q = { .c = cluster,
		             .facts = facts,
		             .profile = profile,
		             .request = *request,
		             .until = start + seconds / 2,
		             .text = text,
		             .size = sizeof text };
	q.request.current = NULL;
	append_text(&q, "no plan%s fits into the memory of the %d devices", has_limits(&request->limits) ? " within the limits" : "",
	            cluster->device_count);
	append_what_is_short(&q);
	q.until = start + seconds;
	append_what_would_do(&q);
	return hspmd_fail(err, "%s", text);
}
