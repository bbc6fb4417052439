/* SPDX-License-Identifier: Apache-2.0 */
/* Annotations as text, one per line. A line that parses must print and parse again as the same; the first two, if they fit the tensor, are
 * resolved, and executing the result must give the value. */
#include "fuzz.h"
#include "tests/unit/transfer_run.h"

#define DEVICES 64

static struct hspmd_annotation *parse(const char *text)
{
	struct hspmd_error err = { "" };
	struct hspmd_annotation *a = hspmd_annotation_parse(text, &err);
	if (!a) {
		fuzz_check_error(&err);
		return NULL;
	}
	char *once = hspmd_annotation_text(a);
	struct hspmd_annotation *b = once ? hspmd_annotation_parse(once, &err) : NULL;
	char *twice = b ? hspmd_annotation_text(b) : NULL;
	fuzz_check(twice && strcmp(once, twice) == 0, "what is printed parses as the same");
	free(once);
	free(twice);
	hspmd_annotation_destroy(b);
	return a;
}

static bool fits(const struct hspmd_annotation *a, const struct hspmd_shape *shape)
{
	struct hspmd_error err = { "" };
	if (!a)
		return false;
	if (hspmd_annotation_check(a, shape, &err) != 0) {
		fuzz_check_error(&err);
		return false;
	}
	for (int g = 0; g < a->hsize; g++)
		for (int i = 0; i < a->groups[g].device_count; i++)
			if (a->groups[g].devices[i] >= DEVICES)
				return false;
	return true;
}

static void resolve(const struct hspmd_annotation *a, const struct hspmd_annotation *b, const struct hspmd_shape *shape)
{
	struct random r = { 1 };
	int64_t n = hspmd_shape_elements(shape);
	double *full = calloc((size_t)n, sizeof *full);
	fuzz_check(full != NULL, "there is memory");
	for (int64_t i = 0; i < n; i++)
		full[i] = (double)i;
	struct hspmd_error err = { "" };
	struct hspmd_transfer *t = hspmd_resolve(shape, 4, a, b, NULL, &err);
	fuzz_check(t != NULL, "every legal pair has an answer");
	struct buffers source = buffers_source(&r, a, shape, full, true, DEVICES), result;
	char message[256];
	fuzz_check(transfer_run(t, NULL, &source, &result, NULL, message, sizeof message), "the steps can be executed");
	fuzz_check(buffers_check(&result, b, shape, full, 0, message, sizeof message), "they give the value");
	buffers_destroy(&source);
	buffers_destroy(&result);
	hspmd_transfer_destroy(t);
	free(full);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const struct hspmd_shape shape = { 3, { 12, 10, 8 } };
	char *text = malloc(size + 1), *rest = text;
	struct hspmd_annotation *a[2] = { NULL, NULL };
	fuzz_check(text != NULL, "there is memory");
	memcpy(text, data, size);
	text[size] = '\0';
	for (int i = 0; rest && i < 2; i++) {
		char *line = strsep(&rest, "\n");
		a[i] = parse(line);
	}
	if (fits(a[0], &shape) && fits(a[1], &shape))
		resolve(a[0], a[1], &shape);
	hspmd_annotation_destroy(a[0]);
	hspmd_annotation_destroy(a[1]);
	free(text);
	return 0;
}
