/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/ctld/daemon.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/log.h"
#include "controller/ctld/daemon_internal.h"
#include "controller/ctld/sd_notify.h"

#define AGAIN_S 2.0 /* decide at least so often: time alone (cooldowns, how long a node has been idle) changes what is right */

static struct hspmd_policy *read_policies(const struct ctld *d, struct hspmd_error *err)
{
	return hspmd_policy_read(d->options->policies, &d->options->trust, err);
}

static void reload(struct ctld *d)
{
	struct hspmd_error err = { "" };
	struct hspmd_policy *p = read_policies(d, &err);
	if (!p) {
		strcpy(d->policy_error, err.text);
		hspmd_error_log("the new policies are invalid, the old ones remain: %s", err.text);
		log_event(d, "policies_refused", 0, err.text, NULL);
		return;
	}
	hspmd_policy_destroy(d->policy);
	d->policy = p;
	d->dirty = true;
	*d->policy_error = '\0';
	char text[80];
	snprintf(text, sizeof text, "%d rules in %d files", p->rule_count, p->file_count);
	log_event(d, "policies", 0, text, NULL);
}

static void ready(const struct ctld *d)
{
	char text[HSPMD_ERROR_MAX + 100];
	snprintf(text, sizeof text, "READY=1\nSTATUS=%s%s", *d->policy_error ? "old policies stand: " : "policies are taken",
	         d->policy_error);
	ctld_sd_notify(text);
}

static void still_alive(struct ctld *d, double now)
{
	if (!d->watchdog_s || now < d->watchdog_at)
		return;
	ctld_sd_notify("WATCHDOG=1");
	d->watchdog_at = now + d->watchdog_s;
}

static void on_signal(uv_signal_t *handle, int number)
{
	struct ctld *d = handle->data;
	struct hspmd_error err;
	if (number != SIGHUP) {
		uv_stop(&d->loop);
		return;
	}
	ctld_sd_notify_reloading();
	reload(d);
	if (event_log_open(d, &err) < 0)
		hspmd_warn("%s", err.text);
	ready(d);
}

static void on_tick(uv_timer_t *timer)
{
	struct ctld *d = timer->data;
	double now = hspmd_now();
	still_alive(d, now);
	requests_expire(d);
	budgets_save(d, false);
	if (d->polling)
		return;
	if (now >= d->poll_interval.next_s) {
		poll_begin(d);
		return;
	}
	if (d->dirty || now - d->decided_s >= AGAIN_S || now >= d->wait_ends_s)
		decide(d);
}

/* The order of a round. Decisions follow a poll at once, because a viewer or a waiting job may depend on them. */
static void on_polled(struct ctld *d, bool changed)
{
	if (changed) {
		peers_sweep(d);
		requests_forget_returned(d);
	}
	if (d->dirty || hspmd_now() >= d->wait_ends_s)
		decide(d);
}

/* slurmctld saves its state soon after a change. */
static void on_folder(uv_fs_event_t *handle, const char *file, int events, int status)
{
	(void)events;
	if (!status && file && (!strncmp(file, "job_state", 9) || !strncmp(file, "node_state", 10)))
		poll_soon(handle->data);
}

static int start(struct ctld *d, struct hspmd_error *err)
{
	static const int numbers[3] = { SIGTERM, SIGINT, SIGHUP };
	if (!(d->policy = read_policies(d, err)) || event_log_open(d, err) < 0 || budgets_load(d, err) < 0)
		return -1;
	d->auth = d->options->cookie ? hspmd_auth_cookie(d->options->cookie, err) : hspmd_auth_munge(d->options->munge_socket, err);
	if (!d->auth)
		return -1;
	d->handlers = (struct ctld_handlers){ on_hello, on_controller_message, on_gone, on_query, d };
	if (!(d->server = ctld_server_open(&d->loop, d->options->listen, d->auth, &d->handlers, err)))
		return -1;
	if (d->options->metrics && !(d->metrics = metrics_open(d, d->options->metrics, err)))
		return -1;
	uv_timer_start(&d->tick, on_tick, 0, CTLD_TICK_MS);
	for (int i = 0; i < 3; i++)
		uv_signal_start(&d->signals[i], on_signal, numbers[i]);
	if (d->options->state_folder && uv_fs_event_start(&d->folder, on_folder, d->options->state_folder, 0) < 0)
		hspmd_info("%s cannot be watched; changes are seen at the next regular poll", d->options->state_folder);
	d->watchdog_s = ctld_sd_notify_every();
	ready(d);
	hspmd_info("listening on port %d; %d rules in %d files of %s", ctld_server_port(d->server), d->policy->rule_count,
	           d->policy->file_count, d->options->policies);
	return 0;
}

static void close_handle(uv_handle_t *handle, void *context)
{
	(void)context;
	if (!uv_is_closing(handle))
		uv_close(handle, NULL);
}

static void stop(struct ctld *d)
{
	d->stopping = true;
	budgets_save(d, true);
	metrics_close(d->metrics);
	ctld_server_close(d->server);
	uv_run(&d->loop, UV_RUN_NOWAIT);
	uv_walk(&d->loop, close_handle, NULL);
	uv_run(&d->loop, UV_RUN_DEFAULT); /* also waits for a poll that is under way */
	uv_loop_close(&d->loop);
	hspmd_auth_destroy(d->auth);
	hspmd_policy_destroy(d->policy);
	hspmd_slurm_view_destroy(d->view);
	job_metrics_clear(d);
	ctld_peers_clear(&d->peers);
	hspmd_slurm_accounts_clear(&d->accounts);
	hspmd_slurm_accounts_clear(&d->new_accounts);
	hspmd_budget_clear(&d->budget);
	json_decref(d->saved_jobs);
	free(d->node_histories);
	free(d->eligible);
	if (d->log)
		fclose(d->log);
}

int ctld_run(const struct ctld_options *options, struct hspmd_error *err)
{
	/* Ids of requests continue above those of an earlier incarnation. */
	struct ctld d = { .options = options,
		          .on_tick = on_tick,
		          .on_polled = on_polled,
		          .began_s = hspmd_now(),
		          .wait_ends_s = INFINITY,
		          .last_request_id = (int64_t)(1e3 * hspmd_unix_time()) };
	ctld_poll_interval_start(&d.poll_interval, options->poll_min_s, options->poll_max_s);
	uv_loop_init(&d.loop);
	uv_timer_init(&d.loop, &d.tick);
	uv_fs_event_init(&d.loop, &d.folder);
	for (int i = 0; i < 3; i++) {
		uv_signal_init(&d.loop, &d.signals[i]);
		d.signals[i].data = &d;
	}
	d.tick.data = d.folder.data = &d;
	signal(SIGPIPE, SIG_IGN);
	int rc = start(&d, err);
	if (rc == 0) {
		uv_run(&d.loop, UV_RUN_DEFAULT);
		ctld_sd_notify("STOPPING=1");
		log_event(&d, "stop", 0, "stopping; jobs continue without it", NULL);
	}
	stop(&d);
	return rc;
}
