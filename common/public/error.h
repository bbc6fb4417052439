/* SPDX-License-Identifier: Apache-2.0 */
/* The error of a failed call: one line without a newline. Installed as <hspmd/error.h>. */
#ifndef HSPMD_ERROR_H
#define HSPMD_ERROR_H

#define HSPMD_ERROR_MAX 1024

struct hspmd_error {
	char text[HSPMD_ERROR_MAX]; /* "" if nothing failed */
};

#endif
