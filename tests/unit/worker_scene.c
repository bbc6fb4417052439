/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/worker_scene.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/worker/worker.h"

char folder[] = "/tmp/hspmd-worker.XXXXXX";
static char corpus[64], pace[64];

static const char model_text[] = "{\"model_type\":\"gpt2\",\"n_embd\":16,\"n_layer\":1,\"n_head\":2,\"n_positions\":8,\"vocab_size\":256,"
                                 "\"resid_pdrop\":0,\"embd_pdrop\":0,\"attn_pdrop\":0}";
const char cluster_text[] =
        "{\"format\":\"hspmd-cluster-1\",\"device_types\":{\"c\":{\"kind\":\"cpu\",\"memory_bytes\":1000000000,\"gbytes_per_s\":10,"
        "\"peak_tflops\":{\"fp32\":0.01}}},\"nodes\":[{\"name\":\"n\",\"devices\":[{\"type\":\"c\",\"count\":1}]},"
        "{\"name\":\"o\",\"devices\":[{\"type\":\"c\",\"count\":1}]}],"
        "\"links\":[{\"scope\":\"cluster\",\"alpha_s\":1e-6,\"gbytes_per_s\":5}]}";

void tell(struct peer *p, json_t *m)
{
	struct hspmd_error err;
	assert_non_null(m);
	assert_int_equal(hspmd_wire_send(p->fd, m, WAIT_S, &err), 0);
	json_decref(m);
}

json_t *next(struct scene *s, int d, const char *want)
{
	for (;;) {
		struct hspmd_error err = { "" };
		json_t *m;
		if (hspmd_wire_receive(s->peer[d].fd, s->peer[d].reader, WAIT_S, &m, &err) != 1)
			fail_msg("device %d, waiting for %s: %s", d, want, err.text);
		const char *type = json_string_value(json_object_get(m, "type"));
		bool step = !strcmp(type, "step");
		if (step)
			s->loss[json_integer_value(json_object_get(m, "step"))] = json_number_value(json_object_get(m, "loss"));
		if (!strcmp(type, want))
			return m;
		if (!step && strcmp(type, "heartbeat") != 0 && strcmp(type, "preconnected") != 0) {
			char *text = json_dumps(m, 0);
			fail_msg("device %d, waiting for %s, got %s", d, want, text);
		}
		json_decref(m);
	}
}

void expect(struct scene *s, int d, const char *type)
{
	json_decref(next(s, d, type));
}

void expect_number(struct scene *s, int d, const char *type, const char *key, int value)
{
	json_t *m = next(s, d, type), *got = json_object_get(m, key);
	assert_non_null(got);
	assert_int_equal(json_is_null(got) ? -1 : json_integer_value(got), value);
	json_decref(m);
}

void expect_fault(struct scene *s, int d, const char *words)
{
	json_t *m = next(s, d, "fault");
	const char *text = json_string_value(json_object_get(m, "text"));
	if (!strstr(text, words))
		fail_msg("device %d: fault \"%s\", expected \"%s\"", d, text, words);
	json_decref(m);
}

void tell_number(struct scene *s, int d, const char *type, int generation)
{
	tell(&s->peer[d], json_pack("{ss,si}", "type", type, "generation", generation));
}

void start_worker(struct scene *s, int d)
{
	int ends[2];
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
	struct peer *p = &s->peer[d];
	p->pid = fork();
	assert_true(p->pid >= 0);
	if (!p->pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(ends[0]);
		for (int k = 0; k < 2; k++)
			if (k != d && s->peer[k].pid)
				close(s->peer[k].fd);
		_exit(hspmd_worker_main(ends[1]));
	}
	close(ends[1]);
	p->fd = ends[0];
	p->reader = hspmd_wire_reader_create(HSPMD_WIRE_MAX);
	expect_number(s, d, "hello", "pid", p->pid);
}

json_t *job_message(int d)
{
	const char *device = d ? "o:0" : "n:0";
	json_t *job = json_pack("{ss,ss,ss,s{s[s],ss},si,si,si,si,s{ss,sf}}", "format", "hspmd-job-1", "model", "/none", "init", "random",
	                        "data", "train", corpus, "kind", "bytes", "seq_len", 8, "global_batch", 4, "steps", STEPS, "seed", 5,
	                        "optimizer", "type", "adamw", "lr", 1e-2);
	return json_pack("{ss,so,so,ss,ss,ss,ss,ss,sf}", "type", "job", "job", job, "model", json_loads(model_text, 0, NULL), "output",
	                 folder, "node", d ? "o" : "n", "device", device, "kind", "cpu", "transport", "socket", "timeout_s",
	                 (double)WAIT_S);
}

void end_worker(struct scene *s, int d, int expected)
{
	int status;
	close(s->peer[d].fd);
	assert_int_equal(waitpid(s->peer[d].pid, &status, 0), s->peer[d].pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), expected);
	hspmd_wire_reader_destroy(s->peer[d].reader);
}

void open_scene(struct scene *s)
{
	*s = (struct scene){ 0 };
	for (int d = 0; d < 2; d++)
		start_worker(s, d);
	for (int d = 0; d < 2; d++)
		tell(&s->peer[d], job_message(d));
}

void quit(struct scene *s, int d)
{
	tell(&s->peer[d], json_pack("{ss}", "type", "quit"));
	end_worker(s, d, 0);
}

/* ---- generations */

json_t *plan_of(bool stages)
{
	json_t *pipelines = stages ? json_pack("[{si,s[{s[ii],s[s]},{s[ii],s[s]}]}]", "micro_batches", 4, "stages", "layers", 0, 2,
	                                       "devices", "n:0", "layers", 2, 3, "devices", "o:0")
	                           : json_pack("[{si,s[{s[ii],s[s]}]},{si,s[{s[ii],s[s]}]}]", "micro_batches", 2, "stages", "layers", 0, 3,
	                                       "devices", "n:0", "micro_batches", 2, "stages", "layers", 0, 3, "devices", "o:0");
	return json_pack("{ss,si,si,si,ss,si,so}", "format", "hspmd-plan-1", "global_batch", 4, "micro_batch", 1, "seq_len", 8, "schedule",
	                 "1f1b", "zero_stage", 0, "pipelines", pipelines);
}

json_t *live_under(bool stages)
{
	return json_pack("[{so,so,s[ss]}]", "cluster", json_loads(cluster_text, 0, NULL), "plan", plan_of(stages), "holders", "n:0", "o:0");
}

void tell_prepare(struct scene *s, int d, int generation, bool stages, json_t *live)
{
	tell(&s->peer[d], json_pack("{ss,si,so,so,s[ss],sO*}", "type", "prepare", "generation", generation, "cluster",
	                            json_loads(cluster_text, 0, NULL), "plan", plan_of(stages), "members", "n:0", "o:0", "live", live));
}

json_t *prepare_expecting(struct scene *s, int generation, bool stages, json_t *live)
{
	json_t *addresses = json_object();
	for (int d = 0; d < 2; d++)
		tell_prepare(s, d, generation, stages, live);
	json_decref(live);
	for (int d = 0; d < 2; d++) {
		json_t *m = next(s, d, "prepared");
		assert_int_equal(json_integer_value(json_object_get(m, "generation")), generation);
		json_object_set(addresses, d ? "o:0" : "n:0", json_object_get(m, "address"));
		json_decref(m);
	}
	return addresses;
}

json_t *prepare(struct scene *s, int generation, bool stages)
{
	return prepare_expecting(s, generation, stages, NULL);
}

void tell_start(struct scene *s, int d, int generation, json_t *addresses, int step, int from_stages)
{
	json_t *state = from_stages == INITIALISED   ? json_pack("{sb}", "init", 1)
	                : from_stages == AS_PREPARED ? json_pack("{sb}", "live", 1)
	                                             : json_pack("{so}", "live", live_under(from_stages));
	tell(&s->peer[d], json_pack("{ss,si,sO,si,so}", "type", "start", "generation", generation, "addresses", addresses, "step", step,
	                            "state", state));
}

bool start(struct scene *s, int generation, json_t *addresses, int step, int from_stages)
{
	bool planned[2];
	for (int d = 0; d < 2; d++)
		tell_start(s, d, generation, addresses, step, from_stages);
	for (int d = 0; d < 2; d++) {
		json_t *m = next(s, d, "started");
		assert_int_equal(json_integer_value(json_object_get(m, "step")), step);
		planned[d] = json_number_value(json_object_get(json_object_get(m, "seconds"), "plan")) > 0;
		json_decref(m);
	}
	assert_int_equal(planned[0], planned[1]);
	json_decref(addresses);
	return planned[0];
}

void hold_steps(bool hold)
{
	unlink(pace);
	if (!hold)
		return;
	FILE *f = fopen(pace, "w");
	assert_non_null(f);
	fputs("3000", f);
	assert_int_equal(fclose(f), 0);
}

void expect_pong(struct scene *s, int d)
{
	tell(&s->peer[d], json_pack("{ss}", "type", "ping"));
	expect(s, d, "pong");
}

int worker_scene_make(void **state)
{
	(void)state;
	if (!mkdtemp(folder))
		return -1;
	snprintf(corpus, sizeof corpus, "%s/corpus", folder);
	snprintf(pace, sizeof pace, "%s/pace", folder);
	FILE *f = fopen(corpus, "w");
	for (int i = 0; f && i < 4000; i++)
		fputc('a' + i * i % 23, f);
	return !f || fclose(f) || setenv("HSPMD_TEST_STEP_S", pace, 1);
}

int worker_scene_remove(void **state)
{
	(void)state;
	char command[128];
	snprintf(command, sizeof command, "rm -rf '%s'", folder);
	return system(command);
}
