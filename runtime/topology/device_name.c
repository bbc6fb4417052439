/* SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "runtime/topology/topology_internal.h"

static bool one_of(const char *word, const char *const *list)
{
	for (; *list; list++)
		if (!strcasecmp(word, *list))
			return true;
	return false;
}

const char *hspmd_cpu_name(const char *model, char *buf, size_t size)
{
	static const char *const noise[] = { "cpu", "processor", "with", "virtual", NULL };
	size_t n = 0;
	buf[0] = '\0';
	for (const char *at = model; *at && *at != '@';) {
		char word[64];
		size_t length = 0;
		for (; *at && *at != ' ' && *at != '@'; at++) {
			/* "(R)" and "(TM)" follow words without a space. */
			if (*at == '(') {
				const char *end = strchr(at, ')');
				at = end ? end : at;
				continue;
			}
			if (length + 1 < sizeof word && (isalnum((unsigned char)*at) || *at == '.' || *at == '-'))
				word[length++] = (char)tolower((unsigned char)*at);
		}
		word[length] = '\0';
		while (*at == ' ')
			at++;
		if (length > 5 && !strcmp(word + length - 5, "-core"))
			continue;
		if (!length || one_of(word, noise) || n + length + 2 > size)
			continue;
		n += (size_t)snprintf(buf + n, size - n, "%s%s", n ? "-" : "", word);
	}
	if (!n)
		snprintf(buf, size, "unknown");
	return buf;
}

const char *hspmd_gpu_name(const char *model, char *buf, size_t size)
{
	static const char *const makers[] = { "NVIDIA ", "Tesla ", "GeForce ", "Quadro ", NULL };
	for (int i = 0; makers[i]; i++)
		if (!strncasecmp(model, makers[i], strlen(makers[i])))
			model += strlen(makers[i]);
	size_t n = 0;
	for (; *model && n + 1 < size; model++) {
		bool plain = isalnum((unsigned char)*model) || *model == '.' || *model == '_';
		if (plain)
			buf[n++] = *model;
		else if (n && buf[n - 1] != '-')
			buf[n++] = '-';
	}
	while (n && buf[n - 1] == '-')
		n--;
	buf[n] = '\0';
	if (!n)
		snprintf(buf, size, "gpu");
	return buf;
}
