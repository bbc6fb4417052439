/* SPDX-License-Identifier: Apache-2.0 */
/* When a layer's weights are read and their gradients computed, read off a pass of a program that keeps them all the time. Fractions are of
 * whole weights, so that they are the same in every layout. */
#include <math.h>
#include <stdlib.h>

#include "common/alloc.h"
#include "runtime/facts/facts_internal.h"

/* Moments that differ by less of the weights are one: layouts read biases in different places. */
#define NEGLIGIBLE 0.01

/* The tensor that a slot holds all of this device's part of, all the time; -1: it is no such slot. */
static int kept_tensor(const struct hspmd_program *p, int slot, enum hspmd_tensor_role role)
{
	if (slot < 0 || p->slots[slot].memory != HSPMD_ARENA_FIXED)
		return -1;
	int tensor = p->slot_types[p->slots[slot].slot_type].tensor;
	return tensor >= 0 && p->graph->tensors[tensor].role == role ? tensor : -1;
}

/* Mark the weights that the layer's forward operators read. Returns their number of elements. */
static double find_weights(const struct hspmd_graph *g, int layer, bool *of_layer)
{
	double elements = 0;
	for (size_t i = 0; i < g->op_count; i++)
		for (int k = 0; !g->ops[i].backward && g->ops[i].layer == layer && k < g->ops[i].input_count; k++) {
			int t = g->ops[i].in[k];
			if (t < 0 || g->tensors[t].role != HSPMD_TENSOR_PARAMETER || of_layer[t])
				continue;
			of_layer[t] = true;
			elements += (double)hspmd_shape_elements(&g->tensors[t].shape);
		}
	return elements;
}

/* Make one moment of the i-th and the next. */
static void join(struct hspmd_probe_moments *m, int i)
{
	m->unread[i] = fmax(m->unread[i], m->unread[i + 1]);
	m->summed[i] = fmax(m->summed[i], m->summed[i + 1]);
	m->bytes[i] = fmax(m->bytes[i], m->bytes[i + 1]);
	m->count--;
	for (int k = i + 1; k < m->count; k++) {
		m->unread[k] = m->unread[k + 1];
		m->summed[k] = m->summed[k + 1];
		m->bytes[k] = m->bytes[k + 1];
	}
}

/* Add the next moment. If there are too many, the two that differ least become one. */
static void add(struct hspmd_probe_moments *m, double unread, double summed, double bytes)
{
	int least = 0;
	double difference = INFINITY;
	m->unread[m->count] = unread;
	m->summed[m->count] = summed;
	m->bytes[m->count++] = bytes;
	for (int i = 0; i + 1 < m->count; i++) {
		double d = m->unread[i] - m->unread[i + 1] + m->summed[i + 1] - m->summed[i];
		if (d < difference) {
			difference = d;
			least = i;
		}
	}
	if (difference < NEGLIGIBLE || m->count > HSPMD_WEIGHT_MOMENTS)
		join(m, least);
}

int hspmd_probe_moments(const struct hspmd_program *p, int layer, size_t from, size_t end, const double *bytes,
                        struct hspmd_probe_moments *out)
{
	const struct hspmd_graph *g = p->graph;
	bool *of_layer = hspmd_calloc(g->tensor_count + 1, sizeof *of_layer), *there = hspmd_calloc(g->tensor_count + 1, sizeof *there);
	size_t *last = hspmd_calloc(g->tensor_count + 1, sizeof *last);
	double all = 0, unread = 0, summed = 0;
	*out = (struct hspmd_probe_moments){ 0 };
	if (of_layer && there && last)
		all = find_weights(g, layer, of_layer);
	for (size_t i = from; all > 0 && i < end; i++)
		for (int k = 0; p->instructions[i].layer == layer && k < p->instructions[i].input_count; k++) {
			int t = kept_tensor(p, p->instructions[i].in[k], HSPMD_TENSOR_PARAMETER);
			if (t < 0 || !of_layer[t])
				continue;
			unread += last[t] ? 0 : (double)hspmd_shape_elements(&g->tensors[t].shape);
			last[t] = i + 1;
		}
	for (size_t i = from; all > 0 && i < end; i++) {
		const struct hspmd_instruction *in = &p->instructions[i];
		double read = 0;
		if (in->layer != layer || in->micro_batch < 0)
			continue;
		for (int k = 0; k < in->output_count; k++) {
			int t = kept_tensor(p, in->out[k], HSPMD_TENSOR_PARAMETER_GRADIENT);
			if (t < 0 || there[t])
				continue;
			there[t] = true;
			summed += (double)hspmd_shape_elements(&g->tensors[t].shape);
		}
		add(out, unread / all, summed / all, bytes[i]);
		for (int k = 0; k < in->input_count; k++) {
			int t = kept_tensor(p, in->in[k], HSPMD_TENSOR_PARAMETER);
			if (t < 0 || last[t] != i + 1)
				continue;
			last[t] = 0;
			read += (double)hspmd_shape_elements(&g->tensors[t].shape);
		}
		unread -= read;
	}
	int status = of_layer && there && last ? 0 : -1;
	free(of_layer);
	free(there);
	free(last);
	return status;
}
