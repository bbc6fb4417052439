/* SPDX-License-Identifier: Apache-2.0 */
/* Status for a service manager by the protocol of sd_notify(3): datagrams to the socket that NOTIFY_SOCKET names. Without that variable the
 * functions do nothing. They cannot fail and do not block. */
#ifndef HSPMD_CTLD_SD_NOTIFY_H
#define HSPMD_CTLD_SD_NOTIFY_H

/* Sends "READY=1", "STOPPING=1", "WATCHDOG=1", or several such lines. */
void ctld_sd_notify(const char *lines);
/* Sends RELOADING=1 with the monotonic time that the protocol requires. */
void ctld_sd_notify_reloading(void);
/* Seconds between two WATCHDOG=1: half of what WATCHDOG_USEC allows this process; 0: no watchdog. */
double ctld_sd_notify_every(void);

#endif
