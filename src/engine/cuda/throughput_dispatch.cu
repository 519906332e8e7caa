// SPDX-License-Identifier: MIT
#include <algorithm>

#include "engine/cuda/throughput_dispatch_receive.cuh"
#include "engine/cuda/throughput_dispatch_send.cuh"

/// dispatch in throughput mode: a rank stages its rows, tells the ranks of its experts which are theirs, and
/// where; those pull each row once, straight to where it belongs.
namespace sluice::engine::cuda {
namespace {

using Kernel = void (*)(const DispatchArgs, const Desk);

/// Who encodes rows, and who pulls what was encoded, whose bytes are all it needs to know.
struct Kernels {
  Kernel send;
  Kernel pull;
};
Kernels kernels_for(const DispatchArgs& a) {
  constexpr int kSpan = 7;  // units: a row of 7168 elements is two pieces
  constexpr int kWideSpan = 3;
  const bool wide = a.x_dtype == DType::f32;
  if (a.codec.kind == CodecKind::fp8) {
    const Kernel pull = pull_kernel<GivenEncoder, kSpan>;
    if (a.x_dtype == DType::e4m3) return {send_kernel<GivenEncoder>, pull};
    return {wide ? send_kernel<Fp8Encoder<4, false>> : send_kernel<Fp8Encoder<2, false>>, pull};
  }
  const DType out = a.codec.kind == CodecKind::bf16  ? DType::bf16
                    : a.codec.kind == CodecKind::f16 ? DType::f16
                                                     : DType::f32;
  const bool wide_out = out == DType::f32;
  const Kernel pull = wide_out ? pull_kernel<RawEncoder<4, false>, kWideSpan>
                               : pull_kernel<RawEncoder<2, false>, kSpan>;
  if (out == a.x_dtype || !a.rows) {
    return {wide_out ? send_kernel<RawEncoder<4, false>> : send_kernel<RawEncoder<2, false>>, pull};
  }
  return {wide_out ? send_kernel<ConvertEncoder<4>> : send_kernel<ConvertEncoder<2>>, pull};
}

std::size_t slice_bytes(const DispatchArgs& a) {
  return static_cast<std::size_t>(Slice::bytes(a.geometry.experts, a.geometry.ranks));
}

/// What blocks have of shared memory besides.
constexpr int kOtherShared = 3 << 10;
static_assert(sizeof(Ring) + sizeof(Note) + 1024 <= kOtherShared);

}  // namespace

int launch_throughput_dispatch(const DispatchArgs& args, const Desk& desk, const Launch& launch) {
  const Kernels kernels = kernels_for(args);
  DispatchArgs a = args;
  const auto ring = static_cast<std::size_t>(desk.ring_bytes);
  int error = 0;
  const auto run = [&](Kernel kernel, int blocks, std::size_t shared) {
    Launch own = launch;
    own.blocks = blocks;
    own.overlap = false;  // Blocks that wait for the kernel before would hold multiprocessors.
    const int failed = launch_kernel(kernel, a, own, shared, desk);
    if (error == 0) error = failed;
  };
  if (args.halves.send) {
    run(count_kernel, launch.blocks, slice_bytes(args));
    // What was not counted cannot be numbered.
    a.refused = a.refused || error != 0;
    a.drop = a.drop || error != 0;
    run(kernels.send, launch.blocks, std::max(slice_bytes(args), ring));
  }
  if (args.halves.receive) {
    run(number_kernel, 1, 0);
    const int failed = launch_row_counts(a, launch);
    if (error == 0) error = failed;
    run(kernels.pull, launch.blocks, ring);
  }
  return error;
}

int throughput_ring_bytes() {
  int device = 0;
  int bytes = 0;
  cudaFuncAttributes attributes;
  const bool has_engine = cudaFuncGetAttributes(&attributes, count_kernel) == cudaSuccess &&
                          attributes.ptxVersion >= 90 && cudaGetDevice(&device) == cudaSuccess &&
                          cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                                                 device) == cudaSuccess;
  return has_engine ? std::clamp(bytes - kOtherShared, 0, Ring::kBytes) : 0;
}

int load_throughput_dispatch_kernels() {
  const int slices = Slice::bytes(kMaxExperts, kPeersMax);
  const int most = std::max(slices, throughput_ring_bytes());
  int error = load_kernel(count_kernel, slices);
  if (error == cudaSuccess) error = load_kernel(number_kernel, 0);
  if (error != cudaSuccess) return error;
  for (const CodecKind kind : {CodecKind::bf16, CodecKind::f16, CodecKind::f32, CodecKind::fp8}) {
    for (const DType dtype : {DType::bf16, DType::f16, DType::f32, DType::e4m3}) {
      DispatchArgs args;
      args.codec.kind = kind;
      args.x_dtype = dtype;
      const Kernels kernels = kernels_for(args);
      for (const Kernel kernel : {kernels.send, kernels.pull}) {
        error = load_kernel(kernel, most);
        if (error != cudaSuccess) return error;
      }
    }
  }
  return cudaSuccess;
}

}  // namespace sluice::engine::cuda
