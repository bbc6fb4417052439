/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of runtime/topology. */
#ifndef HSPMD_TOPOLOGY_TOPOLOGY_INTERNAL_H
#define HSPMD_TOPOLOGY_TOPOLOGY_INTERNAL_H

#include <hwloc.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/error.h"
#include "common/format/cluster.h"
#include "runtime/topology/topology.h"

/* ---- granted.c: the resources of the machine that this process may use */
struct hspmd_granted {
	int cpus;             /* number of hardware threads granted (Slurm, cgroup quota); 0: only the affinity limits them */
	int64_t memory_bytes; /* 0: all of the machine's */
};
/* root: prefix of /proc/self/cgroup and /sys/fs/cgroup; "" except in tests. */
void hspmd_granted_read(struct hspmd_granted *g, const char *root);

/* ---- microbench.c */
struct hspmd_microbench_options {
	enum hspmd_device_kind kind;
	int threads;           /* CPU */
	const cpu_set_t *cpus; /* CPUs that the threads may use; NULL: all of this process */
	const char *uuid;      /* CUDA */
};
struct hspmd_microbench_result {
	double tflops[HSPMD_PRECISION_COUNT]; /* of one large product; 0: not measured */
	double gbytes_per_s;                  /* CPU: memory bandwidth of a = b + s * c, three streams */
	double operator_s;                    /* CPU: of a product that has next to no work */
	struct hspmd_product_blocks product_blocks;
};
/* Runs in a process of its own. -1 and err: it died, cannot multiply, or did not end in time. */
int hspmd_microbench(const struct hspmd_microbench_options *of, struct hspmd_microbench_result *out, struct hspmd_error *err);

/* ---- gpu.c */
#define HSPMD_GPU_NVLINKS 18
struct hspmd_gpu {
	char model[96]; /* as the driver reports it, "NVIDIA H200"; with " 1g.18gb" appended for a MIG slice */
	char uuid[96];
	char pci[32]; /* "0000:3b:00.0" */
	int64_t memory_bytes;
	int multiprocessors, clock_mhz;        /* 0: unknown */
	int compute_capability;                /* ten times; 0: unknown */
	double share;                          /* fraction of the whole GPU's multiprocessors: 1, or that of a MIG slice */
	double pcie_gbytes_per_s;              /* of its slot; 0: unknown */
	int nvlinks;                           /* number of active links; 0 for a MIG slice, which cannot use them */
	double nvlink_gbytes_per_s;            /* of one link, in one direction */
	char nvlink_to[HSPMD_GPU_NVLINKS][32]; /* bus address of the other end: a GPU or a switch */
};
/* The GPUs in CUDA_VISIBLE_DEVICES, in its order; *gpus: the caller frees it. Returns the count, 0 if there is no driver; -1 and err. */
int hspmd_gpus_find(struct hspmd_gpu **gpus, struct hspmd_error *err);
/* Rates of a model from the maker's data sheet: teraflops by precision, and memory bandwidth. Models that are not in the table are
 * estimated from multiprocessors and clock. */
void hspmd_gpu_rates(const struct hspmd_gpu *g, double *peak_tflops, double *gbytes_per_s);

/* ---- gpu_links.c */
/* GB/s between a GPU, or a MIG slice while the others use the slot too, and the host's memory, in each direction. */
double hspmd_gpu_host_rate(const struct hspmd_gpu *g);
/* Latency and bandwidth between two GPUs of one node: over their NVLinks (direct, or through switches), otherwise over PCI express, of
 * which hwloc (may lack PCI devices) knows the path. 0 and *alpha_s, *gbytes_per_s; -1: unknown. */
int hspmd_gpu_distance(hwloc_topology_t hwloc, const struct hspmd_gpu *gpus, int count, int a, int b, double *alpha_s,
                       double *gbytes_per_s);

/* ---- microbench.c */
/* Locks measurements of this user on this machine, by a file in a folder of the user's own in `folder`, where others may make folders, too.
 * Returns a descriptor; closing it unlocks. -1: it takes longer than limit_s, or cannot be done, which makes a measurement less precise,
 * not wrong. */
int topology_lock_machine(const char *folder, double limit_s);

/* ---- device_name.c */
/* "AMD EPYC 9B45 128-Core Processor" -> "amd-epyc-9b45"; "NVIDIA H100 80GB HBM3" -> "H100-80GB-HBM3". Returns buf. */
const char *hspmd_cpu_name(const char *model, char *buf, size_t size);
const char *hspmd_gpu_name(const char *model, char *buf, size_t size);

#endif
