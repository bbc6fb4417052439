/* SPDX-License-Identifier: Apache-2.0 */
/* The checkpoint writer, and workers that keep copies of each other's shards, stopped at every system call that changes a file:
 * afterwards either the old checkpoint or the new one is complete. The same with every such call failing. And the order of calls ensures
 * that a power failure, which loses what was not synced, leaves no less. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/durable.h"
#include "tests/unit/draw.h"
#include "tests/unit/state_crew.h"

enum { OLD = 1, NEW = 2, WORKERS = 2 };

/* The writers: two workers for themselves, or a crew that keeps copies. Both commit on each of their nodes and remove the old
 * checkpoint. */
struct writers {
	const char *name;
	int nodes;
	struct hspmd_manifest *(*write)(int64_t step, struct hspmd_error *err); /* writes the shards; returns the manifest to commit */
	bool spare;                                                             /* any one node may be lost */
	int roots; /* nodes that have a root; the others are told which checkpoints stand. 0: all have a list of extents */
};

static const char *self;

/* ---- the child: two workers' shards, the manifest, the old one removed */

static const struct hspmd_device_ops host_ops = { .name = "host", .host_memory = true };

static int write_worker(int worker, int64_t step, json_t **shard, struct hspmd_error *err)
{
	struct hspmd_device dev = { .ops = &host_ops };
	struct hspmd_state_slice slices[SCENE_SLICES];
	char location[128], node[16], file[40];
	const char *locations[] = { location };
	size_t n = scene_slices(0, worker, WORKERS, step, slices);
	snprintf(node, sizeof node, "n%d", worker);
	snprintf(location, sizeof location, "%s/%s", scene_root, node);
	snprintf(file, sizeof file, "n%d-0.safetensors", worker);
	struct hspmd_writer_job job = {
		.step = step, .generation = 1, .file = file, .node = node, .locations = locations, .location_count = 1
	};
	struct hspmd_writer *w = hspmd_writer_create(&dev, err);
	json_t *report = NULL;
	int rv = w ? hspmd_writer_begin(w, &job, slices, n, err) : -1;
	if (!rv)
		rv = hspmd_writer_result(w, 60, &report, err) == 1 ? 0 : -1;
	*shard = json_incref(json_object_get(report, "shard"));
	json_decref(report);
	hspmd_writer_destroy(w);
	scene_free(slices, n);
	return rv;
}

static struct hspmd_manifest *write_alone(int64_t step, struct hspmd_error *err)
{
	json_t *shards[WORKERS] = { NULL }, *job = json_object();
	int rv = 0;
	for (int i = 0; i < WORKERS && !rv; i++)
		rv = write_worker(i, step, &shards[i], err);
	struct hspmd_manifest *m = rv ? NULL : hspmd_manifest_assemble(step, 1, job, shards, WORKERS, err);
	for (int i = 0; i < WORKERS; i++)
		json_decref(shards[i]);
	json_decref(job);
	return m;
}

static struct hspmd_manifest *write_with_copies(int64_t step, struct hspmd_error *err)
{
	struct crew *c = run_crew(step, 1, false, NULL);
	struct hspmd_manifest *m = crew_manifest(c, step, err);
	end_crew(c);
	return m;
}

static const struct writers alone = { "alone", WORKERS, write_alone, false, 0 }, crew = { "crew", CREW_NODES, write_with_copies, true, 0 },
                            rooted = { "rooted", CREW_NODES, write_with_copies, true, 2 };

static int write_checkpoint(const struct writers *by, int64_t step)
{
	struct hspmd_error err = { "" };
	const struct hspmd_checkpoint_id newest = { step, 1 };
	crew_set = by->roots ? "7" : NULL;
	struct hspmd_manifest *m = by->write(step, &err);
	int rv = m ? 0 : -1;
	char location[128];
	for (int i = 0; i < (by->roots ? by->roots : by->nodes) && !rv; i++) {
		snprintf(location, sizeof location, "%s/n%d", scene_root, i);
		rv = hspmd_checkpoint_commit(location, m, &err);
	}
	for (int i = 0; i < by->nodes && !rv; i++) {
		snprintf(location, sizeof location, "%s/n%d", scene_root, i);
		rv = by->roots ? hspmd_checkpoint_keep(location, &newest, 1, &err) : hspmd_checkpoint_prune(location, 1, &err);
	}
	hspmd_manifest_destroy(m);
	/* An error must be reported. */
	return rv ? (err.text[0] ? 1 : 3) : 0;
}

/* ---- the parent */

static const char *shim(void)
{
	static char path[512];
	static const char *const locations[] = { ".libs/libcrash_shim.so", "libcrash_shim.so" };
	char here[256];
	for (size_t i = 0; i < 2 && getcwd(here, sizeof here); i++) {
		snprintf(path, sizeof path, "%s/%s", here, locations[i]);
		if (!access(path, R_OK))
			return path;
	}
	return NULL;
}

/* Run the child with the shim; returns its wait status. */
static int run_child(const struct writers *by, int at, int error, const char *log)
{
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		char text[16];
		setenv("LD_PRELOAD", shim(), 1);
		setenv("ASAN_OPTIONS", "verify_asan_link_order=0:detect_leaks=0", 1);
		setenv("HSPMD_CRASH_UNDER", scene_root, 1);
		setenv("HSPMD_LOG", "error", 1);
		snprintf(text, sizeof text, "%d", at);
		if (at)
			setenv("HSPMD_CRASH_AT", text, 1);
		snprintf(text, sizeof text, "%d", error);
		if (error)
			setenv("HSPMD_CRASH_ERRNO", text, 1);
		if (log)
			setenv("HSPMD_CRASH_LOG", log, 1);
		alarm(60);
		execl(self, self, by->name, scene_root, (char *)NULL);
		_exit(98);
	}
	int status;
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return status;
}

/* Compare every element of a checkpoint from these folders. False: a shard is in none of them. */
static bool is_whole(const struct hspmd_manifest *m, const char *const *folders, int count, int at)
{
	struct hspmd_error err = { "" };
	struct hspmd_reader *r = hspmd_reader_create(m, NULL, folders, count, &err);
	assert_non_null(r);
	bool whole = true;
	for (int s = 0; s < m->shard_count; s++)
		whole &= hspmd_reader_has(r, s);
	for (int t = 0; whole && t < SCENE_TENSORS; t++)
		for (int k = 0; k < HSPMD_STATE_KIND_COUNT; k++) {
			struct hspmd_box box = hspmd_box_full(&scene_tensors[t].shape);
			float *data = calloc((size_t)hspmd_box_elements(&box), sizeof *data);
			struct hspmd_state_need need = { scene_tensors[t].name, (enum hspmd_state_kind)k, HSPMD_F32, box, data };
			if (hspmd_reader_load(r, &need, 1, NULL, NULL, NULL, &err) || scene_visit(t, k, m->step, &box, data, false)) {
				print_error("call %d: step %lld: %s\n", at, (long long)m->step, err.text);
				fail();
			}
			free(data);
		}
	hspmd_reader_destroy(r);
	return whole;
}

/* Returns true if the checkpoint is complete and, if copies were promised, complete without any one of the nodes. */
static bool as_promised(const struct writers *by, const struct hspmd_manifest *m, int at)
{
	char name[64], folders[CREW_NODES][200];
	const char *list[CREW_NODES], *rest[CREW_NODES];
	hspmd_checkpoint_name(m->step, m->generation, name, sizeof name);
	for (int i = 0; i < by->nodes; i++) {
		snprintf(folders[i], sizeof folders[i], "%s/n%d/%s", scene_root, i, name);
		list[i] = folders[i];
	}
	if (!is_whole(m, list, by->nodes, at))
		return false;
	bool copied = by->spare;
	for (int s = 0; s < m->shard_count; s++)
		copied &= m->shards[s].node_count > 1;
	for (int gone = 0; copied && m->step == NEW && gone < by->nodes; gone++) {
		int n = 0;
		for (int i = 0; i < by->nodes; i++)
			if (i != gone)
				rest[n++] = list[i];
		if (!is_whole(m, rest, n, at)) {
			print_error("call %d: step %lld is not whole without n%d\n", at, (long long)m->step, gone);
			fail();
		}
	}
	return true;
}

/* The step of the newest complete checkpoint, of which every element was compared. */
static int64_t look(const struct writers *by, int at)
{
	struct hspmd_listed_checkpoint *found;
	struct hspmd_error err = { "" };
	int n = hspmd_checkpoint_list(scene_root, HSPMD_LOCATION_DEPTH, &found, &err);
	int64_t best = -1;
	/* An older one that was partly removed exists only if a newer one does. */
	for (int i = 0; i < n; i++)
		if (found[i].manifest && found[i].manifest->step > best && as_promised(by, found[i].manifest, at))
			best = found[i].manifest->step;
	hspmd_checkpoint_list_free(found, n);
	return best;
}

static void fresh(const struct writers *by)
{
	hspmd_remove_tree(scene_root, NULL);
	assert_int_equal(write_checkpoint(by, OLD), 0);
}

/* The system calls of an undisturbed run, one per line. The caller frees them. */
static char *record(const struct writers *by, int *count)
{
	struct hspmd_error err = { "" };
	char log[128];
	snprintf(log, sizeof log, "%s.log", scene_root);
	unlink(log);
	fresh(by);
	int status = run_child(by, 0, 0, log);
	assert_int_equal(status, 0);
	char *text = hspmd_read_file(log, 1 << 20, NULL, &err);
	assert_non_null(text);
	unlink(log);
	*count = 0;
	for (const char *at = text; (at = strchr(at, '\n')); at++)
		++*count;
	return text;
}

static void stop_everywhere(const struct writers *by, int error)
{
	int calls, old = 0, new = 0;
	free(record(by, &calls));
	assert_true(calls > 30);
	/* Nodes that keep copies make many calls: each commit stops them at every third one, or lets every fifth one fail. */
	const unsigned all = !by->spare ? 1 : error ? 5 : 3, count = draw_count(1, all);
	const int first = 1 + (int)draw_first(count, all), stride = (int)(all / count);
	for (int at = first; at <= calls; at += stride) {
		fresh(by);
		int status = run_child(by, at, error, NULL);
		bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, done = WIFEXITED(status) && !WEXITSTATUS(status);
		if (error ? !WIFEXITED(status) || WEXITSTATUS(status) > 1 : !killed) {
			print_error("call %d: status %#x\n", at, status);
			fail();
		}
		int64_t step = look(by, at);
		/* If the child claims success, it succeeded. */
		if (step != NEW && (step != OLD || done)) {
			print_error("call %d: step %lld is found\n", at, (long long)step);
			fail();
		}
		old += step == OLD;
		new += step == NEW;
		/* And a later checkpoint cleans up after all of it. */
		if ((at - first) % (16 * stride) == 0) {
			assert_int_equal(write_checkpoint(by, NEW + 1), 0);
			assert_int_equal(look(by, at), NEW + 1);
		}
	}
	/* Copies compensate for one failure nearly everywhere. */
	assert_true(new > 5 && (old > 10 || (by->spare && error)));
}

static void test_killed(void **state)
{
	(void)state;
	stop_everywhere(&alone, 0);
}

static void test_copies_killed(void **state)
{
	(void)state;
	stop_everywhere(&crew, 0);
}

static void test_roots_killed(void **state)
{
	(void)state;
	stop_everywhere(&rooted, 0);
}

static void test_failing(void **state)
{
	(void)state;
	/* Everything except the errno is as with a full disk. */
	if (!getenv("HSPMD_LONG"))
		skip();
	stop_everywhere(&alone, EIO);
	stop_everywhere(&crew, EIO);
}

static void test_full(void **state)
{
	(void)state;
	stop_everywhere(&alone, ENOSPC);
}

static void test_copies_full(void **state)
{
	(void)state;
	stop_everywhere(&crew, ENOSPC);
}

/* ---- losses by a power failure */

struct unsynced {
	char path[64][256];
	int count;
};

static void dirty(struct unsynced *u, const char *path)
{
	for (int i = 0; i < u->count; i++)
		if (!strcmp(u->path[i], path))
			return;
	assert_true(u->count < 64);
	snprintf(u->path[u->count++], sizeof u->path[0], "%s", path);
}

static void dirty_parent(struct unsynced *u, const char *path)
{
	char parent[256];
	snprintf(parent, sizeof parent, "%s", path);
	*strrchr(parent, '/') = '\0';
	dirty(u, parent);
}

static bool take(struct unsynced *u, const char *path)
{
	for (int i = 0; i < u->count; i++)
		if (!strcmp(u->path[i], path)) {
			memmove(u->path[i], u->path[u->count - 1], sizeof u->path[i]);
			u->count--;
			return true;
		}
	return false;
}

static bool ends(const char *text, const char *end)
{
	size_t n = strlen(text), m = strlen(end);
	return n >= m && !strcmp(text + n - m, end);
}

static void nothing_unsynced(const struct unsynced *u, const char *when)
{
	if (u->count)
		print_error("%s, but %s is not synced\n", when, u->path[0]);
	assert_int_equal(u->count, 0);
}

static void test_power(void **state)
{
	(void)state;
	int calls, manifests = 0;
	struct unsynced u = { .count = 0 };
	char *text = record(&alone, &calls), *rest = text, *line;
	while ((line = strsep(&rest, "\n")) && *line) {
		char what[16], path[256] = "", to[256] = "";
		assert_true(sscanf(line, "%15s %255s %255s", what, path, to) >= 2);
		if (!strcmp(what, "write")) {
			dirty(&u, path);
		} else if (!strcmp(what, "mkdir")) {
			dirty_parent(&u, path);
		} else if (!strcmp(what, "fsync")) {
			take(&u, path);
		} else if (!strcmp(what, "rename")) {
			/* A manifest requires everything before it to be synced; any file requires its contents. */
			bool manifest = ends(to, "/" HSPMD_MANIFEST_FILE);
			if (manifest)
				nothing_unsynced(&u, line);
			if (take(&u, path)) {
				print_error("%s, but it is not synced\n", line);
				fail();
			}
			manifests += manifest;
			dirty_parent(&u, to);
		} else if (!strcmp(what, "unlink") && ends(path, HSPMD_MANIFEST_FILE)) {
			nothing_unsynced(&u, line);
			dirty_parent(&u, path);
		} else if (!strcmp(what, "unlinkat")) {
			nothing_unsynced(&u, line);
		}
	}
	assert_int_equal(manifests, WORKERS);
	free(text);
}

int main(int argc, char **argv)
{
	self = "/proc/self/exe";
	if (argc == 3) {
		snprintf(scene_root, sizeof scene_root, "%s", argv[2]);
		return write_checkpoint(!strcmp(argv[1], crew.name) ? &crew : !strcmp(argv[1], rooted.name) ? &rooted : &alone, NEW);
	}
	setenv("HSPMD_LOG", "error", 1);
	if (!shim()) {
		fprintf(stderr, "the shim is not there\n");
		return 1;
	}
	/* In memory if possible: a disk's syncs would take most of the time and show nothing. */
	snprintf(scene_root, sizeof scene_root, "%s/hspmd-crash-XXXXXX", access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm");
	if (!mkdtemp(scene_root))
		return 1;
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_power),        cmocka_unit_test(test_killed), cmocka_unit_test(test_copies_killed),
		cmocka_unit_test(test_failing),      cmocka_unit_test(test_full),   cmocka_unit_test(test_copies_full),
		cmocka_unit_test(test_roots_killed),
	};
	int rv = cmocka_run_group_tests(tests, NULL, NULL);
	hspmd_remove_tree(scene_root, NULL);
	return rv;
}
