// Kernels: registered with their names, checked as the runtime checks a launch, counted, not run.
// Also the driver's side of modules and the lookup of its functions.

#include "world.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

using namespace emulated;

static thread_local unsigned long long launches = 0;  // kernels and computing calls of libraries

static std::vector<std::pair<const void*, const char*>> registered;
static std::unordered_map<const void*, std::pair<void*, size_t>> symbols;

// The functions that tests call through ctypes. Counts are those of the calling thread.
API unsigned long long emulated_launches() { return launches; }
API unsigned long long emulated_transfers() { return transfers; }
API size_t emulated_used(int device) { return machine().used[device]; }
API int emulated_devices() { return machine().count; }
API const char* emulated_model() { return machine().model.key; }

API void emulated_library_call(const char* name) {
  ++launches;
  trace("library", name);
}

static const char* name_of(const void* kernel) {
  static std::unordered_map<const void*, const char*> names;
  static size_t indexed = 0;
  Lock lock(machine().mutex);
  for (; indexed < registered.size(); ++indexed) names.insert(registered[indexed]);
  auto found = names.find(kernel);
  return found == names.end() ? "?" : found->second;
}

static cudaError_t launch(const void* kernel, dim3 grid, dim3 block, cudaStream_t stream) {
  use_context(current_device);
  bool empty = !grid.x || !grid.y || !grid.z || !block.x || !block.y || !block.z;
  bool large = grid.x > 2147483647u || grid.y > 65535 || grid.z > 65535 || block.x > 1024 || block.y > 1024 ||
               block.z > 64 || (unsigned long long)block.x * block.y * block.z > 1024;
  if (empty || large) return report(cudaErrorInvalidConfiguration);
  if (cudaError_t error = check_stream(stream, true)) return report(error);
  ++launches;
  if (machine().trace) trace("launch", name_of(kernel));
  return cudaSuccess;
}

// ---------------------------------------------------------------- what compiled CUDA code registers

API void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
API void __cudaRegisterFatBinaryEnd(void**) {}
API void __cudaUnregisterFatBinary(void**) {}
API char __cudaInitModule(void**) { return 1; }
API void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*,
                                int*) {
  Lock lock(machine().mutex);
  registered.emplace_back(host, name);
}
API void __cudaRegisterVar(void**, char* host, char*, const char*, int, size_t bytes, int, int) {
  Lock lock(machine().mutex);
  symbols[host] = {calloc(1, bytes ? bytes : 1), bytes};
}
API void __cudaRegisterManagedVar(void**, void** host, char*, const char*, int, size_t bytes, int, int) {
  *host = calloc(1, bytes ? bytes : 1);
}
API void __cudaRegisterTexture(void**, const void*, const void**, const char*, int, int, int) {}
API void __cudaRegisterSurface(void**, const void*, const void**, const char*, int, int) {}

// ---------------------------------------------------------------- launches

namespace {
struct Configuration {
  dim3 grid, block;
  size_t shared;
  void* stream;
};
thread_local std::vector<Configuration> configurations;
}  // namespace

API unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void* stream) {
  configurations.push_back({grid, block, shared, stream});
  return 0;
}
API cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  if (configurations.empty()) return cudaErrorUnknown;
  Configuration one = configurations.back();
  configurations.pop_back();
  *grid = one.grid;
  *block = one.block;
  *shared = one.shared;
  *(void**)stream = one.stream;
  return cudaSuccess;
}
API cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = (cudaKernel_t)function;
  return cudaSuccess;
}
API cudaError_t cudaGetKernel(cudaKernel_t* kernel, const void* function) { return __cudaGetKernel(kernel, function); }
API cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void**, size_t, cudaStream_t stream) {
  return launch(function, grid, block, stream);
}
API cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void**, size_t, cudaStream_t stream) {
  return launch(kernel, grid, block, stream);
}
API cudaError_t __cudaLaunchKernel_ptsz(cudaKernel_t kernel, dim3 grid, dim3 block, void**, size_t,
                                        cudaStream_t stream) {
  return launch(kernel, grid, block, stream);
}
API cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3 grid, dim3 block, void**, size_t,
                                            cudaStream_t stream) {
  return launch(function, grid, block, stream);
}
API cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* configuration, const void* function, void**) {
  return launch(function, configuration->gridDim, configuration->blockDim, configuration->stream);
}

// ---------------------------------------------------------------- what a kernel is like

API cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  memset(attributes, 0, sizeof *attributes);
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 32;
  attributes->ptxVersion = attributes->binaryVersion = machine().model.major * 10 + machine().model.minor;
  attributes->maxDynamicSharedSizeBytes = 49152;
  return cudaSuccess;
}
API cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
API cudaError_t cudaFuncSetCacheConfig(const void*, cudaFuncCache) { return cudaSuccess; }
API cudaError_t cudaFuncGetName(const char** name, const void* function) {
  *name = name_of(function);
  return cudaSuccess;
}
API cudaError_t cudaFuncGetParamInfo(const void*, size_t, size_t*, size_t*) { return report(cudaErrorNotSupported); }
API cudaError_t cudaGetFuncBySymbol(cudaFunction_t* function, const void* symbol) {
  *function = (cudaFunction_t)symbol;
  return cudaSuccess;
}
API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* count, const void*, int block,
                                                                       size_t shared, unsigned) {
  const Model& model = machine().model;
  if (block <= 0) return report(cudaErrorInvalidValue);
  int by_threads = model.threads_per_multiprocessor / ((block + 31) / 32 * 32);
  int by_shared = shared ? int(model.shared_per_multiprocessor / (shared + 1024)) : model.blocks_per_multiprocessor;
  *count = std::min({by_threads, by_shared, model.blocks_per_multiprocessor});
  return cudaSuccess;
}
API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* count, const void* function, int block,
                                                              size_t shared) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(count, function, block, shared, 0);
}
API cudaError_t cudaOccupancyAvailableDynamicSMemPerBlock(size_t* bytes, const void*, int, int) {
  *bytes = 49152;
  return cudaSuccess;
}
API cudaError_t cudaOccupancyMaxActiveClusters(int* count, const void*, const cudaLaunchConfig_t*) {
  *count = 1;
  return cudaSuccess;
}
API cudaError_t cudaOccupancyMaxPotentialClusterSize(int* count, const void*, const cudaLaunchConfig_t*) {
  *count = 8;
  return cudaSuccess;
}

// ---------------------------------------------------------------- variables of devices

static std::pair<void*, size_t> find_symbol(const void* symbol) {
  Lock lock(machine().mutex);
  auto found = symbols.find(symbol);
  if (found == symbols.end())
    found = symbols.emplace(symbol, std::make_pair(calloc(1, 65536), size_t(65536))).first;
  return found->second;
}
API cudaError_t cudaGetSymbolAddress(void** address, const void* symbol) {
  *address = find_symbol(symbol).first;
  return cudaSuccess;
}
API cudaError_t cudaGetSymbolSize(size_t* bytes, const void* symbol) {
  *bytes = find_symbol(symbol).second;
  return cudaSuccess;
}
API cudaError_t cudaMemcpyToSymbolAsync(const void* symbol, const void* from, size_t bytes, size_t offset,
                                        cudaMemcpyKind, cudaStream_t stream) {
  return copy((char*)find_symbol(symbol).first + offset, from, bytes, stream);
}
API cudaError_t cudaMemcpyToSymbol(const void* symbol, const void* from, size_t bytes, size_t offset,
                                   cudaMemcpyKind kind) {
  return cudaMemcpyToSymbolAsync(symbol, from, bytes, offset, kind, nullptr);
}
API cudaError_t cudaMemcpyFromSymbolAsync(void* to, const void* symbol, size_t bytes, size_t offset, cudaMemcpyKind,
                                          cudaStream_t stream) {
  return copy(to, (char*)find_symbol(symbol).first + offset, bytes, stream);
}
API cudaError_t cudaMemcpyFromSymbol(void* to, const void* symbol, size_t bytes, size_t offset, cudaMemcpyKind kind) {
  return cudaMemcpyFromSymbolAsync(to, symbol, bytes, offset, kind, nullptr);
}

// ---------------------------------------------------------------- modules of the driver

API CUresult cuModuleLoadData(CUmodule* module, const void*) {
  *module = (CUmodule)0x50;
  return CUDA_SUCCESS;
}
API CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned, CUjit_option*, void**) {
  return cuModuleLoadData(module, image);
}
API CUresult cuModuleGetFunction(CUfunction* function, CUmodule, const char* name) {
  *function = (CUfunction)strdup(name);
  return CUDA_SUCCESS;
}
API CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction) {
  *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
  return CUDA_SUCCESS;
}
API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* count, CUfunction, int block, size_t shared) {
  return CUresult(cudaOccupancyMaxActiveBlocksPerMultiprocessor(count, nullptr, block, shared));
}
API CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
                            void**, void**) {
  emulated_library_call("cuLaunchKernel");
  return CUDA_SUCCESS;
}
API CUresult cuLaunchKernelEx(const CUlaunchConfig*, CUfunction, void**, void**) {
  emulated_library_call("cuLaunchKernelEx");
  return CUDA_SUCCESS;
}

// NVRTC and statically linked runtimes ask for private tables of NVIDIA's driver: there are none.
API CUresult cuGetExportTable(const void** table, const CUuuid*) {
  if (table) *table = nullptr;
  return CUDA_ERROR_NOT_FOUND;
}

static CUresult do_nothing() { return CUDA_SUCCESS; }

static void* find_function(const char* name) {
  static void* self = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  void* found = self ? dlsym(self, name) : nullptr;
  if (!found) trace("missing", name);
  return found ? found : (void*)&do_nothing;
}
API CUresult cuGetProcAddress_v2(const char* name, void** function, int, cuuint64_t,
                                 CUdriverProcAddressQueryResult* status) {
  *function = find_function(name);
  if (status) *status = CU_GET_PROC_ADDRESS_SUCCESS;
  return CUDA_SUCCESS;
}
API cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                                 cudaDriverEntryPointQueryResult* status) {
  *function = find_function(name);
  if (status) *status = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
API cudaError_t cudaGetDriverEntryPoint(const char* name, void** function, unsigned long long flags,
                                        cudaDriverEntryPointQueryResult* status) {
  return cudaGetDriverEntryPointByVersion(name, function, 0, flags, status);
}
