// A library with the functions of NVML that the driver here needs, for its tests:
// eight GPUs, the last of which has MIG parts 1 and 3. Like an old driver's, it
// has no nvmlDeviceGetMemoryAffinity.

#include <stdio.h>
#include <string.h>

enum { success = 0, uninitialized = 1, invalid = 2, not_supported = 3, not_found = 6, gpus = 8 };

struct device { int gpu, part; };
static struct device devices[gpus][4];
static int users;

const char *nvmlErrorString(int code) { (void)code; return "the fake says no"; }
int nvmlInit_v2(void) { users++; return success; }
int nvmlShutdown(void) { return users-- > 0 ? success : uninitialized; }

int nvmlDeviceGetCount_v2(unsigned *count) { *count = gpus; return users > 0 ? success : uninitialized; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct device **device) {
  if (index >= gpus) return invalid;
  *device = &devices[index][0];
  **device = (struct device){(int)index, 0};
  return success;
}

int nvmlDeviceGetUUID(struct device *device, char *uuid, unsigned bytes) {
  snprintf(uuid, bytes, device->part == 0 ? "GPU-0000000%d-aaaa" : "MIG-0000000%d-bbbb-%d", device->gpu, device->part);
  return success;
}

int nvmlDeviceGetName(struct device *device, char *name, unsigned bytes) {
  (void)device;
  snprintf(name, bytes, "NVIDIA Fake 80GB");
  return success;
}

struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char address[32]; };

int nvmlDeviceGetPciInfo_v3(struct device *device, struct pci *pci) {
  memset(pci, 0, sizeof *pci);
  snprintf(pci->address, sizeof pci->address, "00000000:%02X:00.0", 0x1a + device->gpu);
  return success;
}

int nvmlDeviceGetMigMode(struct device *device, unsigned *current, unsigned *pending) {
  if (device->gpu == 0) return not_supported;
  *current = *pending = device->gpu == gpus - 1;
  return success;
}

int nvmlDeviceGetMaxMigDeviceCount(struct device *device, unsigned *count) { (void)device; *count = 4; return success; }

int nvmlDeviceGetMigDeviceHandleByIndex(struct device *device, unsigned index, struct device **part) {
  if (index != 1 && index != 3) return not_found;
  *part = &devices[device->gpu][index];
  **part = (struct device){device->gpu, (int)index};
  return success;
}

int nvmlDeviceGetGpuInstanceId(struct device *device, unsigned *id) { *id = 10 + device->part; return success; }
int nvmlDeviceGetComputeInstanceId(struct device *device, unsigned *id) { (void)device; *id = 0; return success; }
