// SPDX-License-Identifier: MIT
#pragma once

#include <vector>

#include "base/deadline.hpp"
#include "base/descriptor.hpp"
#include "bootstrap/introduction.hpp"
#include "bootstrap/mesh.hpp"
#include "sluice/status.hpp"

namespace sluice::bootstrap {

/// Joins the ranks that introduced themselves: every rank connects to all lower ranks and accepts
/// all higher ones at `listener`. Connections that do not show the world's nonce, or come from
/// another user, are dropped. A peer that ends meanwhile gives `unavailable` at once where its
/// process can be watched.
Result<Mesh> connect_mesh(int rank, const std::vector<Introduction>& ranks,
                          const base::Descriptor& listener, base::Deadline deadline);

}  // namespace sluice::bootstrap
