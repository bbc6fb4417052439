/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/ctld/quote.h"

#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/json.h"
#include "common/order.h"

int ctld_quote_read(struct ctld_quote_request *request, json_t *message, struct hspmd_error *err)
{
	struct hspmd_json_doc doc;
	if (hspmd_json_wrap(&doc, "quote", message, err) < 0)
		return -1;
	struct hspmd_json root = hspmd_json_root(&doc);
	(void)hspmd_json_string(&root, "type");
	*request = (struct ctld_quote_request){ .job = (uint32_t)hspmd_json_int_or(&root, "job", 1, UINT32_MAX, 0),
		                                .nodes = (int)hspmd_json_int_or(&root, "nodes", 0, INT_MAX, 0),
		                                .partition = hspmd_json_string_or(&root, "partition", NULL),
		                                .features = hspmd_json_string_or(&root, "features", NULL),
		                                .gres = hspmd_json_string_or(&root, "gres", NULL) };
	struct hspmd_json names = hspmd_json_array_or_none(&root, "names", 0, 1 << 20);
	for (size_t i = 0; i < hspmd_json_length(&names); i++) {
		struct hspmd_json at = hspmd_json_at(&names, i);
		(void)hspmd_json_string_value(&at);
	}
	request->names = json_object_get(message, "names");
	hspmd_json_check_keys(&root);
	int rc = hspmd_json_failed(&root) ? -1 : 0;
	hspmd_json_close(&doc);
	return rc;
}

static bool is_peer(const struct ctld_peer *peers, int count, uint32_t job)
{
	for (int i = 0; i < count; i++) {
		bool member = peers[i].job == job;
		for (int m = 0; m < peers[i].member_count && !member; m++)
			member = peers[i].members[m] == job;
		if (member)
			return true;
	}
	return false;
}

static int jobs_before(const struct hspmd_slurm_view *v, const struct ctld_peer *peers, int count, uid_t uid, uint32_t job)
{
	int n = 0;
	for (int i = 0; i < count; i++) {
		const struct hspmd_slurm_view_job *j = hspmd_slurm_view_find_job(v, peers[i].job);
		n += peers[i].uid == uid && peers[i].job != job && (!job || peers[i].job < job) &&
		     (!j || j->state != HSPMD_SLURM_VIEW_COMPLETING);
	}
	for (int i = 0; v && i < v->job_count; i++) {
		const struct hspmd_slurm_view_job *j = &v->jobs[i];
		bool counts = !job || (j->state == HSPMD_SLURM_VIEW_RUNNING && j->id < job);
		n += j->uid == uid && counts && j->elastic && j->state != HSPMD_SLURM_VIEW_COMPLETING && j->id != job &&
		     !is_peer(peers, count, j->id);
	}
	return n;
}

/* Adds up the prices of the cheapest request->nodes nodes that the job could get; of all, if there are fewer. */
static int cheapest(const struct hspmd_slurm_view *v, const struct ctld_quote_request *request, double *price, struct hspmd_error *err)
{
	double *prices = hspmd_calloc((size_t)v->node_count, sizeof *prices);
	struct hspmd_slurm_view_job job = { .partition = (char *)request->partition,
		                            .features = (char *)(request->features ? request->features : ""),
		                            .tres_per_node = (char *)(request->gres ? request->gres : "") };
	int n = 0;
	if (!prices)
		return hspmd_fail_memory(err, "computing a quote");
	for (int i = 0; i < v->node_count; i++)
		if (request->partition ? ctld_fits(v, &job, i) : ctld_request_fits(&job, &v->nodes[i]))
			prices[n++] = ctld_price(v->nodes[i].features);
	qsort(prices, (size_t)n, sizeof *prices, hspmd_double_order);
	for (int i = 0; i < n && i < request->nodes; i++)
		*price += prices[i];
	free(prices);
	return 0;
}

int ctld_quote(struct ctld_quote *q, const struct hspmd_slurm_view *v, const struct ctld_peer *peers, int peer_count, uid_t uid,
               const struct ctld_quote_request *request, struct hspmd_error *err)
{
	const json_t *name;
	size_t i;
	*q = (struct ctld_quote){ .jobs = jobs_before(v, peers, peer_count, uid, request->job) };
	if (!v)
		return 0;
	if (!request->names)
		return cheapest(v, request, &q->price_per_hour, err);
	json_array_foreach(request->names, i, name) {
		int node = hspmd_slurm_view_find_node(v, json_string_value(name));
		q->price_per_hour += node >= 0 ? ctld_price(v->nodes[node].features) : 0;
	}
	return 0;
}
