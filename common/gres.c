/* SPDX-License-Identifier: Apache-2.0 */
#include "common/gres.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct gres {
	char name[64], type[64];
	long count;
};

/* The next entry of a list; NULL at its end, or if the entry cannot be parsed (then *bad is true). */
static const char *next_gres(const char *at, struct gres *g, bool *bad)
{
	char item[64];
	while (*at == ',')
		at++;
	if (!*at)
		return NULL;
	/* A comma may stand inside parentheses: "gpu:2(S:0,1)". */
	size_t n = 0;
	for (int depth = 0; at[n] && (at[n] != ',' || depth); n++)
		depth += (at[n] == '(') - (at[n] == ')');
	size_t len = n;
	for (size_t i = 0; i < n; i++)
		if (at[i] == '(') {
			len = i;
			break;
		}
	*bad |= len >= sizeof item;
	if (*bad)
		return NULL;
	memcpy(item, at, len);
	item[len] = '\0';
	char *from = item;
	if (!strncmp(from, "gres:", 5) || !strncmp(from, "gres/", 5))
		from += 5;
	*g = (struct gres){ .count = 1 };
	char *parts[3] = { from, NULL, NULL };
	int count = 1;
	for (char *c = from; *c; c++)
		if (*c == ':') {
			*c = '\0';
			if (count == 3) {
				*bad = true;
				return NULL;
			}
			parts[count++] = c + 1;
		}
	char *end = NULL, *last = parts[count - 1];
	long number = count > 1 ? strtol(last, &end, 10) : 0;
	bool numbered = count > 1 && end != last && (!*end || !strcmp(end, "K"));
	if (numbered)
		g->count = number * (*end ? 1024 : 1);
	*bad |= count == 3 && !numbered;
	snprintf(g->name, sizeof g->name, "%s", parts[0]);
	if (count == 3 || (count == 2 && !numbered))
		snprintf(g->type, sizeof g->type, "%s", parts[1]);
	return at + n;
}

static long has_gres(const char *has, const struct gres *wanted)
{
	struct gres g;
	bool bad = false;
	long sum = 0;
	for (const char *at = has; (at = next_gres(at, &g, &bad));)
		if (!strcmp(g.name, wanted->name) && (!*wanted->type || !strcmp(g.type, wanted->type)))
			sum += g.count;
	return sum;
}

bool hspmd_gres_fit(const char *wanted, const char *has)
{
	struct gres g;
	bool bad = false;
	for (const char *at = wanted; (at = next_gres(at, &g, &bad));)
		if (has_gres(has, &g) < g.count)
			return false;
	return !bad;
}

/* Returns where the first entry of this name begins, with the comma before it. */
static const char *first_of_name(const char *list, const char *name)
{
	struct gres g;
	bool bad = false;
	for (const char *at = list, *entry = at; (at = next_gres(at, &g, &bad)); entry = at)
		if (!strcmp(g.name, name))
			return entry;
	return NULL;
}

int hspmd_gres_request(const char *list, bool typed, char *text, size_t size)
{
	struct gres g;
	bool bad = false;
	size_t n = 0;
	*text = '\0';
	for (const char *at = list, *entry = at; n < size && (at = next_gres(at, &g, &bad)); entry = at) {
		bool type = typed && *g.type;
		if (!typed) {
			*g.type = '\0';
			if (first_of_name(list, g.name) != entry)
				continue;
			g.count = has_gres(list, &g);
		}
		n += (size_t)snprintf(text + n, size - n, "%s%s%s%s:%ld", n ? "," : "", g.name, type ? ":" : "", type ? g.type : "",
		                      g.count);
	}
	return bad || n >= size ? -1 : 0;
}

int hspmd_gres_devices(const char *gres, char *type, size_t size)
{
	struct gres g;
	bool bad = false;
	int sum = 0;
	snprintf(type, size, "cpu");
	for (const char *at = gres; (at = next_gres(at, &g, &bad));)
		if (!strcmp(g.name, "gpu")) {
			if (!sum)
				snprintf(type, size, "%s", *g.type ? g.type : "gpu");
			sum += (int)g.count;
		}
	return sum ? sum : 1;
}
