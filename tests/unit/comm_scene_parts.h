/* SPDX-License-Identifier: Apache-2.0 */
/* The tensors of a scene's step (comm_scene.h): the scene's own, and others that are joined with it. */
#ifndef TESTS_COMM_SCENE_PARTS_H
#define TESTS_COMM_SCENE_PARTS_H

#include <pthread.h>

#include "runtime/comm/comm.h"
#include "tests/unit/comm_scene.h"

#define SCENE_PARTS 3

/* A step, its inputs and expected outputs. */
struct scene {
	int members;
	int device[SCENE_MEMBERS]; /* of member m; device numbers are not ranks */
	struct hspmd_transfer transfer;
	struct hspmd_layout layout[2];
	struct hspmd_comm_step step;
	struct hspmd_box held_in[SCENE_MEMBERS], held_out[SCENE_MEMBERS]; /* by rank */
	float *in[SCENE_MEMBERS], *out[SCENE_MEMBERS], *want[SCENE_MEMBERS];
	bool in_place;
	int parts; /* tensors whose steps are joined: number k has k + 1 rows for each row of this step, 2^k times its values */
	int repeat;
	struct hspmd_transport *transport[SCENE_MEMBERS];
	struct hspmd_address devcomm[SCENE_MEMBERS];
	pthread_barrier_t everybody;
	atomic_int failed;
	int left_out; /* rank without device-to-device communication; -1: none */
	int directs;
	struct hspmd_error err[SCENE_MEMBERS];
	int rv[SCENE_MEMBERS];
	int sent[SCENE_MEMBERS][SCENE_MEMBERS]; /* number of messages, by rank from and to */
	bool small;                             /* of moves: everything between two members fits in one message */
};

/* One tensor of a step on one rank. */
struct scene_part {
	struct hspmd_comm_step step;
	struct hspmd_transfer transfer;
	struct hspmd_layout layout[2];
	char *in, *out;   /* of the device */
	float *values[3]; /* on the host: input, output before and expected */
	size_t in_bytes, out_bytes;
};

/* The tensor's memory on the device, filled by nobody. 0 or -1. */
int scene_open_part(const struct scene *s, int rank, int number, struct hspmd_device *dev, struct scene_part *p);
/* Frees it; if `check`, compares what has come first. 0, or -1 and err. */
int scene_close_part(const struct scene *s, struct hspmd_device *dev, struct scene_part *p, bool check, struct hspmd_error *err);

#endif
