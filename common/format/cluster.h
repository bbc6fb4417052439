/* SPDX-License-Identifier: Apache-2.0 */
/* hspmd-cluster-1: the devices of an allocation, and the time of a message between two of them. Plain data.
 * Node names are expanded (one entry per node). One array holds the devices of all nodes, ordered by node and then by index. */
#ifndef HSPMD_FORMAT_CLUSTER_H
#define HSPMD_FORMAT_CLUSTER_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/error.h"
#include "common/format/enums.h"

#define HSPMD_CLUSTER_FORMAT "hspmd-cluster-1"
#define HSPMD_CLUSTER_MAX_DEVICES (1 << 17) /* of the whole cluster; more is refused (as are more nodes) */
#define HSPMD_CLUSTER_MAX_TYPES 256

/* Of a matrix product's factors a device packs blocks, `depth` of the dimension that is summed by `columns` of one factor and by `rows` of
 * the other, as FP32; as much as there is if the product is smaller. All 0: not given, or it packs nothing. */
struct hspmd_product_blocks {
	int64_t depth, columns, rows;
};

/* The memory of the host, for devices that have memory of their own. All 0: not given. */
struct hspmd_host_memory {
	int64_t memory_bytes; /* what one such device may fill of it */
	double gbytes_per_s;  /* of the device's link to it, in each direction */
};

struct hspmd_device_type {
	char *name;
	enum hspmd_device_kind kind;
	int64_t memory_bytes;
	double gbytes_per_s;                       /* device memory */
	double peak_tflops[HSPMD_PRECISION_COUNT]; /* 0: not given */
	double tflops[HSPMD_PRECISION_COUNT];      /* measured on a large matrix product; 0: not measured */
	double operator_s;                         /* of an operator beside its work, measured on a small one; 0: not measured */
	int compute_capability;                    /* of NVIDIA's GPUs, ten times: 90 for 9.0; 0: not given */
	struct hspmd_product_blocks product_blocks;
	struct hspmd_host_memory host;
};

struct hspmd_cluster_device {
	int node;  /* index into nodes */
	int index; /* within its node; the device is "name:index" */
	int type;  /* index into types */
	int numa;  /* -1: not given */
	char *pci; /* NULL: not given */
};

struct hspmd_node {
	char *name;
	int first_device, device_count; /* run in devices */
	double slowdown;                /* 1.0 healthy; 1.4 takes 1.4 times as long */
	double network_gbytes_per_s;    /* shared by its devices towards other nodes; 0: not given */
	double price_per_hour;          /* 0: not given */
	char *rack;                     /* NULL: not given */
	int64_t member; /* member job that holds the node, which leaves when that job ends; 0: not given, the first job holds it */
};

enum hspmd_link_scope { HSPMD_LINK_NODE, HSPMD_LINK_CLUSTER };

struct hspmd_link {
	enum hspmd_link_scope scope;
	int types[2]; /* unordered pair of device types, or -1, -1 */
	int nodes[2]; /* unordered pair of nodes, or -1, -1 */
	int gpus[2];  /* devices that take part on each side (of types[0], types[1]), or 0, 0 */
	double alpha_s, gbytes_per_s;
	int point_count;     /* 0: alpha and rate; else at least 2, strictly growing bytes */
	double (*points)[2]; /* [bytes, seconds] */
};

struct hspmd_cluster {
	char *file; /* file that it was read from, for messages; NULL: none */
	int type_count, node_count, device_count, link_count;
	struct hspmd_device_type *types;
	struct hspmd_node *nodes;
	struct hspmd_cluster_device *devices;
	struct hspmd_link *links;
	struct hspmd_cluster_index *index; /* private, made by reading; without it the lookups below are correct but slow */
};

/* Read and check. The caller destroys the result. NULL and err on failure. `name`: the name of the text in messages. */
struct hspmd_cluster *hspmd_cluster_read(const char *path, struct hspmd_error *err);
struct hspmd_cluster *hspmd_cluster_from_json(const json_t *value, const char *name, struct hspmd_error *err);
/* (Re)make the index of a cluster that was assembled or changed in memory. 0, or -1: out of memory. */
int hspmd_cluster_reindex(struct hspmd_cluster *c);
/* New reference; nodes that differ in name only are folded into one hostlist entry. NULL: out of memory. */
json_t *hspmd_cluster_to_json(const struct hspmd_cluster *c);
json_t *hspmd_product_blocks_to_json(const struct hspmd_product_blocks *b); /* likewise */
json_t *hspmd_host_memory_to_json(const struct hspmd_host_memory *h);       /* likewise */
void hspmd_cluster_destroy(struct hspmd_cluster *c);

/* Merges the nodes of all parts, in their order, into one cluster (cluster_merge.c). Device types of one name and kind become one type if
 * all figures agree within `tolerance` (0.1: a tenth; three times that for memory rates); its memory is the least, its rates are the means,
 * its product_blocks the largest; it has a host only if all have one. Types that differ more stay apart: the fastest group keeps the name,
 * slower groups get a suffix such as "@80%", their speed relative to the fastest. Of links with the same scope and ends the slower is
 * kept. NULL and err: a node occurs twice. */
struct hspmd_cluster *hspmd_cluster_merge(const struct hspmd_cluster *const *parts, int count, double tolerance, struct hspmd_error *err);

/* A cluster of some nodes of `c` (indexes, at least one), in the order given, with all types and the links that name no nodes. NULL and
 * err: out of memory. */
struct hspmd_cluster *hspmd_cluster_part(const struct hspmd_cluster *c, const int *nodes, int count, struct hspmd_error *err);

/* Index into devices of "node:index", or -1 and err (which lists the nodes if the node is unknown). */
int hspmd_cluster_find_device(const struct hspmd_cluster *c, const char *address, struct hspmd_error *err);
/* Expand an address run ("node:first-last" or "node:index"; host lists are not allowed) into out[0..max). Returns the count, or -1. */
int hspmd_cluster_expand_devices(const struct hspmd_cluster *c, const char *run, int *out, int max, struct hspmd_error *err);
/* "node:index" of a device into buf. Returns buf. */
const char *hspmd_cluster_device_address(const struct hspmd_cluster *c, int device, char *buf, size_t size);
int hspmd_cluster_find_type(const struct hspmd_cluster *c, const char *name); /* -1: none */
int hspmd_cluster_find_node(const struct hspmd_cluster *c, const char *name); /* -1: none; O(log n) after the read */

/* The most specific link between devices a and b when n devices on a's side and m on b's send at once; NULL if no entry covers them, or
 * a == b. Order: an entry for these two nodes, for these two types, for all; within each, an entry with `gpus` of exactly n and m, then one
 * without `gpus`. An entry whose `gpus` differ is not used. Thread-safe; takes some ten nanoseconds. */
const struct hspmd_link *hspmd_cluster_find_link(const struct hspmd_cluster *c, int a, int b, int n, int m);
/* Returns true if some links are between named nodes, so that a link may depend on more than the devices' types. */
bool hspmd_cluster_names_nodes(const struct hspmd_cluster *c);
/* Seconds per message of `bytes` (of all senders of a side together): straight lines between points, end slopes outside, never below 0. */
double hspmd_link_seconds(const struct hspmd_link *link, double bytes);

#endif
