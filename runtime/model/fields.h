/* SPDX-License-Identifier: Apache-2.0 */
/* Fields of a config.json. A config has many keys that do not concern training here; they are passed over, except those that change the
 * arithmetic into something we do not do. Failures are kept in the document. */
#ifndef HSPMD_MODEL_FIELDS_H
#define HSPMD_MODEL_FIELDS_H

#include "common/json.h"

#define HSPMD_HIDDEN_MAX (1 << 20)
#define HSPMD_BLOCKS_MAX 16384
#define HSPMD_HEADS_MAX 65536
#define HSPMD_FFN_MAX (1 << 24)
#define HSPMD_VOCAB_MAX (1 << 28)
#define HSPMD_POSITIONS_MAX (1 << 30)
#define HSPMD_EXPERTS_MAX 4096

/* What hspmd does not do: the key may be absent, or null (refuse_set), or have the only value that is done. */
void hspmd_refuse_set(struct hspmd_json *root, const char *key);
void hspmd_refuse_unless(struct hspmd_json *root, const char *key, bool wanted);
void hspmd_refuse_number_unless(struct hspmd_json *root, const char *key, double wanted);

/* "key: 5 does not divide the hidden size, 768" unless it does. */
void hspmd_check_divides(struct hspmd_json *root, const char *key, int64_t by, const char *what, int64_t whole);
/* An integer under the model type's own key, or under the key that most model types share. */
int64_t hspmd_size_of(struct hspmd_json *root, const char *key, const char *shared, int64_t max);
/* The window of attention. Key absent: the default; null: none, which is 0. */
int64_t hspmd_window_of(struct hspmd_json *root, int64_t absent);
/* A rate of dropout: 0 .. 0.999. */
double hspmd_rate_of(struct hspmd_json *root, const char *key, double absent);

#endif
