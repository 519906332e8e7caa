// SPDX-License-Identifier: MIT
#include "sluice/types.hpp"

namespace sluice {

std::string_view to_string(DType dtype) noexcept {
  switch (dtype) {
    case DType::none: return "none";
    case DType::u8: return "u8";
    case DType::i32: return "i32";
    case DType::i64: return "i64";
    case DType::f32: return "f32";
    case DType::bf16: return "bf16";
    case DType::f16: return "f16";
    case DType::e4m3: return "e4m3";
  }
  return "unknown";
}

std::size_t size_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::none: return 0;
    case DType::u8: return 1;
    case DType::i32: return 4;
    case DType::i64: return 8;
    case DType::f32: return 4;
    case DType::bf16: return 2;
    case DType::f16: return 2;
    case DType::e4m3: return 1;
  }
  return 0;
}

std::string_view to_string(Device device) noexcept {
  return device == Device::cuda ? "cuda" : "host";
}

std::string_view to_string(Layout layout) noexcept {
  switch (layout) {
    case Layout::rank_major: return "rank_major";
    case Layout::expert_major: return "expert_major";
    case Layout::expert_slab: return "expert_slab";
  }
  return "unknown";
}

std::string_view to_string(CodecKind kind) noexcept {
  switch (kind) {
    case CodecKind::bf16: return "bf16";
    case CodecKind::f16: return "f16";
    case CodecKind::f32: return "f32";
    case CodecKind::fp8: return "fp8";
  }
  return "unknown";
}

std::string_view to_string(ScaleForm form) noexcept {
  switch (form) {
    case ScaleForm::f32: return "f32";
    case ScaleForm::pow2: return "pow2";
    case ScaleForm::ue8m0: return "ue8m0";
  }
  return "unknown";
}

std::string_view to_string(Mode mode) noexcept {
  switch (mode) {
    case Mode::automatic: return "automatic";
    case Mode::latency: return "latency";
    case Mode::throughput: return "throughput";
  }
  return "unknown";
}

std::string_view to_string(Reduce reduce) noexcept {
  switch (reduce) {
    case Reduce::rank: return "rank";
    case Reduce::single: return "single";
    case Reduce::node: return "node";
  }
  return "unknown";
}

}  // namespace sluice
