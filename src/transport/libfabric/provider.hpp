// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "transport/libfabric.hpp"
#include "transport/libfabric/library.hpp"

namespace sluice::transport {

struct FreeInfo {
  const Library* library = nullptr;
  void operator()(fi_info* info) const noexcept { library->freeinfo(info); }
};
using Info = std::unique_ptr<fi_info, FreeInfo>;

/// A provider on this rank's network cards, and how its signals travel.
struct Provider {
  std::string name;         // As it is asked for; equal on all ranks.
  std::vector<Info> rails;  // What each is opened with.
  SignalMode signals = SignalMode::immediate;

  const fi_info& info() const noexcept { return *rails.front(); }
  /// Of all rails: whether they keep the order of writes to one peer, and how long one may be.
  bool in_order() const noexcept;
  std::size_t put_bytes_max() const noexcept;
};

/// Whether an endpoint's address, of libfabric's `format`, is a loopback interface's.
bool is_loopback(std::uint32_t format, std::string_view address) noexcept;

/// Whether it is TCP's, whose bytes the processor moves.
bool moved_by_processor(std::string_view provider) noexcept;

Result<Provider> choose_provider(const Library& library, const LibfabricSettings& settings);
/// The same one, with memory of GPUs, and alike in all that peers must agree on. unavailable: there is none.
Result<Provider> with_device_memory(const Library& library, const LibfabricSettings& settings,
                                    const Provider& provider);

}  // namespace sluice::transport
