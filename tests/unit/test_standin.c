/* SPDX-License-Identifier: Apache-2.0 */
/* The stand-in, driven over a socketpair as an agent does: what it tells a rank, how a command ends, and that nothing of it is left. */
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/alloc.h"
#include "common/clock.h"
#include "runtime/command/environment.h"
#include "runtime/command/newest.h"
#include "tests/unit/standin_agent.h"

/* ---- tests */

static void test_environment(void **state)
{
	(void)state;
	int devices[] = { 2, 0 };
	const struct hspmd_placement place = {
		.world = 8, .rank = 5, .local_world = 2, .local_rank = 1, .nodes = 3, .node_rank = 2, .local_devices = devices
	};
	struct hspmd_environment_input in = { .place = &place,
		                              .master_host = "fe80::1",
		                              .master_port = 99,
		                              .generation = 4,
		                              .restarts = 3,
		                              .id = "12",
		                              .checkpoint = "/c",
		                              .steps_fd = 9,
		                              .threads = 6,
		                              .gpus = true };
	char *from[] = { "PATH=/bin",
		         "RANK=77",
		         "SLURM_PROCID=1",
		         "SLURM_NTASKS_PER_NODE=1",
		         "SLURM_JOB_ID=12",
		         "PMIX_RANK=1",
		         "PMI_SIZE=1",
		         "OMPI_X=2",
		         "MV2_COMM_WORLD_SIZE=3",
		         "SLURM_STEP_NODELIST=x",
		         "HSPMD_CHECKPOINT=$HOME/x",
		         "CUDA_VISIBLE_DEVICES=4,GPU-a,7",
		         NULL };
	static const char *const wanted[] = { "PATH=/bin",
		                              "RANK=5",
		                              "WORLD_SIZE=8",
		                              "LOCAL_RANK=1",
		                              "LOCAL_WORLD_SIZE=2",
		                              "GROUP_RANK=2",
		                              "NODE_RANK=2",
		                              "NNODES=3",
		                              "MASTER_ADDR=fe80::1",
		                              "MASTER_PORT=99",
		                              "JAX_COORDINATOR_ADDRESS=[fe80::1]:99",
		                              "JAX_PROCESS_ID=5",
		                              "JAX_NUM_PROCESSES=8",
		                              "TORCHELASTIC_RUN_ID=12",
		                              "TORCHELASTIC_RESTART_COUNT=3",
		                              "HSPMD_GENERATION=4",
		                              "HSPMD_CHECKPOINT=/c",
		                              "HSPMD_FD=9",
		                              "OMP_NUM_THREADS=6",
		                              "CUDA_VISIBLE_DEVICES=7,4",
		                              "SLURM_JOB_ID=12" };
	static const char *const gone[] = { "RANK=77", "SLURM_PROCID", "SLURM_NTASKS", "PMI", "OMPI", "MV2", "SLURM_STEP" };
	char **list = hspmd_environment_make(from, &in);
	for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
		bool found = false;
		for (char **e = list; *e; e++)
			found |= !strcmp(*e, wanted[i]);
		if (!found)
			fail_msg("%s is missing", wanted[i]);
	}
	for (size_t i = 0; i < sizeof gone / sizeof *gone; i++)
		for (char **e = list; *e; e++)
			if (!strncmp(*e, gone[i], strlen(gone[i])))
				fail_msg("%s is left", *e);
	hspmd_environment_destroy(list);
}

static void test_told_and_finished(void **state)
{
	(void)state;
	struct agent a;
	agent_open_with(&a,
	                shell("echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $NODE_RANK/$NNODES $MASTER_ADDR:$MASTER_PORT "
	                      "$OMP_NUM_THREADS {world*2}"
	                      " >\"$HSPMD_CHECKPOINT/told\"; echo output; exit $((HSPMD_GENERATION == 1 ? 0 : 85))"),
	                "TERM:5");
	agent_start(&a);
	json_t *m = agent_next(&a, "finished");
	json_t *newest = json_object_get(m, "newest");
	assert_true(json_integer_value(newest) > 0);
	assert_status(m, 0, true);
	char *told = contents("checkpoint/told"), *log = contents("logs/rank-1");
	assert_string_equal(told, "1/4 0/2 1/3 10.0.0.7:4711 3 8\n");
	assert_string_equal(log, "hspmd: generation 1: rank 1 of 4 on n1:0\noutput\n");
	free(told), free(log);
	assert_status(agent_stop(&a), 0, true);
	agent_start(&a);
	assert_status(agent_next(&a, "finished"), 85, true);
	agent_tell(&a, json_pack("{ss}", "type", "ping"));
	agent_expect(&a, "pong");
	agent_quit(&a);
}

static void test_notice(void **state)
{
	(void)state;
	struct agent a;
	/* A shell hands no signal on: what it runs gets it, too. */
	agent_open_with(
	        &a,
	        shell("trap : USR1; bash -c 'trap \"exit 0\" USR1; echo $$ >\"$HSPMD_CHECKPOINT/in\"; while :; do sleep 0.01; done'; "
	              "exit 85"),
	        "USR1:10");
	agent_start(&a);
	pid_in("checkpoint/in");
	assert_status(agent_stop(&a), 85, false);
	assert_gone("checkpoint/in");
	agent_quit(&a);
	agent_open_with(&a, shell("trap 'exit 85' TERM; echo $$ >\"$HSPMD_CHECKPOINT/in\"; while :; do sleep 0.01; done"), "TERM:60");
	agent_start(&a);
	pid_in("checkpoint/in");
	assert_status(agent_stop(&a), 85, false);
	assert_gone("checkpoint/in");
	agent_quit(&a);
}

#define DEAF                                                                                                                               \
	"trap '' TERM HUP; (setsid bash -c 'trap \"\" TERM HUP; echo $BASHPID >\"$HSPMD_CHECKPOINT/hidden\"; sleep 1000; :' &) ; echo "    \
	"$BASHPID >\"$HSPMD_CHECKPOINT/in\";"                                                                                              \
	" sleep 1000; sleep 1000"

/* Nobody obeys, and one has hidden in a session of its own: by stop, by abort, by quit, and if the agent dies. */
static void test_whole_tree(void **state)
{
	(void)state;
	for (int way = 0; way < 4; way++) {
		struct agent a;
		agent_open_with(&a, shell(DEAF), "TERM:0.2");
		agent_start(&a);
		pid_in("checkpoint/hidden");
		pid_in("checkpoint/in");
		if (way == 0) {
			assert_status(agent_stop(&a), -1, false);
		} else if (way == 1) {
			agent_tell(&a, json_pack("{ss,sI}", "type", "abort", "generation", (json_int_t)1));
			json_t *m = agent_next(&a, "aborted");
			assert_int_equal(json_integer_value(json_object_get(m, "holds")), 1);
			json_decref(m);
		}
		if (way < 3) {
			agent_quit(&a);
		} else {
			shutdown(a.fd, SHUT_RDWR);
			agent_wait_end(&a);
		}
		assert_gone("checkpoint/hidden");
		assert_gone("checkpoint/in");
	}
}

static void test_failures(void **state)
{
	(void)state;
	static const struct {
		const char *script, *says, *last;
	} cases[] = {
		{ "echo one; echo two >&2; exit 3", "rank 1: exit status 3: two", "two" },
		{ "kill -KILL $$", "rank 1: ended by signal 9 (Killed)", NULL },
		{ "printf 'caf\\xe9'; exit 1", "rank 1: exit status 1: caf?", "caf?" },
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct agent a;
		agent_open_with(&a, shell(cases[i].script), "TERM:1");
		agent_start(&a);
		json_t *m = agent_next(&a, "fault"), *tail = json_object_get(m, "tail");
		assert_string_equal(json_string_value(json_object_get(m, "text")), cases[i].says);
		const char *last = json_string_value(json_array_get(tail, json_array_size(tail) - 1));
		assert_true(cases[i].last ? !strcmp(last, cases[i].last) : !last);
		json_decref(m);
		agent_tell(&a, json_pack("{ss,sI}", "type", "abort", "generation", (json_int_t)1));
		agent_expect(&a, "aborted");
		agent_tell(&a, json_pack("{ss,sI,sn}", "type", "settle", "generation", (json_int_t)1, "apply"));
		agent_expect(&a, "settled");
		agent_start(&a); /* the next generation */
		json_decref(agent_next(&a, "fault"));
		agent_quit(&a);
	}
	struct agent a;
	agent_open_with(&a, json_pack("[s]", "/nothing/there"), "TERM:1");
	json_t *m = agent_start_on(&a, json_pack("[s]", "n1:0"), "fault");
	assert_non_null(strstr(json_string_value(json_object_get(m, "text")), "cannot start /nothing/there"));
	json_decref(m);
	agent_quit(&a);
}

static void test_steps(void **state)
{
	(void)state;
	struct agent a;
	agent_open_with(&a,
	                shell("printf '{\"step\": 7, \"loss\": 0.5, \"tokens\": 12}\\nrubbish\\n{\"st' >&$HSPMD_FD; sleep 0.1;"
	                      "printf 'ep\": 9, \"loss\": NaN, \"lr\": 1e-3}\\n{\"step\": 3, \"again\": true}\\n' >&$HSPMD_FD;"
	                      "sleep 1000"),
	                "TERM:1");
	agent_start_alone(&a);
	json_t *m = agent_next(&a, "step");
	assert_int_equal(json_integer_value(json_object_get(m, "step")), 7);
	assert_true(json_number_value(json_object_get(m, "loss")) == 0.5);
	assert_int_equal(json_integer_value(json_object_get(m, "tokens")), 12);
	json_decref(m);
	m = agent_next(&a, "step");
	assert_int_equal(json_integer_value(json_object_get(m, "step")), 9);
	assert_true(json_is_null(json_object_get(m, "loss")));
	assert_true(json_number_value(json_object_get(m, "lr")) == 1e-3);
	assert_null(json_object_get(m, "again"));
	json_decref(m);
	m = agent_next(&a, "step");
	assert_int_equal(json_integer_value(json_object_get(m, "step")), 3);
	assert_true(json_is_true(json_object_get(m, "again")));
	assert_true(json_number_value(json_object_get(m, "step_s")) == 0);
	json_decref(m);
	/* A controller that was restarted asks. */
	agent_tell(&a, json_pack("{ss,sI}", "type", "query", "generation", (json_int_t)1));
	m = agent_next(&a, "query_reply");
	assert_true(json_is_true(json_object_get(m, "training")));
	assert_int_equal(json_integer_value(json_object_get(m, "holds")), 1);
	json_decref(m);
	agent_quit(&a);
	/* A plan without this device: it holds the state, and runs nothing. */
	agent_open_with(&a, shell("exit 7"), "TERM:1");
	json_decref(agent_start_on(&a, json_pack("[s]", "n0:0"), "started"));
	assert_status(agent_stop(&a), -1, false);
	agent_quit(&a);
}

/* A command that takes changes in its own process: it answers all orders, and notes them. */
static const char elastic[] =
        "exec 8>>\"$HSPMD_CHECKPOINT/orders\"; tell() (echo \"$1\" >&$HSPMD_FD)\n"
        "[ ! -e \"$HSPMD_CHECKPOINT/wait\" ] || echo \"$$ waits\" >&8\n"
        "while [ -e \"$HSPMD_CHECKPOINT/wait\" ]; do :; done\n"
        "tell '{\"type\": \"elastic\"}'\n"
        "while read -r line <&$HSPMD_FD; do\n"
        "    echo \"$$ $line\" >&8\n"
        "    case $line in\n"
        "    *'\"type\":\"start\"'*'\"rank\":2,'*) ;;\n"
        "    *'\"type\":\"start\"'*'\"rank\":3,'*) while :; do :; done ;;\n"
        "    *'\"ping\"'*) tell '{\"type\": \"pong\"}' ;;\n"
        "    *'\"type\":\"start\"'*) tell '{\"type\": \"started\", \"step\": 7, \"bytes\": {\"peers\": 9}, \"seconds\": {}}' ;;\n"
        "    *'\"type\":\"connect\"'*) tell '{\"type\": \"connected\", \"generation\": 2}' ;;\n"
        "    *'\"end\":true'*) exit 85 ;;\n"
        "    *'\"type\":\"stop\"'*) tell '{\"type\": \"stopped\", \"step\": 8, \"losses\": [[7, 0.5]]}' ;;\n"
        "    *'\"type\":\"abort\"'*) tell '{\"type\": \"aborted\", \"step\": 8, \"holds\": 2, \"ready\": 8, \"sums\": [1], \"losses\": "
        "[]}' ;;\n"
        "    *'\"type\":\"settle\"'*) tell '{\"type\": \"settled\", \"step\": 9, \"losses\": []}' ;;\n"
        "    esac\n"
        "done";

static void open_elastic(struct agent *a)
{
	char *path = hspmd_asprintf("%s/checkpoint/orders", agent_folder);
	unlink(path);
	free(path);
	agent_open_with(a, shell(elastic), "TERM:60");
}

/* The number of the process that was told `part` last, in the last line. */
static pid_t told(const char *part)
{
	char *all = contents("checkpoint/orders"), *line = all, *end = all + strlen(all) - 1;
	*end = '\0';
	if (strrchr(all, '\n'))
		line = strrchr(all, '\n') + 1;
	if (!strstr(line, part))
		fail_msg("expected %s, told %s", part, line);
	pid_t pid = atoi(line);
	free(all);
	return pid;
}

static void assert_number(json_t *m, const char *key, int value)
{
	json_t *v = json_object_get(m, key);
	if (!json_is_integer(v) || json_integer_value(v) != value)
		fail_msg("%s: %s is not %d", json_string_value(json_object_get(m, "type")), key, value);
}

/* One process through a stop, a change, an abort and the next change. */
static void test_elastic(void **state)
{
	(void)state;
	struct agent a;
	open_elastic(&a);
	agent_start_alone(&a);
	agent_expect(&a, "elastic");
	json_t *m = agent_stop(&a);
	assert_number(m, "step", 8);
	assert_int_equal(json_array_size(json_object_get(m, "losses")), 1);
	assert_null(json_object_get(m, "status"));
	json_decref(m);
	pid_t pid = told("\"stop\"");
	m = agent_start_on(&a, json_pack("[ss]", "n0:0", "n1:0"), "started");
	assert_number(m, "step", 7);
	assert_number(json_object_get(m, "bytes"), "peers", 9);
	json_decref(m);
	assert_int_equal(told("\"rank\":1,\"world\":2,"), pid);
	told("\"member\":1,\"members\":2,\"host\":\"10.0.0.7\",\"port\":4711,");
	agent_tell(&a, json_pack("{ss,sI}", "type", "abort", "generation", (json_int_t)2));
	m = agent_next(&a, "aborted");
	assert_number(m, "holds", 2);
	assert_number(m, "ready", 8);
	json_decref(m);
	agent_tell(&a, json_pack("{ss,sI,si,s[i]}", "type", "settle", "generation", (json_int_t)2, "apply", 8, "sums", 1));
	m = agent_next(&a, "settled");
	assert_number(m, "step", 9);
	json_decref(m);
	assert_int_equal(told("\"apply\":8"), pid);
	/* It dies: another is made ready beside training, and holds nothing before it has started. */
	json_decref(agent_start_on(&a, json_pack("[s]", "n1:0"), "started"));
	kill(pid, SIGKILL);
	json_decref(agent_next(&a, "fault"));
	agent_tell(&a, json_pack("{ss,sI}", "type", "abort", "generation", (json_int_t)3));
	m = agent_next(&a, "aborted");
	assert_true(json_is_null(json_object_get(m, "holds")));
	json_decref(m);
	agent_tell(&a, json_pack("{ss,sI,s{s[{s[{s[s]}]}]},s[s]}", "type", "prepare", "generation", (json_int_t)4, "plan", "pipelines",
	                         "stages", "devices", "n1:0", "members", "n1:0"));
	agent_expect(&a, "elastic");
	agent_expect(&a, "prepared");
	/* At the end of the job's time it saves, and ends. */
	a.generation = 4;
	json_decref(agent_start_on(&a, json_pack("[s]", "n1:0"), "started"));
	assert_int_not_equal(told("\"start\""), pid);
	agent_tell(&a, json_pack("{ss,sI,sb}", "type", "stop", "generation", (json_int_t)5, "end", 1));
	assert_status(agent_next(&a, "stopped"), 85, false);
	agent_quit(&a);
}

/* A command that trains is told where the next generation's ranks meet, and says when it has connected; an order for another one is
 * dropped. A stand-in whose command takes no changes does not ask for it. */
static void test_elastic_connects(void **state)
{
	(void)state;
	struct agent a;
	json_t *devices = json_pack("[ss]", "n0:0", "n1:0");
	open_elastic(&a);
	agent_start_alone(&a);
	agent_expect(&a, "elastic");
	json_t *m = agent_prepare(&a, devices);
	assert_true(json_is_true(json_object_get(m, "needs_preconnect")));
	json_decref(m);
	agent_tell_addresses(&a, "preconnect", 1, devices);
	agent_tell_addresses(&a, "preconnect", 2, devices);
	m = agent_next(&a, "preconnected");
	assert_number(m, "generation", 2);
	json_decref(m);
	told("\"type\":\"connect\",\"generation\":2,\"rank\":1,\"world\":2,");
	told("\"member\":1,\"members\":2,\"host\":\"10.0.0.7\",\"port\":4711");
	a.generation = 1; /* the one that trains */
	json_decref(agent_stop(&a));
	agent_tell_addresses(&a, "start", 2, devices);
	json_decref(agent_next(&a, "started"));
	told("\"type\":\"start\",\"generation\":2,\"rank\":1,\"world\":2,");
	agent_quit(&a);
	agent_open_with(&a, shell("while :; do sleep 1; done"), "TERM:60");
	agent_start_alone(&a);
	m = agent_prepare(&a, devices);
	assert_null(json_object_get(m, "needs_preconnect"));
	json_decref(m);
	json_decref(devices);
	agent_quit(&a);
}

static void stop_process(pid_t pid)
{
	char *path = hspmd_asprintf("/proc/%d/stat", (int)pid), state = 0;
	kill(pid, SIGSTOP);
	for (double until = hspmd_now() + PATIENCE_S; state != 'T' && hspmd_now() < until; sched_yield()) {
		FILE *f = fopen(path, "r");
		assert_non_null(f);
		assert_int_equal(fscanf(f, "%*d %*s %c", &state), 1);
		fclose(f);
	}
	assert_int_equal(state, 'T');
	free(path);
}

static void write_file(const char *name, int age_s)
{
	char *path = hspmd_asprintf("%s/%s", agent_folder, name);
	FILE *f = fopen(path, "w");
	assert_non_null(f);
	fclose(f);
	struct timespec t[2] = { { 1000000 - age_s, 0 }, { 1000000 - age_s, 0 } };
	assert_int_equal(utimensat(AT_FDCWD, path, t, 0), 0);
	free(path);
}

/* A stand-in answers for its command, unless others wait for the command: it is then asked itself. */
static void test_ping(void **state)
{
	(void)state;
	struct agent a;
	open_elastic(&a);
	agent_start_alone(&a);
	agent_expect(&a, "elastic");
	pid_t pid = told("\"start\"");
	stop_process(pid);
	agent_tell(&a, json_pack("{ss}", "type", "ping"));
	agent_expect(&a, "pong");
	kill(pid, SIGCONT);
	json_decref(agent_stop(&a));
	/* As rank 2 it leaves the start unanswered. */
	agent_order_start(&a, json_pack("[sss]", "n0:0", "n0:1", "n1:0"));
	agent_tell(&a, json_pack("{ss}", "type", "ping"));
	agent_expect(&a, "pong");
	stop_process(pid);
	agent_tell(&a, json_pack("{ss}", "type", "ping"));
	agent_tell(&a, json_pack("{ss,si}", "type", "query", "generation", 2));
	agent_expect(&a, "query_reply");
	kill(pid, SIGCONT);
	agent_expect(&a, "pong");
	agent_tell(&a, json_pack("{ss,sI}", "type", "abort", "generation", (json_int_t)2));
	agent_expect(&a, "aborted");
	/* As rank 3 it works, and does not answer. */
	agent_order_start(&a, json_pack("[ssss]", "n0:0", "n0:1", "n0:2", "n1:0"));
	agent_tell(&a, json_pack("{ss}", "type", "ping"));
	agent_expect(&a, "pong");
	agent_quit(&a);
}

/* One that is made ready for its first generation cannot answer yet, and is taken to live, unless it has been stopped. */
static void test_ping_before_it_is_ready(void **state)
{
	(void)state;
	struct agent a;
	char *wait = hspmd_asprintf("%s/checkpoint/wait", agent_folder);
	open_elastic(&a);
	agent_tell(&a, json_pack("{ss}", "type", "ping"));
	agent_expect(&a, "pong"); /* its folder is there */
	write_file("checkpoint/wait", 0);
	agent_tell(&a, json_pack("{ss,sI,s{s[{s[{s[s]}]}]},s[s],sb}", "type", "prepare", "generation", (json_int_t)1, "plan", "pipelines",
	                         "stages", "devices", "n1:0", "members", "n1:0", "elastic", 1));
	free(contents("checkpoint/orders"));
	pid_t pid = told("waits");
	agent_tell(&a, json_pack("{ss}", "type", "ping"));
	agent_expect(&a, "pong");
	stop_process(pid);
	agent_tell(&a, json_pack("{ss}", "type", "ping"));
	agent_tell(&a, json_pack("{ss,si}", "type", "query", "generation", 1));
	agent_expect(&a, "query_reply");
	kill(pid, SIGCONT);
	agent_expect(&a, "pong");
	unlink(wait);
	free(wait);
	agent_expect(&a, "elastic");
	agent_expect(&a, "prepared");
	agent_quit(&a);
}

static void test_newest(void **state)
{
	(void)state;
	char *at = hspmd_asprintf("%s/saves", agent_folder), *deep = hspmd_asprintf("%s/step-2", at), *path;
	assert_int_equal(hspmd_newest_save(at, &path), -1);
	assert_null(path);
	mkdir(at, 0700);
	mkdir(deep, 0700);
	assert_int_equal(hspmd_newest_save(at, &path), -1);
	write_file("saves/step-1", 9);
	write_file("saves/step-2/shard", 5);
	write_file("saves/step-3.tmp", 1);
	write_file("saves/.hidden", 1);
	assert_int_equal(hspmd_newest_save(at, &path), (int64_t)(1000000 - 5) * 1000000000);
	assert_string_equal(path, deep);
	free(path), free(at), free(deep);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_environment),
		cmocka_unit_test(test_newest),
		cmocka_unit_test(test_told_and_finished),
		cmocka_unit_test(test_notice),
		cmocka_unit_test(test_whole_tree),
		cmocka_unit_test(test_failures),
		cmocka_unit_test(test_steps),
		cmocka_unit_test(test_elastic),
		cmocka_unit_test(test_elastic_connects),
		cmocka_unit_test(test_ping),
		cmocka_unit_test(test_ping_before_it_is_ready),
	};
	return cmocka_run_group_tests(tests, agent_make_folder, agent_drop_folder);
}
