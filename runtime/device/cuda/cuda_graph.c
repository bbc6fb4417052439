/* SPDX-License-Identifier: Apache-2.0 */
/* Captures work on the device's stream as a CUDA graph: one launch instead of one per kernel. */
#include "runtime/device/cuda/cuda_graph.h"

#include <stdlib.h>

struct hspmd_device_graph {
	cudaGraphExec_t graph;
	int last_beside; /* the last group that it runs (run_beside); -1: none */
};

int hspmd_cuda_capture_begin(struct hspmd_cuda *cuda, struct hspmd_error *err)
{
	/* Captures only this thread's calls: other threads may allocate and measure for the next program meanwhile. */
	cudaError_t status = cudaStreamBeginCapture(cuda->stream, cudaStreamCaptureModeThreadLocal);
	return status ? hspmd_cuda_failed(status, "recording", err) : 0;
}

int hspmd_cuda_capture_end(struct hspmd_cuda *cuda, struct hspmd_device_graph **captured, struct hspmd_error *err)
{
	cudaGraph_t graph = NULL;
	struct hspmd_device_graph *r = calloc(1, sizeof *r);
	cudaError_t status = cudaStreamEndCapture(cuda->stream, &graph);
	if (!status && r)
		status = cudaGraphInstantiateWithFlags(&r->graph, graph, 0);
	if (graph)
		cudaGraphDestroy(graph);
	if (!status && r) {
		r->last_beside = cuda->captured_beside;
		*captured = r;
		return 0;
	}
	cudaGetLastError(); /* so that the next launch does not report this error */
	free(r);
	return status ? hspmd_cuda_failed(status, "recording", err) : hspmd_fail_memory(err, "recording");
}

int hspmd_cuda_graph_replay(struct hspmd_cuda *cuda, const struct hspmd_device_graph *captured, struct hspmd_error *err)
{
	cudaError_t status = cudaGraphLaunch(captured->graph, cuda->stream);
	return status ? hspmd_cuda_failed(status, "starting what was recorded", err) : 0;
}

/* The end of each group is recorded by the graph; that of the last one, which hosts wait for, once more behind it. */
int hspmd_cuda_graph_replay_beside(struct hspmd_cuda *cuda, const struct hspmd_device_graph *captured, cudaStream_t stream,
                                   struct hspmd_error *err)
{
	cudaError_t status = cudaGraphLaunch(captured->graph, stream);
	if (!status && captured->last_beside >= 0)
		status = cudaEventRecord(cuda->done[captured->last_beside], stream);
	if (captured->last_beside >= 0)
		__atomic_store_n(&cuda->last_beside, captured->last_beside, __ATOMIC_RELEASE);
	return status ? hspmd_cuda_failed(status, "starting what was recorded", err) : 0;
}

void hspmd_cuda_graph_free(struct hspmd_cuda *cuda, struct hspmd_device_graph *captured)
{
	if (!captured)
		return;
	hspmd_cuda_stream_wait(cuda, NULL);
	cudaGraphExecDestroy(captured->graph);
	free(captured);
}
