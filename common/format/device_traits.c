/* SPDX-License-Identifier: Apache-2.0 */
#include "common/format/device_traits.h"

#include <stddef.h>
#include <string.h>

#define NAME(kind, name, ...) #name,
const char *hspmd_device_kind_names[HSPMD_DEVICE_KINDS_MAX + 1] = { HSPMD_DEVICE_KINDS(NAME) NULL };

#define TRAITS(kind, name_, ...) { .name = #name_, __VA_ARGS__ },
static const struct hspmd_device_traits listed[] = { HSPMD_DEVICE_KINDS(TRAITS) };
static const struct hspmd_device_traits *added[HSPMD_DEVICE_KINDS_MAX];

const struct hspmd_device_traits *hspmd_device_traits(enum hspmd_device_kind kind)
{
	return kind < HSPMD_DEVICE_KIND_COUNT ? &listed[kind] : added[kind];
}

int hspmd_device_kind_of(enum hspmd_device_origin origin)
{
	for (int kind = 0; origin && hspmd_device_kind_names[kind]; kind++)
		if (hspmd_device_traits((enum hspmd_device_kind)kind)->origin == origin)
			return kind;
	return -1;
}

const char *hspmd_device_name_of_cores(void)
{
	int kind = hspmd_device_kind_of(HSPMD_ORIGIN_CORES);
	return kind < 0 ? "" : hspmd_device_kind_names[kind];
}

int hspmd_device_kind_named(const char *name)
{
	for (int kind = 0; hspmd_device_kind_names[kind]; kind++)
		if (!strcmp(hspmd_device_kind_names[kind], name))
			return kind;
	return -1;
}

bool hspmd_device_kind_computes(enum hspmd_device_kind kind, enum hspmd_precision precision)
{
	const struct hspmd_device_traits *t = hspmd_device_traits(kind);
	return precision == HSPMD_PRECISION_FP32 || (precision == HSPMD_PRECISION_BF16 && t->bf16) ||
	       (precision == HSPMD_PRECISION_TF32 && t->tf32) || (precision == HSPMD_PRECISION_FP8 && t->fp8);
}

int hspmd_device_kind_add(const struct hspmd_device_traits *traits)
{
	int kind = HSPMD_DEVICE_KIND_COUNT;
	while (kind < HSPMD_DEVICE_KINDS_MAX && added[kind])
		kind++;
	if (kind == HSPMD_DEVICE_KINDS_MAX)
		return -1;
	added[kind] = traits;
	hspmd_device_kind_names[kind] = traits->name;
	return kind;
}
