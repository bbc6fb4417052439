/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/durable.h"
#include "tests/unit/state_folder.h"
#include "tests/unit/state_root.h"

char scene_root[64];

int scene_setup(void **state)
{
	(void)state;
	snprintf(scene_root, sizeof scene_root, "/tmp/hspmd-checkpoint-XXXXXX");
	return mkdtemp(scene_root) ? 0 : -1;
}

int scene_teardown(void **state)
{
	(void)state;
	return hspmd_remove_tree(scene_root, NULL);
}

const char *scene_path(const char *fmt, ...)
{
	static char texts[8][256];
	static int next;
	char rest[128], *buf = texts[next++ % 8];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(rest, sizeof rest, fmt, ap);
	va_end(ap);
	snprintf(buf, sizeof texts[0], "%s/%s", scene_root, rest);
	return buf;
}

void must(int rv, const struct hspmd_error *err)
{
	if (rv)
		print_error("%s\n", err->text);
	assert_int_equal(rv, 0);
}

size_t scene_read_worker(const struct hspmd_manifest *m, const char *const *folders, int count, int along, int worker, int workers)
{
	struct hspmd_state_need needs[SCENE_SLICES];
	struct hspmd_state_gap *gaps;
	struct hspmd_error err = { "" };
	uint64_t bytes[8];
	size_t n = 0, gap_count;
	struct hspmd_reader *r = hspmd_reader_create(m, NULL, folders, count, &err);
	assert_non_null(r);
	for (int t = 0; t < SCENE_TENSORS; t++)
		for (int k = 0; k < HSPMD_STATE_KIND_COUNT; k++) {
			struct hspmd_box box;
			if (!scene_box(t, along, worker, workers, &box))
				continue;
			void *data = calloc((size_t)hspmd_box_elements(&box), 4);
			needs[n++] = (struct hspmd_state_need){ scene_tensors[t].name, (enum hspmd_state_kind)k, HSPMD_F32, box, data };
		}
	must(hspmd_reader_load(r, needs, n, &gaps, &gap_count, bytes, &err), &err);
	n = 0;
	for (int t = 0; t < SCENE_TENSORS; t++)
		for (int k = 0; k < HSPMD_STATE_KIND_COUNT; k++) {
			struct hspmd_box box;
			if (!scene_box(t, along, worker, workers, &box))
				continue;
			if (!gap_count)
				assert_int_equal(scene_visit(t, k, m->step, &box, needs[n].data, false), 0);
			free(needs[n++].data);
		}
	free(gaps);
	hspmd_reader_destroy(r);
	return gap_count;
}

const char *scene_folder(const struct hspmd_manifest *m, const char *node)
{
	char name[64];
	return scene_path("%s/%s", node, hspmd_checkpoint_name(m->step, m->generation, name, sizeof name));
}

struct hspmd_manifest *scene_as_root(struct hspmd_manifest *m, int workers)
{
	const char *folders[8], *names[SCENE_TENSORS];
	struct hspmd_error err = { "" };
	assert_true(m->shard_count == workers && workers <= 8);
	for (int i = 0; i < workers; i++) {
		char node[16];
		snprintf(node, sizeof node, "n%d", i);
		folders[i] = scene_folder(m, node);
	}
	for (int t = 0; t < SCENE_TENSORS; t++)
		names[t] = scene_tensors[t].name;
	json_t *root = state_root(m, folders, names, SCENE_TENSORS);
	struct hspmd_manifest *made = hspmd_manifest_from_json(root, "root", &err);
	must(!made, &err);
	json_decref(root);
	hspmd_manifest_destroy(m);
	return made;
}
