/* SPDX-License-Identifier: Apache-2.0 */
#include "common/format/program_search.h"

#include <stdlib.h>

void hspmd_program_cost_clear(struct hspmd_program_cost *c)
{
	free(c->busy_s);
	free(c->parameters);
	free(c->bytes);
	*c = (struct hspmd_program_cost){ 0 };
}
