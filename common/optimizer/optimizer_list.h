/* SPDX-License-Identifier: Apache-2.0 */
/* The optimizers. The first is the default of a job. */
#ifndef HSPMD_OPTIMIZER_LIST_H
#define HSPMD_OPTIMIZER_LIST_H

#define HSPMD_OPTIMIZERS(X)                                                                                                                \
	X(ADAMW, adamw)                                                                                                                    \
	X(LION, lion)

#endif
