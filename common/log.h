/* SPDX-License-Identifier: Apache-2.0 */
/* Messages for people, one line each, to standard error: "hspmd run: warning: text". Thread-safe; a line is one write(2). */
#ifndef HSPMD_COMMON_LOG_H
#define HSPMD_COMMON_LOG_H

#include <stddef.h>

enum hspmd_log_level { HSPMD_LOG_ERROR, HSPMD_LOG_WARNING, HSPMD_LOG_INFO, HSPMD_LOG_DEBUG };

/* Name of the process, put before each line ("hspmd plan", "hspmd worker n2:0"); copied. Default "hspmd". */
void hspmd_log_name(const char *name);
/* Messages above this level are dropped. Default: INFO, or the level in HSPMD_LOG (error, warning, info, debug). */
void hspmd_log_level(enum hspmd_log_level level);
/* Put wall-clock time before each line (for log files). Default off. */
void hspmd_log_time(int on);
/* Write lines to this descriptor too (the job's log file), -1 for none. The caller owns and closes it. */
void hspmd_log_tee(int fd);
/* Call this for each line instead, for whoever writes it without making the caller wait; NULL: no longer. It must be thread-safe. */
void hspmd_log_tee_to(void (*write)(void *context, const char *line, size_t size), void *context);

void hspmd_log(enum hspmd_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#define hspmd_error_log(...) hspmd_log(HSPMD_LOG_ERROR, __VA_ARGS__)
#define hspmd_warn(...) hspmd_log(HSPMD_LOG_WARNING, __VA_ARGS__)
#define hspmd_info(...) hspmd_log(HSPMD_LOG_INFO, __VA_ARGS__)
#define hspmd_debug(...) hspmd_log(HSPMD_LOG_DEBUG, __VA_ARGS__)

#endif
