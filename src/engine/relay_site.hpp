// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <utility>

#include "engine/engine.hpp"
#include "relay/site.hpp"

namespace sluice::engine {

/// Where the relay of an engine works.
inline relay::Site relay_site(const EngineConfig& config, const window::WindowLayout& window,
                              std::shared_ptr<relay::Memory> memory,
                              std::shared_ptr<bootstrap::Peers> peers) {
  relay::Site site;
  site.rank = config.rank;
  site.top_k = config.shape.top_k;
  site.hidden = config.shape.hidden;
  site.nodes = config.nodes;
  site.map = config.map;
  site.window = window;
  site.memory = std::move(memory);
  site.peers = std::move(peers);
  return site;
}

}  // namespace sluice::engine
