/* SPDX-License-Identifier: Apache-2.0 */
/* The worker: one process per device. It executes the controller's messages on `control` (common/wire.h) until `quit` or until the
 * descriptor closes. */
#ifndef HSPMD_WORKER_WORKER_H
#define HSPMD_WORKER_WORKER_H

/* Returns the process's exit status: 0 after `quit`, 1 if the control connection broke or the worker cannot continue (the log says why). */
int hspmd_worker_main(int control);

#endif
