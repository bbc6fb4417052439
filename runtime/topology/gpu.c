/* SPDX-License-Identifier: Apache-2.0 */
/* Finds GPUs with the driver's management library (NVML), which is loaded if it exists: a program built without CUDA can still see the
 * node's GPUs. Only functions and structures of NVML's stable interface are used. */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/alloc.h"
#include "common/symbols.h"
#include "runtime/topology/topology_internal.h"

/* ---- the part of NVML's interface that is used */

typedef void *nvml_device;
struct nvml_memory {
	unsigned long long total, free, used;
};
struct nvml_pci {
	char legacy[16];
	unsigned domain, bus, device, device_id, subsystem_id;
	char id[32];
};
enum { NVML_CLOCK_SM = 1 };

struct nvml {
	void *library;
	int (*init)(void);
	int (*shutdown)(void);
	int (*count)(unsigned *);
	int (*by_index)(unsigned, nvml_device *);
	int (*name)(nvml_device, char *, unsigned);
	int (*uuid)(nvml_device, char *, unsigned);
	int (*memory)(nvml_device, struct nvml_memory *);
	int (*pci)(nvml_device, struct nvml_pci *);
	/* Not in every version. */
	int (*cores)(nvml_device, unsigned *);
	int (*max_clock)(nvml_device, int, unsigned *);
	int (*capability)(nvml_device, int *, int *);
	int (*mig_mode)(nvml_device, unsigned *, unsigned *);
	int (*mig_count)(nvml_device, unsigned *);
	int (*mig_by_index)(nvml_device, unsigned, nvml_device *);
	int (*nvlink_state)(nvml_device, unsigned, int *);
	int (*nvlink_version)(nvml_device, unsigned, unsigned *);
	int (*nvlink_remote)(nvml_device, unsigned, struct nvml_pci *);
	int (*pcie_generation)(nvml_device, unsigned *);
	int (*pcie_width)(nvml_device, unsigned *);
};

static bool load(struct nvml *n)
{
	*n = (struct nvml){ .library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL) };
	if (!n->library)
		return false;
	const struct hspmd_symbol calls[] = {
		{ "nvmlInit_v2", &n->init, false },
		{ "nvmlShutdown", &n->shutdown, false },
		{ "nvmlDeviceGetCount_v2", &n->count, false },
		{ "nvmlDeviceGetHandleByIndex_v2", &n->by_index, false },
		{ "nvmlDeviceGetName", &n->name, false },
		{ "nvmlDeviceGetUUID", &n->uuid, false },
		{ "nvmlDeviceGetMemoryInfo", &n->memory, false },
		{ "nvmlDeviceGetPciInfo_v3", &n->pci, false },
		{ "nvmlDeviceGetNumGpuCores", &n->cores, true },
		{ "nvmlDeviceGetMaxClockInfo", &n->max_clock, true },
		{ "nvmlDeviceGetCudaComputeCapability", &n->capability, true },
		{ "nvmlDeviceGetMigMode", &n->mig_mode, true },
		{ "nvmlDeviceGetMaxMigDeviceCount", &n->mig_count, true },
		{ "nvmlDeviceGetMigDeviceHandleByIndex", &n->mig_by_index, true },
		{ "nvmlDeviceGetNvLinkState", &n->nvlink_state, true },
		{ "nvmlDeviceGetNvLinkVersion", &n->nvlink_version, true },
		{ "nvmlDeviceGetNvLinkRemotePciInfo_v2", &n->nvlink_remote, true },
		{ "nvmlDeviceGetMaxPcieLinkGeneration", &n->pcie_generation, true },
		{ "nvmlDeviceGetMaxPcieLinkWidth", &n->pcie_width, true },
	};
	if (!hspmd_symbols_find(n->library, calls, sizeof calls / sizeof *calls))
		return true;
	dlclose(n->library);
	return false;
}

/* ---- all devices that the driver lists */

struct found {
	struct hspmd_gpu *gpu;
	int *parent; /* index of the whole GPU in NVML's order, for numbers in CUDA_VISIBLE_DEVICES */
	size_t count, capacity, parents;
};

static int add(struct found *f, const struct hspmd_gpu *g, int parent, struct hspmd_error *err)
{
	if (hspmd_array_grow(&f->gpu, &f->capacity, f->count, sizeof *f->gpu) ||
	    hspmd_array_grow(&f->parent, &f->parents, f->count, sizeof *f->parent))
		return hspmd_fail_memory(err, "listing GPUs");
	f->parent[f->count] = parent;
	f->gpu[f->count++] = *g;
	return 0;
}

static bool describe(const struct nvml *n, nvml_device d, struct hspmd_gpu *g)
{
	struct nvml_memory memory;
	if (n->name(d, g->model, sizeof g->model) || n->uuid(d, g->uuid, sizeof g->uuid) || n->memory(d, &memory))
		return false;
	g->memory_bytes = (int64_t)memory.total;
	return true;
}

static void write_address(const struct nvml_pci *pci, char *text, size_t size)
{
	snprintf(text, size, "%04x:%02x:%02x.0", pci->domain, pci->bus, pci->device);
}

/* Bandwidth of a PCI express lane by generation, in one direction. */
static void find_slot(const struct nvml *n, nvml_device d, struct hspmd_gpu *g)
{
	static const double lane[] = { 0, 0.25, 0.5, 0.985, 1.97, 3.94, 7.56 };
	unsigned generation = 0, width = 0;
	if (n->pcie_generation && n->pcie_width && !n->pcie_generation(d, &generation) && !n->pcie_width(d, &width) &&
	    generation < sizeof lane / sizeof *lane)
		g->pcie_gbytes_per_s = lane[generation] * width;
}

/* Bandwidth of an NVLink by version, in one direction. */
static void find_links(const struct nvml *n, nvml_device d, struct hspmd_gpu *g)
{
	static const double nvlink[] = { 0, 20, 25, 25, 25, 50 };
	unsigned version = 0;
	for (unsigned l = 0; n->nvlink_state && n->nvlink_remote && l < HSPMD_GPU_NVLINKS; l++) {
		struct nvml_pci remote = { .domain = 0 };
		int active = 0;
		if (n->nvlink_state(d, l, &active) || !active || n->nvlink_remote(d, l, &remote))
			continue;
		if (n->nvlink_version && !n->nvlink_version(d, l, &version) && version > 0)
			g->nvlink_gbytes_per_s = nvlink[version < 6 ? version : 5];
		write_address(&remote, g->nvlink_to[g->nvlinks++], sizeof *g->nvlink_to);
	}
	if (g->nvlinks && g->nvlink_gbytes_per_s <= 0)
		g->nvlink_gbytes_per_s = nvlink[1];
}

static int find_device(const struct nvml *n, unsigned index, struct found *f, struct hspmd_error *err)
{
	struct hspmd_gpu whole = { .share = 1 };
	struct nvml_pci pci;
	nvml_device d;
	/* A GPU that was lost or that this process may not access is ignored. */
	if (n->by_index(index, &d) || !describe(n, d, &whole) || n->pci(d, &pci))
		return 0;
	write_address(&pci, whole.pci, sizeof whole.pci);
	find_slot(n, d, &whole);
	unsigned cores = 0, clock = 0, mode = 0, pending, slots = 0;
	int major = 0, minor = 0;
	if (n->cores && !n->cores(d, &cores))
		whole.multiprocessors = (int)(cores / 128);
	if (n->max_clock && !n->max_clock(d, NVML_CLOCK_SM, &clock))
		whole.clock_mhz = (int)clock;
	if (n->capability && !n->capability(d, &major, &minor))
		whole.compute_capability = 10 * major + minor;
	if (!n->mig_mode || !n->mig_count || !n->mig_by_index || n->mig_mode(d, &mode, &pending) || !mode || n->mig_count(d, &slots)) {
		find_links(n, d, &whole);
		return add(f, &whole, (int)index, err);
	}
	for (unsigned i = 0; i < slots; i++) {
		struct hspmd_gpu part = whole;
		nvml_device s;
		if (n->mig_by_index(d, i, &s) || !describe(n, s, &part))
			continue;
		/* "NVIDIA H200 MIG 3g.71gb": of seven slices. */
		const char *profile = strstr(part.model, "MIG ");
		int sevenths = profile ? atoi(profile + 4) : 0;
		part.share = sevenths > 0 && sevenths < 7 ? sevenths / 7.0 : 1;
		if (add(f, &part, (int)index, err))
			return -1;
	}
	return 0;
}

/* ---- the devices that CUDA_VISIBLE_DEVICES selects */

/* An entry is an index among whole GPUs, or the beginning of a UUID. */
static int find_entry(const struct found *f, const char *entry)
{
	char *end;
	long index = strtol(entry, &end, 10);
	bool number = end != entry && !*end;
	for (size_t i = 0; i < f->count; i++)
		if (number ? f->parent[i] == index : !strncasecmp(f->gpu[i].uuid, entry, strlen(entry)))
			return (int)i;
	return -1;
}

/* As CUDA does: in the listed order, up to the first entry that matches no device. */
static int choose_visible(struct found *f, const char *list, struct hspmd_gpu *out)
{
	char copy[4096];
	int count = 0;
	snprintf(copy, sizeof copy, "%s", list);
	char *rest = copy, *entry;
	while ((entry = strsep(&rest, ",")) && *entry && (size_t)count < f->count) {
		while (*entry == ' ')
			entry++;
		int at = find_entry(f, entry);
		if (at < 0)
			break;
		for (int i = 0; i < count; i++)
			if (!strcmp(out[i].uuid, f->gpu[at].uuid))
				return 0; /* CUDA rejects the list */
		out[count++] = f->gpu[at];
	}
	return count;
}

int hspmd_gpus_find(struct hspmd_gpu **gpus, struct hspmd_error *err)
{
	struct nvml n;
	struct found f = { 0 };
	unsigned total = 0;
	int rv = 0;
	*gpus = NULL;
	if (!load(&n))
		return 0;
	if (!n.init()) {
		if (n.count(&total))
			total = 0;
		for (unsigned i = 0; i < total && !rv; i++)
			rv = find_device(&n, i, &f, err);
		n.shutdown();
	}
	dlclose(n.library);
	const char *visible = getenv("CUDA_VISIBLE_DEVICES");
	int count = (int)f.count;
	if (!rv && visible && count) {
		struct hspmd_gpu *chosen = hspmd_calloc(f.count, sizeof *chosen);
		rv = chosen ? 0 : hspmd_fail_memory(err, "listing GPUs");
		count = chosen ? choose_visible(&f, visible, chosen) : 0;
		free(f.gpu);
		f.gpu = chosen;
	}
	free(f.parent);
	if (rv || !count) {
		free(f.gpu);
		return rv ? -1 : 0;
	}
	*gpus = f.gpu;
	return count;
}

/* ---- rates */

/* Dense teraflops and memory bandwidth from the makers' data sheets (SXM variants if there are several). fp32 is without tensor cores.
 * The first row applies whose words are all in the model's name, so more specific rows come first. */
static const struct {
	const char *words[2];
	double fp32, tf32, bf16, fp16, fp8, fp64, gbytes_per_s;
} sheets[] = {
	{ { "GB200" }, 80, 1250, 2500, 2500, 5000, 40, 8000 },
	{ { "B200" }, 75, 1100, 2250, 2250, 4500, 37, 8000 },
	{ { "GH200" }, 67, 494, 989, 989, 1979, 67, 4000 },
	{ { "H200" }, 67, 494, 989, 989, 1979, 67, 4800 },
	{ { "H800", "PCIe" }, 51, 378, 756, 756, 1513, 0.8, 2000 },
	{ { "H800" }, 67, 494, 989, 989, 1979, 1, 3350 },
	{ { "H100", "PCIe" }, 51, 378, 756, 756, 1513, 51, 2000 },
	{ { "H100" }, 67, 494, 989, 989, 1979, 67, 3350 },
	{ { "H20" }, 44, 74, 148, 148, 296, 1, 4000 },
	{ { "A100", "40GB" }, 19.5, 156, 312, 312, 0, 19.5, 1555 },
	{ { "A100" }, 19.5, 156, 312, 312, 0, 19.5, 2039 },
	{ { "A800" }, 19.5, 156, 312, 312, 0, 9.7, 2039 },
	{ { "A30" }, 10.3, 82, 165, 165, 0, 10.3, 933 },
	{ { "A40" }, 37.4, 74.8, 149.7, 149.7, 0, 0.6, 696 },
	{ { "A10" }, 31.2, 62.5, 125, 125, 0, 0.5, 600 },
	{ { "L40S" }, 91.6, 183, 362, 362, 733, 1.4, 864 },
	{ { "L40" }, 90.5, 90.5, 181, 181, 362, 1.4, 864 },
	{ { "L20" }, 59.8, 59.8, 119.5, 119.5, 239, 0.9, 864 },
	{ { "L4" }, 30.3, 60, 121, 121, 242, 0.5, 300 },
	{ { "V100" }, 15.7, 0, 0, 125, 0, 7.8, 900 },
	{ { "T4" }, 8.1, 0, 0, 65, 0, 0.25, 320 },
};

void hspmd_gpu_rates(const struct hspmd_gpu *g, double *peak, double *gbytes_per_s)
{
	for (int p = 0; p < HSPMD_PRECISION_COUNT; p++)
		peak[p] = 0;
	for (size_t i = 0; i < sizeof sheets / sizeof *sheets; i++) {
		if (!strstr(g->model, sheets[i].words[0]) || (sheets[i].words[1] && !strstr(g->model, sheets[i].words[1])))
			continue;
		peak[HSPMD_PRECISION_FP32] = sheets[i].fp32 * g->share;
		peak[HSPMD_PRECISION_TF32] = sheets[i].tf32 * g->share;
		peak[HSPMD_PRECISION_BF16] = sheets[i].bf16 * g->share;
		peak[HSPMD_PRECISION_FP16] = sheets[i].fp16 * g->share;
		peak[HSPMD_PRECISION_FP8] = sheets[i].fp8 * g->share;
		peak[HSPMD_PRECISION_FP64] = sheets[i].fp64 * g->share;
		*gbytes_per_s = sheets[i].gbytes_per_s * g->share;
		return;
	}
	/* Two operations per core and cycle; tensor cores at four times that, like the weakest GPUs that have them. */
	double fp32 = g->multiprocessors > 0 && g->clock_mhz > 0 ? 2.0 * 128 * g->multiprocessors * g->clock_mhz * 1e-6 : 10;
	peak[HSPMD_PRECISION_FP32] = fp32 * g->share;
	peak[HSPMD_PRECISION_BF16] = peak[HSPMD_PRECISION_FP16] = 4 * fp32 * g->share;
	*gbytes_per_s = 300 * g->share;
}
