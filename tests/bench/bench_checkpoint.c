/* SPDX-License-Identifier: Apache-2.0 */
/* Cost of a checkpoint: bench_checkpoint FOLDER MEGABYTES. A thread that adds numbers emulates training. Prints how long the thread was
 * blocked, how fast the shard was written to the disk, and how much of the thread's work was lost meanwhile. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/durable.h"
#include "runtime/state/checkpoint.h"

#define SLICES 64

/* Units of work in about a second. */
static double work(double seconds, struct hspmd_writer *w, double *units_s)
{
	static volatile float sink;
	double start = hspmd_now(), units = 0;
	while (hspmd_now() - start < seconds && (!w || hspmd_writer_busy(w))) {
		float a = 0;
		for (int i = 0; i < 1000000; i++)
			a += (float)i * 1e-3f;
		sink = a;
		units++;
	}
	(void)sink;
	*units_s = units / (hspmd_now() - start);
	return hspmd_now() - start;
}

int main(int argc, char **argv)
{
	struct hspmd_error err = { "" };
	struct hspmd_device *dev;
	const struct hspmd_device_ops *cpu = hspmd_device_find("cpu", &err);
	size_t bytes = argc == 3 ? (size_t)(atof(argv[2]) * 1e6) / SLICES / 4096 * 4096 : 0;
	struct hspmd_state_slice slices[SLICES];
	char names[SLICES][8];
	if (!bytes || !cpu || cpu->open(&dev, 0, 1, &err)) {
		fprintf(stderr, "usage: bench_checkpoint FOLDER MEGABYTES\n");
		return 2;
	}
	for (int i = 0; i < SLICES; i++) {
		struct hspmd_shape shape = { 2, { (int64_t)(bytes / 4096), 1024 } };
		float *data = malloc(bytes);
		if (!data)
			return 1;
		memset(data, i + 1, bytes);
		snprintf(names[i], sizeof names[i], "t%d", i);
		slices[i] = (struct hspmd_state_slice){ names[i], HSPMD_STATE_PARAM, HSPMD_F32, shape, hspmd_box_full(&shape), data };
	}
	struct hspmd_writer *w = hspmd_writer_create(dev, &err);
	const char *locations[] = { argv[1] };
	for (int k = 1; w && k <= 3; k++) {
		struct hspmd_writer_job job = {
			.step = k, .generation = 1, .file = "n0-0.safetensors", .node = "n0", .locations = locations, .location_count = 1
		};
		double free_units, busy_units, hold, start;
		json_t *report = NULL;
		work(0.5, NULL, &free_units);
		start = hspmd_now();
		if (hspmd_writer_begin(w, &job, slices, SLICES, &err))
			break;
		hold = hspmd_now() - start;
		work(0.3, w, &busy_units);
		start = hspmd_now();
		hspmd_writer_wait_copied(w, &err);
		hold += hspmd_now() - start;
		double during = work(60, w, &busy_units);
		if (hspmd_writer_result(w, 120, &report, &err) != 1)
			break;
		double seconds = json_real_value(json_object_get(report, "seconds"));
		printf("held up %.1f ms; %.2f GB in %.2f s: %.2f GB/s; work lost meanwhile: %.1f%% of %.2f s\n", hold * 1e3,
		       SLICES * (double)bytes / 1e9, seconds, SLICES * (double)bytes / 1e9 / seconds,
		       100 * fmax(0, 1 - busy_units / free_units), during);
		json_decref(report);
	}
	if (err.text[0])
		fprintf(stderr, "%s\n", err.text);
	hspmd_writer_destroy(w);
	for (int i = 0; i < SLICES; i++)
		free((void *)(uintptr_t)slices[i].data);
	dev->ops->close(dev);
	return err.text[0] != '\0';
}
