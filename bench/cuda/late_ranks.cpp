// SPDX-License-Identifier: MIT
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <utility>

#include "gpu.hpp"
#include "memory/cuda/cuda_status.hpp"
#include "sluice_contestant.hpp"
#include "stamp.hpp"

namespace sluice::bench {
namespace {

class LateRanks final : public QueuedContestant {
 public:
  LateRanks(std::shared_ptr<SluiceContestant> ours, Place& place, const Case& bench_case, int rank,
            Role role)
      : ours_(std::move(ours)),
        place_(place),
        ranks_(bench_case.ranks),
        late_us_(bench_case.late_us),
        rank_(rank),
        role_(role) {}

  std::string name() const override {
    return fmt::format("{} late", role_ == Role::late_all ? "all" : "one");
  }
  Role role() const override { return role_; }
  std::vector<std::string> operations() const override { return ours_->operations(); }
  Status run(int operation, int set) override {
    ours_->precede([this] { return delay(); });
    Status status = ours_->run(operation, set);
    ours_->precede({});
    return status;
  }
  Status settle() override { return ours_->settle(); }
  using QueuedContestant::check;
  Result<std::int64_t> check(int set, const Submit& submit) override {
    ours_->precede([this] { return delay(); });
    Result<std::int64_t> wrong = ours_->check(set, submit);
    ours_->precede({});
    return wrong;
  }
  Result<std::int64_t> check_chain(int set, const std::function<Status()>& chain) override {
    return ours_->check_chain(set, chain);
  }

 private:
  /// All ranks queue as many, so that they agree whose turn it is.
  Status delay() {
    const bool late = role_ == Role::late_all || turn_++ % ranks_ == rank_;
    const std::uint64_t ns = late ? static_cast<std::uint64_t>(late_us_) * 1000 : 0;
    return memory::cuda_status(static_cast<cudaError_t>(launch_delay(ns, place_.stream())),
                               "a delay");
  }

  std::shared_ptr<SluiceContestant> ours_;
  Place& place_;
  int ranks_;
  int late_us_;
  int rank_;
  Role role_;
  int turn_ = 0;
};

}  // namespace

std::shared_ptr<QueuedContestant> late_ranks(std::shared_ptr<SluiceContestant> ours, Place& place,
                                             const Case& bench_case, int rank, Role role) {
  return std::make_shared<LateRanks>(std::move(ours), place, bench_case, rank, role);
}

}  // namespace sluice::bench
