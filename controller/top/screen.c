/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "controller/top/screen.h"

#ifdef HAVE_NCURSES

#include <curses.h>
#include <langinfo.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool is_open;

static chtype attribute(enum top_style style)
{
	static const short pairs[TOP_STYLES] = { [TOP_GOOD] = 1, [TOP_WARN] = 2, [TOP_BAD] = 3 };
	static const chtype attributes[TOP_STYLES] = {
		[TOP_TITLE] = A_BOLD, [TOP_BAD] = A_BOLD, [TOP_DIM] = A_DIM, [TOP_CHOSEN] = A_REVERSE
	};
	return attributes[style] | (has_colors() && pairs[style] ? (chtype)COLOR_PAIR(pairs[style]) : 0);
}

int top_screen_open(struct hspmd_error *err)
{
	setlocale(LC_CTYPE, "");
	if (!isatty(STDOUT_FILENO) || !isatty(STDIN_FILENO))
		return hspmd_fail(err, "standard input and output are no terminal");
	SCREEN *screen = newterm(NULL, stdout, stdin);
	if (!screen)
		return hspmd_fail(err, "nothing is known of a terminal of the kind \"%s\" (TERM)", getenv("TERM") ? getenv("TERM") : "");
	const char *plain = getenv("NO_COLOR");
	if (has_colors() && !(plain && *plain) && start_color() == OK) {
		use_default_colors();
		init_pair(1, COLOR_GREEN, -1);
		init_pair(2, COLOR_YELLOW, -1);
		init_pair(3, COLOR_RED, -1);
	}
	cbreak();
	noecho();
	nonl();
	keypad(stdscr, TRUE);
	nodelay(stdscr, TRUE);
	set_escdelay(50);
	curs_set(0);
	is_open = true;
	return 0;
}

void top_screen_close(void)
{
	if (is_open)
		endwin();
	is_open = false;
}

void top_screen_size(int *lines, int *columns)
{
	*lines = LINES;
	*columns = COLS;
}

bool top_screen_unicode(void)
{
	return !strcmp(nl_langinfo(CODESET), "UTF-8");
}

void top_screen_show(const struct top_page *p)
{
	int line = -1;
	erase();
	for (size_t i = 0; i < p->span_count; i++) {
		const struct top_span *s = &p->spans[i];
		if (s->line != line)
			move(line = s->line, 0);
		attrset((int)attribute(s->style));
		addnstr(p->text + s->at, (int)s->bytes);
	}
	attrset(A_NORMAL);
	refresh();
}

int top_screen_key(void)
{
	static const struct {
		int theirs, ours;
	} keys[] = { { KEY_UP, TOP_KEY_UP },           { KEY_DOWN, TOP_KEY_DOWN }, { KEY_PPAGE, TOP_KEY_PAGE_UP },
		     { KEY_NPAGE, TOP_KEY_PAGE_DOWN }, { KEY_HOME, TOP_KEY_HOME }, { KEY_END, TOP_KEY_END },
		     { KEY_ENTER, TOP_KEY_ENTER },     { '\r', TOP_KEY_ENTER },    { '\n', TOP_KEY_ENTER },
		     { 27, TOP_KEY_ESCAPE },           { 127, TOP_KEY_BACKSPACE }, { '\b', TOP_KEY_BACKSPACE },
		     { KEY_RESIZE, TOP_KEY_RESIZED },  { KEY_BACKSPACE, TOP_KEY_BACKSPACE } };
	int key = getch();
	for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
		if (key == keys[i].theirs)
			return keys[i].ours;
	return key == ERR || key > 255 ? TOP_KEY_NONE : key;
}

#else

int top_screen_open(struct hspmd_error *err)
{
	return hspmd_fail(err, "this build has no ncurses");
}

void top_screen_close(void)
{
}

void top_screen_size(int *lines, int *columns)
{
	*lines = 24;
	*columns = 80;
}

bool top_screen_unicode(void)
{
	return false;
}

void top_screen_show(const struct top_page *p)
{
	(void)p;
}

int top_screen_key(void)
{
	return TOP_KEY_NONE;
}

#endif
