/* SPDX-License-Identifier: Apache-2.0 */
/* The list of requests that wait for a reply. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/alloc.h"
#include "controller/core/controller_internal.h"

struct request *request_add(struct hspmd_controller *m, const struct run_event *e, int kind)
{
	if (hspmd_array_grow(&m->request, &m->request_capacity, m->requests, sizeof *m->request)) {
		m->failed = true;
		return NULL;
	}
	struct request *r = &m->request[m->requests++];
	memset(r, 0, sizeof *r);
	r->id = e->id;
	r->kind = kind;
	double limit = json_number_value(json_object_get(e->value, "timeout_s"));
	r->deadline = m->now + (limit > 0 ? limit : 600);
	return r;
}

void request_drop(struct hspmd_controller *m, struct request *r)
{
	*r = m->request[--m->requests];
}

void request_answer(struct hspmd_controller *m, const struct request *r, bool ok, const char *text)
{
	if (!r->gone)
		reply(m, r->id, ok, "%s", text);
}

void requests_checkpoint_done(struct hspmd_controller *m, int64_t number, int64_t step, const char *why_not)
{
	for (size_t i = m->requests; i-- > 0;) {
		struct request *r = &m->request[i];
		if (r->kind != REQUEST_CHECKPOINT || r->number != number)
			continue;
		char text[200];
		snprintf(text, sizeof text, "checkpoint of step %lld is complete%s", (long long)step,
		         r->own_only ? " on the nodes' own disks; the shared folder is still busy with an earlier one" : "");
		request_answer(m, r, !why_not, why_not ? why_not : text);
		request_drop(m, r);
	}
}

void requests_trace_done(struct hspmd_controller *m, bool ok, const char *text)
{
	for (size_t i = m->requests; i-- > 0;)
		if (m->request[i].kind == REQUEST_TRACE) {
			request_answer(m, &m->request[i], ok, text);
			request_drop(m, &m->request[i]);
		}
}

bool request_grown(const struct hspmd_controller *m, const struct request *r, char *text, size_t size)
{
	int held = nodes_held(m), out = nodes_quarantined(m);
	if (r->kind != REQUEST_GROW || !r->resized || held < r->target || nodes_usable(m) + out < r->target || m->change.open)
		return false;
	int n = snprintf(text, size, "the job has %d nodes, generation %lld", held, (long long)m->generation);
	if (out && n > 0 && (size_t)n < size)
		snprintf(text + n, size - (size_t)n, "; %d of them %s left out for a while, because workers failed there", out,
		         out == 1 ? "is" : "are");
	return true;
}

void requests_end(struct hspmd_controller *m)
{
	while (m->requests) {
		struct request *r = &m->request[0];
		char text[sizeof m->exit_text + 40];
		bool done = r->kind == REQUEST_CHECKPOINT && m->steps_reported > 0 && m->checkpoint_step >= m->steps_reported;
		if (done)
			snprintf(text, sizeof text, "checkpoint of step %lld is complete", (long long)m->checkpoint_step);
		else if (!(done = request_grown(m, r, text, sizeof text))) /* a job may end in the step after its growth */
			snprintf(text, sizeof text, "the job is ending: %s", m->exit_text);
		request_answer(m, r, done, text);
		request_drop(m, r);
	}
}

double requests_deadline(const struct hspmd_controller *m)
{
	double first = INFINITY;
	for (size_t i = 0; i < m->requests; i++)
		first = fmin(first, m->request[i].deadline);
	return first;
}

void on_disconnected(struct hspmd_controller *m, const struct run_event *e)
{
	for (size_t i = 0; i < m->requests; i++)
		if (m->request[i].id == e->id)
			m->request[i].gone = true;
}
