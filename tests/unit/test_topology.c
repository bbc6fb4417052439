/* SPDX-License-Identifier: Apache-2.0 */
/* The hardware that discovery reports: on this machine within an affinity, and with a simulated driver the GPUs that
 * CUDA_VISIBLE_DEVICES selects. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dlfcn.h>
#include <ftw.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/cgroup.h"
#include "runtime/topology/topology_internal.h"

static void check_cpu(const char *model, const char *name)
{
	char buf[64];
	assert_string_equal(hspmd_cpu_name(model, buf, sizeof buf), name);
}

static void check_gpu(const char *model, const char *name)
{
	char buf[64];
	assert_string_equal(hspmd_gpu_name(model, buf, sizeof buf), name);
}

static void test_names(void **state)
{
	(void)state;
	check_cpu("AMD EPYC 9B45 128-Core Processor", "amd-epyc-9b45");
	check_cpu("Intel(R) Xeon(R) Gold 6248 CPU @ 2.50GHz", "intel-xeon-gold-6248");
	check_cpu("", "unknown");
	check_cpu("((((", "unknown");
	check_gpu("NVIDIA H100 80GB HBM3", "H100-80GB-HBM3");
	check_gpu("Tesla V100-SXM2-16GB", "V100-SXM2-16GB");
	check_gpu("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "A100-SXM4-40GB-MIG-1g.5gb");
	check_gpu("", "gpu");
}

static void use_one_core(cpu_set_t *before)
{
	cpu_set_t one;
	int cpu = 0;
	assert_int_equal(sched_getaffinity(0, sizeof *before, before), 0);
	while (!CPU_ISSET(cpu, before))
		cpu++;
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
}

static void test_cores(void **state)
{
	(void)state;
	cpu_set_t before;
	struct hspmd_error err = { "" };
	struct hspmd_topology_options o = { .cpu = true, .node = "here", .devices = 1 };
	use_one_core(&before);
	struct hspmd_topology *t = hspmd_topology_discover(&o, &err);
	if (!t)
		print_error("%s\n", err.text);
	assert_non_null(t);
	assert_int_equal(t->binding_count, 1);
	assert_int_equal(t->bindings[0].cores, 1);
	assert_int_equal(t->bindings[0].gpu, -1);
	assert_string_equal(t->cluster->nodes[0].name, "here");
	assert_int_equal(t->cluster->device_count, 1);
	const struct hspmd_device_type *type = &t->cluster->types[0];
	assert_int_equal(type->kind, HSPMD_DEVICE_CPU);
	assert_string_equal(type->name + strlen(type->name) - 3, "-1c");
	assert_true(type->tflops[HSPMD_PRECISION_FP32] > 0 && type->memory_bytes > 1 << 20);
	assert_true(type->product_blocks.depth > 1 && type->product_blocks.columns > 1 && type->product_blocks.rows > 1);
	assert_true(type->operator_s > 0 && type->operator_s < 1);
	/* A plan for the discovered cluster must find a link for any pair. */
	assert_int_equal(t->cluster->link_count, 2);
	struct hspmd_cluster *all;
	int rank = -1;
	assert_int_equal(hspmd_topology_exchange(t->cluster, &all, &rank, &err), 0);
	assert_int_equal(rank, 0);
	assert_int_equal(all->device_count, 1);
	hspmd_cluster_destroy(all);
	hspmd_topology_destroy(t);
	o.skip_measure = true;
	o.devices = 2;
	assert_null(hspmd_topology_discover(&o, &err));
	assert_string_equal(err.text, "2 cores wanted for CPU devices, but this process may use 1");
	o.devices = 1;
	o.cores_per_device = 1;
	assert_null(hspmd_topology_discover(&o, &err));
	sched_setaffinity(0, sizeof before, &before);
}

/* The switches above its node, as Slurm's topology plugin passes them to a task. */
static void test_rack(void **state)
{
	(void)state;
	static const struct {
		const char *address, *pattern, *rack;
	} cases[] = {
		{ "s0.s1.n7", "switch.switch.node", "s0.s1" },
		{ "b2.n7.site", "block.node", "b2" },
		{ "n7", "node", NULL },
		{ "n7.site", "node", NULL },
		{ "s0.n7", "switch.switch.node", NULL },
		{ "s0.n7", NULL, NULL },
		{ "", "switch.node", NULL },
		{ ".n7", "switch.node", NULL },
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct hspmd_error err;
		struct hspmd_topology_options o = { .cpu = true, .skip_measure = true, .node = "n7" };
		setenv("SLURM_TOPOLOGY_ADDR", cases[i].address, 1);
		if (cases[i].pattern)
			setenv("SLURM_TOPOLOGY_ADDR_PATTERN", cases[i].pattern, 1);
		struct hspmd_topology *t = hspmd_topology_discover(&o, &err);
		unsetenv("SLURM_TOPOLOGY_ADDR");
		unsetenv("SLURM_TOPOLOGY_ADDR_PATTERN");
		assert_non_null(t);
		if (cases[i].rack)
			assert_string_equal(t->cluster->nodes[0].rack, cases[i].rack);
		else
			assert_null(t->cluster->nodes[0].rack);
		hspmd_topology_destroy(t);
	}
}

/* Slurm granted one CPU by number: one core counts, but it is unknown which one. */
static void test_granted_by_number(void **state)
{
	(void)state;
	struct hspmd_error err;
	struct hspmd_topology_options o = { .cpu = true, .skip_measure = true };
	setenv("SLURM_CPUS_ON_NODE", "1", 1);
	setenv("SLURM_MEM_PER_NODE", "100", 1);
	setenv("SLURMD_NODENAME", "n7", 1);
	struct hspmd_topology *t = hspmd_topology_discover(&o, &err);
	unsetenv("SLURM_CPUS_ON_NODE");
	unsetenv("SLURM_MEM_PER_NODE");
	unsetenv("SLURMD_NODENAME");
	assert_non_null(t);
	assert_int_equal(t->binding_count, 1);
	assert_int_equal(t->bindings[0].cores, 1);
	assert_string_equal(t->cluster->nodes[0].name, "n7");
	assert_true(t->cluster->types[0].memory_bytes <= 100 << 20);
	hspmd_topology_destroy(t);
}

static int gpus(const char *visible, struct hspmd_gpu **g)
{
	struct hspmd_error err;
	if (visible)
		setenv("CUDA_VISIBLE_DEVICES", visible, 1);
	else
		unsetenv("CUDA_VISIBLE_DEVICES");
	int n = hspmd_gpus_find(g, &err);
	unsetenv("CUDA_VISIBLE_DEVICES");
	return n;
}

static void test_gpus(void **state)
{
	(void)state;
	struct hspmd_gpu *g;
	if (!dlopen(".libs/libnvidia-ml.so.1", RTLD_NOW) && !dlopen("./libnvidia-ml.so.1", RTLD_NOW)) {
		print_error("%s\n", dlerror());
		fail();
	}
	assert_int_equal(gpus(NULL, &g), 3);
	assert_string_equal(g[0].uuid, "GPU-aaaa0000-1111");
	assert_string_equal(g[0].pci, "0000:3b:00.0");
	assert_string_equal(g[2].model, "NVIDIA H200 MIG 4g.71gb");
	assert_true(g[2].share > 0.57 && g[2].share < 0.58);
	double peak[HSPMD_PRECISION_COUNT], rate;
	hspmd_gpu_rates(&g[0], peak, &rate);
	assert_true(peak[HSPMD_PRECISION_BF16] == 989 && rate == 4800);
	free(g);
	assert_int_equal(gpus("", &g), 0);
	assert_int_equal(gpus("-1", &g), 0);
	assert_int_equal(gpus("0,0", &g), 0);
	assert_int_equal(gpus("MIG-dddd,0,7,MIG-cccc", &g), 2); /* ends at the first that does not exist */
	assert_string_equal(g[0].uuid, "MIG-dddd0000-4444");
	assert_string_equal(g[1].uuid, "GPU-aaaa0000-1111");
	free(g);
	struct hspmd_error err = { "" };
	struct hspmd_topology_options o = { .skip_measure = true };
	struct hspmd_topology *t = hspmd_topology_discover(&o, &err);
	assert_non_null(t);
	assert_int_equal(t->binding_count, 3);
	assert_int_equal(t->cluster->type_count, 3);
	assert_string_equal(t->cluster->types[t->cluster->devices[0].type].name, "H200");
	assert_string_equal(t->cluster->types[t->cluster->devices[1].type].name, "H200-MIG-3g.71gb");
	for (int i = 0; i < 3; i++)
		assert_int_equal(t->cluster->types[t->cluster->devices[i].type].compute_capability, 90);
	assert_string_equal(t->cluster->devices[1].pci, "0000:86:00.0");
	/* PCI express 5 x 16, of which a slice has its part. */
	const struct hspmd_host_memory *whole = &t->cluster->types[t->cluster->devices[0].type].host,
	                               *slice = &t->cluster->types[t->cluster->devices[1].type].host;
	assert_true(whole->memory_bytes > 0 && whole->memory_bytes == slice->memory_bytes);
	assert_true(whole->gbytes_per_s > 10 && fabs(slice->gbytes_per_s - whole->gbytes_per_s * 3 / 7) < 1e-3);
	assert_int_equal(t->bindings[2].gpu, 2);
	assert_string_equal(t->bindings[2].uuid, "MIG-dddd0000-4444");
	hspmd_topology_destroy(t);
}

/* A machine with two processors, each with a PCI switch; GPUs at 3b and 86 as in the simulated library. */
static char *machine(bool one_switch, bool one_processor)
{
	static const char bridge[] =
	        "<object type=\"Bridge\" gp_index=\"%d\" bridge_type=\"%s\" depth=\"%d\" bridge_pci=\"0000:[%02x-%02x]\" %s>";
	static const char gpu[] = "<object type=\"PCIDev\" gp_index=\"%d\" pci_busid=\"0000:%02x:00.0\" pci_type=\"0302 [10de:2335] "
	                          "[10de:18be] a1\" pci_link_speed=\"0\"/>";
	static const char plx[] = "pci_busid=\"0000:%02x:00.0\" pci_type=\"0604 [1000:c030] [1000:100b] b0\" pci_link_speed=\"0\"";
	char path[] = "/tmp/hspmd-machine-XXXXXX", more[160];
	int fd = mkstemp(path), id = 20;
	FILE *f = fd < 0 ? NULL : fdopen(fd, "w");
	assert_non_null(f);
	fputs("<?xml version=\"1.0\" encoding=\"UTF-8\"?><!DOCTYPE topology SYSTEM \"hwloc2.dtd\"><topology version=\"2.0\">"
	      "<object type=\"Machine\" os_index=\"0\" cpuset=\"0x3\" complete_cpuset=\"0x3\" allowed_cpuset=\"0x3\" nodeset=\"0x3\" "
	      "complete_nodeset=\"0x3\" "
	      "allowed_nodeset=\"0x3\" gp_index=\"1\">",
	      f);
	for (int p = 0; p < 2; p++) {
		fprintf(f,
		        "<object type=\"Package\" os_index=\"%d\" cpuset=\"0x%d\" complete_cpuset=\"0x%d\" nodeset=\"0x%d\" "
		        "complete_nodeset=\"0x%d\" gp_index=\"%d\">"
		        "<object type=\"NUMANode\" os_index=\"%d\" cpuset=\"0x%d\" complete_cpuset=\"0x%d\" nodeset=\"0x%d\" "
		        "complete_nodeset=\"0x%d\" gp_index=\"%d\" "
		        "local_memory=\"1000000000\"/><object type=\"Core\" os_index=\"%d\" cpuset=\"0x%d\" complete_cpuset=\"0x%d\" "
		        "nodeset=\"0x%d\" complete_nodeset=\"0x%d\" "
		        "gp_index=\"%d\"><object type=\"PU\" os_index=\"%d\" cpuset=\"0x%d\" complete_cpuset=\"0x%d\" nodeset=\"0x%d\" "
		        "complete_nodeset=\"0x%d\" gp_index=\"%d\"/></object>",
		        p, p + 1, p + 1, p + 1, p + 1, p + 2, p, p + 1, p + 1, p + 1, p + 1, p + 4, p, p + 1, p + 1, p + 1, p + 1, p + 6, p,
		        p + 1, p + 1, p + 1, p + 1, p + 8);
		for (int g = 0; g < 2; g++) {
			int bus = g ? 0x86 : 0x3b, at = g && !one_processor ? 1 : 0;
			bool shared = one_switch && one_processor;
			if (at != p)
				continue;
			if (!(shared && g)) {
				fprintf(f, bridge, id++, "0-1", 0, bus - 1, shared ? 0x87 : bus + 1, "");
				snprintf(more, sizeof more, plx, bus - 1);
				fprintf(f, bridge, id++, "1-1", 1, bus, shared ? 0x87 : bus, more);
			}
			fprintf(f, gpu, id++, bus);
			if (!shared || g)
				fputs("</object></object>", f);
		}
		fputs("</object>", f);
	}
	fputs("</object></topology>", f);
	assert_int_equal(fclose(f), 0);
	return strdup(path);
}

static double distance(const struct hspmd_gpu *g, bool one_switch, bool one_processor, double *alpha)
{
	char *path = machine(one_switch, one_processor);
	hwloc_topology_t t;
	double rate = 0;
	hwloc_topology_init(&t);
	hwloc_topology_set_io_types_filter(t, HWLOC_TYPE_FILTER_KEEP_ALL);
	assert_int_equal(hwloc_topology_set_xml(t, path), 0);
	assert_int_equal(hwloc_topology_load(t), 0);
	assert_int_equal(hspmd_gpu_distance(t, g, 2, 0, 1, alpha, &rate), 0);
	hwloc_topology_destroy(t);
	unlink(path);
	free(path);
	return rate;
}

static void test_distances(void **state)
{
	(void)state;
	struct hspmd_gpu *g;
	double alpha;
	setenv("FAKE_NVML_LINKS", "none", 1);
	assert_int_equal(gpus(NULL, &g), 2);
	double near = distance(g, true, true, &alpha), bridges = distance(g, false, true, &alpha), far = distance(g, false, false, &alpha);
	assert_true(near > bridges && bridges > far && far > 20);
	assert_true(fabs(near - 0.8 * 3.94 * 16) < 1e-9);
	free(g);
	setenv("FAKE_NVML_LINKS", "direct", 1);
	assert_int_equal(gpus(NULL, &g), 2);
	assert_true(fabs(distance(g, false, false, &alpha) - 0.8 * 4 * 25) < 1e-9);
	free(g);
	setenv("FAKE_NVML_LINKS", "switch", 1);
	assert_int_equal(gpus(NULL, &g), 2);
	assert_true(fabs(distance(g, false, false, &alpha) - 0.8 * 18 * 25) < 1e-9 && alpha < 1e-5);
	free(g);
	struct hspmd_error err = { "" };
	struct hspmd_topology_options o = { .skip_measure = true };
	struct hspmd_topology *t = hspmd_topology_discover(&o, &err);
	assert_non_null(t);
	const struct hspmd_link *link = hspmd_cluster_find_link(t->cluster, 0, 1, 1, 1);
	assert_non_null(link);
	double seconds = hspmd_link_seconds(link, 1e9);
	assert_true(seconds > 1 / 361.0 && seconds < 1 / 355.0);
	hspmd_topology_destroy(t);
	unsetenv("FAKE_NVML_LINKS");
}

/* The worker of a GPU may run on the cores of that GPU's processor, and no others; if the bus does not say which those are, on all. */
static void test_near(void **state)
{
	(void)state;
	static const struct {
		bool one_processor;
		const char *cpus[2];
		int numa[2];
	} kinds[] = { { false, { "0", "1" }, { 0, 1 } }, { true, { "0", "0" }, { 0, 0 } } };
	struct hspmd_error err = { "" };
	struct hspmd_topology_options o = { .skip_measure = true };
	setenv("FAKE_NVML_LINKS", "none", 1);
	unsetenv("HWLOC_COMPONENTS"); /* with it hwloc reads no machine from a file */
	for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
		char *path = machine(false, kinds[k].one_processor);
		setenv("HWLOC_XMLFILE", path, 1);
		struct hspmd_topology *t = hspmd_topology_discover(&o, &err);
		unsetenv("HWLOC_XMLFILE");
		unlink(path);
		free(path);
		assert_non_null(t);
		assert_int_equal(t->binding_count, 2);
		for (int g = 0; g < 2; g++) {
			assert_string_equal(t->bindings[g].cpus, kinds[k].cpus[g]);
			assert_int_equal(t->cluster->devices[g].numa, kinds[k].numa[g]);
		}
		hspmd_topology_destroy(t);
	}
	setenv("HWLOC_COMPONENTS", "-pci", 1);
	unsetenv("FAKE_NVML_LINKS");
}

/* ---- limits of simulated cgroups */

struct cgroup_file {
	const char *path, *text;
};

static void play_file(const char *root, const struct cgroup_file *file)
{
	char path[512];
	snprintf(path, sizeof path, "%s/%s", root, file->path);
	for (char *cut = strchr(path + strlen(root) + 1, '/'); cut; cut = strchr(cut + 1, '/')) {
		*cut = '\0';
		mkdir(path, 0700);
		*cut = '/';
	}
	FILE *f = fopen(path, "w");
	assert_non_null(f);
	assert_true(fputs(file->text, f) >= 0);
	assert_int_equal(fclose(f), 0);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
	(void)st;
	(void)type;
	(void)at;
	return remove(path);
}

static const struct {
	const char *what;
	struct cgroup_file files[5]; /* below the root */
	int cpus;
	int64_t memory_bytes;
} cgroup_cases[] = {
	{ "no cgroups", { { NULL, NULL } }, 0, 0 },
	{ "2: no limits",
	  { { "proc/self/cgroup", "0::/a\n" }, { "sys/fs/cgroup/a/cpu.max", "max 100000\n" }, { "sys/fs/cgroup/a/memory.max", "max\n" } },
	  0,
	  0 },
	{ "2: half a core is one", { { "proc/self/cgroup", "0::/a\n" }, { "sys/fs/cgroup/a/cpu.max", "50000 100000\n" } }, 1, 0 },
	{ "2: a core and a half are two", { { "proc/self/cgroup", "0::/a\n" }, { "sys/fs/cgroup/a/cpu.max", "150000 100000\n" } }, 2, 0 },
	{ "2: three cores are three", { { "proc/self/cgroup", "0::/a\n" }, { "sys/fs/cgroup/a/cpu.max", "300000 100000\n" } }, 3, 0 },
	{ "2: the least of all levels",
	  { { "proc/self/cgroup", "0::/slurm/job_1/step_0\n" },
	    { "sys/fs/cgroup/slurm/job_1/step_0/cpu.max", "400000 100000\n" },
	    { "sys/fs/cgroup/slurm/cpu.max", "250000 100000\n" },
	    { "sys/fs/cgroup/slurm/job_1/memory.max", "3000000000\n" },
	    { "sys/fs/cgroup/slurm/memory.max", "5000000000\n" } },
	  3,
	  3000000000 },
	{ "2: in the root group", { { "proc/self/cgroup", "0::/\n" }, { "sys/fs/cgroup/cpu.max", "200000 100000\n" } }, 2, 0 },
	{ "1: a quota of each controller",
	  { { "proc/self/cgroup", "9:cpuset:/z\n4:cpu,cpuacct:/x\n5:memory:/y\n" },
	    { "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "50000\n" },
	    { "sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "100000\n" },
	    { "sys/fs/cgroup/memory/y/memory.limit_in_bytes", "1000000\n" } },
	  1,
	  1000000 },
	{ "1: no limits",
	  { { "proc/self/cgroup", "4:cpu,cpuacct:/x\n5:memory:/y\n" },
	    { "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "-1\n" },
	    { "sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "100000\n" },
	    { "sys/fs/cgroup/memory/y/memory.limit_in_bytes", "9223372036854771712\n" } },
	  0,
	  0 },
	{ "2: nonsense",
	  { { "proc/self/cgroup", "\n0:\n0::/a\n" }, { "sys/fs/cgroup/a/cpu.max", "much 0\n" }, { "sys/fs/cgroup/a/memory.max", "-5\n" } },
	  0,
	  0 },
};

static void test_cgroups(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof cgroup_cases / sizeof *cgroup_cases; i++) {
		char root[] = "/tmp/hspmd-test-XXXXXX";
		struct hspmd_granted limits;
		assert_non_null(mkdtemp(root));
		for (size_t k = 0; k < 5 && cgroup_cases[i].files[k].path; k++)
			play_file(root, &cgroup_cases[i].files[k]);
		hspmd_granted_read(&limits, root);
		nftw(root, remove_one, 8, FTW_DEPTH | FTW_PHYS);
		if (limits.cpus != cgroup_cases[i].cpus || limits.memory_bytes != cgroup_cases[i].memory_bytes)
			fail_msg("%s: %d cores and %lld bytes", cgroup_cases[i].what, limits.cpus, (long long)limits.memory_bytes);
	}
}

/* What a group's memory still takes: of all levels, without what the kernel would free. */
static void test_unused_memory(void **state)
{
	static const struct {
		struct cgroup_file files[7];
		int64_t unused;
	} cases[] = {
		{ { { NULL, NULL } }, INT64_MAX },
		{ { { "proc/self/cgroup", "0::/a\n" },
		    { "sys/fs/cgroup/a/memory.max", "max\n" },
		    { "sys/fs/cgroup/a/memory.current", "7\n" } },
		  INT64_MAX },
		{ { { "proc/self/cgroup", "0::/a\n" }, { "sys/fs/cgroup/a/memory.max", "900\n" } }, INT64_MAX },
		{ { { "proc/self/cgroup", "0::/job/step\n" },
		    { "sys/fs/cgroup/job/step/memory.max", "max\n" },
		    { "sys/fs/cgroup/job/step/memory.current", "100\n" },
		    { "sys/fs/cgroup/job/memory.max", "900\n" },
		    { "sys/fs/cgroup/job/memory.current", "850\n" },
		    { "sys/fs/cgroup/job/memory.stat", "anon 650\ninactive_anon 50\ninactive_file 200\n" } },
		  250 },
		{ { { "proc/self/cgroup", "0::/a\n" },
		    { "sys/fs/cgroup/a/memory.max", "900\n" },
		    { "sys/fs/cgroup/a/memory.current", "901\n" } },
		  0 },
		{ { { "proc/self/cgroup", "5:memory:/y\n" },
		    { "sys/fs/cgroup/memory/y/memory.limit_in_bytes", "900\n" },
		    { "sys/fs/cgroup/memory/y/memory.usage_in_bytes", "500\n" },
		    { "sys/fs/cgroup/memory/y/memory.stat", "inactive_file 1\ntotal_inactive_file 30\n" } },
		  430 },
	};
	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		char root[] = "/tmp/hspmd-test-XXXXXX";
		struct hspmd_cgroup c;
		assert_non_null(mkdtemp(root));
		for (size_t k = 0; cases[i].files[k].path; k++)
			play_file(root, &cases[i].files[k]);
		hspmd_cgroup_read(&c, root);
		nftw(root, remove_one, 8, FTW_DEPTH | FTW_PHYS);
		if (c.memory_unused_bytes != cases[i].unused)
			fail_msg("case %zu: %lld bytes", i, (long long)c.memory_unused_bytes);
	}
}

/* Slurm's grants count as well as cgroups'; the smallest limit applies. */
static void test_slurm_limits(void **state)
{
	(void)state;
	struct hspmd_granted limits;
	char root[] = "/tmp/hspmd-test-XXXXXX";
	assert_non_null(mkdtemp(root));
	play_file(root, &(struct cgroup_file){ "proc/self/cgroup", "0::/a\n" });
	play_file(root, &(struct cgroup_file){ "sys/fs/cgroup/a/cpu.max", "350000 100000\n" });
	setenv("SLURM_CPUS_ON_NODE", "6", 1);
	setenv("SLURM_MEM_PER_CPU", "100", 1);
	hspmd_granted_read(&limits, root);
	assert_int_equal(limits.cpus, 4);
	assert_int_equal(limits.memory_bytes, INT64_C(600) << 20);
	setenv("SLURM_CPUS_ON_NODE", "3", 1);
	setenv("SLURM_MEM_PER_NODE", "500", 1);
	hspmd_granted_read(&limits, root);
	assert_int_equal(limits.cpus, 3);
	assert_int_equal(limits.memory_bytes, INT64_C(500) << 20);
	unsetenv("SLURM_CPUS_ON_NODE");
	unsetenv("SLURM_MEM_PER_CPU");
	unsetenv("SLURM_MEM_PER_NODE");
	nftw(root, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* One measurement at a time, also if others have made folders of these names, or let others into them. */
static void test_measurements_exclude_each_other(void **state)
{
	char folder[] = "/tmp/hspmd-test-XXXXXX", path[120];
	(void)state;
	assert_non_null(mkdtemp(folder));
	for (int squatted = 0; squatted < 3; squatted++) {
		int fd = topology_lock_machine(folder, 5);
		assert_true(fd >= 0);
		assert_int_equal(topology_lock_machine(folder, 0), -1);
		close(fd);
		assert_true((fd = topology_lock_machine(folder, 5)) >= 0);
		close(fd);
		snprintf(path, sizeof path, "%s/.hspmd-measure-%u.%d", folder, (unsigned)geteuid(), squatted);
		assert_int_equal(chmod(path, 0777), 0);
	}
	nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

int main(void)
{
	/* hwloc unloads this part of itself with memory that it did not free, which a leak checker then reports. */
	setenv("HWLOC_COMPONENTS", "-pci", 1);
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_names),         cmocka_unit_test(test_cores),   cmocka_unit_test(test_granted_by_number),
		cmocka_unit_test(test_rack),          cmocka_unit_test(test_gpus),    cmocka_unit_test(test_distances),
		cmocka_unit_test(test_near),          cmocka_unit_test(test_cgroups), cmocka_unit_test(test_slurm_limits),
		cmocka_unit_test(test_unused_memory), cmocka_unit_test(test_measurements_exclude_each_other),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
