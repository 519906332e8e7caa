// SPDX-License-Identifier: MIT
#include "codec/row_kernels.hpp"

namespace sluice::codec {

DType row_dtype(const Codec& codec) noexcept {
  switch (codec.kind) {
    case CodecKind::bf16: return DType::bf16;
    case CodecKind::f16: return DType::f16;
    case CodecKind::f32: return DType::f32;
    case CodecKind::fp8: return DType::e4m3;
  }
  return DType::none;
}

std::size_t row_bytes(const Codec& codec, int hidden) noexcept {
  const auto elements = static_cast<std::size_t>(hidden);
  switch (codec.kind) {
    case CodecKind::bf16:
    case CodecKind::f16: return elements * 2;
    case CodecKind::f32: return elements * 4;
    case CodecKind::fp8: return elements;
  }
  return 0;
}

int scale_count(const Codec& codec, int hidden) noexcept {
  // Written so that no hidden size can overflow.
  return codec.kind == CodecKind::fp8 ? hidden / codec.group + (hidden % codec.group != 0 ? 1 : 0)
                                      : 0;
}

std::size_t scale_bytes(const Codec& codec, int hidden) noexcept {
  const auto count = static_cast<std::size_t>(scale_count(codec, hidden));
  return codec.scale_form == ScaleForm::ue8m0 ? (count + 3) / 4 * 4 : count * 4;
}

bool valid(const Codec& codec) noexcept {
  switch (codec.kind) {
    case CodecKind::bf16:
    case CodecKind::f16:
    case CodecKind::f32: return true;
    case CodecKind::fp8: break;
    default: return false;
  }
  const bool form_is_known = codec.scale_form == ScaleForm::f32 ||
                             codec.scale_form == ScaleForm::pow2 ||
                             codec.scale_form == ScaleForm::ue8m0;
  const bool group_is_known =
      codec.group == 32 || codec.group == 64 || codec.group == 128 || codec.group == 256;
  return form_is_known && group_is_known;
}

}  // namespace sluice::codec
