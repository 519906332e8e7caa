// SPDX-License-Identifier: MIT
#include "base/processor_quota.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <string_view>

namespace sluice::base {
namespace {

namespace fs = std::filesystem;

/// Time in every period, in microseconds. Version 2 has both in one file, or "max"; version 1 has a file for each, or -1.
std::optional<double> limit_of(const fs::path& group, bool unified) {
  std::ifstream of_time(group / (unified ? "cpu.max" : "cpu.cfs_quota_us"));
  double time = 0;
  double period = 0;
  if (!(of_time >> time)) return std::nullopt;
  if (unified) {
    of_time >> period;
  } else {
    std::ifstream(group / "cpu.cfs_period_us") >> period;
  }
  if (time <= 0 || period <= 0) return std::nullopt;
  return time / period;
}

std::string identity_of(const fs::path& group) {
  struct stat seen {};
  if (::stat(group.c_str(), &seen) != 0) return group.string();
  return std::to_string(seen.st_dev) + "." + std::to_string(seen.st_ino);
}

bool contains(std::string_view controllers, std::string_view controller) {
  for (std::size_t at = 0; at < controllers.size();) {
    const std::size_t end = std::min(controllers.find(',', at), controllers.size());
    if (controllers.substr(at, end - at) == controller) return true;
    at = end + 1;
  }
  return false;
}

/// Of a group and all that it is in. A container may see a path that starts outside it: what of it is not there has no limit
/// here, and the mount itself is then its own group.
void tighten(std::optional<ProcessorQuota>& quota, const fs::path& mount, std::string_view path,
             bool unified) {
  for (;;) {
    while (path.ends_with('/')) path.remove_suffix(1);
    const fs::path group = path.empty() ? mount : mount / path.substr(1);
    if (const auto limit = limit_of(group, unified);
        limit && (!quota || *limit < quota->processors)) {
      quota = ProcessorQuota{*limit, identity_of(group)};
    }
    if (path.empty()) return;
    path = path.substr(0, path.rfind('/'));
  }
}

}  // namespace

std::optional<ProcessorQuota> processor_quota(const fs::path& root) {
  std::optional<ProcessorQuota> quota;
  const fs::path mounts = root / "sys/fs/cgroup";
  std::ifstream groups(root / "proc/self/cgroup");
  // hierarchy:controllers:/path; version 2 is the hierarchy 0, without controllers.
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string_view controllers =
        std::string_view(line).substr(first + 1, second - first - 1);
    const std::string_view path = std::string_view(line).substr(second + 1);
    if (!path.starts_with('/')) continue;
    if (controllers.empty()) {
      tighten(quota, mounts, path, /*unified=*/true);
    } else if (contains(controllers, "cpu")) {
      tighten(quota, mounts / "cpu", path, /*unified=*/false);
    }
  }
  return quota;
}

}  // namespace sluice::base
