/* SPDX-License-Identifier: Apache-2.0 */
/* The real controller with 8 and with 40 played nodes (tests/bench/scale/played_scenes.h): every phase ends, and what goes through the
 * controller grows with the number of nodes, not with its square. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tests/bench/scale/played_scenes.h"

#define FEW 64
#define MANY 320 /* so many nodes that not all get a checkpoint's manifest */
#define TRAIN_S 1.5

static const struct played_phase *phase_of(const struct played_phase *list, int count, const char *name)
{
	for (int i = 0; i < count; i++)
		if (!strcmp(list[i].name, name))
			return &list[i];
	fail_msg("no phase %s", name);
	return NULL;
}

/* Generations that began in a phase. Each sends a plan to all nodes; on a busy machine a second one may follow at once, as when nodes
 * connect late or a heartbeat does. */
static long long generations(const struct played_phase *list, const struct played_phase *p)
{
	return p->generation - (p > list ? p[-1].generation : 0);
}

static void test_growth(void **state)
{
	(void)state;
	static const char *const changes[] = { "start", "grow", "shrink", "one node lost" };
	static struct played_phase phase[2][PLAYED_PHASES_MAX];
	int count[2];
	for (int k = 0; k < 2; k++) {
		struct hspmd_error err = { "" };
		if (played_scenes_run(PLAYED_ALL, k ? MANY : FEW, TRAIN_S, phase[k], &count[k], &err))
			fail_msg("%d devices: %s", k ? MANY : FEW, err.text);
		assert_int_equal(count[k], PLAYED_PHASES_MAX);
	}
	for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
		const struct played_phase *few = phase_of(phase[0], count[0], changes[i]), *many = phase_of(phase[1], count[1], changes[i]);
		/* All addresses for every node would be 1.2 kB a worker and node: 15 MB with 40 nodes, 25 times as much as with 8. */
		long long down[] = { few->bytes_down / generations(phase[0], few), many->bytes_down / generations(phase[1], many) };
		assert_in_range(down[1], 1, 2500000);
		if (down[1] >= 12 * down[0])
			fail_msg("%s: %lld bytes for %d devices, %lld for %d", changes[i], down[1], MANY, down[0], FEW);
		assert_in_range(many->largest, 1, 100000);
	}
	/* A message for all workers is one for each node. */
	const struct played_phase *checkpoint = phase_of(phase[1], count[1], "checkpoint");
	int nodes = MANY / PLAYED_NODE_DEVICES * 7 / 8;
	assert_in_range(checkpoint->down, 2 * nodes, 3 * nodes); /* `checkpoint` and `committed` for each, the manifest for some */
	assert_in_range(checkpoint->manifests, 8, 10);
	assert_true(checkpoint->bytes_up < 1000 * MANY);
	assert_int_equal(phase_of(phase[0], count[0], "checkpoint")->manifests,
	                 FEW / PLAYED_NODE_DEVICES * 7 / 8 + 1); /* the shared folder's */
	assert_int_equal(phase_of(phase[1], count[1], "grow")->workers, MANY);
	/* Whatever is lost at once: few calls of Slurm, not one for each node; no agent connects twice; a few messages for each node; and
	 * no step that a checkpoint has is made again. */
	static const char *const harms[] = { "one node lost", "rack lost", "partition", "healed", "controller slow", "controller lost" };
	for (size_t i = 0; i < sizeof harms / sizeof *harms; i++) {
		const struct played_phase *p = phase_of(phase[1], count[1], harms[i]), *before = p - 1;
		assert_in_range(p->asked, 0, 20);
		assert_in_range(p->srun, 0, 10);
		assert_in_range(p->connects, 0, nodes);
		assert_in_range(p->down, 0, 10 * nodes);
		assert_true(p->from > 0 && phase_of(phase[0], count[0], harms[i])->from > 0); /* few devices have no other copy */
		if (i >= 4)                                                                   /* the workers train on */
			assert_int_equal(p->generation, before->generation);
	}
	/* Of few devices state is lost. Every node names the checkpoint from which it comes, and one is asked for the manifest; as that one
	 * refuses, two others, of which one would do. Manifests have 150 bytes a worker and more, and each node sees two. */
	const struct played_phase *lost = phase_of(phase[0], count[0], "one node lost"), *rack = phase_of(phase[0], count[0], "rack lost");
	int least = 150 * FEW;
	assert_int_equal(lost->asked_for_manifest, 3);
	assert_in_range(lost->found_bytes, 2 * least, 7 * least);
	assert_int_equal(rack->asked_for_manifest, 1);
	assert_in_range(rack->found_bytes, least, 4 * least);
	/* Abort, settle, prepare and start; one for each worker would be eight times as many. */
	assert_in_range(phase_of(phase[1], count[1], "one node lost")->down, 1, 5 * MANY / PLAYED_NODE_DEVICES);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_growth) };
	signal(SIGPIPE, SIG_IGN);
	if (argc == 2 && !strcmp(argv[1], PLAYED_WAIT))
		return played_wait();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
