// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>

/// The NCCL peer's work on the device: what lies between its exchanges. Every launch returns CUDA's
/// error code and does nothing where there is nothing to do. A stream is an opaque pointer.
namespace sluice::bench::nccl {

/// record := row scales meta, each from a multiple of 16 bytes on, in all whole lines of 128 bytes
/// meta   := token 0 0 0 experts[K] weights[K], words of 4 bytes
struct RecordForm {
  int hidden = 0;
  int top_k = 0;
  bool fp8 = false;  // else bf16
  std::int32_t row_bytes = 0;
  std::int32_t scale_words = 0;  // f32, one for every kGroup elements
  std::int32_t scales_at = 0;
  std::int32_t meta_at = 0;
  std::int32_t stride = 0;

  static constexpr int kGroup = 128;
  static constexpr int kMetaHead = 16;
  static constexpr RecordForm of(int hidden, int top_k, bool fp8) {
    constexpr auto whole = [](int bytes, int unit) { return (bytes + unit - 1) / unit * unit; };
    RecordForm form;
    form.hidden = hidden;
    form.top_k = top_k;
    form.fp8 = fp8;
    form.row_bytes = fp8 ? hidden : 2 * hidden;
    form.scale_words = fp8 ? (hidden + kGroup - 1) / kGroup : 0;
    form.scales_at = whole(form.row_bytes, 16);
    form.meta_at = form.scales_at + whole(form.scale_words * 4, 16);
    form.stride = whole(form.meta_at + kMetaHead + 8 * top_k, 128);
    return form;
  }
};

/// Where the rows of received records belong.
struct Target {
  std::byte* rows = nullptr;
  std::int64_t row_stride = 0;
  std::byte* scales = nullptr;
  std::int64_t scale_stride = 0;
  const std::int32_t* row = nullptr;  // [records, width], -1: none
  int width = 0;
};

/// Received records of other ranks: all but the own ones, which lie between them.
struct Others {
  int count = 0;
  int own_first = 0;
  int own_count = 0;
};

/// Every token is read and encoded once, and written to its records for other ranks and, at the own
/// rank, to its rows at once.
struct PackArgs {
  RecordForm form;
  const std::byte* x = nullptr;
  const std::int32_t* ids = nullptr;    // [T, K]
  const float* weights = nullptr;       // [T, K]
  const std::int32_t* place = nullptr;  // [T, R], see ExchangePlan
  int tokens = 0;
  int ranks = 0;
  int rank = 0;
  std::byte* send = nullptr;
  std::byte* received = nullptr;
  Target target;
};
int launch_pack(const PackArgs& args, void* stream);

/// Rows and scales of others' records to all their places in the layout.
struct UnpackArgs {
  RecordForm form;
  const std::byte* received = nullptr;
  Others others;
  Target target;
};
int launch_unpack(const UnpackArgs& args, void* stream);

/// One partial sum, rounded to bf16, for each record of others, by the weights that came with it.
struct PartArgs {
  RecordForm form;
  const std::byte* y = nullptr;
  const std::byte* received = nullptr;
  Others others;
  const std::int32_t* row = nullptr;  // [records, width]
  int width = 0;
  std::byte* parts = nullptr;
};
int launch_parts(const PartArgs& args, void* stream);

/// A token's partial sums, ranks ascending; the own rank's is formed here.
struct HomeArgs {
  RecordForm form;
  const std::byte* y = nullptr;
  const std::byte* answers = nullptr;
  const std::int32_t* place = nullptr;  // [T, R]
  const std::int32_t* row = nullptr;    // [records, width]
  int width = 0;
  const float* weights = nullptr;  // [T, K]; null: y is weighted already
  int tokens = 0;
  int ranks = 0;
  int rank = 0;
  std::byte* out = nullptr;
};
int launch_home(const HomeArgs& args, void* stream);

}  // namespace sluice::bench::nccl
