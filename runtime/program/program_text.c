/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "runtime/op/op.h"
#include "runtime/program/program.h"

struct printer {
	FILE *f;
	const struct hspmd_program *p;
	const struct hspmd_cluster *c;
};

static void print_slot(const struct printer *pr, int slot)
{
	if (slot < 0) {
		fputs(" -", pr->f);
		return;
	}
	const struct hspmd_slot *s = &pr->p->slots[slot];
	const struct hspmd_slot_type *slot_type = &pr->p->slot_types[s->slot_type];
	char box[160], *lies = slot_type->annotation ? hspmd_annotation_text(slot_type->annotation) : NULL;
	fprintf(pr->f, " %s%s", pr->p->graph->tensors[slot_type->tensor].name, hspmd_box_text(&slot_type->box, box, sizeof box));
	if (slot_type->row_stride)
		fprintf(pr->f, "/%" PRId64, slot_type->row_stride);
	fprintf(pr->f, "%s@%c%zu", lies ? lies : "", "afhs"[s->memory], s -> offset);
	free(lies);
}

/* The devices that this device exchanges messages with in a step. */
static void print_peers(const struct printer *pr, const struct hspmd_comm_step *step)
{
	char name[64];
	const char *separator = " with ";
	for (int m = 0; m < step->member_count; m++) {
		if (step->members[m] == pr->p->device)
			continue;
		fprintf(pr->f, "%s%s", separator, hspmd_cluster_device_address(pr->c, step->members[m], name, sizeof name));
		separator = ",";
	}
}

static void print_instruction(const struct printer *pr, size_t i)
{
	const struct hspmd_instruction *in = &pr->p->instructions[i];
	const char *const kinds[] = { "read", NULL, NULL, "norm", hspmd_optimizer_names[pr->p->optimizer], "copy", "await copy" };
	const char *name = in->kind == HSPMD_INSTRUCTION_RUN    ? hspmd_opcode_names[in->opcode]
	                   : in->kind == HSPMD_INSTRUCTION_COMM ? hspmd_comm_kind_names[in->transfer->steps[in->step].kind]
	                                                        : kinds[in->kind];
	fprintf(pr->f, "%5zu ", i);
	if (in->micro_batch >= 0)
		fprintf(pr->f, "%c%-4d", in->backward ? 'B' : 'F', in->micro_batch);
	else
		fputs("step ", pr->f);
	fprintf(pr->f, " L%-3d %-16s", in->layer, name);
	for (int k = 0; k < in->input_count; k++)
		print_slot(pr, in->in[k]);
	fputs(" ->", pr->f);
	for (int k = 0; k < in->output_count; k++) {
		print_slot(pr, in->out[k]);
		if (in->accumulate >> k & 1)
			fputs("+=", pr->f);
	}
	if (in->kind == HSPMD_INSTRUCTION_COMM)
		print_peers(pr, &in->transfer->steps[in->step]);
	if (in->joined)
		fprintf(pr->f, ", in one message with the next %d", in->joined);
	if (in->beside)
		fputs(", beside what follows until the next that is not", pr->f);
	if (in->overlaps)
		fputs(", beside what follows", pr->f);
	if (in->ahead && !in->joins)
		fputs(", ahead, beside the layer before", pr->f);
	fputc('\n', pr->f);
}

static void print_state(const struct printer *pr)
{
	for (int i = 0; i < pr->p->state_count; i++) {
		const struct hspmd_program_state *s = &pr->p->states[i];
		char box[160];
		if (s->param >= 0)
			fprintf(pr->f, "state %s%s copy %d\n", s->name, hspmd_box_text(&s->shard.box, box, sizeof box), s->shard.replica);
	}
}

char *hspmd_program_text(const struct hspmd_program *p, const struct hspmd_cluster *cluster)
{
	char *text = NULL, name[64];
	size_t size;
	struct printer pr = { open_memstream(&text, &size), p, cluster };
	if (!pr.f)
		return NULL;
	hspmd_cluster_device_address(cluster, p->device, name, sizeof name);
	if (p->stage >= 0)
		fprintf(pr.f, "device %s: pipeline %d, stage %d, %d micro-batches of %d\n", name, p->pipeline, p->stage, p->micro_batches,
		        p->micro_batch);
	else
		fprintf(pr.f, "device %s: spare, no stage of the plan names it\n", name);
	for (size_t i = 0; i < p->instruction_count; i++) {
		if (i == p->vote)
			fputs("      vote\n", pr.f);
		print_instruction(&pr, i);
	}
	print_state(&pr);
	fprintf(pr.f,
	        "memory: %zu bytes fixed (parameters, gradients, optimizer), %zu bytes arena, %zu bytes workspace, %zu bytes messages\n",
	        p->fixed_bytes, p->arena_bytes, hspmd_program_workspace(p), p->message_bytes);
	if (p->host_bytes)
		fprintf(pr.f, "host memory: %zu bytes (optimizer)\n", p->host_bytes);
	if (p->saved_bytes)
		fprintf(pr.f, "host memory: %zu bytes (activations)\n", p->saved_bytes);
	if (fclose(pr.f)) {
		free(text);
		return NULL;
	}
	return text;
}

/* ---- explanation */

static bool takes_part(const struct hspmd_transfer *t, int device)
{
	return hspmd_layout_find(&t->layout[0], device) >= 0 || hspmd_layout_find(&t->layout[t->value_count - 1], device) >= 0;
}

static void explain_transfer(FILE *f, const char *tensor, const char *from, const char *to, const struct hspmd_transfer *t, int together)
{
	fprintf(f, "%s", tensor);
	if (from)
		fprintf(f, " %s -> %s", from, to ? to : "?");
	fprintf(f, ": %s", t->why ? t->why : "a sum of several tensors at once");
	if (together)
		fprintf(f, ", of %d tensors whose messages are joined", together + 1);
	fputc('\n', f);
}

static void explain_nodes(FILE *f, const struct hspmd_program *p)
{
	for (size_t i = 0; i < p->spmd->node_count; i++) {
		const struct hspmd_spmd_node *n = &p->spmd->nodes[i];
		if (n->op >= 0 || !takes_part(n->transfer, p->device))
			continue;
		const struct hspmd_value *from = &p->spmd->values[n->in[0]], *to = &p->spmd->values[n->out[0]];
		char *lies = hspmd_annotation_text(from->annotation), *must = hspmd_annotation_text(to->annotation);
		fprintf(f, "%c L%-3d ", n->backward ? 'B' : 'F', n->layer);
		explain_transfer(f, p->graph->tensors[from->tensor].name, lies, must, n->transfer, 0);
		free(lies);
		free(must);
	}
}

/* The transfers once per step: gradients to the optimizer state, and parameters back. */
static void explain_step(FILE *f, const struct hspmd_program *p)
{
	int together = 0;
	for (size_t i = 0; i < p->instruction_count; i++) {
		const struct hspmd_instruction *in = &p->instructions[i];
		if (in->kind != HSPMD_INSTRUCTION_COMM || in->micro_batch >= 0 || in->step > 0)
			continue;
		together = in->joins ? together : in->joined;
		fprintf(f, "step L%-3d ", in->layer);
		explain_transfer(f,
		                 p->graph->tensors[p->slot_types[p->slots[in->in[0] >= 0 ? in->in[0] : in->out[0]].slot_type].tensor].name,
		                 NULL, NULL, in->transfer, together);
	}
}

char *hspmd_program_explain(const struct hspmd_program *p)
{
	char *text = NULL;
	size_t size;
	FILE *f = open_memstream(&text, &size);
	if (!f)
		return NULL;
	explain_nodes(f, p);
	explain_step(f, p);
	if (fclose(f)) {
		free(text);
		return NULL;
	}
	return text;
}
