/* SPDX-License-Identifier: Apache-2.0 */
#include "common/contact.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/address.h"
#include "common/alloc.h"
#include "common/clock.h"
#include "common/durable.h"

#define CONTACT_MAX (64u << 10)
#define FRAME_MAX HSPMD_WIRE_MAX
#define AGAIN_S 0.1 /* after the first refusal; twice as long after each further one */
#define AGAIN_MOST 5

static int connect_addrinfo(const struct addrinfo *a, double timeout_s)
{
	int fd = socket(a->ai_family, a->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, a->ai_protocol), one = 1, error = 0;
	socklen_t size = sizeof error;
	if (fd < 0)
		return -1;
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	struct pollfd p = { .fd = fd, .events = POLLOUT };
	if (connect(fd, a->ai_addr, a->ai_addrlen) && errno != EINPROGRESS)
		error = errno;
	else if (poll(&p, 1, (int)(timeout_s * 1e3)) <= 0)
		error = ETIMEDOUT;
	else
		getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
	if (!error)
		return fd;
	close(fd);
	errno = error;
	return -1;
}

static int connect_address(const char *address, int default_port, double timeout_s, struct hspmd_error *err)
{
	struct addrinfo *list = hspmd_address_resolve(address, default_port, false, err);
	int fd = -1;
	for (struct addrinfo *a = list; a && fd < 0; a = a->ai_next)
		if ((fd = connect_addrinfo(a, timeout_s)) < 0)
			hspmd_fail_errno(err, "connecting to %s", address);
	if (list)
		freeaddrinfo(list);
	return fd;
}

int hspmd_connect_any(const json_t *addresses, int default_port, double timeout_s, struct hspmd_error *err)
{
	size_t i;
	json_t *v;
	hspmd_fail(err, "no address to connect to");
	json_array_foreach(addresses, i, v) {
		int fd = json_is_string(v) ? connect_address(json_string_value(v), default_port, timeout_s, err) : -1;
		if (fd >= 0)
			return fd;
	}
	return -1;
}

char *hspmd_contact_folder(struct hspmd_error *err)
{
	const char *home = getenv("HOME"), *other = getenv("HSPMD_CONTACTS");
	struct passwd *p;
	if (other && other[0] == '/') {
		char *copy = strdup(other);
		if (!copy)
			hspmd_fail_memory(err, "finding contact files");
		return copy;
	}
	if ((!home || home[0] != '/') && (p = getpwuid(getuid())))
		home = p->pw_dir;
	if (!home || home[0] != '/') {
		hspmd_fail(err, "no home folder: HOME is not set");
		return NULL;
	}
	char *folder = hspmd_asprintf("%s/.hspmd/jobs", home);
	if (!folder)
		hspmd_fail_memory(err, "finding the home folder");
	return folder;
}

int hspmd_contact_write(const char *path, const json_t *contact, struct hspmd_error *err)
{
	char *text = json_dumps(contact, JSON_INDENT(2)), *folder = strdup(path);
	int rc = text && folder ? 0 : hspmd_fail_memory(err, "writing the contact file");
	if (!rc) {
		*strrchr(folder, '/') = 0;
		mode_t old = umask(077);
		rc = hspmd_durable_mkdir(folder, 0700, err);
		if (!rc)
			rc = hspmd_durable_write(path, text, strlen(text), err);
		umask(old);
	}
	free(text);
	free(folder);
	return rc;
}

static json_t *read_contact(const char *path, struct hspmd_error *err)
{
	struct stat st;
	if (stat(path, &st)) {
		hspmd_fail_errno(err, "%s", path);
		return NULL;
	}
	if ((st.st_uid != getuid() && getuid() != 0) || !S_ISREG(st.st_mode) || (st.st_mode & 077)) {
		hspmd_fail(err, "%s: must belong to this user and be closed to others (mode 0600)", path);
		return NULL;
	}
	size_t size;
	char *text = hspmd_read_file(path, CONTACT_MAX, &size, err);
	json_t *v = text ? json_loadb(text, size, 0, NULL) : NULL;
	free(text);
	if (text && (!json_is_object(v) || !json_is_array(json_object_get(v, "addresses")))) {
		hspmd_fail(err, "%s: not a contact file", path);
		json_decref(v);
		return NULL;
	}
	/* Root may look at any user's job, but not be led to another user's. */
	const json_t *user = json_object_get(v, "user");
	if (v && json_is_integer(user) && (uid_t)json_integer_value(user) != st.st_uid) {
		hspmd_fail(err, "%s: belongs to user %u, and is of a job of user %lld", path, (unsigned)st.st_uid,
		           (long long)json_integer_value(user));
		json_decref(v);
		return NULL;
	}
	return v;
}

/* Returns true if the file name "CLUSTER-JOBID.json" belongs to the job. "local" matches any job outside of Slurm. */
static bool names(const char *file, const char *job)
{
	size_t n = strlen(file), j = strlen(job);
	if (n < j + 6 || strcmp(file + n - 5, ".json"))
		return false;
	if (!strcmp(job, "local"))
		return !strncmp(file, "local-", 6);
	return !strncmp(file + n - 5 - j, job, j) && file[n - 6 - j] == '-';
}

static char *newest(const char *folder, const char *job, const char *cluster)
{
	DIR *d = opendir(folder);
	struct dirent *e;
	char *best = NULL;
	double best_time = -1;
	while (d && (e = readdir(d))) {
		struct stat st;
		char *path = names(e->d_name, job) ? hspmd_asprintf("%s/%s", folder, e->d_name) : NULL;
		if (!path)
			continue;
		bool right = cluster && !strncmp(e->d_name, cluster, strlen(cluster)) && e->d_name[strlen(cluster)] == '-';
		double when = stat(path, &st) ? -1 : (double)st.st_mtim.tv_sec + 1e-9 * (double)st.st_mtim.tv_nsec + (right ? 1e12 : 0);
		if (when > best_time) {
			free(best);
			best = path;
			best_time = when;
		} else {
			free(path);
		}
	}
	if (d)
		closedir(d);
	return best;
}

json_t *hspmd_contact_find(const char *job, const char *cluster, struct hspmd_error *err)
{
	struct stat st;
	if (strchr(job, '/') || (!stat(job, &st) && S_ISDIR(st.st_mode))) {
		char *path = hspmd_asprintf("%s/contact.json", job);
		json_t *v = path && (!stat(path, &st) || errno != ENOENT) ? read_contact(path, err) : NULL;
		if (path && !v && !err->text[0])
			hspmd_fail(err, "no job is running whose output folder this is (it has no contact.json); hspmd events and "
			                "hspmd report show one that has ended");
		free(path);
		return v;
	}
	char *folder = hspmd_contact_folder(err);
	if (!folder)
		return NULL;
	char *path = newest(folder, job, cluster);
	json_t *v = NULL;
	if (path)
		v = read_contact(path, err);
	else if (!strcmp(job, "local"))
		hspmd_fail(err, "no run of this user outside of Slurm is going on (nothing of one in %s)", folder);
	else
		hspmd_fail(err, "no elastic job of this user with this id is running (nothing in %s)%s", folder,
		           getuid() ? "" : "; root may name the output folder of another user's job");
	free(path);
	free(folder);
	return v;
}

void hspmd_contact_remove(const char *path, const char *process)
{
	struct hspmd_error err;
	json_t *v = read_contact(path, &err);
	const char *writer = json_string_value(json_object_get(v, "process"));
	if (writer && !strcmp(writer, process))
		unlink(path);
	json_decref(v);
}

struct hspmd_auth *hspmd_contact_auth(const json_t *contact, struct hspmd_error *err)
{
	const char *by = json_string_value(json_object_get(contact, "auth"));
	if (by && !strcmp(by, "munge"))
		return hspmd_auth_munge(json_string_value(json_object_get(contact, "munge_socket")), err);
	return hspmd_auth_cookie(json_string_value(json_object_get(contact, "cookie")), err);
}

void hspmd_contact_pause(double mean_s)
{
	uint32_t random = 0;
	if (getrandom(&random, sizeof random, GRND_NONBLOCK) != sizeof random)
		random = (uint32_t)getpid() * 2654435761u;
	double s = mean_s * (0.5 + (double)random / UINT32_MAX);
	nanosleep(&(struct timespec){ .tv_sec = (time_t)s, .tv_nsec = (long)(1e9 * (s - (double)(time_t)s)) }, NULL);
}

/* One attempt, and as hspmd_auth_handshake returns. */
static int connect_once(const json_t *contact, const struct hspmd_auth *auth, uid_t owner, json_t *hello, double timeout_s,
                        struct hspmd_stream **to, json_t **welcome, struct hspmd_error *err)
{
	int fd = hspmd_connect_any(json_object_get(contact, "addresses"), -1, timeout_s, err);
	*to = fd >= 0 ? hspmd_stream_create(fd, FRAME_MAX, FRAME_MAX, err) : NULL;
	int status = *to ? hspmd_auth_handshake(auth, *to, hello, owner, timeout_s, welcome, err) : -1;
	if (status) {
		hspmd_stream_destroy(*to);
		*to = NULL;
	}
	return status;
}

struct hspmd_stream *hspmd_contact_connect(const json_t *contact, json_t *hello, double timeout_s, json_t **welcome,
                                           struct hspmd_error *err)
{
	if (hspmd_auth_check_protocol(contact, "the job", err))
		return NULL;
	struct hspmd_auth *auth = hspmd_contact_auth(contact, err);
	json_t *user = json_object_get(contact, "user");
	bool by_cookie = auth && hspmd_auth_secret(auth); /* which names no user */
	uid_t owner = json_is_integer(user) && !by_cookie ? (uid_t)json_integer_value(user) : getuid();
	struct hspmd_stream *s = NULL;
	double until = hspmd_now() + timeout_s, pause_s = AGAIN_S;
	int status = auth ? connect_once(contact, auth, owner, hello, timeout_s, &s, welcome, err) : -1;
	for (int n = 0; status == HSPMD_AUTH_AGAIN && n < AGAIN_MOST && hspmd_now() + pause_s < until; n++, pause_s *= 2) {
		hspmd_contact_pause(pause_s);
		status = connect_once(contact, auth, owner, hello, until - hspmd_now(), &s, welcome, err);
	}
	hspmd_auth_destroy(auth);
	return s;
}
