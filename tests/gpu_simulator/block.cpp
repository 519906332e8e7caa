// SPDX-License-Identifier: MIT
//
// One block of a grid: its threads are fibers, which take turns on one thread of the host.
#include <sys/mman.h>
#include <unistd.h>

#include <boost/context/fiber.hpp>
#include <boost/context/preallocated.hpp>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "gpu_simulator/device.hpp"
#include "gpu_simulator/kernel_launch.hpp"

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__ 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace gpu_simulator {
namespace {

using boost::context::fiber;

constexpr unsigned kWarpThreads = 32;
#if defined(__SANITIZE_ADDRESS__)
constexpr std::size_t kStackBytes = std::size_t{256} << 10;

/// Tells the sanitizer that this thread of the host goes on with another stack, until it comes back.
class OtherStack {
 public:
  OtherStack(const void* bottom, std::size_t bytes) {
    __sanitizer_start_switch_fiber(&kept_, bottom, bytes);
  }
  ~OtherStack() { __sanitizer_finish_switch_fiber(kept_, nullptr, nullptr); }

 private:
  void* kept_ = nullptr;
};
/// Likewise, at the begin of a stack, and at its end, for good.
void begin_stack(const void** bottom_before, std::size_t* bytes_before) {
  __sanitizer_finish_switch_fiber(nullptr, bottom_before, bytes_before);
}
void end_stack(const void* bottom, std::size_t bytes) {
  __sanitizer_start_switch_fiber(nullptr, bottom, bytes);
}
#else
constexpr std::size_t kStackBytes = std::size_t{64} << 10;

struct OtherStack {
  OtherStack(const void* /*bottom*/, std::size_t /*bytes*/) {}
  ~OtherStack() {}  // Not trivial: its objects are there for what they do.
};
void begin_stack(const void** /*bottom_before*/, std::size_t* /*bytes_before*/) {}
void end_stack(const void* /*bottom*/, std::size_t /*bytes*/) {}
#endif

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "gpu_simulator: %s\n", what);
  std::abort();
}

bool same(const Place& a, const Place& b) {
  return a.line() == b.line() && a.column() == b.column() &&
         (a.file_name() == b.file_name() || std::strcmp(a.file_name(), b.file_name()) == 0);
}
[[noreturn]] void fail_to_meet(const Place& a, const Place& b) {
  std::fprintf(stderr, "gpu_simulator: %s:%u, others at %s:%u: ", a.file_name(), a.line(),
               b.file_name(), b.line());
  fail("threads of a warp meet in different places");
}

/// What the schedule of a process is drawn from; 0: every thread in its turn, without delays.
std::uint64_t chosen_seed() {
  const char* const text = std::getenv("SLUICE_SIMULATOR_SEED");
  return text == nullptr ? 0 : std::strtoull(text, nullptr, 10);
}

struct Warp;

struct Thread {
  enum class State { ready, waits_for_warp, waits_for_block, ended };
  unsigned index = 0;
  Warp* warp = nullptr;
  State state = State::ended;
  bool polled = false;
  unsigned turn = 0;  // Exchanges so far: every other one has the same buffer.
  fiber self;
  fiber scheduler;
  std::byte* stack = nullptr;
};

struct Warp {
  struct Buffer {
    std::uint64_t values[kWarpThreads];
    Place place;
    unsigned come = 0;
  };
  Buffer buffers[2];
  unsigned index = 0;
  unsigned running = 0;  // Threads that have not ended.
  unsigned stalled = 0;  // Passes that it sits out.
};

class Block;
thread_local Block* current_block = nullptr;
thread_local Thread* current = nullptr;

/// Does nothing at the end: the stacks are kept for the next block.
struct KeepStack {
  void deallocate(boost::context::stack_context& /*context*/) noexcept {}
};

/// A thread of the host that runs blocks, one after the other, and the stacks for their threads.
class Block {
 public:
  explicit Block(unsigned threads_max)
      : threads_(threads_max), warps_((threads_max + kWarpThreads - 1) / kWarpThreads) {
    const std::size_t bytes = threads_max * kStackBytes;
    void* const stacks = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED) fail("no memory for stacks");
    for (unsigned i = 0; i < threads_max; ++i) {
      threads_[i].stack = static_cast<std::byte*>(stacks) + i * kStackBytes;
    }
  }

  void run(unsigned block, unsigned blocks, unsigned threads, const Body& body,
           std::uint64_t seed) {
    if (threads > threads_.size() || threads % kWarpThreads != 0) fail("blocks of this size");
    block_ = block;
    blocks_ = blocks;
    random_.seed(seed);
    delays_ = seed != 0;
    current_block = this;
    living_ = threads;
    for (unsigned i = 0; i < threads; ++i) start(i, body);
    const unsigned warps = threads / kWarpThreads;
    unsigned idle = 0;
    while (living_ > 0) {
      const std::uint64_t before = events_;
      const Pass pass = run_pass(warps);
      if (!pass.ran && !pass.stalled) fail("all threads of a block wait for each other");
      idle = events_ == before && pass.polled && !pass.stalled ? idle + 1 : 0;
      if (idle > 1) rest(idle);
      if (delays_ && random_() % 1024 == 0) ::usleep(static_cast<unsigned>(random_() % 2000));
    }
    current_block = nullptr;
  }

  const std::uint64_t* exchange(unsigned mask, const Place& place, std::uint64_t own) {
    Thread& thread = *current;
    Warp& warp = *thread.warp;
    if (mask != ~0U) fail("a part of a warp");
    Warp::Buffer& buffer = warp.buffers[thread.turn++ % 2];
    if (buffer.come == 0) buffer.place = place;
    if (!same(buffer.place, place)) fail_to_meet(buffer.place, place);
    buffer.values[thread.index % kWarpThreads] = own;
    if (++buffer.come == kWarpThreads) {
      buffer.come = 0;
      const unsigned first = warp.index * kWarpThreads;
      for (unsigned i = first; i < first + kWarpThreads; ++i) {
        if (threads_[i].state == Thread::State::waits_for_warp) {
          threads_[i].state = Thread::State::ready;
        }
      }
    } else {
      if (warp.running != kWarpThreads) fail("a thread of a warp has ended, others meet");
      wait(Thread::State::waits_for_warp);
    }
    return buffer.values;
  }

  Count barrier(bool condition) {
    with_ += condition ? 1 : 0;
    ++come_;
    const unsigned turn = barriers_;
    if (!end_of_barrier()) wait(Thread::State::waits_for_block);
    if (barriers_ == turn) fail("a barrier ended early");
    return counts_[turn % 2];
  }

  void poll() {
    current->polled = true;
    wait(Thread::State::ready);
  }
  void wrote() { ++events_; }
  void linger(unsigned one_in) {
    if (delays_ && random_() % one_in == 0) ::usleep(static_cast<unsigned>(random_() % 500));
  }

  unsigned index() const { return block_; }
  unsigned grid() const { return blocks_; }

 private:
  struct Pass {
    bool ran = false;
    bool polled = false;
    bool stalled = false;
  };

  void start(unsigned index, const Body& body) {
    Thread& thread = threads_[index];
    Warp& warp = warps_[index / kWarpThreads];
    if (index % kWarpThreads == 0) warp = {};
    warp.index = index / kWarpThreads;
    ++warp.running;
    thread.index = index;
    thread.warp = &warp;
    thread.state = Thread::State::ready;
    thread.turn = 0;
    boost::context::stack_context context;
    context.size = kStackBytes;
    context.sp = thread.stack + kStackBytes;
    thread.self =
        fiber(std::allocator_arg, boost::context::preallocated(context.sp, kStackBytes, context),
              KeepStack(), [this, &thread, &body](fiber&& scheduler) {
                begin_stack(&scheduler_stack_, &scheduler_bytes_);
                thread.scheduler = std::move(scheduler);
                body();
                end(thread);
                end_stack(scheduler_stack_, scheduler_bytes_);
                return std::move(thread.scheduler);
              });
  }

  Pass run_pass(unsigned warps) {
    Pass pass;
    const unsigned first = delays_ ? static_cast<unsigned>(random_() % warps) : 0;
    for (unsigned i = 0; i < warps; ++i) {
      Warp& warp = warps_[(first + i) % warps];
      if (warp.running == 0) continue;
      if (delays_) {
        if (warp.stalled == 0 && random_() % 256 == 0) {
          warp.stalled = static_cast<unsigned>(random_() % (random_() % 16 == 0 ? 400 : 30));
        }
        if (warp.stalled > 0) {
          --warp.stalled;
          pass.stalled = true;
          continue;
        }
      }
      const unsigned begin = warp.index * kWarpThreads;
      for (unsigned t = begin; t < begin + kWarpThreads; ++t) {
        Thread& thread = threads_[t];
        if (thread.state != Thread::State::ready) continue;
        thread.polled = false;
        current = &thread;
        const OtherStack other(thread.stack, kStackBytes);
        thread.self = std::move(thread.self).resume();
        pass.ran = true;
        pass.polled = pass.polled || thread.polled;
      }
    }
    return pass;
  }

  void wait(Thread::State state) {
    Thread& thread = *current;
    thread.state = state;
    const OtherStack other(scheduler_stack_, scheduler_bytes_);
    thread.scheduler = std::move(thread.scheduler).resume();
  }

  void end(Thread& thread) {
    thread.state = Thread::State::ended;
    Warp& warp = *thread.warp;
    --warp.running;
    --living_;
    ++events_;
    for (const Warp::Buffer& buffer : warp.buffers) {
      if (buffer.come != 0) fail("a thread of a warp ends while others meet");
    }
    (void)end_of_barrier();
  }

  /// Lets the threads at the barrier go on if all have come.
  bool end_of_barrier() {
    if (come_ == 0 || come_ != living_) return false;
    counts_[barriers_ % 2] = {static_cast<int>(with_), static_cast<int>(come_)};
    ++barriers_;
    ++events_;
    come_ = with_ = 0;
    for (Thread& thread : threads_) {
      if (thread.state == Thread::State::waits_for_block) thread.state = Thread::State::ready;
    }
    return true;
  }

  /// Others need the processor to bring what this block waits for.
  static void rest(unsigned idle) { ::usleep(5U << (idle < 3 ? idle : 3)); }

  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  const void* scheduler_stack_ = nullptr;
  std::size_t scheduler_bytes_ = 0;
  unsigned block_ = 0;
  unsigned blocks_ = 0;
  unsigned living_ = 0;
  unsigned come_ = 0;
  unsigned with_ = 0;
  unsigned barriers_ = 0;
  Count counts_[2] = {};
  std::uint64_t events_ = 0;
  bool delays_ = false;
  std::mt19937_64 random_;
};

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
        processor.run(block, blocks, threads, body, seed);
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
    Block block(kThreadsMax);
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

const std::uint64_t* exchange(unsigned mask, const Place& place, std::uint64_t own) {
  return current_block->exchange(mask, place, own);
}
Count barrier(bool condition) {
  return current_block->barrier(condition);
}
void poll() {
  current_block->poll();
}
void wrote() {
  current_block->wrote();
}
void linger(unsigned one_in) {
  current_block->linger(one_in);
}
unsigned thread_index() {
  return current->index;
}
unsigned block_index() {
  return current_block->index();
}
unsigned grid_size() {
  return current_block->grid();
}

}  // namespace gpu_simulator
