// SPDX-License-Identifier: MIT
#pragma once

#include <memory>

#include "transport/libfabric.hpp"
#include "transport/libfabric/library.hpp"

namespace sluice::transport {

struct FreeInfo {
  const Library* library = nullptr;
  void operator()(fi_info* info) const noexcept { library->freeinfo(info); }
};
using Info = std::unique_ptr<fi_info, FreeInfo>;

/// A provider on one interface, and how its signals travel.
struct Provider {
  Info info;
  SignalMode signals = SignalMode::immediate;
};

/// Whether it keeps the order of writes to one peer.
bool in_order(const fi_info& info) noexcept;

Result<Provider> choose_provider(const Library& library, const LibfabricSettings& settings);
/// The same one, with memory of GPUs, and alike in all that peers must agree on. unavailable: there is none.
Result<Provider> with_device_memory(const Library& library, const LibfabricSettings& settings,
                                    const Provider& provider);

}  // namespace sluice::transport
