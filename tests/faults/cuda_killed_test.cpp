// SPDX-License-Identifier: MIT
//
// Processes on GPUs that are killed while a kernel of theirs runs: what it had sent by then is there, the rest never comes.
// Those that remain return from every call; of the lost rank they have all rows of a dispatch or none, and a token's sum is
// whole with it or whole without it, as handles, reports and surviving weights say. Of one that had sent all they have all.
// (Also with SLUICE_TEST_NODE_SIZE=1. On nodes of more ranks others may be lost with one.)
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>

#include "faults/late.hpp"
#include "support/gpu_main.hpp"
#include "support/random.hpp"
#include "support/tensor.hpp"
#if SLUICE_CUDA_SIMULATED
#include <sys/mman.h>

#include "gpu_simulator/losses.hpp"
#endif

namespace sluice::faults {
namespace {

using Clock = std::chrono::steady_clock;

constexpr unsigned kAll = (1U << kRanks) - 1;
/// What a row of rank 0 says: more than any sum of ranks.
constexpr int kFirst = 100;
/// Half of the deadline of every wait that the end of a peer must end.
constexpr std::chrono::seconds kLongest{SLUICE_CUDA_SIMULATED ? 20 : 10};

/// How a communicator's calls travel.
struct Way {
  Layout layout;
  Mode mode;
  bool in_place = false;  // x and y are read by peers where they lie.
};

/// Kernels of throughput mode shall run for long.
int tokens_of(const Way& way) {
  if (SLUICE_CUDA_SIMULATED) return way.mode == Mode::latency ? 8 : 40;
  return way.mode == Mode::latency ? 64 : 512;
}
int hidden_of(const Way& way) {
  if (SLUICE_CUDA_SIMULATED) return way.mode == Mode::latency ? 2048 : 512;
  return way.mode == Mode::latency ? 4096 : 2048;
}

/// Who is gone since before a round, and who dies in it.
struct Losses {
  unsigned gone = 0;
  unsigned dying = 0;
};

/// The calls of one rank. Rows say whose they are, in their first half, and of which token; what a rank's experts answer is one
/// bit, so a sum says whose answers are in it.
class Caller {
 public:
  Caller(Communicator& communicator, const Way& way, support::Findings& findings)
      : communicator_(communicator),
        way_(way),
        findings_(findings),
        tokens_(tokens_of(way)),
        hidden_(hidden_of(way)),
        x_(DType::bf16, {tokens_, hidden_}),
        ids_(DType::i32, {tokens_, kTopk}),
        weights_(DType::f32, {tokens_, kTopk}),
        rows_(DType::bf16, rows_shape()),
        y_(DType::bf16, rows_shape()),
        out_(DType::bf16, {tokens_, hidden_}),
        surviving_(DType::f32, {tokens_}),
        memory_(DType::u8, {static_cast<std::int64_t>(communicator.handle_bytes())}),
        report_(support::place().allocate(sizeof(Report))) {
    for (int token = 0; token < tokens_; ++token) {
      auto* const row = reinterpret_cast<std::uint16_t*>(x_.row(token));
      std::fill_n(row, hidden_ / 2, half_of(kFirst + communicator.rank()));
      std::fill_n(row + hidden_ / 2, hidden_ / 2, half_of(token % kFirst));
    }
    route_everywhere(tokens_, static_cast<std::int32_t*>(ids_.view().data),
                     static_cast<float*>(weights_.view().data));
    // Wherever rows may be numbered.
    std::fill_n(static_cast<std::uint16_t*>(y_.view().data), y_.bytes() / 2,
                half_of(1 << communicator.rank()));
    x_given_ = where_peers_read(x_);
    y_given_ = where_peers_read(y_);
  }

  /// The send half alone.
  void send_dispatch() {
    (void)communicator_.send_dispatch(x_given_, ids_.view(), weights_.view(), dispatch_options());
    support::place().finish();
  }
  void send_combine() {
    (void)communicator_.send_combine(y_given_, handle_, combine_options());
    support::place().finish();
  }

  void dispatch(const Losses& losses) {
    DispatchOutputs outputs;
    outputs.rows = rows_.view();
    outputs.handle = Handle(memory_.view().data, memory_.bytes(), Device::cuda);
    outputs.report = new (report_.get()) Report();
    const Clock::time_point began = Clock::now();
    const Received received =
        communicator_.dispatch(x_given_, ids_.view(), weights_.view(), dispatch_options(), outputs);
    support::place().finish();
    handle_ = received.handle;
    check_time("dispatch", Clock::now() - began);
    if (!received.status.ok()) findings_.add("dispatch: " + received.status.to_string());
    check_rows(losses);
  }

  void combine(const Losses& losses) {
    CombineOutputs outputs;
    outputs.renormalize = false;
    outputs.surviving_weight = surviving_.view();
    outputs.report = new (report_.get()) Report();
    const Clock::time_point began = Clock::now();
    const CombineResult result =
        communicator_.combine(y_given_, handle_, out_.view(), combine_options(), outputs);
    support::place().finish();
    check_time("combine", Clock::now() - began);
    if (!result.status.ok()) findings_.add("combine: " + result.status.to_string());
    check_sums(losses);
  }

  /// Of the last call.
  Clock::duration took() const { return took_; }

 private:
  static constexpr int kLocal = kExperts / kRanks;

  static DispatchOptions dispatch_options() {
    DispatchOptions options;
    options.stream = support::place().stream();
    return options;
  }
  static CombineOptions combine_options() {
    CombineOptions options;
    options.stream = support::place().stream();
    return options;
  }

  std::vector<std::int64_t> rows_shape() const {
    const std::int64_t all = std::int64_t{kRanks} * tokens_of(way_);
    if (way_.layout == Layout::expert_slab) return {kLocal, all, hidden_of(way_)};
    // A token may have several experts of a rank.
    return {way_.layout == Layout::expert_major ? all * kLocal : all, hidden_of(way_)};
  }

  ConstTensorView where_peers_read(const support::Tensor& tensor) {
    ConstTensorView view = tensor.view();
    if (!way_.in_place) return view;
    const Result<void*> allocated = communicator_.allocate(tensor.bytes());
    if (!allocated) {
      findings_.add("allocate: " + allocated.status().to_string());
      return view;
    }
    support::place().write(*allocated, view.data, tensor.bytes());
    support::place().finish();
    view.data = *allocated;
    return view;
  }

  unsigned missing() const {
    return static_cast<unsigned>(static_cast<const Report*>(report_.get())->missing.words[0]);
  }

  void check_time(const char* operation, Clock::duration took) {
    took_ = took;
    if (took > kLongest) findings_.add(std::string(operation) + " waited for a rank given up");
  }
  void check_missing(const char* operation, const Losses& losses) {
    const unsigned seen = missing();
    if ((seen & losses.gone) == losses.gone && (seen & ~(losses.gone | losses.dying)) == 0) return;
    findings_.add(std::string(operation) + ": missing are " + std::to_string(seen) + ", gone " +
                  std::to_string(losses.gone) + ", dying " + std::to_string(losses.dying));
  }

  void check_rows(const Losses& losses) {
    check_missing("dispatch", losses);
    if (handle_.report().missing.words[0] != missing()) findings_.add("two reports differ");
    std::vector<std::int32_t> sources(static_cast<std::size_t>(handle_.rows()) * 3);
    const TensorView view(sources.data(), DType::i32, handle_.rows(), 3);
    if (const Status status = handle_.row_sources(view); !status.ok()) {
      return findings_.add(status.to_string());
    }
    std::vector<int> seen(static_cast<std::size_t>(kRanks * tokens_));
    for (std::int64_t row = 0; row < handle_.rows(); ++row) {
      const std::int32_t* const from = &sources[static_cast<std::size_t>(row) * 3];
      if (from[0] < 0) continue;
      ++seen[static_cast<std::size_t>(from[0] * tokens_ + from[1])];
      const std::uint16_t source = half_of(kFirst + from[0]);
      if (says(rows_.row(row), hidden_, source, half_of(from[1] % kFirst))) continue;
      findings_.add("row " + std::to_string(row) + " is not token " + std::to_string(from[1]) +
                    " of rank " + std::to_string(from[0]));
    }
    for (int source = 0; source < kRanks; ++source) {
      const int expected = ((missing() >> source) & 1U) != 0 ? 0 : 1;
      for (int token = 0; token < tokens_; ++token) {
        const int found = seen[static_cast<std::size_t>(source * tokens_ + token)];
        if (found == expected) continue;
        findings_.add("token " + std::to_string(token) + " of rank " + std::to_string(source) +
                      " has " + std::to_string(found) + " rows; missing are " +
                      std::to_string(missing()));
      }
    }
  }
  void check_sums(const Losses& losses) {
    check_missing("combine", losses);
    std::int64_t lost = 0;
    for (int token = 0; token < tokens_; ++token) {
      const auto* const row = reinterpret_cast<const std::uint16_t*>(out_.row(token));
      const float value = std::bit_cast<float>(std::uint32_t{row[0]} << 16);
      const unsigned answered =
          value >= 0.0F && value <= static_cast<float>(kAll) ? static_cast<unsigned>(value) : 0;
      const bool whole = std::all_of(row, row + hidden_, [&](auto v) { return v == row[0]; });
      const unsigned unanswered = kAll & ~answered;
      // One that was taken in part is lost as a whole.
      const bool none = answered == 0 && value == 0.0F && losses.dying != 0;
      const bool named = (answered & losses.gone) == 0 && (unanswered & ~missing()) == 0;
      if (!whole || !(named || none)) {
        findings_.add("token " + std::to_string(token) + " is the sum of ranks " +
                      std::to_string(value) + (whole ? "" : " in part") + "; missing are " +
                      std::to_string(missing()));
      }
      lost += std::popcount(unanswered);
      const float weight = static_cast<const float*>(surviving_.view().data)[token];
      if (weight != static_cast<float>(std::popcount(answered))) {
        findings_.add("token " + std::to_string(token) + ", of ranks " + std::to_string(answered) +
                      ", has a surviving weight of " + std::to_string(weight));
      }
    }
    const std::int64_t reported = static_cast<const Report*>(report_.get())->lost_routes;
    if (reported != lost) {
      findings_.add("reported are " + std::to_string(reported) + " lost routes, not " +
                    std::to_string(lost));
    }
  }

  Communicator& communicator_;
  Way way_;
  support::Findings& findings_;
  int tokens_;
  int hidden_;
  support::Tensor x_, ids_, weights_, rows_, y_, out_, surviving_, memory_;
  std::shared_ptr<void> report_;
  ConstTensorView x_given_;
  ConstTensorView y_given_;
  Handle handle_;
  Clock::duration took_{};
};

/// One after the other, in a round of its own, while it dispatches or combines.
struct Death {
  int rank;
  bool in_combine;
};
constexpr Death kDeaths[] = {{3, false}, {1, true}};

/// A rank that dies in one of its rounds, or sees others die.
class Mortal {
 public:
  Mortal(Caller& caller, support::Findings& findings, std::uint64_t seed)
      : caller_(caller), findings_(findings), seed_(seed) {}

  void round(const Losses& losses, const std::function<void(bool)>& before = {}) {
    findings_.set_context("round " + std::to_string(number_++) + ": ");
    for (const bool combines : {false, true}) {
      if (before) before(combines);
      combines ? caller_.combine(losses) : caller_.dispatch(losses);
      took_[combines ? 1 : 0] = caller_.took();
    }
  }

  /// A round in which this rank dies, by a thread of its own.
  void die(const Death& death, unsigned gone) {
    round({gone, 0}, [&](bool combines) {
      if (combines != death.in_combine) return;
      std::atomic<bool> begun = false;
      std::thread([&begun, after = part(death) * took_[combines ? 1 : 0]] {
        const Clock::time_point end =
            Clock::now() + std::chrono::duration_cast<Clock::duration>(after);
        begun = true;
        while (Clock::now() < end) {  // To sleep would take longer than many a call.
        }
        ::kill(::getpid(), SIGKILL);
      }).detach();
      while (!begun) std::this_thread::yield();
    });
    std::this_thread::sleep_for(kLongest);
    findings_.add("was not killed");
  }
  /// Its peers are there with it, or come when it waits for them.
  void lose(const Death& death, unsigned gone) {
    const bool late = seed_ % 2 != 0;
    round({gone, 1U << death.rank}, [&](bool combines) {
      if (late && combines == death.in_combine) std::this_thread::sleep_for(milliseconds(200));
    });
  }

 private:
  /// Of the time that a good call takes.
  double part(const Death& death) const {
    constexpr int kParts = 1000;
    support::Random random = support::Random::of(seed_, static_cast<std::uint64_t>(death.rank));
    return static_cast<double>(random.below(kParts)) / kParts;
  }

  Caller& caller_;
  support::Findings& findings_;
  std::uint64_t seed_;
  int number_ = 0;
  std::chrono::duration<double> took_[2] = {};
};

/// A rank's part, with calls of its own.
using Play = std::function<void(World&, Caller&, support::Findings&)>;

void run_rank(World& world, const Way& way, const Play& play, support::Findings& findings) {
  CommunicatorOptions options;
  options.layout = way.layout;
  options.mode = way.mode;
  options.registered_bytes = way.in_place ? std::size_t{64} << 20 : 0;
  options.y_memory = way.in_place ? YMemory::registered : YMemory::ordinary;
  // Slowly, so that its kernels are more often in the middle.
  for (const Death& death : kDeaths) {
    if (death.rank == world.rank()) options.block_limit = 1;
  }
  support::place().adapt(options);
  Result<Communicator> made =
      Communicator::create(world, {kExperts, kTopk, hidden_of(way), tokens_of(way)}, options);
  if (!made) return findings.add(made.status().to_string());
  Caller caller(*made, way, findings);
  play(world, caller, findings);
}

/// Plays it by processes of which `dead` are killed, and nothing else goes wrong.
void expect_deaths(const Way& way, const std::vector<int>& dead, const Play& play,
                   const std::string& what) {
  support::RunOptions options;
  options.watchdog = std::chrono::seconds(50);
  options.leave = false;
  const auto body = [&](World& world, support::Findings& findings) {
    const std::unique_ptr<support::Place> place = support::gpu_place(world.rank(), 2 * kLongest);
    support::set_place(place.get());
    run_rank(world, way, play, findings);
    support::set_place(nullptr);
  };
  std::vector<std::string> meant;
  for (const int rank : dead) {
    meant.push_back("rank " + std::to_string(rank) + ": ended by signal " +
                    std::to_string(SIGKILL));
  }
  std::vector<std::string> seen = support::run_as_processes(kRanks, body, options).failures;
  std::sort(seen.begin(), seen.end());
  EXPECT_EQ(seen, meant) << what;
}

class InKernels : public ::testing::TestWithParam<Way> {};

TEST_P(InKernels, Killed) {
  const char* const more = std::getenv("SLUICE_TEST_SEEDS");
  const int seeds = more != nullptr ? std::atoi(more) : 2;
  for (int seed = 0; seed < seeds; ++seed) {
    const auto play = [&](World& world, Caller& caller, support::Findings& findings) {
      Mortal rank(caller, findings, static_cast<std::uint64_t>(seed));
      for (int i = 0; i < 3; ++i) rank.round({});
      unsigned gone = 0;
      for (const Death& death : kDeaths) {
        if (death.rank == world.rank()) return rank.die(death, gone);
        rank.lose(death, gone);
        gone |= 1U << death.rank;
        for (int i = 0; i < 3; ++i) rank.round({gone, 0});
      }
    };
    expect_deaths(GetParam(), {1, 3}, play, "seed " + std::to_string(seed));
  }
}

#if SLUICE_CUDA_SIMULATED
/// What the processes of a test know of each other.
struct Board {
  std::atomic<unsigned> looked =
      0;  // Ranks that were about to look whether the last one is gone, once at least.
  std::atomic<bool> dead = false;
};
Board* board = nullptr;
unsigned own_bit = 0;

/// Between its last poll and its look, all of what is waited for comes, and its sender ends.
void wait_for_its_end(int peer) {
  if (peer != kRanks - 1) return;
  board->looked |= own_bit;
  if (board->dead) return;
  const Clock::time_point latest = Clock::now() + kLongest;
  while (!board->dead && Clock::now() < latest) std::this_thread::sleep_for(milliseconds(1));
  std::this_thread::sleep_for(milliseconds(200));  // Until it is known.
}

void serve_and_die(bool in_combine, Caller& caller) {
  constexpr unsigned kOthers = kAll >> 1;
  while (board->looked != kOthers) std::this_thread::sleep_for(milliseconds(1));
  in_combine ? caller.send_combine() : caller.send_dispatch();
  board->dead = true;
  ::raise(SIGKILL);
}

TEST_P(InKernels, KilledWhenAllWasSent) {
  constexpr int kLast = kRanks - 1;
  for (const bool in_combine : {false, true}) {
    void* const shared =
        ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(shared, MAP_FAILED);
    board = new (shared) Board();
    const auto play = [&](World& world, Caller& caller, support::Findings&) {
      caller.dispatch({});
      caller.combine({});
      if (in_combine) caller.dispatch({});
      own_bit = 1U << world.rank();
      if (world.rank() == kLast) serve_and_die(in_combine, caller);
      gpu_simulator::about_to_look = wait_for_its_end;
      in_combine ? caller.combine({}) : caller.dispatch({});
      gpu_simulator::about_to_look = nullptr;
      if (!in_combine) caller.combine({1U << kLast, 0});
      caller.dispatch({1U << kLast, 0});
    };
    expect_deaths(GetParam(), {kLast}, play, in_combine ? "combine" : "dispatch");
    ::munmap(shared, sizeof(Board));
  }
}
#endif

std::vector<Way> all_ways() {
  std::vector<Way> ways;
  for (const Layout layout : {Layout::expert_slab, Layout::expert_major, Layout::rank_major}) {
    ways.push_back({layout, Mode::latency});
    ways.push_back({layout, Mode::throughput});
  }
  ways.push_back({Layout::rank_major, Mode::throughput, true});
  return ways;
}
INSTANTIATE_TEST_SUITE_P(Faults, InKernels, ::testing::ValuesIn(all_ways()),
                         [](const ::testing::TestParamInfo<Way>& way) {
                           return std::string(to_string(way.param.mode)) +
                                  (way.param.in_place ? "_in_place_" : "_") +
                                  std::string(to_string(way.param.layout));
                         });

}  // namespace
}  // namespace sluice::faults

int main(int argc, char** argv) {
  return sluice::support::run_gpu_tests(argc, argv, sluice::support::gpu_count_before_forking);
}
