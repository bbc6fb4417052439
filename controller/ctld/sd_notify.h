/* SPDX-License-Identifier: Apache-2.0 */
/* Telling a service manager how it goes, as sd_notify(3) describes the protocol: datagrams to the socket that NOTIFY_SOCKET names. Nothing
 * happens where there is none, and nothing fails. */
#ifndef HSPMD_CTLD_SD_NOTIFY_H
#define HSPMD_CTLD_SD_NOTIFY_H

/* "READY=1", "STOPPING=1", "WATCHDOG=1"; lines. */
void ctld_sd_notify(const char *lines);
/* RELOADING=1 with the time that belongs to it. */
void ctld_sd_notify_reloading(void);
/* Seconds between two WATCHDOG=1: half of what WATCHDOG_USEC allows this process; 0: nobody watches. */
double ctld_sd_notify_every(void);

#endif
