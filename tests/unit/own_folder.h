/* SPDX-License-Identifier: Apache-2.0 */
/* A folder of the test's own: cmocka's fixtures, for a test or for a group of them. Include after cmocka.h. */
#ifndef HSPMD_TESTS_OWN_FOLDER_H
#define HSPMD_TESTS_OWN_FOLDER_H

#include <stdlib.h>
#include <string.h>

#include "common/durable.h"

static char folder[64];

static int make_folder(void **state)
{
	(void)state;
	strcpy(folder, "/tmp/hspmd-test-XXXXXX");
	return mkdtemp(folder) ? 0 : -1;
}

static int drop_folder(void **state)
{
	(void)state;
	return hspmd_remove_tree(folder, NULL);
}

#endif
