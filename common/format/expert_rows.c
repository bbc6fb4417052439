/* SPDX-License-Identifier: Apache-2.0 */
#include "common/format/expert_rows.h"

double hspmd_expert_row_share(int64_t experts, int64_t count, int per_token)
{
	double none = 1; /* that all choices are among the other experts */
	for (int64_t k = 0; k < per_token; k++)
		none *= count - experts > k ? (double)(count - experts - k) / (double)(count - k) : 0;
	return 1 - none;
}
