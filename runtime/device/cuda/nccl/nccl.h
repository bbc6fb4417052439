/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL, as far as it is used, loaded when it is asked for: neither building nor running needs it. Part of the CUDA device's module. */
#ifndef HSPMD_NCCL_NCCL_H
#define HSPMD_NCCL_NCCL_H

#include "runtime/device/communicator.h"
#include "runtime/device/cuda/cuda.h"

typedef struct hspmd_nccl_comm *nccl_comm;

struct nccl_id {
	char internal[HSPMD_COMMUNICATOR_ID_BYTES];
};

/* The configuration of version 2.14, which all later ones take; what they added stays at its default. */
struct nccl_config {
	size_t size;
	unsigned magic, version;
	int blocking;
};
#define NCCL_CONFIG_MAGIC 0xcafebeef
#define NCCL_CONFIG_VERSION 21400

enum { NCCL_SUCCESS = 0, NCCL_IN_PROGRESS = 7 };
enum { NCCL_INT32 = 2, NCCL_FLOAT32 = 7, NCCL_FLOAT64 = 8, NCCL_BFLOAT16 = 9 };
enum { NCCL_SUM = 0 };

struct hspmd_nccl {
	int version; /* 22703 is 2.27.3 */
	int (*get_version)(int *version);
	int (*get_unique_id)(struct nccl_id *id);
	int (*comm_init)(nccl_comm *comm, int size, struct nccl_id id, int rank, struct nccl_config *config);
	int (*comm_async_error)(nccl_comm comm, int *error);
	int (*comm_abort)(nccl_comm comm);
	int (*comm_finalize)(nccl_comm comm);
	int (*comm_destroy)(nccl_comm comm);
	int (*group_start)(void);
	int (*group_end)(void);
	int (*send)(const void *data, size_t count, int type, int peer, nccl_comm comm, cudaStream_t stream);
	int (*receive)(void *data, size_t count, int type, int peer, nccl_comm comm, cudaStream_t stream);
	int (*broadcast)(const void *in, void *out, size_t count, int type, int root, nccl_comm comm, cudaStream_t stream);
	int (*reduce)(const void *in, void *out, size_t count, int type, int how, int root, nccl_comm comm, cudaStream_t stream);
	int (*all_reduce)(const void *in, void *out, size_t count, int type, int how, nccl_comm comm, cudaStream_t stream);
	int (*all_gather)(const void *in, void *out, size_t count, int type, nccl_comm comm, cudaStream_t stream);
	int (*reduce_scatter)(const void *in, void *out, size_t count, int type, int how, nccl_comm comm, cudaStream_t stream);
	const char *(*error_string)(int status);
	const char *(*last_error)(nccl_comm comm); /* may be NULL */
};

/* Loaded once a process and kept; environment HSPMD_NCCL names the file instead of the loader's libnccl.so.2 ("" : none is to be used).
 * NULL and err: not there, too old, or a version that is known to fail; err says what to do. */
const struct hspmd_nccl *hspmd_nccl_load(struct hspmd_error *err);

/* load.c: 0, or -1 and err why such a version is not used. */
int hspmd_nccl_check_version(int version, struct hspmd_error *err);

/* communicator.c: what a device's waits look at. */
struct hspmd_cuda_communicators {
	struct hspmd_communicator_watch watch;
	struct hspmd_communicator *list;
};
extern const struct hspmd_communicator_ops hspmd_nccl_communicators;
/* Is something wrong with the device's groups, or is waiting for them called off or too long? 0, or -1 and err. For the device's waits. */
int hspmd_nccl_check(struct hspmd_cuda *cuda, struct hspmd_error *err);

#endif
