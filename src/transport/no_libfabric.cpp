// SPDX-License-Identifier: MIT
#include "transport/libfabric.hpp"

namespace sluice::transport {

Result<std::unique_ptr<Endpoint>> open_libfabric(int /*rank*/, int /*ranks*/,
                                                 const LibfabricSettings& /*settings*/) {
  return Status(StatusCode::unimplemented,
                "ranks on several nodes need libfabric, and Sluice was built without it");
}

}  // namespace sluice::transport
