// SPDX-License-Identifier: MIT
//
// libFuzzer's entry: any input is a problem, and the library must agree with the reference on it.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "fuzz/compare_routing.hpp"
#include "fuzz/fuzz_case.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  sluice::fuzz::Bytes bytes({data, size});
  const std::string difference = sluice::fuzz::compare_routing(sluice::fuzz::make_problem(bytes));
  if (difference.empty()) return 0;
  std::fprintf(stderr, "routing differs from the reference: %s\n", difference.c_str());
  std::abort();
}
