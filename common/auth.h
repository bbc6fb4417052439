/* SPDX-License-Identifier: Apache-2.0 */
/* Authentication of control connections.
 *
 * The side that accepts a connection (the job controller, or hspmdctld) speaks first. Both sides prove who they are, and each binds its
 * message to a fresh nonce of the other side. So no message can be replayed, and nobody can put other content under a proof:
 *
 *   controller -> challenge  nonce: hex, job: id (not from hspmdctld), protocol, version
 *   client     -> hello      proof of { purpose "hello", nonce, content: { role, ..., nonce: the client's, key, protocol, version } }
 *   controller -> welcome    proof of { purpose "welcome", nonce: the client's, content: { ..., key, protocol, version } }
 *                            or   refused  text, again: true if a later call may succeed
 *
 * A proof is a MUNGE credential whose payload is that text, and which only the other side's user can decode. Without MUNGE (--local, or
 * built without) a proof is the text and its HMAC-SHA256 under a secret cookie that both sides have: from the job's contact file (mode
 * 0600) or from the environment. Roles: "agent", "command".
 *
 * All frames after the welcome are signed (common/signer.h), each direction with a key of its own. The keys come from both sides' random
 * `key`, from both nonces and from the cookie. Only these two processes know them: MUNGE encrypts its payload, and the cookie is secret.
 * Whoever relays the handshake can therefore neither speak in it nor after it. Nothing is encrypted.
 *
 * protocol is HSPMD_PROTOCOL, and version hspmd's; without them the protocol is 1. Both are in the challenge only so that a side that is
 * too old or too new for the other can say so. */
#ifndef HSPMD_COMMON_AUTH_H
#define HSPMD_COMMON_AUTH_H

#include <jansson.h>
#include <stdbool.h>
#include <sys/types.h>

#include "common/error.h"
#include "common/stream.h"

#define HSPMD_PROTOCOL 4           /* of control connections; 3: with messages compressed by zlib alone, 2: not compressed, 1: not signed */
#define HSPMD_NONCE_HEX 65         /* 32 random bytes in hexadecimal, and NUL */
#define HSPMD_AUTH_AGAIN (-2)
#define HSPMD_HELLO_MAX (1u << 20) /* longest frame accepted before authentication */

struct hspmd_auth;

/* Proofs by MUNGE; socket NULL: munged's default. NULL and err if built without MUNGE. The first proof shows whether munged answers. */
struct hspmd_auth *hspmd_auth_munge(const char *socket, struct hspmd_error *err);
/* Proofs by a shared secret of at least 32 characters, which is copied. */
struct hspmd_auth *hspmd_auth_cookie(const char *cookie, struct hspmd_error *err);
/* A copy, for another thread. */
struct hspmd_auth *hspmd_auth_copy(const struct hspmd_auth *a, struct hspmd_error *err);
void hspmd_auth_destroy(struct hspmd_auth *a);
/* The cookie, for the contact file and the agents' environment; NULL with MUNGE. */
const char *hspmd_auth_secret(const struct hspmd_auth *a);

/* 32 random bytes from the kernel, in hexadecimal. */
int hspmd_auth_nonce(char hex[HSPMD_NONCE_HEX], struct hspmd_error *err);

/* Adds what each challenge, hello, welcome and contact file has: protocol and version. */
int hspmd_auth_add_version(json_t *content, struct hspmd_error *err);
/* Returns -1 and err if the sender of this (challenge, content of a proof, contact file) speaks another protocol: both versions, and what
 * to do. `who`: the sender, for the text. */
int hspmd_auth_check_protocol(const json_t *content, const char *who, struct hspmd_error *err);
/* Adds what the contents of hello and welcome have: a fresh key, protocol and version. */
int hspmd_auth_add_key(json_t *content, struct hspmd_error *err);

/* A message of type `purpose` that proves to the owner of `nonce` who sends `content`. With MUNGE only user `reader` can open it. New
 * reference; NULL and err. */
json_t *hspmd_auth_seal(const struct hspmd_auth *a, const char *purpose, const char *nonce, json_t *content, uid_t reader,
                        struct hspmd_error *err);
/* Returns the content of such a message (new reference), and its sender in *who. NULL and err if the message is forged, of another
 * purpose, or no answer to `nonce`. With a cookie `who` is the user of this process. The caller decides whether that user may connect. */
json_t *hspmd_auth_open(const struct hspmd_auth *a, const char *purpose, const char *nonce, const json_t *sealed, uid_t *who,
                        struct hspmd_error *err);
/* Signs all further messages of the stream with the keys that follow from the handshake. `server`: whether this side accepted the
 * connection; nonce: the challenge's; hello, welcome: the contents. -1 and err: the stream is of no more use. */
int hspmd_auth_sign_stream(const struct hspmd_auth *a, struct hspmd_stream *s, bool server, const char *nonce, const json_t *hello,
                           const json_t *welcome, struct hspmd_error *err);

/* The client's whole side: receive the challenge, send hello (this adds "nonce", "key" and the version to it), receive the welcome, sign
 * what follows. Blocks for up to timeout_s, and as long as munged takes to answer (libmunge gives up after some 10 s). Returns 0; -1 and
 * err; or HSPMD_AUTH_AGAIN and err if the other side had no room, or did not answer, and may take a later call. `owner`: the user that the
 * other side must be. *welcome gets the welcome's content (new reference) unless NULL. */
int hspmd_auth_handshake(const struct hspmd_auth *a, struct hspmd_stream *s, json_t *hello, uid_t owner, double timeout_s, json_t **welcome,
                         struct hspmd_error *err);

#endif
