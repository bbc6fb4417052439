/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the stand-in's files. One thread. */
#ifndef HSPMD_COMMAND_STANDIN_INTERNAL_H
#define HSPMD_COMMAND_STANDIN_INTERNAL_H

#include <jansson.h>

#include "common/format/device_runs.h"
#include "common/format/job.h"
#include "common/stream.h"
#include "runtime/command/placement.h"
#include "runtime/command/rank_output.h"
#include "runtime/command/rank_process.h"
#include "runtime/command/warm.h"

#define STATUS_MORE 85        /* exit status of a command that has saved, and wants to go on */
#define STATUS_SIGNALLED (-1) /* it was ended by a signal, or is not known */
#define STATUS_NOTICED (-2)   /* it was ended by the notice's signal */
#define STEP_LINE_MAX 4096

enum standin_state {
	STANDIN_IDLE,    /* there is no command */
	STANDIN_RUNNING, /* the command runs */
	STANDIN_PAUSED,  /* an elastic command is there, and waits for its next generation, or is being made ready for its first */
	STANDIN_NOTICED, /* it was told to end */
	STANDIN_ENDING,  /* what is left of it is being killed */
};

/* What is answered when nothing of the command is left. */
enum standin_answer { ANSWER_NONE, ANSWER_FINISHED, ANSWER_STOPPED, ANSWER_ABORTED, ANSWER_SETTLED, ANSWER_EXIT };

/* What an elastic command was asked for, and has not answered yet. */
enum standin_debt { DEBT_NONE, DEBT_STARTED, DEBT_STOPPED, DEBT_ABORTED, DEBT_SETTLED };

struct standin {
	struct hspmd_stream *stream;
	int signals; /* signalfd of SIGCHLD */
	bool broken; /* the agent cannot be told anything any more */
	bool over;
	/* the job, from `job` */
	struct hspmd_job *job;
	char *device, *output_folder, *id, *checkpoint; /* checkpoint NULL: none */
	bool gpu;
	int threads;
	/* prepared */
	int64_t prepared; /* generation; 0: none */
	struct hspmd_placement next;
	int next_member;                            /* this device among all members; -1: none */
	int next_members;                           /* their number */
	char next_first[HSPMD_DEVICE_RUNS_ADDRESS]; /* the first of them */
	char address[512];                          /* base64 of HOST:PORT of this rank, in `prepared` */
	int port_socket;                            /* keeps the port; -1: none */
	/* started */
	int64_t generation, step; /* of the last `start`; 0: none yet */
	struct hspmd_placement place;
	enum standin_state state;
	enum standin_answer answer;
	int64_t aborted; /* generation that `aborted` is about */
	struct hspmd_rank_process process;
	struct hspmd_rank_output output;
	struct hspmd_warm warm;
	char *warm_list; /* file with the names of modules */
	int64_t warms;   /* generation that is prepared when the warm interpreter is ready, or by warms_by; 0: none */
	double warms_by;
	int status;       /* of the command, once it has ended */
	bool ended;       /* its status is known */
	bool finished;    /* it ended with 0 or 85 without being told */
	double notice_by; /* STANDIN_NOTICED: when it is killed */
	/* an elastic command (standin_elastic.c) */
	bool elastic_job;      /* some rank of the job has declared itself */
	bool elastic;          /* the command that is there now has */
	int64_t prepare_waits; /* generation that is prepared as soon as the command declares itself; 0: none */
	int64_t holds;         /* generation whose state it holds; 0: none */
	json_t *start_line;    /* the last start, for a command that declares itself after it; NULL: none */
	enum standin_debt debt;
	bool pinged;          /* it was asked whether it lives, and has not answered */
	double pinged_used_s; /* processor time that it had used then */
	/* told steps */
	char line[STEP_LINE_MAX];
	size_t line_used;
	bool line_wrong; /* a wrong line was reported */
	int64_t told_step;
	double told_at;
};

/* A file calls only files that stand above its own lines. */

/* ---- standin_answers.c */
/* A line of the command; numbers that JSON does not have, such as NaN, are texts in it. NULL: not JSON. */
json_t *standin_parse(const char *line);
void standin_send(struct standin *s, json_t *message); /* takes the message over; NULL: out of memory */
json_t *standin_newest(const struct standin *s);
void standin_fault(struct standin *s, int64_t generation, const char *text, json_t *tail);
void standin_answer(struct standin *s); /* s->answer */
void standin_started(struct standin *s);
void standin_prepared(struct standin *s);
void standin_preconnected(struct standin *s, int64_t generation);
void standin_settled(struct standin *s, int64_t generation);
void standin_step(struct standin *s, json_t *told); /* reports it, if this is rank 0 */

/* ---- standin_elastic.c */
/* A line of the command: a told step, or what an elastic command says. */
void standin_line(struct standin *s, const char *line);
void standin_say(struct standin *s, json_t *message); /* to the elastic command; takes it over */
void standin_say_start(struct standin *s, const char *host, int port);
void standin_say_connect(struct standin *s, const char *host, int port); /* for the generation that is prepared */
/* `ping` of the controller: one that owes an answer is asked itself, as others wait for it. */
void standin_ping(struct standin *s);
void standin_ping_again(struct standin *s); /* while it is asked: now and then */

/* ---- standin_command.c */
/* Starts the command for this place: for the generation that begins now (answers `started`), or makes it ready beside training for the one
 * that is prepared (it declares itself later). Answers `fault` if it cannot. */
void standin_launch(struct standin *s, const struct hspmd_placement *place, int64_t generation, const char *host, int port);
/* Opens a warm interpreter for the place that is prepared, if there is none yet. Returns true if `prepared` waits for it: standin_warmed()
 * answers. */
bool standin_warm_up(struct standin *s, const char *host, int port);
void standin_warmed(struct standin *s);
void standin_notice(struct standin *s, double notice_s);
/* Kills what is there, and answers when it is gone. */
void standin_end(struct standin *s, enum standin_answer answer);
void standin_kill_again(struct standin *s); /* STANDIN_ENDING: now and then */
/* To be called when there is something to read, or a child has ended. */
void standin_read_output(struct standin *s);
void standin_read_steps(struct standin *s);
void standin_reap(struct standin *s);

/* ---- standin_messages.c */
void standin_receive(struct standin *s, json_t *message);

#endif
