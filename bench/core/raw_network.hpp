// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bootstrap/group.hpp"
#include "buffer.hpp"
#include "transport/transport.hpp"

namespace sluice::bench {

/// One rank's end of a network that only the benchmark uses: an endpoint as a communicator has one, but
/// with nothing above it. What it reaches is what the network can do, on this machine, with as many
/// ranks busy.
class RawNetwork {
 public:
  /// Collective. The group has several nodes. `gpu`: as in bare_endpoint(). No call waits for longer than `deadline_s`. `bytes`:
  /// about as many as an operation puts to another rank; puts go round in as many, or 8 to 64 MiB, so that they meet memory as
  /// an operation does.
  static Result<std::unique_ptr<RawNetwork>> open(bootstrap::Group& group, const std::string& gpu,
                                                  std::uint64_t bytes, double deadline_s);

  const transport::Traits& traits() const noexcept { return endpoint_->traits(); }
  /// Of the relay: longer pieces are put in several chunks.
  std::uint64_t chunk_bytes() const noexcept { return chunk_bytes_; }
  int chunks_of(std::uint64_t bytes) const noexcept {
    return static_cast<int>((bytes + chunk_bytes_ - 1) / chunk_bytes_);
  }
  const routing::NodeMap& nodes() const noexcept { return group_.nodes(); }

  /// Puts so many bytes to each rank [R], in chunks, each with its immediate; returns when `expected`
  /// chunks have arrived. All ranks do it at once, between two gates.
  Status exchange(std::span<const std::uint64_t> bytes, int expected);
  /// So many times to the peer and back; one of the two leads. `bytes`: at most a chunk.
  Status ping_pong(int peer, std::uint64_t bytes, int times, bool leads);
  /// Waits until nothing of this rank's is on its way any more.
  Status settle();
  /// Lets things move: signals and acknowledgements that others wait for, too.
  Status poll();

 private:
  RawNetwork(bootstrap::Group& group, std::uint64_t bytes, double deadline_s);

  Result<std::span<std::byte>> make_memory(const transport::Traits& traits);
  /// The next chunk of a piece of `bytes`, of which `done` are put already. 0: not now.
  Result<std::uint64_t> put(int peer, std::uint64_t bytes, std::uint64_t done);
  std::uint64_t& place_of(int peer) { return places_[static_cast<std::size_t>(peer)]; }
  Status put_whole(int peer, std::uint64_t bytes);
  /// Whether anything has happened.
  Result<bool> look();
  /// Polls until `done()`.
  template <typename Done>
  Status wait(const Done& done, const char* what);

  bootstrap::Group& group_;
  const double deadline_s_;
  Buffer memory_;  // Used by the endpoint: destroyed after it.
  std::unique_ptr<transport::Endpoint> endpoint_;
  std::uint64_t chunk_bytes_ = 0;
  std::uint64_t area_bytes_;           // Whole chunks.
  std::vector<std::uint64_t> places_;  // [R]: from and to where the next chunk goes.
  std::int64_t on_their_way_ = 0;      // Own chunks whose memory is still read.
  std::int64_t arrived_ = 0;           // Chunks that nobody has waited for yet.
  std::vector<int> took_;              // [R], of one poll
};

}  // namespace sluice::bench
