/* SPDX-License-Identifier: Apache-2.0 */
#include "common/symbols.h"

#include <dlfcn.h>
#include <string.h>

const char *hspmd_symbols_find(void *library, const struct hspmd_symbol *symbols, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		void *found = dlsym(library, symbols[i].name);
		if (!found && !symbols[i].optional)
			return symbols[i].name;
		memcpy(symbols[i].slot, &found, sizeof found);
	}
	return NULL;
}
