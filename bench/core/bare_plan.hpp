// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace sluice::bench {

/// Which bytes one rank puts where, and which come to it, where every rank puts `bytes(from, to)` to every other, in up to so many
/// pieces, or more, of at most `most` bytes each. Ranks that work it out of the same bytes agree. Whoever puts anything to a rank is
/// put to by it, too.
struct BarePlan {
  struct Piece {
    int peer = -1;               ///< To whom, or of whom.
    std::uint64_t offset = 0;    ///< In what goes out of this rank, or comes in;
    std::uint64_t opposite = 0;  ///< and the other way round at the peer.
    std::uint32_t bytes = 0;     ///< A multiple of Shuttle::kUnit, above 0.
    int number = 0;              ///< Of the piece, in `in` of the one that it comes to.
  };
  /// In the order of putting: the first ones of all peers, the second ones, ...
  std::vector<Piece> out;
  std::vector<Piece> in;
  std::uint64_t out_bytes = 0;
  std::uint64_t in_bytes = 0;

  using Bytes = std::function<std::uint64_t(int from, int to)>;
  static BarePlan of(int ranks, int rank, const Bytes& bytes, int pieces, std::uint64_t most);
};

}  // namespace sluice::bench
