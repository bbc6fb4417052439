/* SPDX-License-Identifier: Apache-2.0 */
/* A munged of the test's own, in its own folder. It ends with the test, also if an assertion fails. */
#ifndef HSPMD_TESTS_OWN_MUNGED_H
#define HSPMD_TESTS_OWN_MUNGED_H

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/auth.h"

struct own_munged {
	char folder[32], socket[64];
	pid_t pid;
};

/* Starts it, and waits until it answers. Returns false if munged is not installed. */
static inline bool own_munged_start(struct own_munged *m)
{
	static const char daemon[] = "/usr/sbin/munged";
	char option[5][80];
	if (access(daemon, X_OK))
		return false;
	strcpy(m->folder, "/tmp/hspmd-test-XXXXXX");
	assert_non_null(mkdtemp(m->folder));
	snprintf(m->socket, sizeof m->socket, "%s/socket", m->folder);
	snprintf(option[0], sizeof option[0], "--socket=%s", m->socket);
	snprintf(option[1], sizeof option[1], "--key-file=%s/key", m->folder);
	snprintf(option[2], sizeof option[2], "--pid-file=%s/pid", m->folder);
	snprintf(option[3], sizeof option[3], "--log-file=%s/log", m->folder);
	snprintf(option[4], sizeof option[4], "--seed-file=%s/seed", m->folder);
	FILE *f = fopen(strchr(option[1], '=') + 1, "w");
	assert_non_null(f);
	for (int i = 0; i < 128; i++)
		putc(rand(), f);
	fclose(f);
	chmod(strchr(option[1], '=') + 1, 0600);
	m->pid = fork();
	if (!m->pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		execl(daemon, daemon, "--foreground", "--force", option[0], option[1], option[2], option[3], option[4], (char *)NULL);
		_exit(127);
	}
	struct hspmd_error err = { "" };
	struct hspmd_auth *a = hspmd_auth_munge(m->socket, &err);
	json_t *content = json_object(), *sealed = NULL;
	for (int i = 0; i < 500 && !sealed && !waitpid(m->pid, NULL, WNOHANG); i++) { /* each attempt waits a while by itself */
		sealed = hspmd_auth_seal(a, "hello", "n", content, getuid(), &err);
		if (!sealed)
			usleep(10000);
	}
	if (!sealed)
		fail_msg("%s", err.text);
	json_decref(sealed);
	json_decref(content);
	hspmd_auth_destroy(a);
	return true;
}

static inline void own_munged_stop(struct own_munged *m)
{
	char clean[64];
	kill(m->pid, SIGKILL);
	waitpid(m->pid, NULL, 0);
	snprintf(clean, sizeof clean, "rm -rf %s", m->folder);
	assert_int_equal(system(clean), 0);
}

#endif
