/* SPDX-License-Identifier: Apache-2.0 */
#include "common/optimizer/optimizer.h"

#include "common/json.h"

#define HSPMD_UPDATE_TYPES
#include "common/optimizer/rules.h"

#define CHECK(NAME, name)                                                                                                                  \
	_Static_assert(name##_MOMENTS >= 1 && name##_MOMENTS <= HSPMD_OPTIMIZER_MOMENTS, #name ".h: too few or too many moments");
HSPMD_OPTIMIZERS(CHECK)

#define TYPE(NAME, name) [HSPMD_OPTIMIZER_##NAME] = &name##_type,
const struct hspmd_optimizer_type *const hspmd_optimizer_types[HSPMD_OPTIMIZER_COUNT] = { HSPMD_OPTIMIZERS(TYPE) };

#define NAME_OF(NAME, name) [HSPMD_OPTIMIZER_##NAME] = #name,
const char *const hspmd_optimizer_names[HSPMD_OPTIMIZER_COUNT + 1] = { HSPMD_OPTIMIZERS(NAME_OF) };

struct hspmd_optimizer_update hspmd_optimizer_update(enum hspmd_optimizer optimizer, const double *values, double lr, double weight_decay,
                                                     int64_t update)
{
	struct hspmd_optimizer_update u = {
		.optimizer = optimizer,
		.number = update,
		.decays = weight_decay != 0,
		.keep = 1 - lr * weight_decay,
	};
	hspmd_optimizer_types[optimizer]->rates(values, lr, update, u.rates);
	return u;
}
