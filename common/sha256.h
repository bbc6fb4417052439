/* SPDX-License-Identifier: Apache-2.0 */
/* SHA-256 (FIPS 180-4) and HMAC over it (RFC 2104), for proving that one knows a secret without saying it. Not for bulk data: checksums are xxhash. */
#ifndef HSPMD_COMMON_SHA256_H
#define HSPMD_COMMON_SHA256_H

#include <stddef.h>

#define HSPMD_SHA256_HEX 65 /* 64 lower-case hexadecimal digits and NUL */

void hspmd_sha256(const void *data, size_t size, char hex[HSPMD_SHA256_HEX]);
void hspmd_hmac_sha256(const void *key, size_t key_size, const void *data, size_t size, char hex[HSPMD_SHA256_HEX]);

#endif
