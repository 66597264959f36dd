// NCCL over host memory. Ranks of one process that were made together (ncclCommInitAll) call their
// collectives in one group, which runs when the group ends. Ranks that joined by an id, each in its own
// process or thread, exchange data through a file in /dev/shm named by that id; a call returns when
// the rank's part of it is done, so nothing overlaps.
//
// Sums are made in the order of ranks. float16 and bfloat16 are added as float and rounded after each
// addition. Numbers of dtypes, operations and errors are those of nccl.h.

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))
extern "C" void emulated_library_call(const char* name);
extern "C" int cudaGetDevice(int*);
extern "C" int cudaMalloc(void**, size_t);
extern "C" int cudaFree(void*);

namespace {

enum { kSuccess = 0, kSystemError = 2, kInternalError = 3, kInvalidArgument = 4, kInvalidUsage = 5, kRemoteError = 6 };
enum Kind { kReduce, kAllReduce, kBroadcast, kAllGather, kReduceScatter, kAllToAll, kGather, kScatter, kSplit, kSend, kRecv };
const char* const kNames[] = {"reduce", "all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all",
                              "gather", "scatter", "split", "send", "recv"};
enum { kSum, kProd, kMax, kMin, kAvg, kFirstScaled };

thread_local char last_error[512] = "";
template <class... Args> int fail(int code, const char* format, Args... args) {
  snprintf(last_error, sizeof last_error, format, args...);
  return code;
}

// ---------------------------------------------------------------- arithmetic

constexpr size_t kWidths[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
constexpr int kTypes = sizeof kWidths / sizeof *kWidths;

struct BFloat16 {
  uint16_t bits;
  operator float() const {
    uint32_t word = uint32_t(bits) << 16;
    float value;
    memcpy(&value, &word, 4);
    return value;
  }
  BFloat16(float value) {
    uint32_t word;
    memcpy(&word, &value, 4);
    bool nan = (word & 0x7fffffff) > 0x7f800000;
    bits = nan ? 0x7fc0 : uint16_t((word + 0x7fff + ((word >> 16) & 1)) >> 16);
  }
};

struct Operation {
  int op = kSum;
  double scale = 1;  // each value is multiplied by it before the sum
};

template <class T> void combine(void* total, const void* more, size_t count, int op) {
  T* a = (T*)total;
  const T* b = (const T*)more;
  for (size_t i = 0; i < count; ++i) {
    if (op == kProd) a[i] = T(a[i] * b[i]);
    else if (op == kMax) a[i] = a[i] > b[i] ? a[i] : b[i];
    else if (op == kMin) a[i] = a[i] < b[i] ? a[i] : b[i];
    else a[i] = T(a[i] + b[i]);
  }
}
template <class T> void multiply(void* values, size_t count, double by) {
  for (size_t i = 0; i < count; ++i) ((T*)values)[i] = T(((T*)values)[i] * T(by));
}
template <class T> void divide(void* values, size_t count, int by) {
  for (size_t i = 0; i < count; ++i) ((T*)values)[i] = T(((T*)values)[i] / T(by));
}
struct Arithmetic {
  void (*combine)(void*, const void*, size_t, int);
  void (*multiply)(void*, size_t, double);
  void (*divide)(void*, size_t, int);  // of integers
};
template <class T> constexpr Arithmetic integers = {combine<T>, multiply<T>, divide<T>};
template <class T> constexpr Arithmetic floats = {combine<T>, multiply<T>, nullptr};
const Arithmetic* const kArithmetic[] = {
    &integers<int8_t>,  &integers<uint8_t>,  &integers<int32_t>, &integers<uint32_t>,
    &integers<int64_t>, &integers<uint64_t>, &floats<_Float16>,  &floats<float>,
    &floats<double>,    &floats<BFloat16>,   nullptr,            nullptr};

// The sum (or product, ...) of one part of each rank, which are changed by it.
int reduce(std::vector<std::vector<char>>& parts, size_t count, int type, Operation how, void* to) {
  const Arithmetic* arithmetic = kArithmetic[type];
  if (!arithmetic) return fail(kInvalidUsage, "emulated NCCL: float8 values cannot be reduced");
  int ranks = int(parts.size());
  double scale = how.op == kAvg && !arithmetic->divide ? 1.0 / ranks : how.scale;
  for (auto& part : parts)
    if (scale != 1) arithmetic->multiply(part.data(), count, scale);
  for (int rank = 1; rank < ranks; ++rank) arithmetic->combine(parts[0].data(), parts[rank].data(), count, how.op);
  if (how.op == kAvg && arithmetic->divide) arithmetic->divide(parts[0].data(), count, ranks);
  memcpy(to, parts[0].data(), count * kWidths[type]);
  return kSuccess;
}

// ---------------------------------------------------------------- calls and communicators

struct Call {
  Kind kind;
  const void* from;
  void* to;
  size_t count;
  int type, root;  // of send and recv, root is the other rank
  Operation how;

  bool matches(const Call& other) const {
    return kind == other.kind && count == other.count && type == other.type && root == other.root &&
           how.op == other.how.op;
  }
  size_t bytes() const { return count * kWidths[type]; }
};

// How many bytes a rank gives to a collective of n ranks, and how many it gets.
size_t bytes_given(const Call& call, int rank, int n) {
  switch (call.kind) {
    case kReduceScatter:
    case kAllToAll: return call.bytes() * n;
    case kBroadcast: return rank == call.root ? call.bytes() : 0;
    case kScatter: return rank == call.root ? call.bytes() * n : 0;
    default: return call.bytes();
  }
}

// What one rank of a collective gets, out of what all ranks gave.
int finish(const Call& call, int rank, std::vector<std::vector<char>>& given) {
  int n = int(given.size());
  size_t bytes = call.bytes();
  char* to = (char*)call.to;
  switch (call.kind) {
    case kBroadcast: memcpy(to, given[call.root].data(), bytes); break;
    case kAllGather:
    case kGather:
      if (call.kind == kAllGather || rank == call.root)
        for (int i = 0; i < n; ++i) memcpy(to + i * bytes, given[i].data(), bytes);
      break;
    case kScatter: memcpy(to, given[call.root].data() + rank * bytes, bytes); break;
    case kAllToAll:
      for (int i = 0; i < n; ++i) memcpy(to + i * bytes, given[i].data() + rank * bytes, bytes);
      break;
    case kReduceScatter:
      for (auto& part : given) part = {part.begin() + rank * bytes, part.begin() + (rank + 1) * bytes};
      return reduce(given, call.count, call.type, call.how, to);
    case kAllReduce:
    case kReduce:
      if (call.kind == kAllReduce || rank == call.root) return reduce(given, call.count, call.type, call.how, to);
      break;
    default: return kInternalError;
  }
  return kSuccess;
}

double seconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return double(now.tv_sec) + now.tv_nsec * 1e-9;
}

constexpr int kMaxRanks = 16;
constexpr size_t kSlot = size_t(256) << 10;  // bytes that a rank shows to the others at once
constexpr size_t kMailbox = size_t(64) << 10;

struct Mailbox {  // from one rank to another
  std::atomic<uint32_t> bytes;  // 0: empty; the sender fills it, the receiver empties it
  char data[kMailbox];
};
// The file that the ranks of a communicator share; a new file is all zeros.
struct Board {
  std::atomic<uint32_t> joined, aborted, arrived, round;
  Call calls[kMaxRanks];
  char slots[kMaxRanks][kSlot];
  Mailbox mail[kMaxRanks][kMaxRanks];
};

struct Clique;
struct Comm {
  Comm(int rank, int size, int device) : rank(rank), size(size), device(device) {}
  int rank, size, device;
  Clique* clique = nullptr;  // of ncclCommInitAll
  Board* board = nullptr;    // of ncclCommInitRank
  std::string name;
  unsigned splits = 0;
  std::atomic<bool> aborted{false};
  std::vector<double> scales;  // of ncclRedOpCreatePreMulSum, by number
};
struct Clique {
  std::vector<Comm*> comms;
};

double patience() {
  const char* text = getenv("EMULATED_CUDA_NCCL_SECONDS");
  return text ? atof(text) : 120;
}

// Waits until `ready()`; an error where the communicator was aborted or the other ranks do not come.
template <class Ready> int wait_for(Comm* comm, const Call& call, Ready ready) {
  double end = seconds() + patience();
  for (unsigned turn = 0; !ready(); ++turn) {
    if (comm->aborted || comm->board->aborted)
      return fail(kRemoteError, "emulated NCCL: rank %d was in %s when the communicator was aborted", comm->rank,
                  kNames[call.kind]);
    if (turn > 200) usleep(200);
    else sched_yield();
    if (seconds() > end)
      return fail(kSystemError, "emulated NCCL: rank %d of %d waited %.0f s in %s of %zu values for the other ranks",
                  comm->rank, comm->size, patience(), kNames[call.kind], call.count);
  }
  return kSuccess;
}

int barrier(Comm* comm, const Call& call) {
  Board* board = comm->board;
  uint32_t round = board->round;
  if (board->arrived.fetch_add(1) + 1 == uint32_t(comm->size)) {
    board->arrived = 0;
    board->round = round + 1;
    return kSuccess;
  }
  return wait_for(comm, call, [&] { return board->round != round; });
}

// All ranks show `bytes` of their own, in steps; each gets what all have shown.
int exchange(Comm* comm, const Call& call, const char* own, std::vector<std::vector<char>>& shown) {
  Board* board = comm->board;
  size_t most = 0;
  for (int rank = 0; rank < comm->size; ++rank) most = std::max(most, shown[rank].size());
  for (size_t at = 0; at < most; at += kSlot) {
    auto part = [&](int rank) { return at < shown[rank].size() ? std::min(kSlot, shown[rank].size() - at) : 0; };
    memcpy(board->slots[comm->rank], own + at, part(comm->rank));
    if (int error = barrier(comm, call)) return error;
    for (int rank = 0; rank < comm->size; ++rank) memcpy(shown[rank].data() + at, board->slots[rank], part(rank));
    if (int error = barrier(comm, call)) return error;
  }
  return kSuccess;
}

int agree(Comm* comm, const Call& call) {
  comm->board->calls[comm->rank] = call;
  if (int error = barrier(comm, call)) return error;
  int wrong = -1;
  for (int rank = 0; rank < comm->size; ++rank)
    if (!call.matches(comm->board->calls[rank])) wrong = rank;
  Call other = wrong < 0 ? call : comm->board->calls[wrong];
  if (int error = barrier(comm, call)) return error;
  if (wrong < 0) return kSuccess;
  return fail(kInvalidUsage, "emulated NCCL: rank %d called %s of %zu values of type %d, rank %d called %s of %zu of %d",
              comm->rank, kNames[call.kind], call.count, call.type, wrong, kNames[other.kind], other.count, other.type);
}

int run_over_board(Comm* comm, const Call& call) {
  if (int error = agree(comm, call)) return error;
  std::vector<std::vector<char>> given(comm->size);
  for (int rank = 0; rank < comm->size; ++rank) given[rank].resize(bytes_given(call, rank, comm->size));
  if (int error = exchange(comm, call, (const char*)call.from, given)) return error;
  return finish(call, comm->rank, given);
}

// ---------------------------------------------------------------- groups

struct Posted {
  Comm* comm;
  Call call;
  size_t done = 0;  // bytes of a send or recv
};
thread_local int depth = 0;
thread_local std::vector<Posted> posted;

int run_clique(Clique* clique, std::vector<Call*>& calls) {
  int n = int(calls.size());
  std::vector<std::vector<char>> given(n);
  for (int rank = 0; rank < n; ++rank) {
    if (!calls[rank]->matches(*calls[0]))
      return fail(kInvalidUsage, "emulated NCCL: rank 0 called %s and rank %d called %s", kNames[calls[0]->kind], rank,
                  kNames[calls[rank]->kind]);
    const char* from = (const char*)calls[rank]->from;
    given[rank].assign(from, from + bytes_given(*calls[rank], rank, n));
  }
  for (int rank = 0; rank < n; ++rank) {
    auto own = given;
    if (int error = finish(*calls[rank], rank, own)) return error;
  }
  return kSuccess;
}

// Sends and recvs of a group go on side by side: each moves what its mailbox allows.
int run_messages(std::vector<Posted*>& messages) {
  if (messages.empty()) return kSuccess;
  Posted* any = messages[0];
  auto step = [&] {
    bool over = true;
    std::vector<const Mailbox*> in_use;  // two sends to one rank are in order
    for (Posted* one : messages) {
      size_t left = one->call.bytes() - one->done;
      if (!left) continue;
      over = false;
      bool sends = one->call.kind == kSend;
      int from = sends ? one->comm->rank : one->call.root, to = sends ? one->call.root : one->comm->rank;
      Mailbox& box = one->comm->board->mail[from][to];
      // A rank may send to itself: its two ends of the mailbox take turns.
      const Mailbox* end = sends ? &box : (const Mailbox*)((const char*)&box + 1);
      if (std::count(in_use.begin(), in_use.end(), end)) continue;
      in_use.push_back(end);
      if (sends && !box.bytes) {
        size_t size = std::min(left, kMailbox);
        memcpy(box.data, (const char*)one->call.from + one->done, size);
        one->done += size;
        box.bytes = uint32_t(size);
      } else if (!sends && box.bytes) {
        size_t size = std::min<size_t>(left, box.bytes);
        memcpy((char*)one->call.to + one->done, box.data, size);
        one->done += size;
        box.bytes = 0;
      }
    }
    return over;
  };
  return wait_for(any->comm, any->call, step);
}

int flush() {
  std::vector<Posted> all;
  all.swap(posted);
  std::map<Clique*, std::vector<std::vector<Call*>>> cliques;  // by rank, in order
  std::vector<Posted*> messages;
  for (Posted& one : all) {
    int error = kSuccess;
    if (one.comm->clique) {
      auto& ranks = cliques[one.comm->clique];
      ranks.resize(one.comm->size);
      ranks[one.comm->rank].push_back(&one.call);
    } else if (one.call.kind == kSend || one.call.kind == kRecv) {
      messages.push_back(&one);
    } else {
      error = run_over_board(one.comm, one.call);
    }
    if (error) return error;
  }
  for (auto& [clique, ranks] : cliques)
    for (size_t number = 0; number < ranks[0].size(); ++number) {
      std::vector<Call*> calls;
      for (auto& own : ranks) {
        if (own.size() != ranks[0].size())
          return fail(kInvalidUsage, "emulated NCCL: a rank is missing in a group; NCCL would wait for it");
        calls.push_back(own[number]);
      }
      if (int error = run_clique(clique, calls)) return error;
    }
  return run_messages(messages);
}

int post(Kind kind, const void* from, void* to, size_t count, int type, int op, int root, void* handle) {
  emulated_library_call(kNames[kind]);
  Comm* comm = (Comm*)handle;
  if (!comm || type < 0 || type >= kTypes) return fail(kInvalidArgument, "emulated NCCL: no communicator or dtype");
  if (comm->aborted) return fail(kInvalidUsage, "emulated NCCL: the communicator was aborted");
  if (root < 0 || root >= comm->size) return fail(kInvalidArgument, "emulated NCCL: no rank %d of %d", root, comm->size);
  Operation how = {op, 1};
  if (op >= kFirstScaled) {
    if (size_t(op - kFirstScaled) >= comm->scales.size()) return fail(kInvalidArgument, "emulated NCCL: no operation %d", op);
    how = {kSum, comm->scales[op - kFirstScaled]};
  }
  posted.push_back({comm, {kind, from, to, count, type, root, how}});
  return depth ? kSuccess : flush();
}

// ---------------------------------------------------------------- joining

struct Id {
  char text[128];
};

int join(void** result, int size, const std::string& name, int rank) {
  if (size > kMaxRanks || size < 1 || rank < 0 || rank >= size)
    return fail(kInvalidArgument, "emulated NCCL: rank %d of %d, there may be up to %d", rank, size, kMaxRanks);
  std::string path = "/dev/shm/" + name;
  int file = open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  if (file < 0 || ftruncate(file, sizeof(Board))) return fail(kSystemError, "emulated NCCL: cannot open %s", path.c_str());
  void* memory = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (memory == MAP_FAILED) return fail(kSystemError, "emulated NCCL: cannot map %s", path.c_str());
  Comm* comm = new Comm(rank, size, 0);
  cudaGetDevice(&comm->device);
  comm->board = (Board*)memory;
  comm->name = name;
  // The last one removes the name; those that have joined keep the memory.
  if (comm->board->joined.fetch_add(1) + 1 == uint32_t(size)) unlink(path.c_str());
  Call call = {kSplit, nullptr, nullptr, 0, 0, 0, {}};
  if (int error = wait_for(comm, call, [&] { return comm->board->joined >= uint32_t(size); })) {
    unlink(path.c_str());
    return error;
  }
  *result = comm;
  return kSuccess;
}

int split(Comm* comm, int color, int key, void** result) {
  struct Entry {
    int color, key;
  } own = {color, key};
  Call call = {kSplit, &own, nullptr, sizeof own, 0, 0, {}};
  if (int error = agree(comm, call)) return error;
  std::vector<std::vector<char>> shown(comm->size, std::vector<char>(sizeof own));
  if (int error = exchange(comm, call, (const char*)&own, shown)) return error;
  std::vector<std::pair<int, int>> members;  // key, rank
  for (int rank = 0; rank < comm->size; ++rank) {
    Entry entry;
    memcpy(&entry, shown[rank].data(), sizeof entry);
    if (entry.color == color) members.push_back({entry.key, rank});
  }
  std::sort(members.begin(), members.end());
  unsigned number = comm->splits++;
  *result = nullptr;
  if (color < 0) return kSuccess;
  auto found = std::find_if(members.begin(), members.end(), [&](auto& one) { return one.second == comm->rank; });
  std::string name = comm->name + "." + std::to_string(number) + "." + std::to_string(color);
  return join(result, int(members.size()), name, int(found - members.begin()));
}

}  // namespace

API int ncclGetVersion(int* version) {
  *version = 22807;
  return kSuccess;
}
API const char* ncclGetErrorString(int error) {
  static const char* const texts[] = {"no error",         "unhandled cuda error", "unhandled system error",
                                      "internal error",   "invalid argument",     "invalid usage",
                                      "remote process exited or there was a network error"};
  return error >= 0 && error <= kRemoteError ? texts[error] : "unknown result code";
}
API const char* ncclGetLastError(void*) { return last_error; }

API int ncclGetUniqueId(Id* id) {
  static std::atomic<unsigned> number{0};
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  memset(id, 0, sizeof *id);
  snprintf(id->text, sizeof id->text, "emulated-nccl-%d-%lx-%u", getpid(), now.tv_sec * 1000000000 + now.tv_nsec, number++);
  return kSuccess;
}
API int ncclCommGetUniqueId(void*, Id* id) { return ncclGetUniqueId(id); }
API int ncclCommInitAll(void** comms, int count, const int* devices) {
  Clique* clique = new Clique;
  for (int rank = 0; rank < count; ++rank) {
    Comm* comm = new Comm(rank, count, devices ? devices[rank] : rank);
    comm->clique = clique;
    clique->comms.push_back(comm);
    comms[rank] = comm;
  }
  return kSuccess;
}
API int ncclCommInitRank(void** comm, int size, Id id, int rank) { return join(comm, size, id.text, rank); }
API int ncclCommInitRankConfig(void** comm, int size, Id id, int rank, void*) { return join(comm, size, id.text, rank); }
API int ncclCommInitRankScalable(void** comm, int size, int rank, int, Id* ids, void*) {
  return join(comm, size, ids[0].text, rank);
}
API int ncclCommSplit(void* comm, int color, int key, void** result, void*) {
  return split((Comm*)comm, color, key, result);
}

API int ncclCommAbort(void* handle) {
  Comm* comm = (Comm*)handle;
  comm->aborted = true;
  if (comm->board) comm->board->aborted = 1;
  return kSuccess;  // another thread may still be in a call on it: it is never freed
}
API int ncclCommDestroy(void* handle) {
  ((Comm*)handle)->aborted = true;
  return kSuccess;
}
API int ncclCommFinalize(void*) { return kSuccess; }
API int ncclCommGetAsyncError(void*, int* error) {
  *error = kSuccess;
  return kSuccess;
}
API int ncclCommCount(void* comm, int* count) {
  *count = ((Comm*)comm)->size;
  return kSuccess;
}
API int ncclCommCuDevice(void* comm, int* device) {
  *device = ((Comm*)comm)->device;
  return kSuccess;
}
API int ncclCommUserRank(void* comm, int* rank) {
  *rank = ((Comm*)comm)->rank;
  return kSuccess;
}
API int ncclCommRegister(void*, void* buffer, size_t, void** handle) {
  *handle = buffer;
  return kSuccess;
}
API int ncclMemAlloc(void** address, size_t bytes) { return cudaMalloc(address, bytes) ? kSystemError : kSuccess; }
API int ncclMemFree(void* address) { return cudaFree(address) ? kInvalidArgument : kSuccess; }

API int ncclRedOpCreatePreMulSum(int* op, void* scalar, int type, int, void* handle) {
  Comm* comm = (Comm*)handle;
  double scale;
  switch (type) {
    case 6: scale = double(*(_Float16*)scalar); break;
    case 7: scale = *(float*)scalar; break;
    case 8: scale = *(double*)scalar; break;
    case 9: scale = float(*(BFloat16*)scalar); break;
    default: return fail(kInvalidArgument, "emulated NCCL: no scaled sum of dtype %d", type);
  }
  comm->scales.push_back(scale);
  *op = kFirstScaled + int(comm->scales.size()) - 1;
  return kSuccess;
}
API int ncclRedOpDestroy(int, void*) { return kSuccess; }

API int ncclGroupStart() {
  ++depth;
  return kSuccess;
}
API int ncclGroupEnd() { return --depth ? kSuccess : flush(); }

API int ncclReduce(const void* from, void* to, size_t n, int type, int op, int root, void* comm, void*) {
  return post(kReduce, from, to, n, type, op, root, comm);
}
API int ncclAllReduce(const void* from, void* to, size_t n, int type, int op, void* comm, void*) {
  return post(kAllReduce, from, to, n, type, op, 0, comm);
}
API int ncclBroadcast(const void* from, void* to, size_t n, int type, int root, void* comm, void*) {
  return post(kBroadcast, from, to, n, type, kSum, root, comm);
}
API int ncclBcast(void* buffer, size_t n, int type, int root, void* comm, void*) {
  return post(kBroadcast, buffer, buffer, n, type, kSum, root, comm);
}
API int ncclAllGather(const void* from, void* to, size_t n, int type, void* comm, void*) {
  return post(kAllGather, from, to, n, type, kSum, 0, comm);
}
API int ncclReduceScatter(const void* from, void* to, size_t n, int type, int op, void* comm, void*) {
  return post(kReduceScatter, from, to, n, type, op, 0, comm);
}
API int ncclAlltoAll(const void* from, void* to, size_t n, int type, void* comm, void*) {
  return post(kAllToAll, from, to, n, type, kSum, 0, comm);
}
API int ncclGather(const void* from, void* to, size_t n, int type, int root, void* comm, void*) {
  return post(kGather, from, to, n, type, kSum, root, comm);
}
API int ncclScatter(const void* from, void* to, size_t n, int type, int root, void* comm, void*) {
  return post(kScatter, from, to, n, type, kSum, root, comm);
}
API int ncclSend(const void* from, size_t n, int type, int peer, void* comm, void*) {
  return post(kSend, from, nullptr, n, type, kSum, peer, comm);
}
API int ncclRecv(void* to, size_t n, int type, int peer, void* comm, void*) {
  return post(kRecv, nullptr, to, n, type, kSum, peer, comm);
}
