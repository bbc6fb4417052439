/* SPDX-License-Identifier: Apache-2.0 */
/* A worker: one process a device. It does what the controller says over `control` (messages of common/wire.h) until `quit` or the
 * descriptor closes. */
#ifndef HSPMD_WORKER_WORKER_H
#define HSPMD_WORKER_WORKER_H

/* Returns the process's exit status: 0 after `quit`, 1 when the control connection broke or the worker cannot go on (said in the log). */
int hspmd_worker_main(int control);

#endif
