/* SPDX-License-Identifier: Apache-2.0 */
/* Binding a process to cores. */
#ifndef HSPMD_COMMON_CORES_H
#define HSPMD_COMMON_CORES_H

/* Run this process and what it starts from now on only on these cores: "0-3,8". What is not allowed here is left out; nothing left, or a
 * text of another kind: no binding. Failing costs speed and is only warned of. */
void hspmd_bind_to_cores(const char *cpus);

#endif
