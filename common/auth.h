/* SPDX-License-Identifier: Apache-2.0 */
/* Who speaks on a control connection.
 *
 * The one who accepts (the job controller) speaks first; both sides prove themselves and both bind what they say to a fresh nonce of the
 * other, so that nothing that was said once can be said again, and nobody can take a proof and put other words under it:
 *
 *   controller -> challenge  nonce: hex, job: id
 *   client     -> hello      proof of { purpose "hello", nonce, content: { role, ..., nonce: the client's } }
 *   controller -> welcome    proof of { purpose "welcome", nonce: the client's, content: { ... } }   or   refused  text
 *
 * A proof is a MUNGE credential with these words as payload; or, where there is no MUNGE (--local, or built without), the words and their
 * HMAC-SHA256 under a secret cookie that both sides hold: in the 0600 contact file of the job, or inherited in the environment. The roles:
 * "agent", "command". What follows on the connection is trusted as the connection is: MUNGE keeps strangers out, it does not encrypt.
 */
#ifndef HSPMD_COMMON_AUTH_H
#define HSPMD_COMMON_AUTH_H

#include <jansson.h>
#include <sys/types.h>

#include "common/error.h"
#include "common/stream.h"

#define HSPMD_NONCE_HEX 65         /* 32 random bytes in hexadecimal, and NUL */
#define HSPMD_HELLO_MAX (1u << 20) /* longest frame accepted from a peer that has not proved itself */

struct hspmd_auth;

/* Prove by MUNGE; socket NULL: munged's default. Fails when built without MUNGE. Whether munged answers shows with the first proof. */
struct hspmd_auth *hspmd_auth_munge(const char *socket, struct hspmd_error *err);
/* Prove by a shared secret of at least 32 characters; copied. */
struct hspmd_auth *hspmd_auth_cookie(const char *cookie, struct hspmd_error *err);
void hspmd_auth_destroy(struct hspmd_auth *a);
/* The cookie (for the contact file and the agents' environment), or NULL with MUNGE. */
const char *hspmd_auth_secret(const struct hspmd_auth *a);

/* 32 random bytes from the kernel, in hexadecimal. */
int hspmd_auth_nonce(char hex[HSPMD_NONCE_HEX], struct hspmd_error *err);

/* A message of type `purpose` that proves who says `content` to the one who made `nonce`. New reference. */
json_t *hspmd_auth_seal(const struct hspmd_auth *a, const char *purpose, const char *nonce, json_t *content, struct hspmd_error *err);
/* What such a message says (new reference) and who says it; NULL and err when it is forged, of another purpose, or not an answer to
 * `nonce`. By cookie `who` is this process's own user. Whether that user may speak here is the caller's to decide. */
json_t *hspmd_auth_open(const struct hspmd_auth *a, const char *purpose, const char *nonce, const json_t *sealed, uid_t *who,
                        struct hspmd_error *err);

/* The client's side, whole: take the challenge, say hello (a "nonce" is added to it), take the welcome. 0, or -1 within timeout_s.
 * `owner` is the user the other side must be; the welcome's content goes to *welcome (new reference) when not NULL. */
int hspmd_auth_handshake(const struct hspmd_auth *a, struct hspmd_stream *s, json_t *hello, uid_t owner, double timeout_s, json_t **welcome,
                         struct hspmd_error *err);

#endif
