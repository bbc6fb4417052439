/* SPDX-License-Identifier: Apache-2.0 */
/* Options of TCP connections. */
#ifndef HSPMD_COMMON_TCP_H
#define HSPMD_COMMON_TCP_H

/* Makes the kernel send small messages at once, probe a connection that has been idle for a few seconds, and break it if the other machine
 * has acknowledged nothing for timeout_s seconds (at most an hour). Options that the kernel refuses are left out. */
void hspmd_tcp_keep_alive(int fd, double timeout_s);

#endif
