/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a step on every device of a measured trace. */
#ifndef HSPMD_CONTROLLER_REPORT_TRACE_STEPS_H
#define HSPMD_CONTROLLER_REPORT_TRACE_STEPS_H

#include "controller/report/step_time.h"

/* Adds an entry for each device of each generation of the trace, which may be any JSON. 0, or -1: out of memory. */
int report_trace_steps(const json_t *trace, struct report_step_time *t);

#endif
