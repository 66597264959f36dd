// The machine itself: what the environment asks for, errors, streams' checks.

#include "world.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace emulated {

// Figures that cudaGetDeviceProperties reports on such cards.
static const Model kModels[] = {
    {"h100", "NVIDIA H100 80GB HBM3", 9, 0, 132, 2048, 85017755648ull, 232448, 233472, 52428800, 32},
    {"a100", "NVIDIA A100-SXM4-40GB", 8, 0, 108, 2048, 42298834944ull, 166912, 167936, 41943040, 32},
    {"t4", "Tesla T4", 7, 5, 40, 1024, 15655829504ull, 65536, 65536, 4194304, 16},
};

Machine::Machine() : model(kModels[0]) {
  if (const char* text = getenv("EMULATED_CUDA_DEVICES"))
    count = std::min(std::max(atoi(text), 0), kMaxDevices);
  if (const char* text = getenv("EMULATED_CUDA_MODEL")) {
    auto found = std::find_if(std::begin(kModels), std::end(kModels),
                              [&](const Model& one) { return !strcmp(one.key, text); });
    if (found == std::end(kModels)) {
      fprintf(stderr, "EMULATED_CUDA_MODEL=%s: expected h100, a100 or t4\n", text);
      exit(2);
    }
    model = *found;
  }
  memory = model.memory;
  if (const char* text = getenv("EMULATED_CUDA_MEMORY")) memory = strtoull(text, nullptr, 10);
  if (const char* text = getenv("EMULATED_CUDA_TRACE")) trace = fopen(text, "a");
  peers = !getenv("EMULATED_CUDA_NO_PEERS");
  fill = getenv("EMULATED_CUDA_FILL") != nullptr;
}

Machine& machine() {
  static Machine* const one = new Machine;  // never destroyed: libraries unload in any order
  return *one;
}

thread_local int current_device = 0;
thread_local unsigned long long transfers = 0;
static thread_local cudaError_t last_error = cudaSuccess;

cudaError_t report(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

void trace(const char* what, const char* name) {
  Machine& m = machine();
  if (!m.trace) return;
  Lock lock(m.mutex);
  fprintf(m.trace, "%s %s\n", what, name);
  fflush(m.trace);
}

void use_context(int device) { machine().context[device] = true; }

// Null, and the two handles that name the legacy and the per-thread default stream.
bool is_default_stream(cudaStream_t stream) { return uintptr_t(stream) <= 2; }

Stream* find_stream(cudaStream_t stream) {
  Machine& m = machine();
  Lock lock(m.mutex);
  auto found = m.streams.find(stream);
  return found == m.streams.end() ? nullptr : found->second;
}

int device_of(cudaStream_t stream) {
  Stream* one = is_default_stream(stream) ? nullptr : find_stream(stream);
  return one ? one->device : current_device;
}

cudaError_t check_stream(cudaStream_t stream, bool for_kernel) {
  if (is_default_stream(stream)) return cudaSuccess;
  Stream* one = find_stream(stream);
  if (!one || (for_kernel && one->device != current_device)) return cudaErrorInvalidResourceHandle;
  return cudaSuccess;
}

struct ErrorText {
  int code;
  const char *name, *text;
};
static const ErrorText kErrors[] = {
    {0, "cudaSuccess", "no error"},
    {1, "cudaErrorInvalidValue", "invalid argument"},
    {2, "cudaErrorMemoryAllocation", "out of memory"},
    {3, "cudaErrorInitializationError", "initialization error"},
    {9, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {34, "cudaErrorStubLibrary", "CUDA driver is a stub library"},
    {98, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {100, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {101, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {217, "cudaErrorPeerAccessUnsupported", "peer access is not supported between these two devices"},
    {400, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {600, "cudaErrorNotReady", "device not ready"},
    {700, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {704, "cudaErrorPeerAccessAlreadyEnabled", "peer access is already enabled"},
    {705, "cudaErrorPeerAccessNotEnabled", "peer access has not been enabled"},
    {712, "cudaErrorHostMemoryAlreadyRegistered", "part or all of the requested memory range is already mapped"},
    {713, "cudaErrorHostMemoryNotRegistered", "pointer does not correspond to a registered memory region"},
    {801, "cudaErrorNotSupported", "operation not supported"},
    {900, "cudaErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"},
    {901, "cudaErrorStreamCaptureInvalidated", "operation failed due to a previous error during capture"},
    {999, "cudaErrorUnknown", "unknown error"},
};
static const ErrorText& find_error(int code) {
  for (const ErrorText& one : kErrors)
    if (one.code == code) return one;
  return std::end(kErrors)[-1];
}
const char* error_name(int code) { return find_error(code).name; }
const char* error_text(int code) { return find_error(code).text; }

}  // namespace emulated

using namespace emulated;

API const char* cudaGetErrorString(cudaError_t error) { return error_text(error); }
API const char* cudaGetErrorName(cudaError_t error) { return error_name(error); }
API cudaError_t cudaPeekAtLastError() { return last_error; }
API cudaError_t cudaGetLastError() {
  cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}
