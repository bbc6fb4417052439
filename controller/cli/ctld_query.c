/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/cli/ctld_query.h"

#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/auth.h"
#include "common/clock.h"
#include "common/contact.h"
#include "controller/ctld_client/protocol.h"

#define ANSWER_MAX (64u << 20)
#define UNSENT_MAX (1u << 20)
#define AGAIN_S 0.2

static uid_t owner_of(const char **where)
{
	char *end;
	unsigned long uid = strtoul(*where, &end, 10);
	if (end != *where && *end == '@') {
		*where = end + 1;
		return (uid_t)uid;
	}
	const struct passwd *pw = getpwnam("slurm");
	return pw ? pw->pw_uid : 0;
}

static int call(const char *where, double timeout_s, struct hspmd_error *err)
{
	json_t *list = json_pack("[s]", where);
	int fd = list ? hspmd_connect_any(list, CTLD_PORT, timeout_s, err) : hspmd_fail_memory(err, "calling hspmdctld");
	json_decref(list);
	return fd < 0 ? hspmd_error_prefix(err, "calling hspmdctld") : fd;
}

static int talk(struct hspmd_stream *s, const struct hspmd_auth *auth, uid_t owner, json_t *request, double timeout_s, json_t **answer,
                struct hspmd_error *err)
{
	json_t *hello = json_pack("{s:s}", "role", "viewer");
	int rc = hello ? hspmd_auth_handshake(auth, s, hello, owner, timeout_s, NULL, err) : hspmd_fail_memory(err, "asking hspmdctld");
	if (rc == 0)
		rc = hspmd_stream_send(s, request, err);
	if (rc == 0 && (rc = hspmd_stream_receive(s, timeout_s, answer, err)) == 0)
		hspmd_fail(err, "hspmdctld has hung up");
	json_decref(hello);
	return rc > 0 ? 0 : -1;
}

json_t *hspmd_ctld_query(const char *where, const char *munge, json_t *request, double timeout_s, struct hspmd_error *err)
{
	uid_t owner = owner_of(&where);
	json_t *answer = NULL;
	struct hspmd_auth *auth = request ? hspmd_auth_munge(munge, err) : NULL;
	if (!request)
		hspmd_fail_memory(err, "asking hspmdctld");
	int fd = auth ? call(where, timeout_s, err) : -1;
	struct hspmd_stream *s = fd >= 0 ? hspmd_stream_create(fd, ANSWER_MAX, UNSENT_MAX, err) : NULL;
	if (s && talk(s, auth, owner, request, timeout_s, &answer, err) < 0) {
		json_decref(answer);
		answer = NULL;
	}
	hspmd_stream_destroy(s);
	hspmd_auth_destroy(auth);
	json_decref(request);
	return answer;
}

json_t *hspmd_ctld_query_quote(const char *where, const char *munge, json_t *request, double timeout_s, struct hspmd_error *err)
{
	double began = hspmd_now();
	for (json_t *last = NULL;;) {
		json_t *q = hspmd_ctld_query(where, munge, json_incref(request), timeout_s, err);
		double waited = hspmd_now() - began, age = json_number_value(json_object_get(q, "seen_s_ago"));
		bool fresh = q && age >= 0 && age < waited;
		json_decref(last);
		last = q;
		if (!q || fresh || waited + AGAIN_S > timeout_s) {
			json_decref(request);
			return q;
		}
		usleep((useconds_t)(AGAIN_S * 1e6));
	}
}
