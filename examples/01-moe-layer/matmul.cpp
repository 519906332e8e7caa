// SPDX-License-Identifier: MIT
#include "matmul.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

namespace moe {
namespace {

// A product of two bf16 numbers is exact in f32, so that fused and unfused multiply-adds give the
// same bits: this file may be compiled with contraction, and is (see CMakeLists.txt).

// A tile of c stays in registers while depth runs; a panel of b, widened to f32, stays in the first
// level cache while the rows run.
constexpr int kTileColumns = 16;
constexpr int kPanelDepth = 256;

std::size_t at(int row, int columns, int column) {
  return static_cast<std::size_t>(row) * static_cast<std::size_t>(columns) +
         static_cast<std::size_t>(column);
}

// As many floats as one register holds: the compiler does badly with wider ones.
using FourFloats = float __attribute__((vector_size(16)));
using EightFloats = float __attribute__((vector_size(32)));

/// c[rows][kTileColumns] += a[rows][depth] * panel[depth][kTileColumns].
template <typename Lanes, int rows>
inline __attribute__((always_inline)) void tile(const float* a, int a_stride, const float* panel,
                                                float* c, int c_stride, int depth) {
  constexpr int lanes = sizeof(Lanes) / sizeof(float);
  constexpr int across = kTileColumns / lanes;
  Lanes sum[static_cast<std::size_t>(rows * across)];
  for (int i = 0; i < rows * across; ++i) {
    std::memcpy(&sum[i], c + i / across * c_stride + i % across * lanes, sizeof(Lanes));
  }
  for (int k = 0; k < depth; ++k) {
    Lanes b[static_cast<std::size_t>(across)];
    for (int j = 0; j < across; ++j) {
      std::memcpy(&b[j], panel + k * kTileColumns + j * lanes, sizeof(Lanes));
    }
    for (int i = 0; i < rows; ++i) {
      const float factor = a[i * a_stride + k];
      for (int j = 0; j < across; ++j) sum[i * across + j] += factor * b[j];
    }
  }
  for (int i = 0; i < rows * across; ++i) {
    std::memcpy(c + i / across * c_stride + i % across * lanes, &sum[i], sizeof(Lanes));
  }
}

/// One panel of b times all rows of a.
template <typename Lanes, int tile_rows>
inline __attribute__((always_inline)) void panel_times_rows(const float* a, int a_stride, int rows,
                                                            const float* panel, float* c,
                                                            int c_stride, int depth) {
  int row = 0;
  for (; row + tile_rows <= rows; row += tile_rows) {
    tile<Lanes, tile_rows>(a + at(row, a_stride, 0), a_stride, panel, c + at(row, c_stride, 0),
                           c_stride, depth);
  }
  for (; row < rows; ++row) {
    tile<Lanes, 1>(a + at(row, a_stride, 0), a_stride, panel, c + at(row, c_stride, 0), c_stride,
                   depth);
  }
}

using PanelFunction = void (*)(const float*, int, int, const float*, float*, int, int);

void panel_portable(const float* a, int a_stride, int rows, const float* panel, float* c,
                    int c_stride, int depth) {
  panel_times_rows<FourFloats, 3>(a, a_stride, rows, panel, c, c_stride, depth);
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) void panel_avx2(const float* a, int a_stride, int rows,
                                                    const float* panel, float* c, int c_stride,
                                                    int depth) {
  panel_times_rows<EightFloats, 6>(a, a_stride, rows, panel, c, c_stride, depth);
}
#endif

PanelFunction choose_panel() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return panel_avx2;
#endif
  return panel_portable;
}

}  // namespace

void matmul(const Bf16* a, const Bf16* b, float* c, int rows, int depth, int columns) {
  static const PanelFunction panel_function = choose_panel();
  if (rows <= 0) return;
  const int panels = (columns + kTileColumns - 1) / kTileColumns;
  const int padded = panels * kTileColumns;
  // Scratch memory that a thread keeps: experts are called thousands of times.
  thread_local std::vector<float> a_wide;
  thread_local std::vector<float> c_wide;
  thread_local std::vector<float> panel;
  a_wide.resize(at(rows, depth, 0));
  for (std::size_t i = 0; i < a_wide.size(); ++i) a_wide[i] = to_float(a[i]);
  c_wide.assign(at(rows, padded, 0), 0.0F);
  panel.resize(static_cast<std::size_t>(kPanelDepth) * kTileColumns);

  for (int k0 = 0; k0 < depth; k0 += kPanelDepth) {
    const int k_count = std::min(kPanelDepth, depth - k0);
    for (int p = 0; p < panels; ++p) {
      const int j0 = p * kTileColumns;
      const int j_count = std::min(kTileColumns, columns - j0);
      for (int k = 0; k < k_count; ++k) {
        float* out = panel.data() + at(k, kTileColumns, 0);
        const Bf16* in = b + at(k0 + k, columns, j0);
        for (int j = 0; j < j_count; ++j) out[j] = to_float(in[j]);
        for (int j = j_count; j < kTileColumns; ++j) out[j] = 0.0F;
      }
      panel_function(a_wide.data() + k0, depth, rows, panel.data(), c_wide.data() + j0, padded,
                     k_count);
    }
  }
  for (int i = 0; i < rows; ++i) {
    std::copy_n(c_wide.data() + at(i, padded, 0), columns, c + at(i, columns, 0));
  }
}

void matmul_plain(const Bf16* a, const Bf16* b, float* c, int rows, int depth, int columns) {
  for (int i = 0; i < rows; ++i) {
    for (int j = 0; j < columns; ++j) {
      float sum = 0.0F;
      for (int k = 0; k < depth; ++k) {
        sum += to_float(a[at(i, depth, k)]) * to_float(b[at(k, columns, j)]);
      }
      c[at(i, columns, j)] = sum;
    }
  }
}

}  // namespace moe
