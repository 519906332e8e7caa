// SPDX-License-Identifier: MIT
//
// The fuzzer's comparison without libFuzzer, for every compiler and every run of the tests: as many
// pseudo-random inputs as the argument says, or the files named (what a fuzzer found).
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "fuzz/compare_routing.hpp"
#include "fuzz/fuzz_case.hpp"

namespace {

bool run(const std::string& name, const std::vector<std::uint8_t>& input) {
  sluice::fuzz::Bytes bytes(input);
  const std::string difference = sluice::fuzz::compare_routing(sluice::fuzz::make_problem(bytes));
  if (difference.empty()) return true;
  std::fprintf(stderr, "%s: routing differs from the reference: %s\n", name.c_str(),
               difference.c_str());
  return false;
}

bool run_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    std::fprintf(stderr, "cannot read '%s'\n", path.c_str());
    return false;
  }
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  return run(path, {text.begin(), text.end()});
}

}  // namespace

int main(int argument_count, char** arguments) {
  if (argument_count < 2) {
    std::fprintf(stderr, "usage: routing_replay NUMBER | FILE...\n");
    return 2;
  }
  char* end = nullptr;
  const std::uint64_t number = std::strtoull(arguments[1], &end, 10);
  if (*end != '\0') {
    bool good = true;
    for (int i = 1; i < argument_count; ++i) good = run_file(arguments[i]) && good;
    return good ? 0 : 1;
  }
  for (std::uint64_t i = 0; i < number; ++i) {
    std::mt19937_64 random(i);
    std::vector<std::uint8_t> input(32 + random() % 2000);
    for (std::uint8_t& byte : input) byte = static_cast<std::uint8_t>(random() >> 32);
    if (!run("input " + std::to_string(i), input)) return 1;
  }
  std::printf("%llu inputs agree\n", static_cast<unsigned long long>(number));
  return 0;
}
