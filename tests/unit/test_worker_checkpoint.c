/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints of real workers: asked for when no step is left, or before a vote, and with a shared folder that hangs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/state/state_internal.h"
#include "tests/unit/worker_scene.h"

/* ---- a shared folder that hangs, while the file `hangs` exists */

static char hangs[64];

int __real_hspmd_image_write(const struct hspmd_image *im, const char *location, int64_t step, int64_t generation, const char *file,
                             struct hspmd_error *err);
int __wrap_hspmd_image_write(const struct hspmd_image *im, const char *location, int64_t step, int64_t generation, const char *file,
                             struct hspmd_error *err);
struct hspmd_manifest *__real_hspmd_manifest_from_json(const json_t *value, const char *name, struct hspmd_error *err);
struct hspmd_manifest *__wrap_hspmd_manifest_from_json(const json_t *value, const char *name, struct hspmd_error *err);

int __wrap_hspmd_image_write(const struct hspmd_image *im, const char *location, int64_t step, int64_t generation, const char *file,
                             struct hspmd_error *err)
{
	while (strstr(location, "/shared") && !access(hangs, F_OK))
		usleep(1000);
	return __real_hspmd_image_write(im, location, step, generation, file, err);
}

struct hspmd_manifest *__wrap_hspmd_manifest_from_json(const json_t *value, const char *name, struct hspmd_error *err)
{
	while (json_object_get(value, "shared") && !access(hangs, F_OK))
		usleep(1000);
	return __real_hspmd_manifest_from_json(value, name, err);
}

/* Asks device d for a checkpoint. */
static void ask_checkpoint(struct scene *s, int d, const char *id)
{
	tell(&s->peer[d], json_pack("{ss,si,ss,ss}", "type", "checkpoint", "generation", 1, "id", id, "local", folder));
}

static void expect_checkpoint(struct scene *s, int d, const char *id, int step)
{
	json_t *m = next(s, d, "checkpoint_written");
	const char *error = json_string_value(json_object_get(m, "error"));
	if (error)
		fail_msg("device %d: %s", d, error);
	assert_string_equal(json_string_value(json_object_get(m, "id")), id);
	assert_int_equal(json_integer_value(json_object_get(m, "step")), step);
	/* It reports for a root: the list's sum, and which parameters it has written. */
	const json_t *shard = json_object_get(m, "shard");
	const char *list = json_string_value(json_object_get(shard, "list")), *set = json_string_value(json_object_get(shard, "set"));
	assert_true(list && strlen(list) == 16 && set && strspn(set, "0123456789abcdef") == strlen(set) && strspn(set, "0") < strlen(set));
	assert_null(json_object_get(shard, "extents"));
	json_decref(m);
}

/* One worker is asked while steps are left, the other after its last: no step serves both, so both write the state after the last. */
static void test_checkpoint_in_the_last_step(void **state)
{
	(void)state;
	struct scene s;
	open_scene(&s);
	start(&s, 1, prepare(&s, 1, false), 0, -1);
	ask_checkpoint(&s, 0, "last");
	expect_number(&s, 1, "finished", "step", STEPS);
	ask_checkpoint(&s, 1, "last");
	expect_checkpoint(&s, 1, "last", STEPS);
	expect_number(&s, 0, "finished", "step", STEPS);
	expect_checkpoint(&s, 0, "last", STEPS);
	/* The next is served at once; one of a generation that is not this one's is refused. */
	for (int d = 0; d < 2; d++)
		ask_checkpoint(&s, d, "later");
	for (int d = 0; d < 2; d++)
		expect_checkpoint(&s, d, "later", STEPS);
	tell(&s.peer[0], json_pack("{ss,si,ss,ss}", "type", "checkpoint", "generation", 7, "id", "other", "local", folder));
	json_t *m = next(&s, 0, "checkpoint_written");
	assert_non_null(strstr(json_string_value(json_object_get(m, "error")), "does not hold that generation's state"));
	json_decref(m);
	for (int d = 0; d < 2; d++)
		quit(&s, d);
}

/* Both were asked before a vote: the checkpoint is that of the step that they voted on. */
static void test_checkpoint_at_a_vote(void **state)
{
	(void)state;
	struct scene s;
	open_scene(&s);
	hold_steps(true);
	start(&s, 1, prepare(&s, 1, false), 0, -1);
	expect_number(&s, 0, "step", "step", 0);
	for (int d = 0; d < 2; d++) {
		ask_checkpoint(&s, d, "second");
		expect_pong(&s, d); /* it has heard the request, too */
	}
	for (int d = 0; d < 2; d++)
		tell_number(&s, d, "stop", 1);
	for (int d = 0; d < 2; d++) {
		bool written = false, stopped = false;
		while (!written || !stopped) { /* the writer and the worker report at the same time */
			struct hspmd_error err;
			json_t *m;
			assert_int_equal(hspmd_wire_receive(s.peer[d].fd, s.peer[d].reader, WAIT_S, &m, &err), 1);
			const char *type = json_string_value(json_object_get(m, "type"));
			assert_string_not_equal(type, "fault");
			stopped = stopped || !strcmp(type, "stopped");
			if (!strcmp(type, "checkpoint_written")) {
				assert_null(json_object_get(m, "error"));
				assert_int_equal(json_integer_value(json_object_get(m, "step")), 2);
				written = true;
			}
			json_decref(m);
		}
	}
	hold_steps(false);
	for (int d = 0; d < 2; d++)
		quit(&s, d);
}

/* Asks both for a checkpoint in the shared folder and, with `own`, in their own. */
static void ask_for_shared(struct scene *s, const char *id, bool own)
{
	for (int d = 0; d < 2; d++)
		tell(&s->peer[d], json_pack("{ss,si,ss,ss*,so}", "type", "checkpoint", "generation", 1, "id", id, "local",
		                            own ? folder : NULL, "shared", json_sprintf("%s/shared", folder)));
}

/* The next message of a device is of this type, and of this part. error NULL: it reports none. */
static void expect_part(struct scene *s, int d, const char *type, const char *id, bool shared, const char *error)
{
	json_t *m = next(s, d, type);
	const char *text = json_string_value(json_object_get(m, "error"));
	assert_string_equal(json_string_value(json_object_get(m, "id")), id);
	assert_int_equal(json_is_true(json_object_get(m, "shared")), shared);
	if (!error != !text || (error && !strstr(text, error)))
		fail_msg("device %d, %s: %s", d, id, text ? text : "no error");
	assert_true(error || json_is_string(json_object_get(json_object_get(m, "shard"), "list")));
	json_decref(m);
}

/* Shards and manifests for a node's own folder do not wait for those that go to the shared folder. */
static void test_shared_folder_hangs(void **state)
{
	(void)state;
	struct scene s;
	open_scene(&s);
	start(&s, 1, prepare(&s, 1, false), 0, -1);
	for (int d = 0; d < 2; d++)
		expect_number(&s, d, "finished", "step", STEPS);
	FILE *f = fopen(hangs, "w");
	assert_true(f && !fclose(f));
	ask_for_shared(&s, "one", true);
	for (int d = 0; d < 2; d++)
		expect_part(&s, d, "checkpoint_written", "one", false, NULL);
	ask_for_shared(&s, "two", true);
	for (int d = 0; d < 2; d++) {
		expect_part(&s, d, "checkpoint_written", "two", true, "the shared folder is still busy");
		expect_part(&s, d, "checkpoint_written", "two", false, NULL);
	}
	struct peer *p = &s.peer[0];
	tell(p, json_pack("{ss,ss,sb,s{sb},s[s]}", "type", "write_manifest", "id", "one", "shared", 1, "manifest", "shared", 1, "folders",
	                  folder));
	tell(p, json_pack("{ss,ss,sb,s{},s[s]}", "type", "write_manifest", "id", "two", "shared", 0, "manifest", "folders", folder));
	expect_part(&s, 0, "manifest_written", "two", false, "manifest");
	ask_for_shared(&s, "three", false); /* this one waits, as it is for nothing else */
	expect_pong(&s, 0);
	unlink(hangs);
	bool listed = false;
	for (int d = 0; d < 2; d++)
		for (int i = 0; i < 3 - d; i++) {
			json_t *m = NULL;
			struct hspmd_error err;
			assert_int_equal(hspmd_wire_receive(s.peer[d].fd, s.peer[d].reader, WAIT_S, &m, &err), 1);
			bool manifest = !strcmp(json_string_value(json_object_get(m, "type")), "manifest_written");
			listed |= manifest;
			assert_true(json_is_true(json_object_get(m, "shared")));
			assert_int_equal(json_is_string(json_object_get(m, "error")), manifest); /* which was none */
			json_decref(m);
		}
	assert_true(listed);
	for (int d = 0; d < 2; d++)
		quit(&s, d);
}

static int make(void **state)
{
	int status = worker_scene_make(state);
	snprintf(hangs, sizeof hangs, "%s/hangs", folder);
	return status;
}

int main(void)
{
	setenv("HSPMD_LOG", "error", 1);
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_checkpoint_in_the_last_step),
		cmocka_unit_test(test_checkpoint_at_a_vote),
		cmocka_unit_test(test_shared_folder_hangs),
	};
	return cmocka_run_group_tests(tests, make, worker_scene_remove);
}
