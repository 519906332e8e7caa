// SPDX-License-Identifier: MIT
//
// One block of a grid: its threads are fibers, which take turns on one thread of the host.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "block.hpp"
#include "gpu_simulator/device.hpp"
#include "gpu_simulator/device_list.hpp"
#include "gpu_simulator/kernel_launch.hpp"
#include "stacks.hpp"

namespace gpu_simulator {

constinit thread_local Coordinates current = {};

namespace {

constexpr unsigned kWarpThreads = 32;
/// How long a pass takes in which nobody goes on, and of how many, as a power of two, a warp takes part in one that
/// only waits.
constexpr unsigned kPassUs = 5;
constexpr unsigned kInVainMax = 7;

/// Not a multiple of a page: what threads use at the same depth of their stacks would else share a set of
/// the cache.
constexpr std::size_t kStackStride = kStackBytes + 17 * 64;

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

/// A set of a warp's threads, a bit each.
using Lanes = std::uint32_t;
constexpr Lanes kAllLanes = ~Lanes{0};

/// What a warp has seen by polling: tells, but for a few errors, what is new. Empties itself now and then.
class Seen {
 public:
  bool is_new(std::uint64_t what) {
    const auto bit = static_cast<unsigned>(what * 0x9E3779B97F4A7C15 >> 52);
    std::uint64_t& word = words_[bit / 64];
    const std::uint64_t mask = std::uint64_t{1} << bit % 64;
    if ((word & mask) != 0) return false;
    if (++count_ > 1024) *this = {};
    word |= mask;
    return true;
  }

 private:
  std::uint64_t words_[64] = {};
  unsigned count_ = 0;
};

/// A thread that has not ended runs or is in one of the sets.
struct Warp {
  struct Buffer {
    Exchanged all;
    Place place;
    Lanes come = 0;
  };
  Buffer buffers[2];
  Lanes turn = 0;                 // Every other exchange of a thread has the same buffer.
  void* left[kWarpThreads] = {};  // Where threads go on that do not run.
  unsigned index = 0;
  Lanes running = 0;     // Have not ended.
  Lanes ready = 0;       // Go on in this turn of the warp.
  Lanes later = 0;       // Go on in the next: they have polled, or the schedule wants it so.
  Lanes at_block = 0;    // Wait for the block; for the warp, a buffer knows who.
  unsigned turns = 0;    // Until the schedule has it sit out some.
  unsigned stalled = 0;  // Those.

  std::uint64_t due = 0;  // The first pass in which it goes on.
  unsigned in_vain = 0;   // Turns that ended in a poll, since the last with news.
  bool polled = false;    // In this turn.
  bool news = false;  // Since the last turn that ended in a poll: it wrote, or saw something new.
  Seen seen;

  bool waits_for_turn() const { return (ready | later) != 0; }
};

Lanes bit_of(unsigned lane) {
  return Lanes{1} << lane;
}
unsigned current_lane() {
  return current.thread % kWarpThreads;
}

thread_local Block* current_block = nullptr;

}  // namespace

/// A thread of the host that runs blocks, one after the other, and the stacks for their threads. Its warps
/// have turns, one after the other; in a turn the threads of a warp run, each until it waits, polls or ends,
/// and hand on to the next one, until none is ready. A pass is a turn of all warps that are due: those that wait for
/// others take part in few, and while none is due the block sleeps.
class Block {
 public:
  explicit Block(unsigned threads_max) : warps_((threads_max + kWarpThreads - 1) / kWarpThreads) {
    const std::size_t bytes = threads_max * kStackStride;
    void* const stacks = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED) fail("no memory for stacks");
    stacks_ = static_cast<std::byte*>(stacks);
  }

  void run(unsigned block, unsigned blocks, unsigned threads, const Body& body,
           std::uint64_t seed) {
    if (threads > warps_.size() * kWarpThreads || threads % kWarpThreads != 0)
      fail("blocks of this size");
    current = {0, block, blocks};
    random_.seed(seed);
    delays_ = seed != 0;
    body_ = &body;
    current_block = this;
    living_ = threads;
    const unsigned warps = threads / kWarpThreads;
    for (unsigned i = 0; i < warps; ++i) start(i);
    draw_delay();
    for (pass_ = 1; living_ > 0; ++pass_) {
      if (!run_pass(warps)) rest(warps);
      if (delays_ && pass_ >= delayed_) {
        ::usleep(static_cast<unsigned>(random_() % 2000));
        draw_delay();
      }
    }
    current_block = nullptr;
  }

  const Exchanged& exchange(unsigned mask, const Place& place, std::uint64_t own) {
    Warp& warp = *warp_;
    const unsigned lane = current_lane();
    const Lanes bit = bit_of(lane);
    if (mask != kAllLanes) fail("a part of a warp");
    Warp::Buffer& buffer = warp.buffers[(warp.turn & bit) != 0 ? 1 : 0];
    warp.turn ^= bit;
    if (buffer.come == 0) {
      buffer.place = place;
      buffer.all.odd = 0;
    }
    if (!same(buffer.place, place)) fail_to_meet(buffer.place, place);
    buffer.all.values[lane] = own;
    buffer.all.odd |= static_cast<Lanes>(own & 1) << lane;
    buffer.come |= bit;
    if (buffer.come != kAllLanes) {
      if (warp.running != kAllLanes) fail("a thread of a warp has ended, others meet");
      hand_on();
      return buffer.all;
    }
    buffer.come = 0;
    warp.ready |= kAllLanes & ~bit;
    if (delays_ && random_() % 8 == 0) {
      warp.later |= kAllLanes;
      warp.ready = 0;
      hand_on();
    }
    return buffer.all;
  }

  Count barrier(bool condition) {
    with_ += condition ? 1 : 0;
    ++come_;
    const unsigned turn = barriers_;
    warp_->at_block |= bit_of(current_lane());
    if (end_of_barrier()) {
      warp_->ready &= ~bit_of(current_lane());
    } else {
      hand_on();
    }
    if (barriers_ == turn) fail("a barrier ended early");
    return counts_[turn % 2];
  }

  void poll() {
    warp_->later |= bit_of(current_lane());
    warp_->polled = true;
    hand_on();
  }
  /// What the clock shows, which the threads of a turn look at together, but each at what it has not seen yet.
  std::uint64_t now() {
    const Lanes bit = bit_of(current_lane());
    if ((fresh_ & bit) == 0) {
      now_ = host_nanoseconds();
      fresh_ = kAllLanes;
    }
    fresh_ &= ~bit;
    return now_;
  }
  Bytes* dynamic_memory() { return reinterpret_cast<Bytes*>(dynamic_memory_); }
  void saw(std::uint64_t what) {
    Warp& warp = *warp_;
    if (warp.seen.is_new(what)) warp.news = true;
  }
  void wrote() { warp_->news = true; }
  void linger(unsigned one_in) {
    if (!delays_ || random_() % one_in != 0) return;
    ::usleep(static_cast<unsigned>(random_() % 500));
    fresh_ = 0;
  }

 private:
  void start(unsigned index) {
    Warp& warp = warps_[index];
    warp = {};
    warp.index = index;
    warp.running = warp.later = kAllLanes;
    for (unsigned lane = 0; lane < kWarpThreads; ++lane) {
      warp.left[lane] = unused_stack(stack_of(warp, lane), kStackBytes, run_current);
    }
  }
  std::byte* stack_of(const Warp& warp, unsigned lane) const {
    return stacks_ + (std::size_t{warp.index} * kWarpThreads + lane) * kStackStride;
  }
  /// What a thread does on its stack.
  static void run_current() {
    Block& block = *current_block;
    block.arrive();
    (*block.body_)();
    block.end();
  }

  /// Whether anybody went on.
  bool run_pass(unsigned warps) {
    bool any = false;
    const unsigned first = delays_ ? static_cast<unsigned>(random_() % warps) : 0;
    for (unsigned i = 0; i < warps; ++i) {
      Warp& warp = warps_[(first + i) % warps];
      if (warp.running == 0) continue;
      if (delays_ && sits_out(warp)) continue;
      if (warp.due > pass_ || !warp.waits_for_turn()) continue;
      any = true;
      warp.ready |= std::exchange(warp.later, 0);
      warp_ = &warp;
      fresh_ = 0;
      const unsigned next = take_next(warp);
      {
        const OtherStack other(stack_of(warp, next), kStackBytes);
        go_on(next, scheduler_);
      }
      if (std::exchange(warp.polled, false)) draw_breath(warp);
    }
    return any;
  }
  /// Who polls in vain goes on in one pass of two, then of four, and so on: at multiples, so that warps which wait go on
  /// together.
  void draw_breath(Warp& warp) {
    warp.in_vain = std::exchange(warp.news, false) ? 0 : std::min(warp.in_vain + 1, kInVainMax);
    warp.due = ((pass_ >> warp.in_vain) + 1) << warp.in_vain;
  }
  /// How many come before the next of which each is drawn with a chance of one in so many.
  unsigned draw_gap(double one_in) {
    const double chance = (static_cast<double>(random_()) + 1) * 0x1p-64;
    return static_cast<unsigned>(std::log(chance) / std::log1p(-1 / one_in));
  }
  /// One turn in 256 begins some that it sits out.
  void draw_turns(Warp& warp) {
    while (warp.turns == 0 && warp.stalled == 0) {
      warp.turns = draw_gap(256);
      warp.stalled = static_cast<unsigned>(random_() % (random_() % 16 == 0 ? 400 : 30));
    }
  }
  bool sits_out(Warp& warp) {
    draw_turns(warp);
    if (warp.turns == 0) {
      --warp.stalled;
      return true;
    }
    --warp.turns;
    return false;
  }
  void pass_turns(Warp& warp, unsigned turns) {
    while (turns > 0) {
      draw_turns(warp);
      unsigned& left = warp.turns != 0 ? warp.turns : warp.stalled;
      const unsigned pass = std::min(turns, left);
      left -= pass;
      turns -= pass;
    }
  }

  static unsigned take_next(Warp& warp) {
    const auto lane = static_cast<unsigned>(std::countr_zero(warp.ready));
    warp.ready &= warp.ready - 1;
    return lane;
  }
  /// Leaves this thread or the scheduler, which goes on from `left`, for a thread of the same warp.
  void go_on(unsigned lane, void*& left) {
    current.thread = warp_->index * kWarpThreads + lane;
    fetch_ahead(lane);
    gpu_simulator_switch(&left, warp_->left[lane]);
  }
  /// Stacks are in no cache mostly.
  void fetch_ahead(unsigned lane) const {
    const auto* const at = static_cast<const std::byte*>(warp_->left[(lane + 2) % kWarpThreads]);
    for (int line = 0; line < 4; ++line) __builtin_prefetch(at + line * 64);
  }

  /// This thread is in the set of those that wait for what it waits for: the next one runs, until somebody
  /// hands on to this one.
  void hand_on() {
    void*& left = warp_->left[current_lane()];
    if (warp_->ready != 0) {
      const unsigned next = take_next(*warp_);
      const OtherStack other(stack_of(*warp_, next), kStackBytes);
      go_on(next, left);
    } else {
      const OtherStack other(scheduler_stack_, scheduler_bytes_);
      gpu_simulator_switch(&left, scheduler_);
    }
  }
  /// The begin of a thread's stack.
  void arrive() {
    const void* bottom = nullptr;
    std::size_t bytes = 0;
    begin_stack(&bottom, &bytes);
    if (scheduler_stack_ != nullptr) return;  // The first of all was the scheduler's.
    scheduler_stack_ = bottom;
    scheduler_bytes_ = bytes;
  }

  /// Hands on for good.
  void end() {
    Warp& warp = *warp_;
    void*& left = warp.left[current_lane()];
    warp.running &= ~bit_of(current_lane());
    --living_;
    for (const Warp::Buffer& buffer : warp.buffers) {
      if (buffer.come != 0) fail("a thread of a warp ends while others meet");
    }
    (void)end_of_barrier();
    if (warp.ready != 0) {
      const unsigned next = take_next(warp);
      end_stack(stack_of(warp, next), kStackBytes);
      go_on(next, left);
    } else {
      end_stack(scheduler_stack_, scheduler_bytes_);
      gpu_simulator_switch(&left, scheduler_);
    }
  }

  /// Lets the threads at the barrier go on if all have come.
  bool end_of_barrier() {
    if (come_ == 0 || come_ != living_) return false;
    counts_[barriers_ % 2] = {static_cast<int>(with_), static_cast<int>(come_)};
    ++barriers_;
    come_ = with_ = 0;
    for (Warp& warp : warps_) {
      if (warp.at_block == 0) continue;
      warp.ready |= std::exchange(warp.at_block, 0);
      warp.due = 0;
    }
    return true;
  }

  /// Until the next warp goes on: others need the processor to bring what this block waits for.
  void rest(unsigned warps) {
    std::uint64_t next = ~std::uint64_t{0};
    bool polls = false;
    for (unsigned i = 0; i < warps; ++i) {
      const Warp& warp = warps_[i];
      if (!warp.waits_for_turn()) continue;
      const std::uint64_t stalled = warp.turns == 0 ? warp.stalled : 0;
      next = std::min(next, std::max(warp.due, pass_ + 1 + stalled));
      polls = polls || warp.due > pass_;
    }
    if (next == ~std::uint64_t{0}) fail("all threads of a block wait for each other");
    const auto passes = static_cast<unsigned>(next - pass_ - 1);
    if (polls && passes > 3) ::usleep(kPassUs * passes);
    pass_ += passes;
    if (!delays_) return;
    for (unsigned i = 0; i < warps; ++i) pass_turns(warps_[i], passes);
  }
  /// One pass in 1024 comes late.
  void draw_delay() {
    if (!delays_) return;
    delayed_ = pass_ + 1 + draw_gap(1024);
  }

  std::vector<Warp> warps_;
  std::byte* stacks_ = nullptr;
  std::byte* const dynamic_memory_ = new (std::align_val_t{128}) std::byte[kDynamicBytes];
  Warp* warp_ = nullptr;  // Whose turn it is.
  const Body* body_ = nullptr;
  void* scheduler_ = nullptr;  // Where the scheduler goes on, while it does not run.
  const void* scheduler_stack_ = nullptr;
  std::size_t scheduler_bytes_ = 0;
  unsigned living_ = 0;
  unsigned come_ = 0;
  unsigned with_ = 0;
  unsigned barriers_ = 0;
  Count counts_[2] = {};
  std::uint64_t now_ = 0;
  Lanes fresh_ = 0;            // Have not seen that.
  std::uint64_t pass_ = 0;     // The one that is under way.
  std::uint64_t delayed_ = 0;  // The one after which the block is held up.
  bool delays_ = false;
  std::mt19937_64 random_;
};

Block& new_block(unsigned threads_max) {
  return *new Block(threads_max);
}
void run_block(Block& on, unsigned block, unsigned blocks, unsigned threads, const Body& body,
               std::uint64_t seed) {
  on.run(block, blocks, threads, body, seed);
}

const Exchanged& exchange(unsigned mask, const Place& place, std::uint64_t own) {
  return current_block->exchange(mask, place, own);
}
Count barrier(bool condition) {
  return current_block->barrier(condition);
}
void poll() {
  current_block->poll();
}
void saw(std::uint64_t what) {
  current_block->saw(what);
}
void wrote() {
  current_block->wrote();
}
void linger(unsigned one_in) {
  current_block->linger(one_in);
}
Bytes* dynamic_memory() {
  return current_block->dynamic_memory();
}
std::uint64_t now() {
  return current_block->now();
}

}  // namespace gpu_simulator
