// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstdint>
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
      : site_(site),
        postings_(postings),
        kernels_(codec::best_kernels()),
        absent_(static_cast<std::size_t>(site.nodes.ranks())),
        jobs_(site.own().served().size()) {}

  /// Adds up some rows; whether there was anything to do.
  bool step();
  /// The last epoch whose sums have all been posted.
  std::uint64_t posted() const noexcept { return next_job_ == jobs_.size() ? begun_ : begun_ - 1; }

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
  /// The sums of one home, in one operation.
  struct Job {
    int home = 0;
    window::AnswerHead head;
    std::vector<Part> parts;
    const protocol::Cell* form = nullptr;  // Of the first part with rows: the others' must agree.
    int next_group = 0;
    bool apart = false;   // This rank answers the home by itself: the sums come without rows.
    bool spoilt = false;  // What was added up may not be what was to be added.
    bool torn = false;    // Begun before all have come.

    int rows() const noexcept { return apart || spoilt ? 0 : head.slots; }
    bool row_weights() const noexcept {
      return form != nullptr && (form->content.flags & protocol::cell_flags::kRowWeights) != 0;
    }
  };

  /// A home that is still to be told who is in no sum any more, when it has read all that came before.
  struct Absence {
    int home;
    int neighbour;
    std::uint64_t after;
  };

  bool begin_epoch();
  bool begin_without_some(std::uint64_t epoch);
  void begin(std::uint64_t epoch);
  bool everyone_published(std::uint64_t epoch) const noexcept;
  bool comes_no_more(int neighbour) const noexcept;
  bool waits_for_weights(int neighbour, std::uint64_t epoch) const noexcept;
  bool disagreed(std::uint64_t epoch) const noexcept;
  void leave_out(int neighbour);
  void tell_absence();
  bool published(int neighbour, std::uint64_t epoch) const noexcept;
  void begin_job(Job& job, int home);
  bool answers_apart(int home) const noexcept;
  void add_part(Job& job, int rank) const;
  void sum_group(Job& job);
  void sum_token(Job& job, int token);
  bool overwritten(const Job& job) const noexcept;
  void put_cells_of_the_late(const Job& job, protocol::Cell* cells) const;
  void post_head(const Job& job);

  const Site& site_;
  Postings& postings_;
  const codec::RowKernels& kernels_;
  std::uint64_t begun_ = 0;
  std::vector<std::uint8_t> absent_;  // [R] neighbours that are in no sum any more
  std::vector<Absence> untold_;
  std::vector<int> gone_;  // Found at the last look.
  std::size_t here_ =
      0;  // So many neighbours have published the epoch that begins next, or are absent.
  bool any_here_ = false;     // Not all of those are absent.
  std::vector<Job> jobs_;     // Of the epoch that has begun, one for every home that is served.
  std::size_t next_job_ = 0;  // The one at hand; past the end between epochs.
};

}  // namespace sluice::relay
