/* SPDX-License-Identifier: Apache-2.0 */
/* Plans whose devices divide experts and send only rows of experts to one another. */
#ifndef TESTS_EXPERT_PLANS_H
#define TESTS_EXPERT_PLANS_H

#define EXPERT_PLANS 6 /* number 0: one device */
#define EXPERT_STEPS 5
#define EXPERT_DEVICES 4

/* Trains Mixtral under plan `number` on CPUs, but on CUDA devices where bit d of `gpus` is set. losses[EXPERT_STEPS]. Fails the test if
 * that fails, or unless as many devices as should dispatch and combine in both passes. */
void expert_plan_train(int number, unsigned gpus, double *losses);

#endif
