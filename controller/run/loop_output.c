/* SPDX-License-Identifier: Apache-2.0 */
/* What the loop writes to the output folder, and whether the folder answers. */
#include <stdio.h>

#include "common/clock.h"
#include "common/log.h"
#include "controller/run/loop_internal.h"

#define STATUS_EVERY_S 10 /* greatest age of status.json while there are events */
#define LOOK_EVERY_MS 1000
#define PATIENCE_S 0.5 /* the next action waits so long for what was written: a controller that is killed then loses no line */
#define LATE_S 10.0    /* that the folder does not answer is told after */
#define FLUSH_S 20.0   /* for the folder at the loop's end; Slurm gives a job 30 s */
#define HURRY_S 1.0    /* ... if the job is ended at once */

void loop_save_status(struct loop *l, bool at_once)
{
	double now = hspmd_now();
	if (!at_once && now - l->status_at < STATUS_EVERY_S)
		return;
	l->status_at = now;
	json_t *s = hspmd_controller_status(l->controller, now, hspmd_unix_time());
	if (s)
		run_output_queue_save(l->output, "status.json", s);
	json_decref(s);
}

/* A file per generation. */
static void save_of(struct loop *l, const char *what, int64_t generation, const json_t *value)
{
	char name[64];
	snprintf(name, sizeof name, "%s-%lld.json", what, (long long)generation);
	run_output_queue_save(l->output, name, value);
}

static void save_plan(struct loop *l, int64_t generation, const json_t *plan)
{
	const struct run_config *c = l->o->config;
	json_t *folders = json_array();
	for (int i = 0; i < 2; i++)
		if (i ? c->shared : c->local)
			json_array_append_new(folders, json_string(i ? c->shared : c->local));
	json_t *run = json_pack("{s:s, s:I, s:s, s:o}", "run", l->o->output->run, "generation", (json_int_t)generation, "job", c->job_id,
	                        "checkpoints", folders);
	if (json_array_size(folders) && !l->checkpoints_told)
		hspmd_info("checkpoints are written below %s%s", c->shared ? c->shared : c->local, c->shared ? "" : " on each node");
	l->checkpoints_told = true;
	run_journal_memory_begin(l->o->journal, generation);
	save_of(l, "plan", generation, plan);
	if (run)
		run_output_queue_save(l->output, "run.json", run);
	json_decref(run);
}

static bool write_action(struct loop *l, const struct run_action *x)
{
	struct hspmd_error err;
	switch (x->kind) {
	case ACTION_METRICS_LINE:
		run_output_queue_line(l->output, x->value);
		return true;
	case ACTION_RECORD_EVENT:
		run_output_queue_event(l->output, x->value);
		return true;
	case ACTION_SAVE_PLAN:
		save_plan(l, x->id, x->value);
		return true;
	case ACTION_SAVE_DEVICES:
		save_of(l, "devices", x->id, x->value);
		return true;
	case ACTION_JOURNAL:
		if (run_journal_memory_save(l->o->journal, x->value, &err))
			hspmd_warn("%s", err.text);
		run_output_queue_save(l->output, "journal.json", x->value);
		return true;
	case ACTION_TRACE_TEXT:
		run_output_queue_trace(l->output, RUN_TRACE_TEXT, x->value);
		return true;
	case ACTION_TRACE_SPANS:
		run_output_queue_trace(l->output, RUN_TRACE_SPANS, x->value);
		return true;
	case ACTION_TRACE_END:
		run_output_queue_trace(l->output, RUN_TRACE_END, x->value);
		return true;
	default:
		return false;
	}
}

void loop_write_output(struct loop *l, const struct run_action *x)
{
	if (!write_action(l, x))
		return;
	run_output_queue_settle(l->output, PATIENCE_S);
	run_journal_memory_set_waiting(l->o->journal, run_output_queue_waits(l->output).entries);
}

/* ---- whether it answers */

static void tell(struct loop *l, const char *text)
{
	struct run_event e = { .kind = EVENT_OUTPUT, .text = text };
	l->on_event(l, &e);
}

static void on_timer(uv_timer_t *t)
{
	struct loop *l = t->data;
	struct run_output_waits w = run_output_queue_waits(l->output);
	char text[400], dropped[160] = "";
	run_journal_memory_set_waiting(l->o->journal, w.entries);
	if (w.seconds >= LATE_S && !l->output_late) {
		l->output_late = true;
		snprintf(text, sizeof text, "%.200s has not answered for %.0f s: the job goes on, and what it writes there waits",
		         l->o->output->folder, w.seconds);
		tell(l, text);
	} else if (w.seconds < LATE_S && l->output_late) {
		long lost = w.steps_dropped + w.log_dropped + w.trace_dropped;
		l->output_late = false;
		if (lost > l->output_dropped)
			snprintf(dropped, sizeof dropped,
			         ", but for what was too much to keep: in all %ld lines of steps, %ld of the log, and %ld parts of traces",
			         w.steps_dropped, w.log_dropped, w.trace_dropped);
		l->output_dropped = lost;
		snprintf(text, sizeof text, "%.200s answers again after %.0f s: what waited is being written%s", l->o->output->folder,
		         l->output_late_s, dropped);
		tell(l, text);
	}
	if (w.seconds > 0)
		l->output_late_s = w.seconds;
}

/* In the queue's thread. */
static void wake_loop(void *context)
{
	struct loop *l = context;
	uv_async_send(&l->output_failed);
}

static void on_failed(uv_async_t *a)
{
	struct loop *l = a->data;
	struct hspmd_error why;
	if (run_output_queue_has_failed(l->output, &why))
		l->stop(l, 1, why.text);
}

static void log_line(void *queue, const char *line, size_t size)
{
	run_output_queue_log(queue, line, size);
}

int loop_open_output(struct loop *l, struct hspmd_error *err)
{
	uv_async_init(&l->uv, &l->output_failed, on_failed);
	uv_timer_init(&l->uv, &l->output_timer);
	l->output_failed.data = l->output_timer.data = l;
	l->output = run_output_queue_open(l->o->output, RUN_OUTPUT_QUEUE_BYTES, wake_loop, l, err);
	if (!l->output)
		return -1;
	if (l->o->output->log >= 0)
		hspmd_log_tee_to(log_line, l->output);
	if (run_journal_memory_waiting(l->o->journal))
		hspmd_warn("%ld lines and files waited for %s when the last controller ended, and are lost: steps are missing in "
		           "metrics.jsonl, but none of the training",
		           run_journal_memory_waiting(l->o->journal), l->o->output->folder);
	run_journal_memory_set_waiting(l->o->journal, 0);
	uv_timer_start(&l->output_timer, on_timer, LOOK_EVERY_MS, LOOK_EVERY_MS);
	return 0;
}

void loop_end_output(struct loop *l)
{
	uv_close((uv_handle_t *)&l->output_timer, NULL);
	uv_unref((uv_handle_t *)&l->output_failed);
}

int loop_close_output(struct loop *l)
{
	struct hspmd_error err = { "" };
	hspmd_log_tee_to(NULL, NULL);
	int status = run_output_queue_close(l->output, l->signals_seen > 1 ? HURRY_S : FLUSH_S, &err);
	uv_close((uv_handle_t *)&l->output_failed, NULL);
	if (status) {
		hspmd_log_tee(-1); /* it would not answer now either */
		hspmd_error_log("%s", err.text);
	}
	return status;
}
