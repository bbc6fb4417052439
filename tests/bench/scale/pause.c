/* SPDX-License-Identifier: Apache-2.0 */
/* How long a large job is expected to pause when one of its pipelines leaves, planned or lost, on a real cluster: what passes through the
 * controller while no step runs, the processor time of its frames as measured here (written, signed, read), and each worker's moves of
 * state at the rates of the cluster's links. Every frame is made; moves are planned for all workers of some nodes. Not in it: the
 * controller's own decisions, which the played cluster measures; solving and preparing, which a planned change does before the pause; and
 * the first step.
 *
 *     pause [DEVICES...] */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/bench/scale/change.h"
#include "tests/bench/scale/frames.h"

#define NODE_DEVICES 8
#define NODES_SAMPLED 4

/* A node's part of what all are told. */
static json_t *told(const char *type)
{
	return json_pack("{s:s, s:i, s:[s,s,s,s,s,s,s,s], s:i, s:{s:b}}", "type", type, "generation", 12, "to", "node-1000:0",
	                 "node-1000:1", "node-1000:2", "node-1000:3", "node-1000:4", "node-1000:5", "node-1000:6", "node-1000:7", "step",
	                 123456, "state", "live", 1);
}

static json_t *answered(const char *type)
{
	return json_pack("{s:s, s:s, s:i, s:i, s:i, s:[[i,f],[i,f]]}", "type", type, "from", "node-1000:7", "generation", 12, "step",
	                 123456, "holds", 11, "losses", 123454, 2.718281828459045, 123455, 2.718281828459045);
}

static int control(int devices, bool planned, struct scale_control *c, struct hspmd_error *err)
{
	static const char *const told_planned[] = { "stop", "start" }, *const answers_planned[] = { "stopped", "started" };
	static const char *const told_lost[] = { "abort", "settle", "start" }, *const answers_lost[] = { "aborted", "settled", "started" };
	*c = (struct scale_control){ .rounds = planned ? 2 : 3 };
	for (int i = 0; i < c->rounds; i++)
		if (scale_pass(c, devices / NODE_DEVICES, told((planned ? told_planned : told_lost)[i]), true, err) ||
		    scale_pass(c, devices, answered((planned ? answers_planned : answers_lost)[i]), false, err))
			return -1;
	return 0;
}

/* Moves of the sampled nodes' workers. */
struct moved {
	double bytes, most_s; /* received by one worker on average; the slowest, alone on its links */
	double node_s;        /* of the node that receives most, if its workers share one worker's link */
};

static int survey(const struct scale_change *c, int devices, struct moved *out, struct hspmd_error *err)
{
	int nodes = devices / NODE_DEVICES, sampled = nodes < NODES_SAMPLED ? nodes : NODES_SAMPLED;
	struct hspmd_link_cost cost = hspmd_link_cost_of_cluster(c->before.cluster);
	*out = (struct moved){ 0 };
	for (int k = 0; k < sampled; k++) {
		double together = 0;
		for (int d = 0; d < NODE_DEVICES; d++) {
			int self = (int)((long)k * (nodes - 1) / (sampled > 1 ? sampled - 1 : 1)) * NODE_DEVICES + d;
			struct hspmd_planned_move *moves;
			size_t count;
			double seconds = 0;
			if (scale_change_moves(c, self, &moves, &count, err))
				return -1;
			for (size_t i = 0; i < count; i++) {
				double bytes = 4.0 * (double)hspmd_box_elements(&moves[i].box);
				if (moves[i].to != self || moves[i].from == self)
					continue;
				out->bytes += bytes / (sampled * NODE_DEVICES);
				seconds += cost.seconds(cost.context, moves[i].from, self, bytes);
			}
			free(moves);
			together += seconds;
			out->most_s = seconds > out->most_s ? seconds : out->most_s;
		}
		out->node_s = together > out->node_s ? together : out->node_s;
	}
	return 0;
}

static int report(int devices)
{
	struct hspmd_error err = { "" };
	struct scale_change c;
	struct scale_control planned, lost;
	struct moved moved;
	int left = devices - SCALE_STAGE_DEVICES;
	int status = scale_change_create(devices, true, SCALE_ALIKE, &c, &err) || scale_change_lay_out(&c, &err) ||
	             survey(&c, left, &moved, &err) || control(left, true, &planned, &err) || control(left, false, &lost, &err);
	if (status) {
		printf("%d devices: %s\n", devices, err.text);
	} else {
		const struct hspmd_link_cost cost = hspmd_link_cost_of_cluster(c.before.cluster);
		double hop = cost.seconds(cost.context, 0, devices - 1, 0);
		printf("| %d | %.2f MB, %.3f s | %.2f MB, %.3f s | %.1f GB | %.2f to %.2f s | %.2f s | %.2f s |\n", devices,
		       planned.bytes / 1e6, planned.processor_s, lost.bytes / 1e6, lost.processor_s, moved.bytes * left / 1e9, moved.most_s,
		       moved.node_s, planned.processor_s + 2 * planned.rounds * hop + moved.node_s,
		       lost.processor_s + 2 * lost.rounds * hop + moved.node_s);
	}
	fflush(stdout);
	scale_change_clear(&c);
	return status != 0;
}

int main(int argc, char **argv)
{
	static char *sizes[] = { "128", "256", "1024", "4096", "10240" };
	int failed = 0, count = argc > 1 ? argc - 1 : 5;
	char **size = argc > 1 ? argv + 1 : sizes;
	printf("| devices | through the controller, planned | lost | moved in all | a worker's moves, a node's | pause, planned | lost |\n"
	       "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n");
	fflush(stdout);
	for (int i = 0; i < count; i++) {
		pid_t child = fork();
		int status = 1;
		if (child == 0)
			_exit(report(atoi(size[i])));
		if (child < 0 || waitpid(child, &status, 0) < 0)
			perror("pause");
		failed |= status != 0;
	}
	return failed;
}
