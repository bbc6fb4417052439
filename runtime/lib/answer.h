/* SPDX-License-Identifier: Apache-2.0 */
/* The other end of runtime/model/own.h: a process that loads a model of the user's own, answers one question about it, and ends. */
#ifndef HSPMD_LIB_ANSWER_H
#define HSPMD_LIB_ANSWER_H

/* Reads the request from standard input and the object from its descriptor, and writes the answer. Returns the exit status. Blocks as long
 * as the user's code does. */
int hspmd_own_answer(void);

#endif
