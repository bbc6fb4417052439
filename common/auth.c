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

#include "common/alloc.h"
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

struct hspmd_auth *hspmd_auth_copy(const struct hspmd_auth *a, struct hspmd_error *err)
{
	return a->cookie ? hspmd_auth_cookie(a->cookie, err) : hspmd_auth_munge(a->socket, err);
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

static json_t *munge_seal(const struct hspmd_auth *a, const char *purpose, const char *text, uid_t reader, struct hspmd_error *err)
{
	munge_ctx_t ctx = munge_context(a, err);
	if (!ctx)
		return NULL;
	char *credential = NULL;
	json_t *sealed = NULL;
	munge_err_t rc = munge_ctx_set(ctx, MUNGE_OPT_UID_RESTRICTION, reader);
	if (rc == EMUNGE_SUCCESS)
		rc = munge_encode(&credential, ctx, text, (int)strlen(text));
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
static json_t *munge_seal(const struct hspmd_auth *a, const char *purpose, const char *text, uid_t reader, struct hspmd_error *err)
{
	(void)a, (void)purpose, (void)text, (void)reader;
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

json_t *hspmd_auth_seal(const struct hspmd_auth *a, const char *purpose, const char *nonce, json_t *content, uid_t reader,
                        struct hspmd_error *err)
{
	json_t *said = json_pack("{s:s, s:s, s:O}", "purpose", purpose, "nonce", nonce, "content", content);
	char *text = said ? json_dumps(said, JSON_COMPACT) : NULL;
	json_decref(said);
	if (!text) {
		hspmd_fail_memory(err, "making a proof");
		return NULL;
	}
	json_t *sealed = a->cookie ? cookie_seal(a, purpose, text, err) : munge_seal(a, purpose, text, reader, err);
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

/* ---- versions */

int hspmd_auth_add_version(json_t *content, struct hspmd_error *err)
{
	if (json_object_set_new(content, "protocol", json_integer(HSPMD_PROTOCOL)) ||
	    json_object_set_new(content, "version", json_string(PACKAGE_VERSION)))
		return hspmd_fail_memory(err, "preparing a handshake");
	return 0;
}

int hspmd_auth_check_protocol(const json_t *content, const char *who, struct hspmd_error *err)
{
	const json_t *protocol = json_object_get(content, "protocol");
	const char *version = json_string_value(json_object_get(content, "version"));
	long long number = json_is_integer(protocol) ? json_integer_value(protocol) : 1;
	if (number == HSPMD_PROTOCOL)
		return 0;
	return hspmd_fail(
	        err,
	        "%s is %s%.32s (protocol %lld), this is hspmd %s (protocol %d), and they do not understand each other: use the same "
	        "version on both sides; a running job changes its version when it is requeued, hspmdctld when it is restarted",
	        who, version ? "hspmd " : "an older hspmd", version ? version : "", number, PACKAGE_VERSION, HSPMD_PROTOCOL);
}

/* ---- signed streams */

int hspmd_auth_add_key(json_t *content, struct hspmd_error *err)
{
	char key[HSPMD_NONCE_HEX];
	if (hspmd_auth_nonce(key, err))
		return -1;
	int rc = json_object_set_new(content, "key", json_string(key)) ? hspmd_fail_memory(err, "preparing a handshake") : 0;
	explicit_bzero(key, sizeof key);
	return rc ? rc : hspmd_auth_add_version(content, err);
}

/* The key of one direction: HMAC-SHA256, under the cookie or, with MUNGE, under the secret keys, of all that the handshake has. */
static struct hspmd_signer *make_signer(const struct hspmd_auth *a, const char *direction, const char *nonce, const json_t *hello,
                                        const json_t *welcome, struct hspmd_error *err)
{
	const char *part[] = { json_string_value(json_object_get(hello, "key")), json_string_value(json_object_get(welcome, "key")),
		               json_string_value(json_object_get(hello, "nonce")) };
	unsigned char key[EVP_MAX_MD_SIZE];
	unsigned int size = 0;
	if (!part[0] || strlen(part[0]) < HSPMD_NONCE_HEX - 1 || !part[1] || strlen(part[1]) < HSPMD_NONCE_HEX - 1 || !part[2]) {
		hspmd_fail(err, "the handshake has no keys");
		return NULL;
	}
	char *text = hspmd_asprintf("hspmd %d %s|%s|%s|%s|%s", HSPMD_PROTOCOL, direction, nonce, part[2], part[0], part[1]);
	const char *under = a->cookie ? a->cookie : part[0];
	struct hspmd_signer *s = NULL;
	if (!text)
		hspmd_fail_memory(err, "preparing a signed connection");
	else if (!HMAC(EVP_sha256(), under, (int)strlen(under), (unsigned char *)text, strlen(text), key, &size) || size != HSPMD_KEY_BYTES)
		hspmd_fail(err, "libcrypto gives no HMAC-SHA256");
	else
		s = hspmd_signer_create(key, err);
	explicit_bzero(key, sizeof key);
	if (text)
		explicit_bzero(text, strlen(text));
	free(text);
	return s;
}

int hspmd_auth_sign_stream(const struct hspmd_auth *a, struct hspmd_stream *s, bool server, const char *nonce, const json_t *hello,
                           const json_t *welcome, struct hspmd_error *err)
{
	struct hspmd_signer *to_client = make_signer(a, "to client", nonce, hello, welcome, err);
	struct hspmd_signer *to_server = to_client ? make_signer(a, "to server", nonce, hello, welcome, err) : NULL;
	if (to_server)
		return hspmd_stream_sign(s, server ? to_client : to_server, server ? to_server : to_client, err);
	hspmd_signer_destroy(to_client);
	return -1;
}

/* ---- the client's side */

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

/* Answers the challenge, and returns the content of the welcome: a new reference, or NULL and err. */
static json_t *greet(const struct hspmd_auth *a, struct hspmd_stream *s, const char *nonce, json_t *hello, uid_t owner, double deadline,
                     bool *again, struct hspmd_error *err)
{
	char own[HSPMD_NONCE_HEX];
	uid_t who = (uid_t)-1;
	*again = false;
	if (hspmd_auth_nonce(own, err) || hspmd_auth_add_key(hello, err))
		return NULL;
	json_t *sealed = NULL, *answer = NULL, *content = NULL;
	if (json_object_set_new(hello, "nonce", json_string(own)))
		hspmd_fail_memory(err, "saying hello");
	else if ((sealed = hspmd_auth_seal(a, "hello", nonce, hello, owner, err)) && !hspmd_stream_send(s, sealed, err) &&
	         (answer = next(s, "welcome", deadline, again, err)))
		content = hspmd_auth_open(a, "welcome", own, answer, &who, err);
	if (content && who != owner) {
		hspmd_fail(err, "the controller's port is held by user %u, not by user %u", (unsigned)who, (unsigned)owner);
		json_decref(content);
		content = NULL;
	}
	json_decref(sealed);
	json_decref(answer);
	return content;
}

int hspmd_auth_handshake(const struct hspmd_auth *a, struct hspmd_stream *s, json_t *hello, uid_t owner, double timeout_s, json_t **welcome,
                         struct hspmd_error *err)
{
	double deadline = hspmd_now() + timeout_s;
	bool again = false;
	json_t *challenge = next(s, "challenge", deadline, &again, err), *content = NULL;
	const char *nonce = json_string_value(json_object_get(challenge, "nonce"));
	int rc = -1;
	if (challenge && !nonce)
		hspmd_fail(err, "the controller's challenge has no nonce");
	else if (challenge && !hspmd_auth_check_protocol(challenge, "the other side", err) &&
	         (content = greet(a, s, nonce, hello, owner, deadline, &again, err)))
		rc = hspmd_auth_sign_stream(a, s, false, nonce, hello, content, err);
	if (!rc && welcome)
		*welcome = json_incref(content);
	json_decref(challenge);
	json_decref(content);
	return rc && again ? HSPMD_AUTH_AGAIN : rc;
}
