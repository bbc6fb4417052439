/* SPDX-License-Identifier: Apache-2.0 */
/* More operators' cases (tests/unit/op_case.h): sizes for which a GPU's kernels take other paths than for small odd ones. */
#ifndef TESTS_WIDE_CASE_H
#define TESTS_WIDE_CASE_H

#include "tests/unit/op_case.h"

extern const struct op_case wide_cases[];
extern const size_t wide_case_count;
/* Attention whose lengths and heads cuDNN is trusted with (runtime/device/cuda/dnn_support.h). */
extern const struct op_case tiled_cases[];
extern const size_t tiled_case_count;
/* Attention within many documents (op_case_documents); in the first two these are the same, but their numbers ascend and descend. */
extern const struct op_case document_cases[];
extern const size_t document_case_count;
/* Cases with many positions, too slow for an emulated device. */
extern const struct op_case long_cases[];
extern const size_t long_case_count;

#endif
