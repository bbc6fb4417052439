/* SPDX-License-Identifier: Apache-2.0 */
/* hspmd checkpoint list | verify | export | import: reads checkpoints on disk; export and import use Hugging Face safetensors. */
#include <getopt.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/format/model.h"
#include "common/json.h"
#include "common/log.h"
#include "common/progress.h"
#include "runtime/state/checkpoint_index.h"
#include "runtime/state/export.h"
#include "controller/cli/commands.h"
#include "controller/cli/control.h"
#include "runtime/model/build.h"

static const char help_text[] =
        "Usage: hspmd checkpoint list PATH [--json]\n"
        "       hspmd checkpoint verify PATH [--step N] [--json]\n"
        "       hspmd checkpoint export PATH -o FOLDER [--step N] [--config FILE] [--bf16] [--max-file-bytes N]\n"
        "       hspmd checkpoint import MODEL -o FOLDER [--config FILE]\n"
        "       hspmd checkpoint JOB   (makes a running job write a checkpoint now: man hspmd-status)\n"
        "\n"
        "Lists, checks and converts checkpoints on disk. PATH is a job's checkpoint folder (local or shared), one node's part of it, or "
        "one checkpoint.\n"
        "\n"
        "list      list the checkpoints, and whether each can be read completely from here\n"
        "verify    read every byte and check it against its checksum\n"
        "export    write the newest complete checkpoint as a model folder that Hugging Face's libraries load\n"
        "import    make a checkpoint of step 0 from such a folder (or one safetensors file)\n"
        "\n"
        "  --step N             use the checkpoint of this step\n"
        "  -o, --output FOLDER  folder to write\n"
        "  --config FILE        the model's config.json (default: the one in the checkpoint or the model's folder)\n"
        "  --bf16               write BF16 instead of F32\n"
        "  --max-file-bytes N   split into files of at most N bytes (default 5000000000)\n"
        "      --json           print the result as JSON\n"
        "      --help           print this\n";

enum { OPT_STEP = 256, OPT_CONFIG, OPT_BF16, OPT_MAX, OPT_JSON, OPT_HELP };

static const struct option long_options[] = {
	{ "step", required_argument, NULL, OPT_STEP },
	{ "output", required_argument, NULL, 'o' },
	{ "config", required_argument, NULL, OPT_CONFIG },
	{ "bf16", no_argument, NULL, OPT_BF16 },
	{ "max-file-bytes", required_argument, NULL, OPT_MAX },
	{ "json", no_argument, NULL, OPT_JSON },
	{ "help", no_argument, NULL, OPT_HELP },
	{ NULL, 0, NULL, 0 },
};

struct checkpoint_options {
	const char *what, *path, *output, *config;
	int64_t step, max_bytes;
	bool bf16, json, help;
};

static int parse(int argc, char **argv, struct checkpoint_options *o)
{
	int opt, bad = 0;
	while ((opt = getopt_long(argc, argv, "o:h", long_options, NULL)) != -1) {
		switch (opt) {
		case OPT_STEP:
			bad |= hspmd_option_int("step", optarg, 0, INT64_MAX, &o->step);
			break;
		case OPT_MAX:
			bad |= hspmd_option_int("max-file-bytes", optarg, 1, INT64_MAX, &o->max_bytes);
			break;
		case 'o':
			o->output = optarg;
			break;
		case OPT_CONFIG:
			o->config = optarg;
			break;
		case OPT_BF16:
			o->bf16 = true;
			break;
		case OPT_JSON:
			o->json = true;
			break;
		case OPT_HELP:
		case 'h':
			o->help = true;
			break;
		default:
			return hspmd_usage_hint("checkpoint");
		}
	}
	if (o->help)
		return 0;
	if (bad)
		return hspmd_usage_hint("checkpoint");
	if (argc - optind != 2)
		return hspmd_usage_error("checkpoint", "expected a subcommand and a path");
	o->what = argv[optind];
	o->path = argv[optind + 1];
	return 0;
}

/* ---- list and verify */

static uint64_t state_bytes(const struct hspmd_manifest *m)
{
	uint64_t bytes = 0;
	for (int i = 0; i < m->shard_count; i++)
		bytes += m->shards[i].bytes;
	return bytes;
}

/* "whole", or the fault. */
static const char *state_of(const struct hspmd_checkpoint_group *g)
{
	if (!g->manifest)
		return g->error ? g->error : "never committed";
	return g->lacks.text[0] ? g->lacks.text : "whole";
}

static json_t *group_json(const struct hspmd_checkpoint_group *g)
{
	json_t *folders = json_array(), *o = json_object();
	int bad = !folders || !o;
	for (int i = 0; i < g->folder_count; i++)
		bad |= json_array_append_new(folders, json_string(g->folders[i]));
	bad |= json_object_set_new(o, "step", json_integer(g->step));
	bad |= json_object_set_new(o, "generation", json_integer(g->generation));
	bad |= json_object_set_new(o, "whole", json_boolean(g->manifest && !g->lacks.text[0]));
	bad |= json_object_set_new(o, "state", json_string(state_of(g)));
	if (g->manifest) {
		bad |= json_object_set_new(o, "time", hspmd_json_real(g->manifest->time));
		bad |= json_object_set_new(o, "shards", json_integer(g->manifest->shard_count));
		bad |= json_object_set_new(o, "bytes", json_integer((json_int_t)state_bytes(g->manifest)));
	}
	bad |= json_object_set(o, "folders", folders);
	json_decref(folders);
	return hspmd_json_unless_failed(bad, o);
}

static void print_group(const struct hspmd_checkpoint_group *g)
{
	char when[32] = "-";
	if (g->manifest && g->manifest->time > 0) {
		time_t t = (time_t)g->manifest->time;
		struct tm local;
		if (localtime_r(&t, &local))
			strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", &local);
	}
	printf("%10" PRId64 " %5" PRId64 "  %-19s %7d %7d %10.2f  %s\n", g->step, g->generation, when, g->folder_count,
	       g->manifest ? g->manifest->shard_count : 0, g->manifest ? (double)state_bytes(g->manifest) / 1e6 : 0, state_of(g));
}

static int print_json(json_t *value, struct hspmd_error *err)
{
	int rv = value ? hspmd_json_save(value, "-", err) : hspmd_fail_memory(err, "printing");
	json_decref(value);
	return rv;
}

static int list(const struct checkpoint_options *o, struct hspmd_checkpoint_index *g, struct hspmd_error *err)
{
	if (o->json) {
		json_t *all = json_array();
		int bad = !all;
		for (int i = 0; i < g->count; i++)
			bad |= json_array_append_new(all, group_json(&g->groups[i]));
		return print_json(hspmd_json_unless_failed(bad, all), err);
	}
	if (g->count)
		printf("%10s %5s  %-19s %7s %7s %10s  %s\n", "STEP", "GEN", "TIME", "FOLDERS", "SHARDS", "MB", "STATE");
	for (int i = 0; i < g->count; i++)
		print_group(&g->groups[i]);
	if (!g->count) {
		hspmd_checkpoint_index_none(o->path, -1, err);
		hspmd_info("%s", err->text);
	}
	return 0;
}

static int verify(const struct checkpoint_options *o, struct hspmd_checkpoint_index *g, struct hspmd_error *err)
{
	json_t *all = json_array();
	int looked = 0, rv = 0, bad_json = !all;
	for (int i = 0; i < g->count; i++) {
		struct hspmd_checkpoint_group *c = &g->groups[i];
		struct hspmd_error why = { "" };
		int bad = 0;
		/* A checkpoint that was never committed was never promised. */
		if ((o->step >= 0 && c->step != o->step) || (!c->manifest && o->step < 0))
			continue;
		looked++;
		if (!c->manifest || c->lacks.text[0]) {
			hspmd_fail(&why, "%s", state_of(c));
		} else {
			hspmd_progress_begin("verify");
			hspmd_reader_verify(c->reader, &bad, &why);
			hspmd_progress_end();
		}
		if (why.text[0])
			rv = hspmd_fail(err, "step %" PRId64 ": %s%s", c->step, why.text, bad > 1 ? " (and more)" : "");
		if (rv && o->json)
			hspmd_error_log("%s", err->text);
		bad_json |= json_array_append_new(all, json_pack("{s:I, s:I, s:b, s:i, s:s}", "step", (json_int_t)c->step, "generation",
		                                                 (json_int_t)c->generation, "good", !why.text[0], "damaged", bad, "text",
		                                                 why.text));
		if (!o->json)
			printf("step %" PRId64 " generation %" PRId64 ": %s\n", c->step, c->generation, why.text[0] ? why.text : "good");
	}
	if (!looked)
		rv = hspmd_checkpoint_index_none(o->path, o->step, err);
	if (o->json && print_json(hspmd_json_unless_failed(bad_json, json_incref(all)), err))
		rv = -1;
	json_decref(all);
	return rv;
}

/* ---- export and import */

static int tell_export(const struct hspmd_checkpoint_group *c, const struct hspmd_export_options *how, struct hspmd_error *err)
{
	hspmd_progress_begin("export");
	int rv = hspmd_weights_export(c->reader, how, err);
	hspmd_progress_end();
	if (!rv)
		hspmd_info("step %" PRId64 " is in %s", c->step, how->folder);
	return rv;
}

/* A checkpoint of another trainer, which has a note and no model, is exported as it is. */
static int export_model(const struct checkpoint_options *o, struct hspmd_checkpoint_index *g, struct hspmd_error *err)
{
	struct hspmd_checkpoint_group *c = hspmd_checkpoint_index_choose(g, o->step, o->path, err);
	if (!c)
		return -1;
	json_t *config = json_object_get(c->manifest->job, "model");
	struct hspmd_export_options plain = { .folder = o->output, .bf16 = o->bf16, .max_bytes = (uint64_t)o->max_bytes };
	if (json_object_get(c->manifest->job, "note") && !o->config)
		return tell_export(c, &plain, err);
	if (!o->config && !json_is_object(config))
		return hspmd_fail(err, "the checkpoint does not hold the model's config.json: name it with --config");
	struct hspmd_model *m =
	        o->config ? hspmd_model_read(o->config, err) : hspmd_model_from_json(config, "the checkpoint's config.json", err);
	if (!m)
		return -1;
	struct hspmd_file_map map = hspmd_model_file_map(m);
	struct hspmd_export_options how = plain;
	how.config = m->config;
	how.map = &map;
	int rv = tell_export(c, &how, err);
	hspmd_model_destroy(m);
	return rv;
}

/* The model's parameters by the graph that trains them. */
static struct hspmd_import_tensor *parameters(const struct hspmd_graph *graph, size_t *count)
{
	struct hspmd_import_tensor *t = hspmd_calloc(graph->tensor_count, sizeof *t);
	*count = 0;
	for (size_t i = 0; t && i < graph->tensor_count; i++)
		if (graph->tensors[i].role == HSPMD_TENSOR_PARAMETER)
			t[(*count)++] = (struct hspmd_import_tensor){ graph->tensors[i].name, graph->tensors[i].shape };
	return t;
}

static int import_into(const struct checkpoint_options *o, struct hspmd_model *m, struct hspmd_weights *w, struct hspmd_error *err)
{
	struct hspmd_graph *graph = hspmd_model_parameters_graph(m, err);
	if (!graph)
		return -1;
	size_t count;
	struct hspmd_import_tensor *tensors = parameters(graph, &count);
	json_t *job = json_pack("{s:O, s:s}", "model", m->config, "imported", o->path);
	struct hspmd_file_map map = hspmd_model_file_map(m);
	hspmd_progress_begin("import");
	int rv = tensors && job ? hspmd_weights_import(w, &map, tensors, count, job, o->output, err) : hspmd_fail_memory(err, "importing");
	hspmd_progress_end();
	if (!rv)
		hspmd_info("step 0 is in %s", o->output);
	json_decref(job);
	free(tensors);
	hspmd_graph_destroy(graph);
	return rv;
}

static int import_model(const struct checkpoint_options *o, struct hspmd_error *err)
{
	struct stat st;
	const char *slash = strrchr(o->path, '/');
	if (stat(o->path, &st))
		return hspmd_fail_errno(err, "%s", o->path);
	bool folder = S_ISDIR(st.st_mode);
	char *beside = folder ? hspmd_asprintf("%s/config.json", o->path)
	                      : hspmd_asprintf("%.*sconfig.json", slash ? (int)(slash - o->path) + 1 : 0, o->path);
	struct hspmd_model *m = beside ? hspmd_model_read(o->config ? o->config : beside, err) : NULL;
	struct hspmd_weights *w = m ? hspmd_weights_open(o->path, err) : NULL;
	int rv = beside ? -1 : hspmd_fail_memory(err, "importing");
	if (w)
		rv = import_into(o, m, w, err);
	hspmd_weights_destroy(w);
	hspmd_model_destroy(m);
	free(beside);
	return rv;
}

static int with_groups(const struct checkpoint_options *o,
                       int (*f)(const struct checkpoint_options *, struct hspmd_checkpoint_index *, struct hspmd_error *),
                       struct hspmd_error *err)
{
	struct hspmd_checkpoint_index g;
	struct stat st;
	if (access(o->path, R_OK) || stat(o->path, &st))
		return hspmd_fail_errno(err, "%s", o->path);
	if (!S_ISDIR(st.st_mode))
		return hspmd_fail(err, "%s: expected a folder", o->path);
	if (hspmd_checkpoint_index_open(&g, o->path, err))
		return -1;
	int rv = f(o, &g, err);
	hspmd_checkpoint_index_close(&g);
	return rv;
}

int hspmd_command_checkpoint(int argc, char **argv)
{
	static const char *const verbs[] = { "list", "verify", "export", "import", NULL };
	struct checkpoint_options o = { .step = -1 };
	struct hspmd_error err = { "" };
	if (hspmd_control_names_job(argc, argv, verbs))
		return hspmd_control_checkpoint(argc, argv);
	int status = parse(argc, argv, &o), rv;
	if (status)
		return status;
	if (o.help) {
		fputs(help_text, stdout);
		return HSPMD_EXIT_DONE;
	}
	bool writes = !strcmp(o.what, "export") || !strcmp(o.what, "import");
	if (writes != (o.output != NULL))
		return hspmd_usage_error("checkpoint", writes ? "--output is missing" : "--output is not for '%s'", o.what);
	if (!strcmp(o.what, "list"))
		rv = with_groups(&o, list, &err);
	else if (!strcmp(o.what, "verify"))
		rv = with_groups(&o, verify, &err);
	else if (!strcmp(o.what, "export"))
		rv = with_groups(&o, export_model, &err);
	else if (!strcmp(o.what, "import"))
		rv = import_model(&o, &err);
	else
		return hspmd_usage_error("checkpoint", "expected list, verify, export or import, got '%s'", o.what);
	if (rv)
		hspmd_error_log("%s", err.text);
	return rv ? HSPMD_EXIT_FAILED : HSPMD_EXIT_DONE;
}
