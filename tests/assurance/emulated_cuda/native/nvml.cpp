// What PyTorch asks of NVML, as libnvidia-ml.so.1.

#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#define API extern "C" __attribute__((visibility("default")))

static constexpr int kNotSupported = 3;
static constexpr long kFirstHandle = 0x100;

API int nvmlInit_v2() { return 0; }
API int nvmlInit() { return 0; }
API int nvmlInitWithFlags(unsigned) { return 0; }
API int nvmlShutdown() { return 0; }
API int nvmlDeviceGetCount_v2(int* count) {
  const char* text = getenv("EMULATED_CUDA_DEVICES");
  *count = text ? atoi(text) : 4;
  return 0;
}
API int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** handle) {
  *handle = (void*)(kFirstHandle + index);
  return 0;
}
// Device N is on bus 16 + N, as cudaDeviceGetPCIBusId says.
API int nvmlDeviceGetHandleByPciBusId_v2(const char* bus, void** handle) {
  const char* number = strchr(bus, ':');
  return nvmlDeviceGetHandleByIndex_v2(number ? unsigned(strtoul(number + 1, nullptr, 16)) - 16 : 0, handle);
}

// The process itself is the only one on a device. Newer versions of the entry only grow at its end.
struct Process {
  unsigned pid;
  unsigned long long used;
};
API int nvmlDeviceGetComputeRunningProcesses(void* handle, unsigned* count, Process* processes) {
  auto used = (size_t(*)(int))dlsym(RTLD_DEFAULT, "emulated_used");
  if (!used || !*count) return kNotSupported;
  *count = 1;
  processes[0].pid = unsigned(getpid());
  processes[0].used = used(int(long(handle) - kFirstHandle));
  return 0;
}
API int nvmlDeviceGetComputeRunningProcesses_v3(void* handle, unsigned* count, Process* processes) {
  return nvmlDeviceGetComputeRunningProcesses(handle, count, processes);
}
API int nvmlDeviceGetUUID(void* handle, char* text, unsigned room) {
  snprintf(text, room, "GPU-00000000-0000-0000-0000-%012lx", long(handle) - kFirstHandle);
  return 0;
}
API const char* nvmlErrorString(int) { return "emulated NVML"; }
API int nvmlDeviceGetNvLinkRemoteDeviceType(void*, unsigned, int*) { return kNotSupported; }
API int nvmlDeviceGetNvLinkRemotePciInfo_v2(void*, unsigned, void*) { return kNotSupported; }
API int nvmlDeviceGetGpuFabricInfoV(void*, void*) { return kNotSupported; }
API int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  *version = 13000;
  return 0;
}
