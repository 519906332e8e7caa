// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sluice/communicator.hpp"

/// Good arguments of every call, on a world of one rank, where a refused call returns at once. A
/// test spoils one of them.
namespace sluice::arguments {

struct DispatchArguments {
  ConstTensorView x, ids, weights;
  DispatchOptions options;
  DispatchOutputs outputs;
};

struct CombineArguments {
  ConstTensorView y;
  Handle handle;
  TensorView out;
  CombineOptions options;
  CombineOutputs outputs;
};

class Fixture {
 public:
  static constexpr int kExperts = 4;
  static constexpr int kTopK = 2;
  static constexpr int kHidden = 32;
  static constexpr int kMaxTokens = 8;
  static constexpr std::int64_t kTokens = 5;

  explicit Fixture(Layout layout = Layout::expert_major);

  static Shape shape() { return {kExperts, kTopK, kHidden, kMaxTokens}; }
  Communicator& communicator() { return *communicator_; }

  DispatchArguments dispatch_arguments();
  Received dispatch(const DispatchArguments& a);
  /// Arguments of the combine that goes with `received`.
  CombineArguments combine_arguments(const Received& received);
  CombineResult combine(const CombineArguments& a);
  /// A dispatch and a combine of good arguments: "" or what was wrong.
  std::string good_round();

 private:
  std::vector<World> worlds_;
  std::optional<Communicator> communicator_;
  std::vector<std::uint16_t> x_, out_;
  std::vector<std::int32_t> ids_;
  std::vector<float> weights_;
};

/// One bad argument.
struct Bad {
  std::string name;
  std::function<Status(Fixture&)> call;
  std::vector<std::string> words;  ///< What the message says: what, expected, seen.
  StatusCode code = StatusCode::invalid_argument;
};

/// Makes every bad call, and a good round after each.
void expect_refused(Fixture& fixture, const std::vector<Bad>& table);
/// Compares a Status with a code and words.
void expect_status(const std::string& name, const Status& status, StatusCode code,
                   const std::vector<std::string>& words);

}  // namespace sluice::arguments
