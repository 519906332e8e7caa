// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <functional>

#include "sluice/communicator.hpp"
#include "support/findings.hpp"

namespace sluice::faults {

/// Rounds whose experts return what they get: every token comes back as often as there are ranks that
/// answered. Rows of every rank and round differ, so that one taken for another is seen, in what a rank
/// receives as in its sums.
class EchoRound {
 public:
  static constexpr int kHidden = 256;  // A row is longer than what describes the tokens of a call.
  static constexpr int kTokens = 6;
  static constexpr int kTopk = 3;
  static Shape shape(int ranks) { return Shape{2 * ranks, kTopk, kHidden, kTokens}; }
  static CommunicatorOptions options();

  enum class Moment { idle, sent, between };
  using Hook = std::function<void(Moment)>;

  struct Outcome {
    Report dispatch;
    Report combine;
    double dispatch_seconds = 0;
    double combine_seconds = 0;
    RankSet missing;  // of both
  };

  EchoRound(Communicator& communicator, support::Findings& findings)
      : communicator_(communicator), findings_(findings) {}
  /// Calls that fail, rows and sums that are wrong become findings. `tokens`: as many as there may be if none are given.
  Outcome run(int round, const Hook& hook = {}, int tokens = 0);

 private:
  void check_rows(int round, const Received& received);
  void check_sums(int round, int tokens, const std::vector<float>& out, const Report& report);

  Communicator& communicator_;
  support::Findings& findings_;
};

}  // namespace sluice::faults
