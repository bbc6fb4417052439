/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base64.h"

/* RFC 4648, section 10. */
static void known_texts(void **state)
{
	(void)state;
	static const char *const pairs[][2] = { { "", "" },
		                                { "f", "Zg==" },
		                                { "fo", "Zm8=" },
		                                { "foo", "Zm9v" },
		                                { "foob", "Zm9vYg==" },
		                                { "fooba", "Zm9vYmE=" },
		                                { "foobar", "Zm9vYmFy" } };
	for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
		size_t size;
		char *text = hspmd_base64_encode(pairs[i][0], strlen(pairs[i][0]));
		char *back = hspmd_base64_decode(pairs[i][1], &size);
		assert_string_equal(text, pairs[i][1]);
		assert_non_null(back);
		assert_int_equal(size, strlen(pairs[i][0]));
		assert_memory_equal(back, pairs[i][0], size);
		free(text);
		free(back);
	}
}

static void what_is_not_base64(void **state)
{
	(void)state;
	static const char *const texts[] = { "a", "Zg=g", "Zm9v Zm9v", "Zm9\n", "????" };
	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
		size_t size;
		assert_null(hspmd_base64_decode(texts[i], &size));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(known_texts), cmocka_unit_test(what_is_not_base64) };
	return cmocka_run_group_tests(tests, NULL, NULL);
}
