// SPDX-License-Identifier: MIT
//
// The program that every mutant must break. Exit status 0: all scenarios were right. 1: one was
// wrong. 2: SLUICE_MUTANT names no mutant. 66: the thread sanitizer saw a race.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/mutants.hpp"
#include "mutants/scenarios.hpp"

namespace {

using sluice::base::Mutant;

// Mutants count from 0 without gaps; the first unknown one has no name.
template <typename Use>
void for_each_mutant(Use&& use) {
  for (int i = 0; *sluice::base::mutant_name(static_cast<Mutant>(i)) != '\0'; ++i) {
    use(sluice::base::mutant_name(static_cast<Mutant>(i)));
  }
}

bool known(const char* name) {
  bool found = false;
  for_each_mutant([&](const char* other) { found |= std::strcmp(name, other) == 0; });
  return found;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--list") == 0) {
    for_each_mutant([](const char* name) { std::puts(name); });
    return 0;
  }
  const char* const mutant = std::getenv("SLUICE_MUTANT");
  if (mutant != nullptr && !known(mutant)) {
    std::fprintf(stderr, "SLUICE_MUTANT is \"%s\", expected a name of --list\n", mutant);
    return 2;
  }
  for (const auto& scenarios :
       {sluice::mutants::semantics_scenarios(), sluice::mutants::absence_scenarios(),
        sluice::mutants::protocol_scenarios()}) {
    for (const sluice::mutants::TestScenario& scenario : scenarios) {
      const std::string wrong = scenario.run();
      if (wrong.empty()) {
        std::printf("right: %s\n", scenario.name);
        std::fflush(stdout);
        continue;
      }
      std::printf("wrong: %s\n%s", scenario.name, wrong.c_str());
      return 1;
    }
  }
  return 0;
}
