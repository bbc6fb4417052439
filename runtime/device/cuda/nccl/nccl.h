/* SPDX-License-Identifier: Apache-2.0 */
/* The part of NCCL that is used, loaded on demand: neither building nor running requires NCCL. Part of the CUDA device's module. */
#ifndef HSPMD_NCCL_NCCL_H
#define HSPMD_NCCL_NCCL_H

#include "runtime/device/communicator.h"
#include "runtime/device/cuda/cuda.h"

typedef struct hspmd_nccl_comm *nccl_comm;

struct nccl_id {
	char internal[HSPMD_COMMUNICATOR_ID_BYTES];
};

/* The configuration of version 2.14, which all later versions accept; the fields that they added keep their defaults. */
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
	int version; /* 22703: 2.27.3 */
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

/* Loaded once per process, and stays loaded. Environment HSPMD_NCCL names the file to load instead of libnccl.so.2 ("": no NCCL). Returns
 * NULL and err if NCCL is missing, too old, or a version that is known to fail; err says what to do. */
const struct hspmd_nccl *hspmd_nccl_load(struct hspmd_error *err);

/* load.c: returns 0, or -1 and err with the reason if the version cannot be used. */
int hspmd_nccl_check_version(int version, struct hspmd_error *err);

/* communicator.c: what a device checks while it waits. */
struct hspmd_cuda_communicators {
	struct hspmd_communicator_watch watch;
	struct hspmd_communicator *list;
};
extern const struct hspmd_communicator_ops hspmd_nccl_communicators;
/* Checks the device's communicators, for the device's waits. Returns -1 and err if one has failed, or if waiting for them was called off or
 * takes too long. */
int hspmd_nccl_check(struct hspmd_cuda *cuda, struct hspmd_error *err);

#endif
