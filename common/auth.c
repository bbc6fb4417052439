/* SPDX-License-Identifier: Apache-2.0 */
#include "common/auth.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "common/clock.h"

#ifdef HAVE_MUNGE
#include <munge.h>
#endif

#define COOKIE_MIN 32
#define MAC_BYTES 32 /* SHA-256 */

struct hspmd_auth {
	char *cookie; /* NULL: MUNGE */
	char *socket; /* of munged; NULL: the default */
};

struct hspmd_auth *hspmd_auth_munge(const char *socket, struct hspmd_error *err)
{
#ifdef HAVE_MUNGE
	struct hspmd_auth *a = calloc(1, sizeof *a);
	if (a && socket)
		a->socket = strdup(socket);
	if (!a || (socket && !a->socket)) {
		free(a);
		hspmd_fail_memory(err, "preparing MUNGE");
		return NULL;
	}
	return a;
#else
	(void)socket;
	hspmd_fail(err, "hspmd was built without MUNGE");
	return NULL;
#endif
}

struct hspmd_auth *hspmd_auth_cookie(const char *cookie, struct hspmd_error *err)
{
	if (!cookie || strlen(cookie) < COOKIE_MIN) {
		hspmd_fail(err, "the secret cookie is missing or shorter than %d characters", COOKIE_MIN);
		return NULL;
	}
	struct hspmd_auth *a = calloc(1, sizeof *a);
	if (!a || !(a->cookie = strdup(cookie))) {
		free(a);
		hspmd_fail_memory(err, "keeping the cookie");
		return NULL;
	}
	return a;
}

void hspmd_auth_destroy(struct hspmd_auth *a)
{
	if (!a)
		return;
	if (a->cookie)
		explicit_bzero(a->cookie, strlen(a->cookie));
	free(a->cookie);
	free(a->socket);
	free(a);
}

const char *hspmd_auth_secret(const struct hspmd_auth *a)
{
	return a->cookie;
}

static void to_hex(const unsigned char *bytes, size_t size, char *hex)
{
	static const char digits[] = "0123456789abcdef";
	for (size_t i = 0; i < size; i++) {
		hex[2 * i] = digits[bytes[i] >> 4];
		hex[2 * i + 1] = digits[bytes[i] & 15];
	}
	hex[2 * size] = '\0';
}

int hspmd_auth_nonce(char hex[HSPMD_NONCE_HEX], struct hspmd_error *err)
{
	unsigned char bytes[32];
	size_t have = 0;
	while (have < sizeof bytes) {
		ssize_t n = getrandom(bytes + have, sizeof bytes - have, 0);
		if (n < 0 && errno != EINTR)
			return hspmd_fail_errno(err, "asking the kernel for random bytes");
		if (n > 0)
			have += (size_t)n;
	}
	to_hex(bytes, sizeof bytes, hex);
	return 0;
}

#ifdef HAVE_MUNGE
static munge_ctx_t munge_context(const struct hspmd_auth *a, struct hspmd_error *err)
{
	munge_ctx_t ctx = munge_ctx_create();
	if (!ctx) {
		hspmd_fail_memory(err, "preparing MUNGE");
		return NULL;
	}
	if (a->socket && munge_ctx_set(ctx, MUNGE_OPT_SOCKET, a->socket) != EMUNGE_SUCCESS) {
		hspmd_fail(err, "MUNGE: socket %s: %s", a->socket, munge_ctx_strerror(ctx));
		munge_ctx_destroy(ctx);
		return NULL;
	}
	return ctx;
}

static json_t *munge_seal(const struct hspmd_auth *a, const char *purpose, const char *text, struct hspmd_error *err)
{
	munge_ctx_t ctx = munge_context(a, err);
	if (!ctx)
		return NULL;
	char *credential = NULL;
	json_t *sealed = NULL;
	munge_err_t rc = munge_encode(&credential, ctx, text, (int)strlen(text));
	if (rc != EMUNGE_SUCCESS)
		hspmd_fail(err, "MUNGE: %s", munge_ctx_strerror(ctx) ? munge_ctx_strerror(ctx) : munge_strerror(rc));
	else if (!(sealed = json_pack("{s:s, s:s}", "type", purpose, "credential", credential)))
		hspmd_fail_memory(err, "making a credential");
	free(credential);
	munge_ctx_destroy(ctx);
	return sealed;
}

/* The payload of a credential, malloc'd and NUL-terminated. */
static char *munge_text(const struct hspmd_auth *a, const json_t *sealed, uid_t *who, struct hspmd_error *err)
{
	const char *credential = json_string_value(json_object_get(sealed, "credential"));
	if (!credential) {
		hspmd_fail(err, "no MUNGE credential");
		return NULL;
	}
	munge_ctx_t ctx = munge_context(a, err);
	if (!ctx)
		return NULL;
	void *payload = NULL;
	int length = 0;
	gid_t group;
	char *text = NULL;
	munge_err_t rc = munge_decode(credential, ctx, &payload, &length, who, &group);
	if (rc != EMUNGE_SUCCESS)
		hspmd_fail(err, "MUNGE: %s", munge_ctx_strerror(ctx) ? munge_ctx_strerror(ctx) : munge_strerror(rc));
	else if (!payload || length <= 0)
		hspmd_fail(err, "MUNGE credential without a payload");
	else if (!(text = strndup(payload, (size_t)length)))
		hspmd_fail_memory(err, "reading a credential");
	free(payload);
	munge_ctx_destroy(ctx);
	return text;
}
#else
static json_t *munge_seal(const struct hspmd_auth *a, const char *purpose, const char *text, struct hspmd_error *err)
{
	(void)a, (void)purpose, (void)text;
	hspmd_fail(err, "hspmd was built without MUNGE");
	return NULL;
}

static char *munge_text(const struct hspmd_auth *a, const json_t *sealed, uid_t *who, struct hspmd_error *err)
{
	(void)a, (void)sealed, (void)who;
	hspmd_fail(err, "hspmd was built without MUNGE");
	return NULL;
}
#endif

/* HMAC-SHA256 of the text under the cookie. */
static int mac_of(const struct hspmd_auth *a, const char *text, char hex[2 * MAC_BYTES + 1], struct hspmd_error *err)
{
	unsigned char mac[EVP_MAX_MD_SIZE];
	unsigned int size = 0;
	if (!HMAC(EVP_sha256(), a->cookie, (int)strlen(a->cookie), (const unsigned char *)text, strlen(text), mac, &size) ||
	    size != MAC_BYTES)
		return hspmd_fail(err, "libcrypto gives no HMAC-SHA256");
	to_hex(mac, size, hex);
	return 0;
}

static json_t *cookie_seal(const struct hspmd_auth *a, const char *purpose, const char *text, struct hspmd_error *err)
{
	char mac[2 * MAC_BYTES + 1];
	if (mac_of(a, text, mac, err))
		return NULL;
	json_t *sealed = json_pack("{s:s, s:s, s:s}", "type", purpose, "words", text, "mac", mac);
	if (!sealed)
		hspmd_fail_memory(err, "making a proof");
	return sealed;
}

static char *cookie_text(const struct hspmd_auth *a, const json_t *sealed, uid_t *who, struct hspmd_error *err)
{
	const char *text = json_string_value(json_object_get(sealed, "words"));
	const char *given = json_string_value(json_object_get(sealed, "mac"));
	char mac[2 * MAC_BYTES + 1];
	if (text && mac_of(a, text, mac, err))
		return NULL;
	/* In constant time. */
	if (!text || !given || strlen(given) != 2 * MAC_BYTES || CRYPTO_memcmp(mac, given, 2 * MAC_BYTES)) {
		hspmd_fail(err, "does not know the job's cookie");
		return NULL;
	}
	char *copy = strdup(text);
	if (!copy)
		hspmd_fail_memory(err, "reading a proof");
	*who = getuid();
	return copy;
}

json_t *hspmd_auth_seal(const struct hspmd_auth *a, const char *purpose, const char *nonce, json_t *content, struct hspmd_error *err)
{
	json_t *said = json_pack("{s:s, s:s, s:O}", "purpose", purpose, "nonce", nonce, "content", content);
	char *text = said ? json_dumps(said, JSON_COMPACT) : NULL;
	json_decref(said);
	if (!text) {
		hspmd_fail_memory(err, "making a proof");
		return NULL;
	}
	json_t *sealed = a->cookie ? cookie_seal(a, purpose, text, err) : munge_seal(a, purpose, text, err);
	free(text);
	return sealed;
}

static bool text_is(const json_t *object, const char *key, const char *wanted)
{
	const char *text = json_string_value(json_object_get(object, key));
	return text && !strcmp(text, wanted);
}

json_t *hspmd_auth_open(const struct hspmd_auth *a, const char *purpose, const char *nonce, const json_t *sealed, uid_t *who,
                        struct hspmd_error *err)
{
	if (!text_is(sealed, "type", purpose)) {
		const char *type = json_string_value(json_object_get(sealed, "type"));
		hspmd_fail(err, "expected %s, got %.32s", purpose, type ? type : "a message without a type");
		return NULL;
	}
	char *text = a->cookie ? cookie_text(a, sealed, who, err) : munge_text(a, sealed, who, err);
	if (!text)
		return NULL;
	json_t *said = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
	free(text);
	json_t *content = NULL;
	if (!text_is(said, "purpose", purpose) || !text_is(said, "nonce", nonce))
		hspmd_fail(err, "the %s is not an answer to this connection's challenge", purpose);
	else if (!json_is_object(content = json_object_get(said, "content")))
		hspmd_fail(err, "the %s says nothing", purpose), content = NULL;
	json_incref(content);
	json_decref(said);
	return content;
}

/* The next message, which must be of this type unless it is "refused". *again: whether a later call may succeed. */
static json_t *next(struct hspmd_stream *s, const char *type, double deadline, bool *again, struct hspmd_error *err)
{
	json_t *m;
	double left = deadline - hspmd_now();
	int rc = hspmd_stream_receive(s, left > 0 ? left : 0, &m, err);
	*again = rc <= 0;
	if (rc < 0) {
		hspmd_error_prefix(err, "waiting for the controller's %s", type);
		return NULL;
	}
	if (!rc) {
		hspmd_fail(err, "the controller closed the connection before its %s", type);
		return NULL;
	}
	if (text_is(m, "type", type))
		return m;
	const char *why = text_is(m, "type", "refused") ? json_string_value(json_object_get(m, "text")) : NULL;
	*again = why && json_is_true(json_object_get(m, "again"));
	if (why)
		hspmd_fail(err, "the controller refused: %.500s", why);
	else
		hspmd_fail(err, "the other side does not answer as a controller would");
	json_decref(m);
	return NULL;
}

int hspmd_auth_handshake(const struct hspmd_auth *a, struct hspmd_stream *s, json_t *hello, uid_t owner, double timeout_s, json_t **welcome,
                         struct hspmd_error *err)
{
	double deadline = hspmd_now() + timeout_s;
	char own[HSPMD_NONCE_HEX];
	uid_t who = (uid_t)-1;
	json_t *sealed = NULL, *answer = NULL, *content = NULL;
	bool again = false;
	json_t *challenge = next(s, "challenge", deadline, &again, err);
	int rc = challenge ? hspmd_auth_nonce(own, err) : -1;
	const char *nonce = json_string_value(json_object_get(challenge, "nonce"));
	if (!rc && !nonce)
		rc = hspmd_fail(err, "the controller's challenge has no nonce");
	if (!rc && json_object_set_new(hello, "nonce", json_string(own)))
		rc = hspmd_fail_memory(err, "saying hello");
	if (!rc && (!(sealed = hspmd_auth_seal(a, "hello", nonce, hello, err)) || hspmd_stream_send(s, sealed, err)))
		rc = -1;
	if (!rc &&
	    (!(answer = next(s, "welcome", deadline, &again, err)) || !(content = hspmd_auth_open(a, "welcome", own, answer, &who, err))))
		rc = -1;
	if (!rc && who != owner)
		rc = hspmd_fail(err, "the controller's port is held by user %u, not by user %u", (unsigned)who, (unsigned)owner);
	if (!rc && welcome)
		*welcome = json_incref(content);
	json_decref(challenge);
	json_decref(sealed);
	json_decref(answer);
	json_decref(content);
	return rc && again ? HSPMD_AUTH_AGAIN : rc;
}
