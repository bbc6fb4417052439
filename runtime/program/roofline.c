/* SPDX-License-Identifier: Apache-2.0 */
/* The least time of every instruction of a program on its device (Williams et al., "Roofline", CACM 2009): that of its operations at the
 * device's rate, or that of its bytes at the rate of the device's memory, whichever is longer. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/format/device_speed.h"
#include "runtime/op/op.h"
#include "runtime/program/program.h"

#define ALIGNMENT 16 /* bytes: rows of a product's matrices should begin on multiples of it (pad_rows.c) */

struct work {
	double flops, bytes, seconds;
	int count;
};

static void shape_of(const struct hspmd_program *p, int slot, struct hspmd_shape *shape, enum hspmd_dtype *dtype)
{
	shape->rank = -1;
	if (slot < 0)
		return;
	const struct hspmd_slot_type *t = &p->slot_types[p->slots[slot].slot_type];
	shape->rank = t->box.rank;
	for (int d = 0; d < t->box.rank; d++)
		shape->dim[d] = t->box.hi[d] - t->box.lo[d];
	*dtype = t->dtype;
}

/* Floating-point operations. Of a pair those of the first operator, if it has products: compared with them the second has none. *fp8: its
 * operands are FP8 numbers, of shapes that units for FP8 multiply. */
static double flops_of(const struct hspmd_program *p, const struct hspmd_instruction *in, bool *fp8)
{
	const struct hspmd_op_type *type = hspmd_op_types[in->opcode];
	int inputs = in->input_count;
	if (type->pair.is_pair) {
		type = hspmd_op_types[type->pair.first];
		inputs = type->max_inputs < inputs ? type->max_inputs : inputs;
	}
	struct hspmd_op_view v = { .attr = in->attr, .input_count = inputs, .output_count = in->output_count };
	double flops = 0, ignored = 0;
	for (int k = 0; k < inputs; k++)
		shape_of(p, in->in[k], &v.in[k], &v.in_dtype[k]);
	for (int k = 0; k < in->output_count; k++)
		shape_of(p, in->out[k], &v.out[k], &v.out_dtype[k]);
	if (type->cost)
		type->cost(&v, &flops, &ignored);
	*fp8 = type->fp8 && (!type->fp8_fits || type->fp8_fits(&v));
	return flops;
}

/* Returns true if the FP8 numbers of the first operand are there already. Gradients of one layer need theirs in different orders. */
static bool finds_first(const struct hspmd_program *p, const struct hspmd_instruction *in)
{
	return hspmd_program_repeats_first(p, in) && in->opcode == in[-1].opcode;
}

/* Bytes that the instruction reads and writes, each operand once, but not the one whose FP8 numbers are there already. What is added to is
 * read, too, and an optimizer reads the parameter and its moments, all in F32; it only writes the copy in BF16. *offloaded: of these, those
 * of the host's memory, in each direction. */
static double bytes_of(const struct hspmd_program *p, const struct hspmd_instruction *in, double *offloaded)
{
	double bytes = 0;
	*offloaded = 0;
	for (int k = finds_first(p, in); k < in->input_count; k++)
		bytes += in->in[k] >= 0 ? (double)p->slot_types[p->slots[in->in[k]].slot_type].bytes : 0;
	for (int k = 0; k < in->output_count; k++) {
		const struct hspmd_slot_type *t = in->out[k] >= 0 ? &p->slot_types[p->slots[in->out[k]].slot_type] : NULL;
		bool read = in->kind == HSPMD_INSTRUCTION_UPDATE ? t && t->dtype == HSPMD_F32 : in->accumulate >> k & 1;
		bytes += t ? (double)t->bytes * (1 + read) : 0;
		*offloaded += t && p->slots[in->out[k]].memory == HSPMD_ARENA_HOST ? (double)t->bytes : 0;
	}
	return bytes;
}

double hspmd_instruction_flops(const struct hspmd_program *p, const struct hspmd_instruction *in)
{
	bool ignored;
	return flops_of(p, in, &ignored);
}

double hspmd_instruction_bytes(const struct hspmd_program *p, const struct hspmd_instruction *in)
{
	double offloaded;
	return bytes_of(p, in, &offloaded);
}

/* Returns true if the instruction is a product, and rows of a matrix of it begin where the widest accesses are not possible. */
static bool is_unaligned(const struct hspmd_program *p, const struct hspmd_instruction *in)
{
	bool unaligned = false;
	const struct hspmd_op_type *type = in->kind == HSPMD_INSTRUCTION_RUN ? hspmd_op_types[in->opcode] : NULL;
	if (type && type->pair.is_pair)
		type = hspmd_op_types[type->pair.first];
	if (!type || !type->product)
		return false;
	for (int k = 0; k < in->input_count + in->output_count; k++) {
		int slot = k < in->input_count ? in->in[k] : in->out[k - in->input_count];
		const struct hspmd_slot_type *t = slot < 0 ? NULL : &p->slot_types[p->slots[slot].slot_type];
		int last = t ? t->box.rank - 1 : 0;
		if (last < 1)
			continue;
		int64_t stride = t->row_stride ? t->row_stride : t->box.hi[last] - t->box.lo[last];
		unaligned |= stride * (int64_t)hspmd_dtype_bytes(t->dtype) % ALIGNMENT != 0;
	}
	return unaligned;
}

static bool computes_in_bf16(const struct hspmd_program *p, const struct hspmd_instruction *in)
{
	for (int k = 0; k < in->input_count; k++)
		if (in->in[k] >= 0 && p->slot_types[p->slots[in->in[k]].slot_type].dtype == HSPMD_BF16)
			return true;
	return false;
}

/* Operations per second. */
static double rate_of(const struct hspmd_device_type *type, enum hspmd_precision precision)
{
	double rate = (type->tflops[precision] > 0 ? type->tflops[precision] : type->peak_tflops[precision]) * 1e12;
	return rate > 0 ? rate : hspmd_device_flops(type, precision); /* this precision is computed by units for another */
}

static struct work work_of(const struct hspmd_program *p, const struct hspmd_device_type *type, const struct hspmd_instruction *in)
{
	enum hspmd_precision elements = computes_in_bf16(p, in) ? HSPMD_PRECISION_BF16
	                                : p->tf32               ? HSPMD_PRECISION_TF32
	                                                        : HSPMD_PRECISION_FP32;
	bool fp8 = false;
	/* The norm and the optimizer are bound by their bytes. */
	double offloaded;
	struct work w = { .flops = in->kind == HSPMD_INSTRUCTION_RUN ? flops_of(p, in, &fp8) : 0,
		          .bytes = bytes_of(p, in, &offloaded),
		          .count = 1 };
	bool codes = fp8 && hspmd_device_multiplies_fp8(type, elements, hspmd_op_types[in->opcode]->rows.choice);
	double rate = codes ? fmax(rate_of(type, HSPMD_PRECISION_FP8), rate_of(type, elements)) : rate_of(type, elements);
	w.seconds = fmax(rate > 0 ? w.flops / rate : 0, type->gbytes_per_s > 0 ? w.bytes / (type->gbytes_per_s * 1e9) : 0);
	if (offloaded > 0)
		w.seconds = fmax(w.seconds, offloaded / (type->host.gbytes_per_s * 1e9));
	return w;
}

static void print_work(FILE *f, const struct work *w, double total)
{
	fprintf(f, "%12.4g MFLOP %12.4g MB %12.4g us", w->flops * 1e-6, w->bytes * 1e-6, w->seconds * 1e6);
	if (total > 0)
		fprintf(f, " %5.1f %%", 100 * w->seconds / total);
}

static const char *name_of(const struct hspmd_program *p, const struct hspmd_instruction *in)
{
	return in->kind == HSPMD_INSTRUCTION_RUN    ? hspmd_opcode_names[in->opcode]
	       : in->kind == HSPMD_INSTRUCTION_NORM ? "norm"
	                                            : hspmd_optimizer_names[p->optimizer];
}

static void add(struct work *sum, const struct work *w)
{
	sum->flops += w->flops;
	sum->bytes += w->bytes;
	sum->seconds += w->seconds;
	sum->count += w->count;
}

static void print_total(FILE *f, const char *name, const struct work *w, double total)
{
	if (!w->count)
		return;
	fprintf(f, "%5d x %-22s", w->count, name);
	print_work(f, w, total);
	fputc('\n', f);
}

char *hspmd_program_roofline(const struct hspmd_program *p, const struct hspmd_cluster *cluster)
{
	const struct hspmd_device_type *type = &cluster->types[cluster->devices[p->device].type];
	struct work by_opcode[HSPMD_OP_COUNT] = { { 0 } }, unaligned[HSPMD_OP_COUNT] = { { 0 } }, norm = { 0 }, optimizer = { 0 },
	            all = { 0 };
	char *text = NULL;
	size_t size;
	FILE *f = open_memstream(&text, &size);
	if (!f)
		return NULL;
	fputs("least time of each instruction by its operations and the device's rate, or by its bytes and the rate of the device's "
	      "memory:\n",
	      f);
	for (size_t i = 0; i < p->instruction_count; i++) {
		const struct hspmd_instruction *in = &p->instructions[i];
		if (!hspmd_instruction_computes(in))
			continue;
		struct work w = work_of(p, type, in);
		fprintf(f, "%5zu L%-3d %-22s", i, in->layer, name_of(p, in));
		print_work(f, &w, 0);
		fputs(in->beside ? " beside\n" : "\n", f);
		add(is_unaligned(p, in)                  ? &unaligned[in->opcode]
		    : in->kind == HSPMD_INSTRUCTION_RUN  ? &by_opcode[in->opcode]
		    : in->kind == HSPMD_INSTRUCTION_NORM ? &norm
		                                         : &optimizer,
		    &w);
		add(&all, &w);
	}
	fputs("sums:\n", f);
	for (int o = 0; o < HSPMD_OP_COUNT; o++) {
		char name[64];
		snprintf(name, sizeof name, "%s/unaligned", hspmd_opcode_names[o]);
		print_total(f, hspmd_opcode_names[o], &by_opcode[o], all.seconds);
		print_total(f, name, &unaligned[o], all.seconds);
	}
	print_total(f, "norm", &norm, all.seconds);
	print_total(f, hspmd_optimizer_names[p->optimizer], &optimizer, all.seconds);
	print_total(f, "all", &all, all.seconds);
	if (fclose(f)) {
		free(text);
		return NULL;
	}
	return text;
}
