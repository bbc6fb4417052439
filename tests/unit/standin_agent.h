/* SPDX-License-Identifier: Apache-2.0 */
/* For tests of stand-ins: an agent that starts one and speaks with it. The test fails if an answer is another than expected, or is late. */
#ifndef HSPMD_TESTS_STANDIN_AGENT_H
#define HSPMD_TESTS_STANDIN_AGENT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/wire.h"

#define PATIENCE_S 60

struct agent {
	int fd;
	pid_t pid;
	struct hspmd_wire_reader *reader;
	int64_t generation;
};

/* Made before a group of tests, and removed after it. */
extern char agent_folder[];
int agent_make_folder(void **state);
int agent_drop_folder(void **state);
extern struct hspmd_error agent_err;
extern bool agent_is_warm;
void agent_tell(struct agent *a, json_t *m);
/* The next message that is no `step`, unless steps are asked for. */
json_t *agent_next(struct agent *a, const char *type);
void agent_expect(struct agent *a, const char *type);
json_t *shell(const char *script);
/* Starts a stand-in for n1:0 with this command. */
void agent_open_with(struct agent *a, json_t *command, const char *notice);
/* Prepares the next generation, of these devices. Returns the answer. */
json_t *agent_prepare(struct agent *a, json_t *devices);
/* `start` or `preconnect` of a generation whose ranks meet at 10.0.0.7:4711. */
void agent_tell_addresses(struct agent *a, const char *type, int64_t generation, json_t *devices);
/* The next generation, of these devices: is prepared, and ordered to start. */
void agent_order_start(struct agent *a, json_t *devices);
/* The same; returns when it runs, or cannot (`answer`). */
json_t *agent_start_on(struct agent *a, json_t *devices, const char *answer);
void agent_start(struct agent *a);
/* As the only rank. */
void agent_start_alone(struct agent *a);
json_t *agent_stop(struct agent *a);
void agent_wait_end(struct agent *a);
void agent_quit(struct agent *a);
/* Contents of a file in the folder, once it is there and ends with a line. */
char *contents(const char *name);
pid_t pid_in(const char *name);
void assert_gone(const char *name);
void assert_status(json_t *m, int status, bool finished);

#endif
