// Memory: of devices, pinned, registered, exported to other processes; copies and memsets.

#include "world.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

using namespace emulated;

static size_t in_granules(size_t bytes) { return (bytes + kGranule - 1) / kGranule * kGranule; }

namespace emulated {

const Allocation* find_allocation(const void* address, uintptr_t* begin) {
  auto& all = machine().allocations;
  auto after = all.upper_bound(uintptr_t(address));
  if (after == all.begin()) return nullptr;
  auto& [start, found] = *--after;
  if (uintptr_t(address) >= start + std::max<size_t>(found.size, 1)) return nullptr;
  if (begin) *begin = start;
  return &found;
}

cudaError_t copy(void* to, const void* from, size_t bytes, cudaStream_t stream) {
  if (cudaError_t error = check_stream(stream)) return report(error);
  use_context(current_device);
  ++transfers;
  if (bytes) memmove(to, from, bytes);
  return cudaSuccess;
}

}  // namespace emulated

// Memory that begins at a multiple of the granule; pages get real memory when they are written.
static void* reserve(size_t bytes, int device) {
  size_t whole = in_granules(bytes);
  char* area = (char*)mmap(nullptr, whole + kGranule, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (area == MAP_FAILED) return nullptr;
  char* start = (char*)in_granules(uintptr_t(area));
  if (start > area) munmap(area, start - area);
  munmap(start + whole, kGranule - (start - area));
  if (machine().fill && whole <= (size_t(64) << 20)) memset(start, 0xFF, whole);
  machine().allocations[uintptr_t(start)] = {bytes, whole, device};
  return start;
}

static void release(std::map<uintptr_t, Allocation>::iterator found) {
  munmap((void*)found->first, found->second.mapped);
  if (found->second.file >= 0) close(found->second.file);
  machine().allocations.erase(found);
}

API cudaError_t cudaMemGetInfo(size_t* available, size_t* total) {
  Machine& m = machine();
  Lock lock(m.mutex);
  use_context(current_device);
  *total = m.memory;
  *available = m.memory - std::min(m.memory, m.used[current_device]);
  return cudaSuccess;
}
API cudaError_t cudaMalloc(void** address, size_t bytes) {
  Machine& m = machine();
  Lock lock(m.mutex);
  use_context(current_device);
  *address = nullptr;
  if (!bytes) return cudaSuccess;
  size_t whole = in_granules(bytes);
  if (m.used[current_device] + whole > m.memory || !(*address = reserve(bytes, current_device)))
    return report(cudaErrorMemoryAllocation);
  m.used[current_device] += whole;
  return cudaSuccess;
}
API cudaError_t cudaFree(void* address) {
  use_context(current_device);
  if (!address) return cudaSuccess;
  Machine& m = machine();
  Lock lock(m.mutex);
  auto found = m.allocations.find(uintptr_t(address));
  if (found == m.allocations.end() || found->second.device == kHost) return report(cudaErrorInvalidValue);
  m.used[found->second.device] -= found->second.mapped;
  release(found);
  return cudaSuccess;
}
API cudaError_t cudaMallocAsync(void** address, size_t bytes, cudaStream_t) { return cudaMalloc(address, bytes); }
API cudaError_t cudaFreeAsync(void* address, cudaStream_t) { return cudaFree(address); }
API cudaError_t cudaMallocFromPoolAsync(void** address, size_t bytes, cudaMemPool_t, cudaStream_t) {
  return cudaMalloc(address, bytes);
}
API cudaError_t cudaMallocManaged(void** address, size_t bytes, unsigned) { return cudaMalloc(address, bytes); }

// ---------------------------------------------------------------- pinned and registered memory

API cudaError_t cudaHostAlloc(void** address, size_t bytes, unsigned) {
  Lock lock(machine().mutex);
  *address = bytes ? reserve(bytes, kHost) : nullptr;
  return *address || !bytes ? cudaSuccess : report(cudaErrorMemoryAllocation);
}
API cudaError_t cudaMallocHost(void** address, size_t bytes) { return cudaHostAlloc(address, bytes, 0); }
API cudaError_t cudaFreeHost(void* address) {
  if (!address) return cudaSuccess;
  Lock lock(machine().mutex);
  auto found = machine().allocations.find(uintptr_t(address));
  if (found == machine().allocations.end() || found->second.device != kHost || !found->second.mapped)
    return report(cudaErrorInvalidValue);
  release(found);
  return cudaSuccess;
}
API cudaError_t cudaHostRegister(void* address, size_t bytes, unsigned) {
  Lock lock(machine().mutex);
  if (find_allocation(address)) return report(cudaErrorHostMemoryAlreadyRegistered);
  machine().allocations[uintptr_t(address)] = {bytes, 0, kHost};
  return cudaSuccess;
}
API cudaError_t cudaHostUnregister(void* address) {
  Lock lock(machine().mutex);
  auto found = machine().allocations.find(uintptr_t(address));
  if (found == machine().allocations.end() || found->second.mapped)
    return report(cudaErrorHostMemoryNotRegistered);
  machine().allocations.erase(found);
  return cudaSuccess;
}
API cudaError_t cudaHostGetDevicePointer(void** address, void* host, unsigned) {
  *address = host;
  return cudaSuccess;
}
API cudaError_t cudaHostGetFlags(unsigned* flags, void*) {
  *flags = 0;
  return cudaSuccess;
}
API cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* result, const void* address) {
  Lock lock(machine().mutex);
  memset(result, 0, sizeof *result);
  const Allocation* found = find_allocation(address);
  void* pointer = const_cast<void*>(address);
  if (!found) {
    result->type = cudaMemoryTypeUnregistered;
    result->device = -2;
    result->hostPointer = pointer;
    return cudaSuccess;
  }
  bool pinned = found->device == kHost;
  result->type = pinned ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
  result->device = pinned ? current_device : found->device;
  result->devicePointer = pointer;
  if (pinned) result->hostPointer = pointer;
  return cudaSuccess;
}

// ---------------------------------------------------------------- copies

API cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  return copy(to, from, bytes, stream);
}
API cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  return copy(to, from, bytes, nullptr);
}
API cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, cudaStream_t stream) {
  return copy(to, from, bytes, stream);
}
API cudaError_t cudaMemcpyPeer(void* to, int, const void* from, int, size_t bytes) {
  return copy(to, from, bytes, nullptr);
}
API cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                                  size_t height, cudaMemcpyKind, cudaStream_t stream) {
  if (cudaError_t error = check_stream(stream)) return report(error);
  ++transfers;
  for (size_t i = 0; i < height; ++i)
    memmove((char*)to + i * to_pitch, (const char*)from + i * from_pitch, width);
  return cudaSuccess;
}
API cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                             size_t height, cudaMemcpyKind kind) {
  return cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width, height, kind, nullptr);
}
API cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  if (cudaError_t error = check_stream(stream)) return report(error);
  ++transfers;
  if (bytes) memset(to, value, bytes);
  return cudaSuccess;
}
API cudaError_t cudaMemset(void* to, int value, size_t bytes) { return cudaMemsetAsync(to, value, bytes, nullptr); }
API cudaError_t cudaMemset2DAsync(void* to, size_t pitch, int value, size_t width, size_t height, cudaStream_t) {
  ++transfers;
  for (size_t i = 0; i < height; ++i) memset((char*)to + i * pitch, value, width);
  return cudaSuccess;
}
#if CUDART_VERSION >= 13000
API cudaError_t cudaMemAdvise(const void*, size_t, cudaMemoryAdvise, cudaMemLocation) { return cudaSuccess; }
API cudaError_t cudaMemPrefetchAsync(const void*, size_t, cudaMemLocation, unsigned, cudaStream_t) {
  return cudaSuccess;
}
#endif

// ---------------------------------------------------------------- pools of cudaMallocAsync

API cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int) {
  *pool = (cudaMemPool_t)0x10;
  return cudaSuccess;
}
API cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* pool, int device) {
  return cudaDeviceGetDefaultMemPool(pool, device);
}
API cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps*) {
  *pool = (cudaMemPool_t)0x20;
  return cudaSuccess;
}
API cudaError_t cudaMemPoolDestroy(cudaMemPool_t) { return cudaSuccess; }
API cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return cudaSuccess; }
API cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr, void* value) {
  *(unsigned long long*)value = 0;
  return cudaSuccess;
}
API cudaError_t cudaMemPoolSetAccess(cudaMemPool_t, const cudaMemAccessDesc*, size_t) { return cudaSuccess; }
API cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t) { return cudaSuccess; }

// ---------------------------------------------------------------- between processes

namespace {
struct Exported {  // fits the 64 bytes of a handle
  int process, file, device;
  size_t size, mapped;
};
static_assert(sizeof(Exported) <= sizeof(cudaIpcMemHandle_t));
}  // namespace

// The allocation moves to a file in memory, at its own address; other processes map that file.
API cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* address) {
  Lock lock(machine().mutex);
  auto found = machine().allocations.find(uintptr_t(address));
  if (found == machine().allocations.end() || found->second.device == kHost) return report(cudaErrorInvalidValue);
  Allocation& one = found->second;
  if (one.file < 0) {
    int file = memfd_create("emulated-cuda", MFD_CLOEXEC);
    bool ok = file >= 0 && !ftruncate(file, one.mapped);
    for (size_t at = 0; ok && at < one.mapped;) {
      ssize_t written = pwrite(file, (char*)address + at, one.mapped - at, at);
      ok = written > 0;
      at += ok ? written : 0;
    }
    ok = ok && mmap(address, one.mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == address;
    if (!ok) return report(cudaErrorMemoryAllocation);
    one.file = file;
  }
  Exported exported = {getpid(), one.file, one.device, one.size, one.mapped};
  memset(handle, 0, sizeof *handle);
  memcpy(handle, &exported, sizeof exported);
  return cudaSuccess;
}
API cudaError_t cudaIpcOpenMemHandle(void** address, cudaIpcMemHandle_t handle, unsigned) {
  Exported exported;
  memcpy(&exported, &handle, sizeof exported);
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/fd/%d", exported.process, exported.file);
  int file = open(path, O_RDWR | O_CLOEXEC);
  if (file < 0) return report(cudaErrorInvalidResourceHandle);
  Lock lock(machine().mutex);
  void* start = reserve(exported.size, exported.device);
  if (!start || mmap(start, exported.mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) != start) {
    close(file);
    return report(cudaErrorMemoryAllocation);
  }
  machine().allocations[uintptr_t(start)].file = file;
  *address = start;
  return cudaSuccess;
}
API cudaError_t cudaIpcCloseMemHandle(void* address) {
  Lock lock(machine().mutex);
  auto found = machine().allocations.find(uintptr_t(address));
  if (found == machine().allocations.end()) return report(cudaErrorInvalidValue);
  release(found);
  return cudaSuccess;
}

// ---------------------------------------------------------------- what the driver says of addresses

API CUresult cuMemGetAddressRange_v2(CUdeviceptr* begin, size_t* bytes, CUdeviceptr address) {
  Lock lock(machine().mutex);
  uintptr_t start = 0;
  const Allocation* found = find_allocation((void*)address, &start);
  if (!found) return CUDA_ERROR_INVALID_VALUE;
  if (begin) *begin = start;
  if (bytes) *bytes = found->size;
  return CUDA_SUCCESS;
}
#undef cuMemGetAddressRange
API CUresult cuMemGetAddressRange(CUdeviceptr* begin, size_t* bytes, CUdeviceptr address) {
  return cuMemGetAddressRange_v2(begin, bytes, address);
}
API CUresult cuPointerGetAttribute(void* value, CUpointer_attribute attribute, CUdeviceptr address) {
  Lock lock(machine().mutex);
  const Allocation* found = find_allocation((void*)address);
  if (!found) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int*)value = found->device; break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *(unsigned*)value = found->device == kHost ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
      break;
    case CU_POINTER_ATTRIBUTE_CONTEXT: *(void**)value = (void*)uintptr_t(0x1000 + found->device); break;
    default: *(unsigned long long*)value = 0;
  }
  return CUDA_SUCCESS;
}
