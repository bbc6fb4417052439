/* SPDX-License-Identifier: Apache-2.0 */
/* Base64 (RFC 4648, section 4): binary blobs inside JSON. */
#ifndef HSPMD_COMMON_BASE64_H
#define HSPMD_COMMON_BASE64_H

#include <stddef.h>

/* malloc'd text; NULL: out of memory. */
char *hspmd_base64_encode(const void *data, size_t size);
/* malloc'd bytes (one more than *size); NULL: not base64, or out of memory. */
void *hspmd_base64_decode(const char *text, size_t *size);

#endif
