// SPDX-License-Identifier: MIT
#include "shuttle.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "cuda_objects.hpp"
#include "gpu.hpp"
#include "memory/cuda/cuda_status.hpp"
#include "memory/cuda/pinned_memory.hpp"
#include "shuttle_kernel.hpp"
#include "window/window_layout.hpp"

namespace sluice::bench {
namespace {

using memory::cuda_status;

constexpr std::uint64_t kPage = window::kPageBytes;

/// Pinned memory: [words][out, two halves][in, two halves].
class GpuShuttle final : public Shuttle {
 public:
  GpuShuttle(Place& place, std::uint64_t out, std::uint64_t in, double deadline_s)
      : place_(place),
        stream_(static_cast<cudaStream_t>(place.stream())),
        out_bytes_(window::round_up(out, kPage)),
        in_bytes_(window::round_up(in, kPage)),
        deadline_s_(deadline_s) {}

  /// Where somebody has failed, kernels may still wait.
  ~GpuShuttle() override {
    if (base_ == nullptr) return;
    word(kGaveUp, 0)
        .store(~std::uint64_t{0}, std::memory_order_release);  // Pairs with await_nth().
    (void)cudaStreamSynchronize(stream_);
  }

  Status prepare() {
    Result<std::shared_ptr<void>> host = memory::take_pinned(kOut + 2 * (out_bytes_ + in_bytes_));
    if (!host) return host.status();
    host_ = std::move(host).value();
    base_ = static_cast<std::byte*>(host_.get());
    void* seen = nullptr;
    Status status = cuda_status(cudaHostGetDevicePointer(&seen, base_, 0), "mapping pinned memory");
    if (!status) return status;
    const Result<std::byte*> device =
        place_.take(out_bytes_ + in_bytes_ + kPiecesMax * sizeof(std::uint64_t));
    if (!device) return device.status();
    from_ = *device;
    to_ = from_ + out_bytes_;
    mapped_ = static_cast<std::byte*>(seen);
    status = cuda_status(
        cudaMemsetAsync(to_, 0, in_bytes_ + kPiecesMax * sizeof(std::uint64_t), stream_),
        "clearing memory");
    for (Event* event : {&begin_, &end_}) {
      if (status) status = cuda_status(cudaEventCreate(event->put()), "an event");
    }
    return status ? place_.finish() : status;
  }

  std::span<std::byte> memory() const noexcept override {
    return {base_, kOut + 2 * (out_bytes_ + in_bytes_)};
  }
  std::uint64_t out_at(std::uint64_t operation) const noexcept override {
    return kOut + operation % 2 * out_bytes_;
  }
  std::uint64_t in_at(std::uint64_t operation) const noexcept override {
    return kOut + 2 * out_bytes_ + operation % 2 * in_bytes_;
  }

  Status launch(std::span<const Piece> out, std::span<const Piece> in, int operations,
                int timed) override {
    ShuttleArgs args;
    args.give_up_ns = static_cast<std::uint64_t>(deadline_s_ * 1e9);
    args.from = from_;
    args.to = to_;
    args.written = reinterpret_cast<std::uint64_t*>(mapped_ + kWritten);
    args.seen = reinterpret_cast<std::uint64_t*>(to_ + in_bytes_);
    args.gave_up = reinterpret_cast<std::uint64_t*>(mapped_ + kGaveUp);
    args.outs = static_cast<int>(out.size());
    args.ins = static_cast<int>(in.size());
    std::copy(out.begin(), out.end(), args.out_pieces);
    std::copy(in.begin(), in.end(), args.in_pieces);
    blocks_ = blocks_for(out, in);
    timed_ = timed;
    for (int i = 0; i < operations; ++i) {
      if (i == operations - timed) {
        Status status = cuda_status(cudaEventRecord(begin_.get(), stream_), "an event");
        if (!status) return status;
      }
      args.operation = ++last_;
      args.out = mapped_ + out_at(last_);
      args.in = mapped_ + in_at(last_);
      args.come = reinterpret_cast<const std::uint64_t*>(mapped_ + come_at(last_));
      Status status = cuda_status(static_cast<cudaError_t>(launch_shuttle(args, blocks_, stream_)),
                                  "a shuttle's kernel");
      if (!status) return status;
    }
    return cuda_status(cudaEventRecord(end_.get(), stream_), "an event");
  }

  std::uint64_t last() const noexcept override { return last_; }

  bool is_out(int piece, std::uint64_t operation) const noexcept override {
    for (int block = 0; block < blocks_; ++block) {
      // Pairs with the kernel's store. A later one has been told only once all of this one was brought away.
      if (word(kWritten, piece * ShuttleArgs::kBlocksMax + block).load(std::memory_order_acquire) <
          operation) {
        return false;
      }
    }
    return true;
  }

  void has_come(int nth, int piece, std::uint64_t operation) noexcept override {
    // Pairs with the kernel's load.
    word(come_at(operation), nth).store(shuttle_word(operation, piece), std::memory_order_release);
  }

  Result<double> time() override {
    if (Status status = place_.finish(); !status) return status;
    // Written before the kernel ended.
    if (const auto operation = word(kGaveUp, 0).load(std::memory_order_acquire); operation != 0) {
      return Status(StatusCode::deadline_exceeded,
                    fmt::format("the bare way: operation {} waited {} s for what was to come",
                                operation, deadline_s_));
    }
    const Result<double> us = microseconds_between(begin_, end_);
    return us ? Result<double>(*us / timed_) : us;
  }

  Status fill(std::span<const std::byte> out) override {
    return place_.write(from_, out.data(), out.size());
  }
  Status read(std::span<std::byte> in) override {
    Status status = place_.read(in.data(), to_, in.size());
    if (status)
      status = cuda_status(cudaMemsetAsync(to_, 0, in.size(), stream_), "clearing memory");
    return status ? place_.finish() : status;
  }

 private:
  static constexpr std::uint64_t kWritten = 0;
  static constexpr std::uint64_t kCome = kPage;
  static constexpr std::uint64_t kGaveUp = 2 * kPage;
  static constexpr std::uint64_t kOut = 3 * kPage;
  static_assert(kPiecesMax * ShuttleArgs::kBlocksMax * sizeof(std::uint64_t) <= kPage);

  /// As many as have something to do: a few units for each thread.
  static int blocks_for(std::span<const Piece> out, std::span<const Piece> in) {
    std::uint64_t most = 0;
    for (const auto& pieces : {out, in}) {
      for (const Piece& piece : pieces) most = std::max(most, piece.bytes);
    }
    constexpr std::uint64_t kBytes = 8192;
    return static_cast<int>(std::clamp<std::uint64_t>(most / kBytes, 1, ShuttleArgs::kBlocksMax));
  }
  static std::uint64_t come_at(std::uint64_t operation) noexcept {
    return kCome + operation % 2 * kPiecesMax * sizeof(std::uint64_t);
  }
  std::atomic_ref<std::uint64_t> word(std::uint64_t at, int index) const noexcept {
    return std::atomic_ref(reinterpret_cast<std::uint64_t*>(base_ + at)[index]);
  }

  Place& place_;
  cudaStream_t stream_;
  std::uint64_t out_bytes_;
  std::uint64_t in_bytes_;
  double deadline_s_;
  std::shared_ptr<void> host_;
  std::byte* base_ = nullptr;
  std::byte* mapped_ = nullptr;  // The same, as the device sees it.
  std::byte* from_ = nullptr;
  std::byte* to_ = nullptr;
  Event begin_, end_;
  std::uint64_t last_ = 0;
  int blocks_ = 1;
  int timed_ = 1;
};

}  // namespace

Result<std::unique_ptr<Shuttle>> gpu_shuttle(Place& place, std::uint64_t out, std::uint64_t in,
                                             double deadline_s) {
  auto shuttle = std::make_unique<GpuShuttle>(place, out, in, deadline_s);
  if (Status status = shuttle->prepare(); !status) return status;
  return std::unique_ptr<Shuttle>(std::move(shuttle));
}

}  // namespace sluice::bench
