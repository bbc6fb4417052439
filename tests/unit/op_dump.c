/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the operators' cases and prints inputs, results and gradients as JSON, one case per line, for comparison with another
 * implementation. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>
#include <jansson.h>

#include "tests/unit/op_case.h"

static json_t *values_of(const struct op_values *v, int tensor)
{
	const struct hspmd_tensor *t = &v->g->tensors[tensor];
	json_t *shape = json_array(), *data = json_array();
	for (int d = 0; d < t->shape.rank; d++)
		json_array_append_new(shape, json_integer(t->shape.dim[d]));
	for (int64_t i = 0; i < hspmd_shape_elements(&t->shape); i++)
		json_array_append_new(data, t->dtype == HSPMD_I32 ? json_integer(((const int32_t *)v->data[tensor])[i])
		                                                  : json_real(op_value_get(v->data[tensor], t->dtype, i)));
	return json_pack("{s:o, s:o}", "shape", shape, "data", data);
}

static void dump(const struct op_case *c, enum hspmd_dtype type)
{
	struct hspmd_graph *g = op_case_graph(c, type);
	struct op_values v;
	op_values_open(&v, g, 2);
	op_values_fill(&v, 13);
	op_values_run(&v, true);
	json_t *inputs = json_object(), *grads = json_object(), *outputs = json_object();
	for (size_t t = 0; t < g->tensor_count; t++) {
		const struct hspmd_tensor *tensor = &g->tensors[t];
		if (tensor->producer < 0 && tensor->role != HSPMD_TENSOR_PARAMETER_GRADIENT)
			json_object_set_new(inputs, tensor->name, values_of(&v, (int)t));
		else if (tensor->role == HSPMD_TENSOR_ACTIVATION || tensor->role == HSPMD_TENSOR_LOSS)
			json_object_set_new(outputs, tensor->name, values_of(&v, (int)t));
		if (tensor->role == HSPMD_TENSOR_PARAMETER)
			json_object_set_new(grads, tensor->name, values_of(&v, tensor->grad));
	}
	json_t *line = json_pack("{s:s, s:s, s:o, s:o, s:o}", "case", c->name, "type", hspmd_dtype_names[type], "inputs", inputs, "outputs",
	                         outputs, "grads", grads);
	json_dumpf(line, stdout, JSON_COMPACT);
	putchar('\n');
	json_decref(line);
	op_values_close(&v);
	hspmd_graph_destroy(g);
}

static void test_dump(void **state)
{
	(void)state;
	for (size_t i = 0; i < op_case_count(); i++) {
		dump(op_case_at(i), HSPMD_F32);
		dump(op_case_at(i), HSPMD_F64);
	}
}

/* A cmocka group only so that the cases' own checks can fail; its report goes to standard error. */
int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_dump) };
	return cmocka_run_group_tests(tests, NULL, NULL);
}
