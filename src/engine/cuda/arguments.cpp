// SPDX-License-Identifier: MIT
#include "engine/cuda/arguments.hpp"

#include <algorithm>
#include <limits>

#include "codec/row_kernels.hpp"
#include "engine/registered_rows.hpp"

namespace sluice::engine::cuda {
namespace {

/// 0: none, or so long that kernels could not multiply it by the ranks.
std::uint64_t timeout_of(std::chrono::nanoseconds timeout) noexcept {
  constexpr std::int64_t kLongest = std::numeric_limits<std::int64_t>::max() / (kPeersMax + 1);
  if (timeout.count() < 0 || timeout.count() > kLongest) return 0;
  return static_cast<std::uint64_t>(std::max<std::int64_t>(timeout.count(), 1));
}

/// What all ranks must agree on. Few words, since to mix one takes its time; and none of them is what was mixed before: mix()
/// does not tell all values of its second argument apart.
std::uint32_t signature_of(const DispatchSend& request) noexcept {
  const bool fp8 = request.codec.kind == CodecKind::fp8;
  const auto kinds = static_cast<std::uint32_t>(request.placement.layout) |
                     static_cast<std::uint32_t>(request.codec.kind) << 8 |
                     (fp8 ? static_cast<std::uint32_t>(request.codec.scale_form) : 0U) << 16 |
                     (request.rows ? 1U : 0U) << 24 | (request.cached.given() ? 1U : 0U) << 25;
  // An alignment is 1 to 2^16, a group 256 at most.
  const std::uint32_t numbers = static_cast<std::uint32_t>(request.placement.alignment - 1) |
                                (fp8 ? static_cast<std::uint32_t>(request.codec.group) : 0U) << 16;
  const auto capacity = static_cast<std::uint64_t>(request.placement.capacity);
  const std::uint32_t first =
      mix(static_cast<std::uint32_t>(capacity), static_cast<std::uint32_t>(capacity >> 32));
  return mix(mix(first, kinds), numbers);
}
std::uint32_t signature_of(const CombineSend& request, DType codec) noexcept {
  return mix(1,
             static_cast<std::uint32_t>(codec) | static_cast<std::uint32_t>(request.reduce) << 8 |
                 (request.plain_sum ? 1U : 0U) << 16 | (request.weights.given() ? 1U : 0U) << 17 |
                 (request.row_weights.given() ? 1U : 0U) << 18);
}

template <typename Void>
Grid grid_of(const BasicTensorView<Void>& view) noexcept {
  const auto element = static_cast<std::int64_t>(size_of(view.dtype));
  Grid grid;
  grid.base = static_cast<std::byte*>(const_cast<void*>(static_cast<const void*>(view.data)));
  grid.row_stride = view.strides[view.dims == 3 ? 1 : 0] * element;
  grid.element_stride =
      view.strides[static_cast<std::size_t>(std::max(view.dims, 1)) - 1] * element;
  if (view.dims == 3 && view.strides[0] != view.shape[1] * view.strides[1]) {
    grid.slab_rows = static_cast<std::int32_t>(view.shape[1]);
    grid.slab_stride = view.strides[0] * element;
  }
  return grid;
}

/// Whether all rows start at multiples of 16 bytes.
bool aligned(const Grid& grid) noexcept {
  return reinterpret_cast<std::uintptr_t>(grid.base) % 16 == 0 && grid.row_stride % 16 == 0 &&
         grid.slab_stride % 16 == 0;
}

/// Whether the scales of every unit are whole packets, so that those of a row lie in its tensor as they travel.
bool has_whole_packets(const Codec& codec, int hidden) noexcept {
  return codec.scale_form != ScaleForm::ue8m0 &&
         window::kUnitElements / codec.group * 4 % static_cast<int>(window::kPacketBytes) == 0 &&
         hidden % window::kUnitElements == 0;
}

}  // namespace

void set_call(const Known& known, const DispatchSend& request, DispatchArgs& args) {
  args = {};
  args.geometry = known.geometry;
  args.timeout_ns = timeout_of(request.timeout);
  args.refused = request.refused;
  args.rows = request.rows;
  args.cached = request.cached.given();
  args.layout = request.placement.layout;
  args.alignment = request.placement.alignment;
  args.capacity = request.placement.capacity;
  args.handle_layout = known.handle_layout;
  args.codec = request.codec;
  const int hidden = known.config.shape.hidden;
  args.units_divisor = Divisor((hidden + window::kUnitElements - 1) / window::kUnitElements);
  args.row_bytes = static_cast<int>(codec::row_bytes(request.codec, hidden));
  const bool fp8 = request.codec.kind == CodecKind::fp8;
  if (fp8) {
    args.scale_packets = window::scale_packets_per_unit(
        request.codec.group, request.codec.scale_form == ScaleForm::ue8m0 ? 1 : 4);
  }
  args.scale_words = static_cast<int>(codec::scale_bytes(request.codec, hidden) / 4);
  args.record_packets = args.row_bytes / static_cast<int>(window::kPacketBytes) +
                        static_cast<int>(args.units_divisor.divisor) * args.scale_packets;
  args.signature = signature_of(request);
  if (request.refused) return;
  if (request.rows) {
    args.x = grid_of(request.x);
    args.x_dtype = request.x.dtype;
    args.aligned = aligned(args.x);
    if (request.scales.given()) args.x_scales = grid_of(request.scales);
    args.tokens = static_cast<int>(request.x.shape[0]);
  } else {
    args.tokens = static_cast<int>(request.topk_ids.shape[0]);
  }
  if (args.cached) {
    auto* const handle = static_cast<std::byte*>(request.cached.data());
    args.handle = handle;
    args.ids = handle + known.handle_layout.topk_ids;
    args.ids_stride[0] = known.config.shape.top_k;
    args.ids_stride[1] = 1;
    return;
  }
  args.ids = request.topk_ids.data;
  args.ids64 = request.topk_ids.dtype == DType::i64;
  std::copy_n(request.topk_ids.strides.begin(), 2, args.ids_stride);
  if (request.topk_weights.given()) {
    args.weights_given = true;
    args.weights = static_cast<const float*>(request.topk_weights.data);
    std::copy_n(request.topk_weights.strides.begin(), 2, args.weights_stride);
  }
  if (request.mask.given()) {
    args.mask = static_cast<const std::uint8_t*>(request.mask.data);
    args.mask_stride[0] = request.mask.strides[0];
    args.mask_stride[1] = request.mask.dims == 2 ? request.mask.strides[1] : 0;
  }
}

void set_header(const Known& known, DispatchArgs& args) {
  window::HandleHeader& header = args.header;
  header.magic = window::kHandleMagic;
  header.fingerprint = known.config.fingerprint;
  header.ranks = known.config.ranks;
  header.rank = known.config.rank;
  header.top_k = known.config.shape.top_k;
  header.local_experts = known.config.local_experts();
  header.max_tokens = known.config.tokens_max;
  header.tokens = args.refused ? 0 : args.tokens;
  header.refused = args.drop ? 1 : 0;
  header.weights_given = args.weights_given ? 1 : 0;
  header.layout = static_cast<std::uint8_t>(args.layout);
  header.alignment = args.alignment;
  header.capacity = args.capacity;
}

std::int64_t rows_max(const Known& known, const routing::RowPlacement& placement) noexcept {
  const std::int64_t experts = known.config.local_experts();
  const std::int64_t records = std::int64_t{known.config.ranks} * known.config.tokens_max;
  if (placement.layout == Layout::expert_slab) return experts * placement.capacity;
  if (placement.capacity > 0) return placement.capacity;
  if (placement.layout == Layout::rank_major) return records;
  return records * std::min<std::int64_t>(known.config.shape.top_k, experts) +
         experts * (placement.alignment - 1);
}

void set_rows(const Known& known, const DispatchSend& request, const Received& received,
              bool zero_padding, DispatchArgs& args) {
  args.out = grid_of(received.rows);
  args.aligned = args.aligned && aligned(args.out);
  if (received.scales.given()) {
    args.scales = grid_of(received.scales);
    args.whole_scales = aligned(args.scales) && args.scales.element_stride == 4 &&
                        has_whole_packets(request.codec, known.config.shape.hidden) &&
                        window::kUnitElements / request.codec.group * 4 == window::kPacketBytes;
  }
  args.zero_padding = zero_padding;
  args.stored_rows = received.rows.dims == 3 ? received.rows.shape[0] * received.rows.shape[1]
                                             : received.rows.shape[0];
}

bool whole_records(const DispatchSend& request, int hidden) noexcept {
  return request.codec.kind == CodecKind::fp8 && request.x.dtype == DType::e4m3 &&
         has_whole_packets(request.codec, hidden) &&
         scales_behind_rows(request.x, request.scales, codec::row_bytes(request.codec, hidden));
}

void set_call(const Known& known, const CombineSend& request, CombineArgs& args) {
  args = {};
  args.geometry = known.geometry;
  args.timeout_ns = timeout_of(request.timeout);
  args.refused = request.refused;
  args.handle_layout = known.handle_layout;
  args.single = request.reduce == Reduce::single;
  args.by_node = request.reduce == Reduce::node && known.by_node;
  args.plain_sum = request.plain_sum;
  args.codec = codec::row_dtype({request.codec, ScaleForm::f32, 128});
  // A refused call may name any: rows that this rank adds up for its neighbours are as long as there is room for.
  const auto row_bytes = [&](CodecKind codec) {
    return codec::row_bytes({codec, ScaleForm::f32, 128}, known.config.shape.hidden);
  };
  if (request.refused && (request.codec > CodecKind::f32 ||
                          row_bytes(request.codec) > known.config.packets.combine_row_bytes)) {
    args.codec = codec::row_dtype({known.config.options.combine_codec, ScaleForm::f32, 128});
  }
  args.signature = signature_of(request, args.codec);
  if (request.handle.given()) args.handle = static_cast<const std::byte*>(request.handle.data());
  if (request.refused) return;
  if (request.y.given()) {
    args.y = grid_of(request.y);
    args.y_slabs = request.y.dims == 3;
    args.y_rows = request.y.shape[args.y_slabs ? 1 : 0];
    const std::int64_t slabs = args.y_slabs ? request.y.shape[0] : 1;
    args.y_last_row = static_cast<int>(
        std::min<std::int64_t>(slabs * args.y_rows - 1, std::numeric_limits<int>::max()));
    args.y_dtype = request.y.dtype;
    args.aligned = aligned(args.y);
  }
  if (request.weights.given()) {
    args.weights_given = true;
    args.weights_tokens = static_cast<int>(request.weights.shape[0]);
    args.weights = static_cast<const float*>(request.weights.data);
    std::copy_n(request.weights.strides.begin(), 2, args.weights_stride);
  }
  if (request.row_weights.given()) {
    args.row_weights_rows = request.row_weights.shape[0];
    args.row_weights = static_cast<const float*>(request.row_weights.data);
    std::copy_n(request.row_weights.strides.begin(), 2, args.row_weights_stride);
  }
}

int weights_tokens(const CombineSend& request) noexcept {
  return request.weights.given() ? static_cast<int>(request.weights.shape[0]) : 0;
}

void set_outputs(const TensorView& out, const CombineOutputs& outputs, CombineArgs& args) {
  args.out = grid_of(out);
  args.out_dtype = out.dtype;
  args.aligned = args.aligned && aligned(args.out);
  const auto add = [&](const ConstTensorView& view) {
    args.extra[args.extras] = grid_of(view);
    args.extra_dtype[args.extras] = view.dtype;
    args.aligned = args.aligned && aligned(args.extra[args.extras]);
    ++args.extras;
  };
  for (const ConstTensorView& shared : outputs.shared_results) add(shared);
  for (const ConstTensorView& bias : outputs.biases) add(bias);
  if (outputs.surviving_weight.given()) {
    args.surviving_weight = static_cast<float*>(outputs.surviving_weight.data);
    args.surviving_stride = outputs.surviving_weight.strides[0];
  }
  if (outputs.weights_home.given()) {
    args.weights_home = static_cast<float*>(outputs.weights_home.data);
    std::copy_n(outputs.weights_home.strides.begin(), 2, args.weights_home_stride);
  }
  args.renormalize = outputs.renormalize;
}

}  // namespace sluice::engine::cuda
