// SPDX-License-Identifier: MIT
#include "engine/cuda/elements.cuh"
#include "nccl_tasks.cuh"

/// The NCCL peer's combine: partial sums where the experts' rows are, and their sum at home.
namespace sluice::bench::nccl {
namespace {

using engine::cuda::floats_of_halves;
using engine::cuda::halves_of_floats;
using engine::cuda::load16;
using engine::cuda::store16;

constexpr int kLaneElements = 8;
constexpr int kUnit = 32 * kLaneElements;  // elements
/// Rows that are asked for before the first is needed.
constexpr int kRowsAhead = 8;
constexpr int kRanksAhead = 4;

using Sum = float[kLaneElements];

/// The rows of one record: sum = fma(weight, y, sum), k ascending. Weight 1 without weights.
__device__ void add_rows(const RecordForm& form, const std::byte* y, int element,
                         const std::int32_t* row, int width, const float* weights, Sum& sum) {
  for (int first = 0; first < width; first += kRowsAhead) {
    int at[kRowsAhead];
    uint4 packet[kRowsAhead];
    float weight[kRowsAhead];
#pragma unroll
    for (int i = 0; i < kRowsAhead; ++i) at[i] = first + i < width ? row[first + i] : -1;
#pragma unroll
    for (int i = 0; i < kRowsAhead; ++i) {
      if (at[i] < 0) continue;
      packet[i] = load16(y + (std::int64_t{at[i]} * form.hidden + element) * 2);
      weight[i] = weights != nullptr ? weights[first + i] : 1.0F;
    }
#pragma unroll
    for (int i = 0; i < kRowsAhead; ++i) {
      if (at[i] < 0) continue;
      float v[kLaneElements];
      floats_of_halves(packet[i], DType::bf16, v);
#pragma unroll
      for (int e = 0; e < kLaneElements; ++e) sum[e] = __fmaf_rn(weight[i], v[e], sum[e]);
    }
  }
}

__device__ void add(uint4 part, Sum& sum) {
  float v[kLaneElements];
  floats_of_halves(part, DType::bf16, v);
#pragma unroll
  for (int e = 0; e < kLaneElements; ++e) sum[e] = __fadd_rn(sum[e], v[e]);
}

__global__ void __launch_bounds__(kThreads) part_kernel(const __grid_constant__ PartArgs a) {
  const auto [index, unit] = task_of(units_of(a.form, kUnit));
  const int element = unit * kUnit + lane_of_thread() * kLaneElements;
  if (index >= a.others.count || element >= a.form.hidden) return;
  const int record = record_of(a.others, index);
  const std::byte* meta = record_at(a.form, a.received, record) + a.form.meta_at;
  const auto* weights =
      reinterpret_cast<const float*>(meta + RecordForm::kMetaHead + 4 * a.form.top_k);
  Sum sum = {};
  add_rows(a.form, a.y, element, a.row + std::int64_t{record} * a.width, a.width, weights, sum);
  store16(a.parts + (std::int64_t{record} * a.form.hidden + element) * 2,
          halves_of_floats(sum, DType::bf16));
}

/// The own rank's partial sum, as bf16 as well.
__device__ uint4 own_part(const HomeArgs& a, int token, int record, int element) {
  const float* weights =
      a.weights != nullptr ? a.weights + std::int64_t{token} * a.form.top_k : nullptr;
  Sum sum = {};
  add_rows(a.form, a.y, element, a.row + std::int64_t{record} * a.width, a.width, weights, sum);
  return halves_of_floats(sum, DType::bf16);
}

__global__ void __launch_bounds__(kThreads) home_kernel(const __grid_constant__ HomeArgs a) {
  const auto [token, unit] = task_of(units_of(a.form, kUnit));
  const int element = unit * kUnit + lane_of_thread() * kLaneElements;
  if (token >= a.tokens || element >= a.form.hidden) return;
  const std::int32_t* place = a.place + std::int64_t{token} * a.ranks;
  Sum sum = {};
  for (int first = 0; first < a.ranks; first += kRanksAhead) {
    int at[kRanksAhead];
    uint4 part[kRanksAhead];
#pragma unroll
    for (int i = 0; i < kRanksAhead; ++i) at[i] = first + i < a.ranks ? place[first + i] : -1;
#pragma unroll
    for (int i = 0; i < kRanksAhead; ++i) {
      if (at[i] < 0 || first + i == a.rank) continue;
      part[i] = load16(a.answers + (std::int64_t{at[i]} * a.form.hidden + element) * 2);
    }
    // Its rows are asked for while the answers are under way.
    uint4 own = {};
    if (first <= a.rank && a.rank < first + kRanksAhead && place[a.rank] >= 0) {
      own = own_part(a, token, place[a.rank], element);
    }
#pragma unroll
    for (int i = 0; i < kRanksAhead; ++i) {
      if (at[i] >= 0) add(first + i == a.rank ? own : part[i], sum);
    }
  }
  store16(a.out + (std::int64_t{token} * a.form.hidden + element) * 2,
          halves_of_floats(sum, DType::bf16));
}

}  // namespace

int launch_parts(const PartArgs& args, void* stream) {
  return launch(part_kernel, args, args.others.count, units_of(args.form, kUnit), stream);
}

int launch_home(const HomeArgs& args, void* stream) {
  return launch(home_kernel, args, args.tokens, units_of(args.form, kUnit), stream);
}

}  // namespace sluice::bench::nccl
