/* SPDX-License-Identifier: Apache-2.0 */
/* What a piece of the program asks of the host and of CUDA's libraries while it runs on the emulated device: what a step must not ask. A
 * program that uses this is linked with HOST_CALLS_LINK, so that functions of host_calls.c stand before those of libc, in the device's
 * module too. */
#ifndef TESTS_GPU_HOST_CALLS_H
#define TESTS_GPU_HOST_CALLS_H

/* Begin to count in this thread. */
void host_calls_begin(void);
/* End it. Returns the sum of locks taken, allocations, and look-ups in libraries (EMULATE_LOOKUPS) since then; the emulator's own are not
 * counted. 0 on a real device, and under sanitizers, which have such functions of their own. text: room for what they were. */
#define HOST_CALLS_TEXT 96
long host_calls_end(char text[HOST_CALLS_TEXT]);

#endif
