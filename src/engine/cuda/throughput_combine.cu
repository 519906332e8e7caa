// SPDX-License-Identifier: MIT
#include "engine/cuda/throughput_combine_receive.cuh"

/// combine in throughput mode: the expert's rank forms one partial sum per record and pushes it home, into the slot of
/// home's token; home adds them once all have come. Three kernels: sums are pushed, and last the cells; one block
/// awaits the peers' cells; tokens are summed.
namespace sluice::engine::cuda {
namespace {

using Kernel = void (*)(const CombineArgs, const Desk);
struct Kernels {
  Kernel push;
  Kernel sum;
};

/// Steps of kStepElements that a warp does at once: with 7, rows of 7168 elements are four pieces.
template <int kInput, int kCodec>
constexpr int kSpan = kInput == 2 && kCodec == 2 ? 7 : 3;
/// With `single`, rows are pushed one by one, in single steps.
template <int kInput, int kCodec, bool kSingle>
constexpr Kernels kernels{
    push_kernel<CombineTraits<kInput, kCodec, kSingle ? 1 : kSpan<kInput, kCodec>, kSingle, false,
                              true, true>>,
    sum_kernel<CombineTraits<kInput, kCodec, kSpan<kInput, kCodec>, kSingle, false, true, true>>};

int steps_of(const CombineArgs& a, int span) {
  return (a.geometry.hidden + span * kStepElements - 1) / (span * kStepElements);
}

Kernels kernels_for(const CombineArgs& a) {
  const bool wide = a.y_dtype == DType::f32;
  if (a.codec == DType::f32) {
    return a.single ? (wide ? kernels<4, 4, true> : kernels<2, 4, true>)
                    : (wide ? kernels<4, 4, false> : kernels<2, 4, false>);
  }
  return a.single ? (wide ? kernels<4, 2, true> : kernels<2, 2, true>)
                  : (wide ? kernels<4, 2, false> : kernels<2, 2, false>);
}

}  // namespace

int launch_throughput_combine(const CombineArgs& args, const Desk& desk, const Launch& launch) {
  const Kernels kernels = kernels_for(args);
  CombineArgs a = args;
  const bool narrow = a.codec != DType::f32 && a.y_dtype != DType::f32;
  const int span = narrow ? kSpan<2, 2> : kSpan<4, 4>;
  a.steps_divisor = Divisor(steps_of(a, a.single ? 1 : span));
  a.taken_divisor = Divisor(steps_of(a, span));
  int error = 0;
  const auto run = [&](Kernel kernel, int blocks, int shared) {
    Launch own = launch;
    own.blocks = blocks;
    own.overlap = false;  // Blocks that wait for the kernel before would hold multiprocessors.
    const int failed = launch_kernel(kernel, a, own, static_cast<std::size_t>(shared), desk);
    if (error == 0) error = failed;
  };
  if (args.halves.send) run(kernels.push, launch.blocks, desk.ring_bytes);
  if (args.halves.receive) {
    run(await_kernel, 1, 0);
    run(kernels.sum, launch.blocks, desk.ring_bytes);
  }
  return error;
}

int load_throughput_combine_kernels() {
  int error = load_kernel(await_kernel, 0);
  for (const DType codec : {DType::bf16, DType::f32}) {
    for (const DType dtype : {DType::bf16, DType::f32}) {
      for (const bool single : {false, true}) {
        CombineArgs args;
        args.codec = codec;
        args.y_dtype = dtype;
        args.single = single;
        const Kernels kernels = kernels_for(args);
        for (const Kernel kernel : {kernels.push, kernels.sum}) {
          if (error == cudaSuccess) error = load_kernel(kernel, throughput_ring_bytes());
        }
      }
    }
  }
  return error;
}

}  // namespace sluice::engine::cuda
