/* SPDX-License-Identifier: Apache-2.0 */
/* Every valid plan trains: random plans over 1 to 8 devices give the losses of one device (doc/design.md, law 1). HSPMD_LONG=1 draws
 * many more; HSPMD_MODEL is the name of the only model that is tried; HSPMD_SEED repeats a draw. */
#include "config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "tests/pretend/pretend.h"
#include "tests/unit/draw.h"
#include "tests/unit/golden_config.h"
#include "tests/unit/only.h"
#include "tests/unit/random_plan.h"
#include "tests/unit/random_program.h"
#include "tests/unit/model_types.h"
#include "tests/unit/trainer.h"

#define STEPS 20 /* half of them without HSPMD_LONG */
#define BATCH RANDOM_PLAN_BATCH
#define CLOSE 1e-6 /* largest relative difference of losses */
#define NEAR 5e-3  /* in FP8, in which sums in another order may round to another number (test_fp8_train) */

struct model {
	const char *name, *config;
	int layers, heads; /* heads: units of tensor parallelism */
	int (*train)(const char *model, const char *plan, int devices, int steps, double *losses, struct hspmd_error *err);
};

static int steps(void)
{
	return draw_count(1, 2) == 2 ? STEPS : STEPS / 2;
}

static const char qwen2[] =
        "{\"model_type\":\"qwen2\",\"hidden_size\":24,\"num_hidden_layers\":3,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
        "\"intermediate_size\":40,\"max_position_embeddings\":64,\"vocab_size\":259,\"tie_word_embeddings\":false}";
static const char mistral[] =
        "{\"model_type\":\"mistral\",\"hidden_size\":24,\"num_hidden_layers\":3,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
        "\"intermediate_size\":40,\"max_position_embeddings\":64,\"vocab_size\":259,\"sliding_window\":6}";
/* Three layers of four heads, after the model_type. */
#define SIZES                                                                                                                              \
	"\"hidden_size\":24,\"num_hidden_layers\":3,\"num_attention_heads\":4,\"intermediate_size\":40,\"max_position_embeddings\":64,"    \
	"\"vocab_size\":259,\"tie_word_embeddings\":true"
#define TWO_KV SIZES ",\"num_key_value_heads\":2"
static const char scaled[] = "{\"model_type\":\"llama\"," TWO_KV
                             ",\"rope_theta\":500,\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,"
                             "\"high_freq_factor\":4,\"original_max_position_embeddings\":16}}";
static const char shared_kv[] = "{\"model_type\":\"llama\"," SIZES ",\"num_key_value_heads\":1}";
static const char shared_kv_norms[] = "{\"model_type\":\"qwen3\"," SIZES ",\"num_key_value_heads\":1,\"head_dim\":8}";
static const char qwen2_window[] =
        "{\"model_type\":\"qwen2\"," TWO_KV ",\"use_sliding_window\":true,\"sliding_window\":5,\"max_window_layers\":1}";
static const char qwen3[] = "{\"model_type\":\"qwen3\"," TWO_KV ",\"head_dim\":8}";
static const char qwen3_moe[] =
        "{\"model_type\":\"qwen3_moe\"," TWO_KV ",\"head_dim\":6,\"num_experts\":4,\"num_experts_per_tok\":2,\"moe_intermediate_size\":12,"
        "\"decoder_sparse_step\":2,\"output_router_logits\":true}";
static const char qwen2_moe[] =
        "{\"model_type\":\"qwen2_moe\"," TWO_KV ",\"num_experts\":4,\"num_experts_per_tok\":2,\"moe_intermediate_size\":12,"
        "\"shared_expert_intermediate_size\":20,\"mlp_only_layers\":[1],\"output_router_logits\":true}";
static const char smollm3[] = "{\"model_type\":\"smollm3\"," TWO_KV ",\"no_rope_layer_interval\":2}";
static const char olmo2[] = "{\"model_type\":\"olmo2\"," TWO_KV "}";
static const char phi3[] = "{\"model_type\":\"phi3\"," TWO_KV ",\"sliding_window\":6,\"partial_rotary_factor\":0.67}";
static const char gemma2[] = "{\"model_type\":\"gemma2\"," TWO_KV
                             ",\"head_dim\":8,\"sliding_window\":5,\"attn_logit_softcapping\":2,\"final_logit_softcapping\":3}";
static const char gemma3[] = "{\"model_type\":\"gemma3_text\"," TWO_KV ",\"head_dim\":8,\"sliding_window\":5,\"sliding_window_pattern\":2}";
static const char deepseek_v3[] =
        "{\"model_type\":\"deepseek_v3\"," SIZES
        ",\"n_routed_experts\":4,\"num_experts_per_tok\":2,\"moe_intermediate_size\":12,\"n_group\":2,"
        "\"topk_group\":1,\"first_k_dense_replace\":1,\"q_lora_rank\":9,\"kv_lora_rank\":7,\"qk_nope_head_dim\":6,\"qk_rope_head_dim\":4,"
        "\"v_head_dim\":8,\"n_shared_experts\":1}";
static const char deepseek_v2[] =
        "{\"model_type\":\"deepseek_v2\"," SIZES
        ",\"n_routed_experts\":4,\"num_experts_per_tok\":2,\"moe_intermediate_size\":12,\"topk_method\":\"group_limited_greedy\","
        "\"n_group\":2,\"topk_group\":1,\"first_k_dense_replace\":1,\"q_lora_rank\":null,\"kv_lora_rank\":7,\"qk_nope_head_dim\":6,"
        "\"qk_rope_head_dim\":4,\"v_head_dim\":8,\"n_shared_experts\":1,\"routed_scaling_factor\":1.5}";
static const char gpt_oss[] =
        "{\"model_type\":\"gpt_oss\"," TWO_KV ",\"head_dim\":8,\"num_local_experts\":4,\"num_experts_per_tok\":2,\"sliding_window\":5}";
static const char gpt2_dropout[] =
        "{\"model_type\":\"gpt2\",\"n_embd\":24,\"n_layer\":3,\"n_head\":4,\"n_positions\":32,\"vocab_size\":257}"; /* 0.1 each */
static const char llama_dropout[] = "{\"model_type\":\"llama\"," TWO_KV ",\"attention_dropout\":0.2}";
static const char gpt_neox[] = "{\"model_type\":\"gpt_neox\"," SIZES ",\"rotary_pct\":0.67}";
static const struct model listed[] = {
	{ "llama", trainer_llama, 5, 2, trainer_run },
	{ "gpt2", trainer_gpt2, 5, 4, trainer_run },
	{ "gpt2 on documents", trainer_gpt2, 5, 4, trainer_documents },
	{ "llama on documents", trainer_llama, 5, 2, trainer_documents },
	{ "mixtral", trainer_mixtral, 4, 4, trainer_run }, /* as many experts: a stage's parts are whole experts */
	{ "qwen2", qwen2, 5, 2, trainer_run },
	{ "mistral", mistral, 5, 2, trainer_run },
	{ "llama, scaled rotation", scaled, 5, 2, trainer_run },
	{ "llama, one kv head", shared_kv, 5, 4, trainer_run },
	{ "llama, one kv head, on documents", shared_kv, 5, 4, trainer_documents },
	{ "llama, two kv heads for four devices", scaled, 5, 4, trainer_run },
	{ "qwen3, one kv head", shared_kv_norms, 5, 4, trainer_run },
	{ "qwen2, some windows", qwen2_window, 5, 2, trainer_run },
	{ "qwen3", qwen3, 5, 2, trainer_run },
	{ "qwen3_moe", qwen3_moe, 5, 2, trainer_run },
	{ "qwen2_moe", qwen2_moe, 5, 2, trainer_run },
	{ "smollm3", smollm3, 5, 2, trainer_run },
	{ "olmo2", olmo2, 5, 2, trainer_run },
	{ "phi3", phi3, 5, 2, trainer_run },
	{ "gemma2", gemma2, 5, 2, trainer_run },
	{ "gemma2 on documents", gemma2, 5, 2, trainer_documents },
	{ "gemma3", gemma3, 5, 2, trainer_run },
	{ "deepseek_v2", deepseek_v2, 5, 4, trainer_run },
	{ "deepseek_v3", deepseek_v3, 5, 4, trainer_run },
	{ "gpt_oss", gpt_oss, 5, 4, trainer_run }, /* 4 experts and 4 heads, which share 2 of keys and values */
	{ "gpt2 with dropout", gpt2_dropout, 5, 4, trainer_run },
	{ "llama with dropout, on documents", llama_dropout, 5, 2, trainer_documents },
	{ "gpt_neox", gpt_neox, 5, 4, trainer_run },
	{ "gpt2, masked", trainer_gpt2, 5, 4, trainer_masked },
	{ "mixtral, masked", trainer_mixtral, 4, 4, trainer_masked },
	{ "llama in fp8", trainer_llama, 5, 2, trainer_fp8 },
	{ "mixtral in fp8", trainer_mixtral, 4, 4, trainer_fp8 },
	{ "qwen2_moe in fp8", qwen2_moe, 5, 2, trainer_fp8 },
	{ "gpt_oss in fp8", gpt_oss, 5, 4, trainer_fp8 },
	{ "llama by Lion", trainer_llama, 5, 2, trainer_lion },
	{ "gpt2 by Lion", trainer_gpt2, 5, 4, trainer_lion },
};

/* Those above, and one of each type of which there is none. */
#define MODELS_MAX 128
static struct model models[MODELS_MAX];
static size_t model_count;

static const char *config_listed(size_t i)
{
	return listed[i].config;
}

static int list_models(void **unused)
{
	const char *missing[MODEL_TYPES_MAX];
	(void)unused;
	memcpy(models, listed, sizeof listed);
	model_count = sizeof listed / sizeof *listed;
	int types = model_types_missing(config_listed, model_count, missing);
	for (int i = 0; i < types; i++) {
		if (!missing[i])
			continue;
		struct model *m = &models[model_count++];
		*m = (struct model){ missing[i], golden_config(missing[i], "{\"vocab_size\":259,\"num_hidden_layers\":3}"), 5, 2,
			             trainer_run };
		if (!m->config)
			fail_msg("tests/data/golden has no model of type %s", missing[i]);
		model_type_tried(m->config, missing);
	}
	return 0;
}

static bool mixes;          /* steps of the plan that is drawn mix lengths */
static bool shorter_of_set; /* the plan that is drawn is one for shorter steps */

static char *draw_plan_at(const struct model *m, int devices, int seq_len, int most_zero, const char *shorter)
{
	static struct random_plan_operators operators;
	static const struct model *of; /* whose they are */
	if (of != m)
		random_plan_find_operators((of = m)->config, m->train == trainer_fp8, &operators);
	return random_plan(&(struct random_plan){ .layers = m->layers,
	                                          .heads = m->heads,
	                                          .devices = devices,
	                                          .seq_len = seq_len,
	                                          .most_zero = most_zero,
	                                          .mixed = mixes,
	                                          .shorter = shorter,
	                                          .offloads = trainer_pretend,
	                                          .borrows_state = shorter_of_set,
	                                          .operators = &operators });
}

static char *draw_plan(const struct model *m, int devices)
{
	return draw_plan_at(m, devices, 16, 3, NULL);
}

static void train_on_one(const struct model *m, double *losses)
{
	struct hspmd_error err = { "" };
	char *plan = NULL;
	assert_true(asprintf(&plan,
	                     "{\"format\":\"hspmd-plan-1\",\"global_batch\":%d,\"micro_batch\":1,\"seq_len\":16,\"schedule\":\"1f1b\","
	                     "\"zero_stage\":0,"
	                     "\"pipelines\":[{\"micro_batches\":%d,\"stages\":[{\"layers\":[0,%d],\"devices\":[\"n:0\"]}]}]}",
	                     BATCH, BATCH, m->layers) > 0);
	if (m->train(m->config, plan, 1, steps(), losses, &err))
		fail_msg("%s on one device: %s", m->name, err.text);
	free(plan);
}

/* Trained once per model. */
static const double *one_device(size_t k)
{
	static double known[MODELS_MAX][STEPS];
	if (known[k][0] == 0)
		train_on_one(&models[k], known[k]);
	return known[k];
}

/* Returns the largest relative difference of losses; fails if one is not close. */
static double compare_losses(const struct model *m, uint64_t start, const double *got, const double *want, const char *plan)
{
	double worst = 0;
	for (int s = 0; s < steps(); s++) {
		double off = fabs(got[s] - want[s]) / fabs(want[s]);
		if (!(off < (m->train == trainer_fp8 ? NEAR : CLOSE)))
			fail_msg("%s, HSPMD_SEED=%llu: loss of step %d is %.17g, not %.17g\n%s", m->name, (unsigned long long)start, s,
			         got[s], want[s], plan);
		worst = fmax(worst, off);
	}
	return worst;
}

/* Trains by a plan that `make` draws for 1 to 8 devices. Returns the largest relative difference from these losses; 0: it was refused,
 * rightly, as a ratio leaves a device without a head. */
static double try_plan(const struct model *m, char *(*make)(const struct model *m, int devices), const double *want)
{
	uint64_t start = random_plan_state;
	int devices = 1 + (int)random_plan_draw(8);
	/* Half of the plans have some devices with memory of their own, so that they can offload. */
	trainer_pretend = random_plan_draw(2) ? random_plan_draw(1u << devices) : 0;
	char *plan = make(m, devices);
	double got[STEPS];
	struct hspmd_error err = { "" };
	bool refused = m->train(m->config, plan, devices, steps(), got, &err);
	if (refused && !strstr(err.text, "would hold no element") && !(mixes && strstr(err.text, "cannot be split")))
		fail_msg("%s, HSPMD_SEED=%llu: %s\n%s", m->name, (unsigned long long)start, err.text, plan);
	double worst = refused ? 0 : compare_losses(m, start, got, want, plan);
	trainer_pretend = 0;
	free(plan);
	return worst;
}

/* Whether model k is tried: make check-changed tries an eighth of them, from `first` on; HSPMD_MODEL one alone. */
static bool is_tried(size_t k, size_t first)
{
	const unsigned all = (unsigned)model_count;
	const char *only = getenv("HSPMD_MODEL");
	if (only)
		return strcmp(only, models[k].name) == 0;
	return getenv("HSPMD_SEED") || draw_count(all, all) == all || k % 8 == first;
}

static void random_plans(void **unused)
{
	(void)unused;
	const char *seed = getenv("HSPMD_SEED");
	int count = (int)draw_count(1, 200), first = seed ? 0 : (int)draw_first((unsigned)count, 200);
	for (size_t k = 0; k < model_count; k++) {
		if (!is_tried(k, 0))
			continue;
		double worst = 0;
		const double *want = one_device(k);
		for (int i = 0; i < count; i++) {
			random_plan_state = seed ? strtoull(seed, NULL, 0) : (uint64_t)(first + i) * 1000003 + k;
			worst = fmax(worst, try_plan(&models[k], draw_plan, want));
		}
		print_message("%s: %d random plans, losses differ by at most %.2g\n", models[k].name, count, worst);
	}
}

/* ---- random sets of plans, of which each step runs the one for its length */

static char *draw_set(const struct model *m, int devices)
{
	char *shorter[2], *all = NULL;
	shorter_of_set = true;
	for (int i = 0; i < 2; i++) /* some leave devices without a stage, which may hold state all the same */
		shorter[i] =
		        draw_plan_at(m, random_plan_draw(3) ? devices : 1 + (int)random_plan_draw((unsigned)devices), i ? 14 : 8, 0, NULL);
	shorter_of_set = false;
	assert_true(asprintf(&all, ",\"shorter\":[%s,%s]", shorter[0], shorter[1]) > 0);
	char *plan = draw_plan_at(m, devices, 16, 3, all);
	free(all);
	free(shorter[0]);
	free(shorter[1]);
	return plan;
}

static void random_sets(void **unused)
{
	(void)unused;
	static const struct model of_lengths[] = {
		{ "llama in several lengths", trainer_llama, 5, 2, trainer_lengths },
		{ "gpt2 in several lengths", trainer_gpt2, 5, 4, trainer_lengths },
		{ "mixtral in several lengths", trainer_mixtral, 4, 4, trainer_lengths },
		{ "llama with one kv head, in several lengths", shared_kv, 5, 4, trainer_lengths },
	};
	const char *seed = getenv("HSPMD_SEED");
	int count = (int)draw_count(2, 200), first = seed ? 0 : (int)draw_first((unsigned)count, 200);
	for (size_t k = 0; k < sizeof of_lengths / sizeof *of_lengths; k++) {
		const struct model *m = &of_lengths[k];
		double want[STEPS], worst = 0;
		train_on_one(m, want);
		for (int i = 0; i < count; i++) {
			random_plan_state = seed ? strtoull(seed, NULL, 0) : (uint64_t)(first + i) * 1000037 + k;
			worst = fmax(worst, try_plan(m, draw_set, want));
		}
		print_message("%s: %d random sets of plans, losses differ by at most %.2g\n", m->name, count, worst);
	}
}

/* ---- random plans for steps that mix lengths */

static char *draw_mixing(const struct model *m, int devices)
{
	return draw_plan_at(m, devices, 16, 1, NULL);
}

static void random_mixing(void **unused)
{
	(void)unused;
	static const struct model of_mixed[] = {
		{ "llama in mixed lengths", trainer_llama, 5, 2, trainer_mixed },
		{ "gpt2 with dropout, in mixed lengths", gpt2_dropout, 5, 4, trainer_mixed },
		{ "mixtral in mixed lengths", trainer_mixtral, 4, 4, trainer_mixed },
		{ "gemma2 in mixed lengths", gemma2, 5, 2, trainer_mixed },
	};
	const char *seed = getenv("HSPMD_SEED");
	int count = (int)draw_count(4, 200), first = seed ? 0 : (int)draw_first((unsigned)count, 200), trained = 0;
	mixes = true;
	for (size_t k = 0; k < sizeof of_mixed / sizeof *of_mixed; k++) {
		const struct model *m = &of_mixed[k];
		double want[STEPS], worst = 0;
		train_on_one(m, want);
		for (int i = 0; i < count; i++) {
			random_plan_state = seed ? strtoull(seed, NULL, 0) : (uint64_t)(first + i) * 1000039 + k;
			double off = try_plan(m, draw_mixing, want);
			worst = fmax(worst, off);
			trained += off > 0;
		}
		print_message("%s: %d random plans, losses differ by at most %.2g\n", m->name, count, worst);
	}
	mixes = false;
	print_message("%d plans trained otherwise than one device\n", trained);
	assert_true(trained > 0);
}

/* ---- random programs of one stage */

static int draw_program(struct hspmd_plan *plan, const struct hspmd_cluster *cluster, const struct hspmd_graph_source *source,
                        struct hspmd_error *err)
{
	return plan->synthesis ? random_program(plan, cluster, source, &random_plan_state, err) : 0;
}

/* Of a plan of one stage with `synthesis`, whose every operator is divided at random. */
static char *draw_stage(const struct model *m, int devices)
{
	char *plan = NULL;
	int micro_batch = 1 + (int)random_plan_draw(2) * (BATCH / 2 - 1); /* also of half the batch */
	assert_true(asprintf(&plan,
	                     "{\"format\":\"hspmd-plan-1\",\"global_batch\":%d,\"micro_batch\":%d,\"seq_len\":16,\"synthesis\":true,"
	                     "\"pipelines\":[{\"micro_batches\":%d,\"stages\":[{\"layers\":[0,%d],\"devices\":[\"n:0-%d\"]}]}]}",
	                     BATCH, micro_batch, BATCH / micro_batch, m->layers, devices - 1) > 0);
	return plan;
}

/* The search for programs takes most of the time: it is made for one in three models, others with each draw. */
static void random_programs(void **unused)
{
	(void)unused;
	const char *seed = getenv("HSPMD_SEED");
	int count = (int)draw_count(1, 50), first = seed ? 0 : (int)draw_first((unsigned)count, 50);
	trainer_complete_plan = draw_program;
	for (size_t k = 0; k < model_count; k++) {
		if (!is_tried(k, 4) || !(seed || getenv("HSPMD_MODEL") || draw_takes((unsigned)k, 3)))
			continue;
		double got[STEPS], worst = 0;
		const double *want = one_device(k);
		for (int i = 0; i < count; i++) {
			uint64_t start = random_plan_state = seed ? strtoull(seed, NULL, 0) : (uint64_t)(first + i) * 1000033 + k;
			int devices = 2 + (int)random_plan_draw(3);
			char *plan = draw_stage(&models[k], devices);
			struct hspmd_error err = { "" };
			if (models[k].train(models[k].config, plan, devices, steps(), got, &err))
				fail_msg("%s, HSPMD_SEED=%llu: %s\n%s", models[k].name, (unsigned long long)start, err.text, plan);
			worst = fmax(worst, compare_losses(&models[k], start, got, want, plan));
			free(plan);
		}
		print_message("%s: %d random programs, losses differ by at most %.2g\n", models[k].name, count, worst);
	}
	trainer_complete_plan = NULL;
}

static void the_only_model_is_known(void **unused)
{
	(void)unused;
	size_t known = 0;
	for (size_t k = 0; k < model_count; k++)
		known += is_tried(k, 0);
	if (known == 0)
		fail_msg("no model is called HSPMD_MODEL=%s", getenv("HSPMD_MODEL"));
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(the_only_model_is_known), cmocka_unit_test(random_plans),
		                            cmocka_unit_test(random_sets), cmocka_unit_test(random_mixing),
		                            cmocka_unit_test(random_programs) };
	only_chosen_tests(tests, sizeof tests / sizeof *tests);
	static struct hspmd_device_traits traits; /* in FP8 it computes with the same elements as CPUs */
	traits = pretend_traits;
	traits.bf16 = false;
	traits.fp8 = true;
	if (hspmd_device_add(&pretend_ops, &traits) < 0)
		return 1;
	return cmocka_run_group_tests(tests, list_models, NULL);
}
