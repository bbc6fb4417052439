/* SPDX-License-Identifier: Apache-2.0 */
/* hspmd profile: measures a model's layer times and the links between devices, here or under srun on a whole allocation. */
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "common/json.h"
#include "common/log.h"
#include "controller/cli/commands.h"
#include "runtime/measure/measure.h"

static const char help_text[] = "Usage: hspmd profile --model CONFIG [options]\n"
                                "       srun --mpi=pmix --ntasks-per-node=1 hspmd profile --model CONFIG [options]\n"
                                "\n"
                                "Measures how long the layers of a model take on the devices that are there, and messages between them, by "
                                "running both as training does.\n"
                                "Under srun with PMIx all nodes of the allocation measure and the first task writes the result.\n"
                                "\n"
                                "  --model CONFIG         the model's config.json\n"
                                "  --seq-len T            sequence length (default: the model's, at most 1024)\n"
                                "  --micro-batch LIST     micro-batches to measure (default: 1,2,4,8,16; as far as the time goes)\n"
                                "  --tp LIST              tensor-parallel degrees (default: 1,2,4,8; as far as a node has devices)\n"
                                "  --budget S             seconds that measuring may take (default: 50)\n"
                                "  -o, --output FILE      write the profile to FILE\n"
                                "      --cluster-out FILE write the cluster, with measured links and slow nodes, to FILE\n"
                                "      --json             print the profile instead of a table\n"
                                "      --transport NAME   measure messages over this transport (default: the best there is)\n"
                                "      --devices N        make N CPU devices of the node's cores (default: one a NUMA node)\n"
                                "      --cores N          give each CPU device N cores\n"
                                "      --cpu              CPU devices only (with --gpu: both)\n"
                                "      --gpu              GPUs only\n"
                                "      --node NAME        call this node so (default: Slurm's name for it, or the host's)\n"
                                "      --help             print this\n";

enum {
	OPT_MODEL = 256,
	OPT_SEQ_LEN,
	OPT_MICRO_BATCH,
	OPT_TP,
	OPT_BUDGET,
	OPT_CLUSTER_OUT,
	OPT_JSON,
	OPT_TRANSPORT,
	OPT_DEVICES,
	OPT_CORES,
	OPT_CPU,
	OPT_GPU,
	OPT_NODE,
	OPT_HELP
};

static const struct option long_options[] = {
	{ "model", required_argument, NULL, OPT_MODEL },
	{ "seq-len", required_argument, NULL, OPT_SEQ_LEN },
	{ "micro-batch", required_argument, NULL, OPT_MICRO_BATCH },
	{ "tp", required_argument, NULL, OPT_TP },
	{ "budget", required_argument, NULL, OPT_BUDGET },
	{ "output", required_argument, NULL, 'o' },
	{ "cluster-out", required_argument, NULL, OPT_CLUSTER_OUT },
	{ "json", no_argument, NULL, OPT_JSON },
	{ "transport", required_argument, NULL, OPT_TRANSPORT },
	{ "devices", required_argument, NULL, OPT_DEVICES },
	{ "cores", required_argument, NULL, OPT_CORES },
	{ "cpu", no_argument, NULL, OPT_CPU },
	{ "gpu", no_argument, NULL, OPT_GPU },
	{ "node", required_argument, NULL, OPT_NODE },
	{ "help", no_argument, NULL, OPT_HELP },
	{ NULL, 0, NULL, 0 },
};

#define LONGEST_SEQ_LEN 1024 /* taken without being asked for */

struct profile_options {
	struct hspmd_topology_options look;
	struct hspmd_measure_wishes wishes;
	const char *model, *output, *cluster_out;
	bool json, help;
};

/* "1,2,4": whole numbers that grow. Their count, or -1 after a message. */
static int read_list(const char *option, const char *text, int *out)
{
	int count = 0;
	char *copy = strdup(text), *save = NULL;
	for (char *word = copy ? strtok_r(copy, ",", &save) : NULL; word; word = strtok_r(NULL, ",", &save)) {
		int64_t value;
		if (hspmd_option_int(option, word, 1, 1 << 20, &value)) {
			count = -1;
			break;
		}
		if (count == HSPMD_MEASURE_WISHES || (count && value <= out[count - 1])) {
			hspmd_error_log("--%s: expected at most %d numbers that grow, got '%s'", option, HSPMD_MEASURE_WISHES, text);
			count = -1;
			break;
		}
		out[count++] = (int)value;
	}
	if (!count)
		hspmd_error_log("--%s: expected numbers with commas between them, got '%s'", option, text);
	free(copy);
	return count ? count : -1;
}

static int parse_one(int opt, struct profile_options *o)
{
	int64_t value = 0;
	int bad = 0;
	switch (opt) {
	case OPT_MODEL:
		o->model = optarg;
		break;
	case OPT_SEQ_LEN:
		bad = hspmd_option_int("seq-len", optarg, 1, 1 << 24, &value);
		o->wishes.seq_len = (int)value;
		break;
	case OPT_MICRO_BATCH:
		bad = (o->wishes.micro_batch_count = read_list("micro-batch", optarg, o->wishes.micro_batches)) < 0;
		break;
	case OPT_TP:
		bad = (o->wishes.tp_count = read_list("tp", optarg, o->wishes.tps)) < 0;
		break;
	case OPT_BUDGET:
		bad = hspmd_option_number("budget", optarg, 0.1, 1e6, &o->wishes.budget_s);
		break;
	case 'o':
		o->output = optarg;
		break;
	case OPT_CLUSTER_OUT:
		o->cluster_out = optarg;
		break;
	case OPT_JSON:
		o->json = true;
		break;
	case OPT_TRANSPORT:
		o->wishes.transport = optarg;
		break;
	case OPT_DEVICES:
		bad = hspmd_option_int("devices", optarg, 1, 1024, &value);
		o->look.devices = (int)value;
		break;
	case OPT_CORES:
		bad = hspmd_option_int("cores", optarg, 1, 1 << 16, &value);
		o->look.cores_per_device = (int)value;
		break;
	case OPT_CPU:
		o->look.cpu = true;
		break;
	case OPT_GPU:
		o->look.gpu = true;
		break;
	case OPT_NODE:
		o->look.node = optarg;
		break;
	default: /* 'h', OPT_HELP */
		o->help = true;
	}
	return bad;
}

/* 0, or an exit status that is not 0. */
static int parse(int argc, char **argv, struct profile_options *o)
{
	int opt, bad = 0;
	while ((opt = getopt_long(argc, argv, "o:h", long_options, NULL)) != -1) {
		if (opt == '?' || opt == ':')
			return hspmd_usage_hint("profile");
		bad |= parse_one(opt, o);
	}
	if (o->help)
		return 0;
	if (optind < argc)
		return hspmd_usage_error("profile", "unexpected argument '%s'", argv[optind]);
	if (!o->model)
		return hspmd_usage_error("profile", "which model? --model CONFIG is missing");
	if (o->look.devices && o->look.cores_per_device)
		return hspmd_usage_error("profile", "--devices and --cores exclude one another");
	return bad ? HSPMD_EXIT_USAGE : 0;
}

static int choose_seq_len(const struct hspmd_model *m, struct profile_options *o, struct hspmd_error *err)
{
	if (!o->wishes.seq_len)
		o->wishes.seq_len = m->max_positions && m->max_positions < LONGEST_SEQ_LEN ? (int)m->max_positions : LONGEST_SEQ_LEN;
	if (m->rope_theta == 0 && o->wishes.seq_len > m->max_positions)
		return hspmd_fail(err, "--seq-len %d is beyond the model's %ld positions", o->wishes.seq_len, (long)m->max_positions);
	return 0;
}

/* ---- results */

static void print_times(const struct hspmd_profile *p)
{
	printf("%s, sequences of %ld: milliseconds of one micro-batch (forward, backward) and of one step (optimizer)\n\n", p->model,
	       (long)p->seq_len);
	printf("%-28s %3s %6s  %-24s %-24s %-24s\n", "", "", "micro-", "embedding", "block", "head");
	printf("%-28s %3s %6s  %8s%8s%8s %8s%8s%8s %8s%8s%8s\n", "device type", "tp", "batch", "fwd", "bwd", "opt", "fwd", "bwd", "opt",
	       "fwd", "bwd", "opt");
	for (int i = 0; i < p->times_count; i++) {
		const struct hspmd_profile_times *t = &p->times[i];
		int shown[] = { 0, p->layer_count > 2 ? 1 : 0, p->layer_count - 1 };
		printf("%-28s %3d %6d ", t->device_type, t->tp, t->micro_batch);
		for (int k = 0; k < 3; k++)
			printf(" %8.3f%8.3f%8.3f", 1e3 * t->forward_s[shown[k]], 1e3 * t->backward_s[shown[k]],
			       1e3 * t->optimizer_s[shown[k]]);
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

static int give(const struct hspmd_profile *p, const struct hspmd_cluster *c, const struct profile_options *o, struct hspmd_error *err)
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
		print_times(p);
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
		return status;
	if (o.help) {
		fputs(help_text, stdout);
		return HSPMD_EXIT_DONE;
	}
	/* Every task of a step reads the same file; one that cannot ends the step, as it ends this command. */
	struct hspmd_model *model = hspmd_model_read(o.model, &err);
	int rv = !model || choose_seq_len(model, &o, &err) ? -1 : hspmd_measure_step(&o.look, model, &o.wishes, &cluster, &rows, &err);
	if (!rv && cluster) {
		profile = hspmd_measure_profile(model, rows, o.wishes.seq_len, cluster, &err);
		rv = profile ? give(profile, cluster, &o, &err) : -1;
	}
	if (rv)
		hspmd_error_log("%s", err.text);
	hspmd_profile_destroy(profile);
	hspmd_cluster_destroy(cluster);
	hspmd_model_destroy(model);
	json_decref(rows);
	return rv ? HSPMD_EXIT_FAILED : HSPMD_EXIT_DONE;
}
