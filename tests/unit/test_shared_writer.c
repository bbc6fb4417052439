/* SPDX-License-Identifier: Apache-2.0 */
/* A shared folder that hangs or fails while shards are written: what goes to a node's own folders does not wait for it, and what it gets is
 * what the state was when the shard was begun. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/durable.h"
#include "common/memory_left.h"
#include "runtime/state/state_internal.h"
#include "tests/unit/state_folder.h"

#define WAIT_S 60

/* ---- folders and memory that a test takes away */

static struct {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool hangs;
	uint64_t memory; /* that is left; 0: as much as there is */
} away = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false, 0 };

int __real_hspmd_image_write(const struct hspmd_image *im, const char *location, int64_t step, int64_t generation, const char *file,
                             struct hspmd_error *err);
int __wrap_hspmd_image_write(const struct hspmd_image *im, const char *location, int64_t step, int64_t generation, const char *file,
                             struct hspmd_error *err);
uint64_t __real_hspmd_memory_left(void);
uint64_t __wrap_hspmd_memory_left(void);

int __wrap_hspmd_image_write(const struct hspmd_image *im, const char *location, int64_t step, int64_t generation, const char *file,
                             struct hspmd_error *err)
{
	pthread_mutex_lock(&away.lock);
	while (away.hangs && strstr(location, "shared"))
		pthread_cond_wait(&away.changed, &away.lock);
	pthread_mutex_unlock(&away.lock);
	return __real_hspmd_image_write(im, location, step, generation, file, err);
}

uint64_t __wrap_hspmd_memory_left(void)
{
	return away.memory ? away.memory : __real_hspmd_memory_left();
}

static void set_hangs(bool hangs)
{
	pthread_mutex_lock(&away.lock);
	away.hangs = hangs;
	pthread_cond_broadcast(&away.changed);
	pthread_mutex_unlock(&away.lock);
}

/* ---- one worker, which holds all of the state */

#define FILE_NAME "n0-0.safetensors"

static const struct hspmd_device_ops near_ops = { .name = "near", .host_memory = true };
static struct hspmd_device device = { .ops = &near_ops };

static int begin(struct hspmd_writer *w, int64_t step, bool own, bool shared, struct hspmd_error *err)
{
	struct hspmd_state_slice slices[SCENE_SLICES];
	size_t n = scene_slices(0, 0, 1, step, slices);
	const char *location = scene_path("n0");
	struct hspmd_writer_job job = { .step = step,
		                        .generation = 1,
		                        .file = FILE_NAME,
		                        .node = "n0",
		                        .locations = &location,
		                        .location_count = own,
		                        .shared = shared ? scene_path("shared") : NULL };
	int rv = hspmd_writer_begin(w, &job, slices, n, err);
	if (!rv)
		must(hspmd_writer_wait_copied(w, err), err);
	scene_free(slices, n);
	return rv;
}

static void begins(struct hspmd_writer *w, int64_t step, bool own, bool shared)
{
	struct hspmd_error err = { "" };
	must(begin(w, step, own, shared, &err), &err);
}

static void is_written(struct hspmd_writer *w, bool shared, int expected)
{
	struct hspmd_error err = { "" };
	json_t *report;
	int rv = (shared ? hspmd_writer_shared_result : hspmd_writer_result)(w, WAIT_S, &report, &err);
	if (rv != expected)
		fail_msg("%s: %d instead of %d: %s", shared ? "shared" : "own", rv, expected, err.text);
	assert_int_equal(json_is_object(report), expected > 0);
	if (expected > 0 && shared)
		assert_string_equal(json_string_value(json_object_get(json_object_get(report, "shard"), "file")), FILE_NAME);
	json_decref(report);
}

/* The file in this location contains the state before `step`. */
static void contains(const char *where, int64_t step)
{
	struct hspmd_error err = { "" };
	char *folder = hspmd_checkpoint_make_folder(scene_path("%s", where), step, 1, &err);
	assert_non_null(folder);
	char *path = hspmd_asprintf("%s/" FILE_NAME, folder);
	struct hspmd_extent *extents = NULL;
	size_t bytes = 0, count = 0;
	char *text = hspmd_read_file(path, 1 << 30, &bytes, &err);
	if (!text)
		fail_msg("%s", err.text);
	must(hspmd_image_check(text, bytes, &extents, &count, &err), &err);
	assert_int_equal(count, SCENE_SLICES);
	for (size_t i = 0; i < count; i++)
		for (int t = 0; t < SCENE_TENSORS; t++)
			if (!strcmp(extents[i].tensor, scene_tensors[t].name))
				assert_int_equal(scene_visit(t, extents[i].kind, step, &extents[i].box,
				                             (float *)(void *)(text + extents[i].offset), false),
				                 0);
	hspmd_extents_free(extents, count);
	free(text);
	free(path);
	free(folder);
}

static struct hspmd_writer *writer(void)
{
	struct hspmd_error err = { "" };
	struct hspmd_writer *w = hspmd_writer_create(&device, &err);
	assert_non_null(w);
	set_hangs(false);
	away.memory = 0;
	return w;
}

static void test_both(void **state)
{
	(void)state;
	struct hspmd_writer *w = writer();
	assert_false(hspmd_writer_shared_busy(w));
	for (int64_t step = 1; step <= 3; step++) {
		begins(w, step, true, true);
		is_written(w, false, 1);
		is_written(w, true, 1);
		assert_false(hspmd_writer_shared_busy(w));
		contains("n0", step);
		contains("shared", step);
	}
	begins(w, 4, false, true); /* a job that has no other folder */
	is_written(w, true, 1);
	is_written(w, false, 1);
	contains("shared", 4);
	begins(w, 5, true, false);
	is_written(w, false, 1);
	is_written(w, true, 0); /* none was asked for */
	hspmd_writer_destroy(w);
}

static void test_shared_hangs(void **state)
{
	(void)state;
	struct hspmd_writer *w = writer();
	struct hspmd_error err = { "" };
	set_hangs(true);
	begins(w, 11, true, true);
	is_written(w, false, 1);
	for (int64_t step = 12; step <= 15; step++) {
		assert_true(hspmd_writer_shared_busy(w));
		begins(w, step, true, false);
		is_written(w, false, 1);
		contains("n0", step);
	}
	assert_int_equal(begin(w, 16, true, true, &err), -1);
	assert_non_null(strstr(err.text, "busy with the checkpoint of step 11"));
	set_hangs(false);
	is_written(w, true, 1);
	contains("shared", 11); /* although other states have been copied since */
	begins(w, 17, true, true);
	is_written(w, false, 1);
	is_written(w, true, 1);
	contains("shared", 17);
	hspmd_writer_destroy(w);
}

/* It ends with the folder, whatever image it has. */
static void test_ends_while_shared_hangs(void **state)
{
	(void)state;
	for (int more = 0; more < 2; more++) {
		struct hspmd_writer *w = writer();
		set_hangs(true);
		begins(w, 21, true, true);
		is_written(w, false, 1);
		if (more) {
			begins(w, 22, true, false);
			is_written(w, false, 1);
		}
		set_hangs(false);
		hspmd_writer_destroy(w);
		contains("shared", 21);
	}
}

/* A second image is not taken from training. */
static void test_no_memory_for_another_image(void **state)
{
	(void)state;
	struct hspmd_writer *w = writer();
	struct hspmd_error err = { "" };
	set_hangs(true);
	begins(w, 31, true, true);
	is_written(w, false, 1);
	away.memory = 1000;
	assert_int_equal(begin(w, 32, true, false, &err), -1);
	assert_non_null(strstr(err.text, "shared is busy with the last checkpoint, and another one needs "));
	away.memory = 0;
	begins(w, 33, true, false);
	is_written(w, false, 1);
	away.memory = 1000; /* both are there now */
	begins(w, 34, true, false);
	is_written(w, false, 1);
	set_hangs(false);
	is_written(w, true, 1);
	begins(w, 35, true, true);
	is_written(w, true, 1);
	is_written(w, false, 1);
	hspmd_writer_destroy(w);
}

/* What one folder cannot take is not missing in the other. */
static void test_one_fails(void **state)
{
	(void)state;
	struct hspmd_writer *w = writer();
	struct hspmd_error err = { "" };
	assert_int_equal(close(creat(scene_path("shared"), 0600)), 0);
	begins(w, 41, true, true);
	is_written(w, true, -1);
	is_written(w, false, 1);
	contains("n0", 41);
	assert_int_equal(unlink(scene_path("shared")), 0);
	must(hspmd_remove_tree(scene_path("n0"), &err), &err);
	assert_int_equal(close(creat(scene_path("n0"), 0600)), 0);
	begins(w, 42, true, true);
	is_written(w, false, -1);
	is_written(w, true, 1);
	contains("shared", 42);
	assert_int_equal(unlink(scene_path("n0")), 0);
	hspmd_writer_destroy(w);
}

int main(void)
{
	setenv("HSPMD_LOG", "error", 1);
	const struct CMUnitTest tests[] = {
		IN_FOLDER(test_both),
		IN_FOLDER(test_shared_hangs),
		IN_FOLDER(test_ends_while_shared_hangs),
		IN_FOLDER(test_no_memory_for_another_image),
		IN_FOLDER(test_one_fails),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
