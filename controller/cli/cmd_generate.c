/* SPDX-License-Identifier: Apache-2.0 */
/* hspmd generate: continues texts with a trained model, on one device of this node. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/clock.h"
#include "common/json.h"
#include "common/log.h"
#include "controller/cli/commands.h"
#include "controller/cli/tokenizer.h"
#include "controller/cli/trained_model.h"
#include "runtime/inference/token_choice.h"
#include "runtime/topology/topology.h"

static const char head[] = "Usage: hspmd generate --checkpoint FOLDER --prompt TEXT [options]\n"
                           "\n"
                           "Continues texts with the newest complete checkpoint in a folder, or with a model folder of Hugging Face's\n"
                           "(config.json and safetensors), and prints them.\n";

#define PROMPT_MAX ((size_t)64 << 20) /* bytes of a file */
#define ENDS_MAX 16                   /* tokens that end a text */
#define WHOLE_MAX 9e15                /* of options: a double is exact up to it */

struct generate_options {
	const char *checkpoint, *config, *tokenizer, *precision;
	struct hspmd_option_list prompts, files;
	int64_t step, max_tokens, top_k, seed, devices;
	double temperature, top_p;
	struct hspmd_topology_options look;
	bool greedy, json, plain_tokens, ignore_end;
};

/* A prompt, and what follows it. */
struct completion {
	struct token_text prompt, rest;
	bool ended; /* by a token that ends texts */
};

struct generation_run {
	const struct generate_options *o;
	struct trained_model trained;
	struct tokenizer tokenizer;
	char *found_tokenizer; /* beside the model */
	struct hspmd_inference_devices devices;
	struct hspmd_inference *inference;
	struct completion *list;
	size_t count;
	int32_t ends[ENDS_MAX];
	int end_count;
	int64_t tokens; /* generated */
	double seconds;
};

/* ---- options */

static int parse(int argc, char **argv, struct generate_options *o)
{
	const struct hspmd_option options[] = {
		{ "checkpoint", 'c', "FOLDER", HSPMD_OPTION_TEXT, &o->checkpoint, 0, 0,
		  "a job's checkpoints, one of them, or a model folder" },
		{ "step", 0, "N", HSPMD_OPTION_INT, &o->step, 0, WHOLE_MAX, "use the checkpoint of this step" },
		{ "prompt", 'p', "TEXT", HSPMD_OPTION_TEXTS, &o->prompts, 0, 0, "the text to continue; may be given several times" },
		{ "prompt-file", 0, "FILE", HSPMD_OPTION_TEXTS, &o->files, 0, 0,
		  "a file with a text to continue (-: standard input); may be\ngiven several times" },
		{ "tokenizer", 't', "T", HSPMD_OPTION_TEXT, &o->tokenizer, 0, 0,
		  "a tokenizer.json of Hugging Face (needs the Python package\ntokenizers), or 'bytes'; default: the one in the model "
		  "folder, or\nbytes "
		  "if the model has 256 tokens" },
		{ "no-special-tokens", 0, NULL, HSPMD_OPTION_FLAG, &o->plain_tokens, 0, 0,
		  "without the tokens that the tokenizer puts before or after a\nprompt; texts of hspmd data prepare have none" },
		{ "max-tokens", 'n', "N", HSPMD_OPTION_INT, &o->max_tokens, 1, 1 << 24, "tokens to add at most (default: 100)" },
		{ "temperature", 0, "X", HSPMD_OPTION_NUMBER, &o->temperature, 0, 1e6, "divides logits (default: 1; 0: --greedy)" },
		{ "top-k", 0, "N", HSPMD_OPTION_INT, &o->top_k, 0, 1 << 24,
		  "draw only from the N most likely tokens (default: 50; 0: all)" },
		{ "top-p", 0, "X", HSPMD_OPTION_NUMBER, &o->top_p, 0, 1,
		  "draw only from the fewest tokens whose probabilities add up to X\n(default: 1)" },
		{ "seed", 0, "N", HSPMD_OPTION_INT, &o->seed, 0, WHOLE_MAX, "of the draws (default: 1); the same seed draws the same" },
		{ "greedy", 0, NULL, HSPMD_OPTION_FLAG, &o->greedy, 0, 0, "take the most likely token each time" },
		{ "ignore-end", 0, NULL, HSPMD_OPTION_FLAG, &o->ignore_end, 0, 0, "do not stop at eos_token_id of config.json" },
		{ "config", 0, "FILE", HSPMD_OPTION_TEXT, &o->config, 0, 0, "the model's config.json, or a model of one's own" },
		{ "precision", 0, "WORD", HSPMD_OPTION_TEXT, &o->precision, 0, 0,
		  "fp32 or bf16 (default: the job's, if the device has it)" },
		{ "cpu", 0, NULL, HSPMD_OPTION_FLAG, &o->look.cpu, 0, 0, "compute on the cores (default: on a GPU if there is one)" },
		{ "gpu", 0, NULL, HSPMD_OPTION_FLAG, &o->look.gpu, 0, 0, "compute on a GPU" },
		{ "devices", 0, "N", HSPMD_OPTION_INT, &o->devices, 1, HSPMD_INFERENCE_MAX_DEVICES,
		  "divide the model's layers among N devices (default: among all\nGPUs if one cannot hold the model)" },
		{ "json", 0, NULL, HSPMD_OPTION_FLAG, &o->json, 0, 0, "print the result as JSON" },
		{ 0 },
	};
	int status = hspmd_options_parse("generate", head, options, argc, argv);
	if (status)
		return status;
	if (!o->checkpoint || !(o->prompts.count + o->files.count))
		return hspmd_usage_error("generate", "--%s is missing", o->checkpoint ? "prompt" : "checkpoint");
	if (o->precision && strcmp(o->precision, "fp32") && strcmp(o->precision, "bf16"))
		return hspmd_usage_error("generate", "--precision: expected fp32 or bf16, got '%s'", o->precision);
	if (o->look.cpu && o->look.gpu)
		return hspmd_usage_error("generate", "--cpu and --gpu exclude one another");
	return 0;
}

/* ---- prompts */

static int read_file(const char *path, struct token_text *t, struct hspmd_error *err)
{
	FILE *f = strcmp(path, "-") ? fopen(path, "re") : stdin;
	size_t room = 0;
	if (!f)
		return hspmd_fail_errno(err, "%s", path);
	int rv = 0;
	do {
		char *larger = t->size + 1 < room ? t->text : realloc(t->text, room = room ? 2 * room : 4096);
		if (!larger) {
			rv = hspmd_fail_memory(err, path);
			break;
		}
		t->text = larger;
		t->size += fread(t->text + t->size, 1, room - 1 - t->size, f);
	} while (!feof(f) && !ferror(f) && t->size < PROMPT_MAX);
	if (!rv && ferror(f))
		rv = hspmd_fail_errno(err, "%s", path);
	else if (!rv && t->size >= PROMPT_MAX)
		rv = hspmd_fail(err, "%s: more than %zu MB are no prompt", path, PROMPT_MAX >> 20);
	if (f != stdin)
		fclose(f);
	return rv;
}

/* An empty prompt is the token that begins texts. */
static int check_prompt(const struct generation_run *r, size_t i, struct hspmd_error *err)
{
	struct token_text *t = &r->list[i].prompt;
	json_t *begin = json_object_get(r->trained.model->config, "bos_token_id");
	if (t->count)
		return 0;
	if (!json_is_integer(begin))
		return hspmd_fail(err, "prompt %zu is empty, and config.json has no bos_token_id to begin with", i + 1);
	t->tokens[0] = (int32_t)json_integer_value(begin);
	t->count = 1;
	return 0;
}

static int read_prompts(struct generation_run *r, struct hspmd_error *err)
{
	const struct generate_options *o = r->o;
	r->list = hspmd_calloc((size_t)(o->prompts.count + o->files.count), sizeof *r->list);
	if (!r->list)
		return hspmd_fail_memory(err, "reading prompts");
	for (int i = 0; i < o->prompts.count; i++) {
		struct token_text *t = &r->list[r->count++].prompt;
		if (!(t->text = strdup(o->prompts.items[i])))
			return hspmd_fail_memory(err, "reading prompts");
		t->size = strlen(t->text);
	}
	for (int i = 0; i < o->files.count; i++)
		if (read_file(o->files.items[i], &r->list[r->count++].prompt, err))
			return -1;
	return 0;
}

/* tokenizer_encode and tokenizer_decode take arrays of texts alone. */
typedef int convert_texts(const struct tokenizer *t, struct token_text *list, size_t n, struct hspmd_error *err);
static int with_texts(struct generation_run *r, bool rest, convert_texts *f, struct hspmd_error *err)
{
	struct token_text *all = hspmd_calloc(r->count, sizeof *all);
	if (!all)
		return hspmd_fail_memory(err, "generating");
	for (size_t i = 0; i < r->count; i++)
		all[i] = rest ? r->list[i].rest : r->list[i].prompt;
	int rv = f(&r->tokenizer, all, r->count, err);
	for (size_t i = 0; i < r->count; i++)
		*(rest ? &r->list[i].rest : &r->list[i].prompt) = all[i];
	free(all);
	return rv;
}

/* ---- model, tokenizer and device */

static int choose_tokenizer(struct generation_run *r, struct hspmd_error *err)
{
	const struct generate_options *o = r->o;
	r->tokenizer = (struct tokenizer){ o->tokenizer, !o->plain_tokens };
	if (o->tokenizer) {
		if (!strcmp(o->tokenizer, "bytes"))
			r->tokenizer.path = NULL;
		return 0;
	}
	r->found_tokenizer = hspmd_asprintf("%s/tokenizer.json", o->checkpoint);
	if (!r->found_tokenizer)
		return hspmd_fail_memory(err, "generating");
	if (!access(r->found_tokenizer, R_OK))
		r->tokenizer.path = r->found_tokenizer;
	else if (r->trained.model->vocab != 256)
		return hspmd_fail(err, "the model has %" PRId64 " tokens: name their tokenizer.json with --tokenizer (or 'bytes')",
		                  r->trained.model->vocab);
	return 0;
}

/* eos_token_id of config.json: a number, or several. */
static void find_ends(struct generation_run *r)
{
	json_t *ids = json_object_get(r->trained.model->config, "eos_token_id"), *id;
	size_t i;
	if (r->o->ignore_end || !r->tokenizer.path) /* bytes have none */
		return;
	if (json_is_integer(ids))
		r->ends[r->end_count++] = (int32_t)json_integer_value(ids);
	json_array_foreach(ids, i, id)
		if (r->end_count < ENDS_MAX)
			r->ends[r->end_count++] = (int32_t)json_integer_value(id);
}

#define MODEL_MOST 0.8 /* of a GPU's memory, beside keys, values and activations */

/* How many devices to use. 0 and err: fewer are there than wanted, or memory. */
static int count_devices(const struct generation_run *r, const struct hspmd_topology *t, bool bf16, struct hspmd_error *err)
{
	int there = t->binding_count;
	if (r->o->devices > there) {
		hspmd_fail(err, "--devices %" PRId64 ", but there are %d here", r->o->devices, there);
		return 0;
	}
	if (r->o->devices)
		return (int)r->o->devices;
	if (there == 1 || t->bindings[0].gpu < 0)
		return 1;
	double bytes = hspmd_inference_bytes(r->trained.model, bf16, err);
	if (bytes < 0)
		return 0;
	if (bytes < MODEL_MOST * (double)t->cluster->types[t->cluster->devices[0].type].memory_bytes)
		return 1;
	return there < HSPMD_INFERENCE_MAX_DEVICES ? there : HSPMD_INFERENCE_MAX_DEVICES;
}

/* Devices get layers by their memory, as they come. */
static int open_devices(struct generation_run *r, const struct hspmd_topology *t, int count, struct hspmd_error *err)
{
	struct hspmd_inference_devices *d = &r->devices;
	for (; d->count < count; d->count++) {
		const struct hspmd_binding *b = &t->bindings[d->count];
		const struct hspmd_device_ops *ops = hspmd_device_find(hspmd_device_kind_names[b->kind], err);
		d->share[d->count] = (double)t->cluster->types[t->cluster->devices[d->count].type].memory_bytes;
		int threads = b->gpu < 0 && count == 1 ? 0 : b->cores; /* 0: all that there are */
		if (!ops || ops->open(&d->device[d->count], b->gpu < 0 ? 0 : b->gpu, threads, err))
			return -1;
	}
	return 0;
}

static void tell_layers(const struct generation_run *r)
{
	for (int i = 0; i < r->devices.count && r->devices.count > 1; i++) {
		int first, end;
		hspmd_inference_layers(r->inference, i, &first, &end);
		if (first < end)
			hspmd_info("device %d: layers %d to %d", i, first, end - 1);
	}
}

static int open_inference(struct generation_run *r, struct hspmd_error *err)
{
	struct hspmd_topology_options look = r->o->look;
	look.skip_measure = true;
	if (!look.gpu)
		look.devices = look.cpu ? (r->o->devices ? (int)r->o->devices : 1) : 0;
	struct hspmd_topology *t = hspmd_topology_discover(&look, err);
	if (!t)
		return -1;
	const char *wanted = r->o->precision;
	bool can = hspmd_device_kind_computes(t->bindings[0].kind, HSPMD_PRECISION_BF16),
	     bf16 = wanted ? !strcmp(wanted, "bf16") : r->trained.bf16 && can;
	if (bf16 && !can)
		hspmd_fail(err, "--precision: this device does not compute in bf16");
	int count = bf16 && !can ? 0 : count_devices(r, t, bf16, err);
	if (count && !open_devices(r, t, count, err))
		r->inference = hspmd_inference_open(r->trained.model, &r->trained.source, &r->devices, bf16, err);
	hspmd_topology_destroy(t);
	if (r->inference)
		tell_layers(r);
	return r->inference ? 0 : -1;
}

static int open_all(struct generation_run *r, struct hspmd_error *err)
{
	const struct generate_options *o = r->o;
	if (read_prompts(r, err) || trained_model_open(&r->trained, o->checkpoint, o->step, o->config, err) || choose_tokenizer(r, err) ||
	    with_texts(r, false, tokenizer_encode, err))
		return -1;
	for (size_t i = 0; i < r->count; i++)
		if (check_prompt(r, i, err))
			return -1;
	find_ends(r);
	if (open_inference(r, err))
		return -1;
	const char *why = hspmd_inference_uncached(r->inference);
	if (why)
		hspmd_warn("the whole text is computed again for every token: %s", why);
	return 0;
}

/* ---- generating */

static bool is_end(const struct generation_run *r, int32_t token)
{
	bool end = false;
	for (int i = 0; i < r->end_count; i++)
		end |= r->ends[i] == token;
	return end;
}

/* The tokens that may follow a prompt, at most. */
static int64_t room_for(const struct generation_run *r, const struct completion *c)
{
	int64_t positions = r->trained.model->max_positions, most = r->o->max_tokens;
	return positions > 0 && most > positions - c->prompt.count ? positions - c->prompt.count : most;
}

static int complete(struct generation_run *r, size_t number, float *logits, struct hspmd_error *err)
{
	const struct generate_options *o = r->o;
	struct completion *c = &r->list[number];
	struct hspmd_token_choice how = { o->greedy ? 0 : o->temperature, o->top_k, o->top_p, (uint64_t)o->seed };
	int64_t most = room_for(r, c);
	if (most < 1)
		return hspmd_fail(err, "prompt %zu has %" PRId64 " tokens, and the model %" PRId64 " positions", number + 1,
		                  c->prompt.count, r->trained.model->max_positions);
	if (!(c->rest.tokens = hspmd_calloc((size_t)most, sizeof *c->rest.tokens)))
		return hspmd_fail_memory(err, "generating");
	if (hspmd_inference_begin(r->inference, c->prompt.count + most, err) ||
	    hspmd_inference_append(r->inference, c->prompt.tokens, c->prompt.count, logits, err))
		return hspmd_error_prefix(err, "prompt %zu", number + 1);
	while (c->rest.count < most) {
		int32_t token =
		        hspmd_choose_token(&how, logits, r->trained.model->vocab, number, (uint64_t)(c->prompt.count + c->rest.count), err);
		if (token < 0)
			return -1;
		if ((c->ended = is_end(r, token)))
			break;
		c->rest.tokens[c->rest.count++] = token;
		if (c->rest.count < most && hspmd_inference_append(r->inference, &token, 1, logits, err))
			return -1;
	}
	r->tokens += c->rest.count;
	return 0;
}

static int complete_all(struct generation_run *r, struct hspmd_error *err)
{
	float *logits = hspmd_calloc((size_t)r->trained.model->vocab, sizeof *logits);
	int rv = logits ? 0 : hspmd_fail_memory(err, "generating");
	double began = hspmd_now();
	for (size_t i = 0; i < r->count && !rv; i++)
		rv = complete(r, i, logits, err);
	r->seconds = hspmd_now() - began;
	free(logits);
	return rv ? rv : with_texts(r, true, tokenizer_decode, err);
}

/* ---- results */

/* Control characters of a model that has learnt little must not reach a terminal. */
static void print_text(const struct token_text *t)
{
	for (size_t i = 0; i < t->size; i++) {
		unsigned char c = (unsigned char)t->text[i];
		bool c1 = c == 0xc2 && i + 1 < t->size && (unsigned char)t->text[i + 1] < 0xa0;
		if ((c < 0x20 && c != '\n' && c != '\t') || c == 0x7f || c1)
			fputs("\xef\xbf\xbd", stdout);
		else
			putchar(c);
		i += c1;
	}
}

static json_t *completion_json(const struct completion *c)
{
	json_t *tokens = json_array(), *prompt = json_stringn(c->prompt.text, c->prompt.size);
	int bad = !tokens;
	for (int64_t i = 0; i < c->rest.count; i++)
		bad |= json_array_append_new(tokens, json_integer(c->rest.tokens[i]));
	json_t *v = json_pack("{s:o, s:o, s:o, s:s, s:I}", "prompt", prompt ? prompt : json_null(), "text",
	                      json_stringn(c->rest.text, c->rest.size), "tokens", tokens, "stopped_by", c->ended ? "end" : "length",
	                      "prompt_tokens", (json_int_t)c->prompt.count);
	return hspmd_json_unless_failed(bad, v);
}

static int print_json(const struct generation_run *r, struct hspmd_error *err)
{
	json_t *all = json_array(), *v = NULL;
	int bad = !all;
	for (size_t i = 0; i < r->count; i++)
		bad |= json_array_append_new(all, completion_json(&r->list[i]));
	if (!bad)
		v = json_pack("{s:o, s:O}", "step", r->trained.step < 0 ? json_null() : json_integer(r->trained.step), "completions", all);
	int rv = v ? hspmd_json_save(v, "-", err) : hspmd_fail_memory(err, "printing");
	json_decref(v);
	json_decref(all);
	return rv;
}

static int print_result(const struct generation_run *r, struct hspmd_error *err)
{
	if (r->o->json)
		return print_json(r, err);
	for (size_t i = 0; i < r->count; i++) {
		if (i)
			putchar('\n');
		print_text(&r->list[i].prompt);
		print_text(&r->list[i].rest);
		putchar('\n');
	}
	hspmd_info("%" PRId64 " tokens, %.0f a second", r->tokens, r->seconds > 0 ? (double)r->tokens / r->seconds : 0);
	return 0;
}

static void close_all(struct generation_run *r)
{
	hspmd_inference_close(r->inference);
	for (int i = 0; i < r->devices.count; i++)
		r->devices.device[i]->ops->close(r->devices.device[i]);
	trained_model_close(&r->trained);
	for (size_t i = 0; i < r->count; i++) {
		token_text_free(&r->list[i].prompt);
		token_text_free(&r->list[i].rest);
	}
	free(r->list);
	free(r->found_tokenizer);
}

int hspmd_command_generate(int argc, char **argv)
{
	struct generate_options o = { .step = -1, .max_tokens = 100, .temperature = 1, .top_k = 50, .top_p = 1, .seed = 1 };
	struct hspmd_error err = { "" };
	int status = parse(argc, argv, &o);
	if (status)
		return status == HSPMD_OPTIONS_HELP ? HSPMD_EXIT_DONE : status;
	struct generation_run r = { .o = &o };
	int rv = open_all(&r, &err) || complete_all(&r, &err) || print_result(&r, &err) ? -1 : 0;
	close_all(&r);
	if (rv)
		hspmd_error_log("%s", err.text);
	return rv ? HSPMD_EXIT_FAILED : HSPMD_EXIT_DONE;
}
