// SPDX-License-Identifier: MIT
#pragma once

#include "bf16.hpp"

namespace moe {

/// c [rows, columns] = a [rows, depth] * b [depth, columns]; bf16 in, f32 out, all contiguous.
///
/// Every element of c is one chain of additions over depth, ascending, from +0. So a row's result
/// depends on that row only: not on the rows beside it, not on how many there are, not on the
/// instruction set. That is what makes an MoE layer comparable bit for bit over any number of
/// ranks: the rows that one expert sees together change with the ranks, their results do not.
void matmul(const Bf16* a, const Bf16* b, float* c, int rows, int depth, int columns);

/// The same three loops, unblocked: what matmul is tested against.
void matmul_plain(const Bf16* a, const Bf16* b, float* c, int rows, int depth, int columns);

}  // namespace moe
