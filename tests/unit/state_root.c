/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "runtime/state/state_internal.h"
#include "tests/unit/state_root.h"

enum { DIGITS = 64 };

static json_t *root_shard(const struct hspmd_shard *s, const char *folder, const char *const *names, int name_count, json_t *sets)
{
	char path[512], sum[17];
	unsigned char bits[DIGITS] = { 0 };
	struct hspmd_shard_header h;
	struct hspmd_error err = { "" };
	assert_true(name_count <= 4 * DIGITS);
	snprintf(path, sizeof path, "%s/%s", folder, s->file);
	int fd = open(path, O_RDONLY);
	if (hspmd_shard_header_read(fd, path, &h, &err))
		fail_msg("%s", err.text);
	close(fd);
	for (size_t e = 0; e < h.count; e++)
		for (int t = 0; t < name_count; t++)
			bits[t / 4] |= strcmp(h.extents[e].tensor, names[t]) ? 0 : 1 << t % 4;
	char set[DIGITS + 1] = "";
	for (int i = 0; i < (name_count + 3) / 4; i++)
		set[i] = "0123456789abcdef"[bits[i]];
	hspmd_checksum_text(h.list, sum);
	hspmd_shard_header_free(&h);
	json_array_append_new(sets, json_string(set));
	return json_pack("{s:s, s:I, s:[s], s:s, s:I}", "file", s->file, "bytes", (json_int_t)s->bytes, "nodes", s->nodes[0], "list", sum,
	                 "set", (json_int_t)json_array_size(sets) - 1);
}

json_t *state_root(const struct hspmd_manifest *m, const char *const *folders, const char *const *names, int name_count)
{
	json_t *sets = json_array(), *shards = json_array();
	for (int i = 0; i < m->shard_count; i++)
		json_array_append_new(shards, root_shard(&m->shards[i], folders[i], names, name_count, sets));
	return json_pack("{s:s, s:I, s:I, s:f, s:O, s:o, s:o}", "format", HSPMD_CHECKPOINT_ROOT_FORMAT, "step", (json_int_t)m->step,
	                 "generation", (json_int_t)m->generation, "time", m->time, "job", m->job, "sets", sets, "shards", shards);
}
