// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <vector>

#include "codec/row_kernels.hpp"
#include "relay/postings.hpp"
#include "relay/site.hpp"

namespace sluice::relay {

/// Combine with reduce = node: adds up what the ranks of this node answer the homes that this rank
/// serves, token by token, ranks ascending, and sends one row for each (token, node).
class NodeSums {
 public:
  NodeSums(const Site& site, Postings& postings)
      : site_(site), postings_(postings), kernels_(codec::best_kernels()) {}

  /// Adds up some rows; whether there was anything to do.
  bool step();
  /// The last epoch whose sums have all been posted.
  std::uint64_t posted() const noexcept { return jobs_.empty() ? begun_ : jobs_.front().epoch - 1; }

 private:
  /// One rank's part in the sums for one home.
  struct Part {
    int rank = 0;
    const protocol::Cell* cell = nullptr;
    const std::int32_t* tokens = nullptr;  // [records], ascending
    const std::uint32_t* masks = nullptr;
    const float* weights = nullptr;
    const std::byte* rows = nullptr;
    int records = 0;  // 0: only its cell goes home.
    int next = 0;
  };
  /// The sums of one home.
  struct Job {
    int home = 0;
    std::uint64_t epoch = 0;
    std::vector<Part> parts;
    const protocol::Cell* form = nullptr;  // Of the first part with rows: the others' must agree.
    std::uint32_t row_bytes = 0;
    int tokens = 0;
    int next_group = 0;
  };

  bool begin_epoch();
  bool published(int neighbour, std::uint64_t epoch) const noexcept;
  void begin_job(int home, std::uint64_t epoch);
  void add_part(Job& job, int rank) const;
  void sum_group(Job& job);
  void sum_token(Job& job, int token);
  void post_head(const Job& job);

  const Site& site_;
  Postings& postings_;
  const codec::RowKernels& kernels_;
  std::uint64_t begun_ = 0;
  std::deque<Job> jobs_;
};

}  // namespace sluice::relay
