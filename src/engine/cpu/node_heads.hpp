// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <vector>

#include "engine/cpu/context.hpp"
#include "routing/routes.hpp"

namespace sluice::engine::cpu {

/// What a dispatch, or the weights of a combine, says to other nodes: one header for each (token,
/// node). On one node there is nothing to say.
class NodeHeads {
 public:
  /// `headers`: [nodes], counters. `weights`: of a combine, else of a dispatch.
  NodeHeads(Context& context, std::uint64_t epoch, bool weights,
            std::vector<std::int32_t>& headers);

  /// Tokens come in ascending order. `to`: all destinations of the token.
  void add(int token, const std::int32_t* ids, const float* weights,
           const routing::Destinations& to);
  /// `records`: [R], of every rank. `row_bytes`: 0 if no rows follow. `known`: readers have the headers.
  void publish(const protocol::CellContent& content, const std::vector<std::int32_t>& records,
               std::size_t row_bytes, bool known);

 private:
  std::byte* head(int node) const noexcept;

  Context& context_;
  std::uint64_t epoch_;
  bool weights_;
  std::vector<std::int32_t>& headers_;
};

}  // namespace sluice::engine::cpu
