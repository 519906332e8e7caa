// SPDX-License-Identifier: MIT
//
// A grid: its blocks run on threads of the host, all at once.
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "block.hpp"
#include "gpu_simulator/device.hpp"
#include "gpu_simulator/kernel_launch.hpp"

namespace gpu_simulator {
namespace {

/// What the schedule of a process is drawn from; 0: every thread in its turn, without delays.
std::uint64_t chosen_seed() {
  const char* const text = std::getenv("SLUICE_SIMULATOR_SEED");
  return text == nullptr ? 0 : std::strtoull(text, nullptr, 10);
}

constexpr unsigned kThreadsMax = 1024;

/// Threads of the host that run blocks, as many as run at once. Never destroyed.
class Processors {
 public:
  static Processors& instance() {
    static Processors* const all = new Processors;
    return *all;
  }

  void run(unsigned blocks, unsigned threads, const Body& body) {
    struct Grid {
      std::mutex mutex;
      std::condition_variable ended;
      unsigned left;
    } grid;
    grid.left = blocks;
    std::uint64_t launch = 0;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      launch = ++launches_;
    }
    for (unsigned block = 0; block < blocks; ++block) {
      const std::uint64_t seed = seed_ == 0 ? 0 : launch * 1009 + block + seed_ * 7919 + 1;
      submit([&grid, block, blocks, threads, &body, seed](Block& processor) {
        run_block(processor, block, blocks, threads, body, seed);
        const std::lock_guard<std::mutex> lock(grid.mutex);
        if (--grid.left == 0) grid.ended.notify_one();
      });
    }
    std::unique_lock<std::mutex> lock(grid.mutex);
    grid.ended.wait(lock, [&] { return grid.left == 0; });
  }

 private:
  using Job = std::function<void(Block&)>;

  /// Every job has a thread at once: blocks wait for each other.
  void submit(Job job) {
    const std::lock_guard<std::mutex> lock(mutex_);
    jobs_.push_back(std::move(job));
    if (jobs_.size() > idle_) {
      ++idle_;
      std::thread([this] { work(); }).detach();
    }
    come_.notify_one();
  }
  [[noreturn]] void work() {
    Block& block = new_block(kThreadsMax);
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      come_.wait(lock, [&] { return !jobs_.empty(); });
      const Job job = std::move(jobs_.front());
      jobs_.erase(jobs_.begin());
      --idle_;
      lock.unlock();
      job(block);
      lock.lock();
      ++idle_;
    }
  }

  const std::uint64_t seed_ = chosen_seed();
  std::mutex mutex_;
  std::condition_variable come_;
  std::vector<Job> jobs_;
  std::size_t idle_ = 0;
  std::uint64_t launches_ = 0;
};

}  // namespace

void run_grid(unsigned blocks, unsigned threads, const Body& body) {
  Processors::instance().run(blocks, threads, body);
}

}  // namespace gpu_simulator
