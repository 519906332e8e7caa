// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <deque>

#include "engine/cuda/ferry_launcher.hpp"
#include "engine/cuda/lane_postings.hpp"
#include "engine/cuda/lane_view.hpp"
#include "relay/site.hpp"

namespace sluice::engine::cuda {

/// combine with `reduce = node`, on the node that answers: what its ranks answer a home of another node they write into the
/// window of the rank there that serves it, which adds it up token by token, in the order of ranks, and sends the sums.
///
/// The ferry adds, and begins when the last rank of the node has stored all that it answers. Kernels do not, since a send half
/// waits for nobody, and nobody should wait for another rank's receive half.
///
/// **Why nothing is read before it is there, or overwritten before it is read.** A rank's kernels publish when all is stored
/// (count_sent(), publish()); its progress thread says so to its neighbours (publish()), and an item of the ferry comes after
/// that. They overwrite a bank when home has told that it has read the last use of it: which is when the sums that were made of
/// it have come there. If home gives up who sends them, it gives up all of that node, and takes nothing from there any more.
/// The sums lie where this rank's own answers would, whose use that very proof guards; its kernels store none there.
class LaneSums {
 public:
  LaneSums(const relay::Site& site, const LaneView& view, LanePostings& out, Ferry& ferry)
      : site_(site), view_(view), out_(out), ferry_(ferry) {}

  /// This rank's kernels have stored all of an epoch. Returns the homes whose cells come with its sums: a message less to
  /// wait for, if the sums come soon.
  std::uint32_t publish(std::uint64_t epoch);
  /// They will store nothing more.
  void close();
  /// Adds up what is there of the epochs that this rank has published, and posts it; whether anything was.
  bool step();
  /// The last epoch whose sums have all been posted.
  std::uint64_t posted() const noexcept {
    if (!summing_.empty()) return summing_.front().epoch - 1;
    return awaited_.empty() ? published_ : awaited_.front().epoch - 1;
  }
  bool idle() const noexcept { return summing_.empty() && awaited_.empty(); }

 private:
  /// What a rank says to its neighbours of its answers to a home.
  struct Part {
    std::uint64_t epoch = 0;
    std::int32_t tokens = 0;  // Up to which there may be any.
    std::int32_t codec = 0;   // LaneView::codec()
    std::uint32_t by_node = 0;
  };
  static_assert(sizeof(Part) <= window::kAnswerHeadBytes);
  /// An epoch whose answers are not all there.
  struct Awaited {
    std::uint64_t epoch;
    std::int64_t since_ns;
    bool cells_sent;
  };
  /// Sums for a home that the ferry is forming.
  struct Summing {
    int home;
    std::uint64_t epoch;
    int tokens;
    bool cell_sent;
    std::uint64_t items;  // Of the ferry, counted from its first.
  };

  bool begin(const Awaited& next);
  bool send_cells();
  bool everyone_published(std::uint64_t epoch) const;
  void add_up(int home, std::uint64_t epoch, bool cell_sent);
  void say_published(std::uint64_t epoch) const;
  Part& part(int rank, int home, std::uint64_t epoch) const noexcept {
    return *site_.at<Part>(rank, site_.layout(rank).answer(home, site_.bank(epoch)));
  }

  const relay::Site& site_;
  const LaneView& view_;
  LanePostings& out_;
  Ferry& ferry_;
  std::uint64_t published_ = 0;
  std::deque<Awaited> awaited_;
  std::deque<Summing> summing_;
};

}  // namespace sluice::engine::cuda
