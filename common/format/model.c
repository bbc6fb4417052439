/* SPDX-License-Identifier: Apache-2.0 */
#include "common/format/model.h"

#include <stdlib.h>

void hspmd_model_destroy(struct hspmd_model *m)
{
	if (!m)
		return;
	json_decref(m->config);
	if (m->release)
		m->release(m->own);
	else
		free(m->own);
	free(m->name);
	free(m);
}

int hspmd_model_layers(const struct hspmd_model *m)
{
	return m->block_count + 2;
}
