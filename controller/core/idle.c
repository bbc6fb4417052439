/* SPDX-License-Identifier: Apache-2.0 */
/* Warns of what the job holds on a node and cannot use. Slurm says what the job holds (EVENT_ALLOCATION), the agent what its step was
 * granted and which devices were found. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/format/device_traits.h"
#include "controller/core/controller_internal.h"

#define GPUS_MAX 256

/* Adds the numbers of a list such as "0-1,4" to a set. Returns how many. */
static int read_list(const char *list, bool set[GPUS_MAX])
{
	int count = 0;
	while (*list) {
		char *end;
		long first = strtol(list, &end, 10), last = *end == '-' ? strtol(end + 1, &end, 10) : first;
		for (long i = first; end > list && i >= 0 && i <= last && i < GPUS_MAX; i++) {
			count += !set[i];
			set[i] = true;
		}
		list = end + strcspn(end, ",");
		list += *list == ',';
	}
	return count;
}

static int add(char *text, size_t size, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

static int add(char *text, size_t size, const char *fmt, ...)
{
	size_t used = strlen(text);
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text + used, size - used, fmt, ap);
	va_end(ap);
	return 1;
}

/* Writes those of `held` that are not in `granted` as "GPU 1", "GPUs 1-3, 7". Returns how many. */
static int name_missing(const bool held[GPUS_MAX], const bool granted[GPUS_MAX], char *text, size_t size)
{
	char list[200] = "";
	int count = 0;
	for (int i = 0, last; i < GPUS_MAX; i = last + 1) {
		last = i;
		if (!held[i] || granted[i])
			continue;
		while (last + 1 < GPUS_MAX && held[last + 1] && !granted[last + 1])
			last++;
		add(list, sizeof list, "%s%d", *list ? ", " : "", i);
		if (last > i)
			add(list, sizeof list, "-%d", last);
		count += last - i + 1;
	}
	snprintf(text, size, count == 1 ? "GPU %s" : "GPUs %s", list);
	return count;
}

static int describe_gpus(const char *held_list, const char *granted_list, int found, char *text, size_t size)
{
	static const bool none[GPUS_MAX];
	bool held[GPUS_MAX] = { false }, granted[GPUS_MAX] = { false };
	char names[240];
	int count = read_list(held_list, held), of_step = granted_list ? read_list(granted_list, granted) : 0;
	if (granted_list && name_missing(held, granted, names, sizeof names))
		return add(text, size, "%s: Slurm gave %s to the agent's step (an option of srun, or a default of the site's, for tasks)",
		           names, of_step ? "only others" : "none");
	if (found >= count)
		return 0;
	name_missing(held, none, names, sizeof names);
	if (!found)
		return add(text, size, "%s: hspmd finds none of them there (it needs the module hspmd-cuda, and NVIDIA's driver)", names);
	return add(text, size, "%d of %s: hspmd finds only %d there", count - found, names, found);
}

bool idle_describe(const json_t *held, const json_t *granted, int gpus_found, char *text, size_t size)
{
	const char *gpus = json_string_value(json_object_get(held, "gpus")), *given = json_string_value(json_object_get(granted, "gpus"));
	json_int_t cpus = json_integer_value(json_object_get(held, "cpus")), of_step = json_integer_value(json_object_get(granted, "cpus"));
	*text = '\0';
	if (gpus && *gpus && granted)
		describe_gpus(gpus, given, gpus_found, text, size);
	if (cpus > of_step && of_step > 0)
		add(text, size, "%s%lld of %lld CPUs: Slurm gave %lld to the agent's step", *text ? "; " : "", (long long)(cpus - of_step),
		    (long long)cpus, (long long)of_step);
	return *text;
}

void idle_check(struct hspmd_controller *m, struct node *n)
{
	char text[700];
	int gpus = 0, cores = hspmd_device_kind_of(HSPMD_ORIGIN_CORES);
	if (n->agent != PROC_UP || n->idle_checked || !n->holds || !n->granted)
		return;
	n->idle_checked = true;
	for (int i = 0; i < n->part->device_count; i++)
		gpus += (int)n->part->types[n->part->devices[i].type].kind != cores;
	if (idle_describe(n->holds, n->granted, gpus, text, sizeof text))
		note_warning(m, "idle", "the job holds, but cannot use on node %s, %s", n->name, text);
}
