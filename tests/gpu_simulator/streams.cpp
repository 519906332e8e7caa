// SPDX-License-Identifier: MIT
#include "streams.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <set>
#include <thread>
#include <utility>

#include "gpu_simulator/device_list.hpp"

namespace {

/// All streams, to wait for and to end captures in. Never destroyed.
struct Streams {
  std::mutex mutex;
  std::set<CUstream_st*> all;

  static Streams& instance() {
    static Streams* const streams = new Streams;
    return *streams;
  }
};

cudaStream_t create() {
  auto* const stream = new CUstream_st(gpu_simulator::current_device());
  Streams& streams = Streams::instance();
  const std::lock_guard<std::mutex> lock(streams.mutex);
  streams.all.insert(stream);
  return stream;
}

std::uint64_t record(CUevent_st::State& event) {
  const std::lock_guard<std::mutex> lock(event.mutex);
  return ++event.asked;
}
void note(CUevent_st::State& event, std::uint64_t number) {
  const std::lock_guard<std::mutex> lock(event.mutex);
  event.done = std::max(event.done, number);
  event.time_ns = gpu_simulator::host_nanoseconds();
  event.changed.notify_all();
}
void await(CUevent_st::State& event, std::uint64_t number) {
  std::unique_lock<std::mutex> lock(event.mutex);
  event.changed.wait(lock, [&] { return event.done >= number; });
}

}  // namespace

namespace gpu_simulator {

std::mutex& launching(int device) {
  static auto& mutexes = *new std::array<std::mutex, kDevices>;
  return mutexes.at(static_cast<std::size_t>(device));
}

CUstream_st& stream_of(cudaStream_t handle) {
  if (handle == nullptr || handle == cudaStreamLegacy) {
    static CUstream_st& of_process = *create();
    return of_process;
  }
  if (handle == cudaStreamPerThread) {
    thread_local CUstream_st& of_thread = *create();
    return of_thread;
  }
  return *handle;
}

}  // namespace gpu_simulator

using gpu_simulator::stream_of;

void CUstream_st::add(gpu_simulator::Work work) {
  if (capture != nullptr) {
    capture->nodes.push_back({std::move(work), std::move(after)});
    after = {capture->nodes.size() - 1};
    return;
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!started_) std::thread([this] { run(); }).detach();
  started_ = true;
  queue_.push_back(std::move(work));
  ++added_;
  changed_.notify_all();
}

void CUstream_st::synchronize() {
  std::unique_lock<std::mutex> lock(mutex_);
  const std::uint64_t all = added_;
  changed_.wait(lock, [&] { return done_ >= all; });
}

void CUstream_st::close() {
  {
    Streams& streams = Streams::instance();
    const std::lock_guard<std::mutex> lock(streams.mutex);
    streams.all.erase(this);
  }
  std::unique_lock<std::mutex> lock(mutex_);
  closed_ = true;
  changed_.notify_all();
  if (started_) return;
  lock.unlock();
  delete this;
}

void CUstream_st::run() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return !queue_.empty() || closed_; });
    if (queue_.empty()) break;
    const gpu_simulator::Work work = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    work();
    lock.lock();
    ++done_;
    changed_.notify_all();
  }
  lock.unlock();
  delete this;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = *greatest = 0;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int /*priority*/) {
  return cudaStreamCreateWithFlags(stream, flags);
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned /*flags*/) {
  *stream = create();
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  stream->close();
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  stream_of(stream).synchronize();
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  stream_of(stream).add([function, data] { function(data); });
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  Streams& streams = Streams::instance();
  const std::lock_guard<std::mutex> lock(streams.mutex);
  for (CUstream_st* const stream : streams.all) {
    if (stream->device() == gpu_simulator::current_device()) stream->synchronize();
  }
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned /*flags*/) {
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t handle, unsigned flags) {
  CUstream_st& stream = stream_of(handle);
  event->captured = flags == cudaEventRecordExternal ? nullptr : stream.capture;
  if (event->captured != nullptr) {  // A mark for who captures, no node.
    event->after = stream.after;
    return cudaSuccess;
  }
  const auto state = event->state;
  if (stream.capture != nullptr) {
    stream.add([state] { note(*state, record(*state)); });
  } else {
    stream.add([state, number = record(*state)] { note(*state, number); });
  }
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault);
}
cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned /*flags*/) {
  CUstream_st& stream = stream_of(handle);
  if (event->captured != nullptr) {
    if (stream.capture == nullptr) stream.after.clear();
    stream.capture = event->captured;
    stream.after.insert(stream.after.end(), event->after.begin(), event->after.end());
    return cudaSuccess;
  }
  const auto state = event->state;
  std::uint64_t number = 0;
  {
    const std::lock_guard<std::mutex> lock(state->mutex);
    number = state->asked;
  }
  stream.add([state, number] { await(*state, number); });
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  std::uint64_t number = 0;
  {
    const std::lock_guard<std::mutex> lock(event->state->mutex);
    number = event->state->asked;
  }
  await(*event->state, number);
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  *milliseconds = static_cast<float>(static_cast<double>(end->state->time_ns) -
                                     static_cast<double>(begin->state->time_ns)) /
                  1e6F;
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode /*mode*/) {
  static std::atomic<unsigned long long> captures = 0;
  stream_of(stream).capture = new CUgraph_st{++captures, {}};
  stream_of(stream).after.clear();
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = stream_of(stream).capture;
  Streams& streams = Streams::instance();
  const std::lock_guard<std::mutex> lock(streams.mutex);
  for (CUstream_st* const one : streams.all) {
    if (one->capture == *graph) one->capture = nullptr;
  }
  return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                     unsigned long long* number) {
  const CUgraph_st* const capture = stream_of(stream).capture;
  *status = capture != nullptr ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  *number = capture != nullptr ? capture->number : 0;
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  thread_local cudaStreamCaptureMode now = cudaStreamCaptureModeGlobal;
  std::swap(now, *mode);
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long /*flags*/) {
  auto* const made = new CUgraphExec_st;
  std::vector<bool> done(graph->nodes.size());
  const auto may_run = [&](std::size_t node) {
    const std::vector<std::size_t>& after = graph->nodes[node].after;
    return !done[node] &&
           std::all_of(after.begin(), after.end(), [&](std::size_t one) { return done[one]; });
  };
  while (made->nodes.size() < graph->nodes.size()) {
    std::size_t node = graph->nodes.size() - 1;
    while (!may_run(node)) --node;  // There is one: nodes come after earlier ones.
    done[node] = true;
    made->nodes.push_back(graph->nodes[node].work);
  }
  *executable = made;
  return cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t /*executable*/, cudaStream_t /*stream*/) {
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  stream_of(stream).add([nodes = executable->nodes] {
    for (const gpu_simulator::Work& node : nodes) node();
  });
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete executable;
  return cudaSuccess;
}

cudaError_t launch_simulated(const cudaLaunchConfig_t& config, gpu_simulator::Body body) {
  if (config.gridDim.x == 0 || config.dynamicSmemBytes > gpu_simulator::kDynamicBytes) {
    return cudaErrorInvalidValue;
  }
  CUstream_st& stream = stream_of(config.stream);
  std::unique_lock<std::mutex> lock;
  if (stream.capture == nullptr) {
    lock = std::unique_lock<std::mutex>(gpu_simulator::launching(stream.device()));
  }
  stream.add([blocks = config.gridDim.x, threads = config.blockDim.x, body = std::move(body)] {
    gpu_simulator::run_grid(blocks, threads, body);
  });
  return cudaSuccess;
}
