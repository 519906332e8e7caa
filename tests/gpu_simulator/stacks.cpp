// SPDX-License-Identifier: MIT
#include "stacks.hpp"

#include <cstdint>

// A call: what it need not keep its caller has kept, and the floating point's modes are the same everywhere. It
// returns to where the other stack called it from: threads of a warp mostly call from the same place, so the
// processor foresees that, which it would not with a jump.
asm(R"(
  .text
  .p2align 4
  .globl gpu_simulator_switch
  .hidden gpu_simulator_switch
  .type gpu_simulator_switch, @function
gpu_simulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size gpu_simulator_switch, .-gpu_simulator_switch
)");

namespace gpu_simulator {

void* unused_stack(std::byte* stack, std::size_t bytes, void (*begin)()) {
  constexpr int kRegisters = 6;
  const auto top = reinterpret_cast<std::uintptr_t>(stack + bytes) / 16 * 16;
  auto* at = reinterpret_cast<std::uintptr_t*>(top);
  *--at = 0;  // Where `begin` would return to.
  *--at = reinterpret_cast<std::uintptr_t>(begin);
  for (int i = 0; i < kRegisters; ++i) *--at = 0;
  return at;
}

}  // namespace gpu_simulator
