/* SPDX-License-Identifier: Apache-2.0 */
/* hspmd profile: measures a model's layer times and the links between devices, here or under srun on a whole allocation. */
#include <stdlib.h>
#include <string.h>

#include "common/json.h"
#include "common/log.h"
#include "controller/cli/commands.h"
#include "runtime/measure/measure.h"
#include "runtime/model/model.h"
#include "runtime/model/own.h"

static const char head[] = "Usage: hspmd profile (--model CONFIG | --job FILE) [options]\n"
                           "       srun --mpi=pmix --ntasks-per-node=1 hspmd profile (--model CONFIG | --job FILE) [options]\n"
                           "\n"
                           "Measures the times of a model's layers on the available devices, and of messages between devices, by\n"
                           "running both as training does. Under srun with PMIx all nodes of the allocation measure and the first task\n"
                           "writes the result.\n";

#define LONGEST_SEQ_LEN 1024 /* default at most */

struct profile_options {
	struct hspmd_topology_options look;
	struct hspmd_measure_options wishes;
	const char *model, *job, *output, *cluster_out;
	bool json;
};

/* Increasing whole numbers. 0, or -1 after a message; an absent option leaves the default. */
static int read_list(const char *option, const struct hspmd_option_list *list, int *out, int *count)
{
	for (int i = 0; i < list->count; i++) {
		int64_t value;
		if (hspmd_option_int(option, list->items[i], 1, 1 << 20, &value))
			return -1;
		if (i == HSPMD_MEASURE_MAX_VALUES || (i && value <= out[i - 1])) {
			hspmd_error_log("--%s: expected at most %d increasing numbers, got '%s'", option, HSPMD_MEASURE_MAX_VALUES,
			                list->items[i]);
			return -1;
		}
		out[i] = (int)value;
		*count = i + 1;
	}
	return 0;
}

/* 0, or what hspmd_options_parse returns otherwise. */
static int parse(int argc, char **argv, struct profile_options *o)
{
	int64_t seq_len = 0, devices = 0, cores = 0;
	struct hspmd_option_list micro_batches = { 0 }, tps = { 0 };
	const struct hspmd_option options[] = {
		{ "model", 0, "CONFIG", HSPMD_OPTION_TEXT, &o->model, 0, 0, "the model's config.json, or a model of one's own" },
		{ "job", 0, "FILE", HSPMD_OPTION_TEXT, &o->job, 0, 0, "a job file: gives model, model_config and sequence length" },
		{ "seq-len", 0, "T", HSPMD_OPTION_INT, &seq_len, 1, 1 << 24,
		  "sequence length (default: the job's, or the model's, at most 1024)" },
		{ "micro-batch", 0, "LIST", HSPMD_OPTION_LIST, &micro_batches, 0, 0,
		  "micro-batches to measure (default: 1,2,4,8,16; as many as the budget allows)" },
		{ "tp", 0, "LIST", HSPMD_OPTION_LIST, &tps, 0, 0,
		  "tensor-parallel degrees (default: 1,2,4,8; as far as a node has devices)" },
		{ "budget", 0, "S", HSPMD_OPTION_NUMBER, &o->wishes.budget_s, 0.1, 1e6, "seconds that measuring may take (default: 50)" },
		{ "output", 'o', "FILE", HSPMD_OPTION_TEXT, &o->output, 0, 0, "write the profile to FILE" },
		{ "cluster-out", 0, "FILE", HSPMD_OPTION_TEXT, &o->cluster_out, 0, 0,
		  "write the cluster, with measured links and slow nodes, to FILE" },
		{ "json", 0, NULL, HSPMD_OPTION_FLAG, &o->json, 0, 0, "print the profile instead of a table" },
		{ "transport", 0, "NAME", HSPMD_OPTION_TEXT, &o->wishes.transport, 0, 0,
		  "measure messages over this transport (default: the best)" },
		{ "devices", 0, "N", HSPMD_OPTION_INT, &devices, 1, 1024,
		  "make N CPU devices of the node's cores (default: one per NUMA node)" },
		{ "cores", 0, "N", HSPMD_OPTION_INT, &cores, 1, 1 << 16, "give each CPU device N cores" },
		{ "cpu", 0, NULL, HSPMD_OPTION_FLAG, &o->look.cpu, 0, 0, "CPU devices only (with --gpu: both)" },
		{ "gpu", 0, NULL, HSPMD_OPTION_FLAG, &o->look.gpu, 0, 0, "GPUs only" },
		{ "node", 0, "NAME", HSPMD_OPTION_TEXT, &o->look.node, 0, 0,
		  "name of this node (default: its name in Slurm, or the host name)" },
		{ 0 },
	};
	int status = hspmd_options_parse("profile", head, options, argc, argv);
	if (status)
		return status;
	if (read_list("micro-batch", &micro_batches, o->wishes.micro_batches, &o->wishes.micro_batch_count) ||
	    read_list("tp", &tps, o->wishes.tps, &o->wishes.tp_count))
		return hspmd_usage_hint("profile");
	if (!o->model == !o->job)
		return hspmd_usage_error("profile", o->job ? "--job and --model exclude one another"
		                                           : "which model? --model CONFIG or --job FILE is missing");
	int wrong = hspmd_usage_transport("profile", o->wishes.transport);
	if (wrong)
		return wrong;
	if (devices && cores)
		return hspmd_usage_error("profile", "--devices and --cores exclude one another");
	o->wishes.seq_len = (int)seq_len;
	o->look.devices = (int)devices;
	o->look.cores_per_device = (int)cores;
	return 0;
}

static struct hspmd_model *read_model(struct profile_options *o, struct hspmd_error *err)
{
	struct hspmd_mistakes all = hspmd_mistakes_logged();
	struct hspmd_job *job = o->job ? hspmd_job_read(o->job, &all, err) : NULL;
	struct hspmd_model *m = NULL;
	if (!o->job)
		m = hspmd_model_read(o->model, err);
	else if (job && job->command.argc)
		hspmd_fail(err, "%s: a job with a command has no model to measure", o->job);
	else if (job && (m = hspmd_model_read_job(job, NULL, err)) && !o->wishes.seq_len)
		o->wishes.seq_len = (int)job->seq_len;
	hspmd_job_destroy(job);
	return m;
}

static int choose_seq_len(const struct hspmd_model *m, struct profile_options *o, struct hspmd_error *err)
{
	if (!o->wishes.seq_len)
		o->wishes.seq_len = m->max_positions && m->max_positions < LONGEST_SEQ_LEN ? (int)m->max_positions : LONGEST_SEQ_LEN;
	if (m->learnt_positions && o->wishes.seq_len > m->max_positions)
		return hspmd_fail(err, "--seq-len %d is beyond the model's %ld positions", o->wishes.seq_len, (long)m->max_positions);
	return 0;
}

/* ---- results */

/* Milliseconds of layer 0, of the mean of those between the first and the last, and of the last. */
static double shown_ms(const struct hspmd_profile *p, const double *seconds, int column)
{
	double sum = 0;
	if (column == 0 || column == 2 || p->layer_count < 3)
		return 1e3 * seconds[column ? p->layer_count - 1 : 0];
	for (int l = 1; l + 1 < p->layer_count; l++)
		sum += 1e3 * seconds[l];
	return sum / (p->layer_count - 2);
}

static void print_times(const struct hspmd_profile *p, bool own)
{
	printf("%s, sequences of %ld: milliseconds of one micro-batch (forward, backward) and of one step (optimizer)\n\n", p->model,
	       (long)p->seq_len);
	printf("%-28s %3s %6s  %-24s %-24s %-24s\n", "", "", "micro-", own ? "first layer" : "embedding", own ? "a layer between" : "block",
	       own ? "last layer" : "head");
	printf("%-28s %3s %6s  %8s%8s%8s %8s%8s%8s %8s%8s%8s\n", "device type", "tp", "batch", "fwd", "bwd", "opt", "fwd", "bwd", "opt",
	       "fwd", "bwd", "opt");
	for (int i = 0; i < p->times_count; i++) {
		const struct hspmd_profile_times *t = &p->times[i];
		printf("%-28s %3d %6d ", t->device_type, t->tp, t->micro_batch);
		for (int k = 0; k < 3; k++)
			printf(" %8.3f%8.3f%8.3f", shown_ms(p, t->forward_s, k), shown_ms(p, t->backward_s, k),
			       shown_ms(p, t->optimizer_s, k));
		putchar('\n');
	}
}

static void print_cluster(const struct hspmd_cluster *c)
{
	for (int i = 0; i < c->link_count; i++) {
		const struct hspmd_link *l = &c->links[i];
		char ends[600] = "all";
		if (l->types[0] >= 0)
			snprintf(ends, sizeof ends, "%s - %s", c->types[l->types[0]].name, c->types[l->types[1]].name);
		else if (l->nodes[0] >= 0)
			snprintf(ends, sizeof ends, "%s - %s", c->nodes[l->nodes[0]].name, c->nodes[l->nodes[1]].name);
		double large = l->point_count ? l->points[l->point_count - 1][0] : 1 << 24;
		printf("%s%-8s %-48s %8.1f us a small message, %.3g GB/s%s\n", i ? "" : "\n",
		       l->scope == HSPMD_LINK_NODE ? "node" : "cluster", ends, 1e6 * hspmd_link_seconds(l, 1024),
		       large / hspmd_link_seconds(l, large) / 1e9, l->point_count ? "" : " (assumed)");
	}
	for (int n = 0; n < c->node_count; n++)
		if (c->nodes[n].slowdown > 1)
			printf("%s takes %.2f times as long as the fastest of its type\n", c->nodes[n].name, c->nodes[n].slowdown);
}

static int give(const struct hspmd_profile *p, const struct hspmd_cluster *c, const struct profile_options *o, bool own,
                struct hspmd_error *err)
{
	json_t *profile = hspmd_profile_to_json(p), *cluster = hspmd_cluster_to_json(c);
	int rv = profile && cluster ? 0 : hspmd_fail_memory(err, "writing the profile");
	if (!rv && o->output)
		rv = hspmd_json_save(profile, o->output, err);
	if (!rv && o->cluster_out)
		rv = hspmd_json_save(cluster, o->cluster_out, err);
	if (!rv && o->json) {
		rv = hspmd_json_save(profile, "-", err);
	} else if (!rv) {
		print_times(p, own);
		print_cluster(c);
	}
	json_decref(profile);
	json_decref(cluster);
	return rv;
}

int hspmd_command_profile(int argc, char **argv)
{
	struct profile_options o = { .wishes = { .tp_count = 4,
		                                 .tps = { 1, 2, 4, 8 },
		                                 .micro_batch_count = 5,
		                                 .micro_batches = { 1, 2, 4, 8, 16 },
		                                 .budget_s = 50 } };
	struct hspmd_error err = { "" };
	struct hspmd_cluster *cluster = NULL;
	struct hspmd_profile *profile = NULL;
	json_t *rows = NULL;
	int status = parse(argc, argv, &o);
	if (status)
		return status == HSPMD_OPTIONS_HELP ? HSPMD_EXIT_DONE : status;
	/* Every task of a step reads the same file; a task that cannot read it ends the step and this command. */
	struct hspmd_model *model = read_model(&o, &err);
	int rv = !model || choose_seq_len(model, &o, &err) ? -1 : hspmd_measure_cluster(&o.look, model, &o.wishes, &cluster, &rows, &err);
	if (!rv && cluster) {
		profile = hspmd_measure_profile(model, rows, o.wishes.seq_len, cluster, &err);
		rv = profile ? give(profile, cluster, &o, hspmd_model_is_own(model), &err) : -1;
	}
	if (rv)
		hspmd_error_log("%s", err.text);
	hspmd_profile_destroy(profile);
	hspmd_cluster_destroy(cluster);
	hspmd_model_destroy(model);
	json_decref(rows);
	return rv ? HSPMD_EXIT_FAILED : HSPMD_EXIT_DONE;
}
