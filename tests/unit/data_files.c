/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/data_files.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

char data_folder[] = "/tmp/hspmd-data-XXXXXX", data_first[64], data_second[64];

void data_write_file(const char *path, const void *data, size_t size)
{
	FILE *f = fopen(path, "wb");
	assert_non_null(f);
	assert_int_equal(fwrite(data, 1, size, f), size);
	assert_int_equal(fclose(f), 0);
}

int data_files_set_up(void **state)
{
	(void)state;
	unsigned char bytes[256];
	for (int i = 0; i < 256; i++)
		bytes[i] = (unsigned char)i;
	if (!mkdtemp(data_folder))
		return -1;
	snprintf(data_first, sizeof data_first, "%s/a", data_folder);
	snprintf(data_second, sizeof data_second, "%s/b", data_folder);
	data_write_file(data_first, bytes, 100);
	data_write_file(data_second, bytes + 100, 61);
	return 0;
}

int data_files_tear_down(void **state)
{
	(void)state;
	unlink(data_first);
	unlink(data_second);
	return rmdir(data_folder);
}

struct hspmd_job data_job(char **files, int count, enum hspmd_data_kind kind, int64_t seq_len)
{
	return (struct hspmd_job){
		.file = "job.json", .train = files, .train_count = count, .data_kind = kind, .seq_len = seq_len, .seed = 3
	};
}
