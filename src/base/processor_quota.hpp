// SPDX-License-Identifier: MIT
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace sluice::base {

/// How much of the machine's processors a container, or another control group, may use: time of so many in every period.
/// Who spins beyond it is stopped until the next period, for up to 100 ms.
struct ProcessorQuota {
  double processors = 0;
  std::string group;  // Of processes on one machine, those share the quota whose group is the same.
};

/// The tightest of this process's, by the rules of cgroup version 2 or 1 where the system mounts them (/sys/fs/cgroup). None:
/// none is set, or can be read. Only this one is told: of groups with a looser limit in which more processes are, nothing is
/// known. `root`: where /proc and /sys are looked for.
std::optional<ProcessorQuota> processor_quota(const std::filesystem::path& root = "/");

}  // namespace sluice::base
