// SPDX-License-Identifier: MIT
#pragma once

#include "codec/plain_sum.hpp"

/// What the objects compiled for AVX-512 offer to avx512_kernels.cpp, which is compiled for every
/// processor; see plain_sum.hpp.
namespace sluice::codec::avx512 {

/// Terms, extras and result are bf16; the whole row, of any number of elements. Streaming needs
/// `out` at a multiple of 64 bytes.
void sum(const PlainSum& args);

}  // namespace sluice::codec::avx512
