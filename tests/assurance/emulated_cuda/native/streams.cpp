// Streams, events, and graphs. A captured graph has no nodes, and launching it does nothing.

#include "world.h"

#include <time.h>

#include <algorithm>
#include <cstring>

using namespace emulated;

static double milliseconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1e3 + now.tv_nsec * 1e-6;
}

API cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  Lock lock(machine().mutex);
  use_context(current_device);
  Stream* one = new Stream{current_device, std::min(0, std::max(-5, priority)), flags};
  machine().streams[one] = one;
  *stream = (cudaStream_t)one;
  return cudaSuccess;
}
API cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
API cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }
API cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  Lock lock(machine().mutex);
  auto found = machine().streams.find(stream);
  if (found == machine().streams.end()) return report(cudaErrorInvalidResourceHandle);
  delete found->second;
  machine().streams.erase(found);
  return cudaSuccess;
}
API cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  if (cudaError_t error = check_stream(stream)) return report(error);
  *priority = is_default_stream(stream) ? 0 : find_stream(stream)->priority;
  return cudaSuccess;
}
API cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned* flags) {
  if (cudaError_t error = check_stream(stream)) return report(error);
  *flags = is_default_stream(stream) ? 0 : find_stream(stream)->flags;
  return cudaSuccess;
}
API cudaError_t cudaStreamGetDevice(cudaStream_t stream, int* device) {
  if (cudaError_t error = check_stream(stream)) return report(error);
  *device = device_of(stream);
  return cudaSuccess;
}
API cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long* id) {
  *id = (unsigned long long)stream;
  return cudaSuccess;
}
API cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return report(check_stream(stream)); }
API cudaError_t cudaStreamQuery(cudaStream_t stream) { return report(check_stream(stream)); }
API cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (cudaError_t error = check_stream(stream)) return report(error);
  Lock lock(machine().mutex);
  return machine().events.count(event) ? cudaSuccess : report(cudaErrorInvalidResourceHandle);
}
API cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  if (cudaError_t error = check_stream(stream)) return report(error);
  function(data);
  return cudaSuccess;
}
API cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function, void* data, unsigned) {
  if (cudaError_t error = check_stream(stream)) return report(error);
  function(stream, cudaSuccess, data);
  return cudaSuccess;
}
API cudaError_t cudaStreamSetAttribute(cudaStream_t, cudaStreamAttrID, const cudaStreamAttrValue*) {
  return cudaSuccess;
}
API cudaError_t cudaStreamGetAttribute(cudaStream_t, cudaStreamAttrID, cudaStreamAttrValue* value) {
  memset(value, 0, sizeof *value);
  return cudaSuccess;
}

// ---------------------------------------------------------------- events

API cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  Lock lock(machine().mutex);
  use_context(current_device);
  Event* one = new Event{current_device, flags};
  machine().events[one] = one;
  *event = (cudaEvent_t)one;
  return cudaSuccess;
}
API cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
API cudaError_t cudaEventDestroy(cudaEvent_t event) {
  Lock lock(machine().mutex);
  auto found = machine().events.find(event);
  if (found == machine().events.end()) return report(cudaErrorInvalidResourceHandle);
  delete found->second;
  machine().events.erase(found);
  return cudaSuccess;
}
API cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  if (cudaError_t error = check_stream(stream)) return report(error);
  Lock lock(machine().mutex);
  auto found = machine().events.find(event);
  if (found == machine().events.end() || found->second->device != device_of(stream))
    return report(cudaErrorInvalidResourceHandle);
  found->second->recorded = true;
  found->second->at = milliseconds();
  return cudaSuccess;
}
API cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, 0);
}
API cudaError_t cudaEventQuery(cudaEvent_t event) {
  Lock lock(machine().mutex);
  return machine().events.count(event) ? cudaSuccess : report(cudaErrorInvalidResourceHandle);
}
API cudaError_t cudaEventSynchronize(cudaEvent_t event) { return cudaEventQuery(event); }
API cudaError_t cudaEventElapsedTime(float* elapsed, cudaEvent_t begin, cudaEvent_t end) {
  Lock lock(machine().mutex);
  auto first = machine().events.find(begin), second = machine().events.find(end);
  if (first == machine().events.end() || second == machine().events.end())
    return report(cudaErrorInvalidResourceHandle);
  Event &from = *first->second, &to = *second->second;
  bool timed = !((from.flags | to.flags) & cudaEventDisableTiming);
  if (!from.recorded || !to.recorded || !timed || from.device != to.device)
    return report(cudaErrorInvalidResourceHandle);
  *elapsed = float(to.at - from.at);
  return cudaSuccess;
}
API cudaError_t cudaEventElapsedTime_v2(float* elapsed, cudaEvent_t begin, cudaEvent_t end) {
  return cudaEventElapsedTime(elapsed, begin, end);
}

// An event of another process is complete whenever it is opened: all work is done at once.
API cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle, cudaEvent_t event) {
  memset(handle, 0, sizeof *handle);
  return cudaEventQuery(event);
}
API cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* event, cudaIpcEventHandle_t) {
  if (cudaError_t error = cudaEventCreateWithFlags(event, cudaEventDisableTiming)) return error;
  return cudaEventRecord(*event, nullptr);
}

// ---------------------------------------------------------------- graphs

static thread_local cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;

API cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(capture_mode, *mode);
  return cudaSuccess;
}
API cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  if (is_default_stream(stream)) return report(cudaErrorStreamCaptureUnsupported);
  Stream* one = find_stream(stream);
  if (!one) return report(cudaErrorInvalidResourceHandle);
  one->capture = ++machine().captures;
  return cudaSuccess;
}
API cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t, const cudaGraphNode_t*,
                                              const cudaGraphEdgeData*, size_t, cudaStreamCaptureMode mode) {
  return cudaStreamBeginCapture(stream, mode);
}
static Stream* capturing(cudaStream_t stream) {
  Stream* one = is_default_stream(stream) ? nullptr : find_stream(stream);
  return one && one->capture ? one : nullptr;
}
API cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  Stream* one = capturing(stream);
  if (!one) return report(cudaErrorInvalidValue);
  *graph = (cudaGraph_t) new char[8];
  one->capture = 0;
  return cudaSuccess;
}
API cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = capturing(stream) ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
static cudaError_t capture_info(cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id,
                                cudaGraph_t* graph, const cudaGraphNode_t** dependencies, size_t* count) {
  Stream* one = capturing(stream);
  *status = one ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  if (id) *id = one ? one->capture : 0;
  if (graph) *graph = (cudaGraph_t)0x30;
  if (dependencies) *dependencies = nullptr;
  if (count) *count = 0;
  return cudaSuccess;
}
#if CUDART_VERSION >= 13000
API cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id,
                                         cudaGraph_t* graph, const cudaGraphNode_t** dependencies,
                                         const cudaGraphEdgeData** edges, size_t* count) {
  if (edges) *edges = nullptr;
  return capture_info(stream, status, id, graph, dependencies, count);
}
API cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t, cudaGraphNode_t*, const cudaGraphEdgeData*, size_t,
                                                    unsigned) {
  return cudaSuccess;
}
#else
API cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                            unsigned long long* id, cudaGraph_t* graph,
                                            const cudaGraphNode_t** dependencies, size_t* count) {
  return capture_info(stream, status, id, graph, dependencies, count);
}
API cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t, cudaGraphNode_t*, size_t, unsigned) {
  return cudaSuccess;
}
#endif
API cudaError_t cudaGraphCreate(cudaGraph_t* graph, unsigned) {
  *graph = (cudaGraph_t) new char[8];
  return cudaSuccess;
}
API cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t, unsigned long long) {
  *executable = (cudaGraphExec_t) new char[8];
  return cudaSuccess;
}
API cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long flags) {
  return cudaGraphInstantiate(executable, graph, flags);
}
API cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t stream) { return report(check_stream(stream)); }
API cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }
API cudaError_t cudaGraphDestroy(cudaGraph_t) { return cudaSuccess; }
API cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) { return cudaSuccess; }
API cudaError_t cudaGraphGetNodes(cudaGraph_t, cudaGraphNode_t*, size_t* count) {
  if (count) *count = 1;  // PyTorch warns about a graph without nodes
  return cudaSuccess;
}
API cudaError_t cudaGraphDebugDotPrint(cudaGraph_t, const char*, unsigned) { return cudaSuccess; }
API cudaError_t cudaUserObjectCreate(cudaUserObject_t* object, void*, cudaHostFn_t, unsigned, unsigned) {
  *object = (cudaUserObject_t)0x40;
  return cudaSuccess;
}
API cudaError_t cudaGraphRetainUserObject(cudaGraph_t, cudaUserObject_t, unsigned, unsigned) { return cudaSuccess; }
