// SPDX-License-Identifier: MIT
#include "transport/libfabric/inlet.hpp"

#include <rdma/fi_errno.h>

#include <algorithm>

#include "base/log.hpp"

namespace sluice::transport {

Inlet::Inlet(const Library& library, int rank, int ranks, Desk& desk, bool in_words, bool apart)
    : library_(library),
      rank_(rank),
      ranks_(ranks),
      in_words_(in_words),
      apart_(apart),
      desk_(desk),
      taken_(static_cast<std::size_t>(ranks)) {}

void Inlet::add(Rail& rail) {
  rails_.push_back(&rail);
  heard_.resize(rails_.size() * static_cast<std::size_t>(ranks_));
}

std::size_t Inlet::poll(std::span<std::uint32_t> immediates) noexcept {
  if (immediates.empty()) return 0;
  ++turn_;
  std::size_t count = 0;
  for (std::size_t i = 0; i < rails_.size(); ++i) {
    const std::size_t number = (turn_ + i) % rails_.size();
    // Where signals are words nothing is found in the queue, but without a read the provider does not move.
    count += poll_queue(*rails_[number], immediates.subspan(count));
    if (in_words_) count += poll_words(number, immediates.subspan(count));
  }
  for (int left = apart_ ? std::min(kTakenAtOnce, ranks_) : 0; left > 0; --left) {
    note_taken(next_taken_);
    if (++next_taken_ == ranks_) next_taken_ = 0;
  }
  return count;
}

std::size_t Inlet::poll_queue(Rail& rail, std::span<std::uint32_t> immediates) noexcept {
  if (immediates.empty()) return 0;
  std::array<fi_cq_data_entry, 16> entries;
  const ssize_t found =
      fi_cq_read(rail.arrived(), entries.data(), std::min(immediates.size(), entries.size()));
  if (found == -FI_EAVAIL) {
    drop_errors(rail.arrived());
  } else if (found < 0 && found != -FI_EAGAIN && !failed_) {
    failed_ = true;  // What peers make of it they say by themselves.
    base::log_error("rank {}: libfabric: what arrives is not to be known: {} ({})", rank_,
                    library_.strerror(static_cast<int>(-found)), found);
  }
  std::size_t count = 0;
  for (ssize_t i = 0; i < found; ++i) {
    const fi_cq_data_entry& entry = entries[static_cast<std::size_t>(i)];
    if ((entry.flags & FI_REMOTE_CQ_DATA) == 0) continue;
    immediates[count++] = static_cast<std::uint32_t>(entry.data);
  }
  return count;
}

std::size_t Inlet::poll_words(std::size_t rail, std::span<std::uint32_t> immediates) noexcept {
  std::size_t count = 0;
  const auto ranks = static_cast<std::size_t>(ranks_);
  for (std::size_t i = 0; i < ranks; ++i) {
    const std::size_t peer = (turn_ + i) % ranks;
    std::uint64_t& heard = heard_[rail * ranks + peer];
    while (count < immediates.size()) {
      const std::uint64_t number = heard + 1;
      const std::uint64_t word =
          desk_.load(desk_.signal(static_cast<int>(rail), static_cast<int>(peer), number));
      if (!Desk::is_number(word, number)) break;
      heard = number;
      immediates[count++] = static_cast<std::uint32_t>(word);
    }
  }
  return count;
}

std::uint64_t Inlet::taken(int peer) noexcept {
  if (!apart_) note_taken(peer);
  // Pairs with the store in note_taken().
  return taken_[static_cast<std::size_t>(peer)].load(std::memory_order_acquire);
}

// The larger: where the wire keeps no order, an old word may lie over a newer one for a while.
void Inlet::note_taken(int peer) noexcept {
  auto& known = taken_[static_cast<std::size_t>(peer)];
  const std::uint64_t told = desk_.load(desk_.taken(peer));
  // Pairs with the load in taken().
  if (told > known.load(std::memory_order_relaxed)) known.store(told, std::memory_order_release);
}

// Nothing of this rank's was posted to this queue: no peer is lost by them.
void Inlet::drop_errors(fid_cq* queue) const noexcept {
  for (int i = 0; i < kErrorsAtOnce; ++i) {
    fi_cq_err_entry error{};
    if (fi_cq_readerr(queue, &error, 0) <= 0) return;
    base::log_debug("rank {}: libfabric: {} ({})", rank_, library_.strerror(error.err), error.err);
  }
}

}  // namespace sluice::transport
