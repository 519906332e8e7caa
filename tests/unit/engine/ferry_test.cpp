// SPDX-License-Identifier: MIT
// The ferry by itself: no network, one rank, items that the test adds.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "support/lone_ferry.hpp"

namespace sluice::engine::cuda {
namespace {

using testing::LoneFerry;

constexpr std::uint16_t kOwn = 1;  // Rank 0, as a set.
constexpr int kHidden = 1000;
constexpr std::size_t kRowBytes = kHidden * sizeof(std::uint16_t);
constexpr int kTokens = 64;
constexpr int kBank = 1;
/// Than a ferry looks for items where none are expected.
constexpr std::chrono::microseconds kLongerThanIdle{200};

class FerryAlone : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!LoneFerry::has_gpu()) GTEST_SKIP() << "no GPU";
    window::PacketShape shape;
    shape.ranks = 2;
    shape.top_k = 4;
    shape.banks = 3;
    shape.tokens = kTokens;
    shape.local_experts = 4;
    shape.dispatch_row_bytes = 2048;
    shape.combine_row_bytes = kRowBytes;
    shape.cell_tokens = kTokens;
    auto made = LoneFerry::make(shape, kHidden);
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    lone_ = std::move(made).value();
  }

  const window::PacketLayout& layout() const { return lone_->layout(); }
  Ferry& ferry() { return lone_->ferry(); }
  void carry_all() {
    ASSERT_TRUE(lone_->carry_all()) << ferry().carried() << " of " << ferry().added();
  }
  std::vector<std::byte> window(std::size_t offset, std::size_t bytes) {
    std::vector<std::byte> read(bytes);
    EXPECT_TRUE(lone_->read(read.data(), offset, bytes).ok());
    return read;
  }

  std::unique_ptr<LoneFerry> lone_;
};

TEST_F(FerryAlone, BringsWhatItIsGiven) {
  for (std::size_t i = 0; i < lone_->host_bytes(); ++i) {
    *lone_->host(i) = static_cast<std::byte>(i * 7 + 1);
  }
  const std::size_t first = layout().dispatch_row(0, 0);
  // Whole items and parts of them, more than the blocks carry at once, in one step and in several launches.
  std::size_t packets = 1;
  for (const std::size_t piece : {1U, 255U, 256U, 257U, 1000U, 2U, 3000U}) {
    ferry().carry(first + packets * 16, first + packets * 16, piece * 16, kOwn, LoneFerry::kOther);
    packets += piece;
    if (piece == 256) carry_all();
    if (piece == 1000) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  ASSERT_LE(first + packets * 16 + 16, layout().lane_bytes());
  carry_all();
  const std::vector<std::byte> got = window(lone_->lane() + first, packets * 16 + 16);
  for (std::size_t i = 0; i < got.size(); ++i) {
    const bool carried = i >= 16 && i < packets * 16;
    ASSERT_EQ(got[i], carried ? *lone_->host(first + i) : std::byte{0}) << i;
  }
}

// It is launched when something is expected, and is there when that comes, after it would have ended otherwise.
TEST_F(FerryAlone, IsThereWhereSomethingIsExpected) {
  const std::size_t at = layout().told(protocol::Kind::combine);
  std::uint64_t word = 0;
  const auto carry_one = [&] {
    ferry().tell(at, ++word, LoneFerry::kOther);
    carry_all();
  };
  carry_one();
  lone_->await_end();
  ASSERT_EQ(ferry().launches(), 1U);
  carry_one();
  lone_->await_end();
  ASSERT_EQ(ferry().launches(), 2U);
  // This thread may sleep for longer than a ferry expects anything: not every time.
  bool stayed = false;
  for (int attempt = 0; attempt < 200 && !stayed; ++attempt) {
    const std::uint64_t before = ferry().launches();
    ferry().expect(true);
    ASSERT_TRUE(ferry().step()) << "nothing was launched";
    ASSERT_EQ(ferry().launches(), before + 1);
    std::this_thread::sleep_for(kLongerThanIdle);
    carry_one();
    stayed = ferry().launches() == before + 1;
    ferry().expect(false);
    lone_->await_end();
  }
  EXPECT_TRUE(stayed);
}

// Though nothing comes, and the host expects nothing: each of its blocks, for each kind of operation and half.
TEST_F(FerryAlone, StaysForOperationsThatLeaveItTheDuty) {
  const std::size_t at = layout().told(protocol::Kind::combine);
  std::uint64_t word = 0;
  for (int which = 0; which < protocol::kKinds * 2 * kFerryBlocks; ++which) {
    const int ring = which % kFerryBlocks;
    const int receives = which / kFerryBlocks % 2;
    const int kind = which / kFerryBlocks / 2;
    SCOPED_TRACE(::testing::Message()
                 << "kind " << kind << ", half " << receives << ", ring " << ring);
    Worked worked = {};
    worked.until[kind][receives][ring] = 3;
    for (std::uint64_t blocks = 0; blocks < 3; ++blocks) {
      worked.blocks[kind][receives] = blocks;
      ASSERT_TRUE(lone_->set_worked(worked).ok());
      if (blocks == 0) {
        ferry().tell(at, ++word, LoneFerry::kOther);
        carry_all();
      }
      std::this_thread::sleep_for(10 * kLongerThanIdle);
      EXPECT_FALSE(ferry().ended());
    }
    worked.blocks[kind][receives] = 3;
    ASSERT_TRUE(lone_->set_worked(worked).ok());
    const auto deadline = base::Deadline::after(std::chrono::seconds(10));
    while (!ferry().ended() && !deadline.expired()) std::this_thread::yield();
    ASSERT_TRUE(ferry().ended()) << "it stays for ever";
  }
  EXPECT_EQ(ferry().launches(), word);
}

/// What keeps a stream from going on, for a minute at most.
class Gate {
 public:
  void open() { open_.store(true); }
  bool opened_in_time() const { return in_time_.load(); }
  static void await(void* gate) {
    auto& self = *static_cast<Gate*>(gate);
    const auto deadline = base::Deadline::after(std::chrono::seconds(60));
    while (!self.open_.load() && !deadline.expired()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    self.in_time_.store(self.open_.load());
  }

 private:
  std::atomic<bool> open_{false};
  std::atomic<bool> in_time_{false};
};

// A caller's thread may be in a call that lets nothing be launched until the GPU has done all that it has to do.
TEST_F(FerryAlone, DoesNotHoldUpItsThreadWhereNothingCanBeLaunched) {
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, std::size_t{4} << 20), cudaSuccess);
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  Gate gate;
  ASSERT_EQ(cudaLaunchHostFunc(stream, &Gate::await, &gate), cudaSuccess);
  std::thread caller([memory] { EXPECT_EQ(cudaFree(memory), cudaSuccess); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // It waits by now.
  ferry().tell(layout().told(protocol::Kind::combine), 1, LoneFerry::kOther);
  EXPECT_TRUE(ferry().step());
  static_cast<void>(ferry().step());  // Carried already where the caller does not wait yet.
  gate.open();
  carry_all();
  caller.join();
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_TRUE(gate.opened_in_time()) << "a step waited for the GPU";
}

// Warps carry what comes together in any order.
TEST_F(FerryAlone, TellsNoOlderWordOverANewerOne) {
  const std::size_t at = layout().told(protocol::Kind::combine);
  const std::uint64_t high = std::uint64_t{3} << 32;  // Both halves are told.
  for (std::uint64_t round = 1; round <= 20; ++round) {
    const std::uint64_t newest = high + 8 * round;
    for (std::uint64_t older = 0; older < 8; ++older) {
      ferry().tell(at, newest - older, LoneFerry::kOther);
    }
    carry_all();
    std::uint64_t word = 0;
    std::memcpy(&word, window(lone_->lane() + at, sizeof(word)).data(), sizeof(word));
    ASSERT_EQ(word, newest) << round;
  }
}

using Packet = std::array<std::uint32_t, 4>;

/// Small integers, which bf16 has: of what a place answers, or of a sum.
class Row {
 public:
  Row(int place, int token) {
    for (int i = 0; i < kHidden; ++i) value_[at(i)] = (place + 1) * ((token + i) % 64);
  }
  Row plus(const Row& other) const {
    Row sum = *this;
    for (std::size_t i = 0; i < value_.size(); ++i) sum.value_[i] += other.value_[i];
    return sum;
  }
  std::vector<std::byte> bytes() const {
    std::vector<std::byte> bytes(kRowBytes);
    for (std::size_t i = 0; i < value_.size(); ++i) {
      const auto value = static_cast<float>(value_[i]);
      std::uint32_t bits = 0;
      std::memcpy(&bits, &value, sizeof(bits));
      const auto half = static_cast<std::uint16_t>(bits >> 16);
      std::memcpy(&bytes[i * sizeof(half)], &half, sizeof(half));
    }
    return bytes;
  }

 private:
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }
  std::array<int, kHidden> value_{};
};

// However many come together: a block's warps share one item, or have one each. Token 2 has answers of one place only, token 5
// of none.
TEST_F(FerryAlone, AddsUpWhatRanksOfItsNodeAnswer) {
  std::uint32_t tag = 100;
  for (const int tokens : {1, 2, 3, 7, 8, 9, 31, kTokens}) {
    ++tag;
    const auto answers = [](int place, int token) {
      return token != 5 && !(token == 2 && place == 1);
    };
    for (int token = 0; token < tokens; ++token) {
      for (int place = 0; place < LoneFerry::kPlaces; ++place) {
        const Packet answer{answers(place, token) ? tag : tag - 1, 1U << place, 9, 1U << place};
        const std::size_t from = lone_->answers(place);
        ASSERT_TRUE(lone_->write(from + layout().answer(kBank, token), &answer, 16).ok());
        const std::vector<std::byte> row = Row(place, token).bytes();
        ASSERT_TRUE(
            lone_->write(from + layout().combine_row(kBank, token), row.data(), row.size()).ok());
      }
      ferry().carry_sum({LoneFerry::kOther, kBank, token}, tag, DType::bf16, 0b11);
    }
    carry_all();
    for (int token = 0; token < tokens; ++token) {
      Packet answer{};
      std::memcpy(&answer, lone_->host(lone_->out() + layout().answer(kBank, token)), 16);
      if (token == 5) {
        ASSERT_NE(answer[0], tag) << tokens;
        continue;
      }
      const std::uint32_t routes = token == 2 ? 1 : 3;
      ASSERT_EQ(answer, (Packet{tag, routes, 9, routes})) << token << " of " << tokens;
      const Row sum = token == 2 ? Row(0, token) : Row(0, token).plus(Row(1, token));
      ASSERT_EQ(std::memcmp(lone_->host(lone_->out() + layout().combine_row(kBank, token)),
                            sum.bytes().data(), kRowBytes),
                0)
          << token << " of " << tokens;
    }
  }
}

// Answers are there, with their rows, when they are counted; token 1 has no row.
TEST_F(FerryAlone, BringsSumsWithTheirRows) {
  std::uint32_t tag = 100;
  for (const int tokens : {1, 2, 3, 7, 8, 9, 31, kTokens}) {
    ++tag;
    for (int token = 0; token < tokens; ++token) {
      const Packet answer{tag, token == 1 ? 0U : 1U, 9, token == 1 ? 0U : 1U};
      std::memcpy(lone_->host(lone_->in() + layout().answer(kBank, token)), &answer, 16);
      const std::vector<std::byte> row = Row(static_cast<int>(tag % 7), token).bytes();
      std::memcpy(lone_->host(lone_->in() + layout().combine_row(kBank, token)), row.data(),
                  row.size());
      ferry().carry_sum_answer({LoneFerry::kOther, kBank, token},
                               token == 1 ? 0 : kRowBytes / window::kPacketBytes);
    }
    carry_all();
    for (int token = 0; token < tokens; ++token) {
      Packet answer{};
      std::memcpy(&answer, window(lone_->sums() + layout().answer(kBank, token), 16).data(), 16);
      ASSERT_EQ(answer[0], tag) << token << " of " << tokens;
      if (token == 1) continue;
      ASSERT_EQ(window(lone_->sums() + layout().combine_row(kBank, token), kRowBytes),
                Row(static_cast<int>(tag % 7), token).bytes())
          << token << " of " << tokens;
    }
  }
}

}  // namespace
}  // namespace sluice::engine::cuda
