/* SPDX-License-Identifier: Apache-2.0 */
/* Streams, events and what is recorded of them: shared by runtime.cc and graphs.cc. */
#ifndef EMULATE_STREAMS_H
#define EMULATE_STREAMS_H

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "tests/gpu/emulate/counts.h"
#include "tests/gpu/emulate/cuda_runtime.h"

/* Counts the records of an event. Whoever waits keeps this state alive independently of the event, because CUDA allows an event to be
 * destroyed before its work is complete. */
struct recording;
struct event_state {
	std::mutex lock;
	std::condition_variable changed;
	emulate_stream *stream = nullptr; /* the stream that last recorded it; NULL: none */
	uint64_t recorded = 0;
	std::atomic<uint64_t> reached{ 0 };
	double at = 0;
	std::shared_ptr<struct recording> within; /* the recording whose stream recorded it last; NULL: none */
	int inner = -1;                           /* its number there */
};

struct work {
	std::function<void()> run;
	std::shared_ptr<event_state> event; /* NULL: none */
	uint64_t number;
};

/* A piece of captured work: something to run, or an event to record or to wait for. Which record of the event that is, each launch decides
 * when it is asked for; `inner` events are those of the recording itself. */
struct captured_work {
	std::function<void()> run;
	std::shared_ptr<event_state> event; /* NULL: none */
	bool records;
	int inner; /* the number of an event of the recording, which this records or waits for; -1: none */
};

/* What is recorded: the work of the stream that was told to, and of those that became its branches. */
struct recording {
	struct branch {
		emulate_stream *stream;
		std::vector<captured_work> work;
	};
	std::vector<branch> branches;
	std::vector<size_t> recorded_by; /* per inner event: the branch */
	bool open = true;
};

/* Captured work, shared by the graph, its executable and its launches. */
struct emulate_graph {
	std::shared_ptr<struct recording> of = std::make_shared<struct recording>();
};

struct emulate_stream {
	std::shared_ptr<struct recording> recording; /* NULL: work is queued normally, not captured */
	size_t branch = 0;                           /* of the recording */
	std::mutex lock;
	std::condition_variable changed;
	std::deque<work> waiting;
	std::atomic<bool> computes{ false };  /* true if it does more than copies */
	bool working = false, ending = false; /* working: a piece of work was taken and is not complete */
	bool early = false;                   /* with HSPMD_EMULATE_STREAMS=early: it does its work when it is asked for it */
	std::thread worker;                   /* with HSPMD_EMULATE_EAGER=1 */
};

struct emulate_event {
	std::shared_ptr<event_state> state = std::make_shared<event_state>();
};

/* The error of a kernel; after it, as on a GPU, nothing that the process asks of the device is done, and everything answers with it. */
extern std::atomic<cudaError_t> kernel_error;

void count(enum emulate_count what);
/* Returns true if HSPMD_EMULATE_STREAMS=early. */
bool is_early();
void enqueue(emulate_stream *s, work w);
/* What has been recorded of a stream that is recorded. */
std::vector<captured_work> &captured_by(emulate_stream *s);
/* Notes that a stream is asked to record an event; returns the number of the record. */
uint64_t next_record(const std::shared_ptr<event_state> &state, emulate_stream *stream);
/* The wait of a stream for the record of an event that is the latest now. */
std::function<void()> wait_for_record(emulate_stream *stream, const std::shared_ptr<event_state> &state);

#endif
