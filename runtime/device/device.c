/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/device/device.h"

#include <stdio.h>
#include <string.h>

#include "common/format/cluster.h"

#define MANY (1 << 20) /* rows or columns: more than a block has */

static const bool sums[HSPMD_OP_COUNT] = {
#define OP_FUSED_SUM(opcode, name) [HSPMD_OP_##opcode] = true,
#include "runtime/tensor/opcode_list.h"
};

static const bool extra[HSPMD_OP_COUNT] = {
#define OP_FUSED(opcode, name) [HSPMD_OP_##opcode] = true,
#define OP_TABLE(opcode, name) [HSPMD_OP_##opcode] = true,
#include "runtime/tensor/opcode_list.h"
};

bool hspmd_device_has_kernel(enum hspmd_device_kind kind, enum hspmd_opcode opcode)
{
	const struct hspmd_device_traits *can = hspmd_device_traits(kind);
	return (extra[opcode] && can->fused) || (sums[opcode] && can->fused_sums);
}

int hspmd_device_read_batch(struct hspmd_device *dev, void *host, const void *const *src, int count, size_t bytes, struct hspmd_error *err)
{
	if (dev->ops->to_host_batch)
		return dev->ops->to_host_batch(dev, host, src, count, bytes, err);
	int status = 0;
	for (int i = 0; !status && i < count; i++)
		status = dev->ops->to_host(dev, (char *)host + (size_t)i * bytes, src[i], bytes, err);
	return status;
}

/* Elements of the workspace of a product with `columns` columns, each a sum of `depth` terms. */
static int64_t packed_elements(struct hspmd_device *dev, int64_t columns, int64_t depth)
{
	static const struct hspmd_op_attr attr;
	struct hspmd_kernel_args args = { .attr = &attr, .input_count = 2, .output_count = 1 };
	args.in[0] = (struct hspmd_view){ .dtype = HSPMD_F32, .rank = 2, .shape = { 1, depth }, .full = { 1, depth } };
	args.in[1] = (struct hspmd_view){ .dtype = HSPMD_F32, .rank = 2, .shape = { columns, depth }, .full = { columns, depth } };
	args.out[0] = (struct hspmd_view){ .dtype = HSPMD_F32, .rank = 2, .shape = { 1, columns }, .full = { 1, columns } };
	return (int64_t)(dev->ops->workspace(dev, HSPMD_OP_LINEAR, &args) / sizeof(float));
}

/* A block of one column still has the rows of the other factor's block. */
void hspmd_device_product_blocks(struct hspmd_device *dev, struct hspmd_product_blocks *out)
{
	*out = (struct hspmd_product_blocks){ 0 };
	if (!dev->ops->host_memory)
		return;
	int64_t rows = packed_elements(dev, 1, 1), both = packed_elements(dev, MANY, 1), all = packed_elements(dev, MANY, MANY);
	if (rows > 0 && both > rows)
		*out = (struct hspmd_product_blocks){ .depth = all / both, .columns = both - rows, .rows = rows };
}

#define OPEN(kind, name, ...) hspmd_device_##name,
static const struct hspmd_device_ops *(*const listed[])(struct hspmd_error *err) = { HSPMD_DEVICE_KINDS(OPEN) };
static const struct hspmd_device_ops *added[HSPMD_DEVICE_KINDS_MAX];

int hspmd_device_add(const struct hspmd_device_ops *ops, const struct hspmd_device_traits *traits)
{
	bool agree = ops->host_memory == traits->host_memory && !strcmp(ops->name, traits->name);
	int kind = agree ? hspmd_device_kind_add(traits) : -1;
	if (kind >= 0)
		added[kind] = ops;
	return kind;
}

const struct hspmd_device_ops *hspmd_device_find(const char *name, struct hspmd_error *err)
{
	char all[200] = "";
	for (int kind = 0; hspmd_device_kind_names[kind]; kind++) {
		if (!strcmp(name, hspmd_device_kind_names[kind]))
			return kind < HSPMD_DEVICE_KIND_COUNT ? listed[kind](err) : added[kind];
		size_t n = strlen(all);
		snprintf(all + n, sizeof all - n, "%s%s", n ? ", " : "", hspmd_device_kind_names[kind]);
	}
	hspmd_fail(err, "no device kind '%s'; there are: %s", name, all);
	return NULL;
}
