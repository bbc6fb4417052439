/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <syslog.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/log.h"
#include "controller/ctld/daemon_internal.h"

int event_log_open(struct ctld *d, struct hspmd_error *err)
{
	if (d->options->syslog)
		openlog("hspmdctld", LOG_PID, LOG_DAEMON);
	if (!d->options->event_log)
		return 0;
	FILE *f = fopen(d->options->event_log, "ae");
	if (!f)
		return hspmd_fail_errno(err, "%s", d->options->event_log);
	setvbuf(f, NULL, _IOLBF, 0);
	if (d->log)
		fclose(d->log); /* SIGHUP: logrotate has moved the old one away */
	d->log = f;
	return 0;
}

void log_event(struct ctld *d, const char *event, uint32_t job, const char *text, json_t *more)
{
	json_t *o = json_pack("{s:f, s:s}", "time", hspmd_unix_time(), "event", event);
	if (o && job)
		json_object_set_new(o, "job", json_integer(job));
	if (o)
		json_object_set_new(o, "text", json_string(text));
	if (o && more)
		json_object_update(o, more);
	json_decref(more);
	if (o && d->log && (json_dumpf(o, d->log, JSON_COMPACT) < 0 || fputc('\n', d->log) == EOF))
		hspmd_warn("%s: cannot be written", d->options->event_log);
	json_decref(o);
	if (job)
		hspmd_info("job %u: %s: %s", job, event, text);
	else
		hspmd_info("%s: %s", event, text);
	if (d->options->syslog)
		syslog(LOG_INFO, "job %u: %s: %s", job, event, text);
}
