// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "sluice/export.hpp"

namespace sluice {

/// Element types of tensors. e4m3 is the finite-only kind (largest value 448, no infinities).
enum class DType : std::uint8_t { none = 0, u8, i32, i64, f32, bf16, f16, e4m3 };

SLUICE_API std::string_view to_string(DType dtype) noexcept;
/// Bytes of one element; 0 for DType::none.
SLUICE_API std::size_t size_of(DType dtype) noexcept;

enum class Device : std::uint8_t { cpu = 0, cuda };

/// A strided view of memory that somebody else owns: up to three dimensions, strides in elements.
/// A view with dtype none is "not given". Void is `void` or `const void`.
template <typename Void>
struct BasicTensorView {
  Void* data = nullptr;
  DType dtype = DType::none;
  int dims = 0;
  std::array<std::int64_t, 3> shape{};
  std::array<std::int64_t, 3> strides{};
  Device device = Device::cpu;
  int device_index = 0;

  BasicTensorView() = default;
  /// A contiguous 1-, 2- or 3-dimensional view.
  BasicTensorView(Void* data_, DType dtype_, std::int64_t n0) noexcept
      : data(data_), dtype(dtype_), dims(1), shape{n0, 0, 0}, strides{1, 0, 0} {}
  BasicTensorView(Void* data_, DType dtype_, std::int64_t n0, std::int64_t n1) noexcept
      : data(data_), dtype(dtype_), dims(2), shape{n0, n1, 0}, strides{n1, 1, 0} {}
  BasicTensorView(Void* data_, DType dtype_, std::int64_t n0, std::int64_t n1,
                  std::int64_t n2) noexcept
      : data(data_), dtype(dtype_), dims(3), shape{n0, n1, n2}, strides{n1 * n2, n2, 1} {}
  /// A mutable view is also a const view.
  template <typename Other>
  BasicTensorView(const BasicTensorView<Other>& other) noexcept  // NOLINT
      : data(other.data),
        dtype(other.dtype),
        dims(other.dims),
        shape(other.shape),
        strides(other.strides),
        device(other.device),
        device_index(other.device_index) {}

  bool given() const noexcept { return dtype != DType::none; }
};

using TensorView = BasicTensorView<void>;
using ConstTensorView = BasicTensorView<const void>;

/// How received rows lie on the expert's rank.
enum class Layout : std::uint8_t {
  rank_major = 0,  ///< One row per (token, this rank), order (source rank, token).
  expert_major,    ///< One row per distinct (token, expert), order (expert, source rank, token).
  expert_slab,     ///< As expert_major, every expert in a slab of its own: [L, slab_rows, H].
};

/// How a row travels.
enum class CodecKind : std::uint8_t { bf16 = 0, f16, f32, fp8 };
/// How an fp8 scale is computed and stored; docs/number-formats.md has the definitions.
enum class ScaleForm : std::uint8_t {
  f32 = 0,  ///< amax / 448 as float.
  pow2,     ///< The same, rounded up to a power of two, as float.
  ue8m0,    ///< The power of two as its 8-bit exponent, four packed to an int32.
};

struct Codec {
  CodecKind kind = CodecKind::bf16;
  ScaleForm scale_form = ScaleForm::f32;  ///< fp8 only.
  int group = 128;                        ///< fp8 only: elements per scale: 32, 64, 128 or 256.

  friend bool operator==(const Codec&, const Codec&) = default;
};

/// latency: small payloads, pushed into slots. throughput: large ones, pulled by their reader.
enum class Mode : std::uint8_t { automatic = 0, latency, throughput };

/// The order of sums; docs/number-formats.md has the formulas.
enum class Reduce : std::uint8_t {
  rank = 0,  ///< Partial sums per rank, then ranks ascending.
  single,    ///< One fma chain over k: independent of the number of ranks.
  node,      ///< Partial sums per rank, sums of these per node, then nodes by their lowest rank.
};

/// Where the expert results given to combine live; equal on all ranks.
enum class YMemory : std::uint8_t { ordinary = 0, registered };

SLUICE_API std::string_view to_string(Device device) noexcept;
SLUICE_API std::string_view to_string(Layout layout) noexcept;
SLUICE_API std::string_view to_string(CodecKind kind) noexcept;
SLUICE_API std::string_view to_string(ScaleForm form) noexcept;
SLUICE_API std::string_view to_string(Mode mode) noexcept;
SLUICE_API std::string_view to_string(Reduce reduce) noexcept;

}  // namespace sluice
