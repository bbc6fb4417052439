/* SPDX-License-Identifier: Apache-2.0 */
/* A management library with two H200s, the second of which is divided into two slices, and a GPU that was lost. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct device {
	const char *name, *uuid;
	unsigned long long memory;
	unsigned bus;
};
static struct device devices[] = {
	{ "NVIDIA H200", "GPU-aaaa0000-1111", 150754820096ull, 0x3b },
	{ "NVIDIA H200", "GPU-bbbb0000-2222", 150754820096ull, 0x86 },
	{ NULL, NULL, 0, 0 },
};
static struct device slices[] = {
	{ "NVIDIA H200 MIG 3g.71gb", "MIG-cccc0000-3333", 76000000000ull, 0x86 },
	{ "NVIDIA H200 MIG 4g.71gb", "MIG-dddd0000-4444", 76000000000ull, 0x86 },
};

int nvmlInit_v2(void);
int nvmlShutdown(void);
int nvmlDeviceGetCount_v2(unsigned *n);
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **d);
int nvmlDeviceGetName(void *d, char *buf, unsigned size);
int nvmlDeviceGetUUID(void *d, char *buf, unsigned size);
int nvmlDeviceGetMemoryInfo(void *d, unsigned long long *memory);
int nvmlDeviceGetPciInfo_v3(void *d, void *info);
int nvmlDeviceGetMigMode(void *d, unsigned *mode, unsigned *pending);
int nvmlDeviceGetMaxMigDeviceCount(void *d, unsigned *n);
int nvmlDeviceGetMigDeviceHandleByIndex(void *d, unsigned i, void **slice);

/* FAKE_NVML_LINKS: "switch" or "direct", how the first two GPUs are linked; then neither is divided into slices. */
int nvmlDeviceGetNvLinkState(void *d, unsigned link, int *active);
int nvmlDeviceGetNvLinkVersion(void *d, unsigned link, unsigned *version);
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *d, unsigned link, void *info);
int nvmlDeviceGetMaxPcieLinkGeneration(void *d, unsigned *generation);
int nvmlDeviceGetMaxPcieLinkWidth(void *d, unsigned *width);
int nvmlDeviceGetCudaComputeCapability(void *d, int *major, int *minor);

static const char *links(void)
{
	const char *how = getenv("FAKE_NVML_LINKS");
	return how ? how : "";
}

static void write_pci(void *info, unsigned bus)
{
	unsigned numbers[5] = { 0, bus, 0, 0, 0 };
	memset(info, 0, 68);
	memcpy((char *)info + 16, numbers, sizeof numbers);
}

int nvmlDeviceGetNvLinkState(void *d, unsigned link, int *active)
{
	(void)d;
	*active = link < (!strcmp(links(), "switch") ? 18 : !strcmp(links(), "direct") ? 4 : 0);
	return 0;
}

int nvmlDeviceGetNvLinkVersion(void *d, unsigned link, unsigned *version)
{
	(void)d;
	(void)link;
	*version = 4;
	return 0;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *d, unsigned link, void *info)
{
	write_pci(info, !strcmp(links(), "switch") ? 0xc0 + link % 4 : d == &devices[0] ? devices[1].bus : devices[0].bus);
	return 0;
}

int nvmlDeviceGetMaxPcieLinkGeneration(void *d, unsigned *generation)
{
	(void)d;
	*generation = 5;
	return 0;
}

int nvmlDeviceGetMaxPcieLinkWidth(void *d, unsigned *width)
{
	(void)d;
	*width = 16;
	return 0;
}

int nvmlDeviceGetCudaComputeCapability(void *d, int *major, int *minor)
{
	(void)d;
	*major = 9;
	*minor = 0;
	return 0;
}

int nvmlInit_v2(void)
{
	return 0;
}

int nvmlShutdown(void)
{
	return 0;
}

int nvmlDeviceGetCount_v2(unsigned *n)
{
	*n = 3;
	return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **d)
{
	*d = &devices[i];
	return devices[i].name ? 0 : 15;
}

int nvmlDeviceGetName(void *d, char *buf, unsigned size)
{
	snprintf(buf, size, "%s", ((struct device *)d)->name);
	return 0;
}

int nvmlDeviceGetUUID(void *d, char *buf, unsigned size)
{
	snprintf(buf, size, "%s", ((struct device *)d)->uuid);
	return 0;
}

int nvmlDeviceGetMemoryInfo(void *d, unsigned long long *memory)
{
	memory[0] = ((struct device *)d)->memory;
	memory[1] = memory[2] = 0;
	return 0;
}

int nvmlDeviceGetPciInfo_v3(void *d, void *info)
{
	write_pci(info, ((struct device *)d)->bus);
	return 0;
}

int nvmlDeviceGetMigMode(void *d, unsigned *mode, unsigned *pending)
{
	*mode = *pending = d == &devices[1] && !getenv("FAKE_NVML_LINKS");
	return 0;
}

int nvmlDeviceGetMaxMigDeviceCount(void *d, unsigned *n)
{
	(void)d;
	*n = 7;
	return 0;
}

int nvmlDeviceGetMigDeviceHandleByIndex(void *d, unsigned i, void **slice)
{
	(void)d;
	*slice = i < 2 ? &slices[i] : NULL;
	return i < 2 ? 0 : 6;
}
