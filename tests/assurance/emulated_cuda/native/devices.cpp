// Devices: their number, properties, peers and contexts.

#include "world.h"

#include <cstdio>
#include <cstring>

using namespace emulated;

static bool is_device(int device) { return device >= 0 && device < machine().count; }

API cudaError_t cudaGetDeviceCount(int* count) {
  *count = machine().count;
  return *count ? cudaSuccess : report(cudaErrorNoDevice);
}
API cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
API cudaError_t cudaSetDevice(int device) {
  if (!is_device(device)) return report(cudaErrorInvalidDevice);
  current_device = device;
  use_context(device);
  return cudaSuccess;
}
API cudaError_t cudaInitDevice(int device, unsigned, unsigned) {
  if (!is_device(device)) return report(cudaErrorInvalidDevice);
  use_context(device);
  return cudaSuccess;
}
API cudaError_t cudaSetDeviceFlags(unsigned) { return cudaSuccess; }
API cudaError_t cudaGetDeviceFlags(unsigned* flags) {
  *flags = 0;
  return cudaSuccess;
}
API cudaError_t cudaDeviceSynchronize() {
  use_context(current_device);
  return cudaSuccess;
}
API cudaError_t cudaDeviceReset() { return cudaSuccess; }
API cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
API cudaError_t cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }

API cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
  if (!is_device(device)) return report(cudaErrorInvalidDevice);
  const Model& model = machine().model;
  memset(p, 0, sizeof *p);
  strncpy(p->name, model.name, sizeof p->name - 1);
  for (int i = 0; i < 16; ++i) p->uuid.bytes[i] = char(i * 16 + device);
  p->totalGlobalMem = machine().memory;
  p->sharedMemPerBlock = 49152;
  p->regsPerBlock = p->regsPerMultiprocessor = 65536;
  p->warpSize = 32;
  p->memPitch = 2147483647;
  p->maxThreadsPerBlock = p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
  p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 2147483647;
  p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->totalConstMem = 65536;
  p->major = model.major;
  p->minor = model.minor;
  p->textureAlignment = 512;
  p->texturePitchAlignment = 32;
  p->multiProcessorCount = model.multiprocessors;
  p->pciBusID = 16 + device;
  p->asyncEngineCount = 3;
  p->memoryBusWidth = 5120;
  p->l2CacheSize = model.l2_cache;
  p->maxThreadsPerMultiProcessor = model.threads_per_multiprocessor;
  p->sharedMemPerMultiprocessor = model.shared_per_multiprocessor;
  p->sharedMemPerBlockOptin = model.shared_per_block;
  p->maxBlocksPerMultiProcessor = model.blocks_per_multiprocessor;
  p->reservedSharedMemPerBlock = 1024;
  p->canMapHostMemory = p->concurrentKernels = p->ECCEnabled = p->unifiedAddressing = 1;
  p->streamPrioritiesSupported = p->globalL1CacheSupported = p->localL1CacheSupported = 1;
  p->managedMemory = p->computePreemptionSupported = p->cooperativeLaunch = 1;
  p->hostRegisterSupported = p->memoryPoolsSupported = 1;
  p->clusterLaunch = model.major >= 9;
  return cudaSuccess;
}
API cudaError_t cudaGetDeviceProperties_v2(cudaDeviceProp* p, int device) {
  return cudaGetDeviceProperties(p, device);
}

API cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp p;
  if (cudaError_t error = cudaGetDeviceProperties(&p, device)) return error;
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
    case cudaDevAttrMaxBlockDimX:
    case cudaDevAttrMaxBlockDimY: *value = 1024; break;
    case cudaDevAttrMaxBlockDimZ: *value = 64; break;
    case cudaDevAttrMaxGridDimX: *value = 2147483647; break;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ: *value = 65535; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = int(p.sharedMemPerBlock); break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = int(p.sharedMemPerBlockOptin); break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = int(p.sharedMemPerMultiprocessor); break;
    case cudaDevAttrReservedSharedMemoryPerBlock: *value = 1024; break;
    case cudaDevAttrTotalConstantMemory: *value = 65536; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrMaxRegistersPerBlock:
    case cudaDevAttrMaxRegistersPerMultiprocessor: *value = 65536; break;
    case cudaDevAttrClockRate: *value = 1980000; break;
    case cudaDevAttrMemoryClockRate: *value = 2619000; break;
    case cudaDevAttrGlobalMemoryBusWidth: *value = p.memoryBusWidth; break;
    case cudaDevAttrMultiProcessorCount: *value = p.multiProcessorCount; break;
    case cudaDevAttrComputeCapabilityMajor: *value = p.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = p.minor; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = p.maxThreadsPerMultiProcessor; break;
    case cudaDevAttrMaxBlocksPerMultiprocessor: *value = p.maxBlocksPerMultiProcessor; break;
    case cudaDevAttrL2CacheSize: *value = p.l2CacheSize; break;
    case cudaDevAttrTextureAlignment: *value = 512; break;
    case cudaDevAttrPciBusId: *value = p.pciBusID; break;
    case cudaDevAttrAsyncEngineCount: *value = p.asyncEngineCount; break;
    case cudaDevAttrClusterLaunch: *value = p.clusterLaunch; break;
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrConcurrentKernels:
    case cudaDevAttrManagedMemory:
    case cudaDevAttrCooperativeLaunch:
    case cudaDevAttrStreamPrioritiesSupported:
    case cudaDevAttrMemoryPoolsSupported:
    case cudaDevAttrHostRegisterSupported:
    case cudaDevAttrEccEnabled: *value = 1; break;
    default: *value = 0;
  }
  return cudaSuccess;
}
API cudaError_t cudaDeviceGetPCIBusId(char* text, int room, int device) {
  snprintf(text, room, "0000:%02x:00.0", 16 + device);
  return cudaSuccess;
}
API cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return cudaSuccess;
}
API cudaError_t cudaDeviceSetLimit(cudaLimit, size_t) { return cudaSuccess; }
API cudaError_t cudaDeviceGetLimit(size_t* value, cudaLimit) {
  *value = 1024;
  return cudaSuccess;
}
API cudaError_t cudaProfilerStart() { return cudaSuccess; }
API cudaError_t cudaProfilerStop() { return cudaSuccess; }

// ---------------------------------------------------------------- peers

API cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  if (!is_device(device) || !is_device(peer)) return report(cudaErrorInvalidDevice);
  *can = device != peer && machine().peers;
  return cudaSuccess;
}
API cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned) {
  if (!is_device(peer) || peer == current_device) return report(cudaErrorInvalidDevice);
  bool& enabled = machine().peer_access[current_device][peer];
  if (enabled) return report(cudaErrorPeerAccessAlreadyEnabled);
  enabled = true;
  return cudaSuccess;
}
API cudaError_t cudaDeviceDisablePeerAccess(int peer) {
  machine().peer_access[current_device][peer] = false;
  return cudaSuccess;
}
API cudaError_t cudaDeviceGetP2PAttribute(int* value, cudaDeviceP2PAttr, int, int) {
  *value = machine().peers;
  return cudaSuccess;
}

// ---------------------------------------------------------------- the driver's view

static CUcontext context_of(int device) { return CUcontext(uintptr_t(0x1000 + device)); }

API CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
API CUresult cuDriverGetVersion(int* version) { return CUresult(cudaDriverGetVersion(version)); }
API CUresult cuDeviceGetCount(int* count) {
  *count = machine().count;
  return CUDA_SUCCESS;
}
API CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return is_device(ordinal) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
API CUresult cuDeviceGetName(char* text, int room, CUdevice) {
  snprintf(text, room, "%s", machine().model.name);
  return CUDA_SUCCESS;
}
API CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  return CUresult(cudaDeviceGetAttribute(value, cudaDeviceAttr(attribute), device));
}
API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
  if (flags) *flags = 0;
  *active = is_device(device) && machine().context[device];
  return CUDA_SUCCESS;
}
API CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  *context = context_of(device);
  use_context(device);
  return CUDA_SUCCESS;
}
API CUresult cuDevicePrimaryCtxRelease(CUdevice) { return CUDA_SUCCESS; }
API CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = machine().context[current_device] ? context_of(current_device) : nullptr;
  return CUDA_SUCCESS;
}
API CUresult cuCtxSetCurrent(CUcontext context) {
  if (context) current_device = int(uintptr_t(context) - 0x1000);
  return CUDA_SUCCESS;
}
API CUresult cuCtxGetDevice(CUdevice* device) {
  *device = current_device;
  return CUDA_SUCCESS;
}
API CUresult cuGetErrorString(CUresult error, const char** text) {
  *text = error_text(error);
  return CUDA_SUCCESS;
}
API CUresult cuGetErrorName(CUresult error, const char** text) {
  *text = error_name(error);
  return CUDA_SUCCESS;
}
