// SPDX-License-Identifier: MIT
//
// Not run: instantiates for the device what host and device share, so that a host-only construct in
// it is seen without a GPU.
#include "numeric/convert.hpp"
#include "numeric/fp8_scale.hpp"
#include "window/handle_layout.hpp"
#include "window/window_layout.hpp"

namespace sluice {

__global__ void round_trips(const float* in, float* out, ScaleForm form) {
  const unsigned i = threadIdx.x;
  out[4 * i + 0] = numeric::f32_from_bf16(numeric::bf16_from_f32(in[i]));
  out[4 * i + 1] = numeric::f32_from_f16(numeric::f16_from_f32(in[i]));
  out[4 * i + 2] = numeric::f32_from_e4m3(numeric::e4m3_from_f32(in[i]));
  const float amax = numeric::wider_amax(in[0], in[i]);
  const float scale = numeric::fp8_scale(amax, form);
  out[4 * i + 3] = numeric::f32_from_e4m3(numeric::fp8_code(in[i], amax, scale, form)) *
                   numeric::f32_from_ue8m0(numeric::ue8m0_from_f32(scale));
}

__global__ void offsets(window::WindowShape shape, window::HandleHeader header, std::size_t* out) {
  const window::WindowLayout layout(shape);
  const int peer = static_cast<int>(threadIdx.x);
  out[0] = layout.bytes();
  out[1] = layout.cell(peer, protocol::CellKind::dispatch, 0);
  out[2] = layout.staged_dispatch_row(1, 2);
  out[3] = layout.combine_row(peer, 1, 2);
  out[4] = layout.staged_dispatch_row(0, 3);
  out[5] = layout.staged_combine_row(0, peer, 3);
  out[6] = window::HandleLayout(header).bytes;
}

}  // namespace sluice
