/* SPDX-License-Identifier: Apache-2.0 */
/* One line on standard error that says how far a long command is, and how long it may still take. It is shown only if standard error is a
 * terminal, at most five times a second, not in the first half second, and is removed at the end. Libraries report; nothing happens unless
 * the command has begun a line. For one thread. */
#ifndef HSPMD_COMMON_PROGRESS_H
#define HSPMD_COMMON_PROGRESS_H

/* Begin to show what is reported, as "what: ...". The text is borrowed until hspmd_progress_end(). */
void hspmd_progress_begin(const char *what);
/* `done` of `total` units are done; both count from the beginning of the work. total 0: not known, nothing is shown. */
void hspmd_progress(double done, double total);
void hspmd_progress_end(void);

#endif
