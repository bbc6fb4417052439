/* SPDX-License-Identifier: Apache-2.0 */
/* From which of the checkpoints that nodes have named a generation continues, and who reads which node's files. */
#include <string.h>

#include "controller/core/controller_internal.h"

json_t *checkpoint_readers(struct hspmd_controller *m, const struct generation *g)
{
	json_t *map = check_alloc(m, json_object());
	for (int i = g->members - 1; i >= 0; i--)
		if (json_object_set_new(map, g->member[i]->node->name, json_string(g->member[i]->address)))
			m->failed = true;
	return map;
}

/* The shards of an entry of `found` that its node could not read: [[file, sum of the manifest]]. */
static json_t *unreadable(struct hspmd_controller *m, const char *node, const json_t *of)
{
	json_t *bad, *files = check_alloc(m, json_array());
	size_t i;
	json_array_foreach(m->checkpoint_search.bad, i, bad)
		if (!strcmp(json_string_value(json_object_get(bad, "node")), node) &&
		    json_equal(json_object_get(bad, "step"), json_object_get(of, "step")) &&
		    json_equal(json_object_get(bad, "generation"), json_object_get(of, "generation")) &&
		    json_array_append_new(files, json_pack("[O, O]", json_object_get(bad, "file"), json_object_get(bad, "sum"))))
			m->failed = true;
	return files;
}

/* The checkpoints that were found, with `unreadable`: the shards that the node could not read. */
static json_t *found_checkpoints(struct hspmd_controller *m)
{
	const char *node;
	json_t *list, *one, *all = check_alloc(m, json_object());
	size_t i;
	json_object_foreach(m->checkpoint_search.found, node, list) {
		json_t *marked = check_alloc(m, json_array());
		json_array_foreach(list, i, one) {
			json_t *copy = check_alloc(m, json_copy(one));
			if (json_object_set_new(copy, "unreadable", unreadable(m, node, one)) || json_array_append_new(marked, copy))
				m->failed = true;
		}
		if (json_object_set_new(all, node, marked))
			m->failed = true;
	}
	return all;
}

int checkpoint_choose(struct hspmd_controller *m, json_t *readers, struct run_checkpoint_choice *choice, struct hspmd_error *err)
{
	json_t *found = found_checkpoints(m);
	hspmd_fail(err, "none was found");
	int chosen = m->config->choose && readers && json_object_size(found)
	                     ? m->config->choose(m->config, found, m->checkpoint_search.manifests, readers, choice, err)
	                     : 0;
	json_decref(found);
	return chosen;
}
