// SPDX-License-Identifier: MIT
#pragma once

#include <exception>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "base/deadline.hpp"
#include "bootstrap/group.hpp"
#include "engine/engine.hpp"

namespace sluice::engine {

/// Collective. The last step of a rank's engine, `make()`, which takes no other rank: memory or a thread may not be to be had
/// for it. All ranks get their engines, or the same Status, which names the rank that has none.
template <typename Make>
Result<std::unique_ptr<Engine>> build(bootstrap::Group& group, base::Deadline deadline,
                                      const Make& make) {
  std::unique_ptr<Engine> engine;
  Status status;
  try {
    engine = make();
  } catch (const std::bad_alloc&) {
    status = Status(StatusCode::out_of_memory, "too little memory for an engine");
  } catch (const std::exception& error) {  // A thread that cannot be started.
    status = Status(StatusCode::io_error, std::string("an engine: ") + error.what());
  }
  if (Status agreed = group.agree(status, deadline); !agreed.ok()) return agreed;
  return engine;
}

}  // namespace sluice::engine
