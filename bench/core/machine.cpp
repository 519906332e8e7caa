// SPDX-License-Identifier: MIT
#include "machine.hpp"

#include <fmt/format.h>
#include <sched.h>
#include <sys/sysinfo.h>
#include <sys/utsname.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>

#include "codec/row_kernels.hpp"
#include "sluice/version.hpp"

namespace sluice::bench {
namespace {

std::string cpu_model() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    const std::size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos) {
      return line.substr(colon + 2);
    }
  }
  return "unknown";
}

/// Of the process, before any of its threads is bound.
const cpu_set_t& usable_processors() {
  static const cpu_set_t processors = [] {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof(set), &set) != 0) CPU_SET(0, &set);
    return set;
  }();
  return processors;
}

int usable_cpus() {
  return CPU_COUNT(&usable_processors());
}

}  // namespace

void bind_to_processors(int rank, int ranks, bool several) {
  const int usable = usable_cpus();
  const int each = several ? std::max(usable / ranks, 1) : 1;
  const int first = rank * each % usable;
  cpu_set_t own;
  CPU_ZERO(&own);
  int place = 0;
  for (std::size_t processor = 0; processor < CPU_SETSIZE; ++processor) {
    if (!CPU_ISSET(processor, &usable_processors())) continue;
    if (place >= first && place < first + each) CPU_SET(processor, &own);
    ++place;
  }
  (void)sched_setaffinity(0, sizeof(own), &own);
}

Machine Machine::here() {
  Machine machine;
  machine.cpu = cpu_model();
  machine.cpus = usable_cpus();
  struct sysinfo info {};
  if (sysinfo(&info) == 0) {
    machine.memory_bytes =
        static_cast<std::int64_t>(info.totalram) * static_cast<std::int64_t>(info.mem_unit);
  }
  utsname names{};
  if (uname(&names) == 0) {
    machine.kernel = fmt::format("{} {} {}", names.sysname, names.release, names.machine);
  }
#if defined(__clang__)
  machine.compiler = "clang " __clang_version__;
#else
  machine.compiler = "g++ " __VERSION__;
#endif
  machine.build = SLUICE_BENCH_BUILD;
  machine.version = sluice::version();
  machine.row_kernels = codec::best_kernels().name;
  double load = 0.0;
  if (getloadavg(&load, 1) == 1) machine.load = load;
  return machine;
}

std::vector<std::string> Machine::warnings(int ranks) const {
  std::vector<std::string> list;
  if (ranks > cpus) {
    list.push_back(
        fmt::format("{} ranks share {} processors: times include scheduling", ranks, cpus));
  }
  if (load > 0.5 * cpus) {
    list.push_back(fmt::format("the machine was busy before the run: load {:.1f} on {} processors",
                               load, cpus));
  }
  if (sanitizers() != "none") list.push_back("built with sanitizers: times mean nothing");
#if !defined(__OPTIMIZE__)
  list.push_back("built without optimisation: times mean nothing");
#endif
  return list;
}

std::string sanitizers() {
  const std::string built_with = SLUICE_SANITIZERS;
  return built_with.empty() ? "none" : built_with;
}

std::vector<std::string> instruction_sets() {
  std::vector<std::string> list;
#if defined(__x86_64__)
#define SLUICE_BENCH_HAS(name) \
  if (__builtin_cpu_supports(name)) list.emplace_back(name)
  SLUICE_BENCH_HAS("sse4.2");
  SLUICE_BENCH_HAS("avx");
  SLUICE_BENCH_HAS("avx2");
  SLUICE_BENCH_HAS("fma");
  SLUICE_BENCH_HAS("avx512f");
  SLUICE_BENCH_HAS("avx512bw");
  SLUICE_BENCH_HAS("avx512vl");
#undef SLUICE_BENCH_HAS
#endif
  return list;
}

}  // namespace sluice::bench
