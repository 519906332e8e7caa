// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "check.hpp"
#include "contestant.hpp"
#include "place.hpp"
#include "row_space.hpp"
#include "sluice/communicator.hpp"

namespace sluice::bench {

/// Sluice itself, by its public interface only. All memory is the benchmark's and taken before the
/// first timed iteration.
class SluiceContestant final : public QueuedContestant {
 public:
  /// Collective. `place` must outlive it.
  static Result<std::unique_ptr<SluiceContestant>> create(World& world, const Workload& workload,
                                                          Place& place);

  std::string name() const override { return "sluice"; }
  Role role() const override { return Role::ours; }
  std::vector<std::string> operations() const override { return {"dispatch", "combine", "pair"}; }
  Status run(int operation, int set) override;
  void start_counting() override;
  Traffic traffic() const override;
  NetworkUse network_use() const override;
  Status settle() override;
  using QueuedContestant::check;
  Result<std::int64_t> check(int set, const Submit& submit) override;
  Result<std::int64_t> check_chain(int set, const std::function<Status()>& chain) override;
  Status dispatch_sets() override;
  Status combine_alone(int set) override;
  Result<std::int64_t> check_combine(int set) override;

  /// Operations are made of halves from now on, with `between` called between the two; with none of it,
  /// of whole calls again.
  void split(std::function<Status()> between) { between_ = std::move(between); }
  /// `before` is called before every operation from now on, if it is not empty.
  void precede(std::function<Status()> before) { before_ = std::move(before); }

  Status profile(int rounds, const std::string& path) override;
  void start_profile() override;
  Status write_profile(const std::string& path) override;

 private:
  SluiceContestant(Communicator communicator, const Workload& workload, Place& place);

  Status allocate();
  Status allocate_inputs();
  void write_x(std::byte* to) const;
  Status allocate_outputs();
  Status dispatch(int set, int handle);
  Status combine(int set, const Handle& handle);
  Handle handle_at(int index) const;
  /// On this contestant's device.
  TensorView view(std::byte* data, DType dtype, std::int64_t rows, std::int64_t columns) const;
  ConstTensorView x(int set) const;
  ConstTensorView x_scales(int set) const;  // not given unless x is encoded
  ConstTensorView y(int set) const;
  ConstTensorView weights(int set) const;
  RowsView rows_view() const;
  Status poison(int set);
  Status pull(std::initializer_list<const Mirror*> memories);
  std::int64_t count_wrong_sums(int set) const;
  /// Of a handle in host memory.
  std::int64_t count_wrong_handle(const Handle& handle, int set) const;
  std::int64_t count_wrong_records(const Handle& handle, int set) const;

  const Workload& workload_;
  const Case& case_;
  Place& place_;
  Communicator communicator_;
  RowSpace space_;
  Pool x_pool_;
  Mirror x_memory_, y_memory_, ids_, weights_, rows_, scales_, out_, handles_;
  std::int64_t rows_count_ = 0;
  std::byte* x_ = nullptr;  // On the device.
  std::byte* y_ = nullptr;
  std::size_t handle_stride_ = 0;
  // Of dispatches that are timed, and of pairs. Behind them one of every set, for combines alone.
  static constexpr int kSetHandles = 2;
  DispatchOptions dispatch_options_;
  CombineOptions combine_options_;
  DispatchOutputs dispatch_outputs_;
  CombineOutputs combine_outputs_;
  std::function<Status()> before_, between_;
  Received received_;
  Statistics counted_;
};

}  // namespace sluice::bench
