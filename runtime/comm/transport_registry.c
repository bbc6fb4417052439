/* SPDX-License-Identifier: Apache-2.0 */
/* The transports in this build, the best first. */
#include <stdio.h>
#include <string.h>

#include "runtime/comm/transport.h"

static const struct hspmd_transport_ops *const transports[] = {
#ifdef HAVE_UCX
	&hspmd_transport_ucx,
#endif
	&hspmd_transport_socket,
	&hspmd_transport_memory,
};

const struct hspmd_transport_ops *hspmd_transport_find(const char *name, struct hspmd_error *err)
{
	char known[128] = "";
	size_t used = 0;
	for (size_t i = 0; i < sizeof transports / sizeof transports[0]; i++) {
		if (!name || !strcmp(name, transports[i]->name))
			return transports[i];
		used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", transports[i]->name);
	}
	hspmd_fail(err, "transport \"%s\" is not built in; there are: %s", name, known);
	return NULL;
}
