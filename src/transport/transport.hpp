// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "sluice/status.hpp"

/// Between nodes: chunks are put into a peer's memory, each with an immediate that arrives after it.
/// Nothing about experts. docs/transport.md has the argument why data is there when its immediate is.
namespace sluice::transport {

/// How the peer learns that a chunk is there.
enum class SignalMode : std::uint8_t {
  immediate,  ///< The immediate travels with the write.
  ordered,    ///< A word is written behind the chunk, on a wire that keeps the order of writes.
  serial,     ///< A word is written once the provider says that the chunk was delivered.
};
std::string_view to_string(SignalMode mode) noexcept;

/// What an endpoint is: for the log, and for what ranks compare before they begin.
struct Traits {
  std::string provider;  ///< "net", "tcp;ofi_rxm", "memory", ...
  SignalMode signals = SignalMode::immediate;
  int rails = 1;
  std::size_t put_bytes_max = 0;
  /// Chunks that one peer may have been sent and not yet taken. It learns of took() in portions of up
  /// to a quarter of this: who waits for more chunks than three quarters before it calls took()
  /// waits for ever.
  int window = 0;
  /// Whether add_device_region() may succeed.
  bool device_memory = false;
  /// Of which one chunk may consist: itself, and the rest in Chunk::with.
  std::size_t pieces_max = 1;
};

/// Memory of a GPU that the network reads and writes by itself.
struct DeviceRegion {
  std::byte* base = nullptr;
  std::size_t bytes = 0;
  int device = -1;  ///< CUDA's number of the GPU.
  /// A descriptor of a dmabuf in which it lies from `dmabuf_offset` on; -1: the driver has none. Used until
  /// add_device_region() returns.
  int dmabuf = -1;
  std::uint64_t dmabuf_offset = 0;
  /// Copies between such memory and the host's, either way, and waits for that; false if it cannot. For networks whose bytes
  /// are moved by the processor.
  bool (*copy)(int device, std::byte* to, const std::byte* from, std::size_t bytes) = nullptr;
};

/// Memory of this rank from which chunks are put, or into which peers put them: a number, counted
/// from 0 in the order of add_region and add_device_region, by which peers name it too. What is a GPU's at one rank may be the
/// host's at another.
using Region = int;

/// A piece of this rank's memory, for a place in a peer's, that goes with a chunk.
struct Piece {
  Region from = -1;
  std::uint64_t from_offset = 0;
  Region to = -1;  ///< Of the peer's.
  std::uint64_t to_offset = 0;
  std::uint32_t bytes = 0;  ///< Not 0.
};

/// A piece of this rank's memory, for a place in a peer's. With no bytes: the immediate alone.
struct Chunk {
  int peer = -1;
  Region from = -1;
  std::uint64_t from_offset = 0;
  Region to = -1;  ///< Of the peer's.
  std::uint64_t to_offset = 0;
  std::uint32_t bytes = 0;  ///< At most Traits::put_bytes_max, with those of all pieces.
  std::uint32_t immediate = 0;
  std::uint64_t context = 0;  ///< Comes back with the chunk's `sent` event.
  /// There before the immediate, too; the chunk has bytes then. Read by put() alone: the span, not what lies there.
  std::span<const Piece> with = {};
  bool more = false;  ///< Another one for the peer is put next. A hint.
};

enum class Posted : std::uint8_t {
  yes,
  busy,  ///< Not now: a queue is full, or the peer's window. Again after a poll.
  gone,  ///< The peer is lost or abandoned: the chunk is dropped, and no event tells of it.
};

struct Event {
  enum class Kind : std::uint8_t {
    sent,     ///< The chunk's memory may be overwritten. Not: it has arrived. None comes for a peer
              ///< that is lost or abandoned; memory of chunks to it may still be read.
    arrived,  ///< The immediate's chunk can be read. In any order; of a peer that is gone, too.
    lost,     ///< The provider gave the peer up. Once, and not after abandon().
  };
  Kind kind = Kind::sent;
  int peer = -1;                ///< sent, lost
  std::uint32_t immediate = 0;  ///< arrived
  std::uint64_t context = 0;    ///< sent
};

/// One rank's end. All calls are made by one thread, the rank's progress thread. None of them waits.
/// Nothing goes while nobody polls.
class Endpoint {
 public:
  virtual ~Endpoint() = default;

  virtual const Traits& traits() const noexcept = 0;

  /// Before introduction(). The memory stays the caller's, and valid as long as the endpoint.
  virtual Result<Region> add_region(std::byte* base, std::size_t bytes) = 0;
  /// Likewise. unavailable: the provider does not reach that memory; nothing was added. When a chunk has arrived there, the
  /// owner of the memory sees to it that the GPU sees it (docs/transport.md).
  virtual Result<Region> add_device_region(const DeviceRegion& region) = 0;
  /// What peers need to know of this rank.
  virtual Result<std::string> introduction() = 0;
  /// Of every peer, before anything is put by either side. `mismatch` if the peer uses another
  /// provider, mode or number of rails.
  virtual Status connect(int peer, std::string_view introduction) = 0;

  /// Region, offsets and bytes are the caller's to keep in bounds.
  virtual Posted put(const Chunk& chunk) = 0;
  /// What has happened since, at most events.size(); 0: nothing.
  virtual std::size_t poll(std::span<Event> events) = 0;
  /// So many chunks of the peer have arrived and been accounted for: it may send as many more.
  virtual void took(int peer, int chunks) = 0;
  /// Nothing more is put to the peer.
  virtual void abandon(int peer) = 0;
  /// A mark behind all that was put to the peer. What waits for others, to travel with them, is sent now; nothing: it cannot be.
  virtual std::optional<std::uint64_t> mark(int peer) = 0;
  /// Whether all before the mark is out, its signals included, so that it arrives though nobody polls here any more, as far as
  /// the provider tells; or the peer is gone.
  virtual bool is_out(int peer, std::uint64_t mark) const = 0;

  /// Bytes of chunks that were put to a peer by now.
  virtual std::uint64_t bytes_put(int peer) const noexcept = 0;
};

}  // namespace sluice::transport
