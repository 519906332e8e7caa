// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <cstring>

#include "window/window_layout.hpp"

namespace sluice::window {

/// The weights [K] of the routes in `mask`, 0 elsewhere.
inline void write_weights(float* out, int top_k, const float* weights,
                          std::uint32_t mask) noexcept {
  for (int k = 0; k < top_k; ++k) out[k] = ((mask >> k) & 1U) != 0 ? weights[k] : 0.0F;
}

/// A header (DispatchHeaderLayout) of a token's routes in `mask`. `id_of(k)`: the id of route k there.
template <typename IdOf>
void write_dispatch_header(std::byte* out, int top_k, std::int32_t token, const float* weights,
                           std::uint32_t mask, IdOf&& id_of) noexcept {
  std::memcpy(out, &token, sizeof(token));
  write_weights(reinterpret_cast<float*>(out + DispatchHeaderLayout::weights_offset), top_k,
                weights, mask);
  auto* ids = reinterpret_cast<std::int16_t*>(out + DispatchHeaderLayout::ids_offset(top_k));
  for (int k = 0; k < top_k; ++k) {
    ids[k] = ((mask >> k) & 1U) != 0 ? static_cast<std::int16_t>(id_of(k)) : std::int16_t{-1};
  }
}

}  // namespace sluice::window
