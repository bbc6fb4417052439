/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/command/environment.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"

/* NULL-terminated. */
struct environment {
	char **list;
	size_t count;
	bool failed;
};

/* Their ranks and sizes are those of the agents' step. A name that ends in '*' stands for all that begin so. */
static const char *const misleading[] = { "SLURM_PROCID",         "SLURM_LOCALID",   "SLURM_NODEID",     "SLURM_NTASKS*", "SLURM_NPROCS",
	                                  "SLURM_STEP_*",         "SLURM_STEPID",    "SLURM_TASK_PID",   "SLURM_GTIDS",   "SLURM_STEPMGR",
	                                  "SLURM_TASKS_PER_NODE", "PMI_*",           "PMIX_*",           "OMPI_*",        "PMI2_*",
	                                  "MPI_LOCALRANKID",      "MPI_LOCALNRANKS", "MV2_COMM_WORLD_*", "TORCHELASTIC_*" };

static void drop(struct environment *e, size_t i)
{
	free(e->list[i]);
	memmove(e->list + i, e->list + i + 1, (e->count - i) * sizeof *e->list);
	e->count--;
}

static bool has_name(const char *entry, const char *name)
{
	size_t n = strlen(name);
	return !strncmp(entry, name, n) && entry[n] == '=';
}

static void unset(struct environment *e, const char *name)
{
	size_t n = strlen(name);
	for (size_t i = e->count; i-- > 0;)
		if (name[n - 1] == '*' ? !strncmp(e->list[i], name, n - 1) : has_name(e->list[i], name))
			drop(e, i);
}

static const char *get(const struct environment *e, const char *name)
{
	for (size_t i = 0; i < e->count; i++)
		if (has_name(e->list[i], name))
			return e->list[i] + strlen(name) + 1;
	return NULL;
}

static void __attribute__((format(printf, 3, 4))) set(struct environment *e, const char *name, const char *format, ...)
{
	va_list ap;
	char *value = NULL;
	va_start(ap, format);
	int n = vasprintf(&value, format, ap);
	va_end(ap);
	char *entry = n < 0 ? NULL : hspmd_asprintf("%s=%s", name, value);
	char **more = entry ? realloc(e->list, (e->count + 2) * sizeof *more) : NULL;
	if (n >= 0)
		free(value);
	if (!more) {
		free(entry);
		e->failed = true;
		return;
	}
	e->list = more;
	unset(e, name);
	e->list[e->count++] = entry;
	e->list[e->count] = NULL;
}

/* Appends the item of this number of a list with commas; the number itself if there is no such list. Returns the new text; frees `text`. */
static char *append_item(char *text, const char *list, int number)
{
	for (int i = 0; list && i < number; i++) {
		list = strchr(list, ',');
		list = list ? list + 1 : NULL;
	}
	char *longer = list ? hspmd_asprintf("%s%s%.*s", text, *text ? "," : "", (int)strcspn(list, ","), list)
	                    : hspmd_asprintf("%s%s%d", text, *text ? "," : "", number);
	free(text);
	return longer;
}

/* Trainers choose the GPU with the number LOCAL_RANK among those that they see. */
static void set_gpus(struct environment *e, const struct hspmd_placement *p)
{
	const char *now = get(e, "CUDA_VISIBLE_DEVICES");
	char *list = strdup("");
	for (int i = 0; list && i < p->local_world; i++)
		list = append_item(list, now, p->local_devices[i]);
	if (list)
		set(e, "CUDA_VISIBLE_DEVICES", "%s", list);
	else
		e->failed = true;
	free(list);
}

static void set_ranks(struct environment *e, const struct hspmd_placement *p)
{
	set(e, "RANK", "%d", p->rank);
	set(e, "WORLD_SIZE", "%d", p->world);
	set(e, "LOCAL_RANK", "%d", p->local_rank);
	set(e, "LOCAL_WORLD_SIZE", "%d", p->local_world);
	set(e, "GROUP_RANK", "%d", p->node_rank);
	set(e, "GROUP_WORLD_SIZE", "%d", p->nodes);
	set(e, "NODE_RANK", "%d", p->node_rank);
	set(e, "NNODES", "%d", p->nodes);
	set(e, "ROLE_NAME", "default");
	set(e, "ROLE_RANK", "%d", p->rank);
	set(e, "ROLE_WORLD_SIZE", "%d", p->world);
	set(e, "JAX_NUM_PROCESSES", "%d", p->world);
	set(e, "JAX_PROCESS_ID", "%d", p->rank);
}

static void set_rendezvous(struct environment *e, const struct hspmd_environment_input *in)
{
	bool v6 = strchr(in->master_host, ':') != NULL;
	set(e, "MASTER_ADDR", "%s", in->master_host);
	set(e, "MASTER_PORT", "%d", in->master_port);
	set(e, "JAX_COORDINATOR_ADDRESS", "%s%s%s:%d", v6 ? "[" : "", in->master_host, v6 ? "]" : "", in->master_port);
	set(e, "TORCHELASTIC_RUN_ID", "%s", in->id);
	set(e, "TORCHELASTIC_RESTART_COUNT", "%" PRId64, in->restarts);
	set(e, "TORCHELASTIC_MAX_RESTARTS", "%d", 1 << 30);
	set(e, "TORCHELASTIC_USE_AGENT_STORE", "False"); /* rank 0 makes the store */
}

char **hspmd_environment_make(char *const *from, const struct hspmd_environment_input *in)
{
	struct environment e = { 0 };
	size_t n = 0;
	while (from[n])
		n++;
	e.list = hspmd_calloc(n + 1, sizeof *e.list);
	if (!e.list)
		return NULL;
	for (size_t i = 0; i < n && !e.failed; i++) {
		e.list[i] = strdup(from[i]);
		e.failed = !e.list[i];
		e.count += !e.failed;
	}
	for (size_t i = 0; !e.failed && i < sizeof misleading / sizeof *misleading; i++)
		unset(&e, misleading[i]);
	set_ranks(&e, in->place);
	set_rendezvous(&e, in);
	set(&e, "HSPMD_GENERATION", "%" PRId64, in->generation);
	set(&e, "HSPMD_FD", "%d", in->steps_fd);
	unset(&e, "HSPMD_CHECKPOINT");
	if (in->checkpoint)
		set(&e, "HSPMD_CHECKPOINT", "%s", in->checkpoint);
	if (in->threads > 0 && !get(&e, "OMP_NUM_THREADS"))
		set(&e, "OMP_NUM_THREADS", "%d", in->threads);
	if (in->gpus)
		set_gpus(&e, in->place);
	if (!e.failed)
		return e.list;
	hspmd_environment_destroy(e.list);
	return NULL;
}

void hspmd_environment_destroy(char **list)
{
	for (char **at = list; at && *at; at++)
		free(*at);
	free(list);
}
