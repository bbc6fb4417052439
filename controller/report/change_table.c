/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/report/change_table.h"

#include <stdbool.h>
#include <string.h>

#include "controller/report/markup.h"

const char *report_state_words(const char *state)
{
	static const char *const words[][2] = { { "live", "the memory of nodes that stayed" },
		                                { "checkpoint", "a checkpoint" },
		                                { "init", "the beginning: no state was left" },
		                                { "command", "the trainer itself" } };
	for (size_t i = 0; i < sizeof words / sizeof *words; i++)
		if (!strcmp(state, words[i][0]))
			return words[i][1];
	return state;
}

const char *report_cause_words(const char *cause)
{
	static const char *const words[][2] = { { "grow", "because more nodes were asked for" },
		                                { "shrink", "because fewer nodes were asked for" },
		                                { "scontrol", "because Slurm's allocation changed (scontrol)" },
		                                { "member-left", "because a member job ended" },
		                                { "straggler", "because a node was slow, or no longer is" },
		                                { "node-lost", "because a node was lost" },
		                                { "worker-lost", "because a worker died" },
		                                { "fault", "because a worker failed" },
		                                { "hang", "because a worker hung" },
		                                { "better-plan", "because a better plan was found than the repaired one" },
		                                { "risk", "because nodes are lost more often, or less often" },
		                                { "requeue", "when the requeued job began" },
		                                { "resume", "when the run was resumed" } };
	for (size_t i = 0; i < sizeof words / sizeof *words; i++)
		if (!strcmp(cause, words[i][0]))
			return words[i][1];
	return "";
}

void report_change_label(const struct report_change *c, char *text, size_t size)
{
	snprintf(text, size, "%d\342\206\222%d", c->from_nodes, c->nodes);
}

void report_change_title(const struct report_change *c, char *text, size_t size)
{
	struct report_words w;
	snprintf(text, size, "step %lld: %d to %d nodes (%s), paused %s, %lld steps lost, state from %s", (long long)c->step, c->from_nodes,
	         c->nodes, c->cause, report_seconds(&w, c->pause_s), (long long)c->steps_lost, report_state_words(c->state));
}

void report_change_bytes(FILE *out, const struct report_change *c)
{
	const double bytes[] = { c->bytes_from_local, c->bytes_from_peers, c->bytes_from_disk, c->bytes_from_shared };
	static const char *const from[] = { "own memory", "other nodes", "disk", "shared storage" };
	struct report_words w;
	bool any = false;
	for (int i = 0; i < 4; i++)
		if (bytes[i] > 0) {
			report_textf(out, "%s%s from %s", any ? ", " : "", report_bytes(&w, bytes[i]), from[i]);
			any = true;
		}
}

/* What moved to each node, by source. */
static void write_bytes_by_node(FILE *out, const struct report_change *c)
{
	static const char *const sources[] = { "local", "peers", "disk", "shared" };
	json_t *nodes = json_object_get(c->line, "bytes_by_node"), *bytes;
	const char *node;
	struct report_words w;
	if (!json_is_object(nodes) || !json_object_size(nodes))
		return;
	fprintf(out,
	        "<details><summary>What moved to each node for generation %lld</summary>\n<table "
	        "class=\"moved\"><thead><tr><th>node<th>own "
	        "memory<th>other nodes<th>disk<th>shared storage</tr></thead><tbody>\n",
	        (long long)c->generation);
	json_object_foreach(nodes, node, bytes) {
		fputs("<tr><td>", out);
		report_text(out, node);
		for (int k = 0; k < 4; k++) {
			const json_t *n = json_object_get(bytes, sources[k]);
			double count = json_is_integer(n) ? json_number_value(n) : 0;
			fprintf(out, "<td class=\"n\">%s", count > 0 ? report_bytes(&w, count) : "");
		}
		fputs("</tr>\n", out);
	}
	fputs("</tbody></table></details>\n", out);
}

void report_changes_write(FILE *out, const struct report_run *r)
{
	struct report_words w;
	if (!r->change_count)
		return;
	fputs("<h3>Changes of the allocation: ", out);
	report_text(out, r->name);
	fputs("</h3>\n<table class=\"changes\"><thead><tr><th>at step<th>when<th>why<th>nodes<th>generation<th>pause<th>steps "
	      "lost<th>state "
	      "from<th>bytes moved</tr></thead><tbody>\n",
	      out);
	for (size_t i = 0; i < r->change_count; i++) {
		const struct report_change *c = &r->changes[i];
		fprintf(out, "<tr><td class=\"n\">%lld<td>%s<td>", (long long)c->step, report_date(&w, c->time));
		report_text(out, c->cause);
		fprintf(out, "<td class=\"n\">%d \342\206\222 %d<td class=\"n\">%lld<td class=\"n\">%s<td class=\"n\">%lld<td>",
		        c->from_nodes, c->nodes, (long long)c->generation, report_seconds(&w, c->pause_s), (long long)c->steps_lost);
		report_text(out, report_state_words(c->state));
		fputs("<td>", out);
		report_change_bytes(out, c);
		fputs("</tr>\n", out);
	}
	fputs("</tbody></table>\n", out);
	for (size_t i = 0; i < r->change_count; i++)
		write_bytes_by_node(out, &r->changes[i]);
}
