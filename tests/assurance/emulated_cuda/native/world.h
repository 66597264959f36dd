// State of the emulated machine, shared by the files of this folder.
//
// Device memory is host memory, copies are memmove, streams and events are records, and kernels are
// counted but not run. Every operation completes before its call returns.

#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))

// Counted like a kernel: a call that would have computed on the device.
extern "C" void emulated_library_call(const char* name);

namespace emulated {

constexpr int kMaxDevices = 64;
constexpr size_t kGranule = size_t(2) << 20;  // device memory is handed out in multiples of it
constexpr int kHost = -1;                     // in the place of a device: pinned host memory

struct Model {
  const char* key;
  const char* name;
  int major, minor, multiprocessors, threads_per_multiprocessor;
  size_t memory, shared_per_block, shared_per_multiprocessor;
  int l2_cache, blocks_per_multiprocessor;
};

struct Allocation {
  size_t size, mapped;  // mapped == 0: registered by the program, not ours to unmap
  int device;
  int file = -1;  // a memfd, once the allocation has been exported to other processes
};

struct Stream {
  int device, priority;
  unsigned flags;
  unsigned long long capture = 0;  // 0: not capturing
};

struct Event {
  int device;
  unsigned flags;
  bool recorded = false;
  double at = 0;  // milliseconds
};

struct Machine {
  int count = 4;
  Model model;
  size_t memory = 0;  // of each device
  bool peers = true, fill = false;
  FILE* trace = nullptr;

  std::recursive_mutex mutex;
  std::map<uintptr_t, Allocation> allocations;
  size_t used[kMaxDevices] = {};
  bool context[kMaxDevices] = {};
  bool peer_access[kMaxDevices][kMaxDevices] = {};
  std::unordered_map<void*, Stream*> streams;
  std::unordered_map<void*, Event*> events;
  unsigned long long captures = 0;

  Machine();
};

Machine& machine();
using Lock = std::lock_guard<std::recursive_mutex>;

extern thread_local int current_device;
extern thread_local unsigned long long transfers;  // copies and memsets

cudaError_t report(cudaError_t error);  // remembers an error for cudaGetLastError
const char* error_name(int code);
const char* error_text(int code);
void trace(const char* what, const char* name);
void use_context(int device);

bool is_default_stream(cudaStream_t stream);
Stream* find_stream(cudaStream_t stream);  // null where there is none
int device_of(cudaStream_t stream);
// The error of an operation on `stream`; kernels must also run on the stream's own device.
cudaError_t check_stream(cudaStream_t stream, bool for_kernel = false);

const Allocation* find_allocation(const void* address, uintptr_t* begin = nullptr);
cudaError_t copy(void* to, const void* from, size_t bytes, cudaStream_t stream);

}  // namespace emulated
