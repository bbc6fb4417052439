/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs: work of streams that is recorded, and launched again. See cuda_runtime.h. */
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/emulate/streams.h"

bool is_early()
{
	const char *how = getenv("HSPMD_EMULATE_STREAMS");
	return how && !strcmp(how, "early");
}

/* One launch of a graph: how far each branch is, and which inner events are reached. */
struct launch {
	std::shared_ptr<struct recording> of;
	std::vector<size_t> at;
	std::vector<bool> reached;

	explicit launch(const std::shared_ptr<struct recording> &of) : of(of), at(of->branches.size()), reached(of->recorded_by.size())
	{
	}

	/* Does a branch's work, until it has reached this inner event, or (-1) until it waits for one that is not reached. */
	void advance(size_t branch, int until)
	{
		const std::vector<captured_work> &all = of->branches[branch].work;
		while (at[branch] < all.size() && (until < 0 || !reached[(size_t)until])) {
			const captured_work &next = all[at[branch]];
			if (next.inner >= 0 && !next.records && !reached[(size_t)next.inner])
				break;
			at[branch]++;
			carry(next);
		}
	}

	void carry(const captured_work &next)
	{
		if (next.inner < 0) {
			next.run();
			return;
		}
		size_t owner = of->recorded_by[(size_t)next.inner];
		if (next.records)
			reached[(size_t)next.inner] = true;
		for (size_t b = 1; next.records && is_early() && b < of->branches.size(); b++)
			advance(b, -1);
		if (!next.records && !reached[(size_t)next.inner])
			advance(owner, next.inner);
		if (!next.records && !reached[(size_t)next.inner])
			emulate_end("branches of a graph wait for each other");
	}
};

/* Asks a stream for the pieces of a graph's own stream up to a record of an event (NULL: its last ones). */
static void enqueue_piece(emulate_stream *stream, const std::shared_ptr<launch> &of, std::vector<captured_work> *piece,
                          const std::shared_ptr<event_state> &event, uint64_t number)
{
	auto all = std::make_shared<std::vector<captured_work>>(std::move(*piece));
	piece->clear();
	enqueue(stream, work{ [=] {
				     for (const auto &each : *all)
					     of->carry(each);
			     },
			     event, number });
}

/* Returns true if the recording's own stream waits for the last work of all branches. */
static bool is_joined(const struct recording &r)
{
	for (size_t b = 1; b < r.branches.size(); b++) {
		const captured_work *last = r.branches[b].work.empty() ? nullptr : &r.branches[b].work.back();
		bool waited = false;
		for (const captured_work &each : r.branches[0].work)
			waited |= last && last->inner >= 0 && last->records && !each.records && each.inner == last->inner;
		if (!waited)
			return false;
	}
	return true;
}

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode)
{
	if (stream->recording)
		return cudaErrorInvalidValue;
	stream->recording = std::make_shared<struct recording>();
	stream->recording->branches.push_back({ stream, {} });
	stream->branch = 0;
	return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
	*graph = nullptr;
	std::shared_ptr<struct recording> r = stream->recording;
	if (!r || stream->branch)
		return cudaErrorInvalidValue;
	r->open = false;
	for (auto &each : r->branches) {
		each.stream->recording = nullptr;
		each.stream->branch = 0;
	}
	if (!is_joined(*r))
		return cudaErrorInvalidValue;
	*graph = new emulate_graph;
	(*graph)->of = r;
	return cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long)
{
	count(EMULATE_GRAPHS);
	*exec = new emulate_graph(*graph);
	return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
	emulate_own own;
	std::vector<captured_work> piece;
	auto launched = std::make_shared<launch>(exec->of);
	stream->computes = true;
	count(EMULATE_ASKED);
	for (const auto &each : exec->of->branches[0].work) {
		if (each.event && !each.records) {
			piece.push_back({ wait_for_record(stream, each.event), nullptr, false, -1 });
			continue;
		}
		if (each.run || each.inner >= 0)
			piece.push_back(each);
		if (!each.event)
			continue;
		uint64_t number = next_record(each.event, stream);
		enqueue_piece(stream, launched, &piece, each.event, number);
	}
	enqueue_piece(stream, launched, &piece, nullptr, 0);
	return kernel_error;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
	delete exec;
	return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
	delete graph;
	return cudaSuccess;
}
}
