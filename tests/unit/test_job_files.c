/* SPDX-License-Identifier: Apache-2.0 */
/* The files that a job names: what is said of one that is not there, or that the job cannot be trained with. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <endian.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/durable.h"
#include "common/format/job.h"
#include "edit.h"
#include "runtime/model/model.h"
#include "tests/unit/own_folder.h"

#define DATA HSPMD_SRCDIR "/tests/data/"

static struct hspmd_error err;

static void write_file(const char *name, const void *data, size_t size)
{
	char *path = hspmd_asprintf("%s/%s", folder, name);
	assert_int_equal(hspmd_durable_write(path, data, size, &err), 0);
	free(path);
}

/* Returns the error of hspmd_job_check_files about the smallest job with `find` replaced, without the folder; "": no error. */
static const char *checked(const char *find, const char *replace)
{
	static char said[HSPMD_ERROR_MAX];
	char *good = hspmd_read_file(DATA "job/least.json", 1 << 20, NULL, &err), *text = edited(good, find, replace);
	char *path = hspmd_asprintf("%s/job.json", folder);
	assert_non_null(text);
	assert_int_equal(hspmd_durable_write(path, text, strlen(text), &err), 0);
	struct hspmd_job *j = hspmd_job_read(path, NULL, &err);
	struct hspmd_model *m = NULL;
	said[0] = '\0';
	if (!j)
		fail_msg("%s", err.text);
	if (hspmd_job_check_files(j, &hspmd_job_models, NULL, &m, NULL, &err)) {
		assert_null(m);
		assert_int_equal(strncmp(err.text, path, strlen(path)), 0);
		for (const char *p = err.text + strlen(path); *p; p++) {
			if (!strncmp(p, folder, strlen(folder)))
				p += strlen(folder);
			strncat(said, p, 1);
		}
	} else {
		assert_int_equal(m->vocab, 50257);
	}
	hspmd_model_destroy(m);
	hspmd_job_destroy(j);
	free(good);
	free(text);
	free(path);
	return said;
}

static void checks_named_files(void **state)
{
	(void)state;
	static const char zeros[1000];
	assert_string_equal(checked("\"seq_len\"", "\"seq_len\""), ": model: /config.json: No such file or directory");
	write_file("config.json", "{\"model_type\": \"bert\"}", 22);
	assert_non_null(strstr(checked("\"seq_len\"", "\"seq_len\""), ": model: /config.json: model_type: expected \"deepseek_v2\""));
	size_t size;
	char *config = hspmd_read_file(DATA "model/gpt2.json", 1 << 20, &size, &err);
	write_file("config.json", config, size);
	free(config);
	assert_string_equal(checked("\"seq_len\"", "\"seq_len\""), ": data.train[0]: /corpus.txt: No such file or directory");
	write_file("corpus.txt", "", 0);
	assert_string_equal(checked("\"seq_len\"", "\"seq_len\""), ": data.train[0]: /corpus.txt: file is empty");
	write_file("corpus.txt", zeros, 128);
	assert_string_equal(checked("\"seq_len\"", "\"seq_len\""),
	                    ": data.train[0]: /corpus.txt: 128 tokens are less than one sample of seq_len + 1 = 129");
	write_file("corpus.txt", zeros, 129);
	assert_string_equal(checked("\"seq_len\"", "\"seq_len\""), "");
	assert_string_equal(checked("\"seq_len\": 128", "\"seq_len\": 1025"),
	                    ": seq_len: expected at most 1024, the model's positions (/config.json), got 1025");
	assert_string_equal(checked("\"bytes\"", "\"uint16\""),
	                    ": data.train[0]: /corpus.txt: its 129 bytes are no whole number of tokens of 2 bytes");
	static const char masked[] = "\"bytes\", \"mask\": true";
	char mask[129] = { 0 };
	assert_string_equal(checked("\"bytes\"", masked), ": data.train[0]: /corpus.txt.mask: No such file or directory");
	write_file("corpus.txt.mask", mask, sizeof mask);
	assert_string_equal(checked("\"bytes\"", masked),
	                    ": data.train[0]: /corpus.txt.mask: all bytes are 0, so that no token would be predicted");
	mask[128] = 1;
	write_file("corpus.txt.mask", mask, sizeof mask);
	assert_string_equal(checked("\"bytes\"", masked), "");
	write_file("corpus.txt", zeros, 512);
	assert_string_equal(checked("\"bytes\"", "\"uint32\""),
	                    ": data.train[0]: /corpus.txt: 128 tokens are less than one sample of seq_len + 1 = 129");
	char text[512];
	memset(text, '~', sizeof text);
	write_file("text", text, sizeof text);
	assert_string_equal(checked("[\"corpus.txt\"], \"kind\": \"bytes\"", "[\"text\"], \"kind\": \"uint32\", \"valid\": []"),
	                    ": data.train[0]: /text: 128 tokens are less than one sample of seq_len + 1 = 129");
	assert_string_equal(checked("[\"corpus.txt\"], \"kind\": \"bytes\"", "[\"text\"], \"kind\": \"uint16\""), "");
	text[501] = '\xff';
	write_file("text", text, sizeof text);
	assert_string_equal(
	        checked("[\"corpus.txt\"], \"kind\": \"bytes\"", "[\"text\"], \"kind\": \"uint16\""),
	        ": data.train[0]: /text: token 65406 at position 250 is not below the model's vocabulary of 50257 (/config.json)");
	assert_string_equal(checked("[\"corpus.txt\"]", "[\"corpus.txt\", \".\"]"), ": data.train[1]: /.: expected a plain file");
	assert_string_equal(checked("[\"corpus.txt\"]", "[\"corpus.txt\"], \"valid\": [\"none\"]"),
	                    ": data.valid[0]: /none: No such file or directory");
	assert_string_equal(checked("\"seq_len\"", "\"checkpoint\": {\"shared\": \"a/$JOB/b\"}, \"seq_len\""), "");
	assert_string_equal(checked("\"seq_len\"", "\"checkpoint\": {\"shared\": \"corpus.txt/x\"}, \"seq_len\""),
	                    ": checkpoint.shared: cannot write to /corpus.txt/x: Not a directory");
	if (geteuid()) {
		char *closed = hspmd_asprintf("%s/closed", folder);
		mkdir(closed, 0500);
		assert_string_equal(checked("\"seq_len\"", "\"checkpoint\": {\"shared\": \"closed/x\"}, \"seq_len\""),
		                    ": checkpoint.shared: cannot write to /closed/x: Permission denied");
		free(closed);
	}
	assert_non_null(strstr(checked("\"kind\": \"bytes\"", "\"kind\": \"bytes\", \"document_end\": 50257"),
	                       ": data.document_end: token 50257 is not below the model's vocabulary of 50257"));
}

/* Weights for init: one tensor, of one element. */
static void write_weights(const char *tensor, const char *type)
{
	char file[300];
	int n = snprintf(file + 8, sizeof file - 8, "{\"%s\":{\"dtype\":\"%s\",\"shape\":[1],\"data_offsets\":[0,4]}}", tensor, type);
	uint64_t length = htole64((uint64_t)n);
	memcpy(file, &length, sizeof length);
	memset(file + 8 + n, 0, 4);
	write_file("w.safetensors", file, 12 + (size_t)n);
}

/* What only the model's parameters show is found before the job waits for its nodes. Runs after checks_named_files, with its files. */
static void checks_parameters(void **state)
{
	(void)state;
	static const char zeros[200];
	write_file("corpus.txt", zeros, sizeof zeros);
	assert_string_equal(checked("\"lr\"", "\"no_decay\": [\"*.wte.*\"], \"lr\""), "");
	assert_string_equal(checked("\"lr\"", "\"no_decay\": [\"*.wte.*\", \"emb*\"], \"lr\""),
	                    ": optimizer.no_decay[1]: no parameter of the model matches \"emb*\"; one is named transformer.wte.weight");
	static const char init[] = "\"init\": \"w.safetensors\", \"seq_len\"";
	assert_string_equal(checked("\"seq_len\"", init), ": init: /w.safetensors: No such file or directory");
	write_file("w.safetensors", "~~~~~~~~~~~~", 12);
	assert_non_null(strstr(checked("\"seq_len\"", init), ": init: /w.safetensors: "));
	write_weights("wte.weight", "F32");
	assert_string_equal(checked("\"seq_len\"", init), ": init: /w.safetensors: wte.weight has shape [1], the model's is [50257, 768]");
	write_weights("wpe.weight", "F32");
	assert_string_equal(checked("\"seq_len\"", init), ": init: /w.safetensors: transformer.wte.weight is not there");
	assert_string_equal(checked("\"seq_len\"", "\"init\": \"..\", \"seq_len\""),
	                    ": init: /..: neither model.safetensors nor model.safetensors.index.json is there");
}

static void checks_megatron_pairs(void **state)
{
	(void)state;
	unsigned char index[64] = "MMIDIDX\0\0\1\0\0\0\0\0\0\0\x08";
	static const char zeros[1000];
	write_file("corpus.bin", zeros, 258);
	const char *missing = ": data.train[0]: /corpus.idx: No such file or directory";
	assert_string_equal(checked("\"corpus.txt\"], \"kind\": \"bytes\"", "\"corpus\"], \"kind\": \"megatron\""), missing);
	write_file("corpus.idx", index, 33);
	const char *bad = ": data.train[0]: /corpus.idx: not an index of version 1 with integer tokens";
	assert_string_equal(checked("\"corpus.txt\"], \"kind\": \"bytes\"", "\"corpus.bin\"], \"kind\": \"megatron\""), bad);
	write_file("corpus.idx", index, 64);
	assert_string_equal(checked("\"corpus.txt\"], \"kind\": \"bytes\"", "\"corpus\"], \"kind\": \"megatron\""), "");
	assert_string_equal(checked("\"corpus.txt\"], \"kind\": \"bytes\"", "\"corpus.idx\"], \"kind\": \"megatron\""), "");
	index[17] = 7; /* float32 */
	write_file("corpus.idx", index, 64);
	assert_string_equal(checked("\"corpus.txt\"], \"kind\": \"bytes\"", "\"corpus\"], \"kind\": \"megatron\""), bad);
	index[17] = 4;
	write_file("corpus.idx", index, 64);
	assert_string_equal(checked("\"corpus.txt\"], \"kind\": \"bytes\"", "\"corpus\"], \"kind\": \"megatron\""),
	                    ": data.train[0]: /corpus.bin: its 258 bytes are no whole number of tokens of 4 bytes");
	/* Documents need the rest of it: one document of one sequence of 129 tokens. */
	static const char documents[] = "\"corpus\"], \"kind\": \"megatron\", \"documents\": true";
	unsigned char rest[] = { 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 129, 0, 0, 0 };
	index[17] = 8;
	memcpy(index + 18, rest, sizeof rest);
	index[54] = 1;
	write_file("corpus.idx", index, 62);
	assert_string_equal(checked("\"corpus.txt\"], \"kind\": \"bytes\"", documents), "");
	write_file("corpus.idx", index, 61);
	assert_string_equal(checked("\"corpus.txt\"], \"kind\": \"bytes\"", documents),
	                    ": data.train[0]: /corpus.idx: shorter than its 1 sequences and 1 documents take");
	index[34] = 128;
	write_file("corpus.idx", index, 62);
	assert_string_equal(
	        checked("\"corpus.txt\"], \"kind\": \"bytes\"", documents),
	        ": data.train[0]: /corpus.idx: its sequences are from byte 0 to 0 + 128 tokens of 2 bytes, but the tokens beside "
	        "it have 258 bytes");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(checks_named_files),
		cmocka_unit_test(checks_parameters),
		cmocka_unit_test(checks_megatron_pairs),
	};
	return cmocka_run_group_tests_name("job_files", tests, make_folder, drop_folder);
}
