/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "runtime/state/state_internal.h"

const char *hspmd_checksum_text(uint64_t sum, char *buf)
{
	snprintf(buf, 17, "%016" PRIx64, sum);
	return buf;
}

int hspmd_checksum_parse(const char *text, uint64_t *sum)
{
	static const char digits[] = "0123456789abcdef";
	uint64_t v = 0;
	int n = 0;
	for (; n < 16 && text[n]; n++) {
		const char *at = strchr(digits, text[n]);
		if (!at)
			break;
		v = v << 4 | (uint64_t)(at - digits);
	}
	if (n == 16)
		*sum = v;
	return n;
}

uint64_t hspmd_checksum_block(const void *data, size_t bytes)
{
	return XXH3_64bits(data, bytes);
}

uint64_t hspmd_checksum_of_blocks(const uint64_t *blocks, size_t count)
{
	_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
	               "safetensors and the sums of blocks are little-endian, and are taken as they lie");
	return XXH3_64bits(blocks, count * sizeof *blocks);
}

static int add_text(const char *text, size_t bytes, void *state)
{
	return XXH3_64bits_update(state, text, bytes) == XXH_OK ? 0 : -1;
}

int hspmd_manifest_sum(const json_t *manifest, char sum[HSPMD_MANIFEST_SUM], struct hspmd_error *err)
{
	XXH3_state_t *state = XXH3_createState();
	int bad = !state || XXH3_64bits_reset(state) != XXH_OK ||
	          json_dump_callback(manifest, add_text, state, JSON_COMPACT | JSON_SORT_KEYS);
	if (!bad)
		hspmd_checksum_text(XXH3_64bits_digest(state), sum);
	XXH3_freeState(state);
	return bad ? hspmd_fail_memory(err, "naming a manifest") : 0;
}
