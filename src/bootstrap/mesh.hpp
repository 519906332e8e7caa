// SPDX-License-Identifier: MIT
//
// A message of the mesh: header, then `length` bytes; a descriptor travels with the first byte.
//   header := magic:u32 kind:u8 has_file:u8 zero:u16 sequence:u64 length:u64
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/deadline.hpp"
#include "base/descriptor.hpp"
#include "memory/control_page.hpp"
#include "sluice/status.hpp"

namespace sluice::bootstrap {

/// What a rank does in an exchange; all ranks must do the same.
enum class ExchangeKind : std::uint8_t {
  all_gather = 1,
  share,
  share_outcome,
  split,
  files,
  files_outcome
};

inline constexpr std::size_t kBlobBytesMax = std::size_t{256} << 20;

/// A connection to every other rank of a world, and the exchanges over it. One thread at a time.
class Mesh {
 public:
  struct Peer {
    base::Descriptor socket;   // Closed at the own place.
    base::Descriptor process;  // Readable when the peer's process has ended; closed if unknown.
  };
  struct Message {
    std::string blob;
    base::Descriptor file;
  };

  Mesh(int rank, std::vector<Peer> peers) : rank_(rank), peers_(std::move(peers)) {}

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return static_cast<int>(peers_.size()); }
  const std::vector<Peer>& peers() const noexcept { return peers_; }

  /// What a peer has said of itself before its connection ended; and how this rank says that it has given up.
  void set_signs(std::function<memory::RankState(int)> state_of,
                 std::function<void()> say_gave_up) {
    state_of_ = std::move(state_of);
    say_gave_up_ = std::move(say_gave_up);
  }

  /// Sends blob (and file, unless null) to all peers and receives theirs; own place: a copy of the
  /// blob. A blob beyond kBlobBytesMax of any rank gives invalid_argument on all of them. Every
  /// other failure is final: messages may be half sent, so later exchanges fail too.
  Result<std::vector<Message>> exchange(ExchangeKind kind, std::string_view blob,
                                        const base::Descriptor* file, base::Deadline deadline);

  /// Peers read the end of this rank's data after all that it has sent. No exchange follows.
  void close_sending(Status reason);
  /// The same, of a rank that does not leave; see Group::give_up.
  void give_up(const Status& why) noexcept;

 private:
  Status gone_status(int peer) const;

  int rank_;
  std::vector<Peer> peers_;
  std::function<memory::RankState(int)> state_of_;
  std::function<void()> say_gave_up_;
  std::uint64_t sequence_ = 0;
  Status broken_;
};

}  // namespace sluice::bootstrap
