/* SPDX-License-Identifier: Apache-2.0 */
/* How agents and commands find the controller: the addresses on the agents' command line, and contact files. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/contact.h"
#include "common/log.h"
#include "controller/run/loop_internal.h"

static int write_contacts(struct loop *l, json_t *addresses, struct hspmd_error *err)
{
	char host[256] = "";
	gethostname(host, sizeof host - 1);
	const char *secret = hspmd_auth_secret(l->o->auth);
	json_t *c = json_pack("{s:s, s:s, s:I, s:O, s:s, s:s*, s:s*, s:s, s:i, s:s, s:s}", "job", l->o->config->job_id, "cluster",
	                      l->o->cluster, "user", (json_int_t)getuid(), "addresses", addresses, "auth", secret ? "cookie" : "munge",
	                      "cookie", secret, "munge_socket", secret ? NULL : l->o->munge_socket, "host", host, "pid", (int)getpid(),
	                      "process", l->process, "output", l->o->output->folder);
	if (!c || hspmd_auth_add_version(c, err)) {
		json_decref(c);
		return hspmd_fail_memory(err, "writing the contact file");
	}
	char *home = hspmd_contact_folder(NULL);
	l->contact[0] = hspmd_asprintf("%s/contact.json", l->o->output->folder);
	l->contact[1] = home ? hspmd_asprintf("%s/%s-%s.json", home, l->o->cluster, l->o->config->job_id) : NULL;
	free(home);
	int rc = l->contact[0] ? hspmd_contact_write(l->contact[0], c, err) : hspmd_fail_memory(err, "writing the contact file");
	struct hspmd_error why;
	if (!rc && (!l->contact[1] || hspmd_contact_write(l->contact[1], c, &why)))
		hspmd_warn("hspmd status and its like will need the output folder in place of the job's id");
	json_decref(c);
	return rc;
}

static int make_agent_command(struct loop *l, json_t *addresses, struct hspmd_error *err)
{
	size_t n = 0, used = 0, i;
	json_t *v;
	while (l->o->agent_command[n])
		n++;
	size_t size = 1;
	json_array_foreach(addresses, i, v)
		size += json_string_length(v) + 1;
	l->agent_command = calloc(1, (n + 3) * sizeof *l->agent_command + size);
	if (!l->agent_command)
		return hspmd_fail_memory(err, "starting agents");
	char *text = (char *)(l->agent_command + n + 3);
	for (i = 0; i < n; i++)
		l->agent_command[i] = (char *)l->o->agent_command[i];
	l->agent_command[n] = "--controller";
	l->agent_command[n + 1] = text;
	json_array_foreach(addresses, i, v)
		used += (size_t)snprintf(text + used, size - used, "%s%s", used ? "," : "", json_string_value(v));
	return 0;
}

int loop_publish_addresses(struct loop *l, struct hspmd_error *err)
{
	json_t *addresses = hspmd_server_addresses(l->server);
	int rc = addresses ? hspmd_auth_nonce(l->process, err) : hspmd_fail_memory(err, "opening the port");
	if (!rc)
		rc = write_contacts(l, addresses, err);
	if (!rc)
		rc = make_agent_command(l, addresses, err);
	json_decref(addresses);
	return rc;
}

void loop_remove_contacts(struct loop *l)
{
	if (l->contact[0])
		run_output_queue_remove_contact(l->output, l->contact[0], l->process);
	if (l->contact[1])
		hspmd_contact_remove(l->contact[1], l->process);
	free(l->contact[0]);
	free(l->contact[1]);
}
