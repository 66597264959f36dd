// What PyTorch asks of NVML, as libnvidia-ml.so.1.

#include <cstdio>
#include <cstdlib>

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
API int nvmlDeviceGetHandleByPciBusId_v2(const char*, void** handle) { return nvmlDeviceGetHandleByIndex_v2(0, handle); }
API int nvmlDeviceGetComputeRunningProcesses(void*, unsigned* count, void*) {
  *count = 0;
  return 0;
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
