/* SPDX-License-Identifier: Apache-2.0 */
/* Messages to the controller that several of the worker's files send. */
#include <math.h>

#include "common/log.h"
#include "runtime/worker/inbox.h"
#include "runtime/worker/worker_internal.h"

json_t *worker_number_or_null(double x)
{
	return isfinite(x) ? json_real(x) : json_null();
}

static json_t *recent_losses(const struct worker *w)
{
	json_t *list = json_array();
	for (int64_t s = w->step > RECENT ? w->step - RECENT : 0; list && s < w->step; s++)
		if (w->recent_step[s % RECENT] == s)
			json_array_append_new(list, json_pack("[Io]", (json_int_t)s, worker_number_or_null(w->recent_loss[s % RECENT])));
	return list;
}

int worker_fault(struct worker *w, int generation, const struct hspmd_error *err)
{
	hspmd_warn("%s", err->text);
	json_t *unreadable = w->unreadable;
	w->unreadable = NULL;
	return hspmd_inbox_send(w->inbox, json_pack("{ss,si,ss,so*}", "type", "fault", "generation", generation, "text", err->text,
	                                            "unreadable", unreadable));
}

/* A message with the state's step and the latest losses. */
json_t *worker_state_report(const struct worker *w, const char *type, int generation)
{
	return json_pack("{ss,si,sI,so}", "type", type, "generation", generation, "step", (json_int_t)w->step, "losses", recent_losses(w));
}

int worker_report_preconnected(struct worker *w)
{
	struct hspmd_error err = { "" };
	int done = w->preconnecting ? atomic_load(&w->exchanged) : 0;
	if (done < 0)
		err = w->exchange_error;
	if (done > 0 && !w->connecting && hspmd_generation_preconnect(w->next, &err))
		done = -1;
	w->connecting = done > 0;
	if (done > 0)
		done = hspmd_generation_preconnected(w->next, &err);
	if (!done)
		return 0;
	w->preconnecting = false;
	return done < 0 ? worker_fault(w, w->next->number, &err)
	                : hspmd_inbox_send(w->inbox, json_pack("{ss,si}", "type", "preconnected", "generation", w->next->number));
}

int worker_report_stopped(struct worker *w, int generation)
{
	w->stopped = generation;
	return hspmd_inbox_send(w->inbox, worker_state_report(w, "stopped", generation));
}
