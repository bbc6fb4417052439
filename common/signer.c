/* SPDX-License-Identifier: Apache-2.0 */
#include "common/signer.h"

#include <stdint.h>
#include <stdlib.h>

#include <openssl/crypto.h>
#include <openssl/evp.h>

struct hspmd_signer {
	EVP_MD_CTX *keyed, *frame; /* HMAC after the key; HMAC of one frame */
	uint64_t number;           /* of the next frame */
};

static int set_key(struct hspmd_signer *s, const unsigned char *key)
{
	EVP_PKEY *k = EVP_PKEY_new_raw_private_key(EVP_PKEY_HMAC, NULL, key, HSPMD_KEY_BYTES);
	int rc = k && EVP_DigestSignInit(s->keyed, NULL, EVP_sha256(), NULL, k) == 1 ? 0 : -1;
	EVP_PKEY_free(k);
	return rc;
}

struct hspmd_signer *hspmd_signer_create(const unsigned char key[HSPMD_KEY_BYTES], struct hspmd_error *err)
{
	struct hspmd_signer *s = calloc(1, sizeof *s);
	if (s && (s->keyed = EVP_MD_CTX_new()) && (s->frame = EVP_MD_CTX_new()) && !set_key(s, key))
		return s;
	hspmd_signer_destroy(s);
	hspmd_fail(err, "libcrypto gives no HMAC-SHA256");
	return NULL;
}

void hspmd_signer_destroy(struct hspmd_signer *s)
{
	if (!s)
		return;
	EVP_MD_CTX_free(s->keyed);
	EVP_MD_CTX_free(s->frame);
	free(s);
}

int hspmd_signer_sign(struct hspmd_signer *s, const void *frame, size_t size, unsigned char signature[HSPMD_SIGNATURE_BYTES],
                      struct hspmd_error *err)
{
	unsigned char number[8];
	size_t length = HSPMD_SIGNATURE_BYTES;
	for (int i = 0; i < 8; i++)
		number[i] = (unsigned char)(s->number >> (56 - 8 * i));
	s->number++;
	if (EVP_MD_CTX_copy_ex(s->frame, s->keyed) != 1 || EVP_DigestSignUpdate(s->frame, number, sizeof number) != 1 ||
	    EVP_DigestSignUpdate(s->frame, frame, size) != 1 || EVP_DigestSignFinal(s->frame, signature, &length) != 1 ||
	    length != HSPMD_SIGNATURE_BYTES)
		return hspmd_fail(err, "libcrypto cannot sign a control message");
	return 0;
}

int hspmd_signer_verify(struct hspmd_signer *s, const void *frame, size_t size, const unsigned char signature[HSPMD_SIGNATURE_BYTES],
                        struct hspmd_error *err)
{
	unsigned char right[HSPMD_SIGNATURE_BYTES];
	if (hspmd_signer_sign(s, frame, size, right, err))
		return -1;
	if (CRYPTO_memcmp(right, signature, sizeof right))
		return hspmd_fail(err, "a message was changed, repeated or left out on the way: its signature is wrong");
	return 0;
}
