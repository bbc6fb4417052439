/* SPDX-License-Identifier: Apache-2.0 */
/* What the stand-in says. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/log.h"
#include "runtime/command/newest.h"
#include "runtime/command/standin_internal.h"

void standin_send(struct standin *s, json_t *message)
{
	struct hspmd_error err = { "out of memory" };
	if (!message || hspmd_stream_send(s->stream, message, &err)) {
		hspmd_error_log("%s", err.text);
		s->broken = true;
	}
	json_decref(message);
}

json_t *standin_newest(const struct standin *s)
{
	return json_integer(s->checkpoint ? hspmd_newest_save(s->checkpoint, NULL) : -1);
}

void standin_fault(struct standin *s, int64_t generation, const char *text, json_t *tail)
{
	standin_send(s, json_pack("{ss,sI,ss,so*,so}", "type", "fault", "generation", (json_int_t)generation, "text", text, "tail", tail,
	                          "newest", standin_newest(s)));
}

void standin_started(struct standin *s)
{
	standin_send(s, json_pack("{ss,sI,sI,s{si,si,si,si},s{si,si},so}", "type", "started", "generation", (json_int_t)s->generation,
	                          "step", (json_int_t)s->step, "bytes", "local", 0, "peers", 0, "disk", 0, "shared", 0, "seconds",
	                          "connect", 0, "move", 0, "newest", standin_newest(s)));
}

void standin_prepared(struct standin *s)
{
	standin_send(s, json_pack("{ss,sI,ss,si,si,so*}", "type", "prepared", "generation", (json_int_t)s->prepared, "address", s->address,
	                          "memory_bytes", 0, "seconds", 0, "needs_preconnect", s->elastic ? json_true() : NULL));
}

void standin_preconnected(struct standin *s, int64_t generation)
{
	standin_send(s, json_pack("{ss,sI}", "type", "preconnected", "generation", (json_int_t)generation));
}

/* With the command's exit status, if it has one that says that it has saved. A Python that is about to exit with it may still be ended by
 * the notice's signal: its ranks agree to end, and the last of them get the signal after that. */
static json_t *with_status(const struct standin *s, json_t *message)
{
	if (message && s->ended && s->status == STATUS_NOTICED)
		json_object_set_new(message, "by_notice", json_true());
	if (message && s->ended && (s->status == 0 || s->status == STATUS_MORE))
		json_object_set_new(message, "status", json_integer(s->status));
	return message;
}

void standin_settled(struct standin *s, int64_t generation)
{
	standin_send(s, json_pack("{ss,sI,sI,s[]}", "type", "settled", "generation", (json_int_t)generation, "step", (json_int_t)s->step,
	                          "losses"));
}

void standin_answer(struct standin *s)
{
	enum standin_answer answer = s->answer;
	s->answer = ANSWER_NONE;
	switch (answer) {
	case ANSWER_NONE:
		break;
	case ANSWER_EXIT:
		s->over = true;
		break;
	case ANSWER_FINISHED:
		standin_send(s, with_status(s, json_pack("{ss,sI,sI,sb,so}", "type", "finished", "generation", (json_int_t)s->generation,
		                                         "step", (json_int_t)s->step, "finished", 1, "newest", standin_newest(s))));
		break;
	case ANSWER_STOPPED:
		standin_send(s, with_status(s, json_pack("{ss,sI,sI,s[],sb,so}", "type", "stopped", "generation", (json_int_t)s->generation,
		                                         "step", (json_int_t)s->step, "losses", "finished", (int)s->finished, "newest",
		                                         standin_newest(s))));
		break;
	case ANSWER_ABORTED: /* what an elastic command held is gone with it */
		standin_send(s, json_pack("{ss,sI,sI,so,sn,sn,s[],s[],so}", "type", "aborted", "generation", (json_int_t)s->aborted, "step",
		                          (json_int_t)s->step, "holds",
		                          s->generation && !s->elastic_job ? json_integer(s->generation) : json_null(), "ready", "applied",
		                          "sums", "losses", "newest", standin_newest(s)));
		break;
	case ANSWER_SETTLED: /* it is behind all that are still there */
		s->step = -1;
		standin_settled(s, s->aborted);
		break;
	}
}

/* ---- told steps */

static json_t *number(const json_t *line, const char *key)
{
	json_t *v = json_object_get(line, key);
	return json_is_number(v) && isfinite(json_number_value(v)) ? json_incref(v) : NULL;
}

json_t *standin_parse(const char *line)
{
	static const char *const names[] = { "-Infinity", "Infinity", "NaN" };
	char *copy = strdup(line);
	for (size_t i = 0; copy && i < sizeof names / sizeof *names; i++)
		for (char *at; (at = strstr(copy, names[i]));) {
			memset(at, ' ', strlen(names[i]));
			memset(at, '"', 2);
		}
	json_t *v = copy ? json_loads(copy, 0, NULL) : NULL;
	free(copy);
	return v;
}

void standin_step(struct standin *s, json_t *told)
{
	json_t *step = json_object_get(told, "step");
	if (s->place.rank != 0 || s->state == STANDIN_IDLE)
		return;
	int64_t n = json_integer_value(step), steps = n > s->told_step && s->told_step >= 0 ? n - s->told_step : 1;
	bool again = json_is_true(json_object_get(told, "again"));
	double now = hspmd_now(), step_s = again ? 0 : (now - s->told_at) / (double)steps;
	json_t *loss = number(told, "loss"), *tokens = number(told, "tokens");
	json_t *message = json_pack("{ss,sI,sI,so,sI,sf,so*,so*,so*,so*}", "type", "step", "generation", (json_int_t)s->generation, "step",
	                            (json_int_t)n, "loss", loss ? loss : json_null(), "tokens", (json_int_t)json_number_value(tokens),
	                            "step_s", step_s, "lr", number(told, "lr"), "grad_norm", number(told, "grad_norm"), "valid_loss",
	                            number(told, "valid_loss"), "again", again ? json_true() : NULL);
	if (!again) {
		s->told_step = n;
		s->told_at = now;
	}
	json_decref(tokens);
	standin_send(s, message);
}
