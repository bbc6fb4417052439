/* SPDX-License-Identifier: Apache-2.0 */
/* The metrics page over HTTP, served from the loop: OpenMetrics, or the older text format for who asks for it. */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "common/address.h"
#include "common/clock.h"
#include "common/log.h"
#include "controller/ctld/daemon_internal.h"

#ifdef HAVE_MICROHTTPD
#include <microhttpd.h>
#include <netdb.h>

struct ctld_metrics {
	struct MHD_Daemon *http;
	struct ctld *d;
	uv_poll_t poll;
	uv_timer_t timer; /* drives libmicrohttpd's own timeouts */
	int handles;
};

static void counter(const struct ctld_page *p, const char *name, const char *help, uint64_t value)
{
	job_metrics_family(p, name, "counter", help);
	fprintf(p->f, "hspmd_%s_total %llu\n", name, (unsigned long long)value);
}

static void nodes(const struct ctld_page *p, const struct ctld *d)
{
	static const char *const names[] = { "idle", "busy", "leaving", "unusable" };
	int n[4] = { 0 };
	for (int i = 0; d->view && i < d->view->node_count; i++)
		n[d->view->nodes[i].state]++;
	job_metrics_family(p, "nodes", "gauge", "Nodes by state.");
	for (int i = 0; i < 4; i++)
		fprintf(p->f, "hspmd_nodes{state=\"%s\"} %d\n", names[i], n[i]);
}

static void jobs(const struct ctld_page *p, const struct ctld *d)
{
	job_metrics_family(p, "jobs", "gauge", "Elastic jobs by whether their controller listens.");
	int reachable = 0;
	for (int i = 0; i < d->peers.count; i++)
		reachable += d->peers.peers[i].reachable;
	fprintf(p->f, "hspmd_jobs{reachable=\"yes\"} %d\nhspmd_jobs{reachable=\"no\"} %d\n", reachable, d->peers.count - reachable);
}

static void all(const struct ctld_page *p, const struct ctld *d)
{
	const struct totals *t = &d->totals;
	nodes(p, d);
	jobs(p, d);
	job_metrics_write(p, d);
	job_metrics_family(p, "resizes", "counter",
	                   "Resizes asked of elastic jobs, by cause: idle nodes, a waiting job, rebalancing, limits.");
	for (int i = 0; i < CAUSES; i++)
		fprintf(p->f, "hspmd_resizes_total{cause=\"%s\"} %llu\n", cause_names[i], (unsigned long long)t->requests_by_cause[i]);
	job_metrics_family(p, "pause_seconds", "counter", "What resizes have cost, by the jobs' word.");
	fprintf(p->f, "hspmd_pause_seconds_total %g\n", t->pauses_s);
	counter(p, "nodes_granted", "Nodes that elastic jobs were asked to take.", t->nodes_granted);
	counter(p, "nodes_recalled", "Nodes that elastic jobs were asked to give back.", t->nodes_recalled);
	counter(p, "declined", "Requests that a job declined.", t->declined);
	counter(p, "unanswered", "Requests that a job did not answer in time.", t->unanswered);
	counter(p, "decisions", "Runs of the policy engine.", t->decisions);
	counter(p, "slurm_rpcs", "Calls made to slurmctld.", t->rpcs);
	counter(p, "slurm_failures", "Looks at Slurm that failed.", t->failed_polls);
	counter(p, "refused_connections", "Connections closed for what their peers did or did not.", ctld_server_counts(d->server).refused);
	job_metrics_family(p, "seen_seconds", "gauge", "Age of the last look at Slurm.");
	fprintf(p->f, "hspmd_seen_seconds %g\n", hspmd_now() - d->poll_interval.polled_s);
	if (!p->plain)
		fputs("# EOF\n", p->f);
}

static enum MHD_Result reply(struct MHD_Connection *c, unsigned status, bool plain, char *body, size_t size)
{
	struct MHD_Response *r = MHD_create_response_from_buffer(size, body, MHD_RESPMEM_MUST_FREE);
	if (!r) {
		free(body);
		return MHD_NO;
	}
	MHD_add_response_header(r, "Content-Type",
	                        plain ? "text/plain; version=0.0.4; charset=utf-8"
	                              : "application/openmetrics-text; version=1.0.0; charset=utf-8");
	enum MHD_Result rc = MHD_queue_response(c, status, r);
	MHD_destroy_response(r);
	return rc;
}

/* Scrapers that know OpenMetrics name it. Who names nothing gets it, too. */
static bool wants_plain(struct MHD_Connection *c)
{
	const char *accept = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Accept");
	return accept && !strstr(accept, "openmetrics") && strstr(accept, "text/plain");
}

static enum MHD_Result on_request(void *context, struct MHD_Connection *c, const char *url, const char *method, const char *version,
                                  const char *upload, size_t *upload_size, void **state)
{
	const struct ctld_metrics *m = context;
	char *body = NULL;
	size_t size = 0;
	(void)version;
	(void)upload;
	(void)state;
	if (*upload_size || strcmp(method, "GET") != 0)
		return MHD_NO;
	bool found = !strcmp(url, "/metrics"), plain = !found || wants_plain(c);
	FILE *f = open_memstream(&body, &size);
	if (!f)
		return MHD_NO;
	if (found)
		all(&(struct ctld_page){ f, plain }, m->d);
	else
		fputs("see /metrics\n", f);
	if (fclose(f) != 0) {
		free(body);
		return MHD_NO;
	}
	return reply(c, found ? MHD_HTTP_OK : MHD_HTTP_NOT_FOUND, plain, body, size);
}

static void on_poll(uv_poll_t *poll, int status, int events)
{
	(void)status;
	(void)events;
	MHD_run(((struct ctld_metrics *)poll->data)->http);
}

static void on_time(uv_timer_t *timer)
{
	MHD_run(((struct ctld_metrics *)timer->data)->http);
}

struct ctld_metrics *metrics_open(struct ctld *d, const char *listen, struct hspmd_error *err)
{
	struct ctld_metrics *m = calloc(1, sizeof *m);
	struct addrinfo *at = m ? hspmd_address_resolve(listen, 6898, true, err) : NULL;
	if (!m)
		hspmd_fail_memory(err, "opening the metrics page");
	if (at)
		m->http = MHD_start_daemon(MHD_USE_EPOLL | (at->ai_family == AF_INET6 ? MHD_USE_IPv6 : 0), 0, NULL, NULL, on_request, m,
		                           MHD_OPTION_SOCK_ADDR, at->ai_addr, MHD_OPTION_CONNECTION_LIMIT, 32u,
		                           MHD_OPTION_CONNECTION_TIMEOUT, 10u, MHD_OPTION_END);
	if (at)
		freeaddrinfo(at);
	if (!m || !m->http) {
		if (at)
			hspmd_fail(err, "the metrics page cannot listen on %s", listen);
		free(m);
		return NULL;
	}
	const union MHD_DaemonInfo *info = MHD_get_daemon_info(m->http, MHD_DAEMON_INFO_EPOLL_FD);
	m->d = d;
	const union MHD_DaemonInfo *port = MHD_get_daemon_info(m->http, MHD_DAEMON_INFO_BIND_PORT);
	hspmd_info("metrics are on port %u", port ? port->port : 0u);
	uv_poll_init(&d->loop, &m->poll, info->epoll_fd);
	uv_timer_init(&d->loop, &m->timer);
	m->poll.data = m->timer.data = m;
	uv_poll_start(&m->poll, UV_READABLE, on_poll);
	uv_timer_start(&m->timer, on_time, 1000, 1000);
	return m;
}

static void closed(uv_handle_t *handle)
{
	struct ctld_metrics *m = handle->data;
	if (++m->handles < 2)
		return;
	MHD_stop_daemon(m->http);
	free(m);
}

void metrics_close(struct ctld_metrics *m)
{
	if (!m)
		return;
	uv_close((uv_handle_t *)&m->poll, closed);
	uv_close((uv_handle_t *)&m->timer, closed);
}
#else
struct ctld_metrics *metrics_open(struct ctld *d, const char *listen, struct hspmd_error *err)
{
	(void)d;
	hspmd_fail(err, "%s: hspmdctld was built without libmicrohttpd", listen);
	return NULL;
}

void metrics_close(struct ctld_metrics *m)
{
	(void)m;
}
#endif
