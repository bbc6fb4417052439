/* SPDX-License-Identifier: Apache-2.0 */
/* The green contexts that the emulated driver has made. */
#ifndef EMULATE_DRIVER_SM_H
#define EMULATE_DRIVER_SM_H

#include <stdbool.h>

#define EMULATE_GREEN_CONTEXTS 8

struct emulate_green_context {
	bool open;
	bool has[132]; /* the multiprocessors that are its own */
};
extern struct emulate_green_context emulate_green_contexts[EMULATE_GREEN_CONTEXTS];

#endif
