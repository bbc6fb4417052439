/* SPDX-License-Identifier: Apache-2.0 */
/* Plans whose devices divide experts and send only rows of experts to one another. */
#ifndef TESTS_EXPERT_PLANS_H
#define TESTS_EXPERT_PLANS_H

#define EXPERT_PLANS 6 /* of Mixtral; number 0: one device */
#define SHARED_PLANS 2 /* the plans behind these: of DeepSeek-V2, one device first */
#define EXPERT_STEPS 5
#define EXPERT_DEVICES 4

/* Trains under plan `number` on CPUs, but on CUDA devices where bit d of `gpus` is set. losses[EXPERT_STEPS]. Fails the test if
 * that fails, or unless as many devices as should send rows of experts in both passes. Where experts are shared, only results come as rows:
 * a shared expert's weights are divided too, so that it reads all rows, and adds to the gradient of all. */
void expert_plan_train(int number, unsigned gpus, double *losses);

#endif
