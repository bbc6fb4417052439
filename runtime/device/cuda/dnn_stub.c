/* SPDX-License-Identifier: Apache-2.0 */
/* Stands in for dnn.c in a build without cuDNN: reports that there is none. */
#include "runtime/device/cuda/dnn.h"

int hspmd_dnn_open(struct hspmd_dnn **dnn, cudaStream_t stream, struct hspmd_error *err)
{
	(void)dnn, (void)stream;
	return hspmd_fail(err, "built without cuDNN");
}

void hspmd_dnn_close(struct hspmd_dnn *dnn)
{
	(void)dnn;
}

size_t hspmd_dnn_version(const struct hspmd_dnn *dnn)
{
	(void)dnn;
	return 0;
}

int hspmd_dnn_find_plans(struct hspmd_dnn *dnn, const struct hspmd_dnn_attention *a, size_t workspace_most, struct hspmd_dnn_plan **plans,
                         int most, struct hspmd_error *err)
{
	(void)dnn, (void)a, (void)workspace_most, (void)plans, (void)most, (void)err;
	return 0;
}

void hspmd_dnn_plan_destroy(struct hspmd_dnn_plan *plan)
{
	(void)plan;
}

size_t hspmd_dnn_plan_workspace(const struct hspmd_dnn_plan *plan)
{
	(void)plan;
	return 0;
}

int hspmd_dnn_run(struct hspmd_dnn *dnn, const struct hspmd_dnn_plan *plan, const struct hspmd_dnn_buffers *buffers,
                  struct hspmd_error *err)
{
	(void)dnn, (void)plan, (void)buffers;
	return hspmd_fail(err, "built without cuDNN");
}
