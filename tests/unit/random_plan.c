/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/random_plan.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/model/build.h"
#include "runtime/model/model.h"
#include "runtime/tensor/opcode.h"

#define BATCH RANDOM_PLAN_BATCH
#define LISTS 2 /* lists of operators to recompute, from which a plan's stages choose */

uint64_t random_plan_state;

/* splitmix64 (Steele et al., OOPSLA'14). */
unsigned random_plan_draw(unsigned n)
{
	uint64_t z = (random_plan_state += UINT64_C(0x9e3779b97f4a7c15));
	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return (unsigned)((z ^ (z >> 31)) >> 33) % n;
}

/* Split n into `parts` numbers of at least 1. */
static void compose(int n, int parts, int *out)
{
	for (int i = 0; i < parts; i++)
		out[i] = 1;
	for (int left = n - parts; left > 0; left--)
		out[random_plan_draw((unsigned)parts)]++;
}

static void put_ratio(FILE *f, const char *key, int parts, int units)
{
	int share[8];
	if (parts < 2 || parts > units || random_plan_draw(2))
		return;
	compose(units, parts, share);
	fprintf(f, ",\"%s\":[", key);
	for (int i = 0; i < parts; i++)
		fprintf(f, "%s%g", i ? "," : "", (double)share[i] / units);
	fputc(']', f);
}

static bool can_offload(const struct random_plan *of, int first, int count)
{
	unsigned devices = ((1u << count) - 1) << first;
	return (of->offloads & devices) == devices;
}

/* How a stage on `count` devices from `first` on splits its layers, under this zero_stage, and what it offloads. The caller frees the
 * result. */
static char *draw_splits(const struct random_plan *of, int first, int count, int zero)
{
	char *text = NULL;
	size_t size;
	FILE *f = open_memstream(&text, &size);
	int context = 1 + (int)random_plan_draw(count > of->heads || !random_plan_draw(3) ? (unsigned)count : 1);
	while (count % context || count / context > of->heads)
		context = context % count + 1;
	if (context > 1)
		fprintf(f, ",\"context\":%d", context);
	if (random_plan_draw(2))
		fputs(",\"sequence_parallel\":true", f);
	if (zero && random_plan_draw(3) == 0)
		fprintf(f, ",\"zero_share\":%u", 1 + random_plan_draw(3));
	if (can_offload(of, first, count) && !of->borrows_state && random_plan_draw(3))
		fputs(",\"offload\":\"optimizer\"", f);
	put_ratio(f, "shard_ratio", count / context, of->heads);
	put_ratio(f, "context_ratio", context > 1 ? context : 0, of->mixed ? 4 : 16);
	fclose(f);
	return text;
}

static void add_name(struct random_plan_operators *out, const char *name)
{
	for (int i = 0; i < out->count; i++)
		if (!strcmp(out->names[i], name))
			return;
	if (out->count < (int)(sizeof out->names / sizeof *out->names) && strlen(name) < sizeof *out->names)
		strcpy(out->names[out->count++], name);
}

void random_plan_find_operators(const char *config, bool fp8, struct random_plan_operators *out)
{
	struct hspmd_error err = { "" };
	json_t *json = json_loads(config, 0, NULL);
	struct hspmd_model *m = hspmd_model_from_json(json, "model", &err);
	struct hspmd_model_build_options how = {
		.batch = 1, .seq_len = 8, .vocab_parts = 1, .loss_scale = 1, .forward_only = true, .fp8 = fp8
	};
	struct hspmd_graph *g = m ? hspmd_model_graph(m, &how, &err) : NULL;
	char weight[64];
	out->count = 0;
	for (size_t i = 0; g && i < g->op_count; i++) {
		const struct hspmd_op *op = &g->ops[i];
		if (op->layer == 0 || op->layer == hspmd_model_layers(m) - 1 || !hspmd_graph_op_repeats(g, op))
			continue;
		add_name(out, hspmd_opcode_names[op->opcode]);
		if (hspmd_graph_op_weight(g, op, weight, sizeof weight))
			add_name(out, weight);
	}
	hspmd_graph_destroy(g);
	hspmd_model_destroy(m);
	json_decref(json);
}

/* "none", or another word or list. The lists are drawn once per plan, as it may have only a few. */
static char *draw_list(const struct random_plan_operators *of)
{
	char *text = NULL;
	size_t size;
	FILE *f = open_memstream(&text, &size);
	int count = 0;
	for (int i = 0; i < of->count; i++)
		if (random_plan_draw(2))
			fprintf(f, "%s\"%s\"", count++ ? "," : "[", of->names[i]);
	fprintf(f, "%s\"%s\"]", count ? "," : "[", of->names[random_plan_draw((unsigned)of->count)]);
	fclose(f);
	return text;
}

/* What pipelines that exchange parts during their passes have in common. */
struct common {
	int zero;          /* zero_stage */
	int micro_batches; /* 0: nothing else in common */
	int stages, layers[8];
};

/* The widths of at most `most` stages, or of `fixed` if that is not 0. Returns how many there are. */
static int draw_widths(int devices, int most, int fixed, int *width)
{
	int stages = fixed ? fixed : 1 + (int)random_plan_draw((unsigned)(devices < most ? devices : most));
	for (bool fits = false; !fits;) {
		compose(devices, stages, width);
		fits = true;
		for (int s = 0; s < stages; s++)
			fits &= width[s] <= 6; /* parts of the sequence then have a few tokens, and some have one */
		if (!fits && !fixed && stages < most && stages < devices)
			stages++;
	}
	return stages;
}

/* What a pipeline does with samples of several lengths; or nothing of it. some: it need not take the longest. */
static void put_lengths(FILE *f, int seq_len, bool some)
{
	int longest = some ? 4 * (1 + (int)random_plan_draw((unsigned)seq_len / 4)) : seq_len, micro_batch = 1 + (int)random_plan_draw(2);
	if (random_plan_draw(3) == 0)
		return;
	fputs("\"lengths\":[", f);
	for (int length = 4; length < longest; length += 4 * (1 + (int)random_plan_draw(3)))
		fprintf(f, "{\"seq_len\":%d,\"micro_batch\":%d,\"micro_batch_s\":%g},", length,
		        1 + (int)random_plan_draw((unsigned)(longest * micro_batch / length)), 1e-3 * (1 + random_plan_draw(9)));
	fprintf(f, "{\"seq_len\":%d,\"micro_batch\":%d,\"micro_batch_s\":%g}],", longest, micro_batch, 1e-3 * (1 + random_plan_draw(9)));
}

/* Which activations a stage offloads: none, all, or those that it could also recompute. */
static void put_offloaded(FILE *f, const struct random_plan *of, const char *const recompute[3 + LISTS])
{
	unsigned kind = random_plan_draw(of->operators ? 2 + LISTS : 2);
	if (kind)
		fprintf(f, ",\"offload_activations\":%s", kind == 1 ? "\"all\"" : recompute[1 + kind]);
}

/* `chunks`: model chunks per device (virtual stages). recompute: what a stage may have. */
static void put_pipeline(FILE *f, const struct random_plan *of, const struct common *common, int rounds, int first, int devices,
                         int samples, const char *const recompute[3 + LISTS])
{
	int micro_batch = common->micro_batches ? samples / common->micro_batches : samples % 2 == 0 && random_plan_draw(2) ? 2 : 1;
	int width[8], layers[8], layer = 0, stages = draw_widths(devices, of->layers / rounds, common->stages, width);
	char *splits[8];
	for (int s = 0, at = first; s < stages; at += width[s++])
		splits[s] = draw_splits(of, at, width[s], common->zero);
	compose(of->layers, stages * rounds, layers);
	if (common->stages)
		memcpy(layers, common->layers, sizeof layers);
	fprintf(f, "{\"micro_batches\":%d,\"micro_batch\":%d,", samples / micro_batch, micro_batch);
	if (of->mixed)
		put_lengths(f, of->seq_len, first > of->first);
	fputs("\"stages\":[", f);
	for (int s = 0, at = first; s < stages * rounds; s++) {
		if (s)
			fputc(',', f);
		if (s % stages == 0)
			at = first;
		fprintf(f, "{\"layers\":[%d,%d],\"devices\":[\"n:%d-%d\"],\"recompute\":%s%s", layer, layer + layers[s], at,
		        at + width[s % stages] - 1, recompute[random_plan_draw(of->operators ? 3 + LISTS : 3)], splits[s % stages]);
		if (can_offload(of, at, width[s % stages]))
			put_offloaded(f, of, recompute);
		fputc('}', f);
		layer += layers[s];
		at += width[s % stages];
	}
	fputs("]}", f);
	for (int s = 0; s < stages; s++)
		free(splits[s]);
}

static void put_schedule(FILE *f, bool in_step, bool mixed, int *rounds)
{
	static const char *const plain[] = { "1f1b", "gpipe", "zb-h1" };
	*rounds = random_plan_draw(3) ? 1 : 2;
	if (*rounds > 1)
		fprintf(f, "\"schedule\":\"interleaved\",\"virtual_stages\":%d", *rounds);
	else
		fprintf(f, "\"schedule\":\"%s\"", plain[mixed ? 2 * random_plan_draw(2) : random_plan_draw(in_step ? 2 : 3)]);
}

/* Pipelines with as many micro-batches each, of as many samples as they can, and stages of the same layers. */
static void draw_common(const struct random_plan *of, int pipelines, const int *width, int rounds, int *samples, struct common *common)
{
	int least = of->layers / rounds;
	for (int p = 0; p < pipelines; p++)
		least = width[p] < least ? width[p] : least;
	common->micro_batches = BATCH / pipelines < 2 ? 1 : 1 + (int)random_plan_draw(2);
	while (BATCH % common->micro_batches || BATCH / common->micro_batches < pipelines)
		common->micro_batches--;
	compose(BATCH / common->micro_batches, pipelines, samples);
	for (int p = 0; p < pipelines; p++)
		samples[p] *= common->micro_batches;
	common->stages = 1 + (int)random_plan_draw((unsigned)least);
	compose(of->layers, common->stages * rounds, common->layers);
}

char *random_plan(const struct random_plan *of)
{
	char *text = NULL;
	size_t size;
	FILE *f = open_memstream(&text, &size);
	int devices = of->devices, least = of->least_zero > 1 ? 2 : 1, most = devices < 4 ? devices : 4;
	int pipelines = least + (int)random_plan_draw((unsigned)(most - least + 1)), width[8], samples[8], first = of->first, rounds,
	    zero = of->least_zero + (int)random_plan_draw((unsigned)(of->most_zero - of->least_zero) + 1);
	struct common common = { 0 };
	char *lists[LISTS] = { NULL };
	const char *recompute[3 + LISTS] = { "\"none\"", "\"selective\"", "\"full\"" };
	for (int i = 0; of->operators && i < LISTS; i++)
		recompute[3 + i] = lists[i] = draw_list(of->operators);
	compose(devices, pipelines, width);
	compose(BATCH, pipelines, samples);
	for (int p = 0; p < pipelines; p++)
		zero = width[p] > 6 && zero > 1 ? 1 : zero; /* one stage would be too wide */
	fprintf(f, "{\"format\":\"hspmd-plan-1\",\"global_batch\":%d,\"micro_batch\":1,\"seq_len\":%d,\"zero_stage\":%d,%s", BATCH,
	        of->seq_len, zero, zero == 3 && !random_plan_draw(4) ? "\"prefetch\":false," : "");
	put_schedule(f, zero > 1, of->mixed, &rounds);
	common.zero = zero;
	if (zero > 1)
		draw_common(of, pipelines, width, rounds, samples, &common);
	fputs(",\"pipelines\":[", f);
	for (int p = 0; p < pipelines; p++) {
		if (p)
			fputc(',', f);
		put_pipeline(f, of, &common, rounds, first, width[p], samples[p], recompute);
		first += width[p];
	}
	fprintf(f, "]%s}", of->shorter ? of->shorter : "");
	fclose(f);
	for (int i = 0; i < LISTS; i++)
		free(lists[i]);
	return text;
}
