/* SPDX-License-Identifier: Apache-2.0 */
/* Errors as text that a caller can print.
 *
 * A function that can fail returns 0 or -1 (or NULL for pointers) and, on failure, fills its caller's `struct hspmd_error`. The caller
 * owns the struct; NULL is allowed if the caller does not need the text. A message is one line without a newline: what failed, where
 * (file, JSON path, node, peer), and what to do unless that is obvious. Control characters in names and values are shown as '?'. */
#ifndef HSPMD_COMMON_ERROR_H
#define HSPMD_COMMON_ERROR_H

#include <stddef.h>

#include "common/public/error.h"

/* Format a message into err (may be NULL). Always returns -1, so that `return hspmd_fail(err, ...)` reads well. Keeps errno. */
int hspmd_fail(struct hspmd_error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* As hspmd_fail, with ": " and strerror(errno) appended. */
int hspmd_fail_errno(struct hspmd_error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* As hspmd_fail, for "out of memory" while doing `what`. */
int hspmd_fail_memory(struct hspmd_error *err, const char *what);

/* Put "prefix: " before the message that err holds (cut at HSPMD_ERROR_MAX). Returns -1. */
int hspmd_error_prefix(struct hspmd_error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Replace control characters by '?', so that names and values from outside can neither start a new line nor control a terminal. */
void hspmd_sanitize_line(char *text, size_t length);

#endif
