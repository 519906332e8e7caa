// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "check.hpp"
#include "contestant.hpp"
#include "exchange_plan.hpp"
#include "nccl_kernels.hpp"
#include "nccl_link.hpp"
#include "place.hpp"
#include "row_space.hpp"

namespace sluice::bench {

/// The usual way on GPUs: kernels that pack and unpack, and grouped sends and receives of NCCL
/// between them. docs/benchmarking.md says what it is given for nothing.
class NcclPeer final : public QueuedContestant {
 public:
  /// Collective. `place` must outlive it.
  static Result<std::unique_ptr<NcclPeer>> create(World& world, const Workload& workload,
                                                  Place& place, const std::string& library);

  std::string name() const override { return "nccl"; }
  Role role() const override { return Role::peer; }
  std::string about() const override;
  std::vector<std::string> operations() const override { return {"dispatch", "combine", "pair"}; }
  Status run(int operation, int set) override;
  Status settle() override { return place_.finish(); }
  using QueuedContestant::check;
  Result<std::int64_t> check(int set, const Submit& submit) override;
  Result<std::int64_t> check_chain(int set, const std::function<Status()>& chain) override;

 private:
  NcclPeer(std::unique_ptr<NcclLink> link, const Workload& workload, Place& place, int rank);

  Status allocate();
  Status allocate_exchanged();
  Status upload();
  Status poison(int set);
  Status pull(std::initializer_list<const Mirror*> memories);
  std::int64_t count_wrong_sums(int set) const;
  Status dispatch(int set);
  Status combine(int set);

  bool in_records() const noexcept { return case_.layout == Layout::rank_major; }
  std::size_t result_bytes() const noexcept { return static_cast<std::size_t>(case_.hidden) * 2; }
  const ExchangePlan& plan(int set) const noexcept { return plans_[static_cast<std::size_t>(set)]; }
  nccl::Others others(int set) const noexcept;
  /// Where a set's piece of an array of plans or routes begins.
  const std::int32_t* place_of(int set) const noexcept;
  const std::int32_t* row_of(int set) const noexcept;
  const float* weights_of(int set) const noexcept;
  const std::byte* x(int set) const noexcept;
  const std::byte* y(int set) const noexcept;
  nccl::Target target(int set) const noexcept;
  RowsView rows_view() const noexcept;

  std::unique_ptr<NcclLink> link_;
  const Workload& workload_;
  const Case& case_;
  Place& place_;
  int rank_;
  nccl::RecordForm form_;
  RowSpace space_;
  Pool x_pool_;
  std::vector<ExchangePlan> plans_;  // [sets]
  std::size_t row_stride_ = 0;       // of one set in rows_of_records_
  // received_: the records; in rank_major the layout itself.
  Mirror x_, y_, ids_, weights_, places_, rows_of_records_, rows_, scales_, received_, out_;
  std::byte* send_ = nullptr;
  std::byte* parts_ = nullptr;    // Partial sums of others' records; not in rank_major.
  std::byte* answers_ = nullptr;  // Partial sums of what was sent.
};

}  // namespace sluice::bench
