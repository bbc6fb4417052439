/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/slurm/accounts.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "controller/slurm/command.h"

#define ASK_S 15.0
#define TEXT_MAX (8 << 20)
#define COLUMNS_MAX 8

const char *const hspmd_slurm_tres_limit_names[] = { "GrpTRES", "MaxTRESPerUser", "MaxTRESPerAccount" };
const char *const hspmd_slurm_job_limit_names[] = { "GrpJobs", "MaxJobsPerUser", "MaxJobsPerAccount" };

void hspmd_slurm_accounts_clear(struct hspmd_slurm_accounts *a)
{
	for (int i = 0; i < a->limit_count; i++) {
		struct hspmd_slurm_limits *l = &a->limits[i];
		free(l->qos);
		free(l->account);
		free(l->user);
		free(l->partition);
		free(l->parent);
		for (int t = 0; t < HSPMD_SLURM_TRES_LIMITS; t++)
			free(l->tres[t]);
	}
	for (int i = 0; i < a->share_count; i++) {
		free(a->shares[i].account);
		free(a->shares[i].user);
	}
	free(a->limits);
	free(a->shares);
	*a = (struct hspmd_slurm_accounts){ 0 };
}

/* ---- lines of columns */

/* Cuts the next line, which has exactly `count` columns, out of *text. Returns false at the end. */
static bool next_line(char **text, int count, char **column)
{
	while (*text && **text) {
		char *line = *text, *end = strchr(line, '\n');
		int n = 0;
		*text = end ? end + 1 : NULL;
		if (end)
			*end = '\0';
		for (char *at = line; at && n <= count; n++) {
			char *bar = strchr(at, '|');
			if (n < count)
				column[n] = at;
			if (bar)
				*bar++ = '\0';
			at = bar;
		}
		if (n == count)
			return true;
	}
	return false;
}

static int number_of(const char *text)
{
	char *end;
	long value = strtol(text, &end, 10);
	return end > text && !*end && value >= 0 && value < INT32_MAX ? (int)value : -1;
}

static struct hspmd_slurm_limits *add_limits(struct hspmd_slurm_accounts *a)
{
	if (hspmd_array_grow(&a->limits, &a->limit_capacity, (size_t)a->limit_count, sizeof *a->limits))
		return NULL;
	struct hspmd_slurm_limits *l = &a->limits[a->limit_count++];
	*l = (struct hspmd_slurm_limits){ .jobs = { -1, -1, -1 } };
	return l;
}

static bool fill(struct hspmd_slurm_limits *l, const char *account, const char *user, const char *partition, const char *parent,
                 char *const tres[HSPMD_SLURM_TRES_LIMITS], char *const jobs[HSPMD_SLURM_JOB_LIMITS])
{
	l->account = strdup(account);
	l->user = strdup(user);
	l->partition = strdup(partition);
	l->parent = strdup(parent);
	bool whole = l->account && l->user && l->partition && l->parent;
	for (int t = 0; t < HSPMD_SLURM_TRES_LIMITS; t++)
		whole &= (l->tres[t] = strdup(tres[t])) != NULL;
	for (int k = 0; k < HSPMD_SLURM_JOB_LIMITS; k++)
		l->jobs[k] = number_of(jobs[k]);
	return whole;
}

int hspmd_slurm_assoc_parse(struct hspmd_slurm_accounts *a, const char *cluster, char *text, struct hspmd_error *err)
{
	char *c[COLUMNS_MAX], none[] = "";
	while (next_line(&text, 8, c)) {
		if (strcmp(c[0], cluster) != 0)
			continue;
		struct hspmd_slurm_limits *l = add_limits(a);
		/* An account shows the MaxJobs that its users inherit; they have it themselves. */
		char *tres[] = { c[5], none, none }, *jobs[] = { c[6], *c[2] ? c[7] : none, none };
		if (!l || !fill(l, c[1], c[2], c[3], c[4], tres, jobs))
			return hspmd_fail_memory(err, "reading associations");
	}
	return 0;
}

int hspmd_slurm_qos_limits_parse(struct hspmd_slurm_accounts *a, char *text, struct hspmd_error *err)
{
	char *c[COLUMNS_MAX];
	while (next_line(&text, 7, c)) {
		struct hspmd_slurm_limits *l = add_limits(a);
		char *tres[] = { c[1], c[2], c[3] }, *jobs[] = { c[4], c[5], c[6] };
		if (!l || !fill(l, "", "", "", "", tres, jobs) || !(l->qos = strdup(c[0])))
			return hspmd_fail_memory(err, "reading the limits of QOS");
	}
	return 0;
}

int hspmd_slurm_shares_parse(struct hspmd_slurm_accounts *a, char *text, struct hspmd_error *err)
{
	char *c[COLUMNS_MAX];
	while (next_line(&text, 3, c)) {
		char *end;
		double factor = strtod(c[2], &end);
		if (!*c[1] || end == c[2] || !(factor >= 0) || !(factor <= 1))
			continue; /* accounts have no factor of their own */
		if (hspmd_array_grow(&a->shares, &a->share_capacity, (size_t)a->share_count, sizeof *a->shares))
			return hspmd_fail_memory(err, "reading fairshare");
		struct hspmd_slurm_share *s = &a->shares[a->share_count++];
		/* Accounts are indented by their depth. */
		*s = (struct hspmd_slurm_share){ strdup(c[0] + strspn(c[0], " ")), strdup(c[1]), factor };
		if (!s->account || !s->user)
			return hspmd_fail_memory(err, "reading fairshare");
	}
	return 0;
}

/* ---- asking */

/* Runs a command of Slurm; its output is in text. */
static int ask(const char *const *words, char *text, const char *what, struct hspmd_error *err)
{
	struct hspmd_slurm_argv w = { 0 };
	for (; *words; words++)
		hspmd_slurm_argv_add(&w, "%s", *words);
	int rc = hspmd_slurm_run_command(&w, ASK_S, text, TEXT_MAX, err);
	hspmd_slurm_argv_clear(&w);
	return rc > 0 ? hspmd_fail(err, "reading %s: %s", what, hspmd_slurm_error_line(text)) : rc;
}

static int read_limits(struct hspmd_slurm_accounts *a, const char *cluster, char *text, struct hspmd_error *err)
{
	static const char *const assoc[] = { "sacctmgr",    "--noheader",
		                             "--parsable2", "show",
		                             "assoc",       "format=Cluster,Account,User,Partition,ParentName,GrpTRES,GrpJobs,MaxJobs",
		                             NULL };
	static const char *const qos[] = { "sacctmgr", "--noheader", "--parsable2",
		                           "show",     "qos",        "format=Name,GrpTRES,MaxTRESPU,MaxTRESPA,GrpJobs,MaxJobsPU,MaxJobsPA",
		                           NULL };
	if (ask(assoc, text, "associations", err) || hspmd_slurm_assoc_parse(a, cluster, text, err))
		return -1;
	return ask(qos, text, "the limits of QOS", err) || hspmd_slurm_qos_limits_parse(a, text, err) ? -1 : 0;
}

int hspmd_slurm_accounts_read(struct hspmd_slurm_accounts *a, const struct hspmd_slurm_accounts_wanted *wanted, int *rpcs,
                              struct hspmd_error *err)
{
	static const char *const sshare[] = { "sshare", "--noheader", "--parsable2", "--all", "--format=Account,User,FairShare", NULL };
	char *text = malloc(TEXT_MAX);
	*a = (struct hspmd_slurm_accounts){ 0 };
	int rc = text ? 0 : hspmd_fail_memory(err, "reading Slurm's accounting");
	if (!rc && wanted->cluster)
		rc = read_limits(a, wanted->cluster, text, err);
	if (!rc && wanted->shares) {
		++*rpcs;
		rc = ask(sshare, text, "fairshare", err) || hspmd_slurm_shares_parse(a, text, err) ? -1 : 0;
	}
	free(text);
	return rc;
}

/* ---- looking up */

double hspmd_slurm_share_of(const struct hspmd_slurm_accounts *a, const char *account, const char *user)
{
	for (int i = 0; a && i < a->share_count; i++)
		if (!strcmp(a->shares[i].account, account) && !strcmp(a->shares[i].user, user))
			return a->shares[i].factor;
	return -1;
}

const char *hspmd_slurm_tres_next(const char *list, char name[static 64], double *number)
{
	size_t n = strcspn(list, "=,");
	char *end;
	if (!n || list[n] != '=' || n >= 64)
		return NULL;
	memcpy(name, list, n);
	name[n] = '\0';
	*number = strtod(list + n + 1, &end);
	static const char units[] = "KMGTP";
	const char *unit = *end ? strchr(units, *end) : NULL;
	for (int u = 0; unit && u < unit - units; u++)
		*number *= 1024; /* of memory: from KiB */
	if (unit)
		*number /= 1024;
	return end + strcspn(end, ",") + (end[strcspn(end, ",")] == ',');
}

double hspmd_slurm_tres_of(const char *list, const char *name)
{
	char each[64];
	double number;
	while ((list = hspmd_slurm_tres_next(list, each, &number)))
		if (!strcmp(each, name))
			return number;
	return -1;
}
