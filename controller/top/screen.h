/* SPDX-License-Identifier: Apache-2.0 */
/* A terminal, by ncurses: pages onto it, keys from it. */
#ifndef HSPMD_CONTROLLER_TOP_SCREEN_H
#define HSPMD_CONTROLLER_TOP_SCREEN_H

#include <stdbool.h>

#include "common/error.h"
#include "controller/top/page.h"

/* Keys beside those that are characters. */
enum top_key { TOP_KEY_NONE = -1, TOP_KEY_UP = 256, TOP_KEY_DOWN, TOP_KEY_PAGE_UP, TOP_KEY_PAGE_DOWN, TOP_KEY_HOME, TOP_KEY_END,
	       TOP_KEY_ENTER, TOP_KEY_ESCAPE, TOP_KEY_BACKSPACE, TOP_KEY_RESIZED };

/* Takes the terminal of standard output over. -1 and err: it is none, nothing is known of its kind, or this build has no ncurses; nothing
 * has changed then. Without colours if the terminal has none, or NO_COLOR is set. */
int top_screen_open(struct hspmd_error *err);
/* Gives the terminal back as it was. Safe if it is not open. */
void top_screen_close(void);
void top_screen_size(int *lines, int *columns);
bool top_screen_unicode(void); /* the locale can show block characters */
void top_screen_show(const struct top_page *p);
/* The next key, without waiting. */
int top_screen_key(void);

#endif
