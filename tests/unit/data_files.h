/* SPDX-License-Identifier: Apache-2.0 */
/* Two files of bytes in a folder of their own, and jobs that read such files. */
#ifndef HSPMD_TESTS_DATA_FILES_H
#define HSPMD_TESTS_DATA_FILES_H

#include <stddef.h>
#include <stdint.h>

#include "runtime/input/data.h"

extern char data_folder[];
extern char data_first[64], data_second[64]; /* bytes 0 to 99, and 100 to 160 */

/* Of a group of tests. */
int data_files_set_up(void **state);
int data_files_tear_down(void **state);

void data_write_file(const char *path, const void *data, size_t size);
struct hspmd_job data_job(char **files, int count, enum hspmd_data_kind kind, int64_t seq_len);

#endif
