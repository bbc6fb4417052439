/* SPDX-License-Identifier: Apache-2.0 */
/* The cores that a process may use. */
#ifndef HSPMD_COMMON_CORES_H
#define HSPMD_COMMON_CORES_H

/* Binds this process and its later children to the cores of a list such as "0-3,8". Cores that are not allowed are left out. If none is
 * left, or the text is no list, nothing is bound. A failure costs speed only; it is logged as a warning. */
void hspmd_bind_to_cores(const char *cpus);

/* How many cores this thread may use: at least one. */
int hspmd_usable_cores(void);

#endif
