/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/topology/topology.h"

#include <dirent.h>
#include <hwloc/glibc-sched.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/format/device_traits.h"
#include "common/json.h"
#include "common/log.h"
#include "runtime/device/device.h"
#include "runtime/topology/topology_internal.h"

/* Default links until `hspmd profile` measures them, so that a plan can be made. Shared memory within a node and PCI express 4 between
 * GPUs, with the rates of common benchmarks; between nodes the rate of the fastest interface that is up, or of 10-gigabit Ethernet if
 * none reports a rate. GPUs of a node: by their NVLinks and slots (gpu_links.c). */
#define NODE_ALPHA_S 1e-5
#define NODE_CPU_GBYTES_PER_S 3.0
#define NODE_GPU_GBYTES_PER_S 20.0
#define CLUSTER_ALPHA_S 5e-5
#define CLUSTER_GBYTES_PER_S 1.25

/* Peak of a core if nothing was measured: AVX2's two fused multiply-adds of eight floats, at 2.5 GHz. */
#define CORE_TFLOPS (2 * 2 * 8 * 2.5e-3)
#define CORE_GBYTES_PER_S 5.0

/* The share of the memory that a process may use; the rest is for the system, page cache and messages. */
#define MEMORY_SHARE 0.9

/* A core that this process may use. */
struct core {
	hwloc_bitmap_t cpus;
	int numa;
};

struct discovery {
	const struct hspmd_topology_options *o;
	hwloc_topology_t hwloc;
	hwloc_bitmap_t allowed; /* the hardware threads of this process */
	bool bound;             /* it is known which cores these are, not only their number, so that cores can be assigned individually */
	struct core *cores;
	int core_count;
	int64_t memory_bytes;
	struct hspmd_gpu *gpus;
	int gpu_count;
	enum hspmd_device_kind core_kind, gpu_kind;
	char cpu[64];
	json_t *types, *runs, *numa, *pci; /* under construction */
	struct hspmd_binding *bindings;
	size_t binding_count, binding_capacity;
};

/* ---- cores */

static int load_hwloc(struct discovery *d, struct hspmd_error *err)
{
	if (hwloc_topology_init(&d->hwloc)) {
		d->hwloc = NULL;
		return hspmd_fail_errno(err, "hwloc cannot be initialised");
	}
	/* The driver itself lists GPUs (gpu.c); these two components would search for them again with libraries that are slow or need a
	 * display. */
	hwloc_topology_set_components(d->hwloc, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, "opencl");
	hwloc_topology_set_components(d->hwloc, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, "gl");
	/* The PCI bus shows which cores are near a GPU; without GPUs scanning it is a waste of time. */
	if (d->gpu_count)
		hwloc_topology_set_io_types_filter(d->hwloc, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
	else
		hwloc_topology_set_components(d->hwloc, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, "pci");
	return hwloc_topology_load(d->hwloc) ? hspmd_fail_errno(err, "hwloc cannot inspect this machine") : 0;
}

static int numa_of(struct discovery *d, hwloc_const_bitmap_t cpus)
{
	hwloc_obj_t node = NULL;
	while ((node = hwloc_get_next_obj_by_type(d->hwloc, HWLOC_OBJ_NUMANODE, node)))
		if (node->cpuset && hwloc_bitmap_intersects(node->cpuset, cpus))
			return (int)node->os_index;
	return -1;
}

/* Find the cores with at least one hardware thread of this process, in hwloc's order (neighbours share caches), at most the granted
 * number. */
static int find_cores(struct discovery *d, int granted, struct hspmd_error *err)
{
	d->allowed = hwloc_bitmap_alloc();
	if (!d->allowed)
		return hspmd_fail_memory(err, "listing cores");
	if (hwloc_get_cpubind(d->hwloc, d->allowed, HWLOC_CPUBIND_THREAD))
		hwloc_bitmap_copy(d->allowed, hwloc_topology_get_allowed_cpuset(d->hwloc));
	hwloc_bitmap_and(d->allowed, d->allowed, hwloc_topology_get_allowed_cpuset(d->hwloc));
	bool has_cores = hwloc_get_nbobjs_by_type(d->hwloc, HWLOC_OBJ_CORE) > 0;
	hwloc_obj_type_t type = has_cores ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
	int most = hwloc_get_nbobjs_by_type(d->hwloc, type), used = 0;
	d->cores = hspmd_calloc((size_t)(most > 0 ? most : 1), sizeof *d->cores);
	if (!d->cores)
		return hspmd_fail_memory(err, "listing cores");
	for (hwloc_obj_t o = NULL; (o = hwloc_get_next_obj_by_type(d->hwloc, type, o));) {
		if (!hwloc_bitmap_intersects(o->cpuset, d->allowed))
			continue;
		if (granted && used >= granted)
			continue;
		struct core *c = &d->cores[d->core_count++];
		c->cpus = hwloc_bitmap_dup(o->cpuset);
		if (!c->cpus)
			return hspmd_fail_memory(err, "listing cores");
		hwloc_bitmap_and(c->cpus, c->cpus, d->allowed);
		c->numa = numa_of(d, c->cpus);
		used += hwloc_bitmap_weight(c->cpus);
	}
	/* If cores are granted by number only, it is unknown which ones other processes use. */
	d->bound = !granted || granted >= hwloc_bitmap_weight(d->allowed);
	return d->core_count ? 0 : hspmd_fail(err, "no core of this machine may be used by this process");
}

static int64_t usable_memory(struct discovery *d, int64_t limit)
{
	hwloc_obj_t root = hwloc_get_root_obj(d->hwloc);
	int64_t bytes = root->total_memory ? (int64_t)root->total_memory : (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
	if (limit && limit < bytes)
		bytes = limit;
	return (int64_t)((double)bytes * MEMORY_SHARE);
}

/* ---- building the cluster */

static struct hspmd_binding *new_binding(struct discovery *d, hwloc_const_bitmap_t cpus, struct hspmd_error *err)
{
	char *text = NULL;
	if (hwloc_bitmap_list_asprintf(&text, d->bound ? cpus : d->allowed) < 0 ||
	    hspmd_array_grow(&d->bindings, &d->binding_capacity, d->binding_count, sizeof *d->bindings)) {
		free(text);
		hspmd_fail_memory(err, "describing devices");
		return NULL;
	}
	struct hspmd_binding *p = &d->bindings[d->binding_count++];
	*p = (struct hspmd_binding){ .cpus = text, .gpu = -1 };
	return p;
}

static int add_device(struct discovery *d, const char *type, int numa, const char *pci, struct hspmd_error *err)
{
	int bad = json_array_append_new(d->runs, json_pack("{s:s, s:i}", "type", type, "count", 1));
	bad |= json_array_append_new(d->numa, numa >= 0 ? json_integer(numa) : json_null());
	bad |= json_array_append_new(d->pci, pci ? json_string(pci) : json_null());
	return bad ? hspmd_fail_memory(err, "describing devices") : 0;
}

static json_t *rate_object(const double *rates)
{
	json_t *o = json_object();
	for (int p = 0; p < HSPMD_PRECISION_COUNT; p++)
		if (rates[p] > 0 && json_object_set_new(o, hspmd_precision_names[p], hspmd_json_real(rates[p])))
			return hspmd_json_unless_failed(1, o);
	return o;
}

static int add_type(struct discovery *d, const char *name, enum hspmd_device_kind kind, int64_t memory, const double *peak,
                    const struct hspmd_microbench_result *m, const struct hspmd_host_memory *host, struct hspmd_error *err)
{
	bool measured = false;
	for (int p = 0; p < HSPMD_PRECISION_COUNT; p++)
		measured |= m->tflops[p] > 0;
	json_t *t = json_pack("{s:s, s:I, s:o, s:o}", "kind", hspmd_device_kind_names[kind], "memory_bytes", (json_int_t)memory,
	                      "gbytes_per_s", hspmd_json_real(m->gbytes_per_s), "peak_tflops", rate_object(peak));
	int bad = !t;
	if (measured)
		bad |= json_object_set_new(t, "tflops", rate_object(m->tflops));
	if (m->operator_s > 0)
		bad |= json_object_set_new(t, "operator_s", hspmd_json_real(m->operator_s));
	if (m->product_blocks.depth)
		bad |= json_object_set_new(t, "product_blocks", hspmd_product_blocks_to_json(&m->product_blocks));
	if (host)
		bad |= json_object_set_new(t, "host", hspmd_host_memory_to_json(host));
	bad |= json_object_set(d->types, name, t);
	json_decref(t);
	return bad ? hspmd_fail_memory(err, "describing devices") : 0;
}

static int add_cpu_type(struct discovery *d, const char *name, int cores, hwloc_const_bitmap_t cpus, struct hspmd_error *err)
{
	struct hspmd_microbench_result m = { .gbytes_per_s = cores * CORE_GBYTES_PER_S };
	double peak[HSPMD_PRECISION_COUNT] = { [HSPMD_PRECISION_FP32] = cores * CORE_TFLOPS };
	cpu_set_t set;
	if (json_object_get(d->types, name))
		return 0;
	hwloc_cpuset_to_glibc_sched_affinity(d->hwloc, cpus, &set, sizeof set);
	struct hspmd_microbench_options of = { .kind = d->core_kind, .threads = cores, .cpus = d->bound ? &set : NULL };
	if (!d->o->skip_measure && hspmd_microbench(&of, &m, err))
		return -1;
	/* A core that the constant does not describe is at least as fast as measured. */
	if (m.tflops[HSPMD_PRECISION_FP32] > peak[HSPMD_PRECISION_FP32])
		peak[HSPMD_PRECISION_FP32] = m.tflops[HSPMD_PRECISION_FP32];
	return add_type(d, name, d->core_kind, d->memory_bytes / d->core_count * cores, peak, &m, NULL, err);
}

/* Make cores [first, first + count) a device. */
static int add_cpu(struct discovery *d, int first, int count, struct hspmd_error *err)
{
	char name[96];
	hwloc_bitmap_t cpus = hwloc_bitmap_alloc();
	int rv = -1;
	if (!cpus)
		return hspmd_fail_memory(err, "describing devices");
	for (int i = first; i < first + count; i++)
		hwloc_bitmap_or(cpus, cpus, d->cores[i].cpus);
	snprintf(name, sizeof name, "cpu-%s-%dc", d->cpu, count);
	struct hspmd_binding *p = new_binding(d, cpus, err);
	if (p) {
		p->kind = d->core_kind;
		p->cores = count;
		rv = add_cpu_type(d, name, count, cpus, err);
	}
	if (!rv)
		rv = add_device(d, name, d->cores[first].numa, NULL, err);
	hwloc_bitmap_free(cpus);
	return rv;
}

static int by_numa(const void *a, const void *b)
{
	const struct core *x = a, *y = b;
	if (x->numa != y->numa)
		return x->numa < y->numa ? -1 : 1;
	int i = hwloc_bitmap_first(x->cpus), j = hwloc_bitmap_first(y->cpus);
	return i < j ? -1 : i > j;
}

static int add_cpus(struct discovery *d, struct hspmd_error *err)
{
	int n = d->core_count, devices = d->o->devices, each = d->o->cores_per_device;
	qsort(d->cores, (size_t)n, sizeof *d->cores, by_numa);
	if (each > n || devices > n)
		return hspmd_fail(err, "%d core%s wanted for CPU devices, but this process may use %d", each > n ? each : devices,
		                  (each > n ? each : devices) == 1 ? "" : "s", n);
	if (each) {
		for (int at = 0; at + each <= n; at += each)
			if (add_cpu(d, at, each, err))
				return -1;
		return 0;
	}
	if (devices) {
		for (int i = 0; i < devices; i++)
			if (add_cpu(d, (int)((long)n * i / devices), (int)((long)n * (i + 1) / devices - (long)n * i / devices), err))
				return -1;
		return 0;
	}
	for (int first = 0, end; first < n; first = end) {
		for (end = first; end < n && d->cores[end].numa == d->cores[first].numa; end++)
			;
		if (add_cpu(d, first, end - first, err))
			return -1;
	}
	return 0;
}

/* The cores near a GPU, by its position on the PCI bus; all of this process's cores if that is unknown. */
static hwloc_const_bitmap_t near_gpu(struct discovery *d, const struct hspmd_gpu *g, hwloc_bitmap_t near)
{
	hwloc_obj_t pci = hwloc_get_pcidev_by_busidstring(d->hwloc, g->pci),
	            host = pci ? hwloc_get_non_io_ancestor_obj(d->hwloc, pci) : NULL;
	if (host && host->cpuset)
		hwloc_bitmap_and(near, host->cpuset, d->allowed);
	return host && host->cpuset && !hwloc_bitmap_iszero(near) ? near : d->allowed;
}

/* NVIDIA's GPUs, unless this hspmd has no device of them. */
static int find_gpus(struct discovery *d, struct hspmd_error *err)
{
	int kind = hspmd_device_kind_of(HSPMD_ORIGIN_NVIDIA);
	d->gpu_kind = kind < 0 ? 0 : (enum hspmd_device_kind)kind;
	d->gpu_count = kind < 0 ? 0 : hspmd_gpus_find(&d->gpus, err);
	return d->gpu_count < 0 ? -1 : 0;
}

static int add_gpu(struct discovery *d, const struct hspmd_gpu *g, int index, int count, struct hspmd_error *err)
{
	char name[96];
	double peak[HSPMD_PRECISION_COUNT], rate;
	struct hspmd_microbench_result m = { .gbytes_per_s = 0 };
	struct hspmd_microbench_options of = { .kind = d->gpu_kind, .uuid = g->uuid };
	struct hspmd_error why;
	hspmd_gpu_name(g->model, name, sizeof name);
	hspmd_gpu_rates(g, peak, &rate);
	/* The first GPU of each model is measured if this program can use GPUs; otherwise the data sheet's rates are used. */
	if (!json_object_get(d->types, name)) {
		bool can = !d->o->skip_measure && hspmd_device_find(hspmd_device_kind_names[d->gpu_kind], NULL);
		if (can && hspmd_microbench(&of, &m, &why))
			hspmd_warn("%s", why.text);
		m.gbytes_per_s = rate;
		struct hspmd_host_memory host = { d->memory_bytes / count, hspmd_gpu_host_rate(g) };
		/* Devices of cores fill the host's memory themselves. */
		if (add_type(d, name, d->gpu_kind, g->memory_bytes, peak, &m, d->o->cpu ? NULL : &host, err))
			return -1;
		if (g->compute_capability > 0 && json_object_set_new(json_object_get(d->types, name), "compute_capability",
		                                                     hspmd_json_real(g->compute_capability / 10.0)))
			return hspmd_fail_memory(err, "describing devices");
	}
	hwloc_bitmap_t near = hwloc_bitmap_alloc();
	hwloc_const_bitmap_t cpus = near ? near_gpu(d, g, near) : d->allowed;
	struct hspmd_binding *p = new_binding(d, cpus, err);
	int numa = cpus == d->allowed ? -1 : numa_of(d, cpus);
	hwloc_bitmap_free(near);
	if (!p)
		return -1;
	p->kind = d->gpu_kind;
	p->cores = d->core_count / count > 0 ? d->core_count / count : 1;
	p->gpu = index;
	p->uuid = strdup(g->uuid);
	return p->uuid ? add_device(d, name, numa, g->pci, err) : hspmd_fail_memory(err, "describing devices");
}

static int add_gpus(struct discovery *d, struct hspmd_error *err)
{
	int rv = 0;
	for (int i = 0; i < d->gpu_count && !rv; i++)
		rv = add_gpu(d, &d->gpus[i], i, d->gpu_count, err);
	return rv;
}

/* ---- links, and the result */

/* The number at the beginning of an interface's file; 0: none. */
static double interface_number(const char *folder, const char *name, const char *file)
{
	char path[512];
	double value = 0;
	snprintf(path, sizeof path, "%s/%s/%s", folder, name, file);
	FILE *f = fopen(path, "re");
	if (!f)
		return 0;
	if (fscanf(f, "%lf", &value) != 1 || value < 0)
		value = 0;
	fclose(f);
	return value;
}

/* Of the fastest interface that is up, in GB/s. Ethernet reports megabits per second, an InfiniBand port "100 Gb/sec (4X EDR)". */
static double network_rate(void)
{
	static const struct {
		const char *folder, *file;
		double to_gbytes;
	} kinds[] = { { "/sys/class/net", "speed", 1.0 / 8000 }, { "/sys/class/infiniband", "ports/1/rate", 1.0 / 8 } };
	double best = 0;
	for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
		DIR *d = opendir(kinds[k].folder);
		struct dirent *entry;
		while (d && (entry = readdir(d)))
			if (entry->d_name[0] != '.')
				best = fmax(best, interface_number(kinds[k].folder, entry->d_name, kinds[k].file) * kinds[k].to_gbytes);
		if (d)
			closedir(d);
	}
	return best > 0 ? best : CLUSTER_GBYTES_PER_S;
}

/* One entry per pair of GPU models, with the rate of the slowest such pair: a plan may place any of them next to each other. */
static int add_gpu_links(const struct discovery *d, json_t *links)
{
	for (int a = 0; a < d->gpu_count; a++)
		for (int b = a + 1; b < d->gpu_count; b++) {
			char x[96], y[96];
			double alpha, rate;
			if (hspmd_gpu_distance(d->hwloc, d->gpus, d->gpu_count, a, b, &alpha, &rate))
				continue;
			hspmd_gpu_name(d->gpus[a].model, x, sizeof x);
			hspmd_gpu_name(d->gpus[b].model, y, sizeof y);
			const char *first = strcmp(x, y) <= 0 ? x : y, *second = first == x ? y : x;
			json_t *entry = NULL, *known;
			size_t i;
			json_array_foreach(links, i, known) {
				json_t *types = json_object_get(known, "types");
				const char *p = json_string_value(json_array_get(types, 0)),
				           *q = json_string_value(json_array_get(types, 1));
				if (p && q && !strcmp(p, first) && !strcmp(q, second))
					entry = known;
			}
			if (entry && json_number_value(json_object_get(entry, "gbytes_per_s")) <= rate)
				continue;
			if (!entry) {
				entry = json_pack("{s:s, s:[s, s]}", "scope", "node", "types", first, second);
				if (json_array_append_new(links, entry))
					return -1;
			}
			if (json_object_set_new(entry, "alpha_s", hspmd_json_real(alpha)) ||
			    json_object_set_new(entry, "gbytes_per_s", hspmd_json_real(rate)))
				return -1;
		}
	return 0;
}

static json_t *default_links(const struct discovery *d)
{
	bool gpus = d->gpu_count > 0;
	json_t *node = json_pack("{s:s, s:o, s:o}", "scope", "node", "alpha_s", hspmd_json_real(NODE_ALPHA_S), "gbytes_per_s",
	                         hspmd_json_real(gpus ? NODE_GPU_GBYTES_PER_S : NODE_CPU_GBYTES_PER_S));
	json_t *cluster = json_pack("{s:s, s:o, s:o}", "scope", "cluster", "alpha_s", hspmd_json_real(CLUSTER_ALPHA_S), "gbytes_per_s",
	                            hspmd_json_real(network_rate()));
	json_t *links = json_array();
	int bad = json_array_append_new(links, node);
	bad |= json_array_append_new(links, cluster);
	bad |= add_gpu_links(d, links);
	return hspmd_json_unless_failed(bad, links);
}

static const char *node_name(const struct discovery *d, char *buf, size_t size)
{
	const char *slurm = getenv("SLURMD_NODENAME");
	if (d->o->node || slurm)
		return d->o->node ? d->o->node : slurm;
	if (gethostname(buf, size))
		snprintf(buf, size, "localhost");
	buf[size - 1] = '\0';
	buf[strcspn(buf, ".")] = '\0';
	return buf;
}

/* The switches or the block above the node, as Slurm's topology plugin passes them to tasks ("s0.s1.n7", with the pattern
 * "switch.switch.node"): nodes below the same leaf have the same. NULL: the site has not configured Slurm's topology. */
static const char *rack_name(char *buf, size_t size)
{
	const char *address = getenv("SLURM_TOPOLOGY_ADDR"), *pattern = getenv("SLURM_TOPOLOGY_ADDR_PATTERN"), *end = address;
	if (!address || !pattern || !strchr(pattern, '.'))
		return NULL;
	for (; (pattern = strchr(pattern, '.')); pattern++) {
		end = strchr(end == address ? end : end + 1, '.');
		if (!end)
			return NULL;
	}
	if (end == address || (size_t)(end - address) >= size)
		return NULL;
	snprintf(buf, size, "%.*s", (int)(end - address), address);
	return buf;
}

static bool any(const json_t *list)
{
	size_t i;
	json_t *v;
	json_array_foreach(list, i, v)
		if (!json_is_null(v))
			return true;
	return false;
}

static struct hspmd_cluster *make_cluster(struct discovery *d, struct hspmd_error *err)
{
	char host[256], rack[1024];
	json_t *node = json_pack("{s:s, s:O, s:s*}", "name", node_name(d, host, sizeof host), "devices", d->runs, "rack",
	                         rack_name(rack, sizeof rack));
	int bad = !node;
	if (any(d->numa))
		bad |= json_object_set(node, "numa", d->numa);
	if (any(d->pci))
		bad |= json_object_set(node, "pci", d->pci);
	json_t *whole = json_pack("{s:s, s:O, s:[o], s:o}", "format", HSPMD_CLUSTER_FORMAT, "device_types", d->types, "nodes", node,
	                          "links", default_links(d));
	struct hspmd_cluster *c = NULL;
	if (bad || !whole)
		hspmd_fail_memory(err, "describing this node");
	else
		c = hspmd_cluster_from_json(whole, "this node", err);
	json_decref(whole);
	return c;
}

static int discover(struct discovery *d, struct hspmd_topology *t, struct hspmd_error *err)
{
	struct hspmd_granted limits;
	hspmd_granted_read(&limits, "");
	bool either = !d->o->cpu && !d->o->gpu;
	int cores = hspmd_device_kind_of(HSPMD_ORIGIN_CORES);
	d->core_kind = cores < 0 ? 0 : (enum hspmd_device_kind)cores;
	if (((d->o->gpu || either) && find_gpus(d, err)) || load_hwloc(d, err) || find_cores(d, limits.cpus, err))
		return -1;
	d->memory_bytes = usable_memory(d, limits.memory_bytes);
	const char *model = hwloc_obj_get_info_by_name(hwloc_get_root_obj(d->hwloc), "CPUModel");
	hwloc_obj_t package = hwloc_get_obj_by_type(d->hwloc, HWLOC_OBJ_PACKAGE, 0);
	if (!model && package)
		model = hwloc_obj_get_info_by_name(package, "CPUModel");
	hspmd_cpu_name(model ? model : "", d->cpu, sizeof d->cpu);
	d->types = json_object();
	d->runs = json_array();
	d->numa = json_array();
	d->pci = json_array();
	if (!d->types || !d->runs || !d->numa || !d->pci)
		return hspmd_fail_memory(err, "describing devices");
	if (add_gpus(d, err))
		return -1;
	if (cores >= 0 && (d->o->cpu || (either && !d->gpu_count)) && add_cpus(d, err))
		return -1;
	if (!d->binding_count)
		return hspmd_fail(err, "this node has no GPU that can be used%s",
		                  getenv("CUDA_VISIBLE_DEVICES") ? " (CUDA_VISIBLE_DEVICES is set)" : "");
	t->cluster = make_cluster(d, err);
	if (!t->cluster)
		return -1;
	t->bindings = d->bindings;
	t->binding_count = (int)d->binding_count;
	d->bindings = NULL;
	d->binding_count = 0;
	return 0;
}

static void free_bindings(struct hspmd_binding *bindings, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		free(bindings[i].cpus);
		free(bindings[i].uuid);
	}
	free(bindings);
}

struct hspmd_topology *hspmd_topology_discover(const struct hspmd_topology_options *options, struct hspmd_error *err)
{
	static const struct hspmd_topology_options none;
	struct discovery d = { .o = options ? options : &none };
	struct hspmd_topology *t = hspmd_calloc(1, sizeof *t);
	if (!t) {
		hspmd_fail_memory(err, "looking at this node");
		return NULL;
	}
	if (d.o->devices < 0 || d.o->cores_per_device < 0 || (d.o->devices && d.o->cores_per_device) || discover(&d, t, err)) {
		if (d.o->devices < 0 || d.o->cores_per_device < 0 || (d.o->devices && d.o->cores_per_device))
			hspmd_fail(err, "give either the number of CPU devices or the cores of each");
		free(t);
		t = NULL;
	}
	free_bindings(d.bindings, d.binding_count);
	free(d.gpus);
	json_decref(d.types);
	json_decref(d.runs);
	json_decref(d.numa);
	json_decref(d.pci);
	for (int i = 0; i < d.core_count; i++)
		hwloc_bitmap_free(d.cores[i].cpus);
	free(d.cores);
	hwloc_bitmap_free(d.allowed);
	if (d.hwloc)
		hwloc_topology_destroy(d.hwloc);
	return t;
}

void hspmd_topology_destroy(struct hspmd_topology *t)
{
	if (!t)
		return;
	hspmd_cluster_destroy(t->cluster);
	free_bindings(t->bindings, (size_t)t->binding_count);
	free(t);
}
