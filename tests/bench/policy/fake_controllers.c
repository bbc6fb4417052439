/* SPDX-License-Identifier: Apache-2.0 */
/* Job controllers that train nothing: they connect to hspmdctld, send a scaling curve, and answer requests. For tests and benchmarks of
 * hspmdctld.
 *
 * fake_controllers --ctld UID@HOST:PORT --job ID [--count N] [--nodes N] [--min N] [--max N] [--rate R] [--power P] [--pause S] [--for S]
 *                  [--policy NAME] [--command COMMAND] [--cookie SECRET] [--munge SOCKET] [--decline]
 *                  [--churn S]
 *
 * --count: number of controllers, of jobs ID, ID + 1, ... --command: run "COMMAND grow N" or "COMMAND shrink NODE,NODE..." and answer by
 * its exit status; without it every request is answered at once. --churn: every S seconds one of them changes its rate. Prints a line per
 * request and answer. */
#include <getopt.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "common/clock.h"
#include "controller/ctld_client/client.h"

struct fake {
	struct ctld_client *link;
	uint32_t job;
	int nodes;
	double rate;
};

struct settings {
	const char *ctld, *policy, *command, *cookie, *munge;
	uint32_t job;
	int count, nodes, least, most;
	double rate, power, pause, seconds, churn;
	bool decline;
};

static int settings_read(int argc, char **argv, struct settings *s)
{
	static const struct option options[] = {
		{ "ctld", 1, NULL, 'c' },   { "job", 1, NULL, 'j' },     { "count", 1, NULL, 'n' },  { "nodes", 1, NULL, 'N' },
		{ "min", 1, NULL, 'm' },    { "max", 1, NULL, 'M' },     { "rate", 1, NULL, 'r' },   { "power", 1, NULL, 'p' },
		{ "pause", 1, NULL, 'P' },  { "for", 1, NULL, 'f' },     { "policy", 1, NULL, 'o' }, { "command", 1, NULL, 'x' },
		{ "cookie", 1, NULL, 'k' }, { "decline", 0, NULL, 'd' }, { "churn", 1, NULL, 'C' },  { "munge", 1, NULL, 'u' },
		{ NULL, 0, NULL, 0 },
	};
	int opt;
	while ((opt = getopt_long(argc, argv, "", options, NULL)) != -1)
		switch (opt) {
		case 'c':
			s->ctld = optarg;
			break;
		case 'j':
			s->job = (uint32_t)strtoul(optarg, NULL, 10);
			break;
		case 'n':
			s->count = atoi(optarg);
			break;
		case 'N':
			s->nodes = atoi(optarg);
			break;
		case 'm':
			s->least = atoi(optarg);
			break;
		case 'M':
			s->most = atoi(optarg);
			break;
		case 'r':
			s->rate = atof(optarg);
			break;
		case 'p':
			s->power = atof(optarg);
			break;
		case 'P':
			s->pause = atof(optarg);
			break;
		case 'f':
			s->seconds = atof(optarg);
			break;
		case 'o':
			s->policy = optarg;
			break;
		case 'x':
			s->command = optarg;
			break;
		case 'k':
			s->cookie = optarg;
			break;
		case 'd':
			s->decline = true;
			break;
		case 'u':
			s->munge = optarg;
			break;
		case 'C':
			s->churn = atof(optarg);
			break;
		default:
			return -1;
		}
	return s->ctld && s->job && s->count > 0 ? 0 : -1;
}

static void say_state(const struct settings *s, struct fake *f)
{
	json_t *curve = json_array();
	for (int n = 1; curve && n <= s->most; n++)
		json_array_append_new(curve, json_real(f->rate * pow(n, s->power)));
	json_t *state = json_pack("{s:i, s:i, s:i, s:f, s:f, s:o}", "min_nodes", s->least, "max_nodes", s->most, "nodes", f->nodes,
	                          "tokens_per_s", f->rate * pow(f->nodes, s->power), "pause_s", s->pause, "curve", curve);
	if (state && s->policy)
		json_object_set_new(state, "policy", json_string(s->policy));
	ctld_client_set_state(f->link, state);
	json_decref(state);
}

static int carry_out(const struct settings *s, const char *command, int by, const json_t *names)
{
	char text[4096];
	size_t n = (size_t)snprintf(text, sizeof text, "%s %s ", s->command, command), i;
	const json_t *name;
	if (!strcmp(command, "grow"))
		snprintf(text + n, sizeof text - n, "%d", by);
	else
		json_array_foreach(names, i, name)
			if (n < sizeof text)
				n += (size_t)snprintf(text + n, sizeof text - n, "%s%s", i ? "," : "", json_string_value(name));
	return system(text);
}

static void answer(const struct settings *s, struct fake *f, json_t *ask)
{
	const char *command = json_string_value(json_object_get(ask, "command"));
	const json_t *names = json_object_get(ask, "names");
	int by = (int)json_integer_value(json_object_get(ask, "by"));
	bool ok = !s->decline && (!s->command || carry_out(s, command, by, names) == 0);
	if (ok)
		f->nodes += !strcmp(command, "grow") ? by : -by;
	printf("%.3f job %u %s %d: %s (%s)\n", hspmd_unix_time(), f->job, command, by, ok ? "done" : "declined",
	       json_string_value(json_object_get(ask, "reason")));
	fflush(stdout);
	ctld_client_send_answer(f->link, json_integer_value(json_object_get(ask, "id")), ok, ok ? "" : "not now");
	say_state(s, f);
}

/* Waits for the first event, at most until `until`, and handles it. */
static void turn(const struct settings *s, struct fake *fakes, struct pollfd *fds, double until)
{
	double at = until;
	for (int i = 0; i < s->count; i++) {
		fds[i] = (struct pollfd){ .fd = ctld_client_fd(fakes[i].link),
			                  .events = POLLIN | (ctld_client_wants_write(fakes[i].link) ? POLLOUT : 0) };
		at = fmin(at, ctld_client_next_deadline(fakes[i].link));
	}
	double ms = (at - hspmd_now()) * 1000;
	poll(fds, (nfds_t)s->count, ms > 0 ? (int)ms + 1 : 0);
	double now = hspmd_now();
	for (int i = 0; i < s->count; i++) {
		if (!fds[i].revents && now < ctld_client_next_deadline(fakes[i].link))
			continue;
		bool up = ctld_client_is_connected(fakes[i].link);
		const char *trouble = ctld_client_last_error(fakes[i].link);
		bool in_trouble = *trouble;
		ctld_client_process(fakes[i].link);
		if (s->count == 1 && (up != ctld_client_is_connected(fakes[i].link) || in_trouble != !!*trouble))
			printf("%.3f job %u: %s\n", hspmd_unix_time(), fakes[i].job, *trouble ? trouble : "hspmdctld listens");
		for (json_t *ask; (ask = ctld_client_next_request(fakes[i].link));) {
			answer(s, &fakes[i], ask);
			json_decref(ask);
		}
	}
	fflush(stdout);
}

int main(int argc, char **argv)
{
	struct settings s = { .count = 1, .nodes = 1, .least = 1, .most = 4, .rate = 1000, .power = 0.9, .pause = 1, .seconds = INFINITY };
	struct hspmd_error err = { "" };
	if (settings_read(argc, argv, &s) < 0) {
		fputs("fake_controllers: --ctld UID@HOST:PORT and --job ID are needed\n", stderr);
		return 2;
	}
	struct rlimit files = { (rlim_t)s.count + 64, (rlim_t)s.count + 64 };
	if (s.count > 900)
		setrlimit(RLIMIT_NOFILE, &files);
	struct hspmd_auth *auth = s.cookie ? hspmd_auth_cookie(s.cookie, &err) : hspmd_auth_munge(s.munge, &err);
	struct fake *fakes = calloc((size_t)s.count, sizeof *fakes);
	struct pollfd *fds = calloc((size_t)s.count, sizeof *fds);
	int made = 0;
	for (; auth && fakes && fds && made < s.count; made++) {
		fakes[made] = (struct fake){ .job = s.job + (uint32_t)made, .nodes = s.nodes, .rate = s.rate * (1 + 0.001 * (made % 100)) };
		if (!(fakes[made].link = ctld_client_create(s.ctld, fakes[made].job, auth, &err)))
			break;
		say_state(&s, &fakes[made]);
	}
	double end = hspmd_now() + s.seconds, churn = s.churn > 0 ? hspmd_now() + s.churn : INFINITY;
	for (int next = 0; made == s.count && hspmd_now() < end;) {
		turn(&s, fakes, fds, fmin(fmin(end, churn), hspmd_now() + 60));
		if (hspmd_now() < churn)
			continue;
		fakes[next].rate *= 1.05;
		say_state(&s, &fakes[next]);
		next = (next + 1) % s.count;
		churn = hspmd_now() + s.churn;
	}
	for (int i = 0; i < made; i++)
		ctld_client_destroy(fakes[i].link);
	if (made < s.count)
		fprintf(stderr, "fake_controllers: %s\n", err.text);
	hspmd_auth_destroy(auth);
	free(fakes);
	free(fds);
	return made < s.count;
}
