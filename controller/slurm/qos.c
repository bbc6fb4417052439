/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/slurm/qos.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/alloc.h"
#include "common/name_list.h"
#include "controller/slurm/command.h"

#define ASK_S 15.0
#define TEXT_MAX (1 << 20)
#define CHAIN_MAX 32 /* QOS that preempt each other in a circle end there */

void hspmd_slurm_qos_clear(struct hspmd_slurm_qos_table *t)
{
	for (int i = 0; i < t->count; i++) {
		free(t->qos[i].name);
		free(t->qos[i].preempts);
	}
	free(t->qos);
	*t = (struct hspmd_slurm_qos_table){ 0, NULL };
}

static bool preempts(const struct hspmd_slurm_qos *q, const char *name)
{
	return hspmd_name_list_has(q->preempts, name, strlen(name));
}

const struct hspmd_slurm_qos *hspmd_slurm_qos_find(const struct hspmd_slurm_qos_table *t, const char *name)
{
	for (int i = 0; i < t->count; i++)
		if (!strcmp(t->qos[i].name, name))
			return &t->qos[i];
	return NULL;
}

bool hspmd_slurm_qos_preempts(const struct hspmd_slurm_qos_table *t, const char *name, const char *other)
{
	const struct hspmd_slurm_qos *q = hspmd_slurm_qos_find(t, name), *o = hspmd_slurm_qos_find(t, other);
	return q && o && o->preemptable && preempts(q, other);
}

static int level_of(const struct hspmd_slurm_qos_table *t, const struct hspmd_slurm_qos *q, int depth)
{
	int most = 0;
	for (int i = 0; i < t->count && depth < CHAIN_MAX; i++)
		if (&t->qos[i] != q && preempts(q, t->qos[i].name)) {
			int below = 1 + level_of(t, &t->qos[i], depth + 1);
			most = below > most ? below : most;
		}
	return most;
}

static int add(struct hspmd_slurm_qos_table *t, size_t *capacity, const char *name, const char *preempts, bool preemptable)
{
	if (hspmd_array_grow(&t->qos, capacity, (size_t)t->count, sizeof *t->qos))
		return -1;
	struct hspmd_slurm_qos *q = &t->qos[t->count++];
	*q = (struct hspmd_slurm_qos){ .name = strdup(name), .preempts = strdup(preempts), .preemptable = preemptable };
	return q->name && q->preempts ? 0 : -1;
}

int hspmd_slurm_qos_parse(struct hspmd_slurm_qos_table *t, char *text, struct hspmd_error *err)
{
	size_t capacity = 0;
	*t = (struct hspmd_slurm_qos_table){ 0, NULL };
	for (char *line = text, *next; line && *line; line = next) {
		if ((next = strchr(line, '\n')))
			*next++ = '\0';
		char *preempts = strchr(line, '|'), *mode = preempts ? strchr(preempts + 1, '|') : NULL;
		if (!mode)
			continue; /* a warning between the lines */
		*preempts++ = *mode++ = '\0';
		if (add(t, &capacity, line, preempts, strncasecmp(mode, "off", 3) != 0)) {
			hspmd_slurm_qos_clear(t);
			return hspmd_fail_memory(err, "reading QOS");
		}
	}
	for (int i = 0; i < t->count; i++)
		t->qos[i].level = level_of(t, &t->qos[i], 0);
	return 0;
}

int hspmd_slurm_qos_read(struct hspmd_slurm_qos_table *t, struct hspmd_error *err)
{
	static const char *const words[] = { "sacctmgr", "--noheader", "--parsable2", "show", "qos", "format=Name,Preempt,PreemptMode" };
	struct hspmd_slurm_argv w = { 0 };
	char *text = malloc(TEXT_MAX);
	*t = (struct hspmd_slurm_qos_table){ 0, NULL };
	for (size_t i = 0; i < sizeof words / sizeof *words; i++)
		hspmd_slurm_argv_add(&w, "%s", words[i]);
	int rc = text ? hspmd_slurm_run_command(&w, ASK_S, text, TEXT_MAX, err) : hspmd_fail_memory(err, "reading QOS");
	if (rc > 0)
		rc = hspmd_fail(err, "reading QOS: %s", hspmd_slurm_error_line(text));
	if (!rc)
		rc = hspmd_slurm_qos_parse(t, text, err);
	hspmd_slurm_argv_clear(&w);
	free(text);
	return rc;
}

int hspmd_slurm_qos_copy(struct hspmd_slurm_qos_table *to, const struct hspmd_slurm_qos_table *from)
{
	size_t capacity = 0;
	*to = (struct hspmd_slurm_qos_table){ 0, NULL };
	for (int i = 0; i < from->count; i++) {
		if (add(to, &capacity, from->qos[i].name, from->qos[i].preempts, from->qos[i].preemptable)) {
			hspmd_slurm_qos_clear(to);
			return -1;
		}
		to->qos[i].level = from->qos[i].level;
	}
	return 0;
}
