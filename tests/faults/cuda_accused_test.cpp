// SPDX-License-Identifier: MIT
//
// A rank on a GPU reads its peers' rows where they lie, but so late that they have given it up and overwritten them. It
// must not take what it reads: its peers have said that they gave it up (docs/protocol.md, "Being given up while
// reading").
#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <semaphore>

#include "faults/late.hpp"
#include "sluice/communicator.hpp"
#include "support/gpu_main.hpp"
#include "support/scripted_network.hpp"
#include "support/tensor.hpp"

namespace sluice::faults {
namespace {

constexpr int kReader = 3;
constexpr int kOthers = (1 << kRanks) - 1 - (1 << kReader);
constexpr int kTokens = 40;
constexpr int kHidden = 256;
constexpr int kRows = kRanks * kTokens;
constexpr milliseconds kShort = std::max(kDeadline, milliseconds(200));
constexpr milliseconds kLong = 100 * kShort;

/// One rank: its x, and the results of its experts, hold its number + 1 everywhere, in registered memory.
class Member {
 public:
  Member(World& world, Communicator& communicator, std::barrier<>& all,
         std::binary_semaphore& one_went_on, support::Findings& findings)
      : communicator_(communicator),
        all_(all),
        one_went_on_(one_went_on),
        findings_(findings),
        rank_(world.rank()),
        host_(DType::bf16, {kRows, kHidden}),
        ids_(DType::i32, {kTokens, kTopk}),
        weights_(DType::f32, {kTokens, kTopk}),
        rows_(DType::bf16, {kRows, kHidden}),
        out_(DType::bf16, {kTokens, kHidden}),
        memory_(DType::u8, {static_cast<std::int64_t>(communicator.handle_bytes())}),
        report_(support::place().allocate(sizeof(Report))) {
    std::fill_n(static_cast<std::uint16_t*>(host_.view().data), host_.bytes() / 2,
                half_of(rank_ + 1));
    route_everywhere(kTokens, static_cast<std::int32_t*>(ids_.view().data),
                     static_cast<float*>(weights_.view().data));
    const Result<void*> memory = communicator.allocate(host_.bytes());
    if (!memory) {
      findings_.add(memory.status().to_string());
      return;
    }
    registered_ = *memory;
    write_rows();
  }

  bool ready() const { return registered_ != nullptr; }

  /// The send half; peers then overwrite what the late one has yet to read.
  void dispatch(bool late) {
    DispatchOptions options;
    options.stream = support::place().stream();
    options.deadline = late && rank_ != kReader ? kShort : kLong;
    const DispatchTicket sent = communicator_.send_dispatch(
        given({registered_, DType::bf16, kTokens, kHidden}), ids_.view(), weights_.view(), options);
    if (late) let_others_go_on([&] { receive(sent); });
    if (!late || rank_ == kReader) receive(sent);
    all_.arrive_and_wait();
  }
  void combine() {
    CombineOptions options;
    options.stream = support::place().stream();
    options.deadline = rank_ != kReader ? kShort : kLong;
    const CombineTicket sent = communicator_.send_combine(
        given({registered_, DType::bf16, kRows, kHidden}), handle_, options);
    let_others_go_on([&] { receive(sent); });
    if (rank_ == kReader) receive(sent);
    all_.arrive_and_wait();
  }

  /// Rank 0 alone is impatient: it gives the reader up, and overwrites its results before the reader reads them. The others wait for
  /// the reader, which goes on with them, and overwrite theirs as soon as they may.
  void combine_while_one_goes_on() {
    CombineOptions options;
    options.stream = support::place().stream();
    options.deadline = rank_ == 0 ? kShort : kLong;
    const CombineTicket sent = communicator_.send_combine(
        given({registered_, DType::bf16, kRows, kHidden}), handle_, options);
    support::place().finish();
    all_.arrive_and_wait();
    if (rank_ == kReader) one_went_on_.acquire();
    receive(sent);
    overwrite_rows();
    if (rank_ == 0) one_went_on_.release();
    all_.arrive_and_wait();
    write_rows();
    all_.arrive_and_wait();
  }
  /// A whole one, with everybody's patience.
  void plain_combine() {
    CombineOptions options;
    options.stream = support::place().stream();
    options.deadline = kLong;
    receive(communicator_.send_combine(given({registered_, DType::bf16, kRows, kHidden}), handle_,
                                       options));
    all_.arrive_and_wait();
  }

  /// The send half; while the reader stands between the halves, the others make so many more calls, with other rows.
  void dispatch_while_others_go_on(int calls) {
    DispatchOptions options;
    options.stream = support::place().stream();
    options.deadline = rank_ != kReader ? kShort : kLong;
    const auto send = [&] {
      return communicator_.send_dispatch(given({registered_, DType::bf16, kTokens, kHidden}),
                                         ids_.view(), weights_.view(), options);
    };
    const DispatchTicket sent = send();
    let_others_go_on([&] {
      receive(sent);
      overwrite_rows();
      for (int call = 0; call < calls; ++call) receive(send());
    });
    if (rank_ == kReader) receive(sent);
    all_.arrive_and_wait();
  }

  /// All but the reader make the whole call, and overwrite their rows; then the reader begins its own.
  void call_one_by_one(const std::function<void(milliseconds deadline)>& call) {
    if (rank_ != kReader) {
      call(kShort);
      overwrite_rows();
    }
    all_.arrive_and_wait();
    if (rank_ == kReader) call(kLong);
    all_.arrive_and_wait();
  }
  void dispatch_one_by_one() {
    call_one_by_one([&](milliseconds deadline) {
      DispatchOptions options;
      options.stream = support::place().stream();
      options.deadline = deadline;
      receive(communicator_.send_dispatch(given({registered_, DType::bf16, kTokens, kHidden}),
                                          ids_.view(), weights_.view(), options));
    });
  }
  void combine_one_by_one() {
    call_one_by_one([&](milliseconds deadline) {
      CombineOptions options;
      options.stream = support::place().stream();
      options.deadline = deadline;
      receive(communicator_.send_combine(given({registered_, DType::bf16, kRows, kHidden}), handle_,
                                         options));
    });
  }

  int missing() const {
    return static_cast<int>(static_cast<const Report*>(report_.get())->missing.words[0]);
  }
  /// What all elements of a row are, or -1.
  static int element(const support::Tensor& tensor, int row) {
    const auto* const at = reinterpret_cast<const std::uint16_t*>(tensor.row(row));
    for (int value = 0; value <= kRanks * (kRanks + 1) / 2; ++value) {
      if (std::all_of(at, at + kHidden, [&](std::uint16_t e) { return e == half_of(value); })) {
        return value;
      }
    }
    return -1;
  }
  int row(int index) const { return element(rows_, index); }
  int sum(int token) const { return element(out_, token); }
  std::vector<std::int32_t> record_ranks() const {
    const ConstTensorView ranks = handle_.record_rank();
    const auto* const first = static_cast<const std::int32_t*>(ranks.data);
    return {first, first + ranks.shape[0]};
  }

 private:
  void write_rows() {
    support::place().write(registered_, host_.view().data, host_.bytes());
    support::place().finish();
  }
  void overwrite_rows() {
    support::place().fill(registered_, 0x3C, host_.bytes());
    support::place().finish();
  }
  ConstTensorView given(ConstTensorView view) const {
    view.device = Device::cuda;
    return view;
  }
  template <typename Receive>
  void let_others_go_on(const Receive& receive_half) {
    support::place().finish();
    all_.arrive_and_wait();
    if (rank_ != kReader) {
      receive_half();
      overwrite_rows();
    }
    all_.arrive_and_wait();
  }
  void receive(const DispatchTicket& sent) {
    DispatchOutputs outputs;
    outputs.stream = support::place().stream();
    outputs.rows = rows_.view();
    outputs.handle = Handle(memory_.view().data, memory_.bytes(), Device::cuda);
    outputs.report = new (report_.get()) Report();
    const Received received = communicator_.receive_dispatch(sent, outputs);
    support::place().finish();
    if (!received.status.ok()) findings_.add(received.status.to_string());
    handle_ = received.handle;
  }
  void receive(const CombineTicket& sent) {
    CombineOutputs outputs;
    outputs.stream = support::place().stream();
    outputs.out = out_.view();
    support::place().fill(out_.view().data, 0x3C, out_.bytes());  // Not what the last one left.
    outputs.renormalize = false;
    outputs.report = new (report_.get()) Report();
    const CombineResult result = communicator_.receive_combine(sent, outputs);
    support::place().finish();
    if (!result.status.ok()) findings_.add(result.status.to_string());
  }

  Communicator& communicator_;
  std::barrier<>& all_;
  std::binary_semaphore& one_went_on_;
  support::Findings& findings_;
  int rank_;
  support::Tensor host_, ids_, weights_, rows_, out_, memory_;
  std::shared_ptr<void> report_;
  void* registered_ = nullptr;
  Handle handle_;
};

CommunicatorOptions options_of(Mode mode) {
  CommunicatorOptions options;
  options.mode = mode;
  options.layout = Layout::rank_major;
  options.y_memory = YMemory::registered;
  options.registered_bytes = std::size_t{1} << 20;
  return options;
}

std::string findings_of(const std::function<void(Member&, int rank, support::Findings&)>& check,
                        const CommunicatorOptions& given = options_of(Mode::throughput)) {
  std::barrier<> all(kRanks);
  std::binary_semaphore one_went_on(0);
  return findings_of_trials(1, [&](World& world, support::Findings& findings) {
    CommunicatorOptions options = given;
    support::place().adapt(options);
    Result<Communicator> communicator =
        Communicator::create(world, {kExperts, kTopk, kHidden, kTokens}, options);
    if (!communicator) return findings.add(communicator.status().to_string());
    Member member(world, *communicator, all, one_went_on, findings);
    if (member.ready()) check(member, world.rank(), findings);
    all.arrive_and_wait();
  });
}

void expect(support::Findings& findings, const std::string& what, int expected, int seen) {
  if (expected == seen) return;
  findings.add(what + ": expected " + std::to_string(expected) + ", seen " + std::to_string(seen));
}

TEST(CudaAccused, RowsThatWereOverwritten) {
  EXPECT_EQ(findings_of([](Member& member, int rank, support::Findings& findings) {
              member.dispatch(true);
              if (rank != kReader) return expect(findings, "missing", 0, member.missing());
              expect(findings, "missing", kOthers, member.missing());
              const std::vector<std::int32_t> ranks = member.record_ranks();
              expect(findings, "records", kRows, static_cast<int>(ranks.size()));
              for (int row = 0; row < kRows; ++row) {
                const bool own = row / kTokens == kReader;
                const std::string which = " of row " + std::to_string(row);
                expect(findings, "value" + which, own ? kReader + 1 : 0, member.row(row));
                expect(findings, "source" + which, own ? kReader : -1,
                       ranks[static_cast<std::size_t>(row)]);
              }
            }),
            "");
}

TEST(CudaAccused, ResultsThatWereOverwritten) {
  EXPECT_EQ(findings_of([](Member& member, int rank, support::Findings& findings) {
              member.dispatch(false);
              expect(findings, "missing in dispatch", 0, member.missing());
              member.combine();
              const bool reader = rank == kReader;
              expect(findings, "missing", reader ? kOthers : 0, member.missing());
              for (int token = 0; token < kTokens; ++token) {
                expect(findings, "sum of token " + std::to_string(token),
                       reader ? kReader + 1 : kRanks * (kRanks + 1) / 2, member.sum(token));
              }
            }),
            "");
}

// The reader is given up before it has sent anything, and finds its peers' cells when it comes.
TEST(CudaAccused, RowsOfWhoWentOnWithoutTheReader) {
  EXPECT_EQ(findings_of([](Member& member, int rank, support::Findings& findings) {
              member.dispatch_one_by_one();
              const bool reader = rank == kReader;
              expect(findings, "missing", reader ? kOthers : 1 << kReader, member.missing());
              for (int row = 0; reader && row < kRows; ++row) {
                expect(findings, "value of row " + std::to_string(row),
                       row / kTokens == kReader ? kReader + 1 : 0, member.row(row));
              }
            }),
            "");
}

TEST(CudaAccused, ResultsOfWhoWentOnWithoutTheReader) {
  EXPECT_EQ(findings_of([](Member& member, int rank, support::Findings& findings) {
              member.dispatch(false);
              member.combine_one_by_one();
              const bool reader = rank == kReader;
              expect(findings, "missing", reader ? kOthers : 1 << kReader, member.missing());
              for (int token = 0; reader && token < kTokens; ++token) {
                expect(findings, "sum of token " + std::to_string(token), kReader + 1,
                       member.sum(token));
              }
            }),
            "");
}

// Of those who live the reader is not given up: they wait until it has summed again, and all go on.
TEST(CudaAccused, ResultsOfOneThatWentOn) {
  constexpr int kAll = kRanks * (kRanks + 1) / 2;
  const auto began = std::chrono::steady_clock::now();
  EXPECT_EQ(findings_of([](Member& member, int rank, support::Findings& findings) {
              const auto expect_all = [&](const std::string& what, int missing, int sum) {
                expect(findings, "missing in " + what, missing, member.missing());
                for (int token = 0; token < kTokens; ++token) {
                  expect(findings, what + ", sum of token " + std::to_string(token), sum,
                         member.sum(token));
                }
              };
              const bool reader = rank == kReader;
              member.dispatch(false);
              member.combine_while_one_goes_on();
              expect_all("combine", reader ? 1 : 0, reader ? kAll - 1 : kAll);
              const int gone = reader ? 1 : (rank == 0 ? 1 << kReader : 0);
              for (int call = 0; call < 2; ++call) {
                member.dispatch(false);
                expect(findings, "missing in a dispatch behind it", gone, member.missing());
                member.plain_combine();
                expect_all("a combine behind it", gone,
                           reader ? kAll - 1 : (rank == 0 ? kAll - (kReader + 1) : kAll));
              }
            }),
            "");
  // Nobody's patience came to its end but that of rank 0.
  EXPECT_LT(std::chrono::steady_clock::now() - began, kLong / 2);
}

// On two nodes rows lie where they have landed at another rank of the reader's node. Rank 0 gives the reader up, but goes on
// with rank 2, in whose memory its rows are; rank 1, whose rows the reader itself has, gives both up, and its rows stay.
TEST(CudaAccused, RowsThatLandedOnAnotherRank) {
  ::setenv("SLUICE_TEST_NODE_SIZE", "2", 1);
  ::setenv("SLUICE_NETWORK", "memory:1", 1);
  ::setenv("SLUICE_NETWORK_PATIENCE_MS", "60000", 1);
  EXPECT_EQ(findings_of([](Member& member, int rank, support::Findings& findings) {
              member.dispatch_while_others_go_on(7);  // More than there are banks.
              if (rank != kReader) return;
              const int missing = member.missing();
              const bool has_second = (missing & 2) == 0;
              expect(findings, "missing", has_second ? kOthers & ~2 : kOthers, missing);
              for (int row = 0; row < kRows; ++row) {
                const int source = row / kTokens;
                const bool given = source == kReader || (source == 1 && has_second);
                expect(findings, "value of row " + std::to_string(row), given ? source + 1 : 0,
                       member.row(row));
              }
            }),
            "");
  for (const char* name : {"SLUICE_TEST_NODE_SIZE", "SLUICE_NETWORK", "SLUICE_NETWORK_PATIENCE_MS"})
    ::unsetenv(name);
}

// What rank 0 has put to rank 3, which it does not serve and is not served by, is never out: the two are lost to each other, at
// once, and nobody else is to anybody.
class CudaPath : public ::testing::TestWithParam<Mode> {};

TEST_P(CudaPath, ThatCarriesNothing) {
  ::setenv("SLUICE_TEST_NODE_SIZE", "2", 1);
  ::setenv("SLUICE_NETWORK", "memory:1", 1);
  ::setenv("SLUICE_NETWORK_PATIENCE_MS", "1000", 1);
  constexpr int kAll = kRanks * (kRanks + 1) / 2;
  constexpr int kCalls = 9;  // More than there are banks.
  const support::ScriptedNetwork network({.delays = [](int from, int to, std::uint32_t) {
    return std::chrono::hours(from == 0 && to == kReader ? 1 : 0);
  }});
  CommunicatorOptions options = options_of(GetParam());
  options.reduce = Reduce::rank;
  const auto began = std::chrono::steady_clock::now();
  EXPECT_EQ(findings_of(
                [](Member& member, int rank, support::Findings& findings) {
                  const int other = rank == 0 ? kReader : (rank == kReader ? 0 : -1);
                  for (int call = 0; call < kCalls; ++call) {
                    const std::string which = " of call " + std::to_string(call);
                    const int gone = other < 0 ? 0 : 1 << other;
                    member.dispatch(false);
                    expect(findings, "missing in dispatch" + which, call == 0 ? 0 : gone,
                           member.missing());
                    member.plain_combine();
                    // In the first one rank 0 may still get the answers of rank 3.
                    if (call == 0 && rank == 0) continue;
                    expect(findings, "missing in combine" + which, gone, member.missing());
                    for (int token = 0; token < kTokens; ++token) {
                      expect(findings, "sum of token " + std::to_string(token) + which,
                             other < 0 ? kAll : kAll - (other + 1), member.sum(token));
                    }
                  }
                },
                options),
            "");
  // Nobody's patience with the calls came to its end.
  EXPECT_LT(std::chrono::steady_clock::now() - began, kLong / 2);
  for (const char* name : {"SLUICE_TEST_NODE_SIZE", "SLUICE_NETWORK", "SLUICE_NETWORK_PATIENCE_MS"})
    ::unsetenv(name);
}

INSTANTIATE_TEST_SUITE_P(OfBothModes, CudaPath, ::testing::Values(Mode::latency, Mode::throughput),
                         [](const auto& mode) {
                           return mode.param == Mode::latency ? "latency" : "throughput";
                         });

}  // namespace
}  // namespace sluice::faults

int main(int argc, char** argv) {
  return sluice::support::run_gpu_tests(argc, argv, sluice::support::gpu_count);
}
