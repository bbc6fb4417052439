/* SPDX-License-Identifier: Apache-2.0 */
#include "common/delta_text.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DIGITS_MAX 9
#define COLUMNS 1024 /* kept at a time */
#define NEAR 14      /* a difference of at most so much is one byte, NEAR_ZERO and the difference; */
#define NEAR_ZERO 15
#define FAR 30 /* ... any other one is written in digits between two of these */
#define TOKEN_MAX 16

/* The last number that stood behind one text. */
struct column {
	uint32_t context; /* hash of the text */
	int width;        /* digits that leading zeros fill; 0: none; -1: no number yet */
	long value;
};

/* Reader of a plain text, of which encoder and decoder see the same bytes. */
struct place {
	bool in_string, escaped;
	uint32_t context;
	struct column column[COLUMNS];
};

static struct place *place_create(struct hspmd_error *err)
{
	struct place *p = calloc(1, sizeof *p);
	for (int i = 0; p && i < COLUMNS; i++)
		p->column[i].width = -1;
	if (!p)
		hspmd_fail_memory(err, "compressing a control message");
	return p;
}

static void pass(struct place *p, char c)
{
	bool quote = c == '"' && !p->escaped;
	p->escaped = c == '\\' && !p->escaped;
	p->in_string ^= quote;
	p->context = quote || c == ',' ? 0 : (p->context ^ (unsigned char)c) * 16777619u; /* as FNV-1a does */
}

static struct column *column_of(struct place *p)
{
	return &p->column[(p->context ^ p->context >> 16) % COLUMNS];
}

/* Returns the number of bytes of a run of digits. */
static size_t run_of(const char *at, size_t left)
{
	size_t n = 0;
	while (n < left && isdigit((unsigned char)at[n]))
		n++;
	return n;
}

static long value_of(const char *digits, size_t n)
{
	long value = 0;
	for (size_t i = 0; i < n; i++)
		value = 10 * value + (digits[i] - '0');
	return value;
}

/* A number that stands as it is begins a column anew. */
static void begin_column(struct place *p, const char *digits, size_t n)
{
	if (p->in_string && n <= DIGITS_MAX)
		*column_of(p) = (struct column){ p->context, n > 1 && digits[0] == '0' ? (int)n : 0, value_of(digits, n) };
}

/* The number that a column comes to, as text. */
static int column_text(const struct column *c, long value, char *text)
{
	return snprintf(text, TOKEN_MAX, "%0*ld", c->width, value);
}

/* Returns the bytes of the token in place of these digits; 0: they stay. */
static size_t encode_number(struct place *p, const char *digits, size_t n, char *token)
{
	struct column *c = column_of(p);
	char text[TOKEN_MAX];
	if (!p->in_string || n > DIGITS_MAX || c->width < 0 || c->context != p->context)
		return 0;
	long value = value_of(digits, n), delta = value - c->value;
	if (column_text(c, value, text) != (int)n || memcmp(text, digits, n) != 0)
		return 0;
	c->value = value;
	if (delta >= -NEAR && delta <= NEAR) {
		token[0] = (char)(NEAR_ZERO + delta);
		return 1;
	}
	return (size_t)snprintf(token, TOKEN_MAX, "%c%ld%c", FAR, delta, FAR);
}

int hspmd_delta_text_encode(const char *text, size_t size, char **out, size_t *out_size, struct hspmd_error *err)
{
	/* A number of one digit may become a token of 12 bytes, and something stands between two numbers. */
	char *to = malloc(size / 2 * (TOKEN_MAX - 3) + TOKEN_MAX);
	struct place *p = to ? place_create(err) : NULL;
	size_t used = 0, at = 0;
	*out = NULL;
	if (!p) {
		free(to);
		return hspmd_fail_memory(err, "compressing a control message");
	}
	while (at < size) {
		size_t n = run_of(text + at, size - at), token = n ? encode_number(p, text + at, n, to + used) : 0;
		if (token) {
			used += token;
		} else if (n) {
			begin_column(p, text + at, n);
			memcpy(to + used, text + at, n);
			used += n;
		} else if ((unsigned char)text[at] < ' ') {
			break;
		} else {
			pass(p, text[at]);
			to[used++] = text[at];
			n = 1;
		}
		at += n;
	}
	free(p);
	if (at < size) {
		free(to);
		return hspmd_fail(err, "a control character in a control message");
	}
	*out = to;
	*out_size = used;
	return 0;
}

/* Reads the token at `from`. Returns its bytes, and the difference; 0: it is none. */
static size_t read_token(const char *from, size_t left, long *delta)
{
	char digits[TOKEN_MAX] = { 0 }, *end;
	if (*from != FAR) {
		*delta = *from - NEAR_ZERO;
		return *from >= NEAR_ZERO - NEAR && *from <= NEAR_ZERO + NEAR;
	}
	memcpy(digits, from + 1, left - 1 < TOKEN_MAX - 1 ? left - 1 : TOKEN_MAX - 1);
	*delta = strtol(digits, &end, 10);
	return end > digits && *end == FAR ? (size_t)(end - digits) + 2 : 0;
}

/* Returns the digits of a token's number, in `text`; 0: damaged. */
static int decode_number(struct place *p, long delta, char *text)
{
	struct column *c = column_of(p);
	long value = c->value + delta;
	if (!p->in_string || c->width < 0 || c->context != p->context || value < 0 || value > 999999999)
		return 0;
	c->value = value;
	return column_text(c, value, text);
}

int hspmd_delta_text_decode(const char *encoded, size_t encoded_size, size_t size, char **text, struct hspmd_error *err)
{
	char *to = malloc(size + 1), number[TOKEN_MAX];
	struct place *p = to ? place_create(err) : NULL;
	size_t used = 0, at = 0;
	*text = NULL;
	if (!p) {
		free(to);
		return hspmd_fail_memory(err, "reading a control message");
	}
	while (at < encoded_size) {
		const char *from = encoded + at, *plain = from;
		size_t n = run_of(from, encoded_size - at), taken = n ? n : 1, bytes = taken;
		long delta;
		if (n) {
			begin_column(p, from, n);
		} else if ((unsigned char)*from >= ' ') {
			pass(p, *from);
		} else {
			taken = read_token(from, encoded_size - at, &delta);
			bytes = taken ? (size_t)decode_number(p, delta, number) : 0;
			plain = number;
		}
		if (!bytes || bytes > size - used)
			break;
		memcpy(to + used, plain, bytes);
		used += bytes;
		at += taken;
	}
	free(p);
	if (at < encoded_size || used < size) {
		free(to);
		return hspmd_fail(err, "a compressed message is damaged");
	}
	to[size] = '\0';
	*text = to;
	return 0;
}
