/* SPDX-License-Identifier: Apache-2.0 */
/* Two real workers, on nodes n and o, between each other and a test, which speaks for controller and agent. A message that does not come,
 * or another one, fails the test. */
#ifndef HSPMD_TESTS_WORKER_SCENE_H
#define HSPMD_TESTS_WORKER_SCENE_H

#include <stdbool.h>
#include <sys/types.h>

#include "common/wire.h"

#define WAIT_S 60
#define STEPS 8

extern char folder[]; /* removed at the end */
extern const char cluster_text[];

struct peer {
	int fd;
	pid_t pid;
	struct hspmd_wire_reader *reader;
};

struct scene {
	struct peer peer[2];
	double loss[STEPS]; /* as reported; 0: not yet */
};

enum { AS_PREPARED = -2, INITIALISED = -1 };

void tell(struct peer *p, json_t *m);
/* The next message except `step` and `heartbeat`, which must be of type `want`. Keeps the losses of steps. */
json_t *next(struct scene *s, int d, const char *want);
void expect(struct scene *s, int d, const char *type);
/* Expects a message in which the number `key` has this value; null: -1. */
void expect_number(struct scene *s, int d, const char *type, const char *key, int value);
void expect_fault(struct scene *s, int d, const char *words);
void tell_number(struct scene *s, int d, const char *type, int generation);
void start_worker(struct scene *s, int d);
json_t *job_message(int d);
void end_worker(struct scene *s, int d, int expected);
void open_scene(struct scene *s);
void quit(struct scene *s, int d);
/* Two pipelines of one device each, or with stages: one pipeline of two. */
json_t *plan_of(bool stages);
/* `live` of messages: both hold the state under that kind of plan. */
json_t *live_under(bool stages);
/* live: who is expected to hold the state; NULL: not known. */
void tell_prepare(struct scene *s, int d, int generation, bool stages, json_t *live);
/* Both prepare. Takes `live` over. Returns their addresses. */
json_t *prepare_expecting(struct scene *s, int generation, bool stages, json_t *live);
json_t *prepare(struct scene *s, int generation, bool stages);
/* from_stages: the kind of plan under which both hold the state; or AS_PREPARED, or INITIALISED. */
void tell_start(struct scene *s, int d, int generation, json_t *addresses, int step, int from_stages);
/* Returns whether the workers planned moves when they started. */
bool start(struct scene *s, int generation, json_t *addresses, int step, int from_stages);
/* While the file exists, workers wait after each step for messages. */
void hold_steps(bool hold);
void expect_pong(struct scene *s, int d);

/* For cmocka: create the folder, remove it. */
int worker_scene_make(void **state);
int worker_scene_remove(void **state);

#endif
