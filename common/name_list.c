/* SPDX-License-Identifier: Apache-2.0 */
#include "common/name_list.h"

#include <string.h>

bool hspmd_name_list_has(const char *list, const char *name, size_t length)
{
	while (*list) {
		size_t n = strcspn(list, ",");
		if (n == length && !strncmp(list, name, n))
			return true;
		list += n + (list[n] == ',');
	}
	return false;
}
