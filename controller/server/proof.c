/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/server/proof_internal.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define AT_ONCE 2 /* of libuv's four threads: a munged that hangs leaves the others to solving and to Slurm */

void proofs_init(struct proofs *all)
{
	STAILQ_INIT(&all->waiting);
	all->working = 0;
}

static void proof_free(struct proof *p)
{
	json_decref(p->sealed);
	json_decref(p->hello);
	json_decref(p->welcome);
	json_decref(p->answer);
	free(p);
}

static int check_hello(struct proof *p)
{
	const char *nonce = json_string_value(json_object_get(p->hello, "nonce"));
	if (hspmd_auth_check_protocol(p->hello, "the caller", &p->err))
		return -2;
	if (p->all->owner_only && p->who != getuid() && p->who != 0) {
		hspmd_fail(&p->err, "user %u is not the owner of this job", (unsigned)p->who);
		return -2;
	}
	if (!nonce) {
		hspmd_fail(&p->err, "the hello has no nonce");
		return -2;
	}
	if (hspmd_auth_add_key(p->welcome, &p->err) ||
	    !(p->answer = hspmd_auth_seal(p->all->auth, "welcome", nonce, p->welcome, p->who, &p->err)))
		return -2;
	return 0;
}

static void work(uv_work_t *w)
{
	struct proof *p = w->data;
	p->hello = hspmd_auth_open(p->all->auth, "hello", p->nonce, p->sealed, &p->who, &p->err);
	p->status = p->hello ? check_hello(p) : -1;
}

static void work_done(uv_work_t *w, int status);

static void start_waiting(struct proofs *all)
{
	struct proof *p;
	while (all->working < AT_ONCE && (p = STAILQ_FIRST(&all->waiting))) {
		STAILQ_REMOVE_HEAD(&all->waiting, turn);
		p->work.data = p;
		if (p->context && !uv_queue_work(all->loop, &p->work, work, work_done))
			all->working++;
		else
			proof_free(p);
	}
}

static void work_done(uv_work_t *w, int status)
{
	struct proof *p = w->data;
	struct proofs *all = p->all;
	(void)status;
	all->working--;
	if (p->context)
		all->done(p->context, p);
	proof_free(p);
	start_waiting(all);
	if (!all->working)
		all->idle(all);
}

struct proof *proof_start(struct proofs *all, const char *nonce, json_t *sealed, void *context)
{
	struct proof *p = calloc(1, sizeof *p);
	if (!p || !(p->welcome = json_deep_copy(all->welcome))) {
		free(p);
		return NULL;
	}
	p->all = all;
	p->context = context;
	p->who = (uid_t)-1;
	p->sealed = json_incref(sealed);
	memcpy(p->nonce, nonce, sizeof p->nonce);
	STAILQ_INSERT_TAIL(&all->waiting, p, turn);
	start_waiting(all);
	return p;
}

void proof_abandon(struct proof *p)
{
	p->context = NULL;
}
