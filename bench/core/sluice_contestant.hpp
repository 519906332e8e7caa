// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "buffer.hpp"
#include "check.hpp"
#include "contestant.hpp"
#include "row_space.hpp"
#include "sluice/communicator.hpp"

namespace sluice::bench {

/// Sluice itself, by its public interface only. All memory is the benchmark's and taken before the
/// first timed iteration.
class SluiceContestant final : public Contestant {
 public:
  /// Collective.
  static Result<std::unique_ptr<SluiceContestant>> create(World& world, const Workload& workload);

  std::string name() const override { return "sluice"; }
  Role role() const override { return Role::ours; }
  std::vector<std::string> operations() const override { return {"dispatch", "combine", "pair"}; }
  Status run(int operation, int set) override;
  void start_counting() override;
  Traffic traffic() const override;
  Result<std::int64_t> check(int set) override;

  /// Runs `rounds` more pairs with phases recorded and writes them to `path`. Collective.
  Status profile(int rounds, const std::string& path);

 private:
  SluiceContestant(Communicator communicator, const Workload& workload);

  Status allocate();
  Status dispatch(int set, int handle);
  Status combine(int set);
  ConstTensorView x(int set) const;
  ConstTensorView y(int set) const;
  RowsView rows_view() const;
  std::int64_t count_wrong_handle(int set) const;
  std::int64_t count_wrong_records(int set) const;

  const Workload& workload_;
  const Case& case_;
  Communicator communicator_;
  RowSpace space_;
  Pool x_pool_;
  Buffer x_memory_, y_memory_, rows_, scales_, out_, handles_;
  std::byte* x_ = nullptr;
  std::byte* y_ = nullptr;
  std::size_t handle_stride_ = 0;
  DispatchOptions dispatch_options_;
  DispatchOutputs dispatch_outputs_;
  CombineOutputs combine_outputs_;
  Received received_;
  Statistics counted_;
};

}  // namespace sluice::bench
