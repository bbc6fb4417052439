/* SPDX-License-Identifier: Apache-2.0 */
/* The actions that the controller asks the loop to carry out. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "controller/core/controller_internal.h"

json_t *check_alloc(struct hspmd_controller *m, json_t *value)
{
	if (!value)
		m->failed = true;
	return value;
}

static struct run_action *add(struct hspmd_controller *m, enum run_action_kind kind)
{
	struct run_actions *a = m->actions;
	if (hspmd_array_grow(&a->list, &a->capacity, a->count, sizeof *a->list)) {
		m->failed = true;
		return NULL;
	}
	struct run_action *one = &a->list[a->count++];
	memset(one, 0, sizeof *one);
	one->kind = kind;
	return one;
}

void emit(struct hspmd_controller *m, enum run_action_kind kind, const char *node, json_t *value, int64_t id)
{
	struct run_action *a = add(m, kind);
	if (!a) {
		json_decref(value);
		return;
	}
	a->value = value;
	a->id = id;
	if (node && !(a->node = strdup(node)))
		m->failed = true;
}

void emit_words(struct hspmd_controller *m, enum run_action_kind kind, const char *node, const char *text)
{
	struct run_action *a = add(m, kind);
	if (a && (!(a->node = strdup(node)) || !(a->text = strdup(text))))
		m->failed = true;
}

void log_msg(struct hspmd_controller *m, enum hspmd_log_level level, const char *fmt, ...)
{
	char text[1500];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	struct run_action *a = add(m, ACTION_LOG);
	if (!a)
		return;
	a->id = level;
	if (!(a->text = strdup(text)))
		m->failed = true;
}

void send_node(struct hspmd_controller *m, const struct node *n, json_t *message)
{
	if (check_alloc(m, message))
		emit(m, ACTION_SEND, n->name, message, 0);
}

void send_workers_own(struct hspmd_controller *m, struct worker *const *to, int count, json_t *message, const char *key,
                      const json_t *by_node)
{
	if (!check_alloc(m, message))
		return;
	for (int i = 0; i < count; i++) {
		struct node *n = to[i]->node;
		if (to[i]->process != PROC_UP || (!n->to && !check_alloc(m, n->to = json_array())))
			continue;
		if (json_array_append_new(n->to, json_string(to[i]->address)))
			m->failed = true;
	}
	for (int i = 0; i < count; i++) {
		struct node *n = to[i]->node;
		json_t *list = n->to, *own = key ? json_object_get(by_node, n->name) : NULL;
		if (!list)
			continue;
		n->to = NULL;
		json_t *copy = check_alloc(m, json_copy(message));
		if (copy && (json_object_set(copy, "to", list) || (own && json_object_set(copy, key, own))))
			m->failed = true;
		json_decref(list);
		if (!copy)
			continue;
		size_t before = m->actions->count;
		emit(m, ACTION_SEND, n->name, copy, 0);
		if (m->actions->count > before)
			m->actions->list[before].body = json_incref(message);
	}
	json_decref(message);
}

void send_workers(struct hspmd_controller *m, struct worker *const *to, int count, json_t *message)
{
	send_workers_own(m, to, count, message, NULL, NULL);
}

void reply(struct hspmd_controller *m, int64_t id, bool ok, const char *fmt, ...)
{
	char text[1200];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	json_t *value = check_alloc(m, json_pack("{s:s, s:b, s:s}", "type", "reply", "ok", ok, "text", text));
	struct run_action *a = value ? add(m, ACTION_REPLY) : NULL;
	if (!a) {
		json_decref(value);
		return;
	}
	a->id = id;
	a->value = value;
	a->last = true;
}

static void note(struct hspmd_controller *m, enum hspmd_log_level level, const char *what, const char *fmt, va_list ap)
{
	char text[1200];
	vsnprintf(text, sizeof text, fmt, ap);
	json_t *e = check_alloc(m, json_pack("{s:I, s:f, s:s, s:s, s:I}", "number", (json_int_t)++m->event_number, "time", m->wall, "event",
	                                     what, "text", text, "generation", (json_int_t)m->generation));
	if (e && json_array_append(m->events, e))
		m->failed = true;
	if (e)
		emit(m, ACTION_RECORD_EVENT, NULL, e, 0);
	if (json_array_size(m->events) > RUN_EVENTS_MAX)
		json_array_remove(m->events, 0);
	log_msg(m, level, "%s", text);
}

void note_event(struct hspmd_controller *m, const char *what, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	note(m, HSPMD_LOG_INFO, what, fmt, ap);
	va_end(ap);
}

void note_warning(struct hspmd_controller *m, const char *what, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	note(m, HSPMD_LOG_WARNING, what, fmt, ap);
	va_end(ap);
}

void run_actions_clear(struct run_actions *a)
{
	for (size_t i = 0; i < a->count; i++) {
		free(a->list[i].node);
		free(a->list[i].text);
		json_decref(a->list[i].value);
		json_decref(a->list[i].body);
	}
	free(a->list);
	memset(a, 0, sizeof *a);
}
