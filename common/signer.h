/* SPDX-License-Identifier: Apache-2.0 */
/* Signatures of the frames that go one way over one connection, so that a relay, which has no key, can neither change nor forge one, nor
 * drop, repeat or reorder them: the signature of a frame is the HMAC-SHA256 (RFC 2104), under the key of this direction, of the frame's
 * number and the frame. Numbers count from 0 and are not sent. */
#ifndef HSPMD_COMMON_SIGNER_H
#define HSPMD_COMMON_SIGNER_H

#include <stddef.h>

#include "common/error.h"

#define HSPMD_KEY_BYTES 32
#define HSPMD_SIGNATURE_BYTES 32

struct hspmd_signer;

/* Copies the key. NULL and err: out of memory, or libcrypto has no HMAC-SHA256. */
struct hspmd_signer *hspmd_signer_create(const unsigned char key[HSPMD_KEY_BYTES], struct hspmd_error *err);
void hspmd_signer_destroy(struct hspmd_signer *s);
/* Signs the next frame. */
int hspmd_signer_sign(struct hspmd_signer *s, const void *frame, size_t size, unsigned char signature[HSPMD_SIGNATURE_BYTES],
                      struct hspmd_error *err);
/* Returns 0 if this is the signature of the next frame, and -1 and err otherwise: the connection is then of no more use. */
int hspmd_signer_verify(struct hspmd_signer *s, const void *frame, size_t size, const unsigned char signature[HSPMD_SIGNATURE_BYTES],
                        struct hspmd_error *err);

#endif
