// SPDX-License-Identifier: MIT
//
// The blocked matmul gives the bits of three plain loops, whatever rows stand beside a row.
#include <cstdio>
#include <cstring>
#include <vector>

#include "matmul.hpp"
#include "random.hpp"

namespace {

bool check(int rows, int depth, int columns) {
  std::vector<moe::Bf16> a(static_cast<std::size_t>(rows * depth));
  std::vector<moe::Bf16> b(static_cast<std::size_t>(depth * columns));
  moe::fill_uniform(1, 1.0F, a);
  moe::fill_uniform(2, 1.0F, b);
  std::vector<float> plain(static_cast<std::size_t>(rows * columns));
  std::vector<float> blocked(plain.size());
  std::vector<float> alone(plain.size());
  moe::matmul_plain(a.data(), b.data(), plain.data(), rows, depth, columns);
  moe::matmul(a.data(), b.data(), blocked.data(), rows, depth, columns);
  for (int row = 0; row < rows; ++row) {
    moe::matmul(a.data() + row * depth, b.data(), alone.data() + row * columns, 1, depth, columns);
  }
  const bool equal = std::memcmp(plain.data(), blocked.data(), plain.size() * sizeof(float)) == 0 &&
                     std::memcmp(plain.data(), alone.data(), plain.size() * sizeof(float)) == 0;
  if (!equal) std::printf("[%d, %d] x [%d, %d] differs\n", rows, depth, depth, columns);
  return equal;
}

}  // namespace

int main() {
  bool good = true;
  for (const int rows : {1, 5, 6, 7, 20}) {
    for (const int depth : {1, 16, 256, 300, 515}) {
      for (const int columns : {1, 15, 16, 40}) good = check(rows, depth, columns) && good;
    }
  }
  return good ? 0 : 1;
}
