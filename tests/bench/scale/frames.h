/* SPDX-License-Identifier: Apache-2.0 */
/* Counts what passes through the controller of a large job, and the processor time of the frames: written, signed and read as on a real
 * connection (common/wire.h). */
#ifndef HSPMD_TESTS_BENCH_SCALE_FRAMES_H
#define HSPMD_TESTS_BENCH_SCALE_FRAMES_H

#include <jansson.h>
#include <stdbool.h>

#include "common/error.h"

struct scale_control {
	double bytes, largest, processor_s; /* of all frames; of the longest; the controller's */
	int rounds;                         /* times that it waits for all */
};

/* The same message `count` times, which is taken over. The controller makes and signs those that are `told`, and reads the others. 0, or
 * -1 and err. */
int scale_pass(struct scale_control *c, int count, json_t *message, bool told, struct hspmd_error *err);
/* A message to `count` nodes whose text is compressed once (hspmd_wire_text_packed), with `own` for each. Takes over both. */
int scale_pass_packed(struct scale_control *c, int count, json_t *message, json_t *own, struct hspmd_error *err);

#endif
