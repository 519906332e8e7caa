// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/cpu/context.hpp"
#include "window/handle_layout.hpp"

namespace sluice::engine::cpu {

/// The arrays of a handle as pointers; sizes as window/handle_layout.hpp says.
struct HandleArrays {
  HandleArrays(const window::HandleLayout& layout, void* memory) noexcept;

  Layout layout() const noexcept { return static_cast<Layout>(header->layout); }

  window::HandleHeader* header;
  std::int32_t* topk_ids;
  float* topk_weights;
  std::int32_t* counts;
  std::int32_t* aligned_counts;
  std::int64_t* offsets;
  std::int64_t* source_offsets;
  std::int32_t* record_rank;
  std::int32_t* record_token;
  std::int32_t* local_ids;
  float* local_weights;
  std::int32_t* route_rows;
};

/// Fills a handle from the routing of this rank's tokens and the headers of the accepted sources,
/// and numbers the rows.
void write_records(Context& context, const DispatchOperation& operation, const RankSet& accepted,
                   const HandleArrays& handle);

/// Fills a handle of a refused dispatch: no tokens, no records.
void write_refused(Context& context, const DispatchOperation& operation,
                   const HandleArrays& handle);

}  // namespace sluice::engine::cpu
